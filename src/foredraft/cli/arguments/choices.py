"""What does not stream: several answers to one prompt, and the log-probabilities of an answer's tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foredraft.cli.arguments.option_names import as_options
from foredraft.cli.terminal.colour import Pen
from foredraft.cli.terminal.console import Console, harmless
from foredraft.cli.terminal.text_width import columns, fit

if TYPE_CHECKING:
    from foredraft.result import Result, TokenLogprob


def write_several(result: Result, pen: Pen, console: Console) -> None:
    """Write the answers to one prompt, each under its number."""
    for choice in result.choices:
        console.print(f"[{choice.index + 1} of {len(result.choices)}]")
        pen.write(choice.text, "plain")
        pen.end()
        if choice.logprobs is not None:
            write_logprobs(choice.logprobs, console)


def tell_faults(result: Result, console: Console, where: str = "") -> bool:
    """Say on stderr why answers to a prompt failed, if any did; return whether none did."""
    for choice in result.choices:
        if choice.fault is not None:
            console.say(as_options(f"{where}answer {choice.index + 1}: {choice.fault}"))
    return all(choice.fault is None for choice in result.choices)


def write_logprobs(logprobs: list[TokenLogprob], console: Console) -> None:
    """Write a line a token: its log-probability, the token, and the likeliest ones at its place."""
    width = max((columns(_quoted(each)) for each in logprobs), default=0)
    for each in logprobs:
        top_logprobs = "   ".join(f"{_quoted(top)} {top.logprob:.3f}" for top in each.top_logprobs)
        console.print(f"{each.logprob:9.3f}  {fit(_quoted(each), width)}  {top_logprobs}".rstrip())


def _quoted(each: TokenLogprob) -> str:
    text = each.token.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return harmless(f'"{text}"')
