"""The MLflow sink: what arrives, resume, a store that is away, a trainer that is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from erica_dist.config import TrackingConfig
from erica_dist.errors import UserError
from erica_dist.tracking import store
from erica_dist.tracking.journal import Journal
from erica_dist.tracking.mlflow_sink import MLflowSink, resend
from erica_dist.tracking.owner import Owner
from tests.ranks import run_ranks
from tests.synthetic import write_sequences_folder

pytest_plugins = ["tests.tracking_stores"]

EXPERIMENT = "test"
NOWHERE = "http://127.0.0.1:9"  # the discard port: refused at once
SETTINGS: dict[str, Any] = {"train.lr": 1e-4, "erica.negatives": "gather", "run.dir": "x" * 9000}


def start(run: Path, uri: str = "", **settings: Any) -> MLflowSink:
    tracking = TrackingConfig(uri=uri, experiment=EXPERIMENT)
    return MLflowSink.start(tracking, run, "", SETTINGS | settings, {"job": "erica"}, interval=0.05)


def train(
    run: Path, first: int, last: int, resumed: int = 0, uri: str = "", close: bool = True, **settings: Any
) -> Any:
    """A training as the sink sees it: steps `first` to `last`, held-out scores at the end, an orderly end."""
    journal = Journal.open(run / "metrics.jsonl", last_step=resumed)
    sink = start(run, uri, **settings)
    for step in range(first, last + 1):
        journal.write({"step": step, "loss": 10.0 / step, "lr": 1e-4, "note": "no number"})
    journal.write_evaluation({"step": last, "ed_accuracy": last / 100})
    journal.close()
    (run / "config.yaml").write_text("train: {}\n")
    if close:
        sink.close("FINISHED", [run / "config.yaml"])
    return sink


def the_run(uri: str) -> tuple[MlflowClient, Run]:
    client = store.connect(uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1
    return client, client.get_run(runs[0].info.run_id)


def history(client: MlflowClient, run: Run, key: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]


def saved(run: Path) -> dict[str, Any]:
    return json.loads((run / "mlflow.json").read_text())


def test_everything_of_a_run_arrives(store_uri: str, tmp_path: Path) -> None:
    train(tmp_path / "run", 1, 300)
    client, run = the_run(store_uri)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert history(client, run, "loss") == [(s, 10.0 / s) for s in range(1, 301)]
    assert history(client, run, "heldout/ed_accuracy") == [(300, 3.0)]
    assert set(run.data.metrics) == {"loss", "lr", "heldout/ed_accuracy"}
    assert run.data.params["train.lr"] == "0.0001"
    assert len(run.data.params["run.dir"]) == 6000
    assert run.data.params["run.dir"].endswith("config.yaml)")
    assert run.data.tags["job"] == "erica"
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"config.yaml", "metrics.jsonl", "evaluation.jsonl", "events.jsonl"}
    assert (tmp_path / "mlartifacts" / run.info.run_id / "artifacts" / "metrics.jsonl").is_file()
    assert saved(tmp_path / "run")["delivered"] is True


def test_points_carry_the_time_of_the_journal(store_uri: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, 1, 2)
    client, run = the_run(store_uri)
    times = [json.loads(line)["time"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    points = client.get_metric_history(run.info.run_id, "loss")
    assert [p.timestamp for p in points] == [round(t * 1000) for t in times]


def test_a_resumed_training_continues_its_run_and_sends_nothing_twice(store_uri: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, 1, 6)
    train(run_dir, 5, 9, resumed=4, **{"train.lr": 5e-5, "train.new": 1})
    client, run = the_run(store_uri)
    assert history(client, run, "loss") == [(s, 10.0 / s) for s in range(1, 10)]
    assert history(client, run, "heldout/ed_accuracy") == [(6, 0.06), (9, 0.09)]
    assert run.data.params["train.lr"] == "0.0001"
    assert run.data.params["train.new"] == "1"
    assert run.data.tags["changed.train.lr"] == "0.0001 -> 5e-05"
    assert run.data.tags["event.resumed_from"] == "1x, at step 4"
    assert not [tag for tag in run.data.tags if tag.startswith("changed.") and tag != "changed.train.lr"]
    assert run.info.status == "FINISHED"


def test_a_training_from_the_start_in_the_same_folder_is_a_new_run(store_uri: str, tmp_path: Path) -> None:
    train(tmp_path / "run", 1, 3)
    train(tmp_path / "run", 1, 2)
    client = store.connect(store_uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    counts = [len(history(client, run, "loss")) for run in client.search_runs([experiment.experiment_id])]
    assert sorted(counts) == [2, 3]


def test_a_run_deleted_in_the_store_is_sent_again_as_a_whole(store_uri: str, tmp_path: Path) -> None:
    train(tmp_path / "run", 1, 3)
    client, run = the_run(store_uri)
    client.delete_run(run.info.run_id)
    train(tmp_path / "run", 4, 5, resumed=3)
    client, run = the_run(store_uri)
    assert [step for step, _ in history(client, run, "loss")] == [1, 2, 3, 4, 5]


def test_a_store_that_is_away_costs_one_warning_and_track_sends_the_rest(
    store_uri: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, 1, 4, uri=NOWHERE)
    first, last = [record.getMessage() for record in caplog.records if record.name == "erica_dist.tracking"]
    assert "does not answer" in first
    assert f"erica-dist track {run_dir}" in last
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9 does not answer"):
        resend(run_dir)

    record = saved(run_dir)
    (run_dir / "mlflow.json").write_text(json.dumps(record | {"uri": store_uri}))
    resend(run_dir)
    assert "sent 5 records" in capsys.readouterr().out
    client, run = the_run(store_uri)
    assert len(history(client, run, "loss")) == 4
    assert run.info.status == "FINISHED"
    assert run.info.start_time == round(record["started"] * 1000)
    assert run.info.end_time == round(record["closed"][1] * 1000)
    resend(run_dir)
    assert "has everything" in capsys.readouterr().out


def test_a_failed_batch_is_sent_again_once_the_store_is_back(
    store_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    real, failures = MlflowClient.log_batch, iter([True, True])

    def flaky(self: MlflowClient, run_id: str, metrics: Any = (), **rest: Any) -> Any:
        if metrics and next(failures, False):
            real(self, run_id, metrics[: len(metrics) // 2])  # half arrives, then the line breaks
            raise ConnectionError("gone")
        return real(self, run_id, metrics, **rest)

    monkeypatch.setattr(MlflowClient, "log_batch", flaky)
    sink = train(tmp_path / "run", 1, 50, close=False)
    deadline = time.monotonic() + 30
    while saved(tmp_path / "run")["sent"].get("metrics.jsonl") != 50 and time.monotonic() < deadline:
        time.sleep(0.02)
    sink.close("FAILED", [])
    client, run = the_run(store_uri)
    assert history(client, run, "loss") == [(s, 10.0 / s) for s in range(1, 51)]
    assert run.info.status == "FAILED"
    assert len([r for r in caplog.records if "does not answer" in r.getMessage()]) == 1


def test_non_finite_losses_are_told_by_a_tag(store_uri: str, tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "run" / "metrics.jsonl")
    sink = start(tmp_path / "run")
    for step, loss in [(1, 2.0), (2, float("nan")), (3, float("inf")), (4, 1.0)]:
        journal.write({"step": step, "loss": loss})
    sink.close("FINISHED", [])
    client, run = the_run(store_uri)
    assert history(client, run, "loss") == [(1, 2.0), (4, 1.0)]
    assert run.data.tags["event.non_finite"] == "2x, at step 2, 3"


def test_without_a_store_nothing_is_written(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(run_dir, 1, 2, uri="none")
    assert not (run_dir / "mlflow.json").exists()
    assert not (tmp_path / "mlflow.db").exists()
    with pytest.raises(UserError, match=r"tracking\.uri=none"):
        resend(run_dir)


def test_bad_trackings_never_reach_the_trainer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 100)
    train(tmp_path / "a", 1, 2, uri=f"sqlite:///{tmp_path / 'broken.db'}")
    train(tmp_path / "b", 1, 2, uri="gopher://nowhere")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mlflow.json").write_text("{")
    train(tmp_path / "c", 1, 2)
    assert len([r for r in caplog.records if "does not answer" in r.getMessage()]) == 2
    assert len([r for r in caplog.records if "no MLflow for this run" in r.getMessage()]) == 1


def test_passwords_do_not_reach_the_store(store_uri: str, tmp_path: Path) -> None:
    train(tmp_path / "run", 1, 1, **{"tracking.uri": "postgresql://me:secret@db.example/mlflow"})
    _, run = the_run(store_uri)
    assert run.data.params["tracking.uri"] == "postgresql://db.example/mlflow"


KILLED_TRAINING = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.test_tracking_mlflow import saved, train
run = Path(sys.argv[1])
train(run, 1, 5, close=False)
while saved(run)["sent"].get("metrics.jsonl") != 5:
    time.sleep(0.05)
print("trained", flush=True)
time.sleep(600)
"""


