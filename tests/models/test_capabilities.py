"""Who has what beyond ``Model``: a capability whose name no implementation bears any more would never be noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.core.capabilities import WithNotice
from foredraft.models.capabilities import (
    Layered,
    Narrowing,
    Weighed,
    WithInstallNote,
    WithLayers,
    WithSpec,
    WithThreads,
)
from tests.models.checkpoints import make_checkpoint
from tests.models.decoders import open_decoder
from tests.native.models import open_native

NATIVE = (Layered, Narrowing, Weighed, WithInstallNote, WithLayers, WithNotice, WithSpec, WithThreads)
TORCH = (Layered, Narrowing, WithLayers, WithSpec)


@pytest.mark.parametrize("native", [False, True])
def test_who_has_what(native: bool, tmp_path: Path) -> None:
    folder = make_checkpoint("llama", tmp_path)
    model = open_native(folder) if native else open_decoder(folder)
    has = {capability for capability in NATIVE if isinstance(model, capability)}
    assert has == set(NATIVE if native else TORCH)
