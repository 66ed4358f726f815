"""The sink against a real MLflow server that is started late: parameters, metrics and artifacts over HTTP."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_tracking_mlflow import history, saved, start, the_run

pytest_plugins = ["tests.tracking_stores"]


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def server(address: str, store_uri: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    host, port = address.split(":")
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", port, "--workers", "1"]
    command += ["--backend-store-uri", store_uri, "--artifacts-destination", str(tmp_path / "served")]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            # the runner of jobs would leave a folder in /dev/shm, and nothing here runs jobs
            env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # The server and its worker at once: an orderly end takes many seconds, and nothing of it is needed.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_up(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not come up: {log.read_text()}")


def test_a_run_reaches_a_server_that_comes_up_late(
    address: str, server: subprocess.Popen[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from erica_dist.tracking.journal import Journal

    uri, run_dir = f"http://{address}", tmp_path / "run"
    journal = Journal.open(run_dir / "metrics.jsonl")
    sink = start(run_dir, uri)  # nobody answers yet
    for step in range(1, 1501):
        journal.write({"step": step, "loss": 1.0 / step})
    wait_until_up(address, server, tmp_path / "server.log")
    journal.close()
    (run_dir / "config.yaml").write_text("train: {}\n")
    sink.close("FINISHED", [])
    assert saved(run_dir)["delivered"], [record.getMessage() for record in caplog.records]
    client, run = the_run(uri)
    assert history(client, run, "loss") == [(step, 1.0 / step) for step in range(1, 1501)]
    assert (run.info.status, run.data.params["erica.negatives"]) == ("FINISHED", "gather")
    assert {item.path for item in client.list_artifacts(run.info.run_id)} >= {"config.yaml", "metrics.jsonl"}
    assert list((tmp_path / "served").rglob("config.yaml"))
