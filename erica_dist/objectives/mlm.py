"""Masked language modelling: cross entropy over the masked positions only, as a sum.

Legend: K masked positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def masked_loss_sum(logits_KV: Tensor, labels_K: Tensor) -> tuple[Tensor, Tensor]:
    """(cross entropy summed over positions in float32, number of positions whose best piece is right).

    0 with a gradient path where nothing is masked.
    """
    wide_KV = logits_KV if logits_KV.dtype == torch.float64 else logits_KV.float()
    loss = functional.cross_entropy(wide_KV, labels_K, reduction="sum")
    return loss, (logits_KV.detach().argmax(1) == labels_K).sum()
