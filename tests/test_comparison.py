"""The comparison of runs: values read from the store, tables, page and pictures."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from mlflow.entities import Metric

from erica_dist.errors import UserError
from erica_dist.tracking import store
from erica_dist.tracking.comparison import Curve, RunSummary, compare, duration, load_runs
from erica_dist.tracking.curves import moving_average, thinned
from erica_dist.tracking.owner import Owner
from erica_dist.tracking.tables import differences, number, overview, results

pytest_plugins = ["tests.tracking_stores"]

EXPERIMENT = "runs"
START = 1_700_000_000.0


def add_run(
    uri: str,
    name: str,
    params: dict[str, str],
    metrics: dict[str, list[tuple[int, float]]],
    tags: dict[str, str] | None = None,
    status: str = "FINISHED",
    times: dict[int, float] | None = None,
) -> str:
    """A run of the store whose step s was recorded s seconds after its start (or at `times[s]`)."""
    client = store.connect(uri)
    experiment = store.experiment_id(client, uri, EXPERIMENT)
    run = client.create_run(experiment, start_time=round(START * 1000), run_name=name, tags=tags or {})
    for key, value in params.items():
        client.log_param(run.info.run_id, key, value)
    points = [
        Metric(key, value, round((START + (times or {}).get(step, step)) * 1000), step)
        for key, pairs in metrics.items()
        for step, value in pairs
    ]
    client.log_batch(run.info.run_id, metrics=points)
    if status != "RUNNING":
        client.set_terminated(run.info.run_id, status, end_time=round((START + 100) * 1000))
    return str(run.info.run_id)


def steps(*values: float, first: int = 1) -> list[tuple[int, float]]:
    return list(enumerate(values, start=first))


@pytest.fixture
def two_kinds(store_uri: str) -> str:
    """Two ERICA runs that differ in the negatives and one ELECTRA run."""
    speed = {"tokens_per_second": steps(100, 300, 200), "documents_per_second": steps(1, 5, 2)}
    add_run(
        store_uri,
        "gather",
        {"erica.negatives": "gather", "train.lr": "0.1", "run.dir": "a"},
        {"loss": steps(9, 8, 7), "heldout/ed_accuracy": [(0, 0.2), (2, 0.7), (3, 0.6)], **speed},
        tags={"job": "erica", "git_commit": "a" * 40},
    )
    add_run(
        store_uri,
        "local",
        {"erica.negatives": "local", "train.lr": "0.1", "run.dir": "b"},
        {"loss": steps(9, 8.5), "heldout/ed_accuracy": [(0, 0.2), (2, 0.5)]},
        tags={"job": "erica", "git_commit": "b" * 40},
    )
    add_run(
        store_uri,
        "small",
        {"electra.generator_layers": "1.0"},
        {
            "loss_generator": steps(*np.linspace(9, 3, 40)),
            "heldout/auc": [(0, 0.5), (40, 0.75)],
            "odd.metric": steps(1),
        },
        status="FAILED",
    )
    return store_uri


def test_runs_are_read_as_values(two_kinds: str) -> None:
    gather, local, small = load_runs(two_kinds, EXPERIMENT)
    assert [(r.label, r.kind, r.status, r.steps) for r in (gather, local, small)] == [
        ("gather", "erica", "FINISHED", 3),
        ("local", "erica", "FINISHED", 2),
        ("small", "electra", "FAILED", 40),
    ]
    assert gather.curves["loss"].steps.tolist() == [1, 2, 3]
    assert gather.curves["loss"].values.tolist() == [9.0, 8.0, 7.0]
    assert gather.curves["heldout/ed_accuracy"].best("higher") == (0.7, 2)
    assert gather.curves["heldout/ed_accuracy"].final() == 0.6
    assert (gather.tokens_per_second, gather.documents_per_second) == (200.0, 2.0)
    assert (local.tokens_per_second, local.documents_per_second) == (None, None)
    assert (gather.started, gather.seconds) == (START, 100.0)
    assert gather.params["erica.negatives"] == "gather"


def test_runs_are_chosen_by_name_and_by_id(two_kinds: str) -> None:
    small = load_runs(two_kinds, EXPERIMENT, ["small"])[0]
    chosen = load_runs(two_kinds, EXPERIMENT, [small.run_id, "local"])
    assert [run.name for run in chosen] == ["local", "small"]


def test_runs_of_one_name_are_told_apart(store_uri: str) -> None:
    ids = [add_run(store_uri, "same", {}, {"loss": steps(1)}) for _ in range(2)]
    assert {run.label for run in load_runs(store_uri, EXPERIMENT)} == {f"same ({i[:6]})" for i in ids}


def test_the_newest_point_of_a_step_counts_and_non_finite_ones_do_not(store_uri: str) -> None:
    run = add_run(store_uri, "a", {}, {"loss": [(1, 5.0), (2, float("nan")), (3, 4.0)]})
    store.connect(store_uri).log_metric(run, "loss", 6.0, timestamp=round((START + 50) * 1000), step=1)
    (found,) = load_runs(store_uri, EXPERIMENT)
    assert found.curves["loss"].steps.tolist() == [1, 3]
    assert found.curves["loss"].values.tolist() == [6.0, 4.0]


def test_the_pause_between_kill_and_resume_is_no_time_of_the_run(store_uri: str) -> None:
    losses = {"loss": steps(*[1.0] * 20)}
    times = {step: step + (3600 if step > 10 else 0) for step in range(1, 21)}
    add_run(store_uri, "resumed", {}, losses, {"event.resumed_from": "1x"}, "RUNNING", times)
    add_run(store_uri, "slow", {}, losses, {}, "RUNNING", times)
    resumed, slow = load_runs(store_uri, EXPERIMENT)
    assert (resumed.seconds, slow.seconds) == (20.0, 3620.0)


def test_a_run_whose_trainer_is_gone_is_closed_when_it_is_read(store_uri: str) -> None:
    me = Owner.of_this_process()
    dead = Owner(me.host, 2**22 + 1, me.started)
    add_run(store_uri, "dead", {}, {"loss": steps(3, 2)}, dead.tags(), "RUNNING")
    add_run(store_uri, "alive", {}, {"loss": steps(3, 2)}, me.tags(), "RUNNING")
    status = {run.name: (run.status, run.seconds) for run in load_runs(store_uri, EXPERIMENT)}
    assert status == {"dead": ("KILLED", 2.0), "alive": ("RUNNING", 2.0)}


def summary(name: str, curves: dict[str, list[tuple[int, float]]], kind: str = "erica", **params: str) -> RunSummary:
    made = {
        key: Curve(np.array([s for s, _ in pairs]), np.array([v for _, v in pairs]), np.zeros(len(pairs)))
        for key, pairs in curves.items()
    }
    return RunSummary(name, name, name, kind, "FINISHED", START, 60.0, params, {}, made)


def test_results_give_first_final_and_best_and_mark_the_winner() -> None:
    runs = [
        summary("a", {"loss": steps(*range(40, 0, -1)), "heldout/mlm_loss": [(0, 9.0), (20, 4.0), (40, 5.0)]}),
        summary("b", {"heldout/mlm_loss": [(0, 9.0), (40, 6.0)]}),
    ]
    held_out, loss = results("erica", runs).rows
    assert [cell.text for cell in held_out] == ["held-out: Masked language model loss ↓", "5", "6"]
    assert [cell.detail for cell in held_out[1:]] == ["from 9 · best 4 @ 20", "from 9 · best 6 @ 40"]
    assert [cell.best for cell in held_out[1:]] == [True, False]
    # 10, 9, ... 1: the mean over the last 10 steps
    assert [cell.text for cell in loss] == ["training: Total loss ↓", "5.5", "–"]
    assert not any(cell.best for cell in loss)


def test_only_the_settings_that_differ_are_listed() -> None:
    one = summary("a", {}, **{"erica.temperature": "0.05", "train.lr": "1", "run.dir": "x", "only.a": "1"})
    two = summary("b", {}, **{"erica.temperature": "0.1", "train.lr": "1", "run.dir": "y"})
    two.tags.update({"changed.train.lr": "1 -> 2", "git_commit": "c" * 40})
    rows = [[cell.text for cell in row] for row in differences("erica", [one, two]).rows]
    assert rows == [
        ["erica.temperature", "0.05", "0.1"],
        ["only.a", "1", "–"],
        ["train.lr", "1", "1 -> 2"],
        ["git_commit", "–", "c" * 12],
    ]
    assert differences("erica", [one, one]).note == "Nothing: the runs have the same settings."


def test_overview_holds_a_row_a_run() -> None:
    row = overview([summary("a", {"tokens_per_second": steps(12345.6)})]).rows[0]
    assert [cell.text for cell in row[:7]] == ["a", "ERICA", "FINISHED", "1", "–", "12,346", "1 min 00 s"]


def test_figures_for_readers() -> None:
    assert [number(v) for v in (0.123456, 12.0, 123456.7, 3e-5, None)] == ["0.1235", "12", "123,457", "3e-05", "–"]
    assert [duration(s) for s in (4.2, 185, 7620)] == ["4 s", "3 min 05 s", "2 h 07 min"]


def test_smoothing_and_thinning_keep_the_means() -> None:
    assert moving_average(np.array([3.0, 0.0, 3.0, 6.0]), 3).tolist() == [1.5, 2.0, 3.0, 4.5]
    assert moving_average(np.array([1.0]), 5).tolist() == [1.0]
    curve = Curve(np.arange(1, 11), np.arange(10.0), np.zeros(10))
    found_steps, values = thinned(curve, points=5)
    assert found_steps.tolist() == [1.5, 3.5, 5.5, 7.5, 9.5]
    assert values.tolist() == [0.5, 2.5, 4.5, 6.5, 8.5]


class Page(HTMLParser):
    """Collects what the page refers to and checks that its elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.cells.append(data)


