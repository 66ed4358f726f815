"""RD: pairs that share a relation attract, pairs that share none repel (Qin et al. 2021, section 3.3).

Loss of an anchor A: mean over its positives B of -log( e^s(A,B) / (e^s(A,B) + sum over its negatives C of e^s(A,C)) ),
s the cosine over the temperature; who they are: `pair_labels`. A pair without positive or without negative is no
anchor. The loss is given as a sum over anchors: who calls knows how many there are in the whole global batch, and
divides.

The paper writes RD as four sums, by whether some sentence mentions both ends (single) or none does (cross), of the
anchor and of the positive. They are given one by one; the loss above is their sum.

Anchors are taken in tiles, and the gradient of a tile is computed beside its loss, while its similarities are there:
three matrix products in all, as many as the similarities and their gradients need. Nothing of size anchors x pool is
kept for the backward pass, which only scales. Of size pool x width there is the gradient alone: states are divided by
their norms inside the tiles, and where the anchors are the pool they share one gradient.

Legend: A anchors' rows (own pairs), N pool, D width of a pair.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from erica_dist.objectives.pair_labels import Contrasts, PairLabels
from erica_dist.objectives.pair_sampling import EVERY_PAIR, PairSampling
from erica_dist.objectives.pooling import inverse_norms

PARTS = ("single_single", "single_cross", "cross_single", "cross_cross")  # sentences of the anchor, of the positive
# What is summed over anchors beside the parts, in this order: number of positives; their mean squared distance on the
# unit sphere (alignment) and the mean of e^(-2 squared distance) over positives and negatives, whose logarithm is the
# uniformity (Wang and Isola 2020).
MEASURES = ("positives", "alignment", "uniformity")
ROWS = 4096  # of a gradient, finished at a time


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
    """(the weighted sum of the four `PARTS`, with gradient; the parts themselves and the `MEASURES` [7], without).

    Both are sums over anchors, in float32 (float64 stays); 0 with a gradient path where there is no anchor.

    Args:
        pairs_AD: states of the own pairs, with gradient.
        pool_ND: states of the pool, the own pairs among them, with gradient to whoever owns them. Where the own pairs
            are the pool, give the same tensor: half the memory.
        weights_4: of the parts.
        sampling: which positives and negatives count; other than all of them needs the pairs' random bits.
    """
    anchors_AD = None if pairs_AD is pool_ND else _wide(pairs_AD)
    return _TiledLoss.apply(anchors_AD, _wide(pool_ND), Contrasts(labels, pool, sampling), temperature, weights_4)


class _TiledLoss(torch.autograd.Function):
    """`loss_and_gradients` as a function of the states; `anchors_AD` None: the pool."""

    @staticmethod
    def forward(
        context: Any,
        anchors_AD: Tensor | None,
        pool_ND: Tensor,
        contrasts: Contrasts,
        temperature: float,
        weights_4: Tensor,
    ) -> tuple[Tensor, Tensor]:
        with_gradient = any(context.needs_input_grad[:2])
        loss, sums_7, *gradients = loss_and_gradients(
            anchors_AD, pool_ND, contrasts, temperature, weights_4, with_gradient
        )
        context.save_for_backward(*gradients)
        context.mark_non_differentiable(sums_7)
        return loss, sums_7

    @staticmethod
    def backward(context: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_anchors, of_pool = (None if x is None else upstream * x for x in context.saved_tensors)
        return of_anchors, of_pool, None, None, None


def loss_and_gradients(
    anchors_AD: Tensor | None,
    pool_ND: Tensor,
    contrasts: Contrasts,
    temperature: float,
    weights_4: Tensor,
    with_gradient: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """(weighted loss; parts and measures [7]; gradient for the anchors [A, D]; gradient for the pool [N, D]).

    All are sums over anchors, taken without graph. `anchors_AD` None: the anchors are the pool, which then has the
    whole gradient, and theirs is None. Without `with_gradient` both are None.
    """
    weights_4 = weights_4.to(pool_ND)
    sums_7 = pool_ND.new_zeros(len(PARTS) + len(MEASURES))
    inverse_N = inverse_norms(pool_ND)
    states_AD, inverse_A = pool_ND, inverse_N
    if anchors_AD is not None:
        states_AD, inverse_A = anchors_AD, inverse_norms(anchors_AD)
    of_pool = torch.zeros_like(pool_ND) if with_gradient else None
    of_anchors = torch.zeros_like(anchors_AD) if with_gradient and anchors_AD is not None else None
    for own, positive, negative in contrasts.tiles():
        tile_AD = states_AD[own] * inverse_A[own, None]
        similarity, found = _tile(
            (tile_AD @ pool_ND.T).mul_(inverse_N / temperature),
            positive,
            negative,
            contrasts.anchors.same_sentence_N[own],
            contrasts.pool.same_sentence_N,
            weights_4,
            temperature,
        )
        sums_7 += found
        if of_pool is not None:
            gradient_AN = similarity.div_(temperature)
            of_pool.addmm_(gradient_AN.T, tile_AD)
            target = of_pool if of_anchors is None else of_anchors
            target[own] += gradient_AN.mul_(inverse_N) @ pool_ND
    if of_pool is not None:
        _of_states_(of_pool, pool_ND, inverse_N)
    if of_anchors is not None:
        _of_states_(of_anchors, states_AD, inverse_A)
    loss = (sums_7[: len(PARTS)] * weights_4).sum()
    return loss, sums_7, of_anchors, of_pool


def _of_states_(gradient_ND: Tensor, states_ND: Tensor, inverse_N: Tensor) -> None:
    """From the gradient for unit vectors to that for the states, in place: what points outwards goes, the rest shrinks
    with the length. In pieces, so that no copy of the whole is made."""
    for start in range(0, len(gradient_ND), ROWS):
        rows = slice(start, start + ROWS)
        gradient, inverse = gradient_ND[rows], inverse_N[rows, None]
        unit = states_ND[rows] * inverse
        gradient.addcmul_(unit, (gradient * unit).sum(1, keepdim=True), value=-1).mul_(inverse)


def _tile(
    similarity_AN: Tensor,
    positive_AN: Tensor,
    negative_AN: Tensor,
    single_A: Tensor,
    single_N: Tensor,
    weights_4: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """(gradient of the weighted loss for `similarity_AN`, in its place; parts and measures [7]) of a tile of anchors.

    With n = log of the sum of e^s over the negatives, the loss of a positive B is softplus(n - s_B). It pulls s_B by
    sigmoid(n - s_B), and pushes all negatives, each by its share e^(s_C - n) of the same.
    """
    row, column = positive_AN.nonzero(as_tuple=True)
    attraction = similarity_AN[row, column]
    positives_A = positive_AN.sum(1)
    share = 1 / positives_A[row].to(attraction)
    # of unit vectors the squared distance is 2 - 2 cos
    others_AN = positive_AN | negative_AN
    closeness_AN = similarity_AN.mul(4 * temperature).sub_(4).exp_().mul_(others_AN)
    measures = (
        positives_A.sum(),
        ((2 - 2 * temperature * attraction) * share).sum(),
        (closeness_AN.sum(1) / others_AN.sum(1)).sum(),
    )
    # What is no negative leaves before e^s: at a low temperature the anchor's own entry overflows, and inf x 0 is NaN
    similarity_AN.masked_fill_(negative_AN.logical_not(), float("-inf"))
    below_A = similarity_AN.logsumexp(1)
    gap = below_A[row] - attraction
    part = 2 * (~single_A[row]).long() + (~single_N[column]).long()
    # softplus of torch turns linear at a threshold; this one is exact everywhere
    loss = torch.logaddexp(gap, torch.zeros_like(gap)) * share
    parts_4 = torch.zeros_like(weights_4).index_add_(0, part, loss)
    pull = gap.sigmoid() * share * weights_4[part]
    push_A = torch.zeros_like(below_A).index_add_(0, row, pull)
    gradient_AN = similarity_AN.sub_(below_A[:, None]).exp_().mul_(push_A[:, None])
    gradient_AN[row, column] = -pull
    return gradient_AN, torch.cat([parts_4, torch.stack([x.to(parts_4) for x in measures])])


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
