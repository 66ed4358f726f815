"""What the ranks of multi-process tests run (see tests/ranks.py)."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
import torch.distributed as dist


def gather_gradients(rows: list[list[list[float]]]) -> dict[str, Any]:
    """Loss of rank r: (r + 1) * (all rows)^3, summed. Gives the gathered rows and the own rows' gradient."""
    from erica_dist.objectives.gather import gather_rows, gather_tables, row_counts

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    own = torch.tensor(rows[rank], dtype=torch.float64).reshape(-1, 2).requires_grad_()
    everything = gather_rows(own, row_counts(len(own), own.device))
    ((rank + 1) * everything**3).sum().backward()
    tables = gather_tables(torch.full((len(own), rank + 1), rank))
    dist.destroy_process_group()
    return {
        "rows": everything.tolist(),
        "gradient": own.grad.tolist(),
        "tables": [table.tolist() for table in tables],
    }


def contrastive_share(count: int, width: int) -> dict[str, Any]:
    """What the benchmark measures as `gather`: this rank's share of the loss, its states and their gradient."""
    from benchmarks import contrastive

    dist.init_process_group("gloo")
    states, labels = contrastive.pairs_of(count, width, 0, dist.get_rank(), dist.get_world_size())
    loss = contrastive.gather(states, labels)
    dist.destroy_process_group()
    return {"loss": loss.item(), "states": states.tolist(), "gradient": states.grad.tolist()}


def train(kind: str, out: str, groups: list[dict[str, Any]]) -> list[list[list[dict[str, float]]]]:
    """Train the `combinations` (lists of overrides) of each group on its `folder` for its `steps`.

    A group has one engine. Where several combinations share it, its learning rate is 0, so that each begins with the
    same weights. Rank 0 writes the gradients of the first step and the weights after the last one to
    OUT/<group>-<number>.safetensors. Gives the metrics of each step of each combination of each group.
    """
    from safetensors.torch import save_file

    from erica_dist import config, settings
    from erica_dist.config import ElectraJob, EricaJob
    from erica_dist.shards.reader import ShardFolder
    from erica_dist.stream.loader import ElectraStream, EricaStream
    from erica_dist.training import electra, engine, erica
    from erica_dist.training.checkpoint import whole_weights
    from erica_dist.training.job import _build_module

    engine.start_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rules, Stream, Job = (erica, EricaStream, EricaJob) if kind == "erica" else (electra, ElectraStream, ElectraJob)
    metrics = []
    for place, group in enumerate(groups):
        shards = ShardFolder.open(group["folder"], split="train")
        steps = f"train.steps={group['steps']}"
        jobs: list[Any] = [settings.load(Job, None, [*overrides, steps]) for overrides in group["combinations"]]
        module, _ = _build_module(kind, jobs[0], shards)
        wrapped = engine.build_engine(module, jobs[0].train, config.accumulation(jobs[0].train, ranks))
        metrics.append([])
        for number, job in enumerate(jobs):
            rows = []
            tensors: dict[str, torch.Tensor] = {}
            with Stream(shards, job, rank, ranks, 0) as stream:
                for step, batch in enumerate(stream, start=1):
                    scores = rules.train_step(wrapped, batch.micro_batches, job, step)
                    if step == 1:
                        tensors |= _gradients(wrapped)
                    norm, _ = engine.optimizer_step(wrapped, job.train.lr if len(jobs) == 1 else 0.0)
                    rows.append({**scores, "grad_norm": norm})
            weights, _ = whole_weights(wrapped)
            tensors |= {f"weight.{name}": weight for name, weight in weights.items()}
            if rank == 0:
                save_file(tensors, os.path.join(out, f"{place}-{number}.safetensors"))
            metrics[-1].append(rows)
        wrapped.destroy()
    dist.destroy_process_group()
    return metrics


def failing_trainings(shards: str, out: str, uri: str) -> dict[str, str]:
    """Trainings that come to an end before their first step, each in a folder of its fault's name. Gives how."""
    from unittest.mock import patch

    from erica_dist.training.job import main

    nan = {"loss": float("nan")}
    faults = {
        "engine": [patch("erica_dist.training.engine.build_engine", side_effect=RuntimeError("no memory"))],
        "terminal": [patch("sys.stdout", open("/dev/full", "w"))],  # noqa: SIM115
        "held out": [patch("erica_dist.training.electra.evaluate", side_effect=RuntimeError("no memory"))],
        "data": [patch("erica_dist.training.loop.next_on_all_ranks", side_effect=RuntimeError("a loader died"))],
        "loss": [patch("erica_dist.training.electra.train_step", return_value=nan)],
        "disk": [
            patch("erica_dist.training.electra.train_step", return_value=nan),
            patch("erica_dist.tracking.journal.Journal.close", side_effect=OSError("no space left")),
        ],
    }
    words = ["model.size=tiny", "model.max_length=32", "train.global_batch=4", "train.micro_batch=4", "train.steps=2"]
    words += [f"data.shards={shards}", "data.workers=0", "data.validation_documents=4", f"tracking.uri={uri}"]
    ends = {}
    for name, patches in faults.items():
        with contextlib.ExitStack() as broken:
            # DeepSpeed does not find its groups again in a second process group
            for each in (*patches, patch("torch.distributed.destroy_process_group")):
                broken.enter_context(each)
            try:
                ends[name] = f"status {main('electra', [*words, f'run.dir={out}/{name}', 'tracking.experiment=test'])}"
            except (OSError, RuntimeError) as error:
                ends[name] = type(error).__name__
    return ends