def killed_training(run_dir: Path) -> None:
    """A training in a process of its own that is killed with -9 while it is RUNNING in the store."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_TRAINING, str(run_dir), str(Path(__file__).parents[1])], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"trained\n"
        with pytest.raises(UserError, match="still trained by process"):
            resend(run_dir)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_a_killed_training_is_marked_by_track_and_continued_by_a_resume(store_uri: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    killed_training(run_dir)
    client, run = the_run(store_uri)
    assert run.info.status == "RUNNING"
    resend(run_dir)
    client, run = the_run(store_uri)
    assert run.info.status == "KILLED"
    assert len(history(client, run, "loss")) == 5
    train(run_dir, 6, 7, resumed=5)
    client, run = the_run(store_uri)
    assert run.info.status == "FINISHED"
    assert len(history(client, run, "loss")) == 7


def test_runs_of_dead_processes_are_closed_and_those_of_others_left(store_uri: str) -> None:
    client = store.connect(store_uri)
    experiment = store.experiment_id(client, store_uri, EXPERIMENT)
    me = Owner.of_this_process()
    owners = {
        "mine": me,
        "dead": Owner(me.host, 2**22 + 1, me.started),
        "recycled": Owner(me.host, os.getpid(), me.started - 100),
        "elsewhere": Owner("another-host", 1, 0.0),
    }
    for name, owner in owners.items():
        client.create_run(experiment, run_name=name, tags=owner.tags())
    client.create_run(experiment, run_name="nobody's")
    assert sorted(store.close_dead_runs(client, experiment)) == ["dead", "recycled"]
    status = {run.info.run_name: run.info.status for run in client.search_runs([experiment])}
    assert status["dead"] == status["recycled"] == "KILLED"
    assert status["mine"] == status["elsewhere"] == status["nobody's"] == "RUNNING"


def test_a_training_that_fails_before_its_first_step_leaves_no_run_running(store_uri: str, tmp_path: Path) -> None:
    shards = write_sequences_folder(tmp_path / "shards", sequences=12, validation=4)
    arguments = {"shards": str(shards), "out": str(tmp_path), "uri": store_uri}
    (ends,) = run_ranks("tests.rank_programs:failing_trainings", 1, arguments)
    assert ends == {
        "engine": "RuntimeError",
        "terminal": "OSError",
        "held out": "RuntimeError",
        "data": "RuntimeError",
        "loss": "status 2",
        "disk": "OSError",
    }
    client = store.connect(store_uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    status = {run.info.run_name: run.info.status for run in client.search_runs([experiment.experiment_id])}
    # without an engine the training had not begun in MLflow
    assert status == dict.fromkeys(("terminal", "held out", "data", "loss", "disk"), "FAILED")


def _train_in_new_store(run_dir: Path) -> None:
    train(run_dir, 1, 3)


def test_two_runs_may_make_the_store_at_the_same_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_train_in_new_store, args=(tmp_path / name,)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [saved(tmp_path / name)["delivered"] for name in "ab"] == [True, True]
    client = store.connect(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert sorted((run.info.run_name, run.info.status) for run in runs) == [("a", "FINISHED"), ("b", "FINISHED")]


def test_a_deleted_experiment_is_named(store_uri: str) -> None:
    client = store.connect(store_uri)
    client.delete_experiment(store.experiment_id(client, store_uri, EXPERIMENT))
    with pytest.raises(UserError, match="'test' was deleted in MLflow"):
        store.experiment_id(client, store_uri, EXPERIMENT)


def test_resend_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run folder"):
        resend(tmp_path / "nothing")
