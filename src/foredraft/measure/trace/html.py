"""A trace as one HTML file: no other file, no script, nothing fetched; light or dark as the reader has it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final

from foredraft.measure.trace.style import STYLE
from foredraft.measure.trace.trace import ACCEPTED, UNTESTED, Guess, Traced, Written

_OF_THE_TARGET: Final = {"correction": "c-correction", "bonus": "c-bonus", "plain": "c-plain"}
_WORDS: Final = {
    "correction": "correction: drawn where a guess was rejected",
    "bonus": "bonus: added to a draft that survived whole",
    "plain": "plain: nothing was guessed",
}
_HUES: Final = 4  # of drafters, in trace_style
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # and what turns text round
_STRIP: Final = 1160  # pixels that the strip of bars may take before it scrolls
_BAR: Final = (4.0, 16.0)  # least and most pixels of a round in it
_HEIGHT: Final = 96.0  # of what lies above its line
_VAIN: Final = 0.15  # height of a guess in vain, in tokens
_FEWEST: Final = 4  # tokens that a bar of that height stands for, at least


def page(title: str, prompt: str, facts: Sequence[str], rounds: Sequence[Traced]) -> str:
    """Return the whole file. ``facts`` stand under the title, as they are."""
    writers = _writers(rounds)
    answer = "".join(_round_text(i, each, writers) for i, each in enumerate(rounds))
    table = "".join(_row(i, each, writers) for i, each in enumerate(rounds))
    told = any(each.reason for each in rounds)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_safe(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{_safe(title)}</h1><p class="facts">{" · ".join(_safe(fact) for fact in facts)}</p></header>
<section><h2>Prompt</h2><div class="prompt">{_safe(prompt)}</div></section>
<section><h2>Answer</h2>
{_legend(writers)}
<div class="text">{answer}</div>
</section>
<section><h2>Rounds</h2>
<p class="note">A bar a round: above the line the tokens that it added, below it guesses that came to nothing. High bars
are where the text was easy, stumps where it was hard.</p>
<div class="strip">{_strip(rounds, writers)}</div>
<p class="note">Of each guess: its chance under the model's distribution, then under the one it was drawn from, or =
where it was certain of itself.</p>
<div class="wide"><table{"" if told else ' class="untold"'}>
<thead><tr><th>round</th><th>at</th><th>kept</th><th>guesses</th><th>what followed</th>
<th>drafting</th><th>pass</th><th class="why">why so long a draft</th></tr></thead>
<tbody>{table}</tbody>
</table></div>
</section>
</body>
</html>
"""


def _writers(rounds: Sequence[Traced]) -> dict[str, str]:
    """Return the class of each writer, in the order in which they first wrote."""
    writers: dict[str, str] = {}
    drafters = 0
    for each in rounds:
        for name in (*([each.source] if each.guesses else []), *(token.origin for token in each.tokens)):
            if name not in writers:
                known = _OF_THE_TARGET.get(name)
                writers[name] = known or f"c-drafter{drafters % _HUES}"
                drafters += known is None
    return writers


def _legend(writers: dict[str, str]) -> str:
    keys = "".join(
        f'<span class="key"><span class="t {css}" style="--s:.6">&nbsp;&nbsp;</span> '
        f"{_safe(_WORDS.get(name, f'guessed by {name}, accepted'))}</span>"
        for name, css in writers.items()
    )
    shades = "".join(f'<span class="t c-plain" style="--s:{s}">&nbsp;&nbsp;</span>' for s in (0, 0.25, 0.5, 0.75, 1))
    return (
        f'<p class="legend">{keys}<span class="key">the model was sure {shades} it could have gone elsewhere</span>'
        '<span class="key"><span class="r">&nbsp;&nbsp;&nbsp;&nbsp;</span> one round</span></p>'
    )


def _round_text(number: int, each: Traced, writers: dict[str, str]) -> str:
    """Return a round's tokens as they stand in the answer, a link to its row around them."""
    tokens = "".join(_token(number, token, writers) for token in each.tokens)
    return f'<a class="r" href="#r{number}">{tokens}</a>' if tokens else ""


def _token(number: int, token: Written, writers: dict[str, str]) -> str:
    others = ", ".join(f"{_quoted(text)} {_chance(p)}" for text, p in token.likeliest)
    told = f"{_quoted(token.text)} by {token.origin}, p {_chance(token.p)}, round {number}; likeliest: {others}"
    special = not token.shown and "\ufffd" not in token.text
    shown = _visible(token.text) if special else _safe(token.shown.replace("\n", "↵\n"))
    css = f"t {writers[token.origin]}{' special' if special else ''}"
    return f'<span class="{css}" style="--s:{1 - token.p:.2f}" title="{_safe(told)}">{shown}</span>'


