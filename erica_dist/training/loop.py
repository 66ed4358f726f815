"""The training loop, read from top to bottom, for ERICA and ELECTRA alike.

What differs between the two jobs is one `Task`: its stream, its step and its held-out scores. A step is: wait for data,
forward and backward of the micro-batches, add up over ranks, optimizer step, journal. Held-out scores are taken before
the first step, every `train.evaluate_every`, and after the last. Checkpoints are written every
`train.checkpoint_every`, at the end, and when a stop signal came.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from erica_dist.config import ElectraJob, EricaJob
from erica_dist.errors import UserError
from erica_dist.objectives.gather import ranks
from erica_dist.tracking.journal import Journal
from erica_dist.training import checkpoint
from erica_dist.training.agreement import first_text, raise_together
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

    def is_due(at: int) -> bool:
        return bool(train.evaluate_every) and at % train.evaluate_every == 0 and at < train.steps

    if step == 0:
        score(0)
    elif is_due(step):  # it was saved and then stopped, or killed, before it was scored
        unscored = journal is not None and journal.scored < step
        if sum_over_ranks(torch.tensor([float(unscored)], dtype=torch.float64, device=device())) > 0:
            score(step)
    began = clock = time.perf_counter()
    batches = iter(task.stream)
    while (found := next_on_all_ranks(batches, bool(stop))) is not None:
        batch, all_ranks = found
        step = batch.step + 1
        scores = task.train_step(engine, batch.micro_batches, job, step)
        _refuse_non_finite(scores, step, run_dir, saved)
        rate = learning_rate(step, train)
        norm, skipped = optimizer_step(engine, rate)
        if not skipped:
            _refuse_non_finite({"loss gradient's norm": norm}, step, run_dir, saved)
        now = time.perf_counter()
        seconds, clock = now - clock, now
        if journal:
            journal.write(
                {
                    "step": step,
                    **scores,
                    "grad_norm": norm,
                    "lr": rate,
                    "documents": all_ranks.documents,
                    "documents_left_out": all_ranks.left_out,
                    "tokens": all_ranks.tokens,
                    "tokens_per_second": all_ranks.tokens / seconds,
                    "documents_per_second": all_ranks.documents / seconds,
                    "data_wait_share": min(all_ranks.waited / ranks() / seconds, 1.0),
                    "seconds": seconds,
                    "epoch": batch.epoch,
                }
            )
            if skipped:
                journal.event("skipped_step", step=step, reason="fp16 overflow")
            if all_ranks.left_out:
                journal.event("damaged", step=step, documents=all_ranks.left_out, first=all_ranks.text)
                say(f"warning: {all_ranks.left_out} damaged document(s) left out of step {step}: {all_ranks.text}")
            if step == task.start_step + 1 and (idle := _idle_terms(scores)):
                say(f"warning: in step {step} {idle}: does the corpus hold relations, and is the batch large enough?")
            if step % train.log_every == 0 or step in (task.start_step + 1, train.steps):
                left = (train.steps - step) * (now - began) / (step - task.start_step)
                say(_line(step, train.steps, scores, norm, rate, all_ranks.tokens / seconds, left))
            silent = silent + 1 if scores.get("discriminator_recall") == 0 else 0
            if silent == SILENT_STEPS:
                say(f"warning: the discriminator has found no replaced token for {SILENT_STEPS} steps")
                journal.event("discriminator_silent", step=step, steps=SILENT_STEPS)
        if all_ranks.stopping or (train.checkpoint_every and step % train.checkpoint_every == 0 and step < train.steps):
            checkpoint.save(engine, run_dir, step, task.checkpoint_state, train.keep_checkpoints)
            saved = step
        if all_ranks.stopping:
            if journal:
                journal.event("stopped", step=step, reason=stop.reason or "another rank was told to")
            return step
        if is_due(step):
            score(step)
        clock = time.perf_counter()
    if step > task.start_step:
        score(step)
        checkpoint.save(engine, run_dir, step, task.checkpoint_state, train.keep_checkpoints)
    return step


@dataclass
class AllRanks:
    """What the ranks have to agree on, or to add up, before a step begins."""

    stopping: bool  # one of them heard a stop signal
    documents: int
    tokens: int
    left_out: int  # damaged documents
    waited: float  # seconds for data, the sum over ranks
    text: str  # where a document was left out: the first one's place and fault


def next_on_all_ranks(batches: Iterator[Any], stopping: bool) -> tuple[Any, AllRanks] | None:
    """The next batch of this rank, once every rank has its own; None at the end, which all reach together.

    Where a rank cannot read its batch, all raise: no rank waits in a collective for one that has left.

    Raises:
        UserError: a damaged or unreachable shard, on this rank or another one.
        RuntimeError: a loader worker of this rank died or failed.
    """
    clock = time.perf_counter()
    batch, error = None, None
    try:
        batch = next(batches, None)
    except (UserError, RuntimeError) as caught:
        error = caught
    waited = time.perf_counter() - clock
    numbers = [batch.documents, batch.tokens, len(batch.faults)] if batch else [0, 0, 0]
    own = torch.tensor([float(stopping), bool(error), *numbers, waited], dtype=torch.float64, device=device())
    stopped, failed, documents, tokens, left_out, waited = sum_over_ranks(own).tolist()
    if failed:
        raise_together(error)
    if batch is None:
        return None
    text = first_text(batch.faults[0] if batch.faults else "") if left_out else ""
    return batch, AllRanks(stopped > 0, int(documents), int(tokens), int(left_out), waited, text)


def _refuse_non_finite(scores: Scores, step: int, run_dir: Path, saved: int) -> None:
    """Losses and gradient norm are the same on all ranks, so all leave together, before anything of it is saved."""
    broken = [name for name, value in scores.items() if name.startswith("loss") and not math.isfinite(value)]
    if broken:
        remedy = f"the last checkpoint is step {saved}" if saved else "no checkpoint was written yet"
        raise UserError(
            f"{', '.join(broken)} is not finite at step {step} of {run_dir} ({remedy}): "
            "lower train.lr, lengthen train.warmup_steps, or use train.precision=fp32"
        )


def _idle_terms(scores: Scores) -> str:
    """Which of ERICA's terms found nothing in a step to learn from."""
    idle = ["relation discrimination has no anchor"] if scores.get("rd_anchors") == 0 else []
    idle += ["entity discrimination has no query"] if "loss_ed" in scores and "ed_accuracy" not in scores else []
    return " and ".join(idle)


def _line(step: int, steps: int, scores: Scores, norm: float, rate: float, speed: float, left: float) -> str:
    losses = "  ".join(f"{name.removeprefix('loss_')} {value:.4f}" for name, value in scores.items() if "loss" in name)
    minutes, seconds = divmod(int(left), 60)
    pace = f"{speed:,.0f} tokens/s  {minutes}:{seconds:02d} left"
    return f"step {step}/{steps}  {losses}  grad {norm:.3f}  lr {rate:.2e}  {pace}"
