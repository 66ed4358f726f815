"""From a job's configuration to a finished run: checks, model, stream, engine, journal, MLflow, exit status.

Rank 0 alone writes files and speaks to MLflow. Everything that can be refused is refused before the first collective of
training, on all ranks alike.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from erica_dist import config
from erica_dist.config import ElectraJob, EricaJob
from erica_dist.errors import UserError
from erica_dist.shards.reader import ShardFolder
from erica_dist.training.cluster import map_environment
from erica_dist.training.preemption import REQUEUE_STATUS, StopFlag


def main(kind: str, argv: list[str]) -> int:
    """Entry of a launcher: `--config FILE.yaml` and dotted overrides -> exit status.

    0: done. 85: stopped by a signal after saving, start again to go on. 2: the user can put it right. 1: anything else.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("DO_NOT_TRACK", "true")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    cluster = map_environment()
    try:
        path, overrides = _words(argv)
        job = config.load(EricaJob, path, overrides) if kind == "erica" else config.load(ElectraJob, path, overrides)
        return _train(kind, job, cluster.rank, cluster.world_size)
    except UserError as error:
        if cluster.rank == 0:
            print(f"launchers/{kind}.py: error: {error}", file=sys.stderr, flush=True)
        return 2


def _words(argv: list[str]) -> tuple[str | None, list[str]]:
    path, overrides, words = None, [], iter(argv)
    for word in words:
        if word == "--config":
            path = next(words, None)
            if path is None:
                raise UserError("--config needs a file")
        elif word.startswith("--config="):
            path = word.partition("=")[2]
        elif not word.startswith("--local_rank"):  # the DeepSpeed launcher adds it; LOCAL_RANK says the same
            overrides.append(word)
    return path, overrides


def _train(kind: str, job: EricaJob | ElectraJob, rank: int, ranks: int) -> int:
    if not job.run.dir:
        raise UserError("run.dir is not set: give the folder of this run, such as run.dir=runs/first")
    if not job.data.shards:
        raise UserError("data.shards is not set: give the folder that `erica-dist tokenize` wrote")
    job.run.dir = str(Path(job.run.dir).absolute())
    job.run.name = job.run.name or Path(job.run.dir).name
    accumulation = config.accumulation(job.train, ranks, even_micro_batch=kind == "erica")
    if job.train.zero_stage not in (0, 1, 2, 3):
        raise UserError(f"train.zero_stage={job.train.zero_stage} must be 0, 1, 2 or 3")
    folder = ShardFolder.open(job.data.shards, split="train")
    _check_kind(kind, folder)
    _check_tokenizer(job.model.init, folder)

    from erica_dist.training import engine as engines

    engines.start_process_group()
    try:
        return _train_on_ranks(kind, job, folder, accumulation, rank, ranks)
    finally:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def _train_on_ranks(kind: str, job: Any, folder: ShardFolder, accumulation: int, rank: int, ranks: int) -> int:
    from erica_dist.objectives.gather import ranks as joined
    from erica_dist.stream.loader import ElectraStream, EricaStream, electra_validation, erica_validation
    from erica_dist.tracking.journal import METRICS, Journal
    from erica_dist.training import checkpoint, electra, erica, loop
    from erica_dist.training.engine import build_engine

    assert joined() == ranks, "the process group and the environment disagree about the number of ranks"
    say = partial(print, flush=True) if rank == 0 else _silent
    stop = StopFlag()
    stop.install()
    run_dir = Path(job.run.dir)
    module, models = _build_module(kind, job, folder)
    engine = build_engine(module, job.train, accumulation)

    resumed = checkpoint.agree_on_newest(run_dir) if job.train.resume else None
    start_step = 0
    if resumed is not None:
        state = checkpoint.restore(engine, resumed)
        if state["shards"] != folder.fingerprint or state["job"] != kind:
            raise UserError(
                f"{resumed} is a checkpoint of {state['job']} on shards {state['shards'][:12]}, this job is {kind} on "
                f"{folder.fingerprint[:12]}: give the same data.shards, or another run.dir"
            )
        start_step = state["step"]
    elif rank == 0 and not job.train.resume and checkpoint.newest(run_dir) is not None:
        raise UserError(f"{run_dir} holds checkpoints and train.resume is false: give another run.dir")
    if start_step >= job.train.steps:
        say(f"already at step {start_step} of {job.train.steps}, nothing to do (raise train.steps to go on)")
        return 0

    journal = sink = None
    if rank == 0:
        _write_run_folder(job, kind, models, folder)
        journal = Journal.open(run_dir / METRICS, last_step=start_step)
        sink = _start_tracking(job, kind, folder, ranks)
    say(
        f"{kind}: {len(folder):,} documents, {job.train.steps} steps of {job.train.global_batch} = {ranks} rank(s) x "
        f"{job.train.micro_batch} x {accumulation}, {job.train.precision}, ZeRO {job.train.zero_stage}"
        + (f", going on from step {start_step}" if start_step else "")
    )
    is_erica = kind == "erica"
    held_out = ShardFolder.open(job.data.shards, split="validation")
    validation = (erica_validation if is_erica else electra_validation)(held_out, job, rank, ranks)
    rules = erica if is_erica else electra
    stream = (EricaStream if is_erica else ElectraStream)(folder, job, rank, ranks, start_step)
    filler = stream.step(start_step).micro_batches[0] if None in validation else None
    task = loop.Task(
        job=job,
        engine=engine,
        stream=stream,
        train_step=rules.train_step,
        evaluate=partial(rules.evaluate, engine, validation, job, filler) if validation else None,
        checkpoint_state={"job": kind, "shards": folder.fingerprint},
        start_step=start_step,
    )
    status = "FAILED"
    try:
        last = loop.run(task, journal, stop, say)
        status = "FINISHED" if last >= job.train.steps else "KILLED"
    finally:
        stream.close()
        if journal is not None:
            journal.close()
        if sink is not None:
            artifacts = [
                run_dir / name
                for name in ("config.yaml", "environment.json", METRICS, "evaluation.jsonl", "events.jsonl")
            ]
            sink.close(status, [path for path in artifacts if path.exists()])
    checkpoint.barrier()  # a launcher ends all ranks when the first one leaves: not before rank 0 has told MLflow
    if status == "KILLED":
        say(f"stopped after step {last}; the checkpoint is written, start the same command to go on")
        return REQUEUE_STATUS
    return 0


