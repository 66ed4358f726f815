"""Sentence-level relation classification, the task that ERICA was made for (Qin et al. 2021, section 4.2).

Head and tail are the means of their word pieces' last hidden states, the pair is both side by side, and one linear
layer gives the logits: the representation is that of the pre-training, only the linear layer is new. `fine_tune` trains
one seed (cross entropy, AdamW, linear schedule), scores the dev examples now and then, and leaves the weights with the
best dev score in the module; `predict` labels sentences with them.

Legend: T packed tokens, B sentences, D width, L labels.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from erica_dist.config import ModelConfig, TrainConfig
from erica_dist.errors import UserError
from erica_dist.evaluation.sentences import Sentence, SentenceBatch, pack
from erica_dist.models.encoder import build_encoder, hidden_states
from erica_dist.models.states import encoder_of
from erica_dist.objectives.gather import ranks
from erica_dist.objectives.pooling import segment_mean
from erica_dist.stream.order import global_batch
from erica_dist.training.engine import backward, device, optimizer_step, seed_dropout, sum_over_ranks
from erica_dist.training.schedule import learning_rate

Scores = dict[str, float]


class RelationClassifier(nn.Module):
    """Encoder without its pre-training head, and one linear layer over [head ; tail]."""

    def __init__(self, encoder: PreTrainedModel, labels: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(2 * encoder.config.hidden_size, labels)

    def forward(self, batch: SentenceBatch) -> Tensor:
        """Logits [B, L] in float32."""
        states_TD = hidden_states(self.encoder, batch.packed)
        mentions = 2 * len(batch.labels_B)
        # Means in float32: sums of many bfloat16 lose what tells mentions apart.
        mention_MD = segment_mean(states_TD[batch.piece_positions_N].float(), batch.piece_mention_N, mentions)
        pair_BD = mention_MD.reshape(len(batch.labels_B), -1)
        return self.classifier(pair_BD.to(self.classifier.weight.dtype)).float()


def build_classifier(
    folder: Path, dropout: float, max_length: int, tokenizer: dict[str, Any], labels: int, seed: int
) -> RelationClassifier:
    """The encoder of the Hugging Face folder `folder` with a new linear layer drawn from `seed`.

    Args:
        tokenizer: `shards.tokenizers.tokenizer_record` of the folder's tokenizer.

    Raises:
        UserError: an unsupported family, no weights, or too few positions for `max_length`.
    """
    settings = ModelConfig(init=str(folder), dropout=dropout, max_length=max_length)
    verbosity = transformers.logging.get_verbosity()
    # Its report on loading warns of the pre-training heads, which are not used here.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        encoder = encoder_of(build_encoder(settings, tokenizer, seed))
    except UserError as error:
        # of `ModelConfig` here, not of the job that the user wrote
        said = str(error).replace("model.init=", "finetune.model=")
        for name in ("dropout", "max_length"):
            said = said.replace(f"model.{name}=", f"finetune.{name}=")
        raise UserError(said) from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = RelationClassifier(encoder, labels)
        nn.init.normal_(module.classifier.weight, std=0.02)
        nn.init.zeros_(module.classifier.bias)
    return module.train()


@dataclass
class Choice:
    """How the best of a training's models is chosen."""

    score_dev: Callable[[], Scores]  # of the dev examples, with the present weights; the same on all ranks
    by: str  # the score that decides; the earliest of equal ones wins
    scorings: int  # evenly over the steps, the last step among them


@dataclass
class Outcome:
    """What became of one training."""

    steps: int = 0  # optimizer steps done; fewer than asked for when a stop signal came
    best_step: int = 0  # whose weights the module now has
    dev: Scores = field(default_factory=dict)  # at that step; empty without dev examples


