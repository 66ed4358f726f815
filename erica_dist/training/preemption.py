"""Stop signals, heard by any rank, obeyed by all at the same step.

SIGUSR1 (SLURM before the time limit), SIGTERM and SIGINT only set a flag. The loop adds the flags of all ranks up at
each step; when one is set every rank saves the same step and leaves. A second signal changes nothing, so the save is
never broken off.

The `deepspeed` command does not pass a SIGTERM on: it dies, and its ranks would train on, seen by nobody. So under that
launcher a rank also stops when a process above it has gone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

# The batch script requeues the job when the trainer leaves with this status.
REQUEUE_STATUS = 85


class StopFlag:
    """True once this rank has a reason to stop; `reason` says which."""

    def __init__(self) -> None:
        self.reason = ""
        self._launchers: tuple[int, int] | None = None

    def install(self, watch_launcher: bool) -> None:
        """Take the signals over, and with `watch_launcher` remember the two launcher processes above this one."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)
        self._launchers = _launchers() if watch_launcher else None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or signal.Signals(number).name

    def __bool__(self) -> bool:
        if not self.reason and self._launchers not in (None, _launchers()):
            self.reason = "the launcher is gone"
        return bool(self.reason)


def _launchers() -> tuple[int, int]:
    """Process ids of our parent and of its parent; an orphan's parent is another one than before."""
    parent = os.getppid()
    try:
        fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return parent, 0
    return parent, int(fields[1])
