"""``foredraft explain``: one generation, round by round, in the terminal and as an HTML file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import load_model, with_generation_config
from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.arguments.parser import Once, Parser
from foredraft.cli.arguments.prompts import read_prompt
from foredraft.cli.arguments.text_cache import recent_text
from foredraft.cli.terminal import statistics as figures
from foredraft.cli.terminal.colour import Ink, Pen
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.text_width import columns, cut
from foredraft.errors import OptionError, PromptError, StorageError

if TYPE_CHECKING:
    from foredraft.api import LanguageModel
    from foredraft.core.protocols import Planner, Watch
    from foredraft.measure.trace.trace import Trace, Traced
    from foredraft.options import Options
    from foredraft.result import Result

_EPILOG: Final = """\
examples:
  foredraft explain "Name the planets, twice." --html trace.html
  foredraft explain @question.txt --drafter suffix+model:PATH --draft-tokens 4
  foredraft explain "Once" --raw --temperature 0.8 --rule ratio --json

A line a round. Behind each guess stands its chance under the model's distribution, and the one it was drawn with
(= where the guess was certain of itself), or nothing where both were certain; ✗ marks what was rejected, and what
follows that was not looked at.
"""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_GAP: Final = 32  # columns before the guesses
_WIDEST: Final = 120
_UNSEEN: Final = 24  # columns of what was guessed in vain
_CERTAIN: Final = "1="
_FAINT: Final = "\x1b[2m{}\x1b[0m"
_MOMENT: Final = 16  # rounds between two words about how far it is


def add_arguments(parser: Parser) -> None:
    """Add the verb's options: those of one generation, and where the trace goes."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft explain PROMPT [options]"
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="text, @FILE, or - for stdin")
    parser.add_argument("--html", action=Once, metavar="FILE", help="write the trace as one HTML file too")
    arguments.add_model(parser)
    arguments.add_copying(parser, prediction=True)
    arguments.add_sampling(parser)
    arguments.add_shaping(parser)
    arguments.add_form(parser)
    arguments.add_template(parser, raw=True)
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Generate, and tell; every option, the prompt and the place of the file are read before a model is loaded."""
    options = arguments.generation_options(args)
    if args.raw and args.system is not None:
        raise PromptError("a raw prompt has no system turn: leave system out")
    prompt = read_prompt(args.prompt, console.stdin)
    path = None if args.html is None else _place(args.html)
    model = load_model(args, console)
    with recent_text(model, args, console):
        result, trace = _traced(model, prompt, with_generation_config(args, options, model, console), console)
    for notice in result.notices:
        console.say(as_options(notice))
    if args.json:
        document = {**result.to_dict(), "rounds": [each.to_dict() for each in trace.rounds]}
        console.print(json.dumps(document))
    else:
        _tell(result, trace, console)
    if path is not None:
        _write(path, prompt, result, trace)
        console.remark(f"the trace is in {path}")
    return 0


def _traced(model: LanguageModel, prompt: str, options: Options, console: Console) -> tuple[Result, Trace]:
    from foredraft.measure.trace.trace import Trace

    traces: list[Trace] = []

    def look(planner: Planner) -> Watch:
        traces.append(Trace(planner, model.loaded.sampler.logprobs, model.loaded.tokenizer))
        return traces[0]

    model.onlookers.append(look)
    running = model.start(prompt, **options)
    console.progress.status("generating …")
    for rounds, _ in enumerate(running, start=1):
        if rounds % _MOMENT == 0:
            console.progress.status(f"generating, round {rounds} …")
    console.progress.close()
    (result,) = running.results
    if result.fault is not None:
        raise result.fault
    traces[0].finish()
    return result, traces[0]


def _place(name: str) -> Path:
    """Return where the file goes. Raises OptionError for what names none, StorageError where it cannot be written."""
    if name in ("", "-"):
        raise OptionError(f"--html writes a file beside the answer on stdout: name one, not {name!r}")
    path = Path(name)
    try:
        if path.is_dir() or not path.parent.is_dir():
            what = "is a folder" if path.is_dir() else "lies in no folder that is there"
            raise StorageError(f"--html: {name!r:.80} {what}: name a file")
        if path.exists() and not path.is_file():
            raise StorageError(f"--html: {name!r:.80} is not a regular file: name one")
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that may not be read
        why = getattr(error, "strerror", None) or error
        raise StorageError(f"--html: {name!r:.80} cannot be written: {why}") from error
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise StorageError(f"--html: {name!r:.80} may not be written")
    return path


def _write(path: Path, prompt: str, result: Result, trace: Trace) -> None:
    from foredraft.measure.trace.html import page

    facts = [result.model, f"{result.tier} {result.dtype}", f"drafter {result.drafter}", _rule(result)]
    facts += figures.parts_of(result)[:-1]
    text = page("foredraft explain", prompt, facts, trace.rounds)
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"--html: {str(path)!r:.80} cannot be written: {error.strerror}") from error


def _rule(result: Result) -> str:
    return f"rule {result.rule}" + ("" if result.seed is None else f", seed {result.seed}")


def _tell(result: Result, trace: Trace, console: Console) -> None:
    """Write the answer in its writers' colours, how easy it was along the way, then a line a round."""
    pen = Pen(console, console.stdout)
    for each in trace.rounds:
        for token in each.tokens:
            pen.write(token.shown, token.origin)
    pen.end()
    console.print()
    for line in _heights(trace.rounds, console):
        console.print(line)
    console.print()
    console.print(f"{'round':>5} {'at':>4} {'kept':>6} {'draft':>5} + {'pass':>4}  ms; guesses → what followed")
    reason = ""
    for number, each in enumerate(trace.rounds):
        for line in _lines(number, each, pen.ink, console):
            console.print(line)
        if each.reason and each.reason != reason:
            console.print(" " * _GAP + _faint(harmless(f"because {each.reason}"), pen.ink))
            reason = each.reason
    if pen.ink is not None and console.coloured(console.stderr):
        console.legend(pen.ink.legend())
    console.remark_parts(figures.parts_of(result))


