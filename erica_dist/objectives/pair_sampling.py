"""One positive and so many negatives an anchor, drawn as the published ERICA draws them, but a function of the pairs.

The published code shuffles the pairs of each relation and takes them two by two: each is the other's only positive, and
the one that is left of an odd number is a negative only. Of an anchor's negatives it draws 64. Here both draws follow
from the pairs' own random bits, which belong to (seed, epoch, document, head, tail): the same pool gives the same draw
on every rank, in every order of its rows, in every pass over it and after every resume.

A pair of several relations takes part under one of them, drawn likewise. A couple that must not meet (of one document
with a common head or tail) is left as it is, as in the published code: neither of the two is then an anchor.

Legend: A anchors (some of the pool's rows), N pool, L labels a pair (padded with -1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from erica_dist.config import EricaConfig

SCORES = 1 << 22  # of anchors x pool, held at a time


@dataclass(frozen=True)
class PairSampling:
    """Which positives and negatives of an anchor count."""

    one_positive: bool = False
    negatives: int = 0  # an anchor; 0: all

    @classmethod
    def of(cls, erica: EricaConfig) -> PairSampling:
        return cls(erica.positives == "one", erica.negatives_per_anchor)


EVERY_PAIR = PairSampling()


def partner_rows(labels_NL: Tensor, bits_N: Tensor) -> Tensor:
    """int64 [N]: the row of the pool that each row is coupled with; -1: none, of no relation or left over."""
    partner_N = torch.full_like(bits_N, -1)
    count_N = (labels_NL >= 0).sum(1)
    rows = count_N.nonzero().flatten()
    if not len(rows):
        return partner_N
    which = (_shifted(mixed(_numbered(bits_N[rows], 0)), 33) * count_N[rows]) >> 31  # one of its relations
    relation = labels_NL[rows, which]
    rows = rows[_sorted_places(relation, mixed(_numbered(bits_N[rows], 1)))]
    relation = relation.sort().values
    first = torch.searchsorted(relation, relation)
    place = torch.arange(len(rows), device=rows.device) - first
    other = first + (place ^ 1)  # neighbours, two by two
    coupled = other < torch.searchsorted(relation, relation, right=True)
    partner_N[rows[coupled]] = rows[other[coupled]]
    return partner_N


def partners_of(bits_A: Tensor, labels_NL: Tensor, bits_N: Tensor) -> Tensor:
    """int64 [A]: the row of the pool that each anchor is coupled with, or -1; anchors are known by their bits."""
    if not len(bits_A):
        return torch.zeros_like(bits_A)
    order = bits_N.argsort()
    own = order[torch.searchsorted(bits_N[order], bits_A.contiguous())]
    return partner_rows(labels_NL, bits_N)[own]


def sampled(negative_AN: Tensor, bits_A: Tensor, bits_N: Tensor, count: int) -> Tensor:
    """bool [A, N]: of each row's negatives the `count` with the smallest scores, all where there are no more."""
    if negative_AN.shape[1] <= count:
        return negative_AN
    kept = torch.zeros_like(negative_AN)
    step = max(1, SCORES // negative_AN.shape[1])
    for start in range(0, len(bits_A), step):
        rows = slice(start, start + step)
        score = mixed(_numbered(bits_A[rows, None], bits_N))
        score = score.masked_fill(~negative_AN[rows], torch.iinfo(torch.int64).max)
        kept[rows].scatter_(1, score.topk(count, dim=1, largest=False).indices, True)
    return kept & negative_AN


# ------------------------------------------------------------------------------------------------ splitmix64 in torch


def _signed(constant: int) -> int:
    """The int64 of the same 64 bits."""
    constant &= (1 << 64) - 1
    return constant - (1 << 64) if constant >> 63 else constant


_GOLDEN, _FIRST, _SECOND = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shifted(x: Tensor, places: int) -> Tensor:
    """Shifted right as an unsigned number: int64 would draw its sign in."""
    return (x >> places) & ((1 << (64 - places)) - 1)


def mixed(x: Tensor) -> Tensor:
    """`stream.randomness.mixed` of the bits of int64 numbers, whose products wrap around like those of uint64."""
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _numbered(stream: Tensor, place: Tensor | int) -> Tensor:
    """What `mixed` makes the number at `place` of a stream of, as `KeyedRandom.bits`."""
    return stream + ((place + 1) * _GOLDEN if isinstance(place, Tensor) else _signed((place + 1) * _GOLDEN))


def _sorted_places(group: Tensor, score: Tensor) -> Tensor:
    """Places in rising order of group, then of score."""
    order = score.argsort()
    return order[group[order].argsort(stable=True)]
