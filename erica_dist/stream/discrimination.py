"""The pairs of relation discrimination and the candidates of entity discrimination, for one micro-batch.

In: flat documents and which entities survived the cut. Out: flat arrays of entity numbers (of `Documents`). Pairs that
hold no relation are drawn among all ordered pairs of an entity's document at once, without a loop.

D documents, E entities, P pairs, L labels of a pair, Q queries, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from erica_dist.stream import ragged
from erica_dist.stream.documents import Documents, Draw


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


def relation_pairs(documents: Documents, alive_E: np.ndarray, drawn: int, uniform: list[np.ndarray]) -> Pairs:
    """All labelled pairs of surviving entities, and up to `drawn` pairs of each document that hold no relation.

    `uniform` has for each document one number for each ordered pair of its entities (before the cut), row by row; the
    pairs with the smallest numbers are drawn. Documents at the end without an entity in `alive_E` need no numbers.
    Barred pairs are neither labelled nor drawn.
    """
    rows = np.flatnonzero(alive_E[documents.triples[:, 0]] & alive_E[documents.triples[:, 1]])
    head, tail, relation = documents.triples[rows].T
    is_new = np.ones(len(rows), bool)
    is_new[1:] = (head[1:] != head[:-1]) | (tail[1:] != tail[:-1])
    first = np.flatnonzero(is_new)
    pair = np.cumsum(is_new) - 1
    label = np.arange(len(rows)) - first[pair]
    none_head, none_tail, none_document = _unrelated_pairs(documents, alive_E, drawn, uniform)
    labels_PL = np.full((len(first) + len(none_head), int(label.max(initial=0)) + 1), -1, np.int64)
    labels_PL[pair, label] = relation
    return Pairs(
        head_P=np.concatenate([head[first], none_head]),
        tail_P=np.concatenate([tail[first], none_tail]),
        document_P=np.concatenate([documents.triple_document[rows][first], none_document]),
        labels_PL=labels_PL,
    )


def _unrelated_pairs(
    documents: Documents, alive_E: np.ndarray, drawn: int, uniform: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Heads, tails and documents of the drawn pairs, sorted by document, head, tail."""
    if drawn <= 0:
        none = np.zeros(0, np.int64)
        return none, none, none
    first_D = documents.entity_start[:-1]
    count_D = np.diff(documents.entity_start)
    square_D = count_D * count_D
    cell_start = ragged.offsets(square_D)
    allowed = np.repeat(alive_E, count_D[documents.entity_document])  # by head
    for pairs, document in (
        (documents.triples[:, :2], documents.triple_document),
        (documents.barred, documents.barred_document),
        (np.repeat(np.arange(len(alive_E)), 2).reshape(-1, 2), documents.entity_document),
    ):
        head, tail = (pairs - first_D[document][:, None]).T
        allowed[cell_start[document] + head * count_D[document] + tail] = False
    cell = np.flatnonzero(allowed)
    document = ragged.row_of(square_D)[cell]
    place = cell - cell_start[document]
    head, tail = first_D[document] + place // count_D[document], first_D[document] + place % count_D[document]
    kept = alive_E[tail]
    cell, document, head, tail = cell[kept], document[kept], head[kept], tail[kept]
    score = np.concatenate(uniform)[cell] if uniform else np.zeros(0)
    order = np.lexsort((score, document))
    available_D = np.bincount(document, minlength=len(documents))
    chosen = np.sort(order[ragged.within(available_D) < drawn])
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
