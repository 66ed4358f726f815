"""The knowledge base: building it from a Wikidata dump beside plain reading of the same file, its size, its look-ups.

    .venv/bin/python benchmarks/kb.py                       makes the dumps (about 1 GB and 0.4 GB of JSON) and measures
    .venv/bin/python benchmarks/kb.py --dumps FOLDER        uses FOLDER/{large,small}/latest-all.json.bz2 if they stand

The floor is what nobody can do without: unpack the file with the standard library and parse each line with orjson,
keeping nothing. Speeds are MB of JSON a CPU second of all processes together, so that they are speeds a core; builds on
Ray are also given by the clock. Memory is the sum of the resident memory of all processes of a build, Ray's own
included, sampled ten times a second. Needs ../shared.
"""

from __future__ import annotations

import argparse
import bz2
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import psutil
from rich.console import Console
from rich.table import Table

from data_tools.kb import KnowledgeBase

SHARED = Path(__file__).resolve().parents[2] / "shared"
MB = 1e6
PADS = {"large": 300_000, "small": 100_000}
ENTITIES = 20  # of a document, in the look-ups


@dataclass(frozen=True)
class Measured:
    wall: float
    cpu: float  # seconds of all processes
    memory: float  # bytes, of all processes together at once


def make_dump(folder: Path, pad: int) -> Path:
    path = folder / "latest-all.json.bz2"
    if not (folder / "truth.json").is_file():
        tool = SHARED / "tools" / "make_wikidata_dump.py"
        knowledge = SHARED / "data" / "kb-wikidata"
        words = ["--kb", knowledge, "--pad", str(pad), "--compress", "bz2", "--seed", "1", "--out", folder]
        subprocess.run([sys.executable, str(tool), *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return path


def measure(command: list[str]) -> Measured:
    """Run a command to its end and watch its processes."""
    began = time.perf_counter()
    with open(os.devnull, "w") as nowhere:
        process = psutil.Popen(command, stdout=nowhere, stderr=nowhere, env=os.environ | {"OMP_NUM_THREADS": "1"})
        cpu: dict[int, float] = {}
        memory = 0.0
        while process.poll() is None:
            total = 0.0
            for one in [process, *_children(process)]:
                try:
                    times = one.cpu_times()
                    cpu[one.pid] = times.user + times.system
                    total += one.memory_info().rss
                except psutil.Error:
                    continue
            memory = max(memory, total)
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return Measured(time.perf_counter() - began, sum(cpu.values()), memory)


def _children(process: psutil.Popen) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def build(dump: Path, out: Path, *settings: str) -> Measured:
    shutil.rmtree(out, ignore_errors=True)
    words = ["build-kb", "--dump", str(dump), "--out", str(out), *settings]
    return measure([sys.executable, "-m", "erica_dist.cli", *words])


def floor(dump: Path, parse: bool) -> float:
    """CPU seconds to unpack the dump, and to parse each line."""
    began = time.process_time()
    with bz2.open(dump) as file:
        if not parse:
            while file.read(1 << 20):
                pass
        else:
            for line in file:
                if len(line) > 3:
                    orjson.loads(line.rstrip(b",\n"))
    return time.process_time() - began


def rate(function: Callable[[], int], passes: int = 5) -> float:
    """What `function` counts, a CPU second; median."""
    rates = []
    for _ in range(passes):
        began = time.process_time()
        done = function()
        rates.append(done / (time.process_time() - began))
    return statistics.median(rates)


def show_builds(dumps: dict[str, Path], work: Path, runs: int, console: Console) -> None:
    truth = {name: json.loads((path.parent / "truth.json").read_text()) for name, path in dumps.items()}
    size, items = truth["large"]["json_bytes"] / MB, truth["large"]["items"]
    parsed = statistics.median(floor(dumps["large"], parse=True) for _ in range(runs))
    unpacked = statistics.median(floor(dumps["large"], parse=False) for _ in range(runs))
    table = Table("way", "CPU s", "MB/CPU-s", "of the floor", "wall s", "MB/s", "items/s", "peak memory")
    table.title = f"{size:,.0f} MB of JSON, {items:,} items; load {os.getloadavg()[0]:.1f} before"
    table.add_row("bz2 alone", f"{unpacked:.1f}", f"{size / unpacked:.1f}", "", "", "", "", "")
    table.add_row("bz2 + orjson.loads: the floor", f"{parsed:.1f}", f"{size / parsed:.1f}", "100 %", "", "", "", "")
    ways = {"build-kb, one process": ["ray.disabled=true"]}
    ways |= {f"build-kb on Ray, {workers} worker(s)": [f"ray.workers={workers}"] for workers in (1, 2)}
    peaks: list[float] = []
    for name, settings in ways.items():
        results = [build(dumps["large"], work / "kb", *settings) for _ in range(runs)]
        cpu, wall = (statistics.median(getattr(one, key) for one in results) for key in ("cpu", "wall"))
        peaks.append(max(one.memory for one in results))
        table.add_row(
            name,
            f"{cpu:.1f}",
            f"{size / cpu:.1f}",
            f"{100 * parsed / cpu:.0f} %",
            f"{wall:.1f}",
            f"{size / wall:.1f}",
            f"{items / wall:,.0f}",
            f"{peaks[-1] / MB:,.0f} MB",
        )
    small = max(build(dumps["small"], work / "small", "ray.workers=2").memory for _ in range(runs))
    table.caption = (
        f"peak memory at {PADS['small']:,} synthetic items, 2 workers: {small / MB:,.0f} MB; at {PADS['large']:,}: "
        f"{peaks[-1] / MB:,.0f} MB, {100 * (peaks[-1] / small - 1):+.0f} %"
    )
    _print(table, console)


def show_size(folder: Path, console: Console) -> None:
    kb = KnowledgeBase.open(folder)
    counts = kb.manifest["counts"]
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}

    def total(*starts: str) -> int:
        return sum(size for name, size in sizes.items() if name.startswith(starts))

    rows = [
        ("facts, both ways", total("facts_", "incoming_"), counts["facts"]),
        ("  of it the facts' own bytes", total("facts_tails", "facts_relations", "incoming_heads"), counts["facts"]),
        ("names, with and without case", total("names", "folded"), counts["names"]),
        ("titles", total("titles"), counts["titles"]),
        ("entities: ids, labels, titles, types", total("entity_", "types_"), counts["entities"]),
    ]
    table = Table("part", "MB", "number", "bytes each", title=f"Size: {sum(sizes.values()) / MB:,.1f} MB in all")
    for name, size, number in rows:
        table.add_row(name, f"{size / MB:.1f}", f"{number:,}", f"{size / number:.1f}")
    seconds = statistics.median(_seconds(lambda: KnowledgeBase.open(folder)) for _ in range(11))
    table.caption = f"opened in {1000 * seconds:.1f} ms"
    _print(table, console)


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def show_lookups(folder: Path, console: Console) -> None:
    kb = KnowledgeBase.open(folder)
    rng = np.random.default_rng(0)
    documents = [rng.choice(len(kb), ENTITIES, replace=False) for _ in range(5_000)]
    first, second = np.nonzero(~np.eye(ENTITIES, dtype=bool))
    heads = np.concatenate([document[first] for document in documents])
    tails = np.concatenate([document[second] for document in documents])
    few = list(zip(heads[:200_000].tolist(), tails[:200_000].tolist(), strict=True))
    names = [kb.entity_name(entity) for entity in rng.integers(0, len(kb), 50_000).tolist()]
    table_of: dict[tuple[int, int], list[int]] = {}
    for head in range(len(kb)):
        # every fact of the knowledge base, as the published pipeline holds them
        tails_of = kb._tails[kb._offsets[head] : kb._offsets[head + 1]].tolist()
        relations = kb._relations[kb._offsets[head] : kb._offsets[head + 1]].tolist()
        for tail, relation in zip(tails_of, relations, strict=True):
            table_of.setdefault((head, tail), []).append(relation)

    def among() -> int:
        for document in documents:
            kb.facts_among(document)
        return len(heads)

    def batch() -> int:
        kb.relations_of_pairs(heads, tails)
        return len(heads)

    def single() -> int:
        for head, tail in few:
            kb.relations_of(head, tail)
        return len(few)

    def dictionary() -> int:
        for pair in few:
            table_of.get(pair)
        return len(few)

    def candidates() -> int:
        for name in names:
            kb.candidates(name)
        return len(names)

    table = Table("look-up", "a CPU second", title=f"Look-ups, one process; {len(kb):,} entities")
    for text, function in (
        ("dict of (head, tail), one pair at a time", dictionary),
        ("one pair at a time", single),
        (f"{len(heads):,} pairs in one call", batch),
        (f"pairs of {ENTITIES} entities of a document, a call each", among),
        ("candidates of a name", candidates),
    ):
        table.add_row(text, f"{rate(function):,.0f}")
    _print(table, console)


def _print(table: Table, console: Console) -> None:
    for column in table.columns[1:]:
        column.justify = "right"
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dumps", type=Path, help="folder for the dumps, kept; made there where they are missing")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    if not SHARED.is_dir():
        raise SystemExit(f"this benchmark makes its dumps with the tools of {SHARED}, which is not there")
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="erica-kb-") as temporary:
        work = Path(temporary)
        dumps = {name: make_dump((args.dumps or work) / name, pad) for name, pad in PADS.items()}
        show_builds(dumps, work, args.runs, console)
        show_size(work / "kb", console)
        show_lookups(work / "kb", console)


if __name__ == "__main__":
    main()