def _build_module(kind: str, job: Any, folder: ShardFolder) -> tuple[Any, dict[str, Any]]:
    """(the module for the engine, the Hugging Face configurations that the export needs)."""
    from erica_dist.models.electra import build_electra
    from erica_dist.models.encoder import build_encoder
    from erica_dist.training.modules import ElectraModule, EricaModule

    if kind == "erica":
        encoder = build_encoder(job.model, folder.tokenizer, job.train.seed)
        return EricaModule(encoder), {"job": kind, "encoder": encoder.config.to_dict()}
    pair = build_electra(job.model, job.electra, folder.tokenizer, job.train.seed)
    models = {
        name: getattr(pair, name).config.to_dict() for name in ("generator", "discriminator") if getattr(pair, name)
    }
    vocab_size = folder.tokenizer["vocab_size"]
    return ElectraModule(pair, job.electra, folder.tokenizer["mask_id"], vocab_size), {"job": kind, **models}


def _check_kind(kind: str, folder: ShardFolder) -> None:
    wanted = "documents" if kind == "erica" else "sequences"
    if folder.kind != wanted:
        raise UserError(
            f"data.shards={folder.folder} holds {folder.kind}; {kind} trains on {wanted}: "
            f"run `erica-dist tokenize --kind {wanted}` into another folder"
        )
    if len(folder) == 0:
        raise UserError(f"data.shards={folder.folder}: no training samples in it")


def _check_tokenizer(init: str, folder: ShardFolder) -> None:
    """Refuse shards that another tokenizer than the model's own cut."""
    if not init:
        return
    source = next(
        (path for path in (Path(init), Path(init) / "discriminator") if (path / "tokenizer.json").is_file()), None
    )
    if source is None:
        return
    from transformers import AutoTokenizer

    from erica_dist.shards.tokenizers import tokenizer_fingerprint

    found = tokenizer_fingerprint(AutoTokenizer.from_pretrained(source, local_files_only=True))
    if found != folder.tokenizer["fingerprint"]:
        raise UserError(
            f"the tokenizer of model.init={init} ({found[:12]}) is not the one that cut data.shards={folder.folder} "
            f"({folder.tokenizer['fingerprint'][:12]}): run `erica-dist tokenize --tokenizer {init}` into a new folder"
        )


def _write_run_folder(job: Any, kind: str, models: dict[str, Any], folder: ShardFolder) -> None:
    """What a run must keep to be understood, resumed and exported."""
    from erica_dist.tracking.environment import environment

    run_dir = Path(job.run.dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "config.yaml").write_text(config.dump(job), encoding="utf-8")
        for name, content in (("model_config.json", models), ("environment.json", environment())):
            (run_dir / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        shutil.copytree(folder.folder / "tokenizer", run_dir / "tokenizer", dirs_exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the run folder {run_dir}: {error}") from error


def _start_tracking(job: Any, kind: str, folder: ShardFolder, ranks: int) -> Any:
    from erica_dist.tracking.mlflow_sink import MLflowSink

    tags = {"job": kind, "shards": folder.fingerprint, "ranks": str(ranks)}
    return MLflowSink.start(job.tracking, job.run.dir, job.run.name, config.flatten(job), tags)


def _silent(*_: object) -> None:
    pass