def test_the_page_stands_alone_and_the_pictures_are_pictures(
    two_kinds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_run(two_kinds, "<script>alert(1)</script>", {}, {"loss": steps(1)}, {"job": "erica"})
    out = tmp_path / "report"
    compare(two_kinds, EXPERIMENT, out)
    names = {path.name for path in out.iterdir()}
    assert names == {
        "index.html",
        "erica-heldout.png",
        "erica-loss.png",
        "erica-speed.png",
        "electra-heldout.png",
        "electra-loss.png",
        "electra-objective.png",
    }
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in names if name.endswith(".png"))
    text = (out / "index.html").read_text()
    page = Page(text)
    assert {source for source in page.sources if not source.startswith("data:")} == names - {"index.html"}
    assert not re.search(
        r"(https?:)?//[a-z]", re.sub(r"sqlite:///\S+", "", text.split("</style>")[1].split("data:")[0])
    )
    assert "<script>" not in text
    for value in ("gather", "0.6", "from 0.2 · best 0.7 @ 2", "erica.negatives", "FAILED"):
        assert value in page.cells

    printed = capsys.readouterr().out
    assert "what differs in the settings" in printed
    assert "from 0.2 · best 0.7 @ 2" in printed
    assert f"wrote {out / 'index.html'}" in printed


def test_bad_questions_name_what_exists(two_kinds: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no experiment 'nope' in sqlite:.*; it has: Default, runs"):
        load_runs(two_kinds, "nope")
    with pytest.raises(UserError, match="no run 'x', 'y' in the experiment 'runs'; it has: gather, local, small"):
        load_runs(two_kinds, EXPERIMENT, ["gather", "x", "y"])
    with pytest.raises(UserError, match="nothing to compare in the experiment 'Default'; it has: no runs at all"):
        load_runs(two_kinds, "Default")
    missing = tmp_path / "missing" / "mlflow.db"
    with pytest.raises(UserError, match="there is no MLflow store"):
        load_runs(f"sqlite:///{missing}", EXPERIMENT)
    assert not missing.parent.exists()
    (tmp_path / "text.db").write_text("no database " * 1000)
    for uri in (f"sqlite:///{tmp_path / 'text.db'}", "http://127.0.0.1:9", str(tmp_path / "mlflow.db"), "gopher://x"):
        with pytest.raises(UserError, match="cannot read the MLflow store"):
            load_runs(uri, EXPERIMENT)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make the folder"):
        compare(two_kinds, EXPERIMENT, tmp_path / "file" / "report")
