"""How a model's matrices are stored in the packed form: in floats, in a file's blocks, or in 5 bits."""

from __future__ import annotations

from foredraft.errors import OptionError
from foredraft.models.gguf.weights import GgufWeights
from foredraft.models.native.blocks import Blocks, blocks_of
from foredraft.models.native.rounded import rounded
from foredraft.models.spec import DecoderSpec
from foredraft.models.weights.base import Weights


def coding_of(spec: DecoderSpec, weights: Weights, dtype: str) -> Blocks | None:
    """Return what of a decoder is run how; None where all matrices are floats of the dtype.

    Raises OptionError for dtype "file" and weights that come from no GGUF.
    """
    if dtype != "file":
        return rounded(spec, weights) if dtype == "rounded" else None
    if not isinstance(weights, GgufWeights):
        raise OptionError(f"dtype file runs the blocks of a GGUF file, and {weights.folder} holds none")
    return blocks_of(spec, weights)
