"""Stale build locks, the folder of compiled operators, and that training compiles nothing."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from erica_dist.errors import UserError
from erica_dist.training import native
from erica_dist.training.cluster import map_environment

ROOT = Path(native.__file__).parents[2]


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "fused_adam" / "lock"
    path.parent.mkdir()
    path.touch()
    return path


def test_a_lock_that_nobody_holds_is_removed_at_once(lock, capfd):
    assert native.clear_stale_locks(lock.parents[1]) == [lock]
    assert not lock.exists()
    assert str(lock) in capfd.readouterr().err


def test_a_build_that_runs_is_waited_for(lock):
    descriptor = os.open(lock, os.O_RDONLY)

    def finish():
        time.sleep(0.7)
        assert lock.exists(), "removed under a builder that holds it"
        os.remove(lock)
        os.close(descriptor)

    builder = threading.Thread(target=finish)
    builder.start()
    assert native.clear_stale_locks(lock.parents[1]) == []
    builder.join()


def test_on_a_shared_file_system_only_a_quiet_build_is_dead(lock, monkeypatch):
    monkeypatch.setattr(native, "_on_local_disk", lambda path: False)
    old = time.time() - 700
    os.utime(lock, (old, old))
    os.utime(lock.parent, (old, old))
    (lock.parent / "being_written.o").touch()
    os.utime(lock.parent, (old, old))
    assert native._quiet_for(lock.parent) < 60  # another host compiles
    os.utime(lock.parent / "being_written.o", (old, old))
    assert native.clear_stale_locks(lock.parents[1]) == [lock]


def test_the_folder_is_named_after_the_stack(monkeypatch, tmp_path):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("ERICA_DIST_CACHE", str(tmp_path))
    folder = native.extensions_folder()
    assert folder.parent == tmp_path / "extensions"
    assert folder.name.startswith(f"py{sys.version_info.major}{sys.version_info.minor}-torch2.")
    monkeypatch.delenv("ERICA_DIST_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert native.extensions_folder().parent == Path("/cache/erica-dist/extensions")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/mine")
    assert native.extensions_folder() == Path("/mine")


def test_a_cache_that_cannot_be_written_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match="ERICA_DIST_CACHE"):
        native.prepare()


TWO_RANKS = """
from erica_dist.training.cluster import map_environment
info = map_environment()
from erica_dist.training.native import prepare
prepare()
import torch, deepspeed
deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
module = torch.nn.Linear(4, 1, bias=False)
torch.nn.init.ones_(module.weight)
engine, *_ = deepspeed.initialize(
    model=module, optimizer=torch.optim.SGD(module.parameters(), 0.5),
    config={
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
    },
)
engine.backward(engine(torch.full((1, 4), info.rank + 1.0)).sum())
engine.step()
print(f"rank {info.rank} of {info.world_size}: {module.weight.tolist()}", flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.distributed
def test_two_ranks_of_the_deepspeed_launcher_need_no_compiler_and_leave_no_shared_memory(tmp_path):
    script = tmp_path / "two_ranks.py"
    script.write_text(TWO_RANKS, encoding="utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        "CXX": "/bin/false",
        "CC": "/bin/false",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
    }
    port = str(map_environment({}).master_port)
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", "2"]
    done = subprocess.run(
        [*launcher, "--master_port", port, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The gradient is the mean of 1 and 2 over the ranks, so that each weight is 1 - 0.5 * 1.5.
    for rank in (0, 1):
        assert f"rank {rank} of 2: [[0.25, 0.25, 0.25, 0.25]]" in done.stdout
    assert list((tmp_path / "extensions").iterdir()) == []
    assert list(Path("/dev/shm").glob(f"deepspeed_*_{port}_*")) == []
