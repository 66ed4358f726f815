"""From a job's configuration to a finished run: checks, model, stream, engine, journal, MLflow, exit status.

Rank 0 alone writes files and speaks to MLflow. Everything that can be refused is refused before the first collective of
training, on all ranks alike.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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
from erica_dist.training.run_folder import Beginning, changed_settings, open_journal, order, write_run_folder
from erica_dist.training.tokenizer import check_tokenizer


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
    from erica_dist.objectives.gather import ranks as joined
    from erica_dist.tracking.journal import EVALUATION, EVENTS, METRICS
    from erica_dist.training import electra, erica, loop
    from erica_dist.training.agreement import together
    from erica_dist.training.engine import build_engine

    rank, ranks = cluster.rank, cluster.world_size
    assert joined() == ranks, "the process group and the environment disagree about the number of ranks"
    say = partial(print, flush=True) if rank == 0 else _silent
    stop = StopFlag()
    stop.install(watch_launcher=cluster.launcher == "deepspeed")
    run_dir = Path(job.run.dir)

    held_out = _read_held_out(kind, job, corpora, cluster)
    module, models = _build_module(kind, job, corpora)
    parameters = sum(p.numel() for p in module.parameters())
    checkpoint.check_disk(run_dir, parameters, job.train.keep_checkpoints)
    engine = build_engine(module, job.train, accumulation)

    begin = here = Beginning(step=0, shards=corpora.fingerprint, ranks=ranks)
    if resumed := checkpoint.agree_on_newest(run_dir):
        checkpoint.check_weights(resumed, parameters)
        state = checkpoint.restore(engine, resumed)
        begin = Beginning(state["step"], state["shards"], state["ranks"])

    rules = erica if kind == "erica" else electra
    stream = _stream(kind, corpora, job, rank, ranks, begin.step)
    task = loop.Task(
        job=job,
        engine=engine,
        stream=stream,
        train_step=rules.train_step,
        evaluate=partial(rules.evaluate, engine, held_out.batches, job, held_out.filler)
        if held_out.documents
        else None,
        checkpoint_state=order(kind, job, corpora) | {"parameters": parameters},
        start_step=begin.step,
    )

    def open_run() -> tuple[Any, Any, dict[str, str]]:
        if rank:
            return None, None, {}
        changed = changed_settings(run_dir, job) if begin.step else {}
        environment = write_run_folder(job, models, corpora)
        journal = open_journal(run_dir, begin, here, changed, held_out.left_out, held_out.first_fault)
        return journal, _start_tracking(job, kind, corpora, ranks, environment), changed

    # nothing may come between this and what ends the run in MLflow, not even a line on a terminal that is gone
    journal, sink, changed = together(open_run)
    status = "FAILED"
    try:
        for line in _introduction(kind, job, corpora, accumulation, begin, ranks):
            say(line)
        if changed:
            say(f"warning: settings are not those of the steps before: {', '.join(sorted(changed))} (events.jsonl)")
        if held_out.left_out:
            say(f"warning: {held_out.left_out} damaged held-out document(s) are left out of all scores")
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


@dataclass(frozen=True)
class HeldOut:
    """This rank's held-out micro-batches, and how many documents all ranks have of them."""

    batches: list[Any]  # None: this rank has one less than another
    filler: Any  # a training micro-batch that runs in the place of a None and is forgotten
    documents: int
    left_out: int  # damaged ones
    first_fault: str


def _read_held_out(kind: str, job: Any, corpora: Corpora, cluster: ClusterInfo) -> HeldOut:
    """Read once, before the first step; all ranks call it.

    Raises:
        UserError: on all ranks, when one cannot read its part.
    """
    import torch

    from erica_dist.stream.loader import electra_validation, erica_validation
    from erica_dist.training.agreement import together
    from erica_dist.training.engine import device, sum_over_ranks

    rank, ranks = cluster.rank, cluster.world_size
    faults: list[str] = []

    def read() -> tuple[list[Any], Any]:
        held_out = open_corpora(job.data, "validation")
        found = (erica_validation if kind == "erica" else electra_validation)(held_out, job, rank, ranks, faults)
        lacking = None in found
        return found, _stream(kind, corpora, job, rank, ranks, 0).step(0).micro_batches[0] if lacking else None

    batches, filler = together(read)
    counts = [sum(batch.documents for batch in batches if batch), len(faults)]
    documents, left_out = sum_over_ranks(torch.tensor(counts, dtype=torch.float64, device=device())).tolist()
    return HeldOut(batches, filler, int(documents), int(left_out), faults[0] if faults else "")


def _introduction(
    kind: str, job: Any, corpora: Corpora, accumulation: int, begin: Beginning, ranks: int
) -> Iterator[str]:
    """What is about to be trained and how, and what of it may surprise."""
    from erica_dist.training.engine import slow_precision

    train = job.train
    split = f"{train.micro_batch} x {accumulation}" if accumulation else f"{train.micro_tokens:,} pieces at a time"
    going_on = f", going on from step {begin.step}" if begin.step else ""
    yield (
        f"{kind}: {len(corpora):,} documents, {train.steps} steps of {train.global_batch} = {ranks} rank(s) x {split}, "
        f"{train.precision}, ZeRO {train.zero_stage}{going_on}"
        + (f" of {begin.ranks} rank(s)" if begin.ranks != ranks else "")
    )
    if slow := slow_precision(train.precision):
        yield f"warning: {slow}"
    if isinstance(job, EricaJob) and config.published_options(job.erica)[0] != "own":
        behaviour, taken = config.published_options(job.erica)
        yield f"erica: {behaviour}, as in the published code: {', '.join(taken)}"


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


def _finished(kind: str, job: Any, corpora: Corpora, cluster: ClusterInfo) -> bool:
    """Look at the newest checkpoint before anything costly begins: is there something left to train?"""
    newest = checkpoint.newest(job.run.dir)
    if newest is None:
        return False
    if not job.train.resume:
        raise UserError(f"{job.run.dir} holds checkpoints and train.resume is false: give another run.dir")
    step = checkpoint.check(newest, order(kind, job, corpora), job.data.allow_changed)
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


def _start_tracking(job: Any, kind: str, corpora: Corpora, ranks: int, environment: dict[str, Any]) -> Any:
    from erica_dist.tracking.environment import environment_tags
    from erica_dist.tracking.mlflow_sink import MLflowSink

    tags = {"job": kind, "shards": corpora.fingerprint, "ranks": str(ranks), **environment_tags(environment)}
    if isinstance(job, EricaJob):
        tags["erica_options"] = config.published_options(job.erica)[0]
    return MLflowSink.start(job.tracking, job.run.dir, job.run.name, settings.flatten(job), tags)


def _silent(*_: object) -> None:
    pass
