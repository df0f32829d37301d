"""``foredraft train``: make what drafts for a model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from foredraft.cli.arguments import arguments
from foredraft.cli.arguments.parser import Parser, number, one_of, whole
from foredraft.cli.terminal.console import Console
from foredraft.errors import OptionError

# the options that not every WHAT has
_OWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "heads": ("epochs", "vocabulary", "kind", "gigabytes", "longest", "resume"),
        "draft": ("epochs", "vocabulary", "layers", "gigabytes", "longest", "resume"),
        "layers": ("minutes",),
    }
)
_WHAT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "heads": "a layer that goes on from what the model's own layers put out; --drafter heads uses it",
        "draft": "a smaller model made of some of the model's layers; --drafter model:PATH uses it",
        "layers": "which of the model's own sub-layers guess its next tokens best for what they cost; --drafter layers "
        "uses them",
    }
)
_LEARNT: Final = """
It is trained on the model's own answers, to the prompts given and to questions that it writes itself; answers that are
there already serve heads and drafts alike. Ctrl-C ends it with what there is so far, and --resume goes on.
"""
_MORE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "heads": f"""\
examples:
  foredraft train heads --model PATH --prompts questions.jsonl
  foredraft train heads --model PATH --resume
{_LEARNT}""",
        "draft": f"""\
examples:
  foredraft train draft --model PATH --layers 4
  foredraft train draft --model PATH --layers 4 --resume
{_LEARNT}""",
        "layers": """\
examples:
  foredraft train layers --minutes 5
  foredraft train layers --out mine.json

The drafter layers:N is the first N layers, layers:FILE what --out wrote. Ctrl-C ends the search with the best so far,
and the same command goes on.
""",
    }
)
_EPILOG: Final = f"""\
WHAT:
{"".join(f"  {what:<8}{said}{chr(10)}" for what, said in _WHAT.items())}
Each has its own --help, as in foredraft train heads --help.
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's options: those of every WHAT, so that one of another is named and not unknown."""
    parser.add_argument("action", metavar="WHAT", nargs="?", type=one_of(*_OWN), help="heads, draft or layers")
    _add_options(parser, tuple(_OWN))
    parser.shown = _help


def _help(words: Sequence[str]) -> Parser:
    """Return the parser of the WHAT that is named, or one that tells what there is."""
    what = next((word for word in words if word in _OWN), None)
    if what is None:
        usage = "foredraft train heads|draft|layers [options]"
        return Parser("foredraft train", "make what drafts for a model", _EPILOG, usage)
    parser = Parser(f"foredraft train {what}", _WHAT[what], _MORE[what])
    _add_options(parser, (what,))
    return parser


def _add_options(parser: Parser, whats: tuple[str, ...]) -> None:
    """Add the options of some WHATs, in the words of the first."""
    search = whats[0] == "layers"
    group = parser.add_argument_group("what is trained")
    arguments.add_model_name(group)
    group.add_argument("--prompts", metavar="FILE", help="JSON lines with prompt or turns (each turn on its own)")
    tokens = "tokens of answers in all (default 1500000; those that are there, where another training left some)"
    tokens = "longest answer in tokens (default 96)" if search else tokens
    group.add_argument("--tokens", metavar="N", type=whole, help=tokens)
    out = "file to write" if search else "folder to work in"
    group.add_argument("--out", metavar="PATH", help=f"{out} (default: in the cache)")
    if search:
        group.add_argument("--minutes", metavar="N", type=number, help="time the search may take, about (default 10)")
    else:
        _add_learning(group, whats)
    arguments.add_machine(parser)
    arguments.add_output(parser)


def _add_learning(group: argparse._ActionsContainer, whats: tuple[str, ...]) -> None:
    """Add what is asked only where something is trained on answers."""
    if "heads" in whats:
        kinds = one_of("recurrent", "medusa")
        group.add_argument("--kind", metavar="KIND", type=kinds, help="recurrent (default) or medusa")
    if "draft" in whats:
        group.add_argument("--layers", metavar="N", type=whole, help="of the draft: 2 to 6 (default 4)")
    if "layers" in whats:
        group.add_argument("--minutes", metavar="N", type=number)
    group.add_argument("--epochs", metavar="N", type=number, help="how often each token is visited (default 8)")
    group.add_argument("--vocabulary", metavar="N", type=whole, help="tokens that may be guessed (default 8192)")
    group.add_argument("--longest", metavar="N", type=whole, help="longest answer in tokens (default 160)")
    group.add_argument("--gigabytes", metavar="N", type=number, help="that cached states may take (default 12)")
    group.add_argument("--resume", action="store_true", default=None, help="go on with what was begun")


def run(args: argparse.Namespace, console: Console) -> int:
    """Train what was asked for."""
    if args.action is None:
        raise OptionError("train what? Say heads, draft or layers, as in foredraft train heads")
    _check(args)
    if args.action == "layers":
        from foredraft.cli.training import layers as train_layers

        return train_layers.run(args, console)
    from foredraft.cli.training import heads as train_heads

    return train_heads.run(args, console)


def _check(args: argparse.Namespace) -> None:
    """Raise OptionError for an option of another WHAT."""
    for name in sorted({name for names in _OWN.values() for name in names}):
        if getattr(args, name) is not None and name not in _OWN[args.action]:
            whose = " and ".join(f"train {what}" for what, names in _OWN.items() if name in names)
            raise OptionError(f"--{name} is an option of {whose}, not of train {args.action}")
