"""What is recorded of machine and source."""

import hashlib
import json
import subprocess
from pathlib import Path

import torch

from erica_dist.tracking.environment import environment_tags, git_state, write_environment


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def test_the_environment_is_written_and_tagged(tmp_path: Path) -> None:
    found = write_environment(tmp_path)
    assert json.loads((tmp_path / "environment.json").read_text()) == found
    assert found["packages"]["torch"] == torch.__version__
    assert found["torch_threads"] == torch.get_num_threads()
    assert found["cores"] >= 1
    assert len(found["gpus"]) == torch.cuda.device_count()
    tags = environment_tags(found)
    assert tags["version.torch"] == torch.__version__
    assert all(isinstance(value, str) for value in tags.values())
    if found["git"]:
        assert tags["git_commit"] == found["git"]["commit"]
        assert tags["git_dirty"] in ("true", "false")


def test_the_state_of_a_checkout(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("one\n")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "untracked").write_text("")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False, "diff_sha256": None}
    (tmp_path / "a").write_text("two\n")
    diff = git(tmp_path, "diff", "HEAD", "--binary")
    expected = hashlib.sha256(diff.encode()).hexdigest()
    assert git_state(tmp_path) == {"commit": commit, "dirty": True, "diff_sha256": expected}
