"""What the published ERICA draws, once more with plain loops and Python's whole numbers.

Independent of erica_dist on purpose: nothing here is imported from it. The random bits of a pair are given; what is
made of them is splitmix64 (Steele, Lea and Flood 2014), written here from its definition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.slow_erica import SlowPair, cosine

WORD = (1 << 64) - 1


@dataclass
class PairKey:
    document: int
    head: int
    tail: int
    relations: list[int]  # rising; empty: no relation
    bits: int  # 64 random ones


def splitmix(stream: int, place: int) -> int:
    z = (stream + (place + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def rank_of(word: int) -> int:
    """Scores are compared as signed numbers."""
    return word - (1 << 64) if word >> 63 else word


def couples(pool: list[PairKey]) -> dict[int, int]:
    """The partner of each pair that has one, by places in the pool."""
    members: dict[int, list[int]] = {}
    for place, pair in enumerate(pool):
        if pair.relations:
            chosen = pair.relations[(splitmix(pair.bits, 0) >> 33) * len(pair.relations) >> 31]
            members.setdefault(chosen, []).append(place)
    partner = {}
    for places in members.values():
        shuffled = sorted(places, key=lambda place: rank_of(splitmix(pool[place].bits, 1)))
        while len(shuffled) > 1:
            one, other = shuffled.pop(0), shuffled.pop(0)
            partner |= {one: other, other: one}
    return partner


def chosen_pairs(pool: list[PairKey], one_positive: bool, negatives: int) -> list[tuple[list[int], list[int]]]:
    """(positives, negatives) of each pair, by places in the pool; `negatives` 0: all."""
    partner = couples(pool)
    found = []
    for i, anchor in enumerate(pool):
        positive, negative = [], []
        for j, other in enumerate(pool):
            if anchor.document == other.document and (anchor.head == other.head or anchor.tail == other.tail):
                continue
            if set(anchor.relations) & set(other.relations):
                if not one_positive or partner.get(i) == j:
                    positive.append(j)
            elif anchor.relations:
                negative.append(j)
        if negatives:
            score = {j: rank_of(splitmix(anchor.bits, pool[j].bits)) for j in negative}
            negative = sorted(sorted(negative, key=score.__getitem__)[:negatives])
        found.append((positive, negative))
    return found


def sampled_losses(
    pairs: list[SlowPair], bits: list[int], temperature: float, one_positive: bool, negatives: int
) -> list[float]:
    """The loss of each anchor, in the order of the pairs."""
    pool = [PairKey(p.document, p.head, p.tail, sorted(p.relations), b) for p, b in zip(pairs, bits, strict=True)]
    losses = []
    for i, (positive, negative) in enumerate(chosen_pairs(pool, one_positive, negatives)):
        if not positive or not negative:
            continue
        below = sum(math.exp(cosine(pairs[i].state, pairs[j].state) / temperature) for j in negative)
        scores = [math.exp(cosine(pairs[i].state, pairs[j].state) / temperature) for j in positive]
        losses.append(sum(-math.log(score / (score + below)) for score in scores) / len(scores))
    return losses


def twice_counted_loss(
    states: list[list[float]], head: int, tail: int, left_out: list[int], temperature: float
) -> float:
    """ED's loss of one query with the tail a second time in the denominator."""
    scores = {
        i: math.exp(cosine(states[head], state) / temperature)
        for i, state in enumerate(states)
        if i != head and i not in left_out
    }
    return -math.log(scores[tail] / (sum(scores.values()) + scores[tail]))
