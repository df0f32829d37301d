"""The options that verbs share, and what they come to: keywords of ``load`` and of ``generate``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final, cast

from foredraft.cli.arguments.files import read_prediction, read_schema
from foredraft.cli.arguments.parser import Once, Parser, number, one_of, whole, whole_or_auto, wholes
from foredraft.cli.terminal.console import COLOUR
from foredraft.errors import OptionError
from foredraft.models.hub.registry import DEFAULT_MODEL

if TYPE_CHECKING:
    from foredraft.options import Options

# options of ``generate`` by their names in Python; the drafting ones go to ``load``
_SAMPLING: Final = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "stop_token_ids", "system", "raw", "rule",
    "min_tokens", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words", "logprobs",
    "n", "json_schema", "regex", "prediction", "cache_scope",
)  # fmt: skip


def add_model_name(group: argparse._ActionsContainer) -> None:
    """Add which model, which every verb that loads one asks in the same words."""
    group.add_argument(
        "--model",
        metavar="M",
        default=DEFAULT_MODEL,
        help=f"name, folder, hub id or .gguf (default {DEFAULT_MODEL})",
    )


def add_model(parser: Parser) -> None:
    """Add the model, its drafter and the acceptance rule."""
    group = parser.add_argument_group("model and drafter")
    add_model_name(group)
    group.add_argument(
        "--drafter",
        metavar="D",
        help="auto (default), none, lookup, suffix, model:PATH, heads[:FILE], layers[:N|:FILE] (its own layers: "
        "what train layers chose, the first N, or a file of it), package.module:Class, or several joined by +",
    )
    group.add_argument(
        "--draft-tokens", metavar="N", type=whole_or_auto, help="guesses a round (default auto, as pays)"
    )
    group.add_argument(
        "--draft-temperature", metavar="T", type=number, help="the drafter's own; the text is exact at any"
    )
    group.add_argument(
        "--rule", type=one_of("auto", "ratio", "coupled"), metavar="RULE", help="auto (default), ratio or coupled"
    )
    group.add_argument("--speculative-config", metavar="JSON", help="the same in vLLM's words")


def add_copying(parser: Parser, *, prediction: bool) -> None:
    """Add what a drafter may copy from beside the text itself."""
    group = parser.add_argument_group("copying")
    if prediction:
        group.add_argument(
            "--prediction", action=Once, metavar="FILE", help="the expected answer, or most of it, to copy from first"
        )
    group.add_argument(
        "--cache-scope",
        action=Once,
        metavar="NAME",
        help="copy from what was said under this name, and remember what is said now",
    )
    group.add_argument("--cache-share", action="store_true", help="copy from what was said under any name")


def add_sampling(parser: Parser) -> None:
    """Add how tokens are chosen and where an answer ends."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--temperature", metavar="T", type=number, help="0 (default) takes the likeliest token")
    group.add_argument("--top-k", metavar="K", type=whole, help="of the K likeliest tokens; 0 (default) is all")
    group.add_argument("--top-p", metavar="P", type=number, help="of the likeliest that make up P (default 1)")
    group.add_argument("--min-p", metavar="P", type=number, help="of those P times as likely as the first (default 0)")
    group.add_argument("--seed", metavar="N", type=whole, help="the same text again, whatever the drafter")
    group.add_argument(
        "--generation-config", action="store_true", help="the checkpoint's own sampling where none is named"
    )
    group.add_argument("--max-tokens", metavar="N", type=whole, help="longest answer (default 512)")
    group.add_argument("--stop", metavar="TEXT", action="append", help="end before this text; may be repeated")
    group.add_argument(
        "--stop-token-ids", metavar="ID,...", type=wholes, action="extend", help="end after any of these tokens"
    )
    group.add_argument("--min-tokens", metavar="N", type=whole, help="no end before N tokens (default 0)")


def add_shaping(parser: Parser) -> None:
    """Add what favours, penalises and forbids tokens."""
    group = parser.add_argument_group("penalties and bans")
    group.add_argument("--logit-bias", metavar="BIAS", help="add to logits: ID:VALUE,... or JSON; -100 to 100")
    group.add_argument(
        "--repetition-penalty", metavar="P", type=number, help="on tokens of prompt and answer; 1 (default) is off"
    )
    group.add_argument(
        "--presence-penalty", metavar="P", type=number, help="on tokens that the answer has; -2 to 2 (default 0)"
    )
    group.add_argument("--frequency-penalty", metavar="P", type=number, help="the same each time it has one")
    group.add_argument("--bad-words", metavar="TEXT", action="append", help="never write this; may be repeated")


def add_form(parser: Parser) -> None:
    """Add what the whole answer must look like."""
    group = parser.add_argument_group("form of the answer")
    group.add_argument("--json-schema", metavar="SCHEMA", help="JSON that matches this schema: its text, or a file")
    group.add_argument("--regex", metavar="REGEX", help="a text that matches this as a whole")


def add_choices(parser: Parser) -> None:
    """Add how many answers there are, and what is told of their tokens."""
    group = parser.add_argument_group("answers")
    group.add_argument("-n", metavar="N", type=whole, help="answers to each prompt, drawn apart (default 1)")
    group.add_argument(
        "--logprobs", metavar="N", type=whole, help="log-probabilities of the tokens, and of the N likeliest at each"
    )


def add_template(parser: Parser, *, raw: bool) -> None:
    """Add what surrounds a prompt."""
    group = parser.add_argument_group("prompt")
    group.add_argument("--system", metavar="TEXT", help="the chat template's system turn")
    if raw:
        group.add_argument("--raw", action="store_true", help="no chat template: the model continues the text")


def add_machine(parser: Parser) -> None:
    """Add where the model runs."""
    group = parser.add_argument_group("machine")
    group.add_argument("--device", metavar="D", help="cpu, cuda or mps (default cuda if there is one)")
    group.add_argument(
        "--dtype", metavar="T", default="auto", help="auto, bf16, f32, f64 or file (a GGUF's own blocks)"
    )
    group.add_argument("--threads", metavar="N", type=whole, help="threads of the CPU")
    group.add_argument("--context", metavar="N", type=whole, help="a smaller context than the model's own")
    group.add_argument(
        "--native-tier", metavar="T", help="of the CPU: auto, one that doctor names (amx, avx2, ...), off (torch)"
    )
    group.add_argument("--offline", action="store_true", help="never use the network")


def add_output(parser: Parser) -> None:
    """Add what every verb has."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON document, the last line of stdout")
    group.add_argument("--color", metavar="WHEN", type=one_of(*COLOUR), help="auto (default), always or never")
    group.add_argument("--traceback", action="store_true", help="after a failure, show where it happened")


def generation_options(args: argparse.Namespace) -> Options:
    """Return the keywords of ``generate`` that were named, checked. Raises OptionError."""
    from foredraft.options import parse_options

    if args.cache_share and args.cache_scope is None:
        raise OptionError("--cache-share reads what scopes remember, and none is named: give --cache-scope")
    named: dict[str, Any] = {name: value for name in _SAMPLING if (value := getattr(args, name, None)) is not None}
    if not named.get("raw"):
        named.pop("raw", None)
    drafting = {
        name: value for name in ("draft_tokens", "draft_temperature") if (value := getattr(args, name)) is not None
    }
    if "json_schema" in named:
        named["json_schema"] = read_schema(named["json_schema"])
    if "prediction" in named:
        named["prediction"] = read_prediction(named["prediction"])
    parse_options(cast("Options", {**named, **drafting}))
    return cast("Options", named)
