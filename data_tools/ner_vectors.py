"""Tokens -> vectors: spaCy's MultiHashEmbed and MaxoutWindowEncoder, over many texts at once.

In: tokenized texts. Out: one vector a token. The embedding of a token depends on a few of its attributes only, so it is
computed once for each combination of them and kept. The convolutions are what takes the time: products by numpy, in
blocks that stay in the processor's cache. Sums are taken in another order than in spaCy, so vectors agree with spaCy's
to about 6 digits, not to the last bit.

Shapes: N tokens, R rows (tokens with zero rows around each text), W width, P pieces of a maxout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_BLOCK = 512  # rows at a time; a block of three windows, its product and its results fit into the processor's cache
_CACHED = 100_000  # combinations of attributes kept: some 50 MB of vectors and 20 MB of keys for a width of 96


@dataclass(frozen=True)
class Maxout:
    """The greatest of P affine functions; `weight` and `bias` are ordered by piece, so that a piece is a slice."""

    weight: Floats  # (inputs, P * outputs)
    bias: Floats  # (P * outputs,)
    outputs: int

    @classmethod
    def of(cls, weight: Floats, bias: Floats) -> Maxout:
        """From thinc's layout: (outputs, P, inputs) and (outputs, P)."""
        outputs, pieces, inputs = weight.shape
        return cls(
            np.ascontiguousarray(weight.transpose(2, 1, 0).reshape(inputs, pieces * outputs)),
            np.ascontiguousarray(bias.T.reshape(-1)),
            outputs,
        )

    def greatest(self, sums: Floats) -> Floats:
        """(rows, P * outputs) -> (rows, outputs)."""
        best = np.maximum(sums[:, : self.outputs], sums[:, self.outputs : 2 * self.outputs])
        for start in range(2 * self.outputs, sums.shape[1], self.outputs):
            np.maximum(best, sums[:, start : start + self.outputs], out=best)
        return best


@dataclass(frozen=True)
class NormedMaxout:
    """A maxout, its result brought to mean 0 and variance 1 along the width, times `gain`, plus `shift`."""

    maxout: Maxout
    gain: Floats
    shift: Floats

    def __call__(self, inputs: Floats, sums: Floats | None = None) -> Floats:
        """(rows, inputs) -> (rows, W); `sums`: memory for the products."""
        return self.of_products(np.matmul(inputs, self.maxout.weight, out=sums))

    def of_products(self, sums: Floats) -> Floats:
        """The same from the products of inputs and weight, which it overwrites."""
        sums += self.maxout.bias
        result = self.maxout.greatest(sums)
        width = np.float32(result.shape[1])
        result -= (np.add.reduce(result, axis=1) / width)[:, None]
        variance = np.einsum("rw,rw->r", result, result) / width + np.float32(1e-8)
        result *= (1 / np.sqrt(variance))[:, None]
        result *= self.gain
        result += self.shift
        return result


def convolved(rows_RW: Floats, layer: NormedMaxout) -> Floats:
    """Each row plus what `layer` gives for it between its neighbours; beyond the ends the rows are zero."""
    count, width = rows_RW.shape
    around = np.zeros((count + 2, width), np.float32)
    around[1:-1] = rows_RW
    result = np.empty_like(rows_RW)
    block = min(count, _BLOCK)
    windows, sums = np.empty((block, 3 * width), np.float32), np.empty((block, len(layer.maxout.bias)), np.float32)
    for start in range(0, count, block):
        end = min(start + block, count)
        size = end - start
        np.concatenate([around[start + shift : end + shift] for shift in range(3)], axis=1, out=windows[:size])
        np.add(layer(windows[:size], sums[:size]), rows_RW[start:end], out=result[start:end])
    return result


