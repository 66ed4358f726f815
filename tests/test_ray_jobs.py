"""Units of work on Ray: retries, failures, back-pressure, and that nothing of it is left behind."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from data_tools import ray_jobs
from data_tools.ray_jobs import IN_FLIGHT_PER_SLOT, local_or_remote, run_units
from erica_dist.config import RayConfig
from erica_dist.errors import UserError


@dataclass(frozen=True)
class Step:
    """A task of the tests: what to do (see `perform`), and where attempts are noted."""

    number: int
    action: str
    folder: str


def perform(step: Step) -> int:
    """Square the number; or die (once, or always) in the middle of the work, or raise, or meet an I/O error."""
    note = Path(step.folder, f"{step.number}-{time.monotonic_ns()}")
    before = len(list(Path(step.folder).glob(f"{step.number}-*")))
    note.write_text(step.action)
    if step.action == "die" or (step.action == "die once" and not before):
        os.kill(os.getpid(), signal.SIGKILL)
    if step.action == "raise":
        raise KeyError(f"no value in step {step.number}")
    if step.action == "io" or (step.action == "io once" and not before):
        raise OSError(errno.EIO, "the file system is away")
    if step.action == "full":
        raise UserError("cannot write step") from OSError(errno.ENOSPC, "full")
    if step.action == "kill ray":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return step.number**2


def attempts(folder: Path, number: int) -> int:
    return len(list(folder.glob(f"{number}-*")))


def private_rays() -> list[str]:
    return [process.name() for process in psutil.Process().children(recursive=True) if "ray" in process.name()]


def test_without_ray_errors_are_answers_too(tmp_path: Path) -> None:
    steps = [Step(1, "", str(tmp_path)), Step(2, "raise", str(tmp_path)), Step(3, "", str(tmp_path))]
    with local_or_remote(RayConfig(disabled=True)) as slots:
        assert slots == 0
        finished = list(run_units(perform, steps, slots, retries=3))
    assert [(one.task.number, one.value) for one in finished] == [(1, 1), (2, None), (3, 9)]
    assert "no value in step 2" in finished[1].error
    assert finished[0].error == ""


def test_io_errors_are_retried_and_a_full_disk_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "PAUSE_SECONDS", 0.001)
    steps = [Step(1, "io once", str(tmp_path)), Step(2, "io", str(tmp_path)), Step(3, "raise", str(tmp_path))]
    finished = list(run_units(perform, steps, 0, retries=2))
    assert [(one.value, one.attempts, attempts(tmp_path, one.task.number)) for one in finished] == [
        (1, 2, 2),
        (None, 3, 3),
        (None, 1, 1),
    ]
    assert "the file system is away" in finished[1].error
    steps = [Step(4, "", str(tmp_path)), Step(5, "full", str(tmp_path)), Step(6, "", str(tmp_path))]
    answers = run_units(perform, steps, 0, retries=2)
    assert next(answers).value == 16
    with pytest.raises(UserError, match="cannot write step\nWhat is finished is kept: make room"):
        next(answers)
    assert attempts(tmp_path, 5) == 1


@pytest.mark.ray
def test_deaths_are_retried_and_exceptions_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # another Ray that must not be joined, and a home that Ray must not use
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.9:6379")
    monkeypatch.setenv("HOME", str(tmp_path))
    environment = dict(os.environ)
    actions = {3: "die once", 5: "raise", 7: "die", 8: "die once", 9: "io once"}
    folder = tmp_path / "attempts"
    folder.mkdir()
    steps = [Step(number, actions.get(number, ""), str(folder)) for number in range(12)]
    handed: list[int] = []

    def hand_out() -> Iterator[Step]:
        for step in steps:
            handed.append(step.number)
            yield step

    answered = 0
    with local_or_remote(RayConfig(workers=2, object_store_mb=90)) as slots:
        assert slots == 2
        finished = {}
        for one in run_units(perform, hand_out(), slots, retries=2):  # type: ignore[arg-type]  # any iterable serves
            answered += 1
            assert len(handed) <= answered + slots * IN_FLIGHT_PER_SLOT
            finished[one.task.number] = one
        assert private_rays()
        with pytest.raises(UserError, match="cannot write step"):
            list(run_units(perform, [Step(20, "full", str(folder))], slots, retries=2))
    assert sorted(finished) == list(range(12))
    assert {n: one.value for n, one in finished.items() if not one.error} == {
        n: n**2 for n in range(12) if n not in (5, 7)
    }
    assert finished[3].attempts == finished[8].attempts == finished[9].attempts == 2
    assert finished[5].attempts == 1
    assert attempts(folder, 5) == 1
    assert "no value in step 5" in finished[5].error
    assert finished[7].attempts == attempts(folder, 7) == 3
    assert "died 3 times" in finished[7].error
    # nothing left: processes, folder, environment, files in the home
    assert private_rays() == []
    assert list(Path("/tmp").glob(f"erica-ray-{os.getuid()}-{os.getpid()}-*")) == []
    assert dict(os.environ) == environment
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempts"]


@pytest.mark.ray
def test_a_ray_that_dies_ends_everything_with_one_message(tmp_path: Path) -> None:
    steps = [Step(1, "", str(tmp_path)), Step(2, "kill ray", str(tmp_path)), Step(3, "", str(tmp_path))]
    answers = []
    with local_or_remote(RayConfig(workers=1, object_store_mb=90)) as slots:
        finished = run_units(perform, steps, slots, retries=3)
        answers.append(next(finished).value)
        with pytest.raises(UserError, match=r"Ray has died on this machine.*run the same command again"):
            next(finished)
    assert answers == [1]
    assert private_rays() == []


class NoNodes(ModuleType):
    """A Ray whose tasks wait for ever, since no node is there."""

    def __init__(self) -> None:
        super().__init__("ray")

    def remote(self, *_: object, **__: object) -> Any:
        task = SimpleNamespace(options=lambda **_: task, remote=lambda *_: object())
        return lambda _: task

    def wait(self, references: list[object], **_: object) -> tuple[list[object], list[object]]:
        return [], references

    def cluster_resources(self) -> dict[str, float]:
        return {"memory": 1.0}


def test_a_cluster_without_nodes_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.exceptions

    assert ray.exceptions
    monkeypatch.setitem(sys.modules, "ray", NoNodes())
    with pytest.raises(UserError, match="no Ray node is left"):
        list(run_units(perform, [Step(1, "", str(tmp_path))], 2, retries=1))


class Growing(NoNodes):
    """A Ray whose cluster gets two more processors once the first task has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.handed = 0
        self.most = 0

    def remote(self, *_: object, **__: object) -> Any:
        def hand_out(*_: object) -> object:
            self.handed += 1
            self.most = max(self.most, self.handed)
            return object()

        task = SimpleNamespace(options=lambda **_: task, remote=hand_out)
        return lambda _: task

    def wait(self, references: list[object], **_: object) -> tuple[list[object], list[object]]:
        self.handed -= 1
        return references[:1], references[1:]

    def get(self, reference: object) -> int:
        return 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}


