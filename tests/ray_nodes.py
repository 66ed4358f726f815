"""A Ray cluster of two nodes on this machine, each on a loopback address of its own, whose nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

HEAD, OTHER = "127.0.0.2", "127.0.0.3"
PATIENCE = 120.0
# for the nodes and for the command that joins them
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_REPORT_URL": "http://127.0.0.1:9/",
    "RAY_AUTH_MODE": "disabled",
    "RAY_worker_niceness": "0",  # 15 otherwise: beside other work a worker would hardly get a processor
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


@dataclass
class Node:
    """One `ray start`, its folder, and the processes below it."""

    process: subprocess.Popen[bytes]
    folder: Path

    def raylet(self) -> psutil.Process | None:
        return next((one for one in self._children() if one.name() == "raylet"), None)

    def workers(self, title: str) -> list[psutil.Process]:
        """Worker processes of this node that run a task of this name at the moment."""
        return [one for one in self._children() if _title(one).startswith(f"ray::{title}")]

    def kill(self) -> None:
        """Kill the raylet as a node that fails would lose it; its workers follow."""
        raylet = self.raylet()
        if raylet is not None:
            raylet.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def end(self) -> None:
        children = self._children()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        for one in children:
            with contextlib.suppress(psutil.Error):
                one.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.Error:
            return []


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[str, list[Node]]]:
    """The cluster's address and its nodes, the head first, while the block lasts; a processor each."""
    with socket.socket() as free:
        free.bind((HEAD, 0))
        address = f"{HEAD}:{free.getsockname()[1]}"
    nodes: list[Node] = []
    try:
        nodes += [start(address, HEAD), start(address, OTHER)]
        yield address, nodes
    finally:
        for node in reversed(nodes):
            node.end()


def start(address: str, own: str) -> Node:
    """A node on the loopback address `own` of the cluster whose head is, or will be, at `address`."""
    folder = Path(tempfile.mkdtemp(prefix="erica-node-", dir="/tmp"))  # the paths of sockets must be short
    place = ["--head", "--include-dashboard=false", f"--port={address.split(':')[1]}"]
    if own != HEAD:
        _wait_for(address)
        place = [f"--address={address}"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *place]
    command += [f"--node-ip-address={own}", "--num-cpus=1", "--object-store-memory=100000000", f"--temp-dir={folder}"]
    environment = {**os.environ, **ENVIRONMENT, "HOME": str(folder)}
    return Node(
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), folder
    )


def _wait_for(address: str) -> None:
    host, port = address.split(":")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return ""
