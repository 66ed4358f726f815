"""The training loop, read from top to bottom, for ERICA and ELECTRA alike.

What differs between the two jobs is one `Task`: its stream, its step and its held-out scores. A step is: wait for data,
forward and backward of the micro-batches, add up over ranks, optimizer step, journal. Held-out scores are taken before
the first step, every `train.evaluate_every`, and after the last. Checkpoints are written every
`train.checkpoint_every`, at the end, and when a stop signal came.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from erica_dist.config import ElectraJob, EricaJob
from erica_dist.errors import UserError
from erica_dist.objectives.gather import ranks
from erica_dist.tracking.journal import Journal
from erica_dist.training import checkpoint
from erica_dist.training.engine import device, optimizer_step, sum_over_ranks
from erica_dist.training.preemption import StopFlag
from erica_dist.training.schedule import learning_rate

Scores = dict[str, float]
SILENT_STEPS = 200  # steps with a discriminator that finds nothing before the log says so


@dataclass
class Task:
    """What the loop needs to know of a job."""

    job: EricaJob | ElectraJob
    engine: Any
    stream: Iterable[Any]  # from the step after the restored one; gives StepBatch
    train_step: Callable[..., Scores]
    evaluate: Callable[[], Scores] | None
    checkpoint_state: dict[str, Any]
    start_step: int  # optimizer steps already done


def run(task: Task, journal: Journal | None, stop: StopFlag, say: Callable[[str], None]) -> int:
    """Train to `train.steps`. Returns the last finished step; it is smaller when a stop signal came.

    `journal` is None on all ranks but the first.
    """
    job, engine, train = task.job, task.engine, task.job.train
    run_dir = Path(job.run.dir)
    step, saved = task.start_step, task.start_step
    silent = 0

    def score(at: int) -> None:
        if task.evaluate is None:
            return
        scores = task.evaluate()
        if journal:
            journal.write_evaluation({"step": at, **scores})
            say(f"held-out scores at step {at}: " + "  ".join(f"{k} {v:.4g}" for k, v in scores.items()))

    if step == 0:
        score(0)
    began = clock = time.perf_counter()
    for batch in task.stream:
        waited = time.perf_counter() - clock
        step = batch.step + 1
        scores = task.train_step(engine, batch.micro_batches, job, step)
        stopping, documents, tokens, waited = _add_up(bool(stop), batch.documents, batch.tokens, waited)
        _refuse_non_finite(scores, step, run_dir, saved)
        rate = learning_rate(step, train)
        norm, skipped = optimizer_step(engine, rate)
        now = time.perf_counter()
        seconds, clock = now - clock, now
        if journal:
            journal.write(
                {
                    "step": step,
                    **scores,
                    "grad_norm": norm,
                    "lr": rate,
                    "documents": int(documents),
                    "tokens": int(tokens),
                    "tokens_per_second": tokens / seconds,
                    "documents_per_second": documents / seconds,
                    "data_wait_share": min(waited / ranks() / seconds, 1.0),
                    "seconds": seconds,
                    "epoch": batch.epoch,
                }
            )
            if skipped:
                journal.event("skipped_step", step=step, reason="fp16 overflow")
            if step % train.log_every == 0 or step in (task.start_step + 1, train.steps):
                left = (train.steps - step) * (now - began) / (step - task.start_step)
                say(_line(step, train.steps, scores, norm, rate, tokens / seconds, left))
            silent = silent + 1 if scores.get("discriminator_recall") == 0 else 0
            if silent == SILENT_STEPS:
                say(f"warning: the discriminator has found no replaced token for {SILENT_STEPS} steps")
                journal.event("discriminator_silent", step=step, steps=SILENT_STEPS)
        if stopping or (train.checkpoint_every and step % train.checkpoint_every == 0 and step < train.steps):
            checkpoint.save(engine, run_dir, step, task.checkpoint_state, train.keep_checkpoints)
            saved = step
        if stopping:
            if journal:
                journal.event("stopped", step=step, reason=stop.reason or "another rank was told to")
            return step
        if train.evaluate_every and step % train.evaluate_every == 0 and step < train.steps:
            score(step)
        clock = time.perf_counter()
    if step > task.start_step:
        score(step)
        checkpoint.save(engine, run_dir, step, task.checkpoint_state, train.keep_checkpoints)
    return step


def _add_up(stopping: bool, documents: int, tokens: int, waited: float) -> tuple[bool, float, float, float]:
    """Over ranks: did any hear a stop signal; documents, tokens, seconds waited for data."""
    own = torch.tensor([float(stopping), documents, tokens, waited], dtype=torch.float64, device=device())
    stopped, documents_all, tokens_all, waited_all = sum_over_ranks(own).tolist()
    return stopped > 0, documents_all, tokens_all, waited_all


def _refuse_non_finite(scores: Scores, step: int, run_dir: Path, saved: int) -> None:
    """The sums are the same on all ranks, so all leave together, before the weights are touched."""
    broken = [name for name, value in scores.items() if name.startswith("loss") and not math.isfinite(value)]
    if broken:
        remedy = f"the last checkpoint is step {saved}" if saved else "no checkpoint was written yet"
        raise UserError(
            f"{', '.join(broken)} is not finite at step {step} of {run_dir} ({remedy}): "
            "lower train.lr, lengthen train.warmup_steps, or use train.precision=fp32"
        )


def _line(step: int, steps: int, scores: Scores, norm: float, rate: float, speed: float, left: float) -> str:
    losses = "  ".join(f"{name.removeprefix('loss_')} {value:.4f}" for name, value in scores.items() if "loss" in name)
    minutes, seconds = divmod(int(left), 60)
    pace = f"{speed:,.0f} tokens/s  {minutes}:{seconds:02d} left"
    return f"step {step}/{steps}  {losses}  grad {norm:.3f}  lr {rate:.2e}  {pace}"
