"""Held-out score of RD: does a pair find the pairs of its relation? Mean average precision over a pool.

Legend: N pairs, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from erica_dist.objectives.pair_labels import Contrasts, PairLabels


def mean_average_precision(pairs_ND: Tensor, labels: PairLabels) -> tuple[float, int]:
    """(mean average precision over the anchors, number of anchors) of ranking the pool by cosine.

    Anchors, positives and negatives are RD's own; ranks among equal similarities are by place in the pool.
    """
    normal_ND = functional.normalize(pairs_ND.float(), dim=1)
    total, anchors = 0.0, 0
    for rows, positive, negative in Contrasts(labels, labels).tiles():
        similarity = (normal_ND[rows] @ normal_ND.T).masked_fill(~(positive | negative), float("-inf"))
        order = similarity.argsort(dim=1, descending=True, stable=True)
        hit = positive.gather(1, order).double()
        rank = torch.arange(1, hit.shape[1] + 1, device=hit.device)
        precision = (hit.cumsum(1) / rank * hit).sum(1) / hit.sum(1).clamp(min=1)
        total += float(precision.sum())
        anchors += len(rows)
    return total / max(anchors, 1), anchors
