"""The order of documents: a pure function of (seed, epoch, number of documents, shuffle), the same for every rank.

In: seed, epoch and places, or a step. Out: document numbers. Epochs follow one another without a gap, so the last,
incomplete global batch of an epoch is filled up from the next one, and each document comes exactly once an epoch.

full: a permutation of all documents, a Feistel network over the smallest even number of bits that holds n, walked along
its cycles until the value is below n (format-preserving encryption: Black and Rogaway, 2002).

block: for corpora larger than the local disk. The shards are permuted; `window` of them that follow one another make a
window, and the documents of a window are permuted fully. At any time a window's shards are all that is needed.

Any slice of an epoch is computed without the rest, so the millionth step costs what the first does, in time and memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from erica_dist.shards.ragged import offsets
from erica_dist.stream.randomness import hashed, mixed

_ROUNDS = 10
_CHUNK = 1 << 14  # places that are computed together
_CHUNKS_KEPT = 8


def permuted(seed: int, epoch: int, n: int, positions: np.ndarray, purpose: str = "order") -> np.ndarray:
    """Numbers int64 at `positions` (0 <= position < n) of a permutation of 0..n-1."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    keys = np.random.Philox(key=hashed(2, seed, purpose, epoch, n)).random_raw(_ROUNDS)
    value = np.asarray(positions, np.uint64).copy()
    walking = np.ones(value.shape, bool)
    while walking.any():
        left, right = value[walking] >> shift, value[walking] & mask
        for key in keys:
            left, right = right, left ^ (mixed(right ^ key) & mask)
        value[walking] = (left << shift) | right
        walking = value >= n
    return value.astype(np.int64)


def epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    """All documents of one epoch, fully shuffled: a permutation int64 [n]."""
    return permuted(seed, epoch, n, np.arange(n))


@dataclass(frozen=True)
class _Windows:
    """The windows of one epoch of a block shuffle."""

    start: np.ndarray  # int64 [windows + 1], places
    shards: list[np.ndarray]  # the shards of each window


class CorpusOrder:
    """The documents of one corpus in the order in which they are read, epoch after epoch.

    `shard_documents`: int64 [shards], documents of each shard, in stored order. `window`: shards of a window of the
    block shuffle; 0: full shuffle.
    """

    def __init__(self, seed: int, shard_documents: np.ndarray, window: int = 0):
        self._seed = seed
        self._shard_start = offsets(np.asarray(shard_documents, np.int64))
        self.documents = int(self._shard_start[-1])
        self._window = window if 0 < window < len(shard_documents) else 0
        # the largest number of documents that a window can hold; 0: full shuffle
        self.window_documents = int(np.sort(shard_documents)[-self._window :].sum()) if self._window else 0
        self._chunks: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._windows: dict[int, _Windows] = {}

    def at(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(epochs int64 [P], document numbers int64 [P]) at places int64 [P] of all epochs laid one after another."""
        epochs = places // self.documents
        within = places - epochs * self.documents
        chunk = within // _CHUNK
        documents = np.empty(len(places), np.int64)
        for epoch, number in dict.fromkeys(zip(epochs.tolist(), chunk.tolist(), strict=True)):
            here = (epochs == epoch) & (chunk == number)
            documents[here] = self._chunk(epoch, number)[within[here] - number * _CHUNK]
        return epochs, documents

    def _chunk(self, epoch: int, number: int) -> np.ndarray:
        if (epoch, number) not in self._chunks:
            places = np.arange(number * _CHUNK, min((number + 1) * _CHUNK, self.documents))
            compute = self._in_windows if self._window else self._in_full
            self._chunks[epoch, number] = compute(epoch, places)
            if len(self._chunks) > _CHUNKS_KEPT:
                self._chunks.popitem(last=False)
        return self._chunks[epoch, number]

    def _in_full(self, epoch: int, places: np.ndarray) -> np.ndarray:
        return permuted(self._seed, epoch, self.documents, places)

    def _in_windows(self, epoch: int, places: np.ndarray) -> np.ndarray:
        if epoch not in self._windows:
            self._windows = {epoch: self._plan(epoch)}  # one epoch is current; two meet in one global batch at most
        windows = self._windows[epoch]
        documents = np.empty(len(places), np.int64)
        window = np.searchsorted(windows.start, places, side="right") - 1
        for number in np.unique(window).tolist():
            here = window == number
            shards = windows.shards[number]
            inner = offsets(np.diff(self._shard_start)[shards])
            found = permuted(
                self._seed, epoch, int(inner[-1]), places[here] - windows.start[number], f"window {number}"
            )
            shard = np.searchsorted(inner, found, side="right") - 1
            documents[here] = self._shard_start[shards[shard]] + found - inner[shard]
        return documents

    def _plan(self, epoch: int) -> _Windows:
        shards = permuted(
            self._seed, epoch, len(self._shard_start) - 1, np.arange(len(self._shard_start) - 1), "shards"
        )
        sizes = np.diff(self._shard_start)[shards]
        cuts = np.arange(0, len(shards), self._window)
        return _Windows(offsets(np.add.reduceat(sizes, cuts)), np.split(shards, cuts[1:]))


def global_batch(seed: int, step: int, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The members of optimizer step `step` (from 0): (epochs int64 [batch], numbers int64 [batch]), fully shuffled.

    It is the slice [step * batch, (step + 1) * batch) of all epochs laid one after the other; an epoch comes with each
    because masking and drawing depend on it.
    """
    return CorpusOrder(seed, np.array([n])).at(np.arange(step * batch, (step + 1) * batch, dtype=np.int64))
