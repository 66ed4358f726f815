"""Kills at random in corpus builds on a Ray cluster of two nodes: every corpus equals that of an undisturbed build.

    .venv/bin/python benchmarks/soak.py --kills 20 --seed 0

Of a made world a corpus is built without Ray; then the same job runs as a command on the cluster while, at moments and
of kinds drawn by the seed, a worker in the middle of a unit, the raylet of the second node, or the command itself is
killed with SIGKILL. A killed node is started again, and so is the command, which goes on with what is done. Prints the
kills and ends with status 1 if any byte differs or a unit failed. Not part of the test suite: it takes minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from data_tools.build import build_corpus
from erica_dist.config import CorpusJob, RayConfig
from erica_dist.settings import dump
from tests.corpora import corpus_job, folder_bytes
from tests.ray_nodes import ENVIRONMENT, OTHER, Node, start, two_nodes

KINDS = ("worker", "raylet", "command")
PATIENCE = 600.0


@dataclasses.dataclass
class Build:
    """One corpus under way: its folder, the command that builds it, and how often that was started."""

    job: CorpusJob
    settings: Path
    process: subprocess.Popen[str] | None = None
    starts: int = 0

    def run(self) -> None:
        """Start the command where none runs."""
        if self.process is None:
            self.settings.write_text(dump(self.job))
            words = [sys.executable, "-m", "erica_dist.cli", "build-corpus", "--config", str(self.settings)]
            log = self.settings.with_suffix(".log").open("a")
            environment = {**os.environ, **ENVIRONMENT}
            self.process = subprocess.Popen(words, stdout=log, stderr=log, text=True, env=environment)
            self.starts += 1

    def finished_units(self) -> int:
        return len(list(Path(self.job.out, ".build", "units").glob("*.json")))


def kill(kind: str, build: Build, nodes: list[Node], address: str, draw: random.Random) -> str:
    """Kill one of `kind`, put a node back, and say who it was; "" where none of that kind is at work right now."""
    if kind == "command":
        assert build.process is not None
        build.process.send_signal(signal.SIGKILL)
        build.process.wait()
        victim, build.process = f"process {build.process.pid}", None
        return victim
    if kind == "raylet":
        if not nodes[1].workers("build_unit"):
            return ""
        victim = f"node {OTHER}, process {getattr(nodes[1].raylet(), 'pid', 0)}"
        nodes[1].kill()
        nodes[1].end()
        nodes[1] = start(address, OTHER)
        return victim
    workers = [worker for node in nodes for worker in node.workers("build_unit")]
    if not workers:
        return ""
    worker = draw.choice(workers)
    worker.kill()
    return f"process {worker.pid}"


def soak(folder: Path, kills: int, seed: int, pages: int) -> tuple[list[tuple[str, ...]], list[Build]]:
    """Builds, each ended, in which `kills` kills took place; and the kills as rows of a table.

    Raises:
        RuntimeError: a command ended with an error, or nothing happened for long.
    """
    draw = random.Random(seed)
    rows: list[tuple[str, ...]] = []
    builds: list[Build] = []
    with two_nodes() as (address, nodes):
        while len(rows) < kills:
            job = dataclasses.replace(
                corpus_job(folder, f"soak-{len(builds)}", pages, ner=True), ray=RayConfig(address)
            )
            build = Build(job, folder / f"soak-{len(builds)}.yaml")
            builds.append(build)
            units = pages // job.pages_per_task
            while True:
                build.run()
                kind = draw.choice(KINDS) if len(rows) < kills else ""
                goal = build.finished_units() + draw.randint(1, max(1, 2 * units // kills))
                victim = wait_and_kill(kind, goal, build, nodes, address, draw)
                if not victim:
                    break
                rows.append(
                    (str(len(rows) + 1), kind, victim, f"{build.finished_units()} of {units}", str(len(builds)))
                )
                print(*rows[-1], flush=True)
    return rows, builds


def wait_and_kill(kind: str, goal: int, build: Build, nodes: list[Node], address: str, draw: random.Random) -> str:
    """Kill one of `kind` ("": none) once `goal` units are done, and give who it was; "" where it ended before."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert build.process is not None
        status = build.process.poll()
        if status == 0:
            return ""
        if status is not None or time.monotonic() > deadline:
            raise RuntimeError(f"status {status}:\n{build.settings.with_suffix('.log').read_text()[-3000:]}")
        if kind and build.finished_units() >= goal and (victim := kill(kind, build, nodes, address, draw)):
            return victim
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pages", type=int, default=600, help="of the made world, five a unit")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_corpus(corpus_job(folder, "undisturbed", args.pages, ner=True))
        rows, builds = soak(folder, args.kills, args.seed, args.pages)
        expected = folder_bytes(folder / "undisturbed")
        equal = [folder_bytes(Path(build.job.out)) == expected for build in builds]
    table = Table("kill", "of", "victim", "units done", "build", title=f"seed {args.seed}")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    kinds = Counter(row[1] for row in rows)
    print(
        f"{len(rows)} kills ({', '.join(f'{kinds[kind]} of a {kind}' for kind in KINDS)}), {len(builds)} builds by "
        f"{sum(build.starts for build in builds)} commands; byte-identical to the undisturbed build: {all(equal)}"
    )
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