def _strip(rounds: Sequence[Traced], writers: dict[str, str]) -> str:
    """Return the bars as an inline drawing: what each round added upwards, guesses in vain downwards."""
    unit = _HEIGHT / max([_FEWEST, *(len(each.tokens) for each in rounds)])
    wide = min(max(_STRIP / max(1, len(rounds)), _BAR[0]), _BAR[1])
    width, down = wide * len(rounds), max([1, *(len(each.guesses) - each.accepted for each in rounds)])
    bars = "".join(_bar(i, each, writers, unit, wide) for i, each in enumerate(rounds))
    return (
        f'<svg width="{width:.0f}" height="{_HEIGHT + unit * down * _VAIN + 2:.0f}" role="img" '
        f'aria-label="tokens added by each round">{bars}'
        f'<line x1="0" x2="{width:.0f}" y1="{_HEIGHT}" y2="{_HEIGHT}"/></svg>'
    )


def _bar(number: int, each: Traced, writers: dict[str, str], unit: float, wide: float) -> str:
    told = _safe(f"round {number}: {each.accepted} of {len(each.guesses)} guesses kept, {len(each.tokens)} tokens")
    place = f'x="{number * wide:.1f}" width="{wide - 1:.1f}"'
    parts = [
        f'<rect class="{writers[token.origin]}" {place} y="{_HEIGHT - (i + 1) * unit:.1f}" height="{unit - 1:.1f}"/>'
        for i, token in enumerate(each.tokens)
    ]
    vain = (len(each.guesses) - each.accepted) * unit * _VAIN
    parts.append(f'<rect class="vain" {place} y="{_HEIGHT + 1}" height="{vain:.1f}"/>')
    return f'<a href="#r{number}"><title>{told}</title>{"".join(parts)}</a>'


def _row(number: int, each: Traced, writers: dict[str, str]) -> str:
    kept = f"{each.accepted}/{len(each.guesses)}" if each.guesses else "prompt" if each.prompt else "–"
    last = each.tokens[each.accepted :]
    followed = "".join(_chip(_visible(token.text), writers[token.origin], _chance(token.p)) for token in last)
    drafting = f"{each.draft_ms:.2f}" if each.guesses else ""
    return (
        f'<tr id="r{number}"><td>{number}</td><td>{each.position}</td><td>{kept}</td>'
        f'<td class="guesses">{"".join(_guesses(each, writers))}</td><td class="guesses">{followed}</td>'
        f'<td>{drafting}</td><td>{each.verify_ms:.1f} ms</td><td class="why">{_safe(each.reason)}</td></tr>'
    )


def _guesses(each: Traced, writers: dict[str, str]) -> Iterator[str]:
    for i, guess in enumerate(each.guesses):
        css = f"{writers[each.source]} {guess.fate}" if guess.fate == ACCEPTED else guess.fate
        branch = '<span class="branch" title="an alternative">│</span>' if guess.parent != i - 1 else ""
        yield branch + _chip(_visible(guess.text), css, "" if guess.fate == UNTESTED else odds(guess))


def odds(guess: Guess) -> str:
    """Return a tested guess's chance, and the one it was drawn with: ``0.93=`` where it was certain of itself."""
    return f"{_chance(guess.p)}=" if guess.q is None else f"{_chance(guess.p)}/{_chance(guess.q)}"


def _chip(text: str, css: str, figure: str) -> str:
    return f'<span class="g {css}">{text}{f"<i>{_safe(figure)}</i>" if figure else ""}</span>'


def _chance(p: float | None) -> str:
    return "" if p is None else "1" if p >= 0.995 else f"{p:.2f}".removeprefix("0") if p >= 0.005 else "0"


def _quoted(text: str) -> str:
    return '"' + text.replace("\n", "\\n") + '"'


def _visible(text: str) -> str:
    """Return one token's text such that blanks are seen."""
    return _safe(text.replace("\n", "↵").replace("\t", "⇥")) or "&nbsp;"


def _safe(text: str) -> str:
    """Return text that HTML shows as it is: nothing in it is markup, and nothing turns the page round."""
    return html.escape(_CONTROLS.sub("\ufffd", text), quote=True)
