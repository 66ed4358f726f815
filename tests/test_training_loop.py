"""What the loop says and writes down, with an engine that does nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from erica_dist import settings
from erica_dist.config import ElectraJob, EricaJob
from erica_dist.errors import UserError
from erica_dist.models.encoder import build_encoder
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.loader import ElectraStream, EricaStream, erica_validation
from erica_dist.tracking.journal import Journal, read_metrics
from erica_dist.training import erica, loop
from erica_dist.training.modules import EricaModule
from erica_dist.training.preemption import StopFlag
from tests.synthetic import write_documents_folder, write_sequences_folder


def run(folder: Path, recalls: list[float], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[dict[str, Any]]]:
    """Train one step for each recall that the discriminator shall have -> (what is said, events)."""
    shards = write_sequences_folder(folder / "shards", sequences=20)
    words = ["model.size=tiny", "model.max_length=32", "train.global_batch=8", "train.micro_batch=4", "data.workers=0"]
    words += [f"train.steps={len(recalls)}", "train.checkpoint_every=0", f"run.dir={folder}"]
    job = settings.load(ElectraJob, None, words)
    monkeypatch.setattr(loop, "optimizer_step", lambda engine, rate: (1.0, False))
    monkeypatch.setattr(loop, "checkpoint", SimpleNamespace(save=lambda *_: None))
    journal, said = Journal.open(folder / "metrics.jsonl"), []
    task = loop.Task(
        job=job,
        engine=None,
        stream=ElectraStream(ShardFolder.open(shards), job),
        train_step=lambda engine, batches, job, step: {"loss": 1.0, "discriminator_recall": recalls[step - 1]},
        evaluate=None,
        checkpoint_state={},
        start_step=0,
    )
    assert loop.run(task, journal, False, said.append) == len(recalls)
    journal.close()
    return said, [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_a_gradient_that_is_no_number_ends_the_run_before_anything_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Any] = []
    shards = write_sequences_folder(tmp_path / "shards", sequences=20)
    words = ["model.size=tiny", "model.max_length=32", "train.global_batch=8", "train.micro_batch=4", "data.workers=0"]
    job = settings.load(ElectraJob, None, [*words, "train.steps=3", f"run.dir={tmp_path}"])
    monkeypatch.setattr(loop, "checkpoint", SimpleNamespace(save=lambda *words: saved.append(words)))

    def train(norms: list[tuple[float, bool]]) -> int:
        found = iter(norms)
        monkeypatch.setattr(loop, "optimizer_step", lambda engine, rate: next(found))
        stream = ElectraStream(ShardFolder.open(shards), job)
        task = loop.Task(job, None, stream, lambda *_: {"loss": 1.0}, None, {}, 0)
        return loop.run(task, None, False, lambda line: None)

    with pytest.raises(
        UserError, match=r"loss gradient's norm is not finite at step 2 .*no checkpoint was written yet"
    ):
        train([(1.0, False), (float("nan"), False)])
    assert not saved
    assert train([(float("inf"), True), (1.0, False), (1.0, False)]) == 3, "fp16 skips an overflow by itself"


def test_scores_that_a_stop_came_before_are_made_up_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardFolder.open(write_sequences_folder(tmp_path / "shards", sequences=20))
    words = ["model.size=tiny", "model.max_length=32", "train.global_batch=8", "train.micro_batch=4", "data.workers=0"]
    words += ["train.steps=5", "train.evaluate_every=2", f"run.dir={tmp_path}"]
    job = settings.load(ElectraJob, None, words)
    monkeypatch.setattr(loop, "checkpoint", SimpleNamespace(save=lambda *_: None))
    monkeypatch.setattr(loop, "optimizer_step", lambda engine, rate: (1.0, False))

    def train(start: int, stop: bool) -> list[int]:
        journal = Journal.open(tmp_path / "metrics.jsonl", last_step=start)
        stream = ElectraStream(shards, job, start_step=start)
        flag = StopFlag()
        flag.reason = "asked" if stop else ""
        task = loop.Task(job, None, stream, lambda *_: {"loss": 1.0}, lambda: {"auc": 0.5}, {}, start)
        loop.run(task, journal, flag, lambda line: None)
        journal.close()
        return [row["step"] for row in read_metrics(tmp_path / "evaluation.jsonl")]

    assert train(0, stop=True) == [0], "stopped after the first step"
    assert train(1, stop=True) == [0], "stopped after the second, before its scores"
    assert train(2, stop=False) == [0, 2, 4, 5]
    assert train(4, stop=False) == [0, 2, 4, 5], "step 4 was scored before"
    (tmp_path / "evaluation.jsonl").write_text('{"step": 0, "auc": 0.5}\n')
    assert train(4, stop=False) == [0, 4, 5]


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ({"loss_ed": 0.0, "rd_anchors": 0.0}, "relation discrimination has no anchor and entity discrimination has no"),
        ({"loss_ed": 1.0, "rd_anchors": 0.0, "ed_accuracy": 0.5}, "relation discrimination has no anchor"),
        ({"loss_ed": 1.0, "rd_anchors": 3.0, "ed_accuracy": 0.0}, ""),
        ({"loss_generator": 1.0}, ""),
    ],
)
def test_a_term_that_learns_nothing_is_named(scores: dict[str, float], text: str) -> None:
    assert loop._idle_terms(scores).startswith(text)
    assert bool(loop._idle_terms(scores)) == bool(text)


def test_a_discriminator_that_finds_nothing_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SILENT_STEPS", 3)
    said, events = run(tmp_path, [0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0], monkeypatch)
    assert [(event["event"], event["step"]) for event in events] == [("discriminator_silent", 6)]
    assert [line for line in said if "warning" in line] == [
        "warning: the discriminator has found no replaced token for 3 steps"
    ]


def test_samples_and_epochs_are_written_down_at_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, [0.5] * 5, monkeypatch)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["documents"] for row in rows] == [8] * 5  # of 20: the third step begins the second epoch
    assert [row["epoch"] for row in rows] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])


def test_what_is_counted_is_written_without_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_documents_folder(tmp_path / "shards", documents=20, validation=8, seed=3)
    words = ["model.size=tiny", "model.max_length=128", "train.global_batch=8", "train.micro_batch=4", "data.workers=0"]
    job = settings.load(EricaJob, None, [*words, "train.steps=1"])
    held_out, train = ShardFolder.open(shards, "validation"), ShardFolder.open(shards)
    module = EricaModule(build_encoder(job.model, train.tokenizer, seed=0))

    class Engine:
        def __call__(self, *words: Any, **more: Any) -> Any:
            return module(*words, **more)

    engine: Any = Engine()
    engine.module, engine.eval, engine.train = module, module.eval, module.train
    monkeypatch.setattr(erica, "backward", lambda *words, **more: None)
    batches = erica_validation(held_out, job, 0, 1, [])
    journal = Journal.open(tmp_path / "metrics.jsonl")
    journal.write_evaluation({"step": 0, **erica.evaluate(engine, batches, job, None)})
    journal.write({"step": 1, **erica.train_step(engine, EricaStream(train, job).step(0).micro_batches, job, 1)})
    journal.close()
    scored, trained = ((tmp_path / name).read_text() for name in ("evaluation.jsonl", "metrics.jsonl"))
    queries = sum(len(batch.query_head_Q) for batch in batches if batch)
    assert queries == 8  # one a document
    assert re.search(rf'"queries": {queries}, "anchors": [1-9][0-9]*, ', scored), scored
    assert re.search(r'"rd_anchors": [1-9][0-9]*, "rd_pool": [0-9]+\.[0-9]+', trained), trained
