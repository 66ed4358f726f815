"""The order of documents: a pure function of (seed, epoch, number of documents), the same for every number of ranks.

In: seed, epoch or step, n. Out: document numbers. Epochs follow one another without a gap, so the last, incomplete
global batch of an epoch is filled up from the next one, and each document comes exactly once an epoch.

The permutation is a Feistel network over the smallest even number of bits that holds n, walked along its cycles until
the value is below n (format-preserving encryption: Black and Rogaway, 2002). Any slice of an epoch is computed without
the rest, so the millionth step costs what the first does, in time and in memory.
"""

from __future__ import annotations

import numpy as np

from erica_dist.stream.randomness import philox_key

_ROUNDS = 10


def permuted(seed: int, epoch: int, n: int, positions: np.ndarray) -> np.ndarray:
    """Document numbers int64 at `positions` (0 <= position < n) of the epoch's order."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    philox = np.random.Philox(key=philox_key(seed, "order", epoch, n))
    keys = philox.random_raw(_ROUNDS)
    value = np.asarray(positions, np.uint64).copy()
    walking = np.ones(value.shape, bool)
    while walking.any():
        left, right = value[walking] >> shift, value[walking] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        value[walking] = (left << shift) | right
        walking = value >= n
    return value.astype(np.int64)


def _mixed(x: np.ndarray) -> np.ndarray:
    """Each bit of the uint64 result depends on every bit of `x` (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def epoch_order(seed: int, epoch: int, n: int) -> np.ndarray:
    """All documents of one epoch, in order: a permutation int64 [n]."""
    return permuted(seed, epoch, n, np.arange(n))


def global_batch(seed: int, step: int, batch: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The documents of optimizer step `step` (from 0): (epochs int64 [batch], document numbers int64 [batch]).

    It is the slice [step * batch, (step + 1) * batch) of all epochs laid one after the other; a document's epoch comes
    with it because masking and drawing depend on it.
    """
    places = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    epochs = places // n
    documents = np.empty(batch, np.int64)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        here = epochs == epoch
        documents[here] = permuted(seed, epoch, n, places[here] - epoch * n)
    return epochs, documents
