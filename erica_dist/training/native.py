"""DeepSpeed's operators that are compiled at first use: none where training needs none, none waited for in vain.

DeepSpeed compiles an operator the first time a process needs it (one to two minutes), in a folder guarded by a file
named `lock`. A process that is killed meanwhile leaves that file, and every later run waits for it forever without a
word. `prepare()` runs before the first use of DeepSpeed: it points such builds at a folder of this project's own, puts
the environment's ninja first on the PATH, and removes locks that nobody holds.

On a CPU DeepSpeed would also compile `deepspeed_shm_comm` for every run of several ranks. Only tensor-parallel
inference calls it, and it leaves 66 MB a rank in /dev/shm. `prepare()` switches it off: training's collectives are
gloo's with or without it. With that and torch's own AdamW nothing is compiled, and no compiler needed, unless a
DeepSpeed JSON asks for offloading.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from erica_dist.errors import UserError

LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs"}
QUIET_SECONDS = 600.0  # on a shared file system a lock is given up when its build wrote nothing for this long


def extensions_folder() -> Path:
    """TORCH_EXTENSIONS_DIR, or a folder below $ERICA_DIST_CACHE (default ~/.cache/erica-dist) for exactly this stack.

    Operators are compiled for the processor at hand, so its features are part of the name: the nodes of a cluster may
    share a home and still differ.
    """
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("ERICA_DIST_CACHE") or Path(base) / "erica-dist")
    stack = [f"py{sys.version_info.major}{sys.version_info.minor}"]
    stack += [f"{name}{importlib.metadata.version(name)}" for name in ("torch", "deepspeed")]
    return cache / "extensions" / "-".join([*stack, _processor()])


def prepare() -> Path:
    """Make DeepSpeed safe to use in this process; gives the folder that its operators are built in.

    Waits, saying so, while another process builds there.

    Raises:
        UserError: the folder cannot be written.
    """
    folder = extensions_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise UserError(f"cannot write to {folder}: set ERICA_DIST_CACHE to a folder for compiled DeepSpeed operators")
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)
    # Another ninja than the one that built the operators builds them again.
    tools = Path(sys.executable).parent
    if (tools / "ninja").exists():
        os.environ["PATH"] = os.pathsep.join([str(tools), os.environ.get("PATH", "")])
    clear_stale_locks(folder)
    _use_gloo_alone()
    return folder


# ------------------------------------------------------------------------------------------------ locks


def clear_stale_locks(folder: Path, quiet_seconds: float = QUIET_SECONDS) -> list[Path]:
    """Remove the locks of builds that died below `folder` and wait for those that live; gives the locks removed.

    The builder keeps its lock open, so on a local disk a lock that no process has open is dead. On a shared file
    system the builder may sit on another host: there its build folder must also have been quiet for `quiet_seconds`.
    """
    removed = []
    for lock in sorted(folder.glob("*/lock")):
        told = False
        while lock.exists():
            if not _held(lock) and (_on_local_disk(lock) or _quiet_for(lock.parent) > quiet_seconds):
                _say(f"removing {lock}: the build that made it died")
                lock.unlink(missing_ok=True)
                removed.append(lock)
            else:
                if not told:
                    _say(f"waiting for another process that builds {lock.parent.name} (it holds {lock})")
                told = True
                time.sleep(0.5)
    return removed


def _held(lock: Path) -> bool:
    target = str(lock.resolve())
    return any(link == target for link in _open_files())


def _open_files() -> Iterator[str]:
    """What the processes that this user may look into have open."""
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        try:
            entries = list(os.scandir(descriptors))
        except OSError:  # ended meanwhile, or somebody else's
            continue
        for entry in entries:
            try:
                yield os.readlink(entry.path)
            except OSError:
                continue


def _on_local_disk(path: Path) -> bool:
    try:
        device = path.stat().st_dev
    except FileNotFoundError:
        return True
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            return right.split()[0] in LOCAL_FILE_SYSTEMS
    return False


def _quiet_for(folder: Path) -> float:
    """Seconds since anything in `folder` was written."""
    times = [folder.stat().st_mtime]
    for entry in os.scandir(folder):
        try:
            times.append(entry.stat().st_mtime)
        except FileNotFoundError:
            continue
    return time.time() - max(times)


# ------------------------------------------------------------------------------------------------ small parts


def _use_gloo_alone() -> None:
    import deepspeed.ops

    # DeepSpeed builds and starts shm_comm where this table allows it, and does without where not.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def _processor() -> str:
    """Eight digits that differ between processors with different instructions."""
    features = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith(("model name", "flags", "Features")):
            features += line
        if not line:  # end of the first core
            break
    return f"{platform.machine()}-{hashlib.sha256(features.encode()).hexdigest()[:8]}"


def _say(text: str) -> None:
    print(f"native operators: {text}", file=sys.stderr, flush=True)
