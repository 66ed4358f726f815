"""`erica-dist count-links`: pages -> how often each surface is linked to what, and how often it stands unlinked.

    scan --> first pass: links of each unit --> merged: links.tsv --> trie of surfaces
         --> second pass: surfaces in each unit's unlinked text --> merged, joined: surfaces.tsv --> manifest

Both passes, and the merges but for their last round, run on Ray, and each result is a file in OUT/.build named by a
fingerprint of what it depends on: a run that was killed goes on, and the bytes do not depend on the workers. Memory:
a worker holds a unit, a merge one line of each of `FAN_IN` files; only the trie of surfaces is built in memory, by the
driver (about 50 bytes a surface), and mapped by the workers. Disk: the unlinked text, packed: about a third of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import marisa_trie

import erica_dist
from data_tools.output_folder import check_folder, locked, standing
from data_tools.progress import StepProgress
from data_tools.ray_jobs import local_or_remote, run_units
from data_tools.report import counts_table, seconds_text
from data_tools.wikipedia.link_units import LONGEST, LinksTask, UnlinkedTask, count_links_of, count_unlinked
from data_tools.wikipedia.ranges import Range, plan
from data_tools.wikipedia.scan import SCAN_VERSION
from data_tools.wikipedia.sorted_counts import FAN_IN, MergeTask, merge, merged, write_lines
from data_tools.wikipedia.sources import describe, sources
from data_tools.wikipedia.survey import Survey, report_incomplete, scan_ranges, survey
from erica_dist.config import LinkCountsJob
from erica_dist.errors import UserError
from erica_dist.shards.manifest import LINK_STATISTICS, VERSION, fingerprint, write_manifest
from erica_dist.shards.tarfiles import sha256_file, write_atomically

LINKS, SURFACES = "links.tsv", "surfaces.tsv"
COUNTS_VERSION = 1  # raise it when any step gives other results
PAGES_PER_TASK = 1000  # for small inputs fewer, so that all cores have work
LEAST_PAGES = 50
NEEDED = 6.0  # bytes on the disk for a byte of packed input: unlinked text, counts of units, rounds of merges


def count_links(job: LinkCountsJob) -> dict[str, Any]:
    """Count (or go on counting) into the folder `job.out` and give its manifest.

    Raises:
        UserError: a setting, input or folder is wrong, a unit failed, or no link was found.
    """
    started = time.monotonic()
    for key in ("inputs", "out"):
        if not getattr(job, key):
            raise UserError(f"count-links needs --{'input' if key == 'inputs' else key} (setting {key!r})")
    out, found = Path(job.out), sources(job.inputs)
    check_folder(out, NEEDED * sum(Path(source.path).stat().st_size for source in found))
    parts = plan(found, allow_incomplete=job.allow_incomplete)
    files, contents = describe(job.inputs, found)
    request = fingerprint([COUNTS_VERSION, SCAN_VERSION, erica_dist.__version__, files])
    with locked(out) as work:
        if (manifest := _standing(out, request)) is not None:
            print(f"count-links: {out} is already there for these inputs, nothing to do", flush=True)
            return manifest
        print(f"count-links: reading {', '.join(file['path'] for file in files)}", flush=True)
        with local_or_remote(job.ray) as slots:
            counting = _Counting(out, work, slots, job.ray.retries)
            counts, incomplete = counting.run(parts, contents, request, job.allow_incomplete)
        listed = [
            {"file": name, "bytes": (out / name).stat().st_size, "sha256": sha256_file(out / name)}
            for name in (LINKS, SURFACES)
        ]
        manifest = {
            "format": LINK_STATISTICS,
            "version": VERSION,
            "tool_version": erica_dist.__version__,
            "inputs": files,
            "counts": counts,
            "files": listed,
            "incomplete": incomplete,
            "request": request,
            "fingerprint": fingerprint([file["sha256"] for file in listed]),
            "complete": True,
        }
        write_manifest(out, manifest)
        shutil.rmtree(work, ignore_errors=True)
    counts_table("count-links", counts)
    print(f"count-links: {out} is written; {seconds_text(time.monotonic() - started)}", flush=True)
    return manifest


def _standing(out: Path, request: str) -> dict[str, Any] | None:
    manifest = standing(out, request)
    for file in manifest["files"] if manifest else ():
        path = out / file["file"]
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            raise UserError(f"{path} is lost or changed since it was made; remove {out} and run again")
    return manifest


class _Counting:
    """The steps, over a work folder whose files are the results so far."""

    def __init__(self, out: Path, work: Path, slots: int, retries: int):
        self.out, self.work, self.slots, self.retries = out, work.absolute(), slots, retries

    def run(
        self, parts: Sequence[Range], contents: dict[str, str], request: str, allow_incomplete: bool
    ) -> tuple[dict[str, dict[str, int]], list[dict[str, str]]]:
        found = self._survey(parts, contents, allow_incomplete)
        redirects = sha256_file(self.work / "redirects.marisa")
        units = self.work / "units"
        units.mkdir(exist_ok=True)
        names = [
            fingerprint([request, redirects, contents[unit.path], unit.start, unit.skip, unit.count, unit.repeated])[
                :32
            ]
            for unit in found.units
        ]
        links = [
            LinksTask(unit, name, str(units))
            for unit, name in zip(found.units, names, strict=True)
            if not (units / f"{name}.json").is_file()
        ]
        self._all(
            "links", count_links_of, links, lambda task: f"{task.unit.path}, page {task.unit.first_page}", "links"
        )
        pages: Counter[str] = Counter()
        for name in names:
            pages.update(json.loads((units / f"{name}.json").read_bytes()))
        merged_links = self._merge_rounds("links", [units / f"{name}.links" for name in names])
        pairs = write_lines(self.out / LINKS, (b"%b\t%d\n" % pair for pair in merged(merged_links)))
        if not pairs:
            raise UserError("count-links: the input holds no link; give a dump, or text extracted with links")
        trie, opening = self._trie()
        second = fingerprint([trie.name, opening])[:16]
        outputs = [units / f"{name}.{second}.unlinked" for name in names]
        unlinked = [
            UnlinkedTask(str(units / f"{name}.text"), str(output), str(trie), opening)
            for name, output in zip(names, outputs, strict=True)
            if not output.is_file()
        ]
        self._all("unlinked", count_unlinked, unlinked, lambda task: task.text, "occurrences")
        occurrences = dict(linked=0, unlinked=0)
        joined = self._surfaces(self._merge_rounds("unlinked", outputs), occurrences)
        surfaces = write_lines(self.out / SURFACES, joined)
        of_links = {
            "surfaces": surfaces,
            "pairs of surface and target": pairs,
            "occurrences linked": occurrences["linked"],
            "occurrences unlinked": occurrences["unlinked"],
        }
        return {"pages": dict(sorted(pages.items())), "links": of_links}, found.incomplete

    def _survey(self, parts: Sequence[Range], contents: dict[str, str], allow_incomplete: bool) -> Survey:
        scans = self.work / "scan"
        scans.mkdir(exist_ok=True)
        names = scan_ranges("count-links", parts, contents, scans, self.slots, self.retries)
        megabytes = sum(Path(path).stat().st_size for path in contents) >> 20
        pages = min(PAGES_PER_TASK, max(LEAST_PAGES, megabytes))
        found = survey(parts, names, scans, pages, self.work / "redirects.marisa", allow_incomplete)
        report_incomplete("count-links", found)
        return found

    def _all(
        self, what: str, function: Callable[[Any], int], tasks: Sequence[Any], place: Callable[[Any], str], noun: str
    ) -> None:
        """Run the function on all tasks; the first failure is said when the others are done. noun: what it counts."""
        failures: list[str] = []
        total = 0
        if not tasks:
            return
        with StepProgress(f"count-links: {what}", len(tasks)) as progress:
            for finished in run_units(function, tasks, self.slots, self.retries):
                if finished.error:
                    failures.append(f"{place(finished.task)}: {finished.error.strip()}")
                total += finished.value or 0
                progress.advance(text=f"{total:,} {noun}" + (f", {len(failures)} failed" if failures else ""))
        if failures:
            raise UserError(
                f"{len(failures)} of {len(tasks)} tasks failed; the others are kept: run the same command again once "
                f"the cause is removed.\n{failures[0]}"
            )

    def _merge_rounds(self, what: str, paths: Sequence[Path]) -> Sequence[Path]:
        """Merge until at most `FAN_IN` files are left; gives these."""
        while len(paths) > FAN_IN:
            groups = [tuple(map(str, paths[first : first + FAN_IN])) for first in range(0, len(paths), FAN_IN)]
            outputs = [
                self.work / "units" / f"{fingerprint([Path(p).name for p in group])[:32]}.merged" for group in groups
            ]
            tasks = [
                MergeTask(group, str(output))
                for group, output in zip(groups, outputs, strict=True)
                if not output.is_file()
            ]
            self._all(f"merge of {what}", merge, tasks, lambda task: task.output, "lines")
            paths = outputs
        return paths

    def _linked(self) -> Iterator[tuple[bytes, int]]:
        """Each surface of links.tsv and how often it is linked, in order."""
        current, total = b"", 0
        with (self.out / LINKS).open("rb") as file:
            for line in file:
                surface, _, count = line.split(b"\t")
                if surface != current:
                    if total:
                        yield current, total
                    current, total = surface, 0
                total += int(count)
        if total:
            yield current, total

    def _trie(self) -> tuple[Path, str]:
        """The file of all surfaces that are looked for in unlinked text, and their first characters that are neither
        letter nor digit."""
        opening: set[str] = set()

        def surfaces() -> Iterator[str]:
            for encoded, _ in self._linked():
                surface = encoded.decode()
                if len(surface) <= LONGEST:
                    if not surface[0].isalnum():
                        opening.add(surface[0])
                    yield surface

        packed = marisa_trie.Trie(surfaces()).tobytes()
        # named by its content: workers keep the one that they have mapped
        path = self.work / f"surfaces-{hashlib.sha256(packed).hexdigest()[:16]}.marisa"
        write_atomically(path, packed)
        return path, "".join(sorted(opening))

    def _surfaces(self, unlinked: Sequence[Path], occurrences: dict[str, int]) -> Iterator[bytes]:
        """The lines of surfaces.tsv; adds up `occurrences`."""
        plain = merged(unlinked)
        surface, number = next(plain, (b"", 0))
        for linked, count in self._linked():
            while surface and surface < linked:
                surface, number = next(plain, (b"", 0))
            own = number if surface == linked else 0
            occurrences["linked"] += count
            occurrences["unlinked"] += own
            yield b"%b\t%d\t%d\n" % (linked, count, own)
