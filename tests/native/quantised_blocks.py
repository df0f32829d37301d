"""The blocks of GGUF files and the packed form of them, in numpy: made at random, taken apart, packed, multiplied.

Written from the layouts alone and shared with no code of the library, so that both have to be right to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

Array = np.ndarray[Any, np.dtype[Any]]
LANES, CELL = 16, 32


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of blocks: its number in the C interface, bits of a code, what is taken from every code, bytes of a block."""

    name: str
    number: int
    bits: int
    offset: int
    minimum: bool
    wide: bool  # blocks of 256
    raw: int

    @property
    def parts(self) -> int:
        return 2 if self.name == "Q6_K" else 1

    @property
    def cells(self) -> int:  # of a block of the file
        return 8 if self.wide else 1

    def __str__(self) -> str:
        return self.name


KINDS = (
    Kind("Q8_0", 4, 8, 0, minimum=False, wide=False, raw=34),
    Kind("Q4_0", 5, 4, 8, minimum=False, wide=False, raw=18),
    Kind("Q4_1", 6, 4, 0, minimum=True, wide=False, raw=20),
    Kind("Q5_0", 7, 5, 16, minimum=False, wide=False, raw=22),
    Kind("Q5_1", 8, 5, 0, minimum=True, wide=False, raw=24),
    Kind("Q4_K", 9, 4, 0, minimum=True, wide=True, raw=144),
    Kind("Q5_K", 10, 5, 0, minimum=True, wide=True, raw=176),
    Kind("Q6_K", 11, 6, 32, minimum=False, wide=True, raw=210),
)


