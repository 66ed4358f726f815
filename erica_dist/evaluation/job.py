"""From a fine-tuning's configuration to its result: checks, examples, one training a seed, journal, MLflow, table.

All seeds of one call are one run: the journal's `step` goes on from seed to seed, and its last evaluation holds mean
and deviation of the test scores. Same settings and files give the same result, so a run that was broken off simply
starts over, and one that is complete is not computed again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from erica_dist import config, settings
from erica_dist.config import FinetuneJob
from erica_dist.errors import UserError
from erica_dist.evaluation import results, scores
from erica_dist.evaluation.results import SeedResult
from erica_dist.offline import stay_offline
from erica_dist.shards.tarfiles import write_atomically
from erica_dist.tracking.journal import EVALUATION, EVENTS, METRICS, Journal
from erica_dist.training.cluster import ClusterInfo, map_environment
from erica_dist.training.job import complain, launcher_words
from erica_dist.training.preemption import REQUEUE_STATUS, StopFlag

if TYPE_CHECKING:
    from erica_dist.evaluation.plan import Data, Plan
    from erica_dist.evaluation.recorder import Recorder
    from erica_dist.evaluation.sentences import Sentence


def main(argv: list[str]) -> int:
    """Entry of the launcher: `--config FILE.yaml` and dotted overrides -> exit status.

    0: done. 85: stopped by a signal, start again. 2: the user can put it right. 1: anything else.
    """
    stay_offline()
    path, overrides = launcher_words("finetune", argv)
    try:
        return _finetune(settings.load(FinetuneJob, path, overrides), map_environment())
    except UserError as error:
        complain("finetune", error)
        return 2


def _finetune(job: FinetuneJob, cluster: ClusterInfo) -> int:
    _check_settings(job)
    job.run.dir = str(Path(job.run.dir).absolute())
    job.run.name = job.run.name or Path(job.run.dir).name
    say: Callable[[str], None] = partial(print, flush=True) if cluster.rank == 0 else _silent
    finished = _earlier_result(job)
    if finished:
        say(f"{job.run.dir} is complete; nothing is computed again\n{results.table(finished)}")
        return 0

    from erica_dist.evaluation.plan import load_data, plan_seed
    from erica_dist.training import engine as engines

    data = load_data(job)
    plans = [plan_seed(job, data, seed) for seed in job.finetune.seeds]
    accumulation = config.accumulation(plans[0].train, cluster.world_size)
    by = _selection(job, data, plans)

    engines.start_process_group()
    try:
        return _on_ranks(job, data, plans, accumulation, by, cluster, say)
    finally:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _check_settings(job: FinetuneJob) -> None:
    for name in ("model", "train", "test"):
        if not getattr(job.finetune, name):
            raise UserError(f"finetune.{name} is not set: give a {'folder' if name == 'model' else 'file'}")
    if not job.run.dir:
        raise UserError("run.dir is not set: give the folder of this run, such as run.dir=runs/relation")
    seeds = job.finetune.seeds
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"finetune.seeds={seeds} must be a list of different numbers, such as [13,42,87]")
    if job.finetune.max_length < 8:
        raise UserError(f"finetune.max_length={job.finetune.max_length} must be at least 8")
    if job.train.dev_scorings < 1:
        raise UserError(f"train.dev_scorings={job.train.dev_scorings} must be at least 1")
    if not 0 <= job.train.warmup_share < 1:
        raise UserError(f"train.warmup_share={job.train.warmup_share} must be at least 0 and below 1")


def _earlier_result(job: FinetuneJob) -> dict[str, Any] | None:
    """The result that already stands in run.dir for these settings; refuses a folder with another run in it."""
    run_dir = Path(job.run.dir)
    try:
        if not (run_dir / METRICS).exists() or not (run_dir / METRICS).stat().st_size:
            return None
        earlier = (run_dir / "config.yaml").read_text(encoding="utf-8")
    except FileNotFoundError:
        earlier = ""
    except OSError as error:
        raise UserError(f"cannot read {run_dir}: {error.strerror}") from error
    if earlier != settings.dump(job):
        raise UserError(f"{run_dir} holds a run with other settings: give another run.dir")
    return results.read_result(run_dir)


# ------------------------------------------------------------------------------------------------ trainings


def _on_ranks(
    job: FinetuneJob,
    data: Data,
    plans: list[Plan],
    accumulation: int,
    by: str,
    cluster: ClusterInfo,
    say: Callable[[str], None],
) -> int:
    from erica_dist.evaluation.recorder import Recorder
    from erica_dist.training import checkpoint

    stop = StopFlag()
    stop.install(watch_launcher=cluster.launcher == "deepspeed")
    run_dir = Path(job.run.dir)
    journal = sink = None
    if cluster.rank == 0:
        tags = _write_run_folder(job)
        journal = Journal.open(run_dir / METRICS)
        sink = _start_tracking(job, tags | {"ranks": str(cluster.world_size)})
    status: Literal["FINISHED", "FAILED", "KILLED"] = "FAILED"
    try:
        say(
            f"relation classification: {len(data.labels)} labels, {len(plans[0].sentences):,} examples "
            f"({job.finetune.percent:g} %), {len(plans[0].dev):,} dev, {len(data.test):,} test; {len(plans)} seed(s), "
            + (f"chosen by dev {by}" if by else "no dev examples: the last step's model is tested")
        )
        runs: list[SeedResult] = []
        predictions: list[str] = []
        recorder = Recorder(journal, say)
        for plan in plans:
            run = _train_seed(job, data, plan, accumulation, by, recorder, stop)
            if run is None:
                status = "KILLED"
                break
            recorder.close_seed(run[0], results.mean_and_std([*runs, run[0]]) if plan is plans[-1] else {})
            runs.append(run[0])
            predictions += run[1]
        else:
            if cluster.rank == 0:
                result = _result(job, data, plans, by, runs)
                results.write_result(run_dir, result, predictions)
                say(results.table(result))
            status = "FINISHED"
    finally:
        try:
            if journal is not None:
                journal.close()
        finally:
            if sink is not None:
                names = ("config.yaml", "environment.json", METRICS, EVALUATION, EVENTS)
                artifacts = [run_dir / name for name in (*names, results.RESULT, results.PREDICTIONS)]
                sink.close(status, [path for path in artifacts if path.exists()])
    checkpoint.barrier()  # a launcher ends all ranks when the first one leaves: not before rank 0 has told MLflow
    if status == "KILLED":
        say("stopped by a signal; the same command starts over")
        return REQUEUE_STATUS
    return 0


def _selection(job: FinetuneJob, data: Data, plans: list[Plan]) -> str:
    """The dev score that chooses; empty without dev examples."""
    wanted = job.finetune.select
    if wanted == "semeval_f1" and not data.semeval:
        raise UserError("finetune.select=semeval_f1 needs the labels of SemEval-2010 Task 8")
    if not plans[0].dev:
        return ""
    return wanted if wanted != "auto" else "semeval_f1" if data.semeval else "micro_f1"


def _train_seed(
    job: FinetuneJob, data: Data, plan: Plan, accumulation: int, by: str, recorder: Recorder, stop: StopFlag
) -> tuple[SeedResult, list[str]] | None:
    """(result, prediction lines) of one seed; None when a stop signal came."""
    from erica_dist.evaluation.relation_classification import Choice, build_classifier, fine_tune, predict
    from erica_dist.training.engine import build_engine

    settings, seed = job.finetune, plan.train.seed
    module = build_classifier(
        data.folder, settings.dropout, settings.max_length, data.tokenizer, len(data.labels), seed
    )
    engine = build_engine(module, plan.train, accumulation)

    def labelled(sentences: list[Sentence]) -> tuple[list[str], list[str], list[float]]:
        numbers, probabilities = predict(engine, sentences, job.train.micro_batch)
        gold = [data.labels[sentence.label] for sentence in sentences]
        return gold, [data.labels[number] for number in numbers], probabilities.tolist()

    def score_dev() -> dict[str, float]:
        gold, predicted, _ = labelled(plan.dev)
        return scores.all_scores(gold, predicted, settings.no_relation, data.semeval)

    recorder.open_seed(seed, plan.train.steps)
    choice = Choice(score_dev, by, job.train.dev_scorings) if by else None
    outcome = fine_tune(engine, plan.sentences, plan.train, accumulation, choice, recorder.step, lambda: bool(stop))
    if outcome.steps < plan.train.steps:
        return None
    gold, predicted, probabilities = labelled(data.test)
    result = SeedResult(
        seed=seed,
        train_examples=len(plan.sentences),
        train_labels=len({sentence.label for sentence in plan.sentences}),
        steps=outcome.steps,
        best_step=outcome.best_step,
        dev=outcome.dev,
        test=scores.all_scores(gold, predicted, settings.no_relation, data.semeval),
    )
    engine.destroy()
    return result, results.prediction_lines(seed, gold, predicted, probabilities)


# ------------------------------------------------------------------------------------------------ the run's folder


def _result(job: FinetuneJob, data: Data, plans: list[Plan], by: str, runs: list[SeedResult]) -> dict[str, Any]:
    settings = job.finetune
    files: dict[str, str | Path] = {use: getattr(settings, use) for use in ("train", "dev", "test", "splits")}
    weights = data.folder / "model.safetensors"
    files["model"] = weights if weights.is_file() else ""
    source = ("file" if settings.dev else "taken out of the training file") if by else "none"
    return {
        "format": results.FORMAT,
        "version": 1,
        "task": settings.task,
        "model": settings.model,
        "percent": settings.percent,
        "files": results.file_records(files),
        "labels": data.labels,
        "examples": {"train_file": len(data.train), "dev": len(plans[0].dev), "test": len(data.test)},
        "selection": {"by": by, "dev": source},
        "scores": results.mean_and_std(runs),
        "runs": [dataclasses.asdict(run) for run in runs],
    }


def _write_run_folder(job: FinetuneJob) -> dict[str, str]:
    """config.yaml and environment.json of a run from the start, no journal of an earlier try; gives MLflow's tags."""
    from erica_dist.tracking.environment import environment_tags, write_environment

    run_dir = Path(job.run.dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, EVALUATION, EVENTS, results.PREDICTIONS):
            (run_dir / name).unlink(missing_ok=True)
        write_atomically(run_dir / "config.yaml", settings.dump(job).encode())
        return environment_tags(write_environment(run_dir))
    except OSError as error:
        raise UserError(f"cannot write the run folder {run_dir}: {error.strerror or error}") from error


def _start_tracking(job: FinetuneJob, tags: dict[str, str]) -> Any:
    from erica_dist.tracking.mlflow_sink import MLflowSink

    tags |= {"job": "finetune", "task": job.finetune.task, "model": Path(job.finetune.model).name}
    return MLflowSink.start(job.tracking, job.run.dir, job.run.name, settings.flatten(job), tags)


def _silent(*_: object) -> None:
    pass
