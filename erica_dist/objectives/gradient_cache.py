"""The whole global batch as one contrastive problem, in memory that does not grow with accumulation.

Gradient cache (Gao et al. 2021), in three steps:

1. every micro-batch once without graph: only its pair states are kept;
2. all pair states of all ranks and micro-steps make one pool; the loss and its gradient with respect to the own pair
   states are taken once;
3. every micro-batch again with graph, with the same dropout masks: the back-propagated term is
   `(pair states * cached gradient).sum()`, whose gradient is that of the loss.

Step 3 is the trainer's, beside the other losses. Legend: P pairs of a micro-batch, N pool, D width of a pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from erica_dist.objectives.gather import gather_rows, ranks, row_counts, sum_own_rows
from erica_dist.objectives.pair_labels import Contrasts, PairLabels
from erica_dist.objectives.pair_sampling import EVERY_PAIR, PairSampling
from erica_dist.objectives.relation_discrimination import PARTS, loss_and_gradients


def cached_gradients(
    pairs: list[Tensor],
    labels: list[PairLabels],
    pool: PairLabels,
    scale: float | Tensor,
    temperature: float,
    sampling: PairSampling = EVERY_PAIR,
) -> tuple[Tensor, list[Tensor]]:
    """Steps 1 and 2 after the forward passes.

    Args:
        pairs: states [P, D] of each own micro-batch, without graph; `labels` beside them.
        pool: labels of all ranks' pairs, rank after rank, each rank's micro-batches in order.
        scale: what the sum over all ranks' anchors is multiplied with, one number or one for each of the four parts.

    Returns:
        (this rank's share of the parts and measures of the loss [7], unscaled; the gradient [P, D] of the scaled loss
        for each micro-batch)
    """
    own_ND = torch.cat(pairs).detach()
    own = PairLabels.union([label.table() for label in labels])
    weights_4 = torch.ones(len(PARTS), device=own_ND.device) * scale
    contrasts = Contrasts(own, pool, sampling)
    if ranks() == 1:
        _, sums_7, _, gradient = loss_and_gradients(None, own_ND, contrasts, temperature, weights_4)
    else:
        counts = row_counts(len(own_ND), own_ND.device)
        pool_ND = gather_rows(own_ND, counts)
        _, sums_7, gradient, of_pool = loss_and_gradients(own_ND, pool_ND, contrasts, temperature, weights_4)
        assert gradient is not None
        assert of_pool is not None
        gradient += sum_own_rows(of_pool, counts)
    assert gradient is not None
    return sums_7, list(gradient.split([len(part) for part in pairs]))


def backward_term(pairs_PD: Tensor, gradient_PD: Tensor) -> Tensor:
    """Step 3: the scalar whose gradient with respect to the weights is the cached loss's."""
    return (pairs_PD.float() * gradient_PD).sum()
