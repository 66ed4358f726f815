"""The pace of the last minute, and plain lines where there is no terminal."""

from __future__ import annotations

from collections import Counter

import pytest

from data_tools import progress
from data_tools.progress import Pace, StepProgress
from data_tools.unit_runs import Tally


def test_the_pace_is_that_of_the_last_minute() -> None:
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    assert pace.per_second == 0
    for _ in range(100):
        now[0] += 2
        pace.add(20)
    assert pace.per_second == pytest.approx(10)
    for _ in range(40):  # 80 seconds: nothing of the fast time is left
        now[0] += 2
        pace.add(2)
    assert pace.per_second == pytest.approx(1)
    now[0] += 300
    pace.add(600)
    assert pace.per_second == pytest.approx(2)


def test_lines_without_a_terminal_say_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with StepProgress("step", 4) as shown:
        shown.started -= 600
        shown.advance(1, "so far")
        shown.started -= 20_000
        shown.advance(1, "more")
        shown.advance(2, "all")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "step: 1/4, so far, 30 min left",
        "step: 2/4, more, 5.7 h left",
        "step: 4/4, all, 0 s left",
    ]


def test_the_tally_adds_up_and_keeps_the_largest_memory() -> None:
    tally = Tally()
    assert tally.pace_text() == ""
    for cpu, rss in ((1.5, 800), (0.5, 700)):
        counts = {"words": {"read": 3000}, "passages": {"cut": 9, "passed": 4}}
        tally.add({"documents": [[], []], "counts": counts, "cpu_seconds": cpu, "rss_mb": rss})
    tally.add({"documents": [], "counts": {"pages": Counter()}})
    assert (tally.units, tally.documents, tally.words, tally.dropped) == (3, 4, 6000, 10)
    assert tally.pace_text() == (
        "6,000 words in 2 CPU seconds of the workers, 3,000 words a CPU second; largest memory of a worker 800 MB"
    )
