"""The dispatcher: finds the verb, runs it, and turns whatever goes wrong into one sentence and an exit status."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from foredraft._version import __version__
from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.arguments.parser import Parser, nearest
from foredraft.cli.terminal.console import Console
from foredraft.errors import ForedraftError, OptionError

VERBS: Final = {
    "generate": "answer a prompt, or a file of prompts",
    "chat": "talk with a model; each turn feeds only what is new",
    "serve": "answer over HTTP, by OpenAI's API",
    "bench": "time drafters against plain decoding, and against what could be had at best",
    "explain": "trace one generation round by round, in the terminal and as an HTML file",
    "certify": "check a model and its drafters against plain decoding",
    "roofline": "measure what this machine allows: passes, draft lengths, batches",
    "cache": "show, clear and fill the cache of recent text that --cache-scope copies from",
    "train": "make what drafts for a model: heads, a smaller model, or a choice of its own layers",
    "models": "list the models that are here and those that are known; fetch and remove",
    "doctor": "say what this machine has and what will be used",
}
OK: Final = 0
UNEXPECTED: Final = 1
REFUSED: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_EXAMPLES: Final = """\
examples:
  foredraft generate "Why is the sky blue?"
  foredraft generate @question.txt --drafter none --json
  foredraft chat --drafter suffix+model:PATH

Each verb has its own --help. stdout is the answer, stderr progress and statistics.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``foredraft`` with ``argv`` (default: the process's own arguments) and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console.of_process()
    try:
        status = _run(words, console)
        sys.stdout.flush()  # so that a broken pipe is noticed here and not at exit
        return status
    except SystemExit as end:  # argparse's --help and --version
        return int(end.code or OK)
    except BaseException as error:
        return _status_of(error, console, in_full="--traceback" in words)


def _run(words: list[str], console: Console) -> int:
    if not words:
        _parser().print_help()
        return OK
    verb = words[0]
    if verb not in VERBS:
        if not verb.startswith("-"):
            raise OptionError(f"there is no verb {verb!r}{nearest(verb, VERBS)}: see foredraft --help")
        _parser().read(words)
        raise OptionError("a verb comes first, as in foredraft generate PROMPT: see foredraft --help")
    module = importlib.import_module(f"foredraft.cli.{verb}")
    parser = Parser(f"foredraft {verb}", VERBS[verb])
    module.add_arguments(parser)
    args = parser.read(words[1:], mixed=verb in ("models", "cache", "train"))
    console.choose_colour(args.color)
    return int(module.run(args, console))


def _parser() -> Parser:
    parser = Parser(
        "foredraft",
        "Lossless speculative decoding: several tokens for one reading of the weights, the text unchanged.",
        "verbs:\n" + "".join(f"  {verb:<10}{what}\n" for verb, what in VERBS.items()) + "\n" + _EXAMPLES,
        usage="foredraft VERB [options]",
    )
    parser.add_argument("--version", action="version", version=f"foredraft {__version__}")
    parser.add_argument("--traceback", action="store_true", help=argparse.SUPPRESS)
    return parser


def _status_of(error: BaseException, console: Console, *, in_full: bool) -> int:
    """Tell the user what went wrong, and return the exit status."""
    console.progress.close()
    if isinstance(error, BrokenPipeError):
        _abandon_stdout()
        return BROKEN_PIPE
    if in_full:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, ForedraftError):
        console.say(as_options(str(error)))
        return REFUSED
    hint = "" if in_full else " (--traceback shows where)"
    console.say(f"unexpected {type(error).__name__}: {error}{hint}")
    return UNEXPECTED


def _abandon_stdout() -> None:
    """Let what is still buffered go nowhere, so that the interpreter does not complain at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stdout without a file descriptor has nothing to complain about
        pass
