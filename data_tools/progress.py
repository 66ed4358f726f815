"""How far a long step is: a live bar where standard error is a terminal, else a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LINE_SECONDS = 5.0


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
            words = [f"{self.step}: {self.done}/{self.total}", text, f"{left:.0f} s left"]
            print(", ".join(filter(None, words)), file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
