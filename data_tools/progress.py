"""How far a long step is: a live bar where standard error is a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINE_SECONDS = 5.0
PACE_SECONDS = 60.0


class Pace:
    """How much a second came in over the last minute: a build that slows down shows it, whatever went before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._arrived = deque([(clock(), 0)])

    def add(self, amount: int) -> None:
        now = self._clock()
        self._arrived.append((now, amount))
        # the oldest entry is only a mark in time: what came with it is not counted
        while len(self._arrived) > 2 and self._arrived[1][0] <= now - PACE_SECONDS:
            self._arrived.popleft()

    @property
    def per_second(self) -> float:
        first, last = self._arrived[0][0], self._arrived[-1][0]
        return sum(amount for _, amount in list(self._arrived)[1:]) / max(last - first, 1e-6)


class StepProgress:
    """Shows `done` of `total` parts of `step` with a free text, and the time left by the pace so far."""

    def __init__(self, step: str, total: int):
        self.step = step
        self.total = total
        self.done = 0
        self.started = time.monotonic()
        self._last_line = self.started
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> StepProgress:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
            self._bar = Progress(
                *columns, TimeRemainingColumn(), TextColumn("{task.fields[text]}"), console=self._console
            )
            self._bar.start()
            self._task = self._bar.add_task(self.step, total=self.total, text="")
        return self

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.started, 1e-6)

    def advance(self, parts: int = 1, text: str = "") -> None:
        """`parts` more are done; `text` says what has come out so far."""
        self.done += parts
        if self._bar:
            self._bar.update(self._task, completed=self.done, text=text)
        elif time.monotonic() - self._last_line >= LINE_SECONDS or self.done == self.total:
            self._last_line = time.monotonic()
            left = self.seconds / max(self.done, 1) * (self.total - self.done)
            words = [f"{self.step}: {self.done}/{self.total}", text, f"{_time(left)} left"]
            print(", ".join(filter(None, words)), file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
