"""Masked language modelling: cross entropy over the masked positions only, as a sum.

The gradient is taken beside the loss, from the same exponentials: the logits are the largest tensor of a step, and each
pass over them counts.

Legend: K masked positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def masked_loss_sum(logits_KV: Tensor, labels_K: Tensor) -> tuple[Tensor, Tensor]:
    """(cross entropy summed over positions in float32, number of positions whose best piece is right).

    float64 stays. 0 with a gradient path where nothing is masked.
    """
    return _CrossEntropy.apply(logits_KV, labels_K)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits_KV: Tensor, labels_K: Tensor) -> tuple[Tensor, Tensor]:
        wide_KV = logits_KV if logits_KV.dtype == torch.float64 else logits_KV.float()
        first_K1 = wide_KV.argmax(1, keepdim=True)
        best_K1 = wide_KV.gather(1, first_K1)
        own_K1 = wide_KV.gather(1, labels_K[:, None])
        share_KV = (wide_KV - best_K1).exp_()
        whole_K1 = share_KV.sum(1, keepdim=True)
        loss = (whole_K1.log() + best_K1 - own_K1).sum()
        right = (first_K1[:, 0] == labels_K).sum()
        if context.needs_input_grad[0]:
            share_KV.div_(whole_K1)
            share_KV[torch.arange(len(labels_K), device=labels_K.device), labels_K] -= 1
            context.save_for_backward(share_KV.to(logits_KV.dtype))
        context.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (of_logits_KV,) = context.saved_tensors
        return of_logits_KV * gradients[0].to(of_logits_KV.dtype), None
