"""The sub-layers a search has chosen for a model: a small JSON file, bound to the model's identity."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from foredraft.errors import DrafterError, StorageError
from foredraft.models.layers_view import LayersView, checked, default_sub_layers, early_exit, layered
from foredraft.models.store import write_whole
from foredraft.models.target import CachedTarget

FORMAT: Final = 1
PAYS: Final = 1.03  # measured speed-up from which a choice is worth it
DRAFT_TOKENS: Final = 3  # of a set that nobody has measured
_NUMBERS: Final = (
    "agreement", "cost", "predicted_speedup", "measured_speedup", "plain_tokens_per_s", "predicted_tokens_per_s",
    "measured_tokens_per_s",
)  # fmt: skip


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
    plain_tokens_per_s: float
    predicted_tokens_per_s: float
    measured_tokens_per_s: float
    tier: str
    dtype: str
    machine: str
    date: str

    @property
    def pays(self) -> bool:
        """Whether drafting so was measured to be worth it."""
        return self.measured_speedup > PAYS

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
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise DrafterError(f"there is no file {path}: foredraft train layers makes one") from fault
    except OSError as fault:
        raise StorageError(f"{path} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise DrafterError(f"{path} is not JSON, so it is no choice of layers") from fault
    return _parsed(found, path)


def find_choice(which: str, cache: Path, name: str, identity: str, layers: int) -> tuple[tuple[int, ...], int]:
    """Return the sub-layers to draft with and how many guesses a round, for the model ``name``.

    ``which`` is the file of a choice, or the depth of an early exit; empty, it is what was found for this model, or the
    default. Raises DrafterError for a choice that was made for another model, or cannot be this one's.
    """
    if which.isdecimal():
        return early_exit(int(which), layers), DRAFT_TOKENS
    path = Path(which) if which else choice_file(cache, identity)
    if not which and not path.is_file():
        return default_sub_layers(layers), DRAFT_TOKENS
    choice = read_choice(path)
    if choice.identity != identity or choice.layers != layers:
        raise DrafterError(
            f"{path} was made for {choice.model} ({choice.identity}), not for {name} ({identity}): "
            "foredraft train layers makes one for it"
        )
    return checked(choice.sub_layers, layers), choice.draft_tokens


def layers_view(target: CachedTarget, which: str, cache: Path, name: str, identity: str) -> tuple[LayersView, int]:
    """Return the view of a target that ``which`` says, and how many guesses a round; see ``find_choice``."""
    sub_layers, length = find_choice(which, cache, name, identity, layered(target).layers)
    return LayersView(target, sub_layers), length


def _parsed(found: Any, path: Path) -> LayerChoice:
    names = [field.name for field in fields(LayerChoice)]
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DrafterError(f"{path} is no choice of layers of format {FORMAT}: foredraft train layers makes one")
    wrong = next((name for name in names if not _fits(name, found.get(name))), None)
    if wrong is not None:
        raise DrafterError(f"{path} is no choice of layers: its {wrong} is missing or of another kind")
    values = {name: found[name] for name in names}
    return LayerChoice(**{**values, "sub_layers": tuple(values["sub_layers"])})


def _fits(name: str, value: Any) -> bool:
    if name == "sub_layers":
        return isinstance(value, list) and all(type(part) is int for part in value)
    if name in ("layers", "draft_tokens"):
        return type(value) is int and value > 0
    return isinstance(value, int | float) if name in _NUMBERS else isinstance(value, str)
