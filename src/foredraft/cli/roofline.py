"""``foredraft roofline``: what this machine allows, measured: passes by rows, draft lengths, batches."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.loading import find_own_classes, load_bare, token_ids
from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.arguments.parser import Parser, whole
from foredraft.cli.arguments.prompts import read_lines
from foredraft.cli.certify import load_drafts
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.text_width import fit, wrapped
from foredraft.errors import ForedraftError, OptionError, StorageError

if TYPE_CHECKING:
    from foredraft.core.protocols import Drafter
    from foredraft.measure.roofline.roofline import Roofline
    from foredraft.runtime.loaded_model import LoadedModel

_EPILOG: Final = """\
examples:
  foredraft roofline
  foredraft roofline --drafter suffix --drafter model:PATH --out figures

Measure on a machine that does nothing else; where others were at work, it says so. A figure needs matplotlib:
pip install 'foredraft[plots]'. Exit status 0 if every drafter could be asked, 1 if one failed.
"""
_FAILED: Final = 1
_NAME: Final = 30
_PROMPTS: Final = 4  # of the bundled questions
_TOKENS: Final = 48
_WIDTH: Final = 80
_ROWS: Final = 64  # of the largest batch that is told of


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft roofline [options]"
    group = parser.add_argument_group("what is measured")
    arguments.add_model_name(group)
    group.add_argument("--drafter", metavar="D", action="append", help="as for generate (default auto); again for more")
    group.add_argument("--prompts", metavar="FILE", help="JSON lines with prompt or turns (each turn on its own)")
    group.add_argument("--tokens", metavar="N", type=whole, help=f"longest answer (default {_TOKENS})")
    group.add_argument("--out", metavar="DIR", help="write roofline.json and roofline.png there")
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Measure, tell, and write; every option and prompt is read before a model is loaded."""
    from foredraft.measure.bench.questions import QUESTIONS
    from foredraft.measure.roofline.roofline import measured
    from foredraft.runtime.drafter_names import check_names

    names = tuple(dict.fromkeys(args.drafter or ["auto"]))
    for name in names:
        check_names(name)
        find_own_classes(name)
    if args.tokens is not None and args.tokens < 2:
        raise OptionError(f"tokens must be at least 2, not {args.tokens}")
    place = _place(args.out)
    prompts: tuple[str, ...] = QUESTIONS[:_PROMPTS]
    if args.prompts is not None:
        prompts = tuple(turn for line in read_lines(args.prompts, console.stdin) for turn in line.turns)
    loaded = load_bare(args, console)
    ids = token_ids(prompts, loaded, console)
    drafters, faults = _made([name for name in names if name != "none"], loaded, load_drafts(args, console, loaded))
    console.progress.status("measuring …")
    found = measured(loaded, drafters, ids, args.tokens or _TOKENS, faults)
    console.progress.close()
    if found.busy:
        console.say(busy(found))
    document = {"model": loaded.name, "tier": loaded.tier, "dtype": loaded.dtype, **found.document()}
    if not args.json:
        for line in lines(found):
            console.print(line)
    if place is not None:
        _write(place, document, console)
    if args.json:
        console.print(json.dumps(document))
    return _FAILED if found.faults else 0


def _place(name: str | None) -> Path | None:
    """Return the folder for the files, refused now and not after measuring where they cannot be written."""
    from foredraft.system.files import require_place

    if name is None:
        return None
    if name in ("", "-"):
        raise OptionError(f"--out must name a folder, not {name!r}")
    folder = Path(name)
    for file in ("roofline.json", "roofline.png"):
        require_place(folder / file)
    return folder


def _made(
    names: Sequence[str], loaded: LoadedModel, load_draft: Callable[[Any], LoadedModel]
) -> tuple[dict[str, Drafter], dict[str, str]]:
    """Return the drafters by name, and of those that cannot be made why not."""
    from foredraft.runtime.drafter_names import make_drafter

    drafters, faults = {}, {}
    for name in names:
        try:
            drafters[name] = make_drafter(name, loaded, load_draft, None, None)
        except ForedraftError as error:
            faults[name] = " ".join(str(error).split())
    return drafters, faults


