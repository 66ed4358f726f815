"""From a job's configuration to a finished run: checks, model, stream, engine, journal, MLflow, exit status.

Rank 0 alone writes files and speaks to MLflow. Everything that can be refused is refused before the first collective of
training, on all ranks alike.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from erica_dist import config, settings
from erica_dist.config import ElectraJob, EricaJob
from erica_dist.errors import UserError
from erica_dist.limits import check_encoder_size, check_numbers
from erica_dist.offline import stay_offline
from erica_dist.stream.corpora import Corpora, open_corpora
from erica_dist.stream.markers import find_markers
from erica_dist.training import checkpoint
from erica_dist.training.cluster import ClusterInfo, map_environment
from erica_dist.training.preemption import REQUEUE_STATUS, StopFlag
from erica_dist.training.tokenizer import check_tokenizer, write_tokenizer


def main(kind: str, argv: list[str]) -> int:
    """Entry of a launcher: `--config FILE.yaml` and dotted overrides -> exit status.

    0: done. 85: stopped by a signal after saving, start again to go on. 2: the user can put it right. 1: anything else.
    """
    stay_offline()
    path, overrides = launcher_words(kind, argv)
    try:
        cluster = map_environment()
        job = (
            settings.load(EricaJob, path, overrides) if kind == "erica" else settings.load(ElectraJob, path, overrides)
        )
        return _train(kind, job, cluster)
    except UserError as error:
        complain(kind, error)
        return 2


def launcher_words(launcher: str, argv: list[str]) -> tuple[str | None, list[str]]:
    """(the file of --config, the overrides) of a launcher's command line."""
    about = f"All settings: `erica-dist config {launcher}`."
    parser = argparse.ArgumentParser(prog=f"launchers/{launcher}.py", description=about)
    parser.add_argument("--config", metavar="FILE.yaml", help="settings laid over the defaults")
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # the DeepSpeed launcher adds it
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings laid over the file")
    words = parser.parse_intermixed_args(argv)
    return words.config, words.overrides


def complain(launcher: str, error: UserError) -> None:
    """One error for the whole job: the first rank's."""
    if os.environ.get("RANK", "0") == "0":
        print(f"launchers/{launcher}.py: error: {error}", file=sys.stderr, flush=True)


