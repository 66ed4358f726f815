"""All ranges scanned, on Ray, and what they hold put together: ranges --> scans --> units, redirects, repeated pages.

A page is repeated where one of the same id and title, or in the same dump of the same id, stood before in the input.
What the driver holds: 16 bytes a page for the keys and as much again while they are compared, about 1 kB a unit, and
the redirects (`redirects.py`). A range of more than `pages_per_task` pages gives several units, each with the place
from which its first page is reached.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_tools.pages import Page
from data_tools.progress import StepProgress
from data_tools.ray_jobs import run_units
from data_tools.wikipedia.ranges import Range, plan, range_name
from data_tools.wikipedia.reader import Unit, read_unit
from data_tools.wikipedia.redirects import Redirects
from data_tools.wikipedia.scan import NO_KEY, Scan, ScanTask, read_scan, scan_name, scan_range
from data_tools.wikipedia.sources import sources
from erica_dist.errors import DamagedInputError, UserError

LISTED = 5


@dataclass(frozen=True)
class Survey:
    """units: in the order of the input. incomplete: what could not be read, for the manifest."""

    units: list[Unit]
    incomplete: list[dict[str, str]]
    pages: int


def scan_ranges(
    step: str, parts: Sequence[Range], contents: Mapping[str, str], folder: Path, slots: int, retries: int
) -> list[str]:
    """Scan those ranges that are not scanned yet, within `local_or_remote`; gives the names of all scans, in order.

    contents: sha256 of each file by its path. slots: what `local_or_remote` gave.

    Raises:
        UserError: a file is not what its kind says, or a worker failed; the scans that are done are kept.
    """
    names = [scan_name(part, contents[part.path]) for part in parts]
    tasks = [
        ScanTask(part, name, str(folder.absolute()))
        for part, name in zip(parts, names, strict=True)
        if not (folder / f"{name}.npz").is_file()
    ]
    if not tasks:
        return names
    pages = 0
    with StepProgress(f"{step}: scan", len(tasks)) as progress:
        for finished in run_units(scan_range, tasks, slots, retries):
            if finished.error:
                raise UserError(
                    f"{range_name(finished.task.part)} could not be scanned ({finished.attempts} attempt(s)); what is "
                    f"scanned is kept: run the same command again.\n{finished.error.strip()}"
                )
            if finished.value["refused"]:
                raise UserError(finished.value["refused"])
            pages += finished.value["pages"]
            progress.advance(text=f"{pages:,} pages, {pages / progress.seconds:,.0f} pages/s")
    return names


def survey(
    parts: Sequence[Range],
    names: Sequence[str],
    folder: Path,
    pages_per_task: int,
    redirects_file: Path | None,
    allow_incomplete: bool,
) -> Survey:
    """Put the scans together and write the redirects of all dumps into `redirects_file` (None: links stay as written).

    Raises:
        DamagedInputError: a range was damaged or cut off and `allow_incomplete` is false.
        UserError: a file without a page.
    """
    redirects = Redirects()
    units: list[Unit] = []
    keys: list[NDArray[np.uint64]] = []
    ids: list[NDArray[np.uint64]] = []
    incomplete: list[dict[str, str]] = []
    total = 0
    pairs = zip(parts, names, strict=True)
    for number, (path, of_file) in enumerate(itertools.groupby(pairs, key=lambda pair: pair[0].path)):
        first_page = line_ends = 0
        for part, name in of_file:
            scan = _read(folder, name)
            redirects.add(scan.titles, scan.targets, scan.title_hashes, scan.target_hashes)
            keys.append(scan.keys)
            # ids are compared within one file
            ids.append(np.where(scan.ids == NO_KEY, NO_KEY, scan.ids + np.uint64(number * 0x9E3779B97F4A7C15 % 2**64)))
            if scan.damage:
                incomplete.append({"file": Path(path).name, "place": range_name(part), "text": scan.damage})
            for unit in _cut(part, scan, pages_per_task, first_page, line_ends):
                units.append(replace(unit, redirects=str(redirects_file or "")))
            first_page += scan.pages
            line_ends += scan.line_ends
        # one of WikiExtractor's many files may be empty
        if not first_page and not incomplete and part.kind != "extracted":
            raise UserError(f"{path} holds no page")
        total += first_page
    if incomplete and not allow_incomplete:
        raise DamagedInputError(_damage_text(incomplete))
    if not total and not incomplete:
        raise UserError("the input holds no page")
    if redirects_file is not None:
        redirects.write(redirects_file)
    repeated = np.union1d(_repeated(keys), _repeated(ids))
    return Survey(list(_marked(units, repeated)), incomplete, total)


def report_incomplete(step: str, found: Survey) -> None:
    """Tell on the terminal what is missing, if anything is."""
    for entry in found.incomplete[:LISTED]:
        print(f"{step}: incomplete: {entry['text']}", flush=True)
    if len(found.incomplete) > LISTED:
        print(f"{step}: incomplete: {len(found.incomplete)} ranges in all; the manifest lists them", flush=True)


def _read(folder: Path, name: str) -> Scan:
    scan = read_scan(folder, name)
    if scan is None:
        (folder / f"{name}.npz").unlink(missing_ok=True)
        raise UserError(f"{folder / name}.npz has vanished or was damaged; run the same command again")
    return scan


def _cut(part: Range, scan: Scan, pages_per_task: int, first_page: int, line_ends: int) -> Iterator[Unit]:
    """Units of at most `pages_per_task` pages, alike in size."""
    number = -(-scan.pages // pages_per_task)
    borders = [scan.pages * place // number for place in range(number + 1)] if number else []
    # the first range owns the file's first line, each other one begins after its own first line end
    first_line = line_ends + (1 if part.start == 0 else 2)
    for first, last in itertools.pairwise(borders):
        start = int(scan.places[first])
        yield Unit(
            path=part.path,
            kind=part.kind,
            first_page=first_page + first,
            count=last - first,
            start=start,
            skip=first - int(np.searchsorted(scan.places, start)),
            first_line=first_line + int(scan.lines[first]),
            namespaces=part.namespaces,
        )


def _repeated(keys: Sequence[NDArray[np.uint64]]) -> NDArray[np.int64]:
    """The numbers, over the whole input, of the pages whose key stood before."""
    joined = np.concatenate([np.zeros(0, np.uint64), *keys])
    pages = np.flatnonzero(joined != NO_KEY)
    own = joined[pages]
    order = np.argsort(own, kind="stable")
    again = np.zeros(len(own), bool)
    again[1:] = own[order[1:]] == own[order[:-1]]
    return pages[order[again]]


def _marked(units: Sequence[Unit], repeated: NDArray[np.int64]) -> Iterator[Unit]:
    """The units, each with the numbers (within its file) of its repeated pages."""
    before = 0
    for unit in units:
        first, last = np.searchsorted(repeated, (before, before + unit.count))
        own = repeated[first:last] - before + unit.first_page
        yield replace(unit, repeated=tuple(own.tolist())) if len(own) else unit
        before += unit.count


def _damage_text(incomplete: Sequence[dict[str, Any]]) -> str:
    listed = "\n".join(f"- {entry['text']}" for entry in incomplete[:LISTED])
    return (
        f"{len(incomplete)} range(s) of the input are damaged or cut off; what could be read is kept, and "
        f"--allow-incomplete goes on with it.\n{listed}"
    )


def plan_ranges(
    paths: Sequence[str | Path],
    pages_per_task: int,
    redirects_file: str | Path | None = None,
    range_bytes: int = 0,
    allow_incomplete: bool = False,
) -> list[Unit]:
    """The units of a few small inputs, scanned in this process; otherwise as `scan_ranges` and `survey`.

    Raises:
        UserError: an input that is missing, empty, damaged or of no known kind.
    """
    if pages_per_task < 1:
        raise UserError(f"pages_per_task must be at least 1, got {pages_per_task}")
    files = sources(paths)
    parts = plan(files, range_bytes, allow_incomplete)
    redirects = Path(redirects_file) if redirects_file is not None else None
    with tempfile.TemporaryDirectory() as folder:
        contents = {source.path: source.path for source in files}
        names = scan_ranges("plan", parts, contents, Path(folder), slots=0, retries=0)
        return survey(parts, names, Path(folder), pages_per_task, redirects, allow_incomplete).units


def read_source(path: str | Path) -> tuple[Iterator[Page], Counter[str]]:
    """All articles of one small input, read as they are asked for, and the counts, which grow with them.

    Links stay as written: redirects need a file of their own.
    """
    counts: Counter[str] = Counter()

    def pages() -> Iterator[Page]:
        for unit in plan_ranges([path], pages_per_task=1000):
            of_unit, of_counts = read_unit(unit)
            counts.update(of_counts)
            yield from of_unit

    return pages(), counts
