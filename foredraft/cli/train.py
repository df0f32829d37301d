"""``foredraft train``: make what drafts for a model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from foredraft.cli import arguments
from foredraft.cli.console import Console
from foredraft.cli.parser import Parser, number, one_of, whole
from foredraft.errors import OptionError

# the options that not every WHAT has
_OWN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "heads": ("epochs", "vocabulary", "kind", "gigabytes", "longest", "resume"),
        "draft": ("epochs", "vocabulary", "layers", "gigabytes", "longest", "resume"),
        "layers": ("minutes",),
    }
)
_EPILOG: Final = """\
examples:
  foredraft train heads --model PATH --prompts questions.jsonl
  foredraft train heads --model PATH --resume
  foredraft train draft --model PATH --layers 4
  foredraft train layers --minutes 5

heads:  a block that goes on from what the model's own layers put out; foredraft generate --drafter heads uses it.
draft:  a smaller model made of some of the model's layers; foredraft generate --drafter model:PATH uses it.
layers: which of the model's own sub-layers guess its next tokens best for what they cost; --drafter layers uses them
        (layers:N is the first N layers, layers:FILE what --out wrote).

heads and draft are trained on the model's own answers, to the prompts given and to questions that it writes itself.
Ctrl-C ends any of them with what there is so far; heads and draft go on with --resume, layers with the same command.
"""


def add_arguments(parser: Parser) -> None:
    """Add the verb's options."""
    parser.epilog = _EPILOG
    parser.usage = "foredraft train heads|draft|layers [options]"
    parser.add_argument("action", metavar="WHAT", nargs="?", type=one_of(*_OWN), help="heads, draft or layers")
    group = parser.add_argument_group("what is trained")
    arguments.add_model_name(group)
    group.add_argument("--prompts", metavar="FILE", help="JSON lines with prompt or turns (each turn on its own)")
    group.add_argument(
        "--tokens", metavar="N", type=whole, help="of answers in all (default 1500000); layers: of the longest (96)"
    )
    group.add_argument("--out", metavar="PATH", help="folder to work in; layers: file to write (default: the cache)")
    group = parser.add_argument_group("heads and draft")
    group.add_argument("--epochs", metavar="N", type=number, help="how often each token is visited (default 8)")
    group.add_argument("--vocabulary", metavar="N", type=whole, help="tokens that may be guessed (default 8192)")
    group.add_argument("--longest", metavar="N", type=whole, help="longest answer in tokens (default 160)")
    group.add_argument("--gigabytes", metavar="N", type=number, help="that cached states may take (default 12)")
    group.add_argument("--resume", action="store_true", default=None, help="go on with what was begun")
    group.add_argument("--kind", metavar="KIND", type=one_of("recurrent", "medusa"), help="of heads (recurrent)")
    group.add_argument("--layers", metavar="N", type=whole, help="of a draft: 2 to 6 (default 4)")
    group = parser.add_argument_group("layers")
    group.add_argument("--minutes", metavar="N", type=number, help="time the search may take, about (default 10)")
    arguments.add_machine(parser)
    arguments.add_output(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Train what was asked for."""
    if args.action is None:
        raise OptionError("train what? Say heads, draft or layers, as in foredraft train heads")
    _check(args)
    if args.action == "layers":
        from foredraft.cli import train_layers

        return train_layers.run(args, console)
    from foredraft.cli import train_heads

    return train_heads.run(args, console)


def _check(args: argparse.Namespace) -> None:
    """Raise OptionError for an option of another WHAT."""
    for name in sorted({name for names in _OWN.values() for name in names}):
        if getattr(args, name) is not None and name not in _OWN[args.action]:
            whose = " and ".join(f"train {what}" for what, names in _OWN.items() if name in names)
            raise OptionError(f"--{name} is an option of {whose}, not of train {args.action}")
