"""The folder a command writes: free or its own before the work, one writer at a time, and reused where it stands
complete.

A complete folder holds a manifest with the `request` it was made for, the fingerprint of all that the result depends
on. An unfinished one holds a work folder instead, from which the command goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from erica_dist.errors import UserError
from erica_dist.shards.manifest import MANIFEST

WORK = ".build"  # folder within of what is not finished


def check_folder(out: Path, needed_bytes: float) -> None:
    """See that `out` can be written, has room, and holds nothing else; writes nothing.

    Raises:
        UserError: it is a file, holds other files, is not writable, or the disk is too full.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; give another --out")
    if out.is_dir() and not (out / WORK).is_dir() and not (out / MANIFEST).is_file() and any(out.iterdir()):
        raise UserError(f"{out} holds other files; give another --out")
    standing = next(folder for folder in [out.absolute(), *out.absolute().parents] if folder.is_dir())
    if not os.access(standing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write into {standing}; give another --out")
    free = shutil.disk_usage(standing).free
    if not (out / MANIFEST).is_file() and free < needed_bytes:
        raise UserError(
            f"the disk of {standing} has {free / 1e9:.2f} GB left, about {needed_bytes / 1e9:.2f} GB are needed; make "
            "room or give another --out"
        )


@contextlib.contextmanager
def locked(out: Path) -> Iterator[Path]:
    """Make `out` and its work folder (given) and keep other writers away; the lock ends with the process.

    Folders that hold nothing at the end go again: a refused command leaves no trace.
    """
    work = out / WORK
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / "lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror}; give another --out") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is writing {out}; wait for it or give another --out") from None
        try:
            yield work
        finally:
            _remove_if_empty(out, work)


def _remove_if_empty(out: Path, work: Path) -> None:
    if any(path.is_file() and path != work / "lock" for path in work.rglob("*")):
        return
    shutil.rmtree(work, ignore_errors=True)
    with contextlib.suppress(OSError):
        out.rmdir()


def standing(out: Path, request: str) -> dict[str, Any] | None:
    """The manifest, where `out` is complete and as requested; None where there is none yet.

    Removes a left work folder, unless units failed: from it the build can go on once their cause is gone.

    Raises:
        UserError: it was made of something else, or shards are missing.
    """
    try:
        manifest: dict[str, Any] = json.loads((out / MANIFEST).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{out / MANIFEST} is damaged ({error}); remove {out} or give another --out") from error
    if not manifest.get("failed_units"):
        shutil.rmtree(out / WORK, ignore_errors=True)
    if manifest.get("request") != request:
        raise UserError(
            f"{out} holds the result of other inputs, settings or code; give another --out or remove the folder"
        )
    expected = {shard["file"]: shard["bytes"] for shard in manifest.get("shards", ())}
    if {path.name: path.stat().st_size for path in out.glob("*.tar")} != expected:
        raise UserError(f"{out} has lost or changed shards since it was made; remove the folder and run again")
    return manifest


def cleared(out: Path, format: str) -> None:
    """Delete what a command has made in `out`, finished or not; the lock stays.

    Raises:
        UserError: the folder is of another format.
    """
    with contextlib.suppress(FileNotFoundError):
        try:
            found = json.loads((out / MANIFEST).read_bytes()).get("format")
        except (AttributeError, ValueError):
            found = None
        if found != format:
            raise UserError(f"{out} is of format {found!r}, not {format!r}; give another --out")
        (out / MANIFEST).unlink()
    for path in [*out.glob("*.tar"), *out.glob(".*.tmp")]:
        path.unlink()
    for path in (out / WORK).iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def remove_stale(folder: Path, wanted: set[str]) -> int:
    """Delete the results in `folder` whose name up to the first dot is none of `wanted`; gives how many names."""
    stale = set()
    for path in list(folder.iterdir()):
        name = path.name.split(".")[0]
        if name not in wanted:
            path.unlink()
            stale.add(name)
    return len(stale - {""})  # names that begin with a dot are leftovers of a killed writer
