"""RD: pairs that share a relation attract, pairs that share none repel (Qin et al. 2021, section 3.3).

For an anchor A (a labelled pair): positives are the pairs that share at least one relation, negatives those that share
none, no_relation pairs included; A itself and the pairs of its own document with its head or its tail are neither.
Loss of A: mean over positives B of -log( e^s(A,B) / (e^s(A,B) + sum over negatives C of e^s(A,C)) ), s the cosine over
the temperature. A pair without positive or without negative is no anchor. The loss is given as a sum over anchors: who
calls knows how many there are in the whole global batch, and divides.

The paper writes RD as four sums, by whether some sentence mentions both ends (single) or none does (cross), of the
anchor and of the positive. They are given one by one; the loss above is their sum.

The published code takes one of the positives and some of the negatives of each anchor: `pair_sampling`.

Anchors are taken in tiles, and the gradient of a tile is computed beside its loss, while its similarities are there:
three matrix products in all, as many as the similarities and their gradients need, and nothing of size anchors x pool
is kept for the backward pass, which only scales.

Legend: A anchors' rows (own pairs), N pool, L labels a pair (padded with -1), R distinct relations, D width of a pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from erica_dist.objectives.pair_sampling import EVERY_PAIR, PairSampling, partners_of, sampled
from erica_dist.stream.micro_batches import EricaMicroBatch

TILE = 1024  # anchors
TILE_ENTRIES = 1 << 24  # anchors x pool: 64 MiB of similarities in float32
PARTS = ("single_single", "single_cross", "cross_single", "cross_cross")  # sentences of the anchor, of the positive


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


def positives_and_negatives(anchors: PairLabels, pool: PairLabels) -> tuple[Tensor, Tensor]:
    """Boolean [A, N] each. An anchor's own row of the pool is known by document, head and tail, not by its place."""
    same_document = anchors.document_N[:, None] == pool.document_N
    same_end = (anchors.head_N[:, None] == pool.head_N) | (anchors.tail_N[:, None] == pool.tail_N)
    neither = same_document & same_end
    shares = _share_a_relation(anchors.labels_NL, pool.labels_NL)
    labelled_A1 = (anchors.labels_NL >= 0).any(1, keepdim=True)
    return shares & ~neither, ~shares & ~neither & labelled_A1


def _share_a_relation(labels_AL: Tensor, labels_NL: Tensor) -> Tensor:
    """Boolean [A, N] by a product of indicator matrices over the relations that occur."""
    relations = torch.unique(torch.cat([labels_AL.flatten(), labels_NL.flatten()]))
    relations = relations[relations >= 0]
    if not len(relations):
        return torch.zeros(len(labels_AL), len(labels_NL), dtype=torch.bool, device=labels_AL.device)

    def indicators(labels: Tensor) -> Tensor:
        row, column = (labels >= 0).nonzero(as_tuple=True)
        table = torch.zeros(len(labels), len(relations), device=labels.device)
        table[row, torch.searchsorted(relations, labels[row, column])] = 1
        return table

    return indicators(labels_AL) @ indicators(labels_NL).T > 0.5


