"""Really start several processes of one job and collect what each has to say.

`run_ranks("tests.rank_programs:name", 2, {...})` starts two Python processes with the environment that a launcher gives
(RANK, WORLD_SIZE, MASTER_ADDR, ...), each calls the function with the arguments, and the JSON-able results come back in
rank order. A rank that fails fails the test with its traceback; all ranks are ended in any case.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def run_ranks(program: str, ranks: int, arguments: dict[str, Any], timeout: float = 400) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        Path(folder, "arguments.json").write_text(json.dumps(arguments))
        started = []
        for rank in range(ranks):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-m", "tests.ranks", program, folder]
            with open(Path(folder, f"log-{rank}"), "wb") as log:
                started.append(subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log))
        try:
            statuses = [process.wait(timeout) for process in started]
        finally:
            for process in started:
                process.kill()
        logs = [Path(folder, f"log-{rank}").read_text(errors="replace")[-4000:] for rank in range(ranks)]
        assert statuses == [0] * ranks, f"ranks ended with {statuses}:\n" + "\n---\n".join(logs)
        return [json.loads(Path(folder, f"result-{rank}.json").read_text()) for rank in range(ranks)]


def main() -> None:
    program, folder = sys.argv[1:]
    module, _, function = program.partition(":")
    arguments = json.loads(Path(folder, "arguments.json").read_text())
    result = getattr(importlib.import_module(module), function)(**arguments)
    Path(folder, f"result-{os.environ['RANK']}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
