"""What the numbers of a training job may be: one table, looked at before anything else is done.

And which numbers of a model have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from erica_dist import settings
from erica_dist.config import ModelConfig
from erica_dist.errors import UserError

Rule = tuple[str, Callable[[float], bool]]
POSITIVE: Rule = ("above 0", lambda x: x > 0)
NOT_NEGATIVE: Rule = ("at least 0", lambda x: x >= 0)
AT_LEAST_ONE: Rule = ("at least 1", lambda x: x >= 1)
SHARE: Rule = ("at least 0 and below 1", lambda x: 0 <= x < 1)
SEED: Rule = ("at least 0 and below 4294967296", lambda x: 0 <= x < 1 << 32)

LIMITS: dict[str, Rule] = {
    "model.layers": NOT_NEGATIVE,
    "model.hidden_size": NOT_NEGATIVE,
    "model.heads": NOT_NEGATIVE,
    "model.feed_forward": NOT_NEGATIVE,
    "model.embedding_size": NOT_NEGATIVE,
    "model.dropout": SHARE,
    "train.lr": NOT_NEGATIVE,
    "train.warmup_steps": NOT_NEGATIVE,
    "train.weight_decay": NOT_NEGATIVE,
    "train.beta1": SHARE,
    "train.beta2": SHARE,
    "train.epsilon": POSITIVE,
    "train.clip_norm": NOT_NEGATIVE,
    "train.seed": SEED,
    "train.checkpoint_every": NOT_NEGATIVE,
    "train.keep_checkpoints": NOT_NEGATIVE,
    "train.evaluate_every": NOT_NEGATIVE,
    "train.log_every": AT_LEAST_ONE,
    "erica.temperature": POSITIVE,
    "erica.no_relation_pairs": NOT_NEGATIVE,
    "erica.weights.rd": NOT_NEGATIVE,
    "erica.weights.ed": NOT_NEGATIVE,
    "erica.weights.mlm": NOT_NEGATIVE,
    "electra.temperature": POSITIVE,
    "electra.generator_weight": NOT_NEGATIVE,
    "electra.discriminator_weight": NOT_NEGATIVE,
}


def check_numbers(job: Any) -> None:
    """Refuse a number of an ERICA or ELECTRA job that makes no sense; none may be infinite or not a number.

    Raises:
        UserError: names the setting and what it may be.
    """
    for key, value in settings.flatten(job).items():
        text, holds = LIMITS.get(key, ("a finite number", lambda _: True))
        if isinstance(value, (int, float)) and not (math.isfinite(value) and holds(value)):
            raise UserError(f"{key}={value} must be {text}")


def check_encoder_size(model: ModelConfig) -> None:
    """Refuse what an ERICA job says of its encoder's size and nobody would read. A value that is the default is taken
    for not given: the resolved config.yaml of a run names all.

    Raises:
        UserError: a size beside the folder that decides it, or a number that encoders do not have.
    """
    numbers = ("layers", "hidden_size", "heads", "feed_forward", "embedding_size")
    unread = [f"model.{name}={getattr(model, name)}" for name in numbers if getattr(model, name)]
    if model.init:
        if model.size != ModelConfig.size:
            unread.insert(0, f"model.size={model.size}")
        if unread:
            raise UserError(
                f"{', '.join(unread)} would have no effect: model.init={model.init} decides the size; leave out one or "
                "the other"
            )
    elif model.embedding_size:
        raise UserError(f"{unread[-1]} would have no effect: only ELECTRA's models have it; leave it out")
