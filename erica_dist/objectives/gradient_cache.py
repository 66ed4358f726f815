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

from erica_dist.objectives.gather import gather_rows, row_counts
from erica_dist.objectives.pair_sampling import EVERY_PAIR, PairSampling
from erica_dist.objectives.relation_discrimination import PARTS, PairLabels, relation_loss


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
        (this rank's share of the four parts of the loss sum [4], unscaled; the gradient [P, D] of the scaled loss for
        each micro-batch)
    """
    own = torch.cat(pairs).detach().requires_grad_()
    own_labels = PairLabels.union([label.table() for label in labels])
    gathered_ND = gather_rows(own, row_counts(len(own), own.device))
    weights_4 = torch.ones(len(PARTS), device=own.device) * scale
    loss, parts_4 = relation_loss(own, own_labels, gathered_ND, pool, temperature, weights_4, sampling)
    (gradient,) = torch.autograd.grad(loss, own)
    return parts_4, list(gradient.split([len(part) for part in pairs]))


def backward_term(pairs_PD: Tensor, gradient_PD: Tensor) -> Tensor:
    """Step 3: the scalar whose gradient with respect to the weights is the cached loss's."""
    return (pairs_PD.float() * gradient_PD).sum()
