"""What a run's folder says of its job: what a checkpoint must fit, what a resume changed, what the export needs.

Rank 0 alone writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erica_dist import settings
from erica_dist.errors import UserError
from erica_dist.stream.corpora import Corpora
from erica_dist.tracking.journal import METRICS, Journal
from erica_dist.training.tokenizer import write_tokenizer


@dataclass(frozen=True)
class Beginning:
    """Where a run begins: at step 0, or after a checkpoint's, with the shards and the ranks of the steps before."""

    step: int
    shards: str
    ranks: int


def order(kind: str, job: Any, corpora: Corpora) -> dict[str, Any]:
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


def changed_settings(run_dir: Path, job: Any) -> dict[str, str]:
    """What the run's config.yaml says otherwise than `job`, as "before -> now"; paths, names and tracking left out."""
    try:
        before = settings.flatten(settings.load(type(job), run_dir / "config.yaml"))
    except UserError:  # of an older version, or gone
        return {}
    now = settings.flatten(job)
    own = [key for key in now if not key.startswith(("run.", "tracking.", "data.shards", "data.cache", "model.init"))]
    return {key: f"{before[key]} -> {now[key]}" for key in own if before.get(key, now[key]) != now[key]}


def write_run_folder(job: Any, models: dict[str, Any], corpora: Corpora) -> dict[str, Any]:
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


def open_journal(
    run_dir: Path, beginning: Beginning, here: Beginning, changed: dict[str, str], left_out: int, first_fault: str
) -> Journal:
    """The journal after the step at which the run begins, with an event for each thing that is not as before.

    here: what this job has. changed: as `changed_settings` gave it. left_out: damaged held-out documents.
    """
    journal = Journal.open(run_dir / METRICS, last_step=beginning.step)
    if beginning.shards != here.shards:  # data.allow_changed
        journal.event("shards_changed", step=beginning.step, before=beginning.shards, now=here.shards)
    if changed:
        journal.event("settings_changed", step=beginning.step, **changed)
    if beginning.ranks != here.ranks:
        journal.event("ranks_changed", step=beginning.step, before=beginning.ranks, now=here.ranks)
    if left_out:
        journal.event("damaged_held_out", step=beginning.step, documents=left_out, first=first_fault)
    return journal
