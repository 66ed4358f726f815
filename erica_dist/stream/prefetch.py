"""Work done ahead by other processes: `make(step)` for a range of steps, in order, whatever the number of workers.

In: a function of the step and the steps. Out: its results, one after the other. Worker w makes steps w, w + workers,
... and hands each over through its own pipe; it starts on the next one as soon as the last is taken, so as many results
are in the making or ready as there are workers. Results go through pipes and not through shared memory: a run that is
killed at any moment leaves nothing in /dev/shm and no open descriptors pile up.

Results are pickled between this process and its own forks only; nothing that was on a disk or a network is.

Workers never see the signals that tell a trainer to stop (it still needs batches until it has saved), and end with it:
the kernel kills them when the trainer's thread that started them dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import pickle
import signal
import struct
import traceback
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from erica_dist.errors import UserError

_PR_SET_PDEATHSIG = 1
_PIPE_BYTES = 1 << 20
_STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


class Prefetch:
    """Iterator over `make(step)` for `steps`, made by `workers` processes. Close it, or leave its `with` block."""

    def __init__(self, make: Callable[[int], Any], steps: range, workers: int):
        self._steps = steps
        self._workers: list[tuple[BaseProcess, Connection]] = []
        # also at the interpreter's exit, where multiprocessing would wait for workers that do not hear SIGTERM
        self._finalizer = weakref.finalize(self, _end, self._workers)
        # fork: shard indices and settings are shared, not copied, and the function needs no pickling
        context = multiprocessing.get_context("fork")
        former = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        try:
            for first in range(min(workers, len(steps))):
                ours, theirs = context.Pipe(duplex=False)
                with contextlib.suppress(OSError):  # what one user's pipes may hold together is bounded
                    fcntl.fcntl(ours.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                process = context.Process(
                    target=_work,
                    args=(make, steps[first::workers], theirs, os.getpid()),
                    name=f"erica-dist-loader-{first}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._workers.append((process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def __iter__(self) -> Iterator[Any]:
        """The results in the order of the steps.

        Raises:
            UserError: as raised in a worker.
            RuntimeError: a worker failed otherwise (with its traceback) or was killed.
        """
        for place in range(len(self._steps)):
            process, connection = self._workers[place % len(self._workers)]
            try:
                kind, value = _receive(connection)
            except EOFError:
                process.join()
                raise RuntimeError(
                    f"loader worker {process.name} died (exit code {process.exitcode}); "
                    "with -9 the machine ran out of memory: lower data.workers or train.micro_batch"
                ) from None
            if kind == "user error":
                raise UserError(value)
            if kind == "fault":
                raise RuntimeError(f"loader worker {process.name} failed:\n{value}")
            yield value

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers."""
        return [process.pid for process, _ in self._workers if process.pid is not None]

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; waits until they are gone."""
        self._finalizer()


def _end(workers: list[tuple[BaseProcess, Connection]]) -> None:
    # workers hold nothing that needs an orderly end
    for process, _ in workers:
        process.kill()
    for process, connection in workers:
        process.join()
        process.close()
        connection.close()
    workers.clear()


def _work(make: Callable[[int], Any], steps: range, connection: Connection, parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        return
    for step in steps:
        try:
            message = ("value", make(step))
        except UserError as error:
            message = ("user error", str(error))
        except Exception:
            message = ("fault", traceback.format_exc())
        try:
            _send(connection, message)
        except BrokenPipeError:
            return
        if message[0] != "value":
            return


def _send(connection: Connection, message: tuple[str, Any]) -> None:
    """The message, its arrays behind it as they lie in memory: pickling them would copy each on both sides."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    connection.send_bytes(body)
    connection.send_bytes(struct.pack(f"{len(raw)}Q", *(part.nbytes for part in raw)))
    _write(connection.fileno(), b"".join(raw))


def _receive(connection: Connection) -> Any:
    """What `_send` sent; its arrays share one writable buffer.

    Raises:
        EOFError: the other end died, before or while it sent.
    """
    body, sizes = connection.recv_bytes(), connection.recv_bytes()
    whole = memoryview(bytearray(sum(lengths := struct.unpack(f"{len(sizes) // 8}Q", sizes))))
    done = 0
    while done < len(whole):
        got = os.readv(connection.fileno(), [whole[done:]])
        if not got:
            raise EOFError
        done += got
    buffers, at = [], 0
    for length in lengths:
        buffers.append(whole[at : at + length])
        at += length
    return pickle.loads(body, buffers=buffers)  # noqa: S301  # from our own worker


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
