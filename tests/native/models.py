"""The native pass over a checkpoint, and how near it has to come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from foredraft.models.checkpoint import open_weights
from foredraft.models.native.model import NativeModel
from foredraft.models.spec import read_spec


def spec_of(folder: Path) -> Any:
    return read_spec(json.loads((folder / "config.json").read_text()))


def open_native(folder: Path, dtype: str = "f32", **options: Any) -> NativeModel:
    return NativeModel(spec_of(folder), open_weights(folder), dtype, **options)


def close(ours: Any, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(theirs).max(initial=0))))