def test_nodes_that_join_later_are_given_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.exceptions

    assert ray.exceptions
    growing = Growing()
    monkeypatch.setitem(sys.modules, "ray", growing)
    monkeypatch.setattr(ray_jobs, "GROWTH_SECONDS", 0.0)
    finished = run_units(perform, [Step(number, "", str(tmp_path)) for number in range(9)], 1, retries=1)
    assert next(finished).value == 1
    assert growing.most <= 3 * IN_FLIGHT_PER_SLOT
    assert len(list(finished)) == 8
    assert growing.most == 3 * IN_FLIGHT_PER_SLOT


@pytest.mark.ray
def test_an_address_without_a_cluster_is_refused() -> None:
    with pytest.raises(UserError, match=r"127\.0\.0\.9:1"), local_or_remote(RayConfig(address="127.0.0.9:1")):
        pass


@pytest.mark.parametrize(
    ("memory_mb", "disk_mb", "store", "said"),
    [
        (24_000, 5_000, (200, False), ""),
        (300, 5_000, (150, False), "/dev/shm has 300 MB free and /tmp 5,000 MB: 150 MB of object store (wanted: 200)"),
        (64, 5_000, (200, True), "/dev/shm has 64 MB free and /tmp 5,000 MB: 200 MB of object store (wanted: 200) in"),
        (64, 400, None, r"/dev/shm has 64 MB free and /tmp 400 MB; a local Ray needs 500 MB in /tmp \(/dev/shm is too"),
        (24_000, 200, None, "/tmp 200 MB; a local Ray needs 300 MB in /tmp: make room, or ray.disabled=true"),
    ],
)
def test_small_shared_memory_and_a_full_disk_are_said_with_numbers(
    memory_mb: int,
    disk_mb: int,
    store: tuple[int, bool] | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    free = {Path("/dev/shm"): memory_mb * 2**20, Path("/tmp"): disk_mb * 2**20}
    monkeypatch.setattr(ray_jobs.shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    if store is None:
        with pytest.raises(UserError, match=said), local_or_remote(RayConfig(workers=1)):
            pass
        assert list(Path("/tmp").glob(f"erica-ray-{os.getuid()}-{os.getpid()}-*")) == []
        return
    size, slow = ray_jobs._object_store(RayConfig(workers=1))
    assert (size // 2**20, slow) == store
    printed = capsys.readouterr().err
    assert said in printed
    assert bool(printed) == bool(said)
