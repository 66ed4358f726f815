"""Stop signals, heard by any rank, obeyed by all at the same step.

SIGUSR1 (SLURM before the time limit), SIGTERM and SIGINT only set a flag. The loop adds the flags of all ranks up at
each step; when one is set every rank saves the same step and leaves. A second signal changes nothing, so the save is
never broken off.
"""

from __future__ import annotations

import signal
from types import FrameType

# The batch script requeues the job when the trainer leaves with this status (EX_TEMPFAIL is taken by srun itself).
REQUEUE_STATUS = 85


class StopFlag:
    """Truthy once a stop signal came."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def install(self) -> None:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)

    def __bool__(self) -> bool:
        return self.received is not None
