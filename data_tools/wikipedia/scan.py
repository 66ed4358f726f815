"""The scan: each range read once -> which pages it holds, which redirects, and where to begin reading for each page.

    range --> records --> one small file `<name>.npz` --> `read_scan`

For a page: the place to begin reading at, a key by which repeated pages are known, and, in JSON lines, its line. For a
redirect: the two titles and a hash of each. Where the file is damaged, the pages before are held and the damage noted.
The file is written atomically and named after the range and the file's content, so a scan that was killed goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.wikipedia.dump import RawPage
from data_tools.wikipedia.jsonlines import NO_ID
from data_tools.wikipedia.line_ranges import count_line_ends
from data_tools.wikipedia.ranges import Range, range_name, records
from erica_dist.errors import DamagedInputError, UserError
from erica_dist.shards.manifest import fingerprint
from erica_dist.shards.tarfiles import write_atomically

SCAN_VERSION = 1  # raise it when a scan gives other results
NO_KEY = 0


@dataclass(frozen=True)
class ScanTask:
    part: Range
    name: str
    folder: str


@dataclass(frozen=True)
class Scan:
    """What is known of a range.

    places int64[n], lines int64[n] (of the range's own lines before the page), keys uint64[n] (of an article's id and
    title), ids uint64[n] (of a dump's article: of its id alone), `NO_KEY` where there is none; titles and targets: of
    redirects, with title_hashes and target_hashes uint64[k].
    """

    places: NDArray[np.int64]
    lines: NDArray[np.int64]
    keys: NDArray[np.uint64]
    ids: NDArray[np.uint64]
    titles: list[str]
    targets: list[str]
    title_hashes: NDArray[np.uint64]
    target_hashes: NDArray[np.uint64]
    counts: dict[str, int]
    line_ends: int  # JSON lines in several ranges: those of this one
    damage: str  # "" or what is wrong and where

    @property
    def pages(self) -> int:
        return len(self.places)


def scan_name(part: Range, content: str) -> str:
    """Fingerprint of the range and of its file's content."""
    place = [part.kind, part.start, part.stop, part.listed, part.namespaces]
    return fingerprint([SCAN_VERSION, content, place])[:32]


def scan_range(task: ScanTask) -> dict[str, Any]:
    """Read the range and write its file; gives {"pages", "damage", "refused"}, the last where the file is not what its
    kind says, or another dump's index lies beside it: then nothing is written."""
    try:
        return _scan(task)
    except UserError as error:
        return {"pages": 0, "damage": "", "refused": str(error)}


def _scan(task: ScanTask) -> dict[str, Any]:
    part = task.part
    columns: dict[str, list[Any]] = {name: [] for name in ("places", "lines", "keys", "ids", "titles", "targets")}
    counts: Counter[str] = Counter()
    damage = ""
    try:
        for page, place, line, _ in records(part):
            columns["places"].append(place)
            columns["lines"].append(line)
            key = own = NO_KEY
            if isinstance(page, RawPage):
                counts[f"namespace {page.namespace}"] += 1
                if page.redirect:
                    columns["titles"].append(page.title)
                    columns["targets"].append(page.redirect)
                elif page.namespace == 0:
                    key, own = title_hash(f"{page.page_id}\n{page.title}"), title_hash(f"{page.page_id}")
            elif page.page_id != NO_ID:
                key = title_hash(f"{page.page_id}\n{page.title}")
            columns["keys"].append(key)
            columns["ids"].append(own)
    except DamagedInputError as error:
        damage = str(error)
    pages = len(columns["places"])
    if part.listed >= 0 and pages != part.listed and not damage:
        raise UserError(
            f"{range_name(part)}: the index names {part.listed} pages here, the dump holds {pages}; the index is not "
            "of this dump: fetch it again, or remove it (the dump is read without it, too)"
        )
    line_ends = count_line_ends(part.path, part.start, part.stop) if part.kind == "jsonlines" and part.stop else 0
    meta = {"counts": dict(counts), "line_ends": line_ends, "damage": damage}
    file = io.BytesIO()
    np.savez_compressed(
        file,
        meta=np.frombuffer(json.dumps(meta).encode(), np.uint8),
        places=np.array(columns["places"], np.int64),
        lines=np.array(columns["lines"], np.int64),
        keys=np.array(columns["keys"], np.uint64),
        ids=np.array(columns["ids"], np.uint64),
        titles=_packed(columns["titles"]),
        targets=_packed(columns["targets"]),
        title_hashes=np.array([title_hash(title) for title in columns["titles"]], np.uint64),
        target_hashes=np.array([title_hash(title) for title in columns["targets"]], np.uint64),
    )
    write_atomically(Path(task.folder) / f"{task.name}.npz", file.getvalue())
    return {"pages": pages, "damage": damage, "refused": ""}


def read_scan(folder: str | Path, name: str) -> Scan | None:
    """What `scan_range` wrote, None where it is not there or damaged."""
    try:
        with np.load(Path(folder) / f"{name}.npz", allow_pickle=False) as file:
            meta = json.loads(file["meta"].tobytes())
            return Scan(
                places=file["places"],
                lines=file["lines"],
                keys=file["keys"],
                ids=file["ids"],
                titles=_unpacked(file["titles"]),
                targets=_unpacked(file["targets"]),
                title_hashes=file["title_hashes"],
                target_hashes=file["target_hashes"],
                counts=meta["counts"],
                line_ends=meta["line_ends"],
                damage=meta["damage"],
            )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def title_hash(text: str) -> int:
    """64 bits of the text, the same in every process; never `NO_KEY`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") or 1


def _packed(texts: Sequence[str]) -> NDArray[np.uint8]:
    # no title holds a line end: titles are normalised
    return np.frombuffer("\n".join(texts).encode(), np.uint8)


def _unpacked(packed: NDArray[np.uint8]) -> list[str]:
    text = packed.tobytes().decode()
    return text.split("\n") if text else []
