"""One optimizer step of ELECTRA, and its held-out scores.

Generator loss: mean over the global batch's masked positions. Discriminator loss: mean over its real tokens.
total = generator_weight * generator + discriminator_weight * discriminator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from erica_dist.config import ElectraJob
from erica_dist.objectives.electra import detection_scores
from erica_dist.objectives.gather import rank
from erica_dist.stream.micro_batches import ElectraMicroBatch
from erica_dist.training.engine import backward, device, seed_dropout, sum_over_ranks


def train_step(engine: Any, batches: list[ElectraMicroBatch], job: ElectraJob, step: int) -> dict[str, float]:
    """Forward and backward of this rank's micro-batches; the optimizer step is the caller's. Returns global metrics."""
    settings = job.electra
    batches = [batch.to(device()) for batch in batches]
    masked, tokens = _sizes(batches).tolist()
    first_cell = rank() * len(batches)
    sums = []
    for micro, batch in enumerate(batches):
        seed_dropout(job.train.seed, step, first_cell + micro)
        generator_sum, discriminator_sum, counts = engine(batch)
        loss = generator_sum * (settings.generator_weight / max(masked, 1))
        if settings.electra_objective:
            loss = loss + discriminator_sum * (settings.discriminator_weight / max(tokens, 1))
        backward(engine, loss, last=micro == len(batches) - 1)
        sums.append(_sums(generator_sum, discriminator_sum, counts))
    return _scores(sum_over_ranks(torch.stack(sums).sum(0)), masked, tokens, job)


@torch.no_grad()
def evaluate(
    engine: Any, batches: list[ElectraMicroBatch | None], job: ElectraJob, filler: ElectraMicroBatch | None
) -> dict[str, float]:
    """The same scores on held-out sequences, without dropout, the same on every rank.

    All ranks pass equally many micro-batches; where one has None it runs the `filler` and leaves it out of the sums,
    since ZeRO 3 gathers weights by collectives that every rank must join.
    """
    engine.eval()
    masked, tokens = _sizes([batch for batch in batches if batch is not None]).tolist()
    sums = []
    for batch in batches:
        run = batch or filler
        assert run is not None
        found = _sums(*engine.module(run.to(device())))
        sums.append(found if batch is not None else torch.zeros_like(found))
    engine.train()
    return _scores(sum_over_ranks(torch.stack(sums).sum(0)), masked, tokens, job, heldout=True)


def _sizes(batches: list[ElectraMicroBatch]) -> Tensor:
    """Masked positions and real tokens of the whole global batch."""
    own = [[len(batch.masked_positions_K), batch.tokens] for batch in batches] or [[0, 0]]
    return sum_over_ranks(torch.tensor(own, dtype=torch.float64, device=device()).sum(0)).cpu()


def _sums(generator_sum: Tensor, discriminator_sum: Tensor, counts: Tensor) -> Tensor:
    return torch.cat([torch.stack([generator_sum, discriminator_sum]).detach().double(), counts])


def _scores(sums: Tensor, masked: float, tokens: float, job: ElectraJob, heldout: bool = False) -> dict[str, float]:
    sums = sums.cpu()
    generator, discriminator, right, sampled_right = sums[:4].tolist()
    settings = job.electra
    scores = {"generator_loss" if heldout else "loss_generator": generator / max(masked, 1)}
    scores["generator_accuracy"] = right / max(masked, 1)
    total = settings.generator_weight * generator / max(masked, 1)
    if settings.electra_objective:
        found = detection_scores(sums[4:])
        loss = discriminator / max(tokens, 1)
        total += settings.discriminator_weight * loss
        scores["sampled_accuracy"] = sampled_right / max(masked, 1)
        scores["replaced_share"] = found["replaced_share"]
        if heldout:
            names = {"discriminator_loss": loss, "auc": found["auc"]}
            names |= {f"replaced_{name}": found[name] for name in ("precision", "recall")}
            scores |= names | {"discriminator_accuracy": found["accuracy"]}
        else:
            scores["loss_discriminator"] = loss
            scores |= {f"discriminator_{name}": found[name] for name in ("accuracy", "precision", "recall", "auc")}
    return scores if heldout else {"loss": total, **scores}
