"""One file of another tool -> its documents and texts, as a worker of `erica-dist convert` makes them.

In: a `FileTask`, paths and settings only. Out: `<name>.jsonl` (one JSON object a line: of each record its document, if
it is one, and its page of text), `<name>.npy` (where these lines are) and `<name>.json` (counts). The last is written
last: where it stands, the file is done. A record is counted as a page with one passage, so that the sums of a build
hold here too. Of a record 32 bytes are held, and of a sample in a tar its key.
"""

from __future__ import annotations

import io
import json
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from data_tools.foreign_cleaning import Counts, Faults, Rules, clean
from data_tools.foreign_documents import MalformedError, read_draft
from data_tools.foreign_files import ForeignFile, Record, read_records
from erica_dist.errors import DamagedInputError, UserError
from erica_dist.shards.tarfiles import commit, temporary_name, write_atomically


@dataclass(frozen=True)
class FileTask:
    """One file to convert. name: fingerprint of its content and of all that the result depends on."""

    file: ForeignFile
    rules: Rules
    member: str
    name: str
    folder: str


@dataclass
class _Result:
    """What is written of a file so far. places: of each page of text the four numbers of a row of `<name>.npy`."""

    counts: Counts = field(default_factory=lambda: defaultdict(Counter, passages=Counter(cut=0, passed=0)))
    records: int = 0
    places: array[int] = field(default_factory=lambda: array("q"))
    keys: list[str] = field(default_factory=list)
    incomplete: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """Places of lines as the rows that `assembly.gather` takes, made as they are asked for.

    columns: int64[n, 3] of record, offset, bytes; between: what stands in a row after the record.
    """

    columns: NDArray[np.int64]
    between: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for first in range(0, len(self.columns), 4096):
            for record, offset, size in self.columns[first : first + 4096].tolist():
                yield record, *self.between, offset, size


def convert_file(task: FileTask) -> int:
    """Convert one file, write its result, and give the number of its documents.

    Raises:
        UserError: a fault in a record, the file is damaged (strict), or the disk is full.
    """
    result = _Result()
    lines = Path(task.folder, f"{task.name}.jsonl")
    temporary = temporary_name(lines)
    try:
        with temporary.open("wb") as out:
            try:
                for record in read_records(task.file, task.member, result.counts["members"]):
                    _take(record, task, result, out)
                    result.records += 1
            except DamagedInputError as error:
                if not task.rules.tolerant:
                    text = "--tolerant goes on with what comes before the damage"
                    raise DamagedInputError(f"{error}; {text}") from error
                place = f"after {result.records:,} records"
                result.incomplete.append({"file": Path(task.file.path).name, "place": place, "text": str(error)})
            size = out.tell()
            commit(out, temporary, lines)
    except OSError as error:
        raise UserError(f"cannot write {lines}: {error.strerror}; is the disk full?") from error
    finally:
        temporary.unlink(missing_ok=True)
    places = np.asarray(result.places, "<i8").reshape(-1, 4)
    npy = io.BytesIO()
    np.lib.format.write_array(npy, places, allow_pickle=False)
    write_atomically(lines.with_suffix(".npy"), npy.getvalue())
    result.counts["pages"].update({"pages read": result.records, "pages kept": len(places)})
    index = {
        "pages": result.records,
        "keys": result.keys,
        "incomplete": result.incomplete,
        "counts": {stage: dict(of_stage) for stage, of_stage in result.counts.items() if of_stage},
        "bytes": [size, npy.tell()],
    }
    write_atomically(lines.with_suffix(".json"), json.dumps(index).encode())
    return result.counts["passages"]["passed"]


def _take(record: Record, task: FileTask, result: _Result, out: BinaryIO) -> None:
    """Write what a record gives."""
    faults = Faults(record.place, task.rules.tolerant, result.counts)
    pages = result.counts["pages"]
    if record.fault:
        faults.drop("pages", "no valid JSON", record.fault)
        return
    if type(record.content) is dict and "paragraphs" in record.content and "text" not in record.content:
        pages["pages of text alone, of a corpus"] += 1
        return
    try:
        draft = read_draft(record.content, record.name)
        if not draft.text.strip():
            pages["pages without text"] += 1
            return
        page = {
            "title": draft.title,
            "page_id": draft.page_id,
            "paragraphs": [paragraph for paragraph in draft.text.split("\n") if paragraph.strip()],
        }
        # half of a surrogate pair cannot be written: found before anything of the record is counted
        text = _line(page)
        _line([*([entity.id, entity.name, entity.type] for entity in draft.entities), draft.labels])
    except MalformedError as error:
        faults.drop("pages", "malformed", str(error))
        return
    except UnicodeEncodeError as error:
        faults.drop("pages", "half of a surrogate pair", f"holds half of a surrogate pair ({error.reason})")
        return
    document = clean(draft, task.rules, faults)
    content = _line(document) if document else b""
    result.places.extend((result.records, out.tell(), len(content), len(text)))
    out.write(content + text)
    if task.file.kind == "tar":
        result.keys.append(record.key)


def read_index(folder: Path, name: str) -> dict[str, Any] | None:
    """The index of a finished file; None where it is not done or its lines are not all there.

    `documents`, `texts`: rows of their lines' places; `pages`: number of records; `keys`: of the texts, [] where the
    file has none; `counts`, `incomplete`.
    """
    files = [folder / f"{name}.{ending}" for ending in ("jsonl", "npy")]
    try:
        index: dict[str, Any] = json.loads((folder / f"{name}.json").read_bytes())
        if [os.path.getsize(file) for file in files] != index["bytes"]:
            return None
        places = np.load(files[1], allow_pickle=False)
    except (OSError, ValueError):
        return None
    with_document = places[places[:, 2] > 0]
    index["documents"] = Rows(with_document[:, :3], (0, ""))  # number of the passage in its page, no content hash
    index["texts"] = Rows(np.column_stack([places[:, 0], places[:, 1] + places[:, 2], places[:, 3]]), ("",))
    return index


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
