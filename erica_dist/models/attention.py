"""Attention over packed sequences, registered with transformers under the name "packed".

A micro-batch is one row of T real tokens, sequence after sequence, without padding. Linears, norms and activations do
not care where a sequence ends; only attention does, and it gets the borders as `cu_seqlens`. The form is chosen by what
the device can do:

- CUDA, half precision: a variable-length flash kernel (the `flash_attn` package where installed, else PyTorch's own,
  which has no dropout).
- CUDA otherwise: padded to [B, longest] and masked, one fused call.
- CPU: one call a sequence. Measured faster there than padding or a block-diagonal mask, and exact.

Legend: T packed tokens, B sequences, H heads, D width of a head, S longest sequence.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from erica_dist.models.arithmetic import in_float32
from erica_dist.models.dropout import kept

PACKED = "packed"


def attend_by_sequence(
    query_1HTD: Tensor, key_1HTD: Tensor, value_1HTD: Tensor, bounds: list[int], scale: float, dropout: float
) -> Tensor:
    """Attention of each sequence to itself, one after the other -> [1, H, T, D]."""
    if in_float32(query_1HTD):
        wide = [x.float() for x in (query_1HTD, key_1HTD, value_1HTD)]
        return attend_by_sequence(wide[0], wide[1], wide[2], bounds, scale, dropout).to(query_1HTD.dtype)
    # split, not slices: the gradient of a slice is a whole tensor of zeros around it
    lengths = torch.tensor(bounds).diff().tolist()
    sequences = zip(*(x.split(lengths, dim=2) for x in (query_1HTD, key_1HTD, value_1HTD)), strict=True)
    if dropout:  # the fused kernel of the CPU has none and falls back to a slow path
        parts = [_DropoutAttention.apply(q, k, v, scale, dropout) for q, k, v in sequences]
    else:
        parts = [functional.scaled_dot_product_attention(q, k, v, scale=scale) for q, k, v in sequences]
    return torch.cat(parts, dim=2) if parts else query_1HTD


class _DropoutAttention(torch.autograd.Function):
    """Attention of one sequence to itself with dropout on its weights, for the CPU.

    The backward pass needs the weights and one byte a weight for what was dropped.
    """

    @staticmethod
    def forward(
        context: Any, query_1HTD: Tensor, key_1HTD: Tensor, value_1HTD: Tensor, scale: float, probability: float
    ) -> Tensor:
        query, key, value = query_1HTD[0], key_1HTD[0], value_1HTD[0]
        weights_HTT = torch.bmm(query, key.transpose(1, 2)).mul_(scale).softmax(-1)
        mask_HTT, factor = kept(weights_HTT.shape, probability)
        context.save_for_backward(query, key, value, weights_HTT, mask_HTT)
        context.scale, context.factor = scale, factor
        return torch.bmm(torch.where(mask_HTT, weights_HTT, 0), value * factor)[None]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights_HTT, mask_HTT = context.saved_tensors
        out = gradients[0][0] * context.factor
        of_value = torch.bmm(torch.where(mask_HTT, weights_HTT, 0).transpose(1, 2), out)
        of_weights = torch.bmm(out, value.transpose(1, 2)).masked_fill_(~mask_HTT, 0)
        # of softmax: w * (g - sum of w * g)
        of_scores = of_weights.mul_(weights_HTT)
        of_scores.addcmul_(weights_HTT, of_scores.sum(-1, keepdim=True), value=-1)
        of_query = torch.bmm(of_scores, key).mul_(context.scale)
        of_key = torch.bmm(of_scores.transpose(1, 2), query).mul_(context.scale)
        return of_query[None], of_key[None], of_value[None], None, None


def attend_padded(
    query_1HTD: Tensor,
    key_1HTD: Tensor,
    value_1HTD: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    scale: float,
    dropout: float,
) -> Tensor:
    """The same by padding to the longest sequence and one masked call -> [1, H, T, D]."""
    lengths_B = cu_seqlens.diff().long()
    real_BS = torch.arange(longest, device=lengths_B.device) < lengths_B[:, None]

    def pad(x_1HTD: Tensor) -> Tensor:
        x_THD = x_1HTD[0].transpose(0, 1)
        padded = x_THD.new_zeros(len(lengths_B), longest, *x_THD.shape[1:])
        padded[real_BS] = x_THD
        return padded.transpose(1, 2)

    out_BHSD = functional.scaled_dot_product_attention(
        pad(query_1HTD),
        pad(key_1HTD),
        pad(value_1HTD),
        attn_mask=real_BS[:, None, None],
        dropout_p=dropout,
        scale=scale,
    )
    return out_BHSD.transpose(1, 2)[real_BS].transpose(0, 1)[None]


def attend_varlen(
    query_1HTD: Tensor,
    key_1HTD: Tensor,
    value_1HTD: Tensor,
    cu_seqlens: Tensor,
    longest: int,
    scale: float,
    dropout: float,
) -> Tensor:
    """The same by a variable-length flash kernel (CUDA, half precision) -> [1, H, T, D]."""
    query, key, value = (x[0].transpose(0, 1).contiguous() for x in (query_1HTD, key_1HTD, value_1HTD))
    if _FLASH_ATTN:
        from flash_attn import flash_attn_varlen_func

        out_THD = flash_attn_varlen_func(
            query, key, value, cu_seqlens, cu_seqlens, longest, longest, dropout_p=dropout, softmax_scale=scale
        )
    else:
        from torch.nn.attention.varlen import varlen_attn

        out_THD = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest, scale=scale)
    return out_THD.transpose(0, 1)[None]


_FLASH_ATTN = importlib.util.find_spec("flash_attn") is not None


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seqlens: Tensor | None = None,
    bounds: list[int] | None = None,
    longest: int = 0,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: [1, H, T, D] in, ([1, T, H, D], None) out.

    `bounds` is `cu_seqlens` as a Python list, made once a micro-batch so that no layer waits for the device.
    """
    if cu_seqlens is None or bounds is None:
        raise ValueError("packed attention needs the borders of the sequences: call the encoder through models.encoder")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if query.device.type == "cpu":
        out = attend_by_sequence(query, key, value, bounds, scale, dropout)
    elif query.dtype in (torch.float16, torch.bfloat16) and (_FLASH_ATTN or not dropout):
        out = attend_varlen(query, key, value, cu_seqlens, longest, scale, dropout)
    else:
        out = attend_padded(query, key, value, cu_seqlens, longest, scale, dropout)
    return out.transpose(1, 2), None


AttentionInterface.register(PACKED, packed_attention)
