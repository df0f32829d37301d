"""Trained heads over a target: one layer that goes on from what the target's own layers put out.

``H`` are the target's features, ``Vd`` the tokens that heads may guess, ``f`` the features of a position: the outputs
of the tapped layers, each normed, joined by one matrix; or the output of the only one. Position t of the layer reads f
of position t and the token after it, and its logits are of the token after that; so a chain goes on with its own output
in the place of f (EAGLE-3, arXiv 2503.01840; the order of the halves is DeepSeek-V3's, arXiv 2412.19437). Medusa heads
(arXiv 2401.10774) are a residual layer each, and read f alone.
"""

from __future__ import annotations

from pathlib import Path

from foredraft.errors import DrafterError, NoHeads, WeightsError
from foredraft.models.capabilities import Layered, WithSpec
from foredraft.models.folder import ModelFolder
from foredraft.models.heads.attach import attach
from foredraft.models.heads.eagle import is_eagle, read_eagle3
from foredraft.models.heads.file import (
    check_target,
    find_heads,
    heads_file,
    packaged_heads,
    read_heads,
)
from foredraft.models.heads.layer import block_spec, block_weights, head_rows
from foredraft.models.heads.modules import MedusaHeads, RecurrentHeads
from foredraft.models.heads.mtp import (
    CONFIG,
    LAYER,
    ForeignHeads,
    damaged,
    foreign_module,
    read_config,
    read_mtp,
    read_mtp_folder,
)
from foredraft.models.identity import weights_digest
from foredraft.models.model import Model
from foredraft.models.weights.floats import widened


def open_heads(
    which: str, model: Model, folder: ModelFolder | Path | None, cache: Path, name: str
) -> RecurrentHeads | MedusaHeads:
    """Return the heads for the target ``name``, loaded from ``folder``.

    ``which`` is a file of heads, a folder that holds one, an EAGLE-3 folder, or a copy of the target whose checkpoint
    holds an MTP module. Empty, it is what was trained here or came with Foredraft, else the target's own MTP module.
    Raises DrafterError where there are none, or they are another target's; WeightsError for a file that is damaged, and
    DamagedHeads where that is what was trained here, and what comes next would serve.
    """
    if folder is None or not isinstance(model, Layered) or not isinstance(model, WithSpec):
        why = None if folder is None else foreign_module(ModelFolder.of(folder))
        raise NoHeads(why or "drafter heads is not available for a model that runs through transformers' own module")
    own = model.spec
    theirs = ModelFolder.of(folder).weights
    digest = weights_digest(theirs, own)
    if which and (Path(which) / CONFIG).is_file():
        config = read_config(Path(which))
        if is_eagle(config):
            return attach(read_eagle3(Path(which), config, own, theirs, name, digest), model)
        return attach(read_mtp_folder(Path(which), config, own, name, digest), model)
    kept = heads_file(cache, digest)
    if not (which or kept.is_file() or packaged_heads(digest)) and (module := read_mtp(theirs, own, name, digest)):
        return attach(module, model)
    path = find_heads(which, cache, digest, name)
    try:
        spec, weights = read_heads(path)
        check_target(path, spec, name, digest, own.vocabulary, own.hidden, own.layers)
    except (DrafterError, WeightsError) as error:
        if which or path != kept:
            raise
        raise damaged(str(error), theirs, own, digest) from error
    head, dtype = head_rows(weights, theirs, own)
    if not spec.recurrent:
        return MedusaHeads(spec, weights, own, widened(head, dtype))
    return attach(
        ForeignHeads(spec, weights, block_spec(spec, own, len(head)), block_weights(weights, head), LAYER), model
    )