def _heights(rounds: Sequence[Traced], console: Console) -> Iterator[str]:
    """Yield a block for each round, as high as the tokens it added: high where the text was easy."""
    most = max(len(each.tokens) for each in rounds)
    scale = max(most - 1, len(_BLOCKS) - 1)
    blocks = "".join(_BLOCKS[(len(each.tokens) - 1) * (len(_BLOCKS) - 1) // scale] for each in rounds)
    width = min(console.width, 100)
    for start in range(0, len(blocks), width):
        yield blocks[start : start + width]
    yield f"a block a round: {_BLOCKS[0]} one token, hard; {_BLOCKS[-1]} {scale + 1} tokens, easy"


def _lines(number: int, each: Traced, ink: Ink | None, console: Console) -> Iterator[str]:
    """Yield a round's line, and what of it goes on below, under its guesses."""
    kept = "prompt" if each.prompt else f"{each.accepted}/{len(each.guesses)}" if each.guesses else "-"
    draft = f"{each.draft_ms:.1f}" if each.guesses else "-"
    line = f"{number:>5} {each.position:>4} {kept:>6} {draft:>5} + {each.verify_ms:>4.0f}  "
    used = _GAP
    for word, plain in _words(each, ink):
        if used + columns(plain) > min(console.width, _WIDEST) and used > _GAP:
            yield line.rstrip()
            line, used = " " * _GAP, _GAP
        line, used = f"{line}{word} ", used + columns(plain) + 1
    yield line.rstrip()


def _words(each: Traced, ink: Ink | None) -> Iterator[tuple[str, str]]:
    """Yield what stands behind a round, word by word, as it is painted and as it is."""
    from foredraft.measure.trace.html import odds
    from foredraft.measure.trace.trace import ACCEPTED, UNTESTED

    for guess in each.guesses:
        if guess.fate == UNTESTED:
            continue
        accepted = guess.fate == ACCEPTED
        word = ("" if accepted else "✗") + quoted(guess.text)
        yield _painted(word, each.source if accepted else "correction", ink), word
        if (figure := odds(guess)) != _CERTAIN or not accepted:
            yield _faint(figure, ink), figure
    if rest := [guess.text for guess in each.guesses if guess.fate == UNTESTED]:
        chain = all(guess.parent == i - 1 for i, guess in enumerate(each.guesses))
        words = harmless(_flat("".join(rest))) if chain else f"and {len(rest)} more"
        words = cut(words, _UNSEEN)
        yield _faint(words, ink), words
    for token in each.tokens[each.accepted :]:
        word = quoted(token.text)
        yield f"→ {_painted(word, token.origin, ink)}", f"→ {word}"


def quoted(text: str) -> str:
    """Return a token's text in quotes, on one line, that cannot hurt a terminal."""
    return f'"{harmless(_flat(text))}"'


def _flat(text: str) -> str:
    return text.replace("\n", "↵").replace("\t", "⇥")


def _painted(text: str, origin: str, ink: Ink | None) -> str:
    return text if ink is None else ink.paint(text, origin)


def _faint(text: str, ink: Ink | None) -> str:
    return text if ink is None else _FAINT.format(text)
