"""Documents and sequences as columns, and columns cut anew into blocks of equal numbers of documents.

In: aligned documents or examples with their keys, or the column files that workers wrote. Out: `BlockColumns` as
`erica_dist.shards.blocks` stores them. Joining and cutting work on any kind by its table of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.alignment import Aligned
from data_tools.sequences import Example
from erica_dist.shards.blocks import COLUMNS, BlockColumns, kind_of


def token_type(vocab_size: int) -> str:
    """The smallest of the two array types that holds every piece."""
    return "<u2" if vocab_size <= 1 << 16 else "<u4"


def document_columns(documents: Sequence[tuple[int, Aligned]], tokens: str) -> BlockColumns:
    """The columns of aligned documents with their keys; `tokens`: array type of the pieces."""
    aligned = [document for _, document in documents]
    return {
        "document_key": np.array([key for key, _ in documents], "<u8"),
        "tokens": _flat([document.tokens for document in aligned], tokens),
        "token_offsets": _offsets([document.tokens for document in aligned]),
        "mention_spans": _flat([document.mention_spans for document in aligned], "<i4", 2),
        "mention_entity": _flat([document.mention_entity for document in aligned], "<i4"),
        "mention_sentence": _flat([document.mention_sentence for document in aligned], "<i4"),
        "mention_offsets": _offsets([document.mention_spans for document in aligned]),
        "entity_hash": _flat([document.entity_hash for document in aligned], "<u8"),
        "entity_type": _flat([document.entity_type for document in aligned], "|u1"),
        "entity_offsets": _offsets([document.entity_hash for document in aligned]),
        "relations": _flat([document.relations for document in aligned], "<i4", 3),
        "relation_offsets": _offsets([document.relations for document in aligned]),
        "barred": _flat([document.barred for document in aligned], "<i4", 2),
        "barred_offsets": _offsets([document.barred for document in aligned]),
    }


def sequence_columns(examples: Sequence[tuple[int, Example]], tokens: str) -> BlockColumns:
    """The columns of ELECTRA examples with their keys; `tokens`: array type of the pieces."""
    return {
        "document_key": np.array([key for key, _ in examples], "<u8"),
        "tokens": _flat([example.pieces for _, example in examples], tokens),
        "token_offsets": _offsets([example.pieces for _, example in examples]),
        "segment_split": np.array([example.split for _, example in examples], "<i4"),
    }


def blocks_of(parts: Iterable[BlockColumns], size: int) -> Iterator[BlockColumns]:
    """The documents of all `parts`, in order, in blocks of `size` (the last one may have fewer)."""
    pending: list[BlockColumns] = []
    held = 0
    for part in parts:
        first, documents = 0, len(part["document_key"])
        while first < documents:
            last = min(documents, first + size - held)
            pending.append(cut(part, first, last))
            held += last - first
            first = last
            if held == size:
                yield join(pending)
                pending, held = [], 0
    if pending:
        yield join(pending)


def cut(columns: BlockColumns, first: int, last: int) -> BlockColumns:
    """Documents first to last (exclusive) of `columns`."""
    piece: BlockColumns = {}
    for column in COLUMNS[kind_of(columns)]:
        array = columns[column.name]
        if column.rows == "+1":
            piece[column.name] = array[first : last + 1] - array[first]
        elif column.rows:
            offsets = columns[column.rows]
            piece[column.name] = array[offsets[first] : offsets[last]]
        else:
            piece[column.name] = array[first:last]
    return piece


def join(pieces: Sequence[BlockColumns]) -> BlockColumns:
    """The documents of all `pieces` (at least one), in order."""
    joined: BlockColumns = {}
    for column in COLUMNS[kind_of(pieces[0])]:
        arrays = [piece[column.name] for piece in pieces]
        if column.rows == "+1":
            lengths = np.concatenate([np.diff(array) for array in arrays])
            joined[column.name] = _cumulated(lengths)
        else:
            joined[column.name] = np.concatenate(arrays)
    return joined


def _flat(rows: Sequence[Sequence[Any]], kind: str, width: int = 0) -> NDArray[Any]:
    flat = list(chain.from_iterable(rows))
    return np.array(flat, kind).reshape(-1, width) if width else np.array(flat, kind)


def _offsets(rows: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
    return _cumulated(np.array([len(row) for row in rows], np.int64))


def _cumulated(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, "<i8")
    np.cumsum(lengths, out=offsets[1:])
    return offsets
