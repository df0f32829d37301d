"""The table of a benchmark, 80 columns wide, whatever characters its names are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.text_width import columns, cut, fit, wrapped

_TASK: Final = 14
_WIDTH: Final = 80
_FIRST: Final = 16  # the column of the first drafter in the table of peers
_GAIN: Final = 1.05  # a speed-up from which on it is painted as one, and as far below 1 as a loss
_GOOD: Final = ("38;5;29", "32")  # many colours, few
_BAD: Final = ("1;38;5;166", "1;31")
Figures = Mapping[str, Any]


def tell(document: Figures, console: Console) -> None:
    """Write the document for a person."""
    for line in _heading(document):
        console.print(line)
    for each in document["drafters"]:
        console.print()
        for line in _drafter(each, console):
            console.print(line)
    if document["peers"]:
        console.print()
        for line in _peers(document):
            console.print(line)


def _heading(document: Figures) -> Iterator[str]:
    drawn = f"temperature {document['temperature']:g}, seed {document['seed']}" if document["temperature"] else "greedy"
    prompts = f"{document['prompts']} prompt{'' if document['prompts'] == 1 else 's'}"
    about = f"{document['model']} · {document['tier']} {document['dtype']}"
    yield harmless(f"{about} · {prompts} · {document['max_tokens']} tokens · {drawn}")
    yield f"plain decoding {_rate(document['plain']['tokens_per_s'])} tokens/s"


def _drafter(each: Figures, console: Console) -> Iterator[str]:
    if each["fault"] is not None:
        yield _painted(f"{_name(each['drafter'])} · failed", _BAD, console)
        yield from wrapped(harmless(as_options(_flat(each["fault"]))).split(" "), " ", _WIDTH)
        return
    same = each["identical"] == each["answers"]
    texts = f"texts identical to plain {each['identical']}/{each['answers']}"
    yield f"{_name(each['drafter'])} · {texts if same else _painted(texts, _BAD, console)}"
    head = f"{'task':<{_TASK}} {'n':>4} {'plain/s':>8} {'drafted/s':>9} {'a pass':>6} {'speed-up':>8} {'oracle':>14}"
    yield f"{head} {'best fixed':>10}"
    for row in each["tasks"]:
        yield _row(row["task"], row, console)
    yield _row("all" if each["tasks"] else "all prompts", each, console)
    yield from _below(each)


def _row(name: str, row: Figures, console: Console) -> str:
    times = f"{_times(row['speedup']):>8}"
    if row["speedup"] is not None and row["speedup"] >= _GAIN:
        times = _painted(times, _GOOD, console)
    elif row["speedup"] is not None and row["speedup"] < 2 - _GAIN:
        times = _painted(times, _BAD, console)
    oracle = f"{_percent(row['percent_of_oracle'])} of {_times(row['oracle_speedup'])}"
    best = f"{_percent(row['percent_of_best_fixed'])} ({row['best_fixed']['draft_tokens']})"
    plain, drafted = _rate(row["plain_tokens_per_s"]), _rate(row["tokens_per_s"])
    passes = f"{row['mean_tokens_per_pass']:.2f}"
    figures = f"{row['prompts']:>4} {plain:>8} {drafted:>9} {passes:>6} {times} {oracle:>14} {best:>10}"
    return f"{fit(_name(name), _TASK)} {figures}"


def _below(each: Figures) -> Iterator[str]:
    if (interval := each["interval"]) is not None:
        yield f"speed-up over all    {interval[0]:.2f} to {interval[1]:.2f} in 95 % of resamples of the prompts"
    if (spread := each["spread"]) is not None:
        figures = (f"{spread[name]:.2f}" for name in ("least", "p10", "median", "p90", "most"))
        yield f"of single prompts    {'  '.join(figures)}  (0, 10, 50, 90, 100 %)"
    if each["worst_task"] is not None:
        worst = next(row for row in each["tasks"] if row["task"] == each["worst_task"])
        yield f"worst task           {cut(_name(each['worst_task']), _WIDTH // 2)}, {_times(worst['speedup'])}"
    lengths = "  ".join(f"{row['draft_tokens']}: {_times(row['speedup'])}" for row in each["lengths"])
    yield f"fixed, in hindsight  {lengths}"


def _peers(document: Figures) -> Iterator[str]:
    first = cut(_name(f"of {document['drafters'][0]['drafter']}"), _FIRST)
    first = " " * (_FIRST - columns(first)) + first
    yield f"{'peers':<30} {'tokens/s':>9} {'of plain':>9} {first} {'same text':>10}"
    for each in document["peers"]:
        name = f"{each['peer']:<30}"
        if each["tokens_per_s"] is not None:
            ours = next(iter(each["over_drafters"].values()), None)
            same = f"{each['identical']}/{each['answers']}"
            figures = (
                f"{_rate(each['tokens_per_s']):>9} {_times(each['over_plain']):>9} {_times(ours):>{_FIRST}} {same:>10}"
            )
            yield f"{name} {figures}"
        if each["fault"] is not None:
            yield cut(harmless(f"{name} {_flat(each['fault'])}"), 2 * _WIDTH)


def _name(text: str) -> str:
    """Return a name that somebody else gave on one line that cannot hurt a terminal."""
    return harmless(_flat(text))


def _flat(text: str) -> str:
    return " ".join(text.split())


def _times(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.2f}"


def _rate(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.1f}"


def _percent(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.0f}%"


def _painted(text: str, colour: tuple[str, str], console: Console) -> str:
    if not console.coloured(console.stdout):
        return text
    return f"\x1b[{colour[0] if console.many_colours else colour[1]}m{text}\x1b[0m"
