"""Half precision on a CPU that has no arithmetic for it: products are taken in float32 and rounded.

Such a CPU multiplies bf16 matrices number by number, some 70 times slower than float32 ones. The result here is what
hardware with bf16 gives, which sums up in float32 as well, at about the speed of float32. Elsewhere nothing changes.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@cache
def lacks(dtype: torch.dtype) -> bool:
    """Whether this CPU has no arithmetic for a type of half precision."""
    if dtype == torch.bfloat16:
        return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float16 and not torch.ops.mkldnn._is_mkldnn_fp16_supported()


def in_float32(x: Tensor) -> bool:
    """Whether products of this tensor are better taken in float32."""
    return x.device.type == "cpu" and lacks(x.dtype)


class Linear(nn.Linear):
    """`nn.Linear`, its product in float32 where that is better."""

    def forward(self, x: Tensor) -> Tensor:
        if not in_float32(x):
            return super().forward(x)
        out = x.float() @ self.weight.float().T
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)


def use_fast_products(module: nn.Module) -> None:
    """Make each `nn.Linear` of the module one of the above; its weights stay the same objects."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = Linear
