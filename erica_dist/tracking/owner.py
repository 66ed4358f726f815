"""Which process owns a run: how a run whose trainer was killed without a word is told from one that still trains.

A process is named by host, process id and its start time, because ids are used again. Only a process of this host can
be looked up; of another host's nothing is known.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Owner:
    host: str
    pid: int
    started: float  # seconds since 1970

    @classmethod
    def of_this_process(cls) -> Owner:
        return cls(socket.gethostname(), os.getpid(), round(psutil.Process().create_time(), 2))

    def alive(self) -> bool | None:
        """Whether the process still runs; None when it is another host's."""
        if self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.pid)
            # The clock may be set between two looks; another process with the same id within 2 s is not to be feared.
            return abs(process.create_time() - self.started) < 2 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True

    def tags(self) -> dict[str, str]:
        return {"owner.host": self.host, "owner.pid": str(self.pid), "owner.started": str(self.started)}

    @classmethod
    def from_tags(cls, tags: dict[str, str]) -> Owner | None:
        """The owner that `tags` recorded, None when they hold none."""
        try:
            return cls(tags["owner.host"], int(tags["owner.pid"]), float(tags["owner.started"]))
        except (KeyError, ValueError):
            return None