def _drawn(
    anchors: PairLabels, pool: PairLabels, sampling: PairSampling, partner_A: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `positives_and_negatives`, of which the sampling leaves some; `partner_A` as `_partners` gave it."""
    positive_AN, negative_AN = positives_and_negatives(anchors, pool)
    if partner_A is not None:
        positive_AN &= torch.arange(len(pool), device=partner_A.device) == partner_A[:, None]
    if sampling.negatives:
        negative_AN = sampled(negative_AN, anchors.bits_N, pool.bits_N, sampling.negatives)
    return positive_AN, negative_AN


def _partners(anchors: PairLabels, pool: PairLabels, sampling: PairSampling) -> Tensor | None:
    """Of each anchor the row in the pool that alone may be its positive; None: no such choice."""
    return partners_of(anchors.bits_N, pool.labels_NL, pool.bits_N) if sampling.one_positive else None


def anchor_rows(anchors: PairLabels, pool: PairLabels, sampling: PairSampling = EVERY_PAIR) -> Tensor:
    """Boolean [A]: which of the pairs have at least one positive and one negative in the pool."""
    sampling = PairSampling(sampling.one_positive)  # drawing some of the negatives leaves none without
    partner_A = _partners(anchors, pool, sampling)
    keep = []
    for start in range(0, len(anchors), TILE):
        rows = slice(start, start + TILE)
        partner = None if partner_A is None else partner_A[rows]
        positive, negative = _drawn(anchors[rows], pool, sampling, partner)
        keep.append(positive.any(1) & negative.any(1))
    return torch.cat(keep) if keep else torch.zeros(0, dtype=torch.bool, device=anchors.document_N.device)


def relation_loss_sum(
    pairs_AD: Tensor,
    labels: PairLabels,
    pool_ND: Tensor,
    pool: PairLabels,
    temperature: float,
    sampling: PairSampling = EVERY_PAIR,
) -> Tensor:
    """Sum over anchors of the loss above; see `relation_loss`."""
    return relation_loss(pairs_AD, labels, pool_ND, pool, temperature, torch.ones(len(PARTS)), sampling)[0]


def relation_loss(
    pairs_AD: Tensor,
    labels: PairLabels,
    pool_ND: Tensor,
    pool: PairLabels,
    temperature: float,
    weights_4: Tensor,
    sampling: PairSampling = EVERY_PAIR,
) -> tuple[Tensor, Tensor]:
    """(the weighted sum of the four `PARTS`, with gradient; the parts [4] themselves, without), summed over anchors.

    In float32 (float64 stays); 0 with a gradient path where there is no anchor.

    Args:
        pairs_AD: states of the own pairs, with gradient.
        pool_ND: states of the pool, the own pairs among them, with gradient to whoever owns them.
        weights_4: of the parts.
        sampling: which positives and negatives count; other than all of them needs the pairs' random bits.
    """
    anchors_AD = functional.normalize(_wide(pairs_AD), dim=1)
    pool_ND = functional.normalize(_wide(pool_ND), dim=1)
    return _TiledLoss.apply(anchors_AD, pool_ND, labels, pool, temperature, weights_4.to(anchors_AD), sampling)


class _TiledLoss(torch.autograd.Function):
    """The loss of normalised states, tile by tile, with its gradient taken on the way."""

    @staticmethod
    def forward(
        context: Any,
        anchors_AD: Tensor,
        pool_ND: Tensor,
        labels: PairLabels,
        pool: PairLabels,
        temperature: float,
        weights_4: Tensor,
        sampling: PairSampling,
    ) -> tuple[Tensor, Tensor]:
        partner_A = _partners(labels, pool, sampling)
        parts_4 = torch.zeros_like(weights_4)
        with_gradient = any(context.needs_input_grad[:2])
        gradients = [torch.zeros_like(x) if with_gradient else x.new_zeros(0) for x in (anchors_AD, pool_ND)]
        tile = min(TILE, max(1, TILE_ENTRIES // max(len(pool), 1)))
        for start in range(0, len(labels), tile):
            rows = torch.arange(start, min(start + tile, len(labels)), device=anchors_AD.device)
            partner = None if partner_A is None else partner_A[rows]
            positive, negative = _drawn(labels[rows], pool, sampling, partner)
            is_anchor = positive.any(1) & negative.any(1)
            rows = rows[is_anchor]
            tile_AD, own = anchors_AD[rows], labels[rows]
            similarity, of_parts = _tile(
                (tile_AD @ pool_ND.T).div_(temperature),
                positive[is_anchor],
                negative[is_anchor],
                own.same_sentence_N,
                pool.same_sentence_N,
                weights_4,
            )
            parts_4 += of_parts
            if with_gradient:
                gradient_AN = similarity.div_(temperature)
                gradients[0][rows] = gradient_AN @ pool_ND
                gradients[1].addmm_(gradient_AN.T, tile_AD)
        context.save_for_backward(*gradients)
        context.mark_non_differentiable(parts_4)
        return (parts_4 * weights_4).sum(), parts_4

    @staticmethod
    def backward(context: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_anchors, of_pool = context.saved_tensors
        return upstream * of_anchors, upstream * of_pool, None, None, None, None, None


def _tile(
    similarity_AN: Tensor,
    positive_AN: Tensor,
    negative_AN: Tensor,
    single_A: Tensor,
    single_N: Tensor,
    weights_4: Tensor,
) -> tuple[Tensor, Tensor]:
    """(gradient of the weighted loss for `similarity_AN`, in its place; the four parts) of a tile of anchors.

    With n = log of the sum of e^s over the negatives, the loss of a positive B is softplus(n - s_B). It pulls s_B by
    sigmoid(n - s_B), and pushes all negatives, each by its share e^(s_C - n) of the same.
    """
    below_A = similarity_AN.masked_fill(~negative_AN, float("-inf")).logsumexp(1)
    row, column = positive_AN.nonzero(as_tuple=True)
    gap = below_A[row] - similarity_AN[row, column]
    part = 2 * (~single_A[row]).long() + (~single_N[column]).long()
    share = 1 / positive_AN.sum(1)[row].to(gap)
    # softplus of torch turns linear at a threshold; this one is exact everywhere
    loss = torch.logaddexp(gap, torch.zeros_like(gap)) * share
    parts_4 = torch.zeros_like(weights_4).index_add_(0, part, loss)
    pull = gap.sigmoid() * share * weights_4[part]
    push_A = torch.zeros_like(below_A).index_add_(0, row, pull)
    gradient_AN = similarity_AN.sub_(below_A[:, None]).exp_().mul_(negative_AN).mul_(push_A[:, None])
    gradient_AN[row, column] = -pull
    return gradient_AN, parts_4


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
