"""Chance that belongs to a document: numbers that are a pure function of (seed, purpose, epoch, document key, place).

Counter-based: the n-th number of a document is computed without those before it, for any number of documents and places
in one vectorised expression. So the numbers are the same on every rank, in every worker and after every resume, and the
draws of two purposes never touch each other.

A document's stream is that of splitmix64 (Steele, Lea and Flood, 2014) with its state hashed from the four; the purpose
and the seed come in by BLAKE2.
"""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TO_UNIT = 2.0**-53


def mixed(x: np.ndarray) -> np.ndarray:
    """Each bit of the uint64 result depends on every bit of `x` (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(words: int, *parts: object) -> np.ndarray:
    """uint64 [words] (at most 8) that depend on every part."""
    text = "|".join(map(str, parts)).encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=8 * words).digest(), "<u8")


_SCORE_BITS = np.uint64(28)


def smallest(group_N: np.ndarray, score_N: np.ndarray, counts_G: np.ndarray) -> np.ndarray:
    """Rising places in N of the `counts_G` items of each group with the smallest scores; `group_N` rises.

    Scores (uint64) are compared by their first 28 bits; of equal ones the first item goes before. So what is chosen of
    a group depends on nothing but the group.
    """
    size_G = np.bincount(group_N, minlength=len(counts_G))
    place_bits, group_bits = max(1, len(group_N).bit_length()), max(1, len(counts_G).bit_length())
    score_N = score_N >> np.uint64(64 - 28)
    if place_bits + group_bits + 28 <= 64:
        # one sort of whole numbers (group, score, place) is several times as fast as one by several keys
        shift = np.uint64(place_bits)
        order = group_N.astype(np.uint64) << (shift + _SCORE_BITS) | score_N << shift
        order = np.sort(order | np.arange(len(group_N), dtype=np.uint64)) & np.uint64((1 << place_bits) - 1)
    else:
        order = np.lexsort((score_N, group_N))
    rank = np.arange(len(group_N)) - np.repeat(np.cumsum(size_G) - size_G, size_G)
    return np.sort(order[rank < counts_G[group_N]].astype(np.int64))


class KeyedRandom:
    """Numbers by seed, purpose, epoch, document and place."""

    def __init__(self, seed: int):
        self.seed = seed
        self._keys: dict[str, np.ndarray] = {}

    def streams(self, purpose: str, epochs: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """uint64 [D]: the stream of each document, from its epoch and its key."""
        if purpose not in self._keys:
            self._keys[purpose] = hashed(3, self.seed, purpose)
        first, second, third = self._keys[purpose]
        state = mixed(np.asarray(documents).astype(np.uint64) ^ first)
        return mixed(state + mixed(np.asarray(epochs).astype(np.uint64) ^ second) + third)

    @staticmethod
    def bits(stream: np.ndarray, place: np.ndarray | int) -> np.ndarray:
        """uint64: 64 random bits for each pair of a stream and a place in it; the two broadcast."""
        return mixed(stream + (np.atleast_1d(place).astype(np.uint64) + np.uint64(1)) * _GOLDEN)

    @classmethod
    def uniform(cls, stream: np.ndarray, place: np.ndarray | int) -> np.ndarray:
        """float64 in [0, 1) for each pair of a stream and a place in it."""
        return (cls.bits(stream, place) >> np.uint64(11)) * _TO_UNIT
