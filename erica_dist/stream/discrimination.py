"""The pairs of relation discrimination and the candidates of entity discrimination, for one micro-batch.

In: flat documents and which entities survived the cut. Out: flat arrays of entity numbers (of `Documents`). Pairs that
hold no relation are drawn among all ordered pairs of an entity's document at once, without a loop.

D documents, E entities, P pairs, L labels of a pair, Q queries, C candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from erica_dist.shards import ragged
from erica_dist.stream.documents import Documents, Draw
from erica_dist.stream.randomness import KeyedRandom, smallest

PairTest = Callable[[np.ndarray, np.ndarray], np.ndarray]  # heads and tails, entities -> bool


@dataclass(frozen=True)
class Pairs:
    """Labelled pairs of all documents, in order, then the drawn pairs that hold no relation, in order."""

    head_P: np.ndarray
    tail_P: np.ndarray
    document_P: np.ndarray  # number in the micro-batch
    labels_PL: np.ndarray  # relations, padded with -1; all -1: holds no relation


@dataclass(frozen=True)
class Candidates:
    """The entities among which a query's tail is to be found, its tail included."""

    entity_C: np.ndarray
    query_C: np.ndarray


def relation_pairs(
    documents: Documents, alive_E: np.ndarray, drawn: int, stream_D: np.ndarray, fits: PairTest | None = None
) -> Pairs:
    """All labelled pairs of surviving entities, and up to `drawn` pairs of each document that hold no relation.

    With `fits` only the pairs that it accepts, of either kind.

    The stream of random numbers of a document gives each ordered pair of its entities (before the cut), row by row, a
    score; the pairs with the smallest scores are drawn. Barred pairs are neither labelled nor drawn.
    """
    rows = np.flatnonzero(alive_E[documents.triples[:, 0]] & alive_E[documents.triples[:, 1]])
    if fits is not None:
        rows = rows[fits(*documents.triples[rows, :2].T)]
    head, tail, relation = documents.triples[rows].T
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (head[1:] != head[:-1]) | (tail[1:] != tail[:-1])
    first = np.flatnonzero(is_new)
    pair = np.cumsum(is_new) - 1
    label = np.arange(len(rows)) - first[pair]
    none_head, none_tail, none_document = _unrelated_pairs(documents, alive_E, drawn, stream_D, fits)
    labels_PL = np.full((len(first) + len(none_head), int(label.max(initial=0)) + 1), -1, np.int64)
    labels_PL[pair, label] = relation
    return Pairs(
        head_P=np.concatenate([head[first], none_head]),
        tail_P=np.concatenate([tail[first], none_tail]),
        document_P=np.concatenate([documents.triple_document[rows][first], none_document]),
        labels_PL=labels_PL,
    )


def _unrelated_pairs(
    documents: Documents, alive_E: np.ndarray, drawn: int, stream_D: np.ndarray, fits: PairTest | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heads, tails and documents of the drawn pairs, sorted by document, head, tail."""
    if drawn <= 0:
        none = np.zeros(0, np.int64)
        return none, none, none
    # only documents with a surviving entity: those of ED have none here
    first_D, count_D = documents.entity_start[:-1], np.diff(documents.entity_start)
    has_D = np.zeros(len(documents), bool)
    has_D[documents.entity_document[alive_E]] = True
    square_D = np.where(has_D, count_D * count_D, 0)
    cell_start = ragged.offsets(square_D)
    document = ragged.row_of(square_D)
    place = ragged.within(square_D)
    head = place // count_D[document]
    tail = place - head * count_D[document]
    head, tail = head + first_D[document], tail + first_D[document]
    allowed = alive_E[head] & alive_E[tail] & (head != tail)
    for pairs, owner in (
        (documents.triples[:, :2], documents.triple_document),
        (documents.barred, documents.barred_document),
    ):
        here = has_D[owner]
        (heads, tails), owner = (pairs[here] - first_D[owner[here]][:, None]).T, owner[here]
        allowed[cell_start[owner] + heads * count_D[owner] + tails] = False
    cell = np.flatnonzero(allowed)
    if fits is not None:
        cell = cell[fits(head[cell], tail[cell])]
    score = KeyedRandom.bits(stream_D[document[cell]], place[cell])
    chosen = cell[smallest(document[cell], score, np.full(len(documents), drawn))]
    return head[chosen], tail[chosen], document[chosen]


def share_sentence(documents: Documents, alive_M: np.ndarray, head_P: np.ndarray, tail_P: np.ndarray) -> np.ndarray:
    """bool [P]: whether some sentence holds a surviving mention of both entities of the pair."""
    sentences = int(documents.mention_sentence.max(initial=0)) + 1
    mentioned = np.zeros((int(documents.entity_start[-1]), sentences), bool)
    mentioned[documents.mention_entity[alive_M], documents.mention_sentence[alive_M]] = True
    return (mentioned[head_P] & mentioned[tail_P]).any(axis=1)


def query_candidates(documents: Documents, alive_E: np.ndarray, draw: Draw, other_tails: bool) -> Candidates:
    """Every surviving entity of a query's document but its head and, unless `other_tails`, its other true tails.

    A tail whose pair with the head is barred is left out, too: its label was taken away, so it may be true.
    """
    queries = len(draw.document_Q)
    query_D = np.full(len(documents), -1)
    query_D[draw.document_Q] = np.arange(queries)
    query_E = query_D[documents.entity_document]
    taken_E = alive_E & (query_E >= 0)
    if not other_tails and queries:
        query_R = query_D[documents.triple_document]
        head, tail, relation = documents.triples.T
        taken_E[tail[(query_R >= 0) & (draw.head_Q[query_R] == head) & (draw.relation_Q[query_R] == relation)]] = False
        query_X = query_D[documents.barred_document]
        head, tail = documents.barred.T
        taken_E[tail[(query_X >= 0) & (draw.head_Q[query_X] == head)]] = False
        taken_E[draw.tail_Q] = True
    taken_E[draw.head_Q] = False
    entity_C = np.flatnonzero(taken_E)
    return Candidates(entity_C, query_E[entity_C])
