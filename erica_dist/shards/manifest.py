"""The manifest: one JSON object a folder that says what the folder holds, how it was made and whether it is complete.

It is written last, atomically: a folder without one, or with `complete` false, is unfinished and is refused by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from erica_dist.errors import UserError
from erica_dist.shards.tarfiles import write_atomically

MANIFEST = "manifest.json"
CORPUS = "erica-dist/corpus"
TRAINING_SHARDS = "erica-dist/training-shards"
KNOWLEDGE_BASE = "erica-dist/knowledge-base"
LINK_STATISTICS = "erica-dist/link-statistics"
VERSION = 1

_MADE_BY = {
    CORPUS: "erica-dist build-corpus",
    TRAINING_SHARDS: "erica-dist tokenize",
    KNOWLEDGE_BASE: "erica-dist build-kb",
    LINK_STATISTICS: "erica-dist count-links",
}


def read_manifest(folder: str | Path, expected_format: str | None = None) -> dict[str, Any]:
    """The manifest of `folder`, which must be complete and of `expected_format` (None: any format).

    Raises:
        UserError: the folder is missing, holds no manifest, is incomplete, or is of another format or version; the text
            names the command that makes the right one.
    """
    path = Path(folder) / MANIFEST
    maker = _maker(expected_format)
    if not Path(folder).is_dir():
        raise UserError(f"there is no folder {folder}; `{maker}` makes it")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{folder} holds no {MANIFEST}: it is unfinished or no shard folder; run `{maker}`") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return parse_manifest(folder, data, expected_format)


def parse_manifest(folder: str | Path, data: bytes, expected_format: str | None = None) -> dict[str, Any]:
    """`data` as the manifest of `folder` (a path or a URL), checked as by `read_manifest`.

    Raises:
        UserError: as `read_manifest`.
    """
    path = f"{str(folder).rstrip('/')}/{MANIFEST}"
    maker = _maker(expected_format)
    try:
        manifest = json.loads(data)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); run `{maker}` again") from error
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise UserError(f"{path} is no manifest of this program; run `{maker}`")
    found = manifest["format"]
    if expected_format and found != expected_format:
        raise UserError(f"{folder} is a folder of format {found!r}, wanted is {expected_format!r}; run `{maker}`")
    if manifest.get("version") != VERSION:
        raise UserError(
            f"{path} has version {manifest.get('version')!r}, this program reads {VERSION}; run `{maker}` again"
        )
    if manifest.get("complete") is not True:
        raise UserError(f"{folder} is incomplete; run `{_MADE_BY.get(found, maker)}` again, it goes on where it ended")
    return manifest


def _maker(expected_format: str | None) -> str:
    return _MADE_BY.get(expected_format or "", "erica-dist build-corpus` or `erica-dist tokenize")


def write_manifest(folder: str | Path, manifest: Mapping[str, Any]) -> None:
    """Write `manifest` into `folder`, atomically."""
    text = json.dumps(manifest, ensure_ascii=False, indent=1) + "\n"
    write_atomically(Path(folder) / MANIFEST, text.encode())


def fingerprint(value: Any) -> str:
    """Hex sha256 of the canonical JSON (sorted keys, no spaces, UTF-8) of `value`."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def shards_fingerprint(settings: Any, shards: Iterable[Mapping[str, Any]]) -> str:
    """The fingerprint of a folder: of its settings and of the hashes of its shards, in order."""
    return fingerprint({"settings": settings, "shards": [shard["sha256"] for shard in shards]})
