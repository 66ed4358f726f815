"""Reading a Wikipedia dump: our reader beside plain unpacking and XML parsing, and beside mwparserfromhell's own text.

    .venv/bin/python benchmarks/wikipedia.py                  makes a dump of all of ../shared/data/wikipedia-text
    .venv/bin/python benchmarks/wikipedia.py --articles 1000  of the first 1,000 articles
    .venv/bin/python benchmarks/wikipedia.py --dump FILE      reads a dump that `make_wikipedia_dump.py` has made of it

The floor is what nobody can do without: the bz2 file unpacked by the standard library and fed to expat, nothing kept.
Speeds are for a CPU second, so a core. The second table is the whole reading as the build does it (scan, redirects,
units to pages with links) on a private Ray, by the clock. The third compares our paragraphs, word by word, with the
text that the dump was made of. Needs ../shared.
"""

from __future__ import annotations

import argparse
import bz2
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

import mwparserfromhell
from rich.console import Console
from rich.table import Table

from data_tools.ray_jobs import local_or_remote, run_units
from data_tools.wikipedia import dump
from data_tools.wikipedia.ranges import plan
from data_tools.wikipedia.reader import Unit, read_unit
from data_tools.wikipedia.sources import sources
from data_tools.wikipedia.survey import plan_ranges, scan_ranges, survey
from data_tools.wikipedia.wikitext import to_paragraphs
from data_tools.wikipedia.writer import has_markup
from erica_dist.config import CorpusJob, RayConfig

SHARED = Path(__file__).resolve().parents[2] / "shared"
TEXT = SHARED / "data" / "wikipedia-text"
MB = 1e6
SAMPLE = 8  # one page in so many, where the wikitext alone is measured
COMPARED = 4  # and where the words are compared
WORD = re.compile(r"\w+")
# What the maker adds to the text that it was given, apart from markup.
ADDED = re.compile(r" ?The distance is \d+ km\.| mot\b| External page\b|^(?:first|second) item$")


def make_dump(folder: Path, articles: int) -> Path:
    tool = SHARED / "tools" / "make_wikipedia_dump.py"
    words = [str(TEXT), "--kb", str(SHARED / "data" / "kb-wikidata"), "--out", str(folder)]
    words += ["--articles", str(articles)] if articles else []
    subprocess.run([sys.executable, str(tool), *words], check=True, stdout=subprocess.DEVNULL)
    return next(folder.glob("*-multistream.xml.bz2"))


def floor(path: Path) -> tuple[int, int]:
    """Bytes of XML; no pages are looked for."""
    parser = expat.ParserCreate()
    size = 0
    with bz2.open(path) as file:
        while data := file.read(1 << 20):
            size += len(data)
            parser.Parse(data, False)
    parser.Parse(b"", True)
    return size, 0


def raw_pages(path: Path) -> tuple[int, int]:
    return 0, sum(1 for _ in dump.read_pages(path))


def all_units(units: list[Unit]) -> tuple[int, int]:
    return 0, sum(read_unit(unit)[1]["pages read"] for unit in units)


def rate(function: Callable[[], tuple[int, int]], passes: int) -> tuple[float, int, int]:
    """CPU seconds, median of the passes, and what the function gave."""
    seconds = []
    for _ in range(passes):
        began = time.process_time()
        size, pages = function()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds), size, pages


def articles(path: Path) -> Iterator[dump.RawPage]:
    return (page for page in dump.read_pages(path) if page.namespace == 0 and not page.redirect and page.wikitext)


def single_core(path: Path, passes: int) -> Table:
    pages = raw_pages(path)[1]
    sample = [page.wikitext for number, page in enumerate(articles(path)) if number % SAMPLE == 0]
    sample_size = sum(len(text.encode()) for text in sample)

    def ours() -> tuple[int, int]:
        return sample_size, sum(1 for text in sample if to_paragraphs(text))

    def theirs() -> tuple[int, int]:
        return sample_size, sum(1 for text in sample if mwparserfromhell.parse(text).strip_code() is not None)

    with tempfile.TemporaryDirectory() as folder:
        units = plan_ranges([path], CorpusJob().pages_per_task, Path(folder) / "redirects.npz")
        base, size, _ = rate(lambda: floor(path), passes)
        rows = [
            ("floor: bz2 + expat, nothing kept", base, size, pages),
            ("our reader, raw pages", rate(lambda: raw_pages(path), passes)[0], size, pages),
            ("our reader, pages with links", rate(lambda: all_units(units), passes)[0], size, pages),
            ("wikitext alone, ours", *rate(ours, passes)),
            ("wikitext alone, mwparserfromhell strip_code", *rate(theirs, passes)),
        ]
    title = f"{pages:,} pages, {size / MB:,.0f} MB of XML; load {os.getloadavg()[0]:.1f}"
    table = Table("way", "CPU s", "pages/CPU-s", "MB/CPU-s", "CPU s, floor = 1", title=title)
    for name, seconds, of_size, count in rows:
        times = f"{seconds / base:.2f}" if of_size == size else ""
        table.add_row(name, f"{seconds:.1f}", f"{count / seconds:,.0f}", f"{of_size / MB / seconds:.1f}", times)
    return table