def _train(kind: str, job: EricaJob | ElectraJob, cluster: ClusterInfo) -> int:
    if not job.run.dir:
        raise UserError("run.dir is not set: give the folder of this run, such as run.dir=runs/first")
    job.run.dir = str(Path(job.run.dir).absolute())
    job.run.name = job.run.name or Path(job.run.dir).name
    accumulation = config.accumulation(job.train, cluster.world_size, even_micro_batch=kind == "erica")
    if job.train.zero_stage not in (0, 1, 2, 3):
        raise UserError(f"train.zero_stage={job.train.zero_stage} must be 0, 1, 2 or 3")
    check_numbers(job)
    if isinstance(job, EricaJob):
        config.check_erica(job.erica)
        check_encoder_size(job.model)
    corpora = open_corpora(job.data, "train")
    _check_kind(kind, corpora)
    check_tokenizer(job, corpora)

    if _finished(kind, job, corpora, cluster):
        return 0

    from erica_dist.training import engine as engines

    if job.train.precision == "fp16" and engines.device().type == "cpu":
        raise UserError("train.precision=fp16 needs a GPU: set train.precision=fp32, or bf16")
    _stream(kind, corpora, job, cluster.rank, cluster.world_size, 0)  # refuses the settings that it cannot follow
    corpora.tokenizer_folder()  # of a remote folder it is fetched: on all ranks, so that none fails alone later
    engines.start_process_group()
    try:
        return _train_on_ranks(kind, job, corpora, accumulation, cluster)
    finally:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _train_on_ranks(kind: str, job: Any, corpora: Corpora, accumulation: int, cluster: ClusterInfo) -> int:
    import torch

    from erica_dist.objectives.gather import ranks as joined
    from erica_dist.stream.loader import electra_validation, erica_validation
    from erica_dist.tracking.journal import EVALUATION, EVENTS, METRICS, Journal
    from erica_dist.training import electra, erica, loop
    from erica_dist.training.agreement import together
    from erica_dist.training.engine import build_engine, device, slow_precision, sum_over_ranks

    rank, ranks = cluster.rank, cluster.world_size
    assert joined() == ranks, "the process group and the environment disagree about the number of ranks"
    say = partial(print, flush=True) if rank == 0 else _silent
    stop = StopFlag()
    stop.install(watch_launcher=cluster.launcher == "deepspeed")
    run_dir = Path(job.run.dir)
    is_erica = kind == "erica"

    def read_held_out() -> tuple[list[Any], list[str], Any]:
        held_out, faults = open_corpora(job.data, "validation"), list[str]()
        found = (erica_validation if is_erica else electra_validation)(held_out, job, rank, ranks, faults)
        # ranks with one micro-batch less run a training one in its place and forget it
        filler = _stream(kind, corpora, job, rank, ranks, 0).step(0).micro_batches[0] if None in found else None
        return found, faults, filler

    validation, faults, filler = together(read_held_out)
    held_out = sum(batch.documents for batch in validation if batch)
    held_out, left_out = map(
        int, sum_over_ranks(torch.tensor([held_out, len(faults)], dtype=torch.float64, device=device())).tolist()
    )
    module, models = _build_module(kind, job, corpora)
    parameters = sum(p.numel() for p in module.parameters())
    checkpoint.check_disk(run_dir, parameters, job.train.keep_checkpoints)
    engine = build_engine(module, job.train, accumulation)

    resumed = checkpoint.agree_on_newest(run_dir)
    if resumed:
        checkpoint.check_weights(resumed, parameters)
    start: dict[str, Any] = {"step": 0, "shards": corpora.fingerprint}
    state = checkpoint.restore(engine, resumed) if resumed else start
    start_step: int = state["step"]

    def open_run() -> tuple[Any, Any]:
        if rank:
            return None, None
        changed = _changed_settings(run_dir, job) if start_step else {}
        environment = _write_run_folder(job, models, corpora)
        journal = Journal.open(run_dir / METRICS, last_step=start_step)
        if state["shards"] != corpora.fingerprint:  # data.allow_changed
            journal.event("shards_changed", step=start_step, before=state["shards"], now=corpora.fingerprint)
        if changed:
            journal.event("settings_changed", step=start_step, **changed)
            say(f"warning: settings are not those of the steps before: {', '.join(sorted(changed))} (events.jsonl)")
        if resumed and state["ranks"] != ranks:
            journal.event("ranks_changed", step=start_step, before=state["ranks"], now=ranks)
        if left_out:
            journal.event("damaged_held_out", step=start_step, documents=left_out, first=faults[0] if faults else "")
        return journal, _start_tracking(job, kind, corpora, ranks, environment)

    rules = erica if is_erica else electra
    stream = _stream(kind, corpora, job, rank, ranks, start_step)
    task = loop.Task(
        job=job,
        engine=engine,
        stream=stream,
        train_step=rules.train_step,
        evaluate=partial(rules.evaluate, engine, validation, job, filler) if held_out else None,
        checkpoint_state=_order(kind, job, corpora) | {"parameters": parameters},
        start_step=start_step,
    )
    split = (
        f"{job.train.micro_batch} x {accumulation}" if accumulation else f"{job.train.micro_tokens:,} pieces at a time"
    )
    # nothing may come between this and what ends the run in MLflow, not even a line on a terminal that is gone
    journal, sink = together(open_run)
    status = "FAILED"
    try:
        say(
            f"{kind}: {len(corpora):,} documents, {job.train.steps} steps of {job.train.global_batch} = {ranks} rank(s)"
            f" x {split}, {job.train.precision}, ZeRO {job.train.zero_stage}"
            + (f", going on from step {start_step}" if start_step else "")
            + (f" of {state['ranks']} rank(s)" if start_step and state["ranks"] != ranks else "")
        )
        if slow := slow_precision(job.train.precision):
            say(f"warning: {slow}")
        if left_out:
            say(f"warning: {left_out} damaged held-out document(s) are left out of all scores")
        if is_erica and config.published_options(job.erica)[0] != "own":
            behaviour, taken = config.published_options(job.erica)
            say(f"erica: {behaviour}, as in the published code: {', '.join(taken)}")
        last = loop.run(task, journal, stop, say)
        status = "FINISHED" if last >= job.train.steps else "KILLED"
    finally:
        try:
            stream.close()
            if journal is not None:
                journal.close()
        finally:
            if sink is not None:
                names = ("config.yaml", "environment.json", METRICS, EVALUATION, EVENTS)
                sink.close(status, [path for name in names if (path := run_dir / name).exists()])
    checkpoint.barrier()  # a launcher ends all ranks when the first one leaves: not before rank 0 has told MLflow
    if status == "KILLED":
        say(f"stopped after step {last}; the checkpoint is written, start the same command to go on")
        return REQUEUE_STATUS
    return 0


def _stream(kind: str, corpora: Corpora, job: Any, rank: int, ranks: int, start_step: int) -> Any:
    from erica_dist.stream.loader import ElectraStream, EricaStream

    return (EricaStream if kind == "erica" else ElectraStream)(corpora, job, rank, ranks, start_step)


