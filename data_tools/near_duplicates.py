"""Documents that are nearly the same -> which of them stay: the first in the order of the input.

    text --> sketch, in the unit: 256 bytes                                        (`sketches`)
    sketches of all --> candidates: equal in a band --> similar enough? --> kept   (`first_of_similar`)

Similarity is the Jaccard index of the texts' sets of five consecutive words, lower-cased and without punctuation. It is
estimated by MinHash (Broder 1997): of 128 hash functions, the share whose smallest value over the set is the same. A
sketch holds the lowest byte of each of the 128 values, and of each 4 of them, a band, a hash of 32 bits. Texts that
share no band are never compared: of pairs as similar as 0.5 that misses one in ten, of 0.7 one in 5,000.

A document is dropped where it is similar to one before it that stays, so the result is a function of the order of the
input alone. The values are rensa's, by a fixed seed; the tests hold them, so that another version or machine that gives
others is noticed.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import rensa
from numpy.typing import NDArray

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import write_atomically

WORDS = 5
VALUES = 128
BANDS, ROWS = 32, 4
SEED = 42
LEAST_SIMILARITY = 0.5  # below it the bands miss too many
_HASHES = 4 * BANDS  # bytes of the bands in a sketch; those of the values follow
SKETCH = _HASHES + VALUES
# Odd numbers of 64 bits; the upper half of the sum of products is the hash of a band
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], np.uint64)
_WORD = re.compile(r"\w+")


def sketches(texts: Sequence[str]) -> NDArray[np.uint8]:
    """The sketch of each text: uint8[n, SKETCH]."""
    if not texts:
        return np.zeros((0, SKETCH), np.uint8)
    matrix = rensa.RMinHash.digest_matrix_from_token_sets([_parts(text) for text in texts], VALUES, SEED)
    values = np.array(matrix.to_rows(), np.uint32)
    products = values.reshape(len(texts), BANDS, ROWS).astype(np.uint64) * _FACTORS
    hashes = (products.sum(axis=2, dtype=np.uint64) >> np.uint64(32)).astype("<u4")
    return np.hstack([hashes.view(np.uint8), (values & 0xFF).astype(np.uint8)])


def _parts(text: str) -> list[str]:
    words = _WORD.findall(text.lower())
    return [" ".join(words[start : start + WORDS]) for start in range(max(len(words) - WORDS + 1, 1))]


def write_sketches(path: Path, texts: Sequence[str]) -> int:
    """Write the sketches of `texts` as .npy, atomically; gives the bytes of the file."""
    file = BytesIO()
    np.save(file, sketches(texts), allow_pickle=False)
    write_atomically(path, file.getvalue())
    return file.tell()


def read_sketches(path: Path) -> NDArray[np.uint8]:
    """What `write_sketches` wrote.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        found: NDArray[np.uint8] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged ({error}); remove it and run again") from error
    return found


def first_of_similar(found: NDArray[np.uint8], similarity: float) -> NDArray[np.bool_]:
    """Which documents stay, bool[n]: those that are less than `similarity` similar to each before them that stays.

    found: sketches in the order of the input. Takes 8 bytes a document besides; of documents that share a band with
    another, 264 to 400.
    """
    hashes = found[:, :_HASHES].view("<u4")
    values = found[:, _HASHES:]
    # equal lowest bytes: of equal values all, of others one in 256
    least = int(np.ceil(VALUES * (similarity + (1 - similarity) / 256)))
    kept = np.ones(len(found), bool)
    shared = np.zeros(len(found), bool)
    for band in range(BANDS):
        shared |= _repeated(hashes[:, band])
    documents = np.flatnonzero(shared)
    groups, count = _groups(hashes, documents)
    # Of each group, its documents that stay, the last first: `newest` begins the chain, `before` goes on
    newest = array("i", [-1]) * count
    before = array("i", [-1]) * (len(documents) * BANDS)
    for place in range(len(documents)):
        own = groups[place].tolist()
        candidates = set()
        for band, group in enumerate(own):
            other = newest[group]
            while other >= 0:
                candidates.add(other)
                other = before[other * BANDS + band]
        if candidates:
            others = documents[list(candidates)]
            equal = np.count_nonzero(values[others] == values[documents[place]], axis=1)
            if equal.max() >= least:
                kept[documents[place]] = False
                continue
        for band, group in enumerate(own):
            before[place * BANDS + band] = newest[group]
            newest[group] = place
    return kept


def _repeated(hashes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which of these occur more than once."""
    order = np.argsort(hashes)
    equal = hashes[order[1:]] == hashes[order[:-1]]
    repeated = np.zeros(len(hashes), bool)
    repeated[order[1:][equal]] = True
    repeated[order[:-1][equal]] = True
    return repeated


def _groups(hashes: NDArray[np.uint32], documents: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """For each of `documents` and each band the number of the group of equal hashes, int32[m, BANDS], and how many
    groups there are; those of different bands are different."""
    groups = np.zeros((len(documents), BANDS), np.int32)
    count = 0
    for band in range(BANDS):
        different, numbers = np.unique(hashes[documents, band], return_inverse=True)
        groups[:, band] = numbers + count
        count += len(different)
    return groups, count