def fine_tune(
    engine: Any,
    sentences: Sequence[Sentence],
    train: TrainConfig,
    accumulation: int,
    choice: Choice | None,
    report: Callable[[int, Scores, Scores], None],
    stopping: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train `train.steps` steps on `sentences`; every rank calls it and gets the same.

    Args:
        engine: `training.engine.build_engine` around a `RelationClassifier`, ZeRO stage 0.
        choice: how the model is chosen; None: the last step's.
        report: called on each step with (step, metrics of the step, dev scores or nothing).
        stopping: whether this rank heard a stop signal; one rank's is enough to end all.

    Raises:
        UserError: the loss is no number.
    """
    lengths = np.array([len(sentence.pieces) for sentence in sentences])
    due = {math.ceil(train.steps * i / choice.scorings) for i in range(1, choice.scorings + 1)} if choice else set()
    outcome, best = Outcome(), None
    for step in range(1, train.steps + 1):
        began = time.perf_counter()
        epochs, numbers = global_batch(train.seed, step - 1, train.global_batch, len(sentences))
        loss, right, stopped = _forward_and_backward(engine, sentences, numbers, train, accumulation, step, stopping())
        if not math.isfinite(loss):
            raise UserError(f"the loss is {loss} at step {step}: lower train.lr, or use train.precision=fp32")
        rate = learning_rate(step, train)
        norm, _ = optimizer_step(engine, rate)
        seconds, tokens = time.perf_counter() - began, int(lengths[numbers].sum())
        scores = choice.score_dev() if choice and step in due else {}
        if choice and scores and (best is None or scores[choice.by] > outcome.dev[choice.by]):
            outcome.best_step, outcome.dev = step, scores
            best = {name: value.detach().cpu().clone() for name, value in engine.module.state_dict().items()}
        metrics = {
            "loss": loss,
            "accuracy": right,
            "grad_norm": norm,
            "lr": rate,
            "documents": len(numbers),
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "seconds": seconds,
            "epoch": int(epochs[0]),
        }
        report(step, metrics, scores)
        outcome.steps = step
        if stopped and step < train.steps:
            return outcome
    if best is None:
        outcome.best_step = outcome.steps
    else:
        engine.module.load_state_dict(best)
    return outcome


def _forward_and_backward(
    engine: Any,
    sentences: Sequence[Sentence],
    numbers: np.ndarray,
    train: TrainConfig,
    accumulation: int,
    step: int,
    stopping: bool,
) -> tuple[float, float, bool]:
    """Gradient of one global batch -> (mean loss, share right, did any rank hear a stop signal)."""
    engine.module.train()
    rank, micro_batches = _rank(), numbers.reshape(accumulation, ranks(), train.micro_batch)
    sums = torch.zeros(3, dtype=torch.float64)
    sums[2] = float(stopping)
    for micro in range(accumulation):
        # A micro-batch's dropout belongs to its place in the global batch, so it is the same on any number of ranks.
        seed_dropout(train.seed, step, micro * ranks() + rank)
        batch = pack([sentences[i] for i in micro_batches[micro, rank]]).to(device())
        logits_BL = engine(batch)
        loss = functional.cross_entropy(logits_BL, batch.labels_B, reduction="sum")
        backward(engine, loss / len(numbers), last=micro == accumulation - 1)
        right = (logits_BL.argmax(1) == batch.labels_B).sum()
        sums[:2] += torch.stack([loss.detach(), right]).double().cpu()
    loss_sum, right_sum, stopped = sum_over_ranks(sums.to(device())).tolist()
    return loss_sum / len(numbers), right_sum / len(numbers), stopped > 0


def predict(engine: Any, sentences: Sequence[Sentence], micro_batch: int) -> tuple[np.ndarray, np.ndarray]:
    """(label numbers int64, their probabilities float64) of `sentences`, in order, the same on all ranks.

    Sentences are dealt to the ranks in chunks of `micro_batch`.
    """
    module: RelationClassifier = engine.module
    module.eval()
    found = torch.zeros(2, len(sentences), dtype=torch.float64)
    with torch.no_grad():
        for start in range(_rank() * micro_batch, len(sentences), ranks() * micro_batch):
            stop = min(start + micro_batch, len(sentences))
            batch = pack(sentences[start:stop]).to(device())
            probability, label = module(batch).softmax(1).max(1)
            found[:, start:stop] = torch.stack([label.double(), probability.double()]).cpu()
    labels, probabilities = sum_over_ranks(found.to(device())).cpu().numpy()
    return labels.astype(np.int64), probabilities


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
