"""Runs a function over units of work: on a private local Ray, on a running cluster, or in this process.

In: a module-level function and small picklable tasks (paths and ranges, never texts). Out: one `Finished` a task, in
the order in which they end. At most `IN_FLIGHT_PER_SLOT` tasks a slot are handed to Ray at a time. A task whose
worker or node died, or that an I/O error ended, is tried again, `retries` times at most; another exception would come
again and is not retried. Either way a failed task is an answer with its error, and the others go on. Only a full disk
ends everything: no other task could write either.

The private Ray listens on a loopback address of its own, makes no outside call, never joins another Ray, and leaves
nothing behind: its folder is short-lived and its processes end with this one.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from erica_dist.config import RayConfig
from erica_dist.errors import UserError

Task = TypeVar("Task")
IN_FLIGHT_PER_SLOT = 2
TASKS_PER_WORKER = 100  # then the worker process is replaced, before what libraries cache grows large
LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by the address of a network card; this one it takes as it is
REACH_SECONDS = 10.0  # until a cluster must have answered
GROWTH_SECONDS = 5.0  # between two looks for processors that have joined the cluster
LOOK_SECONDS = 30.0  # without an answer: then it is looked whether the cluster still has a processor
PAUSE_SECONDS = 0.5  # of a worker before the second attempt after an I/O error; doubles with each further one
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
SHARED_MEMORY = Path("/dev/shm")
MINIMAL_STORE = 80 * 2**20
TEMPORARY = Path("/tmp")  # short: the paths of Ray's sockets below its folder may have 107 characters
TEMPORARY_BYTES = 300 * 2**20  # Ray's logs, and little else: tasks and answers are small
_PREFIX = "erica-ray-"
_WITHOUT = "ray.disabled=true does without Ray"


@dataclass(frozen=True)
class Finished(Generic[Task]):
    """The end of one task: its value, or the text of the error it failed with (then `value` is None)."""

    task: Task
    value: Any
    error: str = ""
    attempts: int = 1


@contextlib.contextmanager
def local_or_remote(config: RayConfig) -> Iterator[int]:
    """A Ray to run on while the block lasts; gives its slots (tasks at a time), 0: without Ray, in this process.

    Raises:
        UserError: the cluster at `config.address` cannot be reached, or a local Ray cannot be started.
    """
    if config.disabled:
        yield 0
        return
    with _environment({"RAY_USAGE_STATS_ENABLED": "0", "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/"}):
        if config.address:
            with _joined(config.address):
                yield _slots(config)
        else:
            with _private(config):
                yield _slots(config)


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    import ray

    host, _, port = address.rpartition(":")
    try:
        if not host or not port.isdigit():
            raise ValueError("an address is host:port, as `ray start --head` prints it")
        # Ray itself goes on trying for minutes where nobody listens.
        socket.create_connection((host, int(port)), timeout=REACH_SECONDS).close()
        with _own_sigterm():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UserError(f"ray.address={address!r}: cannot join a Ray cluster there ({error})") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _private(config: RayConfig) -> Iterator[None]:
    import ray

    if ray.is_initialized():
        raise UserError("this process already runs on a Ray; end it, or give its address as ray.address")
    _remove_leftovers()
    store, slow = _object_store(config)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getuid()}-{os.getpid()}-", dir=TEMPORARY))
    except OSError as error:
        raise UserError(f"a local Ray cannot write into {TEMPORARY}: {error.strerror}; {_WITHOUT}") from error
    (folder / "ray_bootstrap_config.yaml").write_text("provider: {type: local}\n")  # keeps Ray from asking cloud hosts
    variables = {
        "HOME": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_ADDRESS": None,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    try:
        with _environment(variables):
            if slow:
                os.environ["RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE"] = "1"
            try:
                with _own_sigterm():
                    ray.init(
                        address="local",
                        num_cpus=_local_slots(config),
                        num_gpus=0,
                        include_dashboard=False,
                        object_store_memory=store,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                        configure_logging=False,
                        _temp_dir=str(folder),
                        _node_ip_address=LOOPBACK,
                    )
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise UserError(f"a local Ray cannot be started ({error}); {_WITHOUT}") from error
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _local_slots(config: RayConfig) -> int:
    return config.workers or len(os.sched_getaffinity(0))


def _slots(config: RayConfig) -> int:
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1))) if config.address else _local_slots(config)


def _object_store(config: RayConfig) -> tuple[int, bool]:
    """Bytes of the object store, at most half of the free shared memory, and whether it must lie on the disk.

    Raises:
        UserError: the disk has too little room for what Ray writes there.
    """
    wanted = max(config.object_store_mb * 2**20, MINIMAL_STORE)
    memory = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    slow = memory < 2 * MINIMAL_STORE
    store = wanted if slow else min(wanted, memory // 2)
    disk = shutil.disk_usage(TEMPORARY).free
    needed = TEMPORARY_BYTES + (store if slow else 0)
    numbers = f"{SHARED_MEMORY} has {memory // 2**20:,} MB free and {TEMPORARY} {disk // 2**20:,} MB"
    if disk < needed:
        why = f" ({SHARED_MEMORY} is too small for its object store)" if slow else ""
        raise UserError(
            f"{numbers}; a local Ray needs {needed // 2**20:,} MB in {TEMPORARY}{why}: make room, or {_WITHOUT}"
        )
    if store < wanted or slow:
        place = f"{TEMPORARY}, which is slower" if slow else SHARED_MEMORY
        text = f"ray: {numbers}: {store // 2**20:,} MB of object store (wanted: {wanted // 2**20:,}) in {place}"
        print(text, file=sys.stderr, flush=True)
    return store, slow


def _remove_leftovers() -> None:
    """Folders of Rays of this user whose process was killed."""
    for folder in TEMPORARY.glob(f"{_PREFIX}{os.getuid()}-*"):
        process = folder.name.split("-")[3]
        if process.isdigit() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keeps this process's handler of SIGTERM: Ray's prints a trace and leaves with a status of its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """`variables` set (None: unset) while the block lasts."""
    before = dict(os.environ)
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True)
class _Failure:
    """What came of a task in place of a value. io: by an I/O error, so that another attempt may succeed."""

    text: str
    io: bool
    disk_full: bool


def run_units(
    function: Callable[[Task], Any], tasks: Iterable[Task], slots: int, retries: int
) -> Iterator[Finished[Task]]:
    """Run `function` on each of `tasks` within `local_or_remote`, `slots` being what that gave; a cluster may grow.

    Raises:
        UserError: a disk is full, Ray has died on this machine, or no node of the cluster is left.
    """
    if slots:
        yield from _on_ray(function, tasks, slots, retries)
        return
    for task in tasks:
        for attempt in itertools.count(1):
            value = _attempt(function, task, attempt)
            if not _again(value, attempt, retries):
                break
        yield _finished(task, value, attempt)


def _attempt(function: Callable[[Task], Any], task: Task, attempt: int) -> Any:
    """The value of the function, or a `_Failure`; told apart where the exception is, since Ray keeps only its text."""
    if attempt > 1:
        time.sleep(PAUSE_SECONDS * 2 ** (attempt - 2))
    try:
        return function(task)
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else traceback.format_exc(limit=-6)
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__
        return _Failure(text, io=cause is not None, disk_full=cause is not None and cause.errno in DISK_FULL)


def _again(value: Any, attempt: int, retries: int) -> bool:
    return isinstance(value, _Failure) and value.io and not value.disk_full and attempt <= retries


def _finished(task: Task, value: Any, attempt: int) -> Finished[Task]:
    if not isinstance(value, _Failure):
        return Finished(task, value, attempts=attempt)
    if value.disk_full:
        raise UserError(f"{value.text.strip()}\nWhat is finished is kept: make room and run the same command again.")
    return Finished(task, None, value.text, attempt)


def _on_ray(
    function: Callable[[Task], Any], tasks: Iterable[Task], slots: int, retries: int
) -> Iterator[Finished[Task]]:
    import ray
    from ray.exceptions import LocalRayletDiedError, RayError

    # Retries are counted here: Ray's own would restart tasks killed for memory without end.
    remote: Any = ray.remote(max_retries=0, max_calls=TASKS_PER_WORKER, num_cpus=1)(_attempt)
    remote = remote.options(name=getattr(function, "__name__", "unit"))  # the title of a worker's process
    waiting = iter(tasks)
    running: dict[Any, tuple[Task, int]] = {}
    looked = time.monotonic()
    while True:
        if time.monotonic() - looked > GROWTH_SECONDS:
            # A node that has joined since, also one that an autoscaler started for what waits, is given work too.
            slots = max(slots, int(ray.cluster_resources().get("CPU", 0)))
            looked = time.monotonic()
        for task in itertools.islice(waiting, slots * IN_FLIGHT_PER_SLOT - len(running)):
            running[remote.remote(function, task, 1)] = (task, 1)
        if not running:
            return
        ready = ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)[0]
        if not ready and not ray.cluster_resources().get("CPU"):
            raise UserError("no Ray node is left; what is finished is kept: start Ray and run the same command again")
        for reference in ready:
            task, attempt = running.pop(reference)
            try:
                value = ray.get(reference)
            except LocalRayletDiedError as error:
                text = "Ray has died on this machine, killed or out of memory; what is finished is kept"
                raise UserError(f"{text}: run the same command again") from error
            except RayError as error:
                value = _Failure(f"its worker died {attempt} times; the last time: {error}", io=True, disk_full=False)
            if _again(value, attempt, retries):
                running[remote.remote(function, task, attempt + 1)] = (task, attempt + 1)
            else:
                yield _finished(task, value, attempt)
