"""Who attracts whom: what each pair brings along, and from it the positives and negatives of an anchor.

For an anchor A (a labelled pair): positives are the pairs that share at least one relation, negatives those that share
none, no_relation pairs included; A itself and the pairs of its own document with its head or its tail are neither
(Qin et al. 2021, section 3.3). What the published code draws of them: `pair_sampling`.

Legend: A anchors (some of the pool's rows), N pool, L labels a pair (padded with -1), B words of 64 relations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from erica_dist.objectives.pair_sampling import EVERY_PAIR, PairSampling, partners_of, sampled
from erica_dist.stream.micro_batches import EricaMicroBatch

TILE = 1024  # anchors
TILE_ENTRIES = 1 << 24  # anchors x pool: 64 MiB of similarities in float32
WORD = 63  # relations in one int64, its sign left alone


@dataclass
class PairLabels:
    """What decides who attracts whom, of N pairs; moves between ranks as one integer table."""

    document_N: Tensor  # key of the document
    head_N: Tensor  # entity's number inside the document
    tail_N: Tensor
    same_sentence_N: Tensor  # bool: some sentence holds a mention of both
    labels_NL: Tensor  # relations, padded with -1; all -1: no relation
    bits_N: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))  # random, for sampling

    def __post_init__(self) -> None:
        if len(self.bits_N) != len(self.document_N):
            self.bits_N = torch.zeros_like(self.document_N)

    def __len__(self) -> int:
        return len(self.document_N)

    def __getitem__(self, rows: slice | Tensor) -> PairLabels:
        return PairLabels(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def table(self) -> Tensor:
        """All columns as one int64 [N, 5 + L]."""
        columns = [self.document_N, self.head_N, self.tail_N, self.same_sentence_N.long(), self.bits_N]
        return torch.cat([torch.stack(columns, dim=1), self.labels_NL], dim=1)

    @classmethod
    def from_table(cls, table: Tensor) -> PairLabels:
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3].bool(), table[:, 5:], table[:, 4])

    @classmethod
    def union(cls, tables: list[Tensor]) -> PairLabels:
        """The rows of several tables one after the other; narrower ones get more padding."""
        width = max(table.shape[1] for table in tables)
        wide = [functional.pad(table, (0, width - table.shape[1]), value=-1) for table in tables]
        return cls.from_table(torch.cat(wide))

    @classmethod
    def of(cls, batch: EricaMicroBatch) -> PairLabels:
        return cls(
            batch.pair_document_P,
            batch.pair_head_local_P,
            batch.pair_tail_local_P,
            batch.pair_same_sentence_P,
            batch.pair_labels_PL,
            batch.pair_draw_P,
        )


class Contrasts:
    """The positives and negatives of some anchors in a pool, tile by tile; what serves all tiles is made once.

    An anchor's own row of the pool is known by document, head and tail, not by its place.
    """

    def __init__(self, anchors: PairLabels, pool: PairLabels, sampling: PairSampling = EVERY_PAIR) -> None:
        self.anchors, self.pool, self.sampling = anchors, pool, sampling
        relations = torch.unique(pool.labels_NL)
        relations = relations[relations >= 0]
        self.words_AB = _words(anchors.labels_NL, relations)
        self.words_NB = _words(pool.labels_NL, relations)
        self.labelled_A = (anchors.labels_NL >= 0).any(1)
        self.partner_A = None
        if sampling.one_positive:  # the one row that may be an anchor's positive, or -1
            self.partner_A = partners_of(anchors.bits_N, pool.labels_NL, pool.bits_N)

    def tiles(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(row numbers R, positives, negatives: boolean [R, N] each) of all anchors in turn; a pair that has no
        positive or no negative is no anchor."""
        size = min(TILE, max(1, TILE_ENTRIES // max(len(self.pool), 1)))
        for rows in self.labelled_A.nonzero().flatten().split(size):
            positive, negative = self.of(rows)
            is_anchor = positive.any(1) & negative.any(1)
            yield rows[is_anchor], positive[is_anchor], negative[is_anchor]

    def of(self, rows: Tensor | slice) -> tuple[Tensor, Tensor]:
        """(positives, negatives): boolean [rows, N] each."""
        anchors, pool = self.anchors[rows], self.pool
        near = anchors.head_N[:, None] == pool.head_N
        near |= anchors.tail_N[:, None] == pool.tail_N
        near &= anchors.document_N[:, None] == pool.document_N
        positive = torch.zeros_like(near)
        for word_A, word_N in zip(self.words_AB[rows].unbind(1), self.words_NB.unbind(1), strict=True):
            positive |= (word_A[:, None] & word_N) != 0
        negative = (positive | near).logical_not_()
        negative &= self.labelled_A[rows][:, None]
        positive &= near.logical_not_()
        if self.partner_A is not None:
            positive &= torch.arange(len(pool), device=near.device) == self.partner_A[rows][:, None]
        if self.sampling.negatives:
            negative = sampled(negative, anchors.bits_N, pool.bits_N, self.sampling.negatives)
        return positive, negative


def _words(labels_NL: Tensor, relations: Tensor) -> Tensor:
    """int64 [N, B]: each pair's labels as bits, one for each of the rising `relations`; others have none."""
    words = torch.zeros(len(labels_NL), (len(relations) + WORD - 1) // WORD, dtype=torch.int64, device=labels_NL.device)
    row, column = torch.isin(labels_NL, relations).nonzero(as_tuple=True)
    place = torch.searchsorted(relations, labels_NL[row, column])
    # each bit once, since they are added up: a pair may name a relation twice
    row_and_place = torch.unique(row * max(len(relations), 1) + place)
    row, place = row_and_place // max(len(relations), 1), row_and_place % max(len(relations), 1)
    words.index_put_((row, place // WORD), torch.ones_like(row) << (place % WORD), accumulate=True)
    return words


def positives_and_negatives(anchors: PairLabels, pool: PairLabels) -> tuple[Tensor, Tensor]:
    """Boolean [A, N] each: all of the positives and negatives of the anchors."""
    return Contrasts(anchors, pool).of(slice(0, len(anchors)))


def anchor_rows(anchors: PairLabels, pool: PairLabels, sampling: PairSampling = EVERY_PAIR) -> Tensor:
    """Boolean [A]: which of the pairs have at least one positive and one negative in the pool."""
    # drawing some of the negatives leaves none without
    contrasts = Contrasts(anchors, pool, PairSampling(sampling.one_positive))
    keep_A = torch.zeros(len(anchors), dtype=torch.bool, device=anchors.document_N.device)
    for rows, _, _ in contrasts.tiles():
        keep_A[rows] = True
    return keep_A
