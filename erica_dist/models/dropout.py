"""Dropout that costs little on a CPU: four decisions out of each 64 random bits, kept as one byte an element.

PyTorch's own draws a whole random number an element there, ten times slower than everything else that dropout does,
which makes it a fifth of a training step. An element is kept where its 16 bits are below a threshold, so that the
probability is a multiple of 1/65,536; what is kept is divided by exactly that probability. The bits come from the
default generator, so that a seed fixes them (`training.engine.seed_dropout`). Elsewhere PyTorch's own is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 1 << 16


def kept(shape: torch.Size, probability: float) -> tuple[Tensor, float]:
    """(bool, of this shape, on the CPU: what is not dropped; the factor that keeps the expectation).

    `probability` is that of dropping, in [0, 1); it is rounded to a multiple of 1/65,536, at most 65,535 of them.
    """
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    count = shape.numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    decisions = words.view(torch.int16)[:count].view(shape)
    return decisions >= dropped - LEVELS // 2, LEVELS / (LEVELS - dropped)


def dropout(x: Tensor, probability: float) -> Tensor:
    """Inverted dropout in training: zero with this probability, else divided by the probability of being kept."""
    if not probability:
        return x
    if x.device.type != "cpu":
        return functional.dropout(x, probability)
    return _Dropout.apply(x, probability)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, probability: float) -> Tensor:
        mask, context.factor = kept(x.shape, probability)
        context.save_for_backward(mask)
        return torch.where(mask, x, 0).mul_(context.factor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (mask,) = context.saved_tensors
        return torch.where(mask, gradients[0], 0).mul_(context.factor), None


class Dropout(nn.Dropout):
    """`nn.Dropout` by the function above."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x


def make_dropout_cheap(module: nn.Module) -> None:
    """Replace each `nn.Dropout` below the module."""
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))
