"""Files that other tools wrote -> records, one after the other: the containers, not what the records mean.

In: tars of one document a sample (WebDataset; `foreign_tars.py`), or JSON: a list, or JSON lines (`foreign_json.py`).
Either is plain or packed by gzip, bzip2 or xz; what a file is is told by its name, else by its first bytes. Out:
`Record`s in the order of the file, each with its place for error texts. All is streamed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data_tools.foreign_json import values_of_json
from data_tools.foreign_tars import documents_of_tar
from data_tools.wikipedia.pieces import pieces
from erica_dist.errors import UserError

_TAR_NAME = re.compile(r"\.(tar(\.(gz|bz2|xz))?|tgz)$")
_JSON_NAME = re.compile(r"\.(json|jsonl|ndjson)(\.(gz|bz2|xz))?$")


@dataclass(frozen=True)
class ForeignFile:
    """One file, and which of the job's inputs it belongs to."""

    path: str
    kind: Literal["tar", "json"]
    input: int


@dataclass(frozen=True)
class Record:
    """One record. place: file and key, line or number; key: of the sample, "" in JSON files; name: a title for records
    without one. fault: why it is no JSON value, "" where `content` is one."""

    place: str
    key: str
    name: str
    content: Any
    fault: str = ""


def find_files(inputs: Sequence[str]) -> list[ForeignFile]:
    """The files of all inputs in order; of a folder its tars, in the order of their paths, or else its JSON files.

    Raises:
        UserError: an input is missing, of no known kind, or a folder without such files.
    """
    found: list[ForeignFile] = []
    for number, path in enumerate(map(Path, inputs)):
        if not path.is_dir():
            found.append(ForeignFile(str(path), _kind(path), number))
            continue
        files = sorted(file for file in path.rglob("*") if file.is_file() and not _hidden(file.relative_to(path)))
        tars = [file for file in files if _TAR_NAME.search(file.name)]
        own = tars or [file for file in files if _JSON_NAME.search(file.name)]
        if not own:
            raise UserError(f"the folder {path} holds no tar and no JSON file; give a folder or file with documents")
        found.extend(ForeignFile(str(file), "tar" if tars else "json", number) for file in own)
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _kind(path: Path) -> Literal["tar", "json"]:
    if not path.is_file():
        raise UserError(f"there is no input {path}")
    if _TAR_NAME.search(path.name):
        return "tar"
    head = next((piece.data for piece in pieces(path)), b"")
    if head[257:262] == b"ustar":
        return "tar"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"[", b"{"):
        return "json"
    raise UserError(f"{path} is neither a tar nor JSON (a list, or JSON lines); convert reads these, plain or packed")


def read_records(file: ForeignFile, member: str, left_out: Counter[str]) -> Iterator[Record]:
    """The records of `file`. member: ending of a sample's document; left_out: gets the other members, by their endings.

    Raises:
        UserError: the file cannot be read.
        DamagedInputError: it is cut off or damaged; the records before were given.
    """
    if file.kind == "json":
        name = Path(file.path).name
        for number, value in enumerate(values_of_json(file.path), 1):
            yield Record(value.place, "", f"{name} {number}", value.content, value.fault)
        return
    for key, data in documents_of_tar(file.path, member, left_out):
        place = f"{file.path}, sample {key!r}"
        try:
            yield Record(place, key, key, json.loads(data))
        except (ValueError, RecursionError) as error:
            yield Record(place, key, key, None, f"no valid JSON ({error})")