def busy(found: Roofline) -> str:
    """Return the sentence that says that the machine did something else meanwhile."""
    assert found.repeats is not None
    passes = found.repeats.document()["passes"]
    worst = max(passes, key=lambda each: float(each["median_ms"]) / float(each["least_ms"]))
    return (
        f"this machine was busy: the same pass of {worst['rows']} row{'' if worst['rows'] == 1 else 's'} took"
        f" {worst['least_ms']:.3g} to {worst['most_ms']:.3g} ms, {worst['median_ms']:.3g} in the middle;"
        " no figure here is to be relied on, measure again when it is idle"
    )


def lines(found: Roofline) -> list[str]:
    """Return the tables that are printed."""
    table, plain = found.table, found.table.bare(1)
    told = ["A pass by its rows: one reading of the weights serves them all until arithmetic takes the time", ""]
    told.append("   rows        ms  of a plain pass    ms a row")
    told += [
        f"{m:>7}{1e3 * s:>10.4g}{s / plain:>17.2f}{1e3 * s / m:>12.3g}"
        for m, s in zip(table.rows, table.seconds, strict=True)
    ]
    told += ["", *_rates(found)]
    if found.repeats is not None:
        told.append(f"the same pass again and again: median {found.repeats.spread:.2f} times the least")
    if table.rows[-1] < _ROWS:
        told.append(f"passes of more than {table.rows[-1]} rows were not timed: what follows goes on from there")
    told += ["", "Speed-up expected by acceptance, at the best draft length, and the batch where it stops", ""]
    told.append(f"{'acceptance':<30}{'ms a guess':>12}{'length':>8}{'speed-up':>10}  stops at a batch of")
    document = found.document()
    for curve in [*document["curves"], *document["drafters"]]:
        own = "guess_ms" in curve
        name = f"{curve['name']} here: {curve['acceptance']:.2f}" if own else curve["name"]
        cost = f"{curve['guess_ms']:.3f}" if own else "0"
        told.append(
            f"{fit(harmless(name), _NAME)}{cost:>12}{curve['best_length']:>8}{curve['best_speedup']:>10.2f}"
            f"  {curve['stops_at_batch'] or 'more than 64'}"
        )
    for name, why in found.faults.items():
        told += wrapped(as_options(harmless(f"{name} failed: {why}")).split(" "), " ", _WIDTH)
    return told


def _rates(found: Roofline) -> list[str]:
    """Return how fast weights are read and multiplied with, as far as that is known of the model."""
    told, plain = [], found.table.bare(1)
    if found.floor is not None:
        speed = "" if found.read_gb_s is None else f": {found.read_gb_s:.1f} GB/s"
        share = f"{100 * found.floor / plain:.0f} % of a plain pass"
        told.append(f"reading the weights once takes {1e3 * found.floor:.3g} ms, {share}{speed}")
    if found.pass_gb_s is not None:
        told.append(f"a plain pass reads {found.pass_gb_s:.1f} GB/s and computes {found.gflop_s(1):.4g} GFLOP/s")
        most = found.busiest
        told.append(f"at most {found.gflop_s(most):.4g} GFLOP/s, in a pass of {most} row{'' if most == 1 else 's'}")
    return told


def _write(folder: Path, document: dict[str, Any], console: Console) -> None:
    from foredraft.measure.roofline.plot import plot
    from foredraft.system.files import write_whole

    write_whole(folder / "roofline.json", json.dumps(document, indent=1) + "\n")
    try:
        plot(document, folder / "roofline.png", f"{document['model']}, {document['tier']} {document['dtype']}")
    except OptionError as error:
        console.say(str(error))
    except OSError as error:
        raise StorageError(f"cannot write {folder / 'roofline.png'}: {error.strerror or error}") from error