def _build_module(kind: str, job: Any, corpora: Corpora) -> tuple[Any, dict[str, Any]]:
    """(the module for the engine, the Hugging Face configurations that the export needs)."""
    import transformers

    from erica_dist.models.electra import build_electra
    from erica_dist.models.encoder import build_encoder, grow_vocabulary
    from erica_dist.training.modules import ElectraModule, EricaModule

    # Its report on weights that are missing (a new MLM head) or unused (a pooler) reads like a failure; we say it in a
    # line of our own where it matters.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    if kind == "erica":
        encoder = build_encoder(job.model, corpora.tokenizer, job.train.seed)
        known: dict[str, Any] = {}
        if job.erica.entity_markers:
            markers = find_markers(corpora.tokenizer_folder())
            grow_vocabulary(encoder, markers.added_to(corpora.tokenizer)["vocab_size"], job.train.seed)
            known["markers"] = asdict(markers)
        return EricaModule(encoder), {"job": kind, "encoder": encoder.config.to_dict(), **known}
    pair = build_electra(job.model, job.electra, corpora.tokenizer, job.train.seed)
    models = {
        name: getattr(pair, name).config.to_dict() for name in ("generator", "discriminator") if getattr(pair, name)
    }
    vocab_size = corpora.tokenizer["vocab_size"]
    return ElectraModule(pair, job.electra, corpora.tokenizer["mask_id"], vocab_size), {"job": kind, **models}


def _order(kind: str, job: Any, corpora: Corpora) -> dict[str, Any]:
    """What decides which document is read when, and in what form."""
    train = job.train
    shuffle = f"block of {corpora.window_shards}" if corpora.window_shards else "full"
    names = {"train.global_batch": train.global_batch, "train.seed": train.seed, "data.shuffle": shuffle}
    if kind == "erica":
        names["erica.entity_markers"] = job.erica.entity_markers
    return {"job": kind, "shards": corpora.fingerprint, **names, **_form(job)}


def _form(job: Any) -> dict[str, Any]:
    """What decides the shapes and numbers of a checkpoint; the ranks and the ZeRO stage may change."""
    model = job.model
    own = (model.layers, model.hidden_size, model.heads, model.feed_forward, model.embedding_size)
    size = f"{model.size} {own}" if any(own) else model.size
    of_model = {} if model.init else {"model.size": size}  # a folder may move: `checkpoint.check_weights`
    return of_model | {"train.precision": job.train.precision}


def _finished(kind: str, job: Any, corpora: Corpora, cluster: ClusterInfo) -> bool:
    """Look at the newest checkpoint before anything costly begins: is there something left to train?"""
    newest = checkpoint.newest(job.run.dir)
    if newest is None:
        return False
    if not job.train.resume:
        raise UserError(f"{job.run.dir} holds checkpoints and train.resume is false: give another run.dir")
    step = checkpoint.check(newest, _order(kind, job, corpora), job.data.allow_changed)
    if step >= job.train.steps and cluster.rank == 0:
        print(f"already at step {step} of {job.train.steps}, nothing to do (raise train.steps to go on)", flush=True)
    return step >= job.train.steps


def _check_kind(kind: str, corpora: Corpora) -> None:
    wanted = "documents" if kind == "erica" else "sequences"
    if corpora.kind != wanted:
        raise UserError(
            f"data.shards={corpora.place} holds {corpora.kind}; {kind} trains on {wanted}: "
            f"run `erica-dist tokenize --kind {wanted}` into another folder"
        )
    if len(corpora) == 0:
        raise UserError(f"data.shards={corpora.place}: no training samples in it")


def _changed_settings(run_dir: Path, job: Any) -> dict[str, str]:
    """What the run's config.yaml says otherwise than `job`, as "before -> now"; paths, names and tracking left out."""
    try:
        before = settings.flatten(settings.load(type(job), run_dir / "config.yaml"))
    except UserError:  # of an older version, or gone
        return {}
    now = settings.flatten(job)
    own = [key for key in now if not key.startswith(("run.", "tracking.", "data.shards", "data.cache", "model.init"))]
    return {key: f"{before[key]} -> {now[key]}" for key in own if before.get(key, now[key]) != now[key]}


def _write_run_folder(job: Any, models: dict[str, Any], corpora: Corpora) -> dict[str, Any]:
    """What a run must keep to be understood, resumed and exported. Gives the environment it found."""
    from erica_dist.tracking.environment import write_environment

    run_dir = Path(job.run.dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(settings.dump(job), encoding="utf-8")
        (run_dir / "model_config.json").write_text(json.dumps(models, indent=1) + "\n", encoding="utf-8")
        write_tokenizer(run_dir / "tokenizer", job, corpora)
    except OSError as error:
        raise UserError(f"cannot write the run folder {run_dir}: {error}") from error
    return write_environment(run_dir)


def _start_tracking(job: Any, kind: str, corpora: Corpora, ranks: int, environment: dict[str, Any]) -> Any:
    from erica_dist.tracking.environment import environment_tags
    from erica_dist.tracking.mlflow_sink import MLflowSink

    tags = {"job": kind, "shards": corpora.fingerprint, "ranks": str(ranks), **environment_tags(environment)}
    if isinstance(job, EricaJob):
        tags["erica_options"] = config.published_options(job.erica)[0]
    return MLflowSink.start(job.tracking, job.run.dir, job.run.name, settings.flatten(job), tags)


def _silent(*_: object) -> None:
    pass
