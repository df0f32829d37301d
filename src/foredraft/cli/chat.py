"""``foredraft chat``: a conversation; each turn feeds only what is new."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import load_model, with_generation_config
from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.arguments.parser import Parser, nearest
from foredraft.cli.arguments.text_cache import recent_text
from foredraft.cli.generate import write
from foredraft.cli.terminal import statistics as figures
from foredraft.cli.terminal.colour import Pen
from foredraft.cli.terminal.console import Console
from foredraft.errors import ForedraftError

if TYPE_CHECKING:
    from foredraft.api import LanguageModel
    from foredraft.options import Options

_COMMANDS: Final = {
    "/help": "show this",
    "/reset": "forget what was said",
    "/system TEXT": "start again under another system turn",
    "/exit": "leave; Ctrl-D does too, and Ctrl-C stops an answer",
}
_EPILOG = """\
in the chat:
{commands}
With stdin not a terminal each line of it is a turn: printf 'Hi\\nAnd now?\\n' | foredraft chat
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG.format(commands=_help())
    parser.usage = "foredraft chat [options]"
    arguments.add_model(parser)
    arguments.add_copying(parser, prediction=False)
    arguments.add_sampling(parser)
    arguments.add_shaping(parser)
    arguments.add_form(parser)
    arguments.add_template(parser, raw=False)
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Talk until the user leaves or his words run out."""
    options = arguments.generation_options(args)
    system = options.pop("system", None)
    model = load_model(args, console)
    chat = _Chat(model, system, with_generation_config(args, options, model, console), args.json, console)
    with recent_text(model, args, console):
        try:
            for words in chat.turns():
                if not chat.answer(words):
                    break
        finally:
            if args.json:
                console.print(json.dumps({"turns": chat.documents}))
    return 0


class _Chat:
    """One session. A fault in a turn ends it where nobody is there to read of it, and only the turn otherwise."""

    def __init__(
        self, model: LanguageModel, system: str | None, options: Options, as_json: bool, console: Console
    ) -> None:
        from foredraft.conversation import Conversation

        self.documents: list[dict[str, Any]] = []
        self._converse = Conversation
        self._model = model
        self._options = options
        self._console = console
        self._interactive = console.stdin.isatty()
        self._conversation = Conversation(model, system)
        self._system = system
        # with --json nothing but the document goes to stdout, yet someone at the keyboard wants to read along
        stream = console.stderr if as_json else console.stdout
        self._pen = None if as_json and not self._interactive else Pen(console, stream)
        self._explained = False
        self._noticed: set[str] = set()

    def turns(self) -> Iterator[str]:
        """Yield what the user says."""
        if not self._interactive:
            for line in self._console.stdin:
                if words := line.strip():
                    yield words
            return
        loaded = self._model.loaded
        self._console.remark(f"{loaded.name} · {loaded.tier} {loaded.dtype} on {loaded.device} · /help for help")
        with suppress(ImportError):  # absent on some systems; lines are then edited by the terminal alone
            import readline  # noqa: F401 - importing it is what gives input() its editing
        while True:
            try:
                words = self._ask().strip()
            except EOFError:
                self._console.stderr.write("\n")
                return
            except KeyboardInterrupt:
                self._console.remark("\n/exit or Ctrl-D leaves")
                continue
            if words:
                yield words

    def answer(self, words: str) -> bool:
        """Do what a turn asks for; say whether the chat goes on."""
        if words.startswith("/"):
            return self._command(words)
        try:
            self._speak(words)
        except ForedraftError as error:
            if not self._interactive:
                raise
            self._console.say(as_options(str(error)))
        except KeyboardInterrupt:
            if not self._interactive:
                raise
        return True

    def _ask(self) -> str:
        prompt = "> "
        if not self._console.stdout.isatty():
            self._console.stderr.write(prompt)
            self._console.stderr.flush()
            line = self._console.stdin.readline()
            if not line:
                raise EOFError
            return line
        if self._console.coloured(self._console.stdout):
            prompt = "\x01\x1b[1m\x02> \x01\x1b[0m\x02"  # the marks tell readline what has no width
        return input(prompt)

    def _speak(self, words: str) -> None:
        stream = self._conversation.send(words, **self._options)
        try:
            write(stream, self._pen)
        finally:
            if (result := stream.result) is not None:
                self.documents.append({"prompt": words, **result.to_dict()})
                for notice in result.notices:
                    if notice not in self._noticed:  # once is enough
                        self._noticed.add(notice)
                        self._console.say(as_options(notice))
                self._remark(figures.parts_of(result, fed=True))

    def _remark(self, statistics: Sequence[str]) -> None:
        pen, console = self._pen, self._console
        if pen is not None and pen.ink is not None and console.coloured(console.stderr) and not self._explained:
            console.legend(pen.ink.legend())
            self._explained = len(pen.ink.seen) > 2  # until the colours have been met
        console.remark_parts(statistics)

    def _command(self, words: str) -> bool:
        name, _, rest = words.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/help":
            self._console.remark(_help())
        elif name == "/reset" or (name == "/system" and rest.strip()):
            self._system = rest.strip() if name == "/system" else self._system
            self._conversation = self._converse(self._model, self._system)
            self._console.remark("a new conversation" + (f" under: {self._system}" if self._system else ""))
        elif name == "/system":
            self._console.remark(f"the system turn: {self._system}" if self._system else "there is no system turn")
        else:
            known = [command.partition(" ")[0] for command in _COMMANDS]
            self._console.remark(f"there is no command {name}{nearest(name, known)}")
        return True


def _help() -> str:
    return "\n".join(f"  {command:<14}{what}" for command, what in _COMMANDS.items())
