"""Workers, a whole node and the command itself killed in a build on Ray: the same corpus, byte for byte."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from data_tools.build import build_corpus
from erica_dist.config import CorpusJob, RayConfig
from erica_dist.settings import dump
from tests.corpora import corpus_job, folder_bytes
from tests.ray_nodes import ENVIRONMENT, two_nodes

pytestmark = pytest.mark.ray
PAGES, UNITS = 120, 24
PATIENCE = 240.0  # seconds until something must have happened


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an undisturbed build, without Ray, stands in `corpus`."""
    folder = tmp_path_factory.mktemp("world")
    build_corpus(corpus_job(folder, pages=PAGES, ner=True))
    return folder


def job(world: Path, out: str, workers: int) -> CorpusJob:
    return corpus_job(world, out, pages=PAGES, workers=workers, ner=True)


def finished_units(out: Path) -> int:
    return len(list((out / ".build" / "units").glob("*.json")))


def wait_for(condition, process: subprocess.Popen | None = None) -> None:  # type: ignore[no-untyped-def,type-arg]
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        assert process is None or process.poll() is None, "the command has ended"
        time.sleep(0.02)


def busy_workers(parent: psutil.Process) -> list[psutil.Process]:
    """Ray worker processes below `parent` that run a unit at this moment."""
    found = []
    for process in parent.children(recursive=True):
        try:
            if "ray::build_unit" in " ".join(process.cmdline()) or "ray::build_unit" in process.name():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_killed_workers_change_nothing(world: Path) -> None:
    out = world / "killed"
    victims: list[int] = []

    def kill_two() -> None:
        deadline = time.monotonic() + PATIENCE
        while len(victims) < 2 and time.monotonic() < deadline:
            # one at its first unit, one later
            if finished_units(out) >= 4 * len(victims):
                for process in busy_workers(psutil.Process())[:1]:
                    if process.pid not in victims:
                        process.send_signal(signal.SIGKILL)
                        victims.append(process.pid)
            time.sleep(0.02)

    killer = threading.Thread(target=kill_two)
    killer.start()
    build_corpus(job(world, "killed", workers=2))
    killer.join()
    assert len(victims) == 2
    assert folder_bytes(out) == folder_bytes(world / "corpus")


def test_a_killed_node_changes_nothing(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a cluster that was started before: the raylet of one of two nodes dies, the other node does its work."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    out = world / "node"
    busy: list[int] = []
    with two_nodes() as (address, (head, other)):
        assert head.process.poll() is None

        def kill() -> None:
            held: dict[int, psutil.Process] = {}  # at a stop, or the head may have done all before the other has begun
            wait_for(lambda: finished_units(out) >= 2)
            try:
                while not (workers := other.workers("build_unit")):
                    held.update({worker.pid: worker for worker in head.workers("build_unit")})
                    for worker in held.values():
                        worker.suspend()
                    assert time.monotonic() < deadline, "the other node was given nothing to do"
                    time.sleep(0.02)
                busy.extend(worker.pid for worker in workers)
                other.kill()
            finally:
                for worker in held.values():
                    worker.resume()

        deadline = time.monotonic() + PATIENCE
        killer = threading.Thread(target=kill)
        killer.start()
        build_corpus(dataclasses.replace(job(world, "node", workers=1), ray=RayConfig(address=address)))
        killer.join()
        assert busy
        assert other.process.poll() is not None
        # its workers see that it has died, and may take a moment longer than the rest of the build
        wait_for(lambda: not any(psutil.pid_exists(worker) for worker in busy))
        assert head.process.poll() is None  # the command ends its own part only
    assert "failed" not in capsys.readouterr().out
    assert folder_bytes(out) == folder_bytes(world / "corpus")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A suite started in the background has SIGINT ignored, and its children with it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_killed_command_goes_on_where_it_was(world: Path) -> None:
    out = world / "interrupted"
    settings = world / "job.yaml"
    settings.write_text(dump(job(world, "interrupted", workers=1)))
    command = [sys.executable, "-m", "erica_dist.cli", "build-corpus", "--config", str(settings)]
    done = 0
    # The one in the middle comes while the first unit is under way: nothing is added to what was done.
    for number, status, more in (
        (signal.SIGINT, 130, 1),
        (signal.SIGTERM, 143, 0),
        (signal.SIGKILL, -signal.SIGKILL, 1),
    ):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                goal, command_process = done + more, psutil.Process(process.pid)
                wait_for(
                    lambda goal=goal, parent=command_process: finished_units(out) >= goal and busy_workers(parent),
                    process,
                )
                # Ray's idle agents outlive a killed command by a minute, what works or writes does not
                children = [one for one in command_process.children(recursive=True) if "Agent" not in one.name()]
                os.kill(process.pid, number)
                output, _ = process.communicate(timeout=PATIENCE)
            finally:
                process.kill()
        assert process.returncode == status, output
        assert (f"{done} of {UNITS} units were done before" in output) == (done > 0)
        wait_for(lambda children=children: not any(child.is_running() for child in children))
        done = finished_units(out)
        assert 0 < done < UNITS
        assert not (out / "manifest.json").exists()
    last = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert last.returncode == 0, last.stderr
    assert f"{done} of {UNITS} units were done before" in last.stdout
    assert folder_bytes(out) == folder_bytes(world / "corpus")
    # the Ray of the killed command left its folder, which the next one removed
    owners = [path.name.split("-")[3] for path in Path("/tmp").glob("erica-ray-*")]
    assert all(Path("/proc", owner).exists() for owner in owners)
