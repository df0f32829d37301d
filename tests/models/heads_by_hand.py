"""Heads by their equations, and what heads answer over a few rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from foredraft.models.checkpoint import open_weights
from foredraft.models.heads.file import read_heads
from foredraft.models.heads.layer import head_rows
from foredraft.models.heads.modules import RecurrentHeads
from foredraft.models.layout import decoder_prefix
from foredraft.models.weights.floats import widened
from tests.native.models import spec_of


class Equations:
    """The equations of the format, in float64, without a cache."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.spec, weights = read_heads(path)
        self.target = spec_of(folder)
        theirs = open_weights(folder)
        self.w = {n: widened(weights.raw(n), weights.dtype(n)).astype(float) for n in weights.names()}
        head, dtype = head_rows(weights, theirs, self.target)
        self.head = widened(head, dtype).astype(float)
        name = f"{decoder_prefix(theirs.names())}embed_tokens.weight"
        self.embedding = theirs.raw(name).astype(float) * self.target.embedding_scale

    def norm(self, x: Any, weight: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.spec.eps) * weight

    def fused(self, states: Any) -> Any:
        if "fuse.weight" not in self.w:
            return states[0]
        normed = [self.norm(s, n) for s, n in zip(states, self.w["fuse.norms"], strict=True)]
        return np.concatenate(normed, 1) @ self.w["fuse.weight"].T

    def block(self, x: Any) -> Any:
        spec, n = self.spec, len(x)
        q, k, v = (
            (self.norm(x, self.layer("input_layernorm")) @ self.layer(f"self_attn.{part}_proj").T).reshape(
                n, -1, spec.head_dim
            )
            for part in "qkv"
        )
        half = spec.head_dim // 2
        angle = np.arange(n)[:, None] * spec.rope_theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        q, k = (
            np.concatenate([p[..., :half] * cos - p[..., half:] * sin, p[..., half:] * cos + p[..., :half] * sin], -1)
            for p in (q, k)
        )
        k, v = (np.repeat(p, spec.heads // spec.kv_heads, 1) for p in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(spec.head_dim)
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        attended = np.einsum("hij,jhd->ihd", share / share.sum(-1, keepdims=True), v).reshape(n, -1)
        x = x + attended @ self.layer("self_attn.o_proj").T
        h = self.norm(x, self.layer("post_attention_layernorm"))
        gate, up = h @ self.layer("mlp.gate_proj").T, h @ self.layer("mlp.up_proj").T
        if spec.activation == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return x + (gate * up) @ self.layer("mlp.down_proj").T

    def layer(self, name: str) -> Any:
        return self.w[f"model.layers.0.{name}.weight"]

    def logits(self, state: Any) -> Any:
        logits = state @ self.head.T / self.target.logits_divisor
        cap = self.target.logits_cap
        return np.tanh(logits / cap) * cap if cap else logits

    def chain(self, states: Any, tokens: list[int], drafted: list[int]) -> list[tuple[Any, Any]]:
        """State and logits after the rows, then after each drafted token; everything worked out anew each time."""
        features, found = self.fused(states), []
        for step in range(len(drafted) + 1):
            following = np.array([*tokens, *drafted[:step]])
            entering = [
                self.norm(self.embedding[following], self.w["enter.embedding_norm"]),
                self.norm(features, self.w["enter.hidden_norm"]),
            ]
            r = self.block(np.concatenate(entering, 1) @ self.w["enter.weight"].T)[-1]
            s = self.norm(r, self.w["model.norm.weight"])
            state = s if self.spec.feeds == "normed" else r
            found.append((state, self.logits(s)))
            features = np.concatenate([features, state[None]])
        return found


def answers(heads: RecurrentHeads, states: list[Any], tokens: list[int], drafted: list[int]) -> list[tuple[Any, Any]]:
    slot, half = heads.take(), len(tokens) // 2
    heads.read(slot, 0, [s[:half].astype(np.float64) for s in states], tokens[:half])
    found = [heads.read(slot, half, [s[half:].astype(np.float64) for s in states], tokens[half:])]
    for i, token in enumerate(drafted):
        found.append(heads.step(slot, len(tokens) + i, found[-1][0], token))
    heads.release(slot)
    return found
