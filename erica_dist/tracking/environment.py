"""What a run was computed with: versions, machine and source. Written beside the run and kept as tags in MLflow."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

from erica_dist.shards.tarfiles import write_atomically

PACKAGES = (
    "erica-dist",
    "torch",
    "deepspeed",
    "transformers",
    "tokenizers",
    "safetensors",
    "webdataset",
    "numpy",
    "mlflow",
    "ray",
    "spacy",
)
_TAGGED = ("erica-dist", "torch", "deepspeed", "transformers", "webdataset", "numpy")


def environment() -> dict[str, Any]:
    """Python, package versions, host, processor, threads, GPUs, and the state of the source tree.

    `git` is {"commit", "dirty", "diff_sha256"} when this package lies in a git checkout, otherwise null; `dirty` and
    the diff count tracked files only.
    """
    import torch

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": torch.version.cuda,
        "slurm": {name: os.environ[name] for name in _SLURM if name in os.environ},
        "git": git_state(Path(__file__).resolve().parents[2]),
    }


_SLURM = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT")


def write_environment(run_dir: str | Path) -> dict[str, Any]:
    """`environment()`, also written to RUN_DIR/environment.json."""
    found = environment()
    write_atomically(
        Path(run_dir) / "environment.json", json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n"
    )
    return found


def environment_tags(found: dict[str, Any]) -> dict[str, str]:
    """The part of `environment()` that runs are told apart by, as MLflow tags."""
    tags = {f"version.{name}": found["packages"][name] for name in _TAGGED if name in found["packages"]}
    tags |= {"version.python": found["python"], "host": found["host"], "cpu": found["cpu"]}
    if found["gpus"]:
        tags["gpus"] = f"{len(found['gpus'])} x {', '.join(sorted(set(found['gpus'])))}"
    if found["git"]:
        tags |= {"git_commit": found["git"]["commit"], "git_dirty": str(found["git"]["dirty"]).lower()}
        tags["mlflow.source.git.commit"] = found["git"]["commit"]
    return tags


def git_state(root: Path) -> dict[str, Any] | None:
    """Commit, dirty flag and hash of the diff of the checkout at `root`; None when there is none, or git refuses it."""
    if not (root / ".git").exists():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    diff = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color")
    if commit is None or diff is None:
        return None
    return {
        "commit": commit.decode().strip(),
        "dirty": bool(diff),
        "diff_sha256": hashlib.sha256(diff).hexdigest() if diff else None,
    }


def _git(root: Path, *arguments: str) -> bytes | None:
    # Without the optional locks a training never gets in the way of somebody who works in the same checkout.
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else platform.processor() or platform.machine()
