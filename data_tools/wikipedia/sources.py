"""Inputs of a job -> files to read and what each holds: a MediaWiki dump, JSON lines, or WikiExtractor's documents.

A folder stands for all `wiki_*` files below it, in the order of their paths. The kind of a file is told by its name,
else by its first character; the files of a folder are all of the first one's kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_tools.wikipedia.pieces import pieces
from erica_dist.errors import UserError
from erica_dist.shards.manifest import fingerprint
from erica_dist.shards.tarfiles import sha256_file

Kind = Literal["dump", "jsonlines", "extracted"]

_DUMP_NAME = re.compile(r"\.xml(-p\d+p\d+)?(\.(bz2|gz|xz))?$")
_LINES_NAME = re.compile(r"\.(jsonl|ndjson|json)(\.(bz2|gz|xz))?$")
_EXTRACTED_FILES = "wiki_*"


@dataclass(frozen=True)
class Source:
    """One file, and which of the job's inputs it belongs to."""

    path: str
    kind: Kind
    input: int


def sources(inputs: Sequence[str | Path]) -> list[Source]:
    """The files of all inputs, in order.

    Raises:
        UserError: an input that is missing, empty, a folder without `wiki_*` files, or of no known kind.
    """
    found: list[Source] = []
    for number, path in enumerate(map(Path, inputs)):
        if not path.is_dir():
            found.append(Source(str(path), source_kind(path), number))
            continue
        files = sorted(file for file in path.rglob(_EXTRACTED_FILES) if file.is_file())
        if not files:
            raise UserError(
                f"the folder {path} holds no {_EXTRACTED_FILES} files of WikiExtractor; name a file instead"
            )
        kind = _kind_of_content(files[0])
        found.extend(Source(str(file), kind, number) for file in files)
    return found


def source_kind(path: str | Path) -> Kind:
    """What a file holds.

    Raises:
        UserError: no such file, or none of the three kinds.
    """
    if not Path(path).is_file():
        raise UserError(f"there is no input file {path}")
    if _DUMP_NAME.search(str(path)):
        return "dump"
    if _LINES_NAME.search(str(path)):
        return "jsonlines"
    return _kind_of_content(path)


def _kind_of_content(path: str | Path) -> Kind:
    head = next((piece.data for piece in pieces(path)), b"")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"<doc "):
        return "extracted"
    if start.startswith((b"<", b"\xff\xfe", b"\xfe\xff")):
        return "dump"
    if start.startswith(b"{"):
        return "jsonlines"
    raise UserError(
        f"{path} is neither a MediaWiki XML export (*.xml, *.xml.bz2) nor JSON lines (*.jsonl, *.jsonl.gz) nor of "
        "WikiExtractor (<doc ...>)"
    )


def describe(inputs: Sequence[str | Path], files: Sequence[Source]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A manifest's record of each input (a folder's sha256 is of all its files), and the sha256 of each file."""
    hashes = {source.path: sha256_file(source.path) for source in files}
    records: list[dict[str, Any]] = []
    for number, path in enumerate(map(Path, inputs)):
        own = [Path(source.path) for source in files if source.input == number]
        record: dict[str, Any] = {"path": path.name, "bytes": sum(file.stat().st_size for file in own)}
        if path.is_dir():
            record["files"] = len(own)
            record["sha256"] = fingerprint([[str(file.relative_to(path)), hashes[str(file)]] for file in own])
        else:
            record["sha256"] = hashes[str(own[0])]
        records.append(record)
    return records, hashes
