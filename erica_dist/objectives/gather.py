"""Rows of all ranks, with gradient, for different numbers of rows on each rank (also none).

Contract: `gather_rows` gives every rank the same [N, ...], the ranks' rows one after the other. In the backward pass
the gradients that all ranks have for a row are summed at the row's owner. So when each rank's loss is its share of one
global sum, every parameter's gradients summed over ranks are those of a single process on the union; an engine that
averages over W ranks must be given the loss times W.

Legend: W ranks, n own rows, N rows of all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def row_counts(rows: int, device: torch.device) -> list[int]:
    """How many rows each rank has."""
    if ranks() == 1:
        return [rows]
    counts = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(ranks())]
    dist.all_gather(counts, torch.tensor([rows], dtype=torch.int64, device=device))
    return [int(count) for count in counts]


def gather_tables(table_nC: Tensor) -> list[Tensor]:
    """The integer tables [n, C] of all ranks, without gradient; columns are padded with -1 to the widest."""
    if ranks() == 1:
        return [table_nC]
    shapes = [torch.zeros(2, dtype=torch.int64, device=table_nC.device) for _ in range(ranks())]
    dist.all_gather(shapes, torch.tensor(table_nC.shape, dtype=torch.int64, device=table_nC.device))
    rows, columns = (max(int(shape[i]) for shape in shapes) for i in (0, 1))
    own = table_nC.new_full((rows, columns), -1)
    own[: table_nC.shape[0], : table_nC.shape[1]] = table_nC
    padded = [torch.empty_like(own) for _ in range(ranks())]
    dist.all_gather(padded, own)
    return [part[: int(shape[0])] for part, shape in zip(padded, shapes, strict=True)]


def gather_rows(rows_nD: Tensor, counts: list[int]) -> Tensor:
    """The rows of all ranks [N, D], with gradient; `counts` as `row_counts` gave them."""
    if ranks() == 1:
        return rows_nD
    return _GatherRows.apply(rows_nD, counts)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_nD: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        largest = max(counts)
        own = rows_nD.new_zeros(largest, *rows_nD.shape[1:])
        own[: len(rows_nD)] = rows_nD
        parts = [torch.empty_like(own) for _ in counts]
        dist.all_gather(parts, own)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return sum_own_rows(gradients[0].contiguous().clone(), ctx.counts), None


def sum_own_rows(gradient_ND: Tensor, counts: list[int]) -> Tensor:
    """What all ranks have for this rank's rows of a gathered tensor, added up [n, D]; `gradient_ND` is overwritten."""
    dist.all_reduce(gradient_ND)
    first = sum(counts[: dist.get_rank()])
    return gradient_ND[first : first + counts[dist.get_rank()]]
