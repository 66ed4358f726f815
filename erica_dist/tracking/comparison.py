"""Comparison of runs: reads them from MLflow into plain values, prints tables, and writes a page and pictures.

`compare` is `erica-dist compare`. `load_runs` gives the runs as dataclasses; tables.py turns them into tables,
curves.py into pictures and report.py into the page.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from erica_dist.errors import UserError
from erica_dist.tracking import store
from erica_dist.tracking.catalogue import Better

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric as Point
    from mlflow.entities import Run

LAST_STEPS = 10  # a training metric's value is its mean over so many steps: one step's is noise


@dataclass(frozen=True)
class Curve:
    """One metric of one run, by rising optimizer step."""

    steps: np.ndarray  # int64[n]
    values: np.ndarray  # float64[n]
    times: np.ndarray  # float64[n], seconds since 1970

    def averaged(self, window: int) -> np.ndarray:
        """Means over the last `window` values [n - window + 1]; over all values when there are fewer."""
        window = min(window, len(self.values))
        return np.convolve(self.values, np.full(window, 1 / window), mode="valid")

    def final(self, window: int = 1) -> float:
        return float(self.averaged(window)[-1])

    def best(self, better: Better, window: int = 1) -> tuple[float, int]:
        """The best mean over `window` values and the last step of it."""
        means = self.averaged(window)
        place = int(np.argmin(means) if better == "lower" else np.argmax(means))
        return float(means[place]), int(self.steps[place + min(window, len(self.values)) - 1])


@dataclass(frozen=True)
class RunSummary:
    """One run as MLflow has it."""

    run_id: str
    name: str
    label: str  # the name, with the start of the id where several runs have the same name
    kind: str  # erica, electra, or empty when it cannot be told
    status: str
    started: float  # seconds since 1970
    seconds: float  # from start to end (of what arrived, when it still runs), without pauses between kill and resume
    params: dict[str, str]
    tags: dict[str, str]
    curves: dict[str, Curve]

    @property
    def steps(self) -> int:
        """The last optimizer step that was recorded."""
        return max((int(curve.steps[-1]) for curve in self.curves.values()), default=0)

    @property
    def tokens_per_second(self) -> float | None:
        """Median over the steps."""
        curve = self.curves.get("tokens_per_second")
        return float(np.median(curve.values)) if curve else None

    @property
    def documents_per_second(self) -> float | None:
        """Median over the steps."""
        curve = self.curves.get("documents_per_second")
        return float(np.median(curve.values)) if curve else None


def compare(uri: str, experiment: str, out: str | Path, runs: Sequence[str] = ()) -> None:
    """Print the comparison of `runs` (names or ids; none: all) and write OUT/index.html and OUT/*.png.

    Raises:
        UserError: a store that cannot be read, an unknown experiment or run (with the names that exist), or a folder
            that cannot be written.
    """
    # They work on the dataclasses above.
    from erica_dist.tracking.report import write_report
    from erica_dist.tracking.tables import print_tables

    found = load_runs(uri, experiment, runs)
    print_tables(found)
    page = write_report(found, Path(out), experiment, store.shown(uri))
    print(f"wrote {page}")


def load_runs(uri: str, experiment: str, runs: Sequence[str] = ()) -> list[RunSummary]:
    """The runs of `experiment` in order of their start, those of dead trainers closed first.

    Raises:
        UserError: see `compare`.
    """
    with _readable(uri):
        client = store.connect(uri, create=False)
        experiment_id = _experiment_id(client, uri, experiment)
        store.close_dead_runs(client, experiment_id)
        stored = _all_runs(client, experiment_id)
        chosen = _choose(stored, runs, experiment)
        names = Counter(run.info.run_name for run in stored)
        return [_summary(client, run, alone=names[run.info.run_name] == 1) for run in chosen]


@contextmanager
def _readable(uri: str) -> Iterator[None]:
    """Turn whatever MLflow raises into one error that names the store."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"cannot read the MLflow store {store.shown(uri)}: {lines[0][:300]}. A store is given as "
            "sqlite:////absolute/path/mlflow.db or as a running server's http://HOST:PORT"
        ) from error


def _experiment_id(client: MlflowClient, uri: str, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        names = ", ".join(sorted(item.name for item in client.search_experiments()))
        raise UserError(f"there is no experiment {name!r} in {store.shown(uri)}; it has: {names or 'none'}")
    return str(found.experiment_id)


def _all_runs(client: MlflowClient, experiment_id: str) -> list[Run]:
    runs: list[Run] = []
    token = None
    while True:
        page = client.search_runs([experiment_id], page_token=token)
        runs, token = [*runs, *page], page.token
        if not token:
            return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_name))


def _choose(stored: list[Run], wanted: Sequence[str], experiment: str) -> list[Run]:
    known = {run.info.run_id for run in stored} | {run.info.run_name for run in stored}
    unknown = [name for name in wanted if name not in known]
    if unknown or not stored:
        names = ", ".join(sorted({run.info.run_name for run in stored})) or "no runs at all"
        what = f"no run {', '.join(map(repr, unknown))}" if unknown else "nothing to compare"
        raise UserError(f"{what} in the experiment {experiment!r}; it has: {names}")
    return [run for run in stored if not wanted or {run.info.run_id, run.info.run_name} & set(wanted)]


def _summary(client: MlflowClient, run: Run, alone: bool) -> RunSummary:
    keys = sorted(run.data.metrics)
    histories = {key: client.get_metric_history(run.info.run_id, key) for key in keys}
    curves = {key: curve for key, points in histories.items() if (curve := _curve(points)) is not None}
    started = run.info.start_time / 1000
    last = max((curve.times[-1] for curve in curves.values()), default=started)
    end = run.info.end_time / 1000 if run.info.end_time and run.info.status != "RUNNING" else last
    pauses = _pauses(curves["loss"].times) if "event.resumed_from" in run.data.tags and "loss" in curves else 0.0
    name = run.info.run_name or run.info.run_id[:8]
    return RunSummary(
        run_id=run.info.run_id,
        name=name,
        label=name if alone else f"{name} ({run.info.run_id[:6]})",
        kind=_kind(run),
        status=run.info.status,
        started=started,
        seconds=max(0.0, end - started - pauses),
        params=dict(run.data.params),
        tags=dict(run.data.tags),
        curves=curves,
    )


def _curve(points: list[Point]) -> Curve | None:
    """The finite points by step; the newest of several of one step."""
    newest = {
        point.step: point for point in sorted(points, key=lambda p: (p.step, p.timestamp)) if np.isfinite(point.value)
    }
    if not newest:
        return None
    return Curve(
        steps=np.array(list(newest), dtype=np.int64),
        values=np.array([point.value for point in newest.values()], dtype=np.float64),
        times=np.array([point.timestamp / 1000 for point in newest.values()], dtype=np.float64),
    )


def _pauses(times: np.ndarray) -> float:
    """Seconds that a killed run lay still before it was resumed: gaps that are far longer than a step."""
    gaps = np.diff(times)
    if not len(gaps):
        return 0.0
    usual = float(np.median(gaps))
    long = gaps[gaps > max(60.0, 20 * usual)]
    return float(long.sum() - usual * len(long))


def _kind(run: Run) -> str:
    if "job" in run.data.tags:
        return str(run.data.tags["job"])
    return next((kind for kind in ("electra", "erica") if any(p.startswith(f"{kind}.") for p in run.data.params)), "")


def duration(seconds: float) -> str:
    """`seconds` for a reader: 45 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