def convolved_from(table: Floats, rows_R: NDArray[np.intp], layer: NormedMaxout) -> Floats:
    """`convolved(table[rows_R], layer)`, with one product for all places of a row. Row 0 is zero, and in `rows_R`.

    Most tokens are there more than once, so this takes half the time.
    """
    width = table.shape[1]
    different, places_R = np.unique(rows_R, return_inverse=True)
    vectors = table[different]
    left, middle, right = (vectors @ layer.maxout.weight[start : start + width] for start in range(0, 3 * width, width))
    around = np.zeros(len(rows_R) + 2, np.intp)  # beyond the ends: the place of row 0, which is the first of all rows
    around[1:-1] = places_R
    result = vectors[places_R]
    for start in range(0, len(rows_R), _BLOCK):
        end = min(start + _BLOCK, len(rows_R))
        sums = left[around[start:end]]
        sums += middle[around[start + 1 : end + 1]]
        sums += right[around[start + 2 : end + 2]]
        result[start:end] += layer.of_products(sums)
    return result


class Embeddings:
    """The embedding of each combination of token attributes, computed when it is first seen.

    `looked_up`: the pipeline's own tables, from an array of attributes to vectors side by side; `mixed` makes one of
    them. Row 0 of `table` is zero.
    """

    def __init__(self, looked_up: Any, mixed: NormedMaxout, attributes: Sequence[str], limit: int = _CACHED):
        self._looked_up = looked_up
        self._mixed = mixed
        self._count = len(attributes)
        self._columns = [*attributes, "IS_SPACE"]  # which decides where an entity may begin
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self._known: dict[bytes, int] = {}
        self.table: Floats = np.zeros((1, len(self._mixed.gain)), np.float32)
        self.is_space = np.zeros(1, bool)

    def __len__(self) -> int:
        return len(self._known)

    def rows(self, documents: Sequence[Any]) -> NDArray[np.intp]:
        """The rows in `table` and `is_space` of all tokens of `documents` (spaCy's `Doc`), one after the other."""
        values = np.concatenate([document.to_array(self._columns) for document in documents])
        keys = values.view(f"V{8 * values.shape[1]}").ravel().tolist()
        if len(self._known) > self._limit:
            self.clear()
        known = self._known
        try:
            return np.array([known[key] for key in keys], np.intp)
        except KeyError:
            self._add(keys, values)
            return np.array([known[key] for key in keys], np.intp)

    def _add(self, keys: list[bytes], values: NDArray[np.uint64]) -> None:
        places: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            if key not in self._known:
                places.setdefault(key, place)
        new = values[list(places.values())]
        start = len(self._known) + 1
        end = start + len(new)
        if end > len(self.table):
            self.table, self.is_space = _enlarged(self.table, end), _enlarged(self.is_space, end)
        self.table[start:end] = self._mixed(self._looked_up(np.ascontiguousarray(new[:, : self._count])))
        self.is_space[start:end] = new[:, -1] != 0
        self._known.update(zip(places, range(start, end), strict=True))


def _enlarged(array: NDArray[Any], needed: int) -> NDArray[Any]:
    larger = np.zeros((max(needed, 2 * len(array)), *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


@dataclass(frozen=True)
class TokenVectors:
    """Embeddings, convolutions and `padding` zero rows before, between and after texts, as in spaCy."""

    embeddings: Embeddings
    layers: tuple[NormedMaxout, ...]
    padding: int

    def __call__(self, documents: Sequence[Any]) -> tuple[Floats, NDArray[np.bool_]]:
        """The vectors of all tokens (N, W), one text after the other, and which tokens are white space (N).

        `documents` have at least one token each.
        """
        rows_N = self.embeddings.rows(documents)
        lengths = [len(document) for document in documents]
        places_N = np.arange(len(rows_N)) + np.repeat(self.padding * np.arange(1, len(lengths) + 1), lengths)
        rows_R = np.zeros(len(rows_N) + self.padding * (len(lengths) + 1), np.intp)
        rows_R[places_N] = rows_N
        vectors_RW = convolved_from(self.embeddings.table, rows_R, self.layers[0])
        for layer in self.layers[1:]:
            vectors_RW = convolved(vectors_RW, layer)
        return vectors_RW[places_N], self.embeddings.is_space[rows_N]
