"""A real HTTP server on the loopback that serves a folder, with ranges, counts what it serves and fails on demand.

In: a folder, and for each path the faults it shall have (`server.faults["/a.tar"] = Faults(unavailable=2)`). Out:
answers, `requests` and `bytes_sent` for each path, and the first byte of each answer in `starts`. And the few functions
that tests of clients in several processes need.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from erica_dist.errors import UserError

MB = 1 << 20
SIZE = 3 * MB + 12345
_CHUNK = 1 << 16
_FORK = multiprocessing.get_context("fork")


@dataclass
class Faults:
    """What goes wrong with one path; the counts go down with each request that had the fault."""

    status: int = 0  # answered to every request, say 404 or 403
    unavailable: int = 0  # requests answered 503
    cuts: int = 0  # requests whose connection is cut ...
    cut_after: int = 0  # ... after so many bytes of the body
    corrupt: int = 0  # requests answered with the right number of wrong bytes
    ignore_range: bool = False  # 200 and everything, whatever was asked for
    wrong_range: bool = False  # 206, but from byte 0 on
    slow_s: float = 0.0  # pause before each 64 KiB
    stall_after: int = -1  # bytes of the body after which the answer waits for `go_on`; -1: never
    go_on: threading.Event = field(default_factory=threading.Event)


class ShardServer(ThreadingHTTPServer):
    """Serves `folder` at `url` until the `with` block ends."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), _Answers)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: defaultdict[str, Faults] = defaultdict(Faults)
        self.requests: Counter[str] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.starts: defaultdict[str, list[int]] = defaultdict(list)
        self.lock = threading.Lock()

    def __enter__(self) -> ShardServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        for faults in self.faults.values():
            faults.go_on.set()
        self.shutdown()
        self.server_close()

    def put(self, name: str = "a.tar", size: int = SIZE, seed: int = 0) -> tuple[str, str, int]:
        """A shard of random bytes to serve: its URL, sha256 and size."""
        data = np.random.default_rng(seed).bytes(size)
        (self.folder / name).write_bytes(data)
        return f"{self.url}/{name}", hashlib.sha256(data).hexdigest(), size

    def data(self, name: str = "a.tar") -> bytes:
        """The bytes of a served file."""
        return (self.folder / name).read_bytes()

    def handle_error(self, *_: Any) -> None:
        """Clients that were killed are part of the tests."""

    def take(self, path: str, name: str) -> bool:
        """Whether a counted fault strikes this request."""
        with self.lock:
            left = getattr(self.faults[path], name)
            setattr(self.faults[path], name, max(0, left - 1))
        return left > 0


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ShardServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        server, path = self.server, self.path
        faults = server.faults[path]
        with server.lock:
            server.requests[path] += 1
        file = server.folder / path.lstrip("/")
        if faults.status or not file.is_file():
            return self._refuse(faults.status or 404)
        if server.take(path, "unavailable"):
            return self._refuse(503)
        data = file.read_bytes()
        start, end, status = 0, len(data), 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and not faults.ignore_range:
            start, end, status = int(asked[1]), min(int(asked[2]) + 1, len(data)), 206
            if start >= len(data):
                return self._refuse(416)
            if faults.wrong_range:
                start, end = 0, end - start
        with server.lock:
            server.starts[path].append(start)
        self.send_response(status)
        self.send_header("Content-Length", str(end - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        body = data[start:end]
        if server.take(path, "corrupt"):
            body = bytes(byte ^ 0xFF for byte in body[:_CHUNK]) + body[_CHUNK:]
        cut = faults.cut_after if server.take(path, "cuts") else None
        self._send(path, faults, body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, path: str, faults: Faults, body: bytes) -> None:
        place = 0
        while place < len(body):
            if 0 <= faults.stall_after <= place:
                self.wfile.flush()
                faults.go_on.wait(60)
            time.sleep(faults.slow_s)
            chunk = body[place : place + _CHUNK]
            self.wfile.write(chunk)
            place += len(chunk)
            with self.server.lock:
                self.server.bytes_sent[path] += len(chunk)


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds, a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for a minute"
        time.sleep(0.01)


def waits_for_a_lock(process: int | None) -> bool:
    """Whether a process waits for a lock that another one has, as the kernel says."""
    return any("->" in line and f" {process} " in line for line in Path("/proc/locks").read_text().splitlines())


def in_child(function: Callable[..., Any], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A forked process that runs the function, and the pipe its value comes through (or the text of its UserError)."""
    ours, theirs = _FORK.Pipe(duplex=False)

    def run() -> None:
        try:
            theirs.send(function(*arguments))
        except UserError as error:
            theirs.send(str(error))

    process = _FORK.Process(target=run, daemon=True)  # a test that fails must not wait for it
    process.start()
    return process, ours
