"""All units of a corpus build run and watched: how far it is, what failed, and an end where nothing comes out.

In: the units to build and a `Tally` of those that were done before. Out: the tally of all, and the failed units. A
build that has given no document after the first units (`max_empty_share`, 20 at least) ends with the reason, as it
would at its end after hours.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_tools.count_checks import empty_stage
from data_tools.progress import Pace, StepProgress
from data_tools.ray_jobs import run_units
from data_tools.steps import Counts, UnitTask
from erica_dist.config import CorpusJob
from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import write_atomically

LEAST_UNITS = 20  # fewer say nothing of the rest
LISTED = 5


@dataclass(frozen=True)
class Failure:
    """A unit that could not be built."""

    name: str  # its fingerprint
    file: str
    place: str
    pages: int
    attempts: int
    error: str

    @property
    def last_line(self) -> str:
        return self.error.strip().splitlines()[-1]


@dataclass
class Tally:
    """What the finished units have given; cpu_seconds and rss_mb (the largest) are of their workers."""

    units: int = 0
    documents: int = 0
    counts: Counts = field(default_factory=dict)
    cpu_seconds: float = 0.0
    rss_mb: float = 0.0

    def add(self, index: Mapping[str, Any]) -> None:
        self.units += 1
        self.documents += len(index["documents"])
        for stage, of_stage in index["counts"].items():
            self.counts.setdefault(stage, Counter()).update(of_stage)
        self.cpu_seconds += index.get("cpu_seconds", 0.0)
        self.rss_mb = max(self.rss_mb, index.get("rss_mb", 0.0))

    @property
    def words(self) -> int:
        return self.counts.get("words", Counter())["read"]

    @property
    def dropped(self) -> int:
        passages = self.counts.get("passages", Counter())
        return passages["cut"] - passages["passed"]

    def pace_text(self) -> str:
        """What the workers needed, "" where no unit tells it."""
        if not self.cpu_seconds:
            return ""
        return (
            f"{self.words:,} words in {self.cpu_seconds:,.0f} CPU seconds of the workers, "
            f"{self.words / self.cpu_seconds:,.0f} words a CPU second; largest memory of a worker {self.rss_mb:,.0f} MB"
        )


def run_watched(
    function: Callable[[UnitTask], Any], todo: Sequence[UnitTask], tally: Tally, job: CorpusJob, slots: int
) -> list[Failure]:
    """Run `function` on each unit of `todo`, add what comes out to `tally`, and give the failures.

    Raises:
        UserError: nothing comes out, or the disk is full.
    """
    failures: list[Failure] = []
    total = tally.units + len(todo)
    limit = max(LEAST_UNITS, math.ceil(job.max_empty_share * total)) if job.max_empty_share else math.inf
    warned = False
    pace = Pace()
    with StepProgress("build-corpus: units", len(todo)) as progress:
        for finished in run_units(function, todo, slots, job.ray.retries):
            words = tally.words
            if finished.error:
                failures.append(_failure(finished.task, finished.attempts, finished.error))
            else:
                tally.add(finished.value)
            pace.add(tally.words - words)
            ended = tally.units + len(failures)
            if not tally.documents and 2 * ended >= limit and not warned:
                warned = True
                print(f"build-corpus: warning: no document yet: {_reason(tally, failures)}", flush=True)
            if not tally.documents and ended >= limit:
                raise UserError(
                    f"nothing came out of the first {ended:,} of {total:,} units: {_reason(tally, failures)}\n"
                    "What is finished is kept; max_empty_share=0 goes on to the end."
                )
            text = f"{tally.documents:,} documents kept, {tally.dropped:,} passages dropped"
            text += f", {pace.per_second:,.0f} words/s"
            progress.advance(text=text + (f", {len(failures)} failed" if failures else ""))
    return failures


def judge_failures(failures: Sequence[Failure], units: int, allowed: float, report: Path) -> None:
    """Write the failures with their traces into `report`, and stop where they are more than `allowed` of all `units`.

    Raises:
        UserError: they are.
    """
    report.unlink(missing_ok=True)
    if not failures:
        return
    write_atomically(report, json.dumps([asdict(one) for one in failures], ensure_ascii=False, indent=1).encode())
    listed = "\n".join(
        f"- {one.file}, {one.place} ({one.attempts} attempt(s)): {one.error.strip()}" for one in failures[:LISTED]
    )
    text = f"{len(failures)} of {units} units failed; all are listed in {report}."
    if len(failures) > allowed * units:
        raise UserError(
            f"{text} The others are kept: run the same command again once the cause is removed, or go on without the "
            f"failed units by --max-failed-share {math.ceil(1000 * len(failures) / units) / 1000:g}.\n{listed}"
        )
    print(f"build-corpus: warning: {text} The corpus is made without them (--max-failed-share).\n{listed}", flush=True)


def _failure(task: UnitTask, attempts: int, error: str) -> Failure:
    unit = task.unit
    place = f"pages {unit.first_page} to {unit.first_page + unit.count - 1}"
    return Failure(task.fingerprint, unit.path, place, unit.count, attempts, error)


def _reason(tally: Tally, failures: Sequence[Failure]) -> str:
    if failures and not tally.units:
        return f"all failed. The last one, {failures[-1].file}, {failures[-1].place}: {failures[-1].last_line}"
    return empty_stage(tally.counts)