def _gradients(engine: Any) -> dict[str, torch.Tensor]:
    """The whole reduced gradient of each parameter, whatever the ZeRO stage; all ranks call it."""
    from deepspeed.utils import safe_get_full_grad

    found = {}
    for name, parameter in engine.module.named_parameters():
        full = parameter.grad if parameter.grad is not None else safe_get_full_grad(parameter)
        found[f"gradient.{name}"] = full.detach().float().cpu().clone().contiguous()
    return found


def cross(
    folder: str,
    out: str,
    begin: list[list[str]],
    go_on: list[tuple[int, list[str]]],
    kind: str = "erica",
    steps: int = 4,
) -> list[dict[str, Any]]:
    """Runs that begin on these ranks, and runs that others began and these go on with.

    begin: overrides of runs of `steps` steps that leave a checkpoint of the second one in OUT/<number>. go_on: (number
    of such a run, overrides here); they begin from copies of that checkpoint. Gives losses, gradient norms and, on rank
    0, the path of the last weights.
    """
    from safetensors.torch import save_file

    from erica_dist import config, settings
    from erica_dist.config import ElectraJob, EricaJob
    from erica_dist.shards.reader import ShardFolder
    from erica_dist.stream.loader import ElectraStream, EricaStream
    from erica_dist.training import checkpoint, electra, engine, erica
    from erica_dist.training.job import _build_module

    engine.start_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shards = ShardFolder.open(folder, split="train")
    rules, Stream, Job = (erica, EricaStream, EricaJob) if kind == "erica" else (electra, ElectraStream, ElectraJob)
    results = []
    runs = [(number, False, words) for number, words in enumerate(begin)]
    runs += [(number, True, words) for number, words in go_on]
    for place, (number, resumed, words) in enumerate(runs):
        job: Any = settings.load(Job, None, [*words, f"train.steps={steps}"])
        module = _build_module(kind, job, shards)[0]
        wrapped = engine.build_engine(module, job.train, config.accumulation(job.train, ranks))
        run_dir = os.path.join(out, str(number))
        first = checkpoint.restore(wrapped, checkpoint.newest_checkpoint(run_dir))["step"] if resumed else 0
        rows = []
        with Stream(shards, job, rank, ranks, first) as stream:
            for batch in stream:
                loss = rules.train_step(wrapped, batch.micro_batches, job, batch.step + 1)["loss"]
                norm, _ = engine.optimizer_step(wrapped, job.train.lr)
                rows.append([loss, norm])
                if not resumed and batch.step + 1 == 2:
                    checkpoint.save(wrapped, run_dir, 2, {"job": kind}, keep=1)
        weights, _ = checkpoint.whole_weights(wrapped)
        path = os.path.join(out, f"weights-{ranks}-{place}.safetensors")
        if rank == 0:
            save_file(weights, path)
        results.append({"rows": rows, "weights": path, "counted": wrapped.global_steps})
        wrapped.destroy()
    dist.destroy_process_group()
    return results


def resume(folder: str, out: str, combinations: list[list[str]], kind: str = "erica") -> list[dict[str, Any]]:
    """For each combination: four steps in one go, then two steps, a checkpoint, a new engine, and two more.

    Gives the losses of both ways and how far the weights at the end are apart (0: bit-equal)."""
    from erica_dist import config, settings
    from erica_dist.config import ElectraJob, EricaJob
    from erica_dist.shards.reader import ShardFolder
    from erica_dist.stream.loader import ElectraStream, EricaStream
    from erica_dist.training import checkpoint, electra, engine, erica
    from erica_dist.training.job import _build_module

    engine.start_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shards = ShardFolder.open(folder, split="train")
    rules, Stream, Job = (erica, EricaStream, EricaJob) if kind == "erica" else (electra, ElectraStream, ElectraJob)
    results = []
    for number, overrides in enumerate(combinations):
        job: Any = settings.load(Job, None, [*overrides, "train.steps=4"])

        def start(job: Any = job) -> Any:
            return engine.build_engine(
                _build_module(kind, job, shards)[0], job.train, config.accumulation(job.train, ranks)
            )

        def go_on(wrapped: Any, first: int, last: int, job: Any = job) -> list[float]:
            losses = []
            for batch in Stream(shards, job, rank, ranks, first):
                if batch.step >= last:
                    break
                scores = rules.train_step(wrapped, batch.micro_batches, job, batch.step + 1)
                engine.optimizer_step(wrapped, job.train.lr)
                losses.append(scores["loss"])
            return losses

        def end(wrapped: Any) -> dict[str, torch.Tensor]:
            weights, _ = checkpoint.whole_weights(wrapped)
            wrapped.destroy()
            return weights

        whole = start()
        straight = go_on(whole, 0, 4)
        expected = end(whole)
        run_dir = os.path.join(out, str(number))
        broken = start()
        resumed = go_on(broken, 0, 2)
        saved = checkpoint.save(broken, run_dir, 2, {"job": kind}, keep=1)
        broken.destroy()
        again = start()
        state = checkpoint.restore(again, checkpoint.agree_on_newest(run_dir) or saved)
        resumed += go_on(again, state["step"], 4)
        found = end(again)
        apart = max((float((found[name] - expected[name]).abs().max()) for name in expected), default=0.0)
        results.append({"straight": straight, "resumed": resumed, "apart": apart, "tied": state["tied"]})
    dist.destroy_process_group()
    return results
