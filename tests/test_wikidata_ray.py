"""`build-kb` on Ray: the same bytes as in one process, also when workers or the whole command are killed."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from data_tools.kb import KnowledgeBase
from data_tools.wikidata import dump, stages
from data_tools.wikidata.builder import build_kb
from erica_dist.config import KnowledgeBaseJob, RayConfig
from tests.corpora import folder_bytes
from tests.wikidata_naive import dump_of, world

pytestmark = pytest.mark.ray
PATIENCE = 120.0  # seconds until something must have happened
# Sizes that only the driver uses: what workers do with a task does not depend on them
SIZES = {"dump.MB": 120_000, "dump.BZ2_RATIO": 20, "stages.BYTES_A_NAME": 4_000, "stages.BYTES_A_FACT": 4_000}
COMMAND = (
    "import sys; from data_tools.wikidata import dump, stages; from erica_dist.cli import main; "
    + "; ".join(f"{name} = {value}" for name, value in SIZES.items())
    + "; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of 120 kB and ranges of 256 rows."""
    for name, value in SIZES.items():
        module, _, constant = name.partition(".")
        monkeypatch.setattr({"dump": dump, "stages": stages}[module], constant, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = dump_of(world(700))
    folder = tmp_path_factory.mktemp("world")
    (folder / "dump.json").write_bytes(content)
    (folder / "dump.json.gz").write_bytes(gzip.compress(content, mtime=0))
    return folder


def job(folder: Path, out: str, packing: str = "", **ray: Any) -> KnowledgeBaseJob:
    return KnowledgeBaseJob(
        dump=str(folder / f"dump.json{packing}"), out=str(folder / out), unit_mb=1, task_mb=1, ray=RayConfig(**ray)
    )


@pytest.fixture
def expected(folder: Path) -> dict[str, bytes]:
    """What one process without Ray builds."""
    build_kb(job(folder, "alone", disabled=True))
    return folder_bytes(folder / "alone")


def runs(out: Path) -> int:
    return len(list((out / ".build" / "runs").glob("*.json")))


def busy_workers(process: psutil.Process) -> list[psutil.Process]:
    """Ray workers below `process` that run a task at this moment."""
    found = []
    for child in process.children(recursive=True):
        try:
            if " ".join(child.cmdline()).startswith(("ray::extract", "ray::merge")):
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_two_workers_of_whom_two_are_killed(folder: Path, expected: dict[str, bytes]) -> None:
    assert len(KnowledgeBase.open(folder / "alone").manifest["tables"]["names"]) > 4
    victims: list[int] = []

    def kill_two() -> None:
        deadline = time.monotonic() + PATIENCE
        while len(victims) < 2 and time.monotonic() < deadline:
            for worker in busy_workers(psutil.Process())[:1] if runs(folder / "killed") >= 3 * len(victims) else ():
                if worker.pid not in victims:
                    worker.send_signal(signal.SIGKILL)
                    victims.append(worker.pid)
            time.sleep(0.002)

    killer = threading.Thread(target=kill_two)
    killer.start()
    build_kb(job(folder, "killed", workers=2))
    killer.join()
    assert len(victims) == 2
    assert folder_bytes(folder / "killed") == expected


def test_a_dump_that_is_read_in_order(folder: Path, expected: dict[str, bytes]) -> None:
    build_kb(job(folder, "packed", ".gz", workers=2))
    build_kb(job(folder, "packed alone", ".gz", disabled=True))
    assert folder_bytes(folder / "packed") == folder_bytes(folder / "packed alone")
    assert not list(folder.glob("**/piece-*"))
    assert KnowledgeBase.open(folder / "packed").manifest["counts"]["lines"] == 700 + 35 + 3 + 1


def test_the_command_is_killed_and_started_again(folder: Path, expected: dict[str, bytes]) -> None:
    """Without shutting Ray down; from another folder, by relative paths."""
    arguments = ["build-kb", "--dump", "dump.json", "--out", "again", "unit_mb=1", "task_mb=1", "ray.workers=2"]
    command = [sys.executable, "-c", COMMAND, *arguments]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env=environment, **quiet) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while runs(folder / "again") < 8:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.01)
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()  # its workers go on for a while, beside those of the next
    assert not (folder / "again" / "manifest.json").exists()
    finished = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "were done before" in finished.stdout
    assert folder_bytes(folder / "again") == expected
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