def read_counted(unit: Unit) -> tuple[int, int, float]:
    began = time.process_time()
    pages, counts = read_unit(unit)
    return counts["pages read"], len(pages), time.process_time() - began


def whole_reading(path: Path, workers: int) -> tuple[float, float, int]:
    """Seconds by the clock, CPU seconds of the units, pages. Ray's start is not counted, its workers' imports are."""
    job = CorpusJob()
    with local_or_remote(RayConfig(workers=workers)) as slots, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        files = sources([path])
        parts = plan(files)
        names = scan_ranges("benchmark", parts, {source.path: source.path for source in files}, Path(folder), slots, 0)
        found = survey(parts, names, Path(folder), job.pages_per_task, Path(folder) / "redirects.npz", False)
        values: list[Any] = []
        for finished in run_units(read_counted, found.units, slots, 0):
            if finished.error:
                raise SystemExit(finished.error)
            values.append(finished.value)
        return time.monotonic() - began, sum(cpu for _, _, cpu in values), sum(pages for pages, _, _ in values)


def scaling(path: Path, rounds: int) -> Table:
    runs: dict[int, list[tuple[float, float, int]]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, of_workers in runs.items():
            of_workers.append(whole_reading(path, workers))
    table = Table("workers", "s", "pages/s", "speed-up", "CPU s of units", title=f"load {os.getloadavg()[0]:.1f}")
    base = statistics.median(run[0] for run in runs[1])
    for workers, of_workers in runs.items():
        seconds = statistics.median(run[0] for run in of_workers)
        cpu = statistics.median(run[1] for run in of_workers)
        pages = of_workers[0][2]
        table.add_row(str(workers), f"{seconds:.1f}", f"{pages / seconds:,.0f}", f"{base / seconds:.2f}", f"{cpu:.1f}")
    return table


def is_heading(lines: list[str], number: int) -> bool:
    """Whether the maker has written this line as a heading."""
    line, last = lines[number], number + 1 == len(lines)
    short = line.endswith(".") and len(line) < 70 and len(line.split()) <= 8
    return number > 0 and short and "[[" not in line and not last and bool(lines[number + 1])


def against_source(path: Path) -> Table:
    sys.path.insert(0, str(SHARED / "tools"))
    import common  # type: ignore[import-not-found]

    source = dict(common.articles([str(TEXT)], None))
    lost: Counter[str] = Counter()
    total = residue = compared = 0
    for number, page in enumerate(articles(path)):
        lines = source.get(page.title)
        if number % COMPARED or lines is None:
            continue
        compared += 1
        shown = [ADDED.sub("", paragraph.text) for paragraph in to_paragraphs(page.wikitext)[0]]
        have = Counter(word for text in shown for word in WORD.findall(text))
        rest: list[tuple[str, Counter[str]]] = []
        for place, line in enumerate(lines):
            words = Counter(WORD.findall(line))
            total += words.total()
            if is_heading(lines, place):
                lost["headings, which become section titles"] += words.total()
            else:
                markup = has_markup(line) or re.search(r"\[\[|\{\{|&\w+;|<\w", line)
                rest.append(
                    (
                        "lines that hold markup in the source"
                        if markup
                        else "other lines, those of closing sections among them",
                        words,
                    )
                )
        # what is missing is told of the lines with markup first, for those are dropped whole
        for reason, words in sorted(rest, key=lambda pair: pair[0]):
            lost[reason] += (words - have).total()
            have -= words
        residue += have.total()
    table = Table("against the source", "words", "share", title=f"{compared:,} pages, {total:,} words")
    for reason in sorted(lost):
        table.add_row(f"lost: {reason}", f"{lost[reason]:,}", f"{lost[reason] / total:.3%}")
    table.add_row("residue: words that are not in the source", f"{residue:,}", f"{residue / total:.3%}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dump", type=Path, help="a multistream dump that stands already")
    parser.add_argument("--articles", type=int, default=0, help="make the dump of the first so many articles")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="of one and of two workers")
    args = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        path = args.dump or make_dump(Path(folder), args.articles)
        for table in (single_core(path, args.passes), scaling(path, args.rounds), against_source(path)):
            for column in table.columns[1:]:
                column.justify = "right"
            console.print(table)


if __name__ == "__main__":
    main()
