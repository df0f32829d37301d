"""Writes a safetensors file: whole or not at all, bfloat16 included, which numpy does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foredraft.system.files import refused, sync

_TYPES: Final = MappingProxyType({np.dtype("<u2"): "BF16", np.dtype("<f4"): "F32", np.dtype("<i4"): "I32"})


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write arrays by name; those of uint16 are bfloat16, others float32 or int32.

    Raises StorageError; what is trained goes where the user says, so that the way out is another folder.
    """
    partial = path.with_name(f".{path.name}.partial")
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": _TYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for array in tensors.values():
                    file.write(np.ascontiguousarray(array).tobytes())
            sync(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise refused(path.parent, error, "folder") from error
