"""Ragged arrays in numpy: rows of different length laid one after the other, handled without a loop over the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def offsets(counts: np.ndarray) -> np.ndarray:
    """int64 [n + 1]: where each row begins, and the end of the last."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def row_of(counts: np.ndarray) -> np.ndarray:
    """int64 [sum of counts]: the row of each item."""
    return np.repeat(np.arange(len(counts)), counts)


def within(counts: np.ndarray) -> np.ndarray:
    """int64 [sum of counts]: the place of each item in its row, from 0."""
    return spans(np.zeros(len(counts), np.int64), counts)


def spans(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64 [sum of counts]: starts[i], starts[i] + 1, ... for each row i, one row after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)


def lengths(rows: Sequence[np.ndarray]) -> np.ndarray:
    """int64 [n]: the length of each array."""
    return np.fromiter((len(row) for row in rows), np.int64, len(rows))
