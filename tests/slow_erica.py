"""ERICA's losses once more, written from the definitions with plain loops over Python lists, in float64.

Independent of erica_dist on purpose: nothing here is imported from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Vector = list[float]


@dataclass
class SlowPair:
    document: int
    head: int
    tail: int
    state: Vector
    relations: frozenset[int]  # empty: no relation


def mean(rows: list[Vector]) -> Vector:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def entity_state(hidden: list[Vector], mentions: list[tuple[int, int]]) -> Vector:
    return mean([mean(hidden[start:end]) for start, end in mentions])


def cosine(a: Vector, b: Vector) -> float:
    product = sum(x * y for x, y in zip(a, b, strict=True))
    return product / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(x * x for x in b))


def relation_losses(pairs: list[SlowPair], temperature: float) -> list[float]:
    """The loss of each anchor, in the order of the pairs."""
    return [sum(loss for _, loss in terms) for terms in relation_terms(pairs, temperature)]


def relation_terms(pairs: list[SlowPair], temperature: float) -> list[list[tuple[tuple[int, int], float]]]:
    """For each anchor ((anchor, positive), share of the anchor's loss) of each positive, by places in `pairs`."""
    losses = []
    for i, anchor in enumerate(pairs):
        positives, negatives = [], []
        for j, other in enumerate(pairs):
            same_document = anchor.document == other.document
            if i == j or (same_document and (anchor.head == other.head or anchor.tail == other.tail)):
                continue
            score = math.exp(cosine(anchor.state, other.state) / temperature)
            (positives if anchor.relations & other.relations else negatives).append((j, score))
        if anchor.relations and positives and negatives:
            below = sum(score for _, score in negatives)
            losses.append([((i, j), -math.log(p / (p + below)) / len(positives)) for j, p in positives])
    return losses


def entity_loss(states: list[Vector], head: int, tail: int, left_out: list[int], temperature: float) -> float:
    """One query; `left_out` are entities that are no candidates beside the head."""
    scores = {
        i: math.exp(cosine(states[head], state) / temperature)
        for i, state in enumerate(states)
        if i != head and i not in left_out
    }
    return -math.log(scores[tail] / sum(scores.values()))
