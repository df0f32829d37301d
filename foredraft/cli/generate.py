"""``foredraft generate``: answer a prompt, or a file of prompts."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack, cast

from foredraft.cli import arguments, figures
from foredraft.cli.console import Console
from foredraft.cli.ink import Pen
from foredraft.cli.loading import load_model, with_generation_config
from foredraft.cli.names import as_options
from foredraft.cli.parser import Parser
from foredraft.cli.prompts import Line, read_lines, read_prompt
from foredraft.cli.recent import recent_text
from foredraft.cli.several import write_logprobs, write_several
from foredraft.errors import ForedraftError, PromptError

if TYPE_CHECKING:
    from foredraft.api import LanguageModel, Stream
    from foredraft.options import Options
    from foredraft.result import Result

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
    """Answer; every option and prompt is read before a model is loaded."""
    options = arguments.generation_options(args)
    if args.prompts is None:
        prompt = read_prompt(args.prompt, console.stdin)
        model = load_model(args, console)
        with recent_text(model, args, console):
            _one(model, prompt, with_generation_config(args, options, model, console), args, console)
        return 0
    if args.prompt is not None:
        raise PromptError("a prompt and --prompts are both there: give one")
    lines = read_lines(args.prompts, console.stdin, predictions=True)
    if args.raw and any(len(line.turns) > 1 for line in lines):
        raise PromptError("--raw has no turns: leave it out, or give each line one prompt")
    if several(options) and any(len(line.turns) > 1 for line in lines):
        raise PromptError("-n answers a prompt, not a conversation: leave it out, or give each line one prompt")
    model = load_model(args, console)
    with recent_text(model, args, console):
        _many(model, lines, with_generation_config(args, options, model, console), args, console)
    return 0


def _one(model: LanguageModel, prompt: str, options: Options, args: argparse.Namespace, console: Console) -> None:
    pen = None if args.json else Pen(console, console.stdout)
    if several(options):
        result = model.generate(prompt, **options)
        if pen is not None:
            write_several(result, pen, console)
        _report(result, pen, console)
        return
    stream = model.stream(prompt, **options)
    try:
        write(stream, pen)
    finally:
        # also after Ctrl-C: what was written so far is an answer with statistics
        if stream.result is not None:
            if pen is not None and stream.result.logprobs is not None:
                write_logprobs(stream.result.logprobs, console)
            _report(stream.result, pen, console)


def several(options: Options) -> bool:
    """Say whether each prompt gets more than one answer; those are not streamed."""
    return (options.get("n") or 1) > 1


def _report(result: Result, pen: Pen | None, console: Console) -> None:
    if pen is None:
        console.print(json.dumps(result.to_dict()))
    for notice in result.notices:
        console.say(as_options(notice))
    _remarks(pen, figures.line(result), console)


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


def _remarks(pen: Pen | None, statistics: str, console: Console) -> None:
    if pen is not None and pen.ink is not None and console.coloured(console.stderr):
        console.legend(pen.ink.legend())
    console.remark(statistics)


def _many(
    model: LanguageModel, lines: list[Line], options: Options, args: argparse.Namespace, console: Console
) -> None:
    """Answer the lines in order; what is done is kept if a later one fails."""
    pen = None if args.json else Pen(console, console.stdout)
    entries: list[tuple[dict[str, int], Result]] = []
    try:
        for done, line in enumerate(lines):
            console.progress.status(f"prompt {done + 1} of {len(lines)} …")
            own = options if line.prediction is None else cast("Options", {**options, "prediction": line.prediction})
            _line(model, line, own, pen, entries, console)
    finally:
        results = [result for _, result in entries]
        if args.json:
            document: dict[str, Any] = {"results": [{**place, **result.to_dict()} for place, result in entries]}
            console.print(json.dumps({**document, **figures.totals(results)}))
        if results:
            for notice in figures.notices(results):
                console.say(as_options(notice))
            _remarks(pen, figures.lines_total(results), console)


def _line(
    model: LanguageModel,
    line: Line,
    options: Options,
    pen: Pen | None,
    entries: list[tuple[dict[str, int], Result]],
    console: Console,
) -> None:
    try:
        if several(options):
            result = model.generate(line.turns[0], **options)
            entries.append(({"line": line.number, "turn": 0}, result))
            if pen is not None:
                console.progress.close()
                write_several(result, pen, console)
                console.print()
            return
        for turn, stream in enumerate(_streams(model, line, **options)):
            if pen is not None:
                console.progress.close()
            try:
                write(stream, pen)
            finally:
                if stream.result is not None:
                    entries.append(({"line": line.number, "turn": turn}, stream.result))
            if pen is not None:
                if stream.result.logprobs is not None:
                    write_logprobs(stream.result.logprobs, console)
                console.print()
    except ForedraftError as fault:
        raise type(fault)(f"line {line.number}: {fault}") from fault


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
