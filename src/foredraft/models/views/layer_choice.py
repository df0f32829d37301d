"""The sub-layers a search has chosen for a model: a small JSON file, bound to the model's identity."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, NoReturn

from foredraft.checks import unique
from foredraft.errors import DrafterError, StorageError
from foredraft.models.target import CachedTarget
from foredraft.models.views.sub_layers import LayersView, checked, default_sub_layers, early_exit, layered
from foredraft.system.files import write_whole
from foredraft.system.json_text import parse_json, read_regular

FORMAT: Final = 2
PAYS: Final = 1.03  # measured speed-up from which a choice is worth it
ENOUGH: Final = 500  # tokens measured each way, below which nothing is said of that
DRAFT_TOKENS: Final = 3  # of a set that nobody has measured
MAX_DRAFT_TOKENS: Final = 64  # guesses a round
UNMEASURED: Final = (
    "drafter layers leaves out a default set of layers, which nobody has measured for this model: "
    "foredraft train layers finds and measures one"
)
_BYTES: Final = 1 << 20  # of a file; a choice for a hundred layers has some 3 kB
_MAX_NUMBER: Final = 1e9  # of any number in it
_NUMBERS: Final = (
    "cost", "predicted_speedup", "measured_speedup", "measured_from", "measured_to", "plain_tokens_per_s",
    "predicted_tokens_per_s", "measured_tokens_per_s",
)  # fmt: skip
# and the most of each
_COUNTS: Final = {"layers": 1 << 20, "draft_tokens": MAX_DRAFT_TOKENS, "measured_tokens": 1 << 40}
_DEPTH: Final = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """What a search found. Speed-ups are against plain decoding on ``machine``."""

    model: str
    identity: str
    layers: int
    sub_layers: tuple[int, ...]
    draft_tokens: int
    agreement: float  # share of the target's own tokens that the sub-layers guess
    cost: float  # of a draft step, in plain passes
    predicted_speedup: float
    measured_speedup: float
    measured_from: float  # where it lies for other answers and other moments, at 95 %
    measured_to: float
    measured_tokens: int  # each way
    plain_tokens_per_s: float
    predicted_tokens_per_s: float
    measured_tokens_per_s: float
    tier: str
    dtype: str
    machine: str
    date: str

    @property
    def conclusive(self) -> bool:
        """Whether the measurement is long and clear enough to say if drafting so is worth it."""
        return self.measured_tokens >= ENOUGH and not self.measured_from <= PAYS <= self.measured_to

    @property
    def pays(self) -> bool:
        """Whether drafting so was measured to be worth it."""
        return self.conclusive and self.measured_from > PAYS

    @property
    def prediction_error(self) -> float:
        """How far the predicted tokens a second lie from the measured ones, as a share of these."""
        return abs(self.predicted_tokens_per_s / self.measured_tokens_per_s - 1.0)


def choice_file(cache: Path, identity: str) -> Path:
    """Return where the choice for a model is kept."""
    return cache / "layers" / f"{identity}.json"


def write_choice(path: Path, choice: LayerChoice) -> None:
    """Write a choice, whole or not at all. Raises StorageError."""
    write_whole(path, json.dumps({"format": FORMAT, **asdict(choice)}, indent=1) + "\n")


def read_choice(path: Path) -> LayerChoice:
    """Return a choice. Raises DrafterError for a file that does not hold one, StorageError if it cannot be read."""
    try:
        text = read_regular(path, _BYTES)
    except FileNotFoundError as error:
        raise DrafterError(f"there is no file {path}: foredraft train layers makes one") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DrafterError(f"{path} is no choice of layers: {error}") from error
    try:
        found = parse_json(text, unique, _no_number)
    except ValueError as error:
        raise DrafterError(f"{path} is not JSON, so it is no choice of layers: {error}") from error
    return _parsed(found, path)


def check_which(which: str, *, named: bool) -> None:
    """Refuse what is neither the depth of an exit nor a file, in ``layers:WHICH``. Raises DrafterError.

    ``named`` says that something should be there.
    """
    if named and not which:
        raise DrafterError("layers: needs N, a whole number of layers, as in layers:8, or a FILE")
    try:
        float(which)
    except ValueError:
        return
    if not _DEPTH.fullmatch(which) and not _is_there(Path(which)):
        raise DrafterError(f"layers:{which:.40} is neither: N is a whole number of layers, as in layers:8, or a FILE")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False


def find_choice(
    which: str, cache: Path, name: str, identity: str, layers: int
) -> tuple[tuple[int, ...], int, str | None]:
    """Return the sub-layers to draft with, how many guesses a round, and what a user should know of them.

    ``which`` is the file of a choice, or the depth of an early exit; empty, it is what was found for this model
    (``name``), or the default. Raises DrafterError for a choice that was made for another model, or cannot be this
    one's.
    """
    check_which(which, named=False)
    if _DEPTH.fullmatch(which):
        return early_exit(int(which), layers), DRAFT_TOKENS, None
    path = Path(which) if which else choice_file(cache, identity)
    if not which and not path.exists():
        return default_sub_layers(layers), DRAFT_TOKENS, UNMEASURED
    choice = read_choice(path)
    if choice.identity != identity:
        raise DrafterError(
            f"{path} was made for {choice.model} ({choice.identity}), not for {name} ({identity}): "
            "foredraft train layers makes one for it"
        )
    if choice.layers != layers:
        raise DrafterError(f"{path} is damaged: it says {choice.layers} layers, and {name} has {layers}")
    chosen = checked(choice.sub_layers, layers)
    if len(chosen) == 2 * layers:
        raise DrafterError(f"{path} leaves nothing out: the whole model gains nothing by drafting for itself")
    return chosen, choice.draft_tokens, None


def layers_view(target: CachedTarget, which: str, cache: Path, name: str, identity: str) -> tuple[LayersView, int]:
    """Return the view of a target that ``which`` says, and how many guesses a round; see ``find_choice``."""
    sub_layers, length, notice = find_choice(which, cache, name, identity, layered(target).layers)
    return LayersView(target, sub_layers, notice), length


def _parsed(found: Any, path: Path) -> LayerChoice:
    names = [field.name for field in fields(LayerChoice)]
    version = found.get("format") if isinstance(found, dict) else None
    if type(version) is not int or version != FORMAT:
        raise DrafterError(f"{path} is no choice of layers of format {FORMAT}: foredraft train layers makes one")
    wrong = next((name for name in names if not _fits(name, found.get(name))), None)
    if wrong is not None:
        raise DrafterError(f"{path} is no choice of layers: its {wrong} is missing or cannot be")
    values = {name: found[name] for name in names}
    return LayerChoice(**{**values, "sub_layers": tuple(values["sub_layers"])})


def _fits(name: str, value: Any) -> bool:
    if name == "sub_layers":
        whole = isinstance(value, list) and all(type(part) is int for part in value)
        return whole and len(set(value)) == len(value)
    if name in _COUNTS:
        return type(value) is int and 0 < value <= _COUNTS[name]
    if name == "agreement":
        return type(value) in (int, float) and 0 <= value <= 1
    if name in _NUMBERS:
        return type(value) in (int, float) and (0 < value < _MAX_NUMBER or (name == "measured_from" and value == 0))
    return isinstance(value, str)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
