"""Documents that tests write by hand, in the form in which the shards give them; and the numbers of one document."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from erica_dist.shards.blocks import COLUMNS
from erica_dist.shards.gathering import Columns
from erica_dist.shards.reader import DocumentView, SequenceView
from erica_dist.stream.randomness import KeyedRandom


def columns_of(views: Sequence[DocumentView | SequenceView]) -> Columns:
    """The documents one after the other."""
    kind = "sequences" if isinstance(views[0], SequenceView) else "documents"
    arrays = {"document_key": np.array([view.key for view in views], np.uint64)}
    counts = {}
    for column in COLUMNS[kind]:
        if column.rows == "+1" or column.name == "document_key":
            continue
        rows = [np.asarray(getattr(view, column.name)) for view in views]
        if column.rows:
            arrays[column.name] = np.concatenate(rows)
            counts[column.rows] = np.array([len(row) for row in rows])
        else:
            arrays[column.name] = np.array(rows)
    return Columns(np.arange(len(views)), np.zeros(len(views), np.int64), counts, arrays)


def numbers(random: KeyedRandom, purpose: str, epoch: int, key: int, count: int) -> np.ndarray:
    """float64 [count]: the first numbers of a document's stream."""
    return random.uniform(random.streams(purpose, np.array([epoch]), np.array([key])), np.arange(count))
