"""Mentions in characters -> spans of word pieces, and what the window cuts off.

In: a corpus document and its encoding (piece ids and their code-point offsets into the text). Out: the document as
columns, spans half-open and relative to its first piece; or the reason why nothing is left of it.

A piece belongs to a mention if the two share a visible character; white space that a tokenizer counts into a piece is
trimmed first. A mention is dropped where no piece is its own: none at all, only an unknown piece that reaches beyond
it, or one that an earlier mention has; and where it does not end within the window. An entity without a mention goes,
with its labels; entities are numbered anew.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.sentences import sentence_of, sentence_spans


@dataclass(frozen=True)
class Vocabulary:
    """The numbers that documents are written with."""

    relations: Mapping[str, int]
    types: Mapping[str, int]  # 0: no type
    unknown_piece: int  # -1: the tokenizer has none


@dataclass(frozen=True)
class Aligned:
    """One document of n pieces, M mentions, E entities, R labels, X barred pairs; names and types as in the shards."""

    tokens: Sequence[int]
    mention_spans: list[tuple[int, int]]
    mention_entity: list[int]
    mention_sentence: list[int]
    entity_hash: list[int]
    entity_type: list[int]
    relations: list[tuple[int, int, int]]
    barred: list[tuple[int, int]]


def align(
    document: Mapping[str, Any],
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    window: int,
    vocabulary: Vocabulary,
    counts: Counter[str],
) -> Aligned | None:
    """`document` in pieces, at most `window` of them; None (and a reason in `counts`) where no label is left."""
    text = document["text"]
    bounds = visible_bounds(text, offsets)
    sentences = sentence_spans(text)
    mentions = sorted(
        (start, end, entity)
        for entity, content in enumerate(document["entities"])
        for start, end, _ in content["mentions"]
    )
    kept: list[tuple[tuple[int, int], int, int]] = []
    last = 0
    for start, end, entity in mentions:
        first, stop = pieces_of(bounds, start, end)
        first = max(first, last)
        if stop <= first:
            counts["mentions dropped: no piece of its own"] += 1
        elif _shared_unknown(ids, bounds, first, stop, (start, end), vocabulary.unknown_piece):
            counts["mentions dropped: only a shared unknown piece"] += 1
        elif stop > window:
            counts["mentions dropped: beyond the window"] += 1
        else:
            kept.append(((first, stop), entity, sentence_of(sentences, start)))
            last = stop
    survivors = sorted({entity for _, entity, _ in kept})
    number = {entity: place for place, entity in enumerate(survivors)}
    relations = sorted(
        (number[head], number[tail], vocabulary.relations[relation])
        for head, tail, relation in document["relations"]
        if head in number and tail in number
    )
    counts["entities dropped: no mention left"] += len(document["entities"]) - len(survivors)
    counts["labels dropped: an end is gone"] += len(document["relations"]) - len(relations)
    if len(survivors) < 2 or not relations:
        counts[f"documents dropped: {'no label' if len(survivors) > 1 else 'fewer than 2 entities'} left"] += 1
        return None
    counts["pieces beyond the window"] += max(0, len(ids) - window)
    entities = [document["entities"][entity] for entity in survivors]
    return Aligned(
        tokens=ids[:window],
        mention_spans=[span for span, _, _ in kept],
        mention_entity=[number[entity] for _, entity, _ in kept],
        mention_sentence=[sentence for _, _, sentence in kept],
        entity_hash=[entity_hash(entity["id"]) for entity in entities],
        entity_type=[vocabulary.types.get(entity["type"] or "", 0) for entity in entities],
        relations=relations,
        barred=sorted(
            (number[head], number[tail])
            for head, tail in document.get("barred", ())
            if head in number and tail in number
        ),
    )


def visible_bounds(text: str, offsets: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """int64[n, 2]: the pieces' offsets without white space at their ends; empty ones keep their place."""
    bounds = np.asarray(offsets, np.int64).reshape(-1, 2)
    for place, (start, end) in enumerate(offsets):
        if start < end and (text[start].isspace() or text[end - 1].isspace()):
            piece = text[start:end]
            first = start + len(piece) - len(piece.lstrip())
            bounds[place] = first, max(first, start + len(piece.rstrip()))
    return bounds


def pieces_of(bounds: NDArray[np.int64], start: int, end: int) -> tuple[int, int]:
    """Half-open range of the pieces that share a character with [start, end); empty (first >= stop) if none does."""
    near = np.flatnonzero((bounds[:, 0] < end) & (bounds[:, 1] > start) & (bounds[:, 1] > bounds[:, 0]))
    return (int(near[0]), int(near[-1]) + 1) if len(near) else (0, 0)


def entity_hash(identifier: str) -> int:
    """The first 8 bytes, little endian, of the sha256 of an entity's id."""
    return int.from_bytes(hashlib.sha256(identifier.encode()).digest()[:8], "little")


def _shared_unknown(
    ids: Sequence[int], bounds: NDArray[np.int64], first: int, stop: int, span: tuple[int, int], unknown: int
) -> bool:
    if any(piece != unknown for piece in ids[first:stop]):
        return False
    return bool(bounds[first, 0] < span[0] or bounds[stop - 1, 1] > span[1])