@dataclass(frozen=True, slots=True)
class Weights:
    """Rows of blocks, taken apart: d and least [rows, cells] in f16, codes [rows, cells, 32], and codes of scales
    [rows, cells, parts] and of minimums [rows, cells]; ones where the kind has none."""

    kind: Kind
    d: Array
    least: Array
    codes: Array
    scales: Array
    minimums: Array

    def worth(self) -> tuple[Array, Array]:
        """The scales [rows, cells, parts] and minimums [rows, cells] of cells, exact in f32."""
        scales = self.d.astype(np.float32)[..., None] * self.scales.astype(np.float32)
        sign = np.float32(-1 if self.kind.wide else 1)
        return scales, sign * self.least.astype(np.float32) * self.minimums.astype(np.float32)

    def values(self) -> Array:  # [rows, cells * 32], exact in float64
        scales, minimums = (v.astype(np.float64) for v in self.worth())
        each = np.repeat(scales, CELL // self.kind.parts, axis=-1)
        out = (self.codes - self.kind.offset) * each + minimums[..., None]
        return out.reshape(len(out), -1)


def random_blocks(kind: Kind, rows: int, inputs: int, seed: int = 0) -> Array:
    """Raw blocks [rows, bytes]: every code and scale there is, f16 scales of both signs, one of them subnormal."""
    rng = np.random.default_rng(seed)
    many = inputs // (CELL * kind.cells)
    raw = rng.integers(0, 256, (rows, many, kind.raw), np.uint8)
    halves = (rng.standard_normal((rows, many, 2)) * 0.1).astype(np.float16)
    halves[0, 0] = 3e-6, -5e-7
    start = 208 if kind.name == "Q6_K" else 0
    end = start + (4 if kind.minimum else 2)
    raw[..., start:end] = halves.view(np.uint8).reshape(rows, many, 4)[..., : end - start]
    return raw.reshape(rows, -1)


def _nibbles(data: Array) -> Array:  # low ones of all bytes of the last axis, then the high ones
    return np.concatenate([data & 15, data >> 4], -1)


def _bits(data: Array, count: int, width: int = 1) -> Array:  # [..., count, bytes]: `width` bits of each byte in turn
    return np.stack([data >> (width * i) & (2**width - 1) for i in range(count)], -2)


def take_apart(kind: Kind, raw: Array) -> Weights:
    """Raw blocks [rows, bytes] in their parts."""
    rows = len(raw)
    blocks = raw.reshape(-1, kind.raw)
    many = len(blocks)
    half = lambda at: blocks[:, at : at + 2].copy().view(np.float16)[:, 0]  # noqa: E731
    d = half(208 if kind.name == "Q6_K" else 0)
    least = half(2) if kind.minimum else np.zeros(many, np.float16)
    scales = np.ones((many, kind.cells, kind.parts), np.int64)
    minimums = np.ones((many, kind.cells), np.int64)
    rest = blocks[:, 4 if kind.minimum else 2 :]
    if kind.name == "Q6_K":
        low = blocks[:, :128].reshape(many, 2, 2, 32)
        high = _bits(blocks[:, 128:192].reshape(many, 2, 32), 4, 2)
        codes = np.concatenate([low & 15, low >> 4], 2) | high << 4
        scales = blocks[:, 192:208].view(np.int8).astype(np.int64).reshape(many, 8, 2)
    elif kind.wide:
        six, rest = rest[:, :12].astype(np.int64), rest[:, 12:]
        scales = np.concatenate([six[:, :4] & 63, six[:, 8:] & 15 | six[:, :4] >> 6 << 4], 1)[..., None]
        minimums = np.concatenate([six[:, 4:8] & 63, six[:, 8:] >> 4 | six[:, 4:8] >> 6 << 4], 1)
        high = _bits(rest[:, :32], 8) if kind.bits == 5 else np.zeros((many, 8, 32), np.uint8)
        low = rest[:, -128:].reshape(many, 4, 1, 32)
        codes = np.concatenate([low & 15, low >> 4], 2).reshape(many, 8, 32) | high << 4
    elif kind.bits == 8:
        codes = rest.copy().view(np.int8)
    else:
        codes = _nibbles(rest[:, -16:])
        if kind.bits == 5:
            codes = codes | np.unpackbits(rest[:, :4], axis=1, bitorder="little") << 4
    spread = lambda v: np.repeat(v.reshape(rows, -1), kind.cells, 1)  # noqa: E731
    return Weights(
        kind,
        spread(d),
        spread(least),
        codes.astype(np.int64).reshape(rows, -1, CELL),
        scales.reshape(rows, -1, kind.parts),
        minimums.reshape(rows, -1),
    )


def values_of(kind: Kind, raw: Array) -> Array:
    """What the reference reader makes of raw blocks: f32 [rows, inputs]."""
    return np.asarray(dequantize(raw, GGMLQuantizationType[kind.name]))


def padded(weights: Weights) -> Weights:
    """Cells of zeros up to a whole group."""
    group = 8 if weights.kind.wide else 2
    fill = -weights.codes.shape[1] % group

    def pad(v: Array) -> Array:
        return np.pad(v, [(0, 0), (0, fill)] + [(0, 0)] * (v.ndim - 2))

    parts = (weights.d, weights.least, weights.codes, weights.scales, weights.minimums)
    return Weights(weights.kind, *(pad(v) for v in parts))


def pack(weights: Weights) -> Array:
    """The packed form, bytes [blocks, block bytes], of rows that are a multiple of 16."""
    w = padded(weights)
    kind, cells = w.kind, w.codes.shape[1]
    blocks, group = len(w.codes) // LANES, 8 if kind.wide else 2

    def columns_last(v: Array) -> Array:  # [blocks, groups, cells of a group, ..., 16]
        return np.moveaxis(v.reshape(blocks, LANES, cells // group, group, *v.shape[2:]), 1, -1)

    def raw(v: Array) -> Array:  # [blocks, groups, bytes]
        return np.ascontiguousarray(v).view(np.uint8).reshape(blocks, cells // group, -1)

    d, least = columns_last(w.d), columns_last(w.least)
    scales, minimums = columns_last(w.scales.astype(np.uint8)), columns_last(w.minimums.astype(np.uint8))
    if kind.wide:
        head = [raw(d[:, :, 0]), raw(least[:, :, 0]), raw(scales)] + ([raw(minimums)] if kind.minimum else [])
    else:
        head = [raw(d)] + ([raw(least)] if kind.minimum else [])
    # [blocks, groups, cells of a group, line, column, byte]
    code = w.codes.reshape(blocks, LANES, cells // group, group, 8, 4).transpose(0, 2, 3, 4, 1, 5).astype(np.uint8)
    lines = code if kind.bits == 8 else code[..., :4, :, :] & 15 | (code[..., 4:, :, :] & 15) << 4
    if kind.bits == 5:
        fifth = sum((code[..., j, :, :] >> 4 & 1) << j for j in range(8))
        lines = np.concatenate([lines, np.expand_dims(np.asarray(fifth), 3)], 3)
    if kind.bits == 6:
        pairs = [sum((code[..., 4 * i + j, :, :] >> 4 & 3) << 2 * j for j in range(4)) for i in range(2)]
        lines = np.concatenate([lines, np.stack(pairs, 3)], 3)
    return np.concatenate([*head, raw(lines)], -1).reshape(blocks, -1)


def quantised(values: Array) -> tuple[Array, Array]:
    """Inputs [rows, cells * 32] as codes [rows, cells, 32] and scales [rows, cells], f32 step by step."""
    cells = values.astype(np.float32).reshape(len(values), -1, CELL)
    largest = np.abs(cells).max(-1)
    number, some = np.isfinite(cells).all(-1), np.isfinite(largest) & (largest > np.float32(1e-30))
    with np.errstate(all="ignore"):
        scale = np.where(some, largest * (np.float32(1) / np.float32(127)), np.float32(0))
        by = np.where(some, np.float32(127) / largest, np.float32(0)).astype(np.float32)
        codes = np.rint(np.where(number[..., None], cells, np.float32(0)) * by[..., None]).astype(np.int64)
    return codes, np.where(number, scale, np.float32(np.nan)).astype(np.float32)


def row_bytes(codes: Array, scales: Array, stride: int) -> Array:
    """Inputs as the kernels take them: bytes [rows, stride]."""
    rows, cells = scales.shape
    sums = codes.reshape(rows, cells, 2, 16).sum(-1)
    whole = sums.sum(-1)
    with np.errstate(over="ignore"):
        of_sums = scales * whole.astype(np.float32)
    parts = (
        codes.astype(np.int8).reshape(rows, -1),
        scales,
        of_sums,
        (-whole).astype(np.int32),
        (-sums).astype(np.int32).reshape(rows, -1),
    )
    held = np.concatenate([np.ascontiguousarray(p).view(np.uint8).reshape(rows, -1) for p in parts], 1)
    return np.pad(held, [(0, 0), (0, stride - held.shape[1])])


def _added(a: Array, b: Array, total: Array, fused: bool) -> Array:
    """total + a * b in f32, with one rounding or two."""
    if not fused:
        return np.asarray(total + a * b)
    # the product is exact in float64; the sum is rounded to odd there, so that the last rounding sees what was lost
    x, y = a.astype(np.float64) * b.astype(np.float64), total.astype(np.float64)
    s = x + y
    lost = (x - (s - (s - x))) + (y - (s - x))
    bits = s.view(np.int64).copy()
    inexact = (lost != 0) & (bits % 2 == 0)
    bits += np.where(inexact, np.where(np.signbit(lost) == np.signbit(s), 1, -1), 0)
    return bits.view(np.float64).astype(np.float32)


def product(weights: Weights, codes: Array, scales: Array, fused: bool) -> Array:
    """Bit for bit what a tier has to give, [rows of inputs, rows of weights], in the order that the kernels promise."""
    kind = weights.kind
    of_cells, minimums = weights.worth()
    width = CELL // kind.parts
    total = np.zeros((len(codes), len(weights.codes)), np.float32)
    for cell in range(weights.codes.shape[1]):
        for part in range(kind.parts):
            here = slice(part * width, (part + 1) * width)
            dot = codes[:, cell, here] @ (weights.codes[:, cell, here] - kind.offset).T
            by = scales[:, cell, None] * of_cells[None, :, cell, part]
            total = _added(dot.astype(np.float32), by, total, fused)
        if kind.minimum:
            of_sum = scales[:, cell] * codes[:, cell].sum(-1).astype(np.float32)
            total = _added(np.broadcast_to(minimums[:, cell], total.shape), of_sum[:, None], total, fused)
    return total
