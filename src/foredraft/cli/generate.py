"""``foredraft generate``: answer a prompt, or a file of prompts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.choices import tell_faults, write_logprobs, write_several
from foredraft.cli.arguments.loading import load_model, with_generation_config
from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.arguments.parser import Parser
from foredraft.cli.arguments.prompts import Line, read_lines, read_prompt
from foredraft.cli.arguments.text_cache import recent_text
from foredraft.cli.terminal import statistics as figures
from foredraft.cli.terminal.colour import Pen
from foredraft.cli.terminal.console import Console
from foredraft.errors import ForedraftError, GenerationError, NumericalError, PromptError

if TYPE_CHECKING:
    from foredraft.api import LanguageModel, Stream
    from foredraft.options import Options
    from foredraft.result import Result

_OF_ONE_LINE: Final = (PromptError, GenerationError, NumericalError)
_REFUSED: Final = 2
_EPILOG = """\
examples:
  foredraft generate "Why is the sky blue?"
  foredraft generate @notes.txt --system "Summarise." --max-tokens 100
  foredraft generate --prompts questions.jsonl --json --drafter none
  foredraft generate "Once" --raw --temperature 0.8 --seed 1 --drafter suffix+model:PATH
  foredraft generate "Name a person." --json-schema person.json
  foredraft generate @edit.txt --prediction draft.py --cache-scope my-project
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft generate PROMPT [options]"
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="text, @FILE, or - for stdin")
    parser.add_argument("--prompts", metavar="FILE", help="answer many: JSON lines with prompt or turns")
    arguments.add_model(parser)
    arguments.add_copying(parser, prediction=True)
    arguments.add_sampling(parser)
    arguments.add_shaping(parser)
    arguments.add_form(parser)
    arguments.add_choices(parser)
    arguments.add_template(parser, raw=True)
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Answer; every option and prompt is read before a model is loaded. What fails for one answer alone exits 2."""
    options = arguments.generation_options(args)
    if args.raw and args.system is not None:
        raise PromptError("a raw prompt has no system turn: leave system out")
    if args.prompts is None:
        prompt = read_prompt(args.prompt, console.stdin)
        model = load_model(args, console)
        with recent_text(model, args, console):
            whole = _one(model, prompt, with_generation_config(args, options, model, console), args, console)
        return 0 if whole else _REFUSED
    if args.prompt is not None:
        raise PromptError("a prompt and --prompts are both there: give one")
    lines = read_lines(args.prompts, console.stdin, predictions=True)
    if args.raw and any(len(line.turns) > 1 for line in lines):
        raise PromptError("--raw has no turns: leave it out, or give each line one prompt")
    if several(options) and any(len(line.turns) > 1 for line in lines):
        raise PromptError("-n answers a prompt, not a conversation: leave it out, or give each line one prompt")
    model = load_model(args, console)
    with recent_text(model, args, console):
        many = Many(model, with_generation_config(args, options, model, console), args.json, console)
        return 0 if many.answer(lines) else _REFUSED


def _one(model: LanguageModel, prompt: str, options: Options, args: argparse.Namespace, console: Console) -> bool:
    """Answer one prompt; say whether every answer to it is whole."""
    pen = None if args.json else Pen(console, console.stdout)
    if several(options):
        running = model.start(prompt, **options)
        try:
            running.finish()
        finally:
            # also after Ctrl-C: what was made so far are answers with statistics
            for result in running.results:
                whole = tell_faults(result, console)
                if pen is not None:
                    write_several(result, pen, console)
                _report(result, pen, console)
        return whole
    stream = model.stream(prompt, **options)
    try:
        write(stream, pen)
    finally:
        # as above
        if stream.result is not None:
            if pen is not None and stream.result.logprobs is not None:
                write_logprobs(stream.result.logprobs, console)
            _report(stream.result, pen, console)
    return True


def several(options: Options) -> bool:
    """Say whether each prompt gets more than one answer; those are not streamed."""
    return (options.get("n") or 1) > 1


def _report(result: Result, pen: Pen | None, console: Console) -> None:
    if pen is None:
        console.print(json.dumps(result.to_dict()))
    for notice in result.notices:
        console.say(as_options(notice))
    remarks(pen, figures.parts_of(result), console)


def write(stream: Stream, pen: Pen | None) -> None:
    """Write an answer as it comes, or just make it. Its last line is ended whatever happens."""
    with stream:
        try:
            for piece in stream:
                if pen is not None:
                    pen.write(piece.text, piece.origin)
        finally:
            if pen is not None:
                with suppress(BrokenPipeError):
                    pen.end()


def remarks(pen: Pen | None, statistics: Sequence[str], console: Console) -> None:
    """Write on stderr what the colours meant and what the answers came to."""
    if pen is not None and pen.ink is not None and console.coloured(console.stderr):
        console.legend(pen.ink.legend())
    console.remark_parts(statistics)


class Many:
    """A file of prompts, answered in order: what is done is kept if a later one fails, or if Ctrl-C ends it."""

    def __init__(self, model: LanguageModel, options: Options, as_json: bool, console: Console) -> None:
        self._model = model
        self._options = options
        self._console = console
        self._pen = None if as_json else Pen(console, console.stdout)
        self._entries: list[dict[str, Any]] = []
        self._results: list[Result] = []
        self._whole = True

    def answer(self, lines: list[Line]) -> bool:
        """Answer the lines; say whether every one was answered whole. A fault of one line's own ends that line alone.

        Raises what would be wrong of every line, with the number of the one that met it.
        """
        try:
            for done, line in enumerate(lines):
                self._console.progress.status(f"prompt {done + 1} of {len(lines)} …")
                try:
                    self._line(line)
                except _OF_ONE_LINE as error:
                    self._whole = False
                    self._console.say(as_options(f"line {line.number}: {error}"))
                except ForedraftError as error:
                    error.args = (f"line {line.number}: {error}",)
                    raise
        finally:
            self._report()
        return self._whole

    def _line(self, line: Line) -> None:
        """Answer a line. Raises what is wrong of it, once that has its entry."""
        options = self._options
        if line.prediction is not None:
            options = cast("Options", {**options, "prediction": line.prediction})
        try:
            if several(options):
                self._several(line, options)
                return
            for stream in _streams(self._model, line, **options):
                self._stream(line, stream)
        except _OF_ONE_LINE as error:
            mine = self._of(line)
            if not mine or "error" not in mine[-1]:  # it had no answer to tell of it
                self._entries.append({"line": line.number, "turn": len(mine), "error": str(error)})
            raise

    def _several(self, line: Line, options: Options) -> None:
        running = self._model.start(line.turns[0], **options)
        try:
            running.finish()
        finally:
            for result in running.results:
                self._take(line, result)
                self._whole &= tell_faults(result, self._console, f"line {line.number}, ")
                if self._pen is not None:
                    write_several(result, self._pen, self._console)
                    self._console.print()

    def _stream(self, line: Line, stream: Stream) -> None:
        if self._pen is not None:
            self._console.progress.close()
        try:
            write(stream, self._pen)
        finally:
            if (result := stream.result) is not None:
                self._take(line, result)
                if self._pen is not None:
                    if result.logprobs is not None:
                        write_logprobs(result.logprobs, self._console)
                    self._console.print()

    def _take(self, line: Line, result: Result) -> None:
        self._entries.append({"line": line.number, "turn": len(self._of(line)), **result.to_dict()})
        self._results.append(result)

    def _of(self, line: Line) -> list[dict[str, Any]]:
        return [entry for entry in self._entries if entry["line"] == line.number]

    def _report(self) -> None:
        if self._pen is None:
            self._console.print(json.dumps({"results": self._entries, **figures.totals(self._results)}))
        for notice in figures.notices(self._results):
            self._console.say(as_options(notice))
        if self._results:
            remarks(self._pen, figures.parts_total(self._results), self._console)


def _streams(model: LanguageModel, line: Line, **options: Unpack[Options]) -> Any:
    """Yield the answers to a line's turns, each to be read before the next is asked for."""
    if len(line.turns) == 1:
        yield model.stream(line.turns[0], **options)
        return
    from foredraft.conversation import Conversation

    system = options.pop("system", None)
    conversation = Conversation(model, system)
    for turn in line.turns:
        yield conversation.send(turn, **options)
