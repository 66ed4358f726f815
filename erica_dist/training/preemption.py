"""Stop signals, heard by any rank, obeyed by all at the same step.

SIGUSR1 (SLURM before the time limit), SIGTERM and SIGINT only set a flag. The loop adds the flags of all ranks up at
each step; when one is set every rank saves the same step and leaves. A second signal changes nothing, so the save is
never broken off.

The `deepspeed` command does not pass a SIGTERM on: it dies, and its ranks would train on, seen by nobody. So under that
launcher a rank also stops when a process above it has gone. Ranks that were started by hand, with RANK set, have nobody
above them who would care: a shell that is left leaves them alone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

# The batch script requeues the job when the trainer leaves with this status.
REQUEUE_STATUS = 85
DEPTH = 5  # processes above a rank among which the launcher is looked for: a wrapper script may stand between
_LAUNCHER = (b"deepspeed.launcher.launch", b"deepspeed/launcher/launch.py")  # how words of its command line end


class StopFlag:
    """True once this rank has a reason to stop; `reason` says which."""

    def __init__(self) -> None:
        self.reason = ""
        self._above: list[int] = []

    def install(self, watch_launcher: bool) -> None:
        """Take the signals over, and with `watch_launcher` remember DeepSpeed's processes above this one."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)
        self._above = _launchers() if watch_launcher else []

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or signal.Signals(number).name

    def __bool__(self) -> bool:
        if not self.reason and self._above != _ancestors(len(self._above)):
            self.reason = "the launcher is gone"
        return bool(self.reason)


def _launchers() -> list[int]:
    """Process ids from our parent up to this node's `launch.py` of DeepSpeed and the one above it: the `deepspeed`
    command, or the remote shell that it opened. Empty: no launcher of DeepSpeed started us."""
    above = _ancestors(DEPTH)
    for place, process in enumerate(above):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            break
        if any(word.endswith(_LAUNCHER) for word in words):
            return above[: place + 2]
    return []


def _ancestors(count: int) -> list[int]:
    """Process ids of our parent, its parent and so on; an orphan's parent is another one than before. Fewer than
    `count` at the top of the tree."""
    above: list[int] = []
    while len(above) < count:
        parent = os.getppid() if not above else _parent(above[-1])
        if not parent:
            break
        above.append(parent)
    return above


def _parent(process: int) -> int:
    """0: there is none, or the process is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
