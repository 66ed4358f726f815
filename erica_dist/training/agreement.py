"""What the ranks must know of each other before they go on: that none of them has failed, and why if one has.

A rank that leaves alone would keep the others waiting in a collective. So what can fail on one rank only (reading its
own documents) is followed by one small reduction, after which all raise or none does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

from erica_dist.errors import UserError
from erica_dist.objectives.gather import rank, ranks
from erica_dist.training.engine import device, sum_over_ranks

Result = TypeVar("Result")


def together(function: Callable[[], Result]) -> Result:
    """The result of `function()` on this rank, once no rank has failed in it. All ranks call it.

    Raises:
        UserError, RuntimeError: this rank's own fault; or, as a UserError, the first other one's.
    """
    error = result = None
    try:
        result = function()
    except (UserError, RuntimeError) as caught:
        error = caught
    failed = sum_over_ranks(torch.tensor([float(error is not None)], dtype=torch.float64, device=device()))
    if failed.item():
        raise_together(error)
    return result  # type: ignore[return-value]  # it is the function's


def raise_together(error: UserError | RuntimeError | None) -> None:
    """Called by all ranks when at least one has an `error`: each raises its own, or the first other one's."""
    text = first_text(str(error) if error else "")
    raise error or UserError(text)


def first_text(own: str) -> str:
    """The text of the first rank that has one, on all ranks; all call it, and one at least has a text."""
    if ranks() == 1:
        return own
    data = torch.frombuffer(bytearray(own.encode() or b" "), dtype=torch.uint8).to(device())
    lengths = torch.zeros(ranks(), dtype=torch.int64, device=device())
    lengths[rank()] = len(data) if own else 0
    dist.all_reduce(lengths)
    source = int((lengths > 0).int().argmax())
    if source != rank():
        data = torch.zeros(int(lengths[source]), dtype=torch.uint8, device=device())
    dist.broadcast(data, src=source)
    return bytes(data.cpu().tolist()).decode()
