"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from erica_dist.config import TrainConfig


def learning_rate(step: int, train: TrainConfig) -> float:
    """Rate of optimizer step `step` (1 is the first): linear warm-up, then linear or cosine down to 0, or constant.

    The last warm-up step and the step after it have the full rate; the last step of the run has the smallest above 0.
    """
    if step <= train.warmup_steps:
        return train.lr * step / train.warmup_steps
    if train.schedule == "constant":
        return train.lr
    left = (train.steps - step + 1) / max(train.steps - train.warmup_steps, 1)
    left = min(max(left, 0.0), 1.0)
    return train.lr * (left if train.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left))
