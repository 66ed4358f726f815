"""ERICA's losses once more, written from the definitions with plain loops over Python lists, in float64.

Independent of erica_dist on purpose: nothing here is imported from it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


def cosine_slope(a: Vector, b: Vector) -> Vector:
    """The gradient of the cosine with respect to `a`."""
    size, other = (math.sqrt(sum(x * x for x in v)) for v in (a, b))
    return [y / size / other - cosine(a, b) * x / size / size for x, y in zip(a, b, strict=True)]


def add_to(total: Vector, row: Vector, factor: float) -> None:
    for i, x in enumerate(row):
        total[i] += factor * x


# ------------------------------------------------------------------------------------------------ RD


def relation_losses(pairs: list[SlowPair], temperature: float) -> list[float]:
    """The loss of each anchor, in the order of the pairs."""
    return [sum(loss for _, loss in terms) for terms in relation_terms(pairs, temperature)]


def relation_terms(pairs: list[SlowPair], temperature: float) -> list[list[tuple[tuple[int, int], float]]]:
    """For each anchor ((anchor, positive), share of the anchor's loss) of each positive, by places in `pairs`."""
    losses = []
    for i in range(len(pairs)):
        positives, negatives = _others(pairs, i, temperature)
        if positives and negatives:
            below = sum(negatives.values())
            losses.append([((i, j), -math.log(p / (p + below)) / len(positives)) for j, p in positives.items()])
    return losses


def relation_gradients(
    pairs: list[SlowPair], temperature: float, weight: Callable[[int, int], float] = lambda anchor, positive: 1.0
) -> list[Vector]:
    """The gradient of the sum of all shares, each times its weight, with respect to every pair's state."""
    gradients = [[0.0] * len(pair.state) for pair in pairs]
    for i in range(len(pairs)):
        positives, negatives = _others(pairs, i, temperature)
        if not positives or not negatives:
            continue
        below = sum(negatives.values())
        slopes = dict.fromkeys([*positives, *negatives], 0.0)  # with respect to e^similarity
        for j, p in positives.items():
            factor = weight(i, j) / len(positives)
            slopes[j] += factor * (1 / (p + below) - 1 / p)
            for k in negatives:
                slopes[k] += factor / (p + below)
        for j, score in {**positives, **negatives}.items():
            for one, other in ((i, j), (j, i)):
                slope = cosine_slope(pairs[one].state, pairs[other].state)
                add_to(gradients[one], slope, slopes[j] * score / temperature)
    return gradients


def _others(pairs: list[SlowPair], i: int, temperature: float) -> tuple[dict[int, float], dict[int, float]]:
    """e^similarity of the positives and of the negatives of a pair, by places in `pairs`; none without a relation."""
    anchor = pairs[i]
    positives, negatives = {}, {}
    for j, other in enumerate(pairs):
        same_document = anchor.document == other.document
        if i == j or (same_document and (anchor.head == other.head or anchor.tail == other.tail)):
            continue
        if anchor.relations:
            kind = positives if anchor.relations & other.relations else negatives
            kind[j] = math.exp(cosine(anchor.state, other.state) / temperature)
    return positives, negatives


# ------------------------------------------------------------------------------------------------ ED


def entity_loss(states: list[Vector], head: int, tail: int, left_out: list[int], temperature: float) -> float:
    """One query; `left_out` are entities that are no candidates beside the head."""
    scores = _candidates(states, head, left_out, temperature)
    return -math.log(scores[tail] / sum(scores.values()))


def entity_gradients(
    states: list[Vector], head: int, tail: int, left_out: list[int], temperature: float
) -> list[Vector]:
    """The gradient of `entity_loss` with respect to every entity's state."""
    scores = _candidates(states, head, left_out, temperature)
    gradients = [[0.0] * len(state) for state in states]
    for i, score in scores.items():
        slope = score * (1 / sum(scores.values()) - (1 / score if i == tail else 0)) / temperature
        add_to(gradients[head], cosine_slope(states[head], states[i]), slope)
        add_to(gradients[i], cosine_slope(states[i], states[head]), slope)
    return gradients


def _candidates(states: list[Vector], head: int, left_out: list[int], temperature: float) -> dict[int, float]:
    return {
        i: math.exp(cosine(states[head], state) / temperature)
        for i, state in enumerate(states)
        if i != head and i not in left_out
    }


# ------------------------------------------------------------------------------------------------ made fixtures


def made_fixture(seed: int) -> dict[str, Any]:
    """Documents and what is expected of them, laid out as the files of shared/fixtures are.

    Pairs have one to four relations or none, entities one to three mentions, queries up to two other true tails.
    """
    draw = random.Random(seed)
    tau = draw.choice([0.05, 0.1, 0.3, 1.0])
    documents = [_made_document(draw) for _ in range(draw.randint(3, 6))]
    with_none, without = _relation_numbers(documents, tau, True), _relation_numbers(documents, tau, False)
    entity = {"all_negatives": [], "other_tails_excluded": []}
    for document in documents:
        states = [entity_state(document["hidden"], mentions) for mentions in document["entities"]]
        for name, left_out in (("all_negatives", []), ("other_tails_excluded", document["other_tails"])):
            entity[name].append(entity_loss(states, *document["query"], left_out, tau))
    first = documents[0]
    return {
        "tau": tau,
        "documents": documents,
        "expected": {
            "entity_states_first_document": [entity_state(first["hidden"], spans) for spans in first["entities"]],
            "relation_loss": {
                "with_no_relation_pairs": with_none[0],
                "anchors": with_none[1],
                "pool": with_none[2],
                "without_no_relation_pairs": without[0],
                "anchors_without": without[1],
                "pool_without": without[2],
            },
            "entity_loss": {name: sum(losses) / len(losses) for name, losses in entity.items()},
        },
    }


def _made_document(draw: random.Random) -> dict[str, Any]:
    count = draw.randint(4, 7)
    owners = [*range(count), *draw.choices(range(count), k=draw.randint(1, count))]
    entities: list[list[list[int]]] = [[] for _ in range(count)]
    place = 1
    for owner in owners:
        if len(entities[owner]) < 3:
            start = place + draw.randint(0, 3)
            place = start + draw.randint(1, 4)
            entities[owner].append([start, place])
    pairs = draw.sample([(h, t) for h in range(count) for t in range(count) if h != t], draw.randint(6, 11))
    head, tail = pairs[0]
    others = [t for t in range(count) if t not in (head, tail)]
    other_tails = sorted(draw.sample(others, draw.randint(0, 2)))
    relations = {(head, t): {"P1"} for t in [tail, *other_tails]}
    for pair in pairs[1 : len(pairs) // 2 + 1]:
        chosen = draw.sample(["P2", "P3", "P4", "P5"], draw.choice([1, 1, 2, 3]))
        relations.setdefault(pair, set()).update(chosen)
    return {
        "hidden": [[draw.gauss(0, 1) for _ in range(8)] for _ in range(place + draw.randint(1, 5))],
        "entities": entities,
        "relations": [[h, t, name] for (h, t), names in relations.items() for name in sorted(names)],
        "none": [list(pair) for pair in pairs if pair not in relations],
        "query": [head, tail],
        "other_tails": other_tails,
    }


def _relation_numbers(documents: list[dict[str, Any]], tau: float, with_none: bool) -> tuple[float, int, int]:
    """(mean loss, anchors, pool)."""
    pairs = []
    for number, document in enumerate(documents):
        states = [entity_state(document["hidden"], mentions) for mentions in document["entities"]]
        relations: dict[tuple[int, int], set[int]] = {}
        for head, tail, name in document["relations"]:
            relations.setdefault((head, tail), set()).add(int(name[1:]))
        for head, tail in document["none"] if with_none else []:
            relations[head, tail] = set()
        pairs += [SlowPair(number, h, t, states[h] + states[t], frozenset(r)) for (h, t), r in relations.items()]
    losses = relation_losses(pairs, tau)
    return sum(losses) / len(losses), len(losses), len(pairs)
