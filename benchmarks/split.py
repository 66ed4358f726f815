"""Seconds of the parts of a program, by timers around functions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Split:
    """Seconds by part, each without the parts called inside it; what belongs to no part counts as `rest`."""

    def __init__(self, rest: str, clock: Callable[[], float] = time.process_time) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running, self._clock = [rest], clock
        self._since = clock()

    def _turn(self) -> None:
        now = self._clock()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted as `part`."""

        def call(*args: Any, **words: Any) -> Any:
            self._turn()
            self._running.append(part)
            try:
                return function(*args, **words)
            finally:
                self._turn()
                self._running.pop()

        return call
