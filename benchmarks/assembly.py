"""What the driver needs to put a large corpus together: time and memory of places alone, for made indices of units.

    .venv/bin/python benchmarks/assembly.py --documents 1000000 --pages 7000000

For that nothing is written: the indices are made as they are asked for, digests are drawn, and sketches are left out.
Then `--written` documents of about 3 kB are put into shards of a temporary folder, for the time that one takes.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from data_tools.assembly import Place, Places, Statistics, gather, spread, write_shards
from erica_dist.config import FilterConfig

DIGEST = 16  # bytes


def made_indices(documents: int, pages: int, pages_a_unit: int) -> Iterator[dict[str, Any]]:
    """The index of each unit, documents spread evenly."""
    draw = random.Random(0)
    units = -(-pages // pages_a_unit)
    for unit in range(units):
        of_unit = range(documents * unit // units, documents * (unit + 1) // units)
        places = sorted((draw.randrange(pages_a_unit), number) for number in range(len(of_unit)))
        yield {
            "pages": pages_a_unit,
            "counts": {"pages": {"pages read": pages_a_unit}},
            "documents": [
                [page, chunk, draw.randbytes(DIGEST).hex(), 3000 * line, 2900]
                for line, (page, chunk) in enumerate(places)
            ],
            "texts": [
                [page, draw.randbytes(DIGEST).hex(), 100_000 + 3000 * page, 2900 + page]
                for page in range(min(pages_a_unit, pages - unit * pages_a_unit))
            ],
        }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write(documents: int, a_unit: int = 30) -> None:
    """Put `documents` made documents into shards, as such and as pages of text, and print the time."""
    entities = [
        {"id": f"Q{n}", "name": f"name {n}", "type": "GPE", "mentions": [[n, n + 4, "name"]]} for n in range(15)
    ]
    relations = [[n, n + 1, "P17"] for n in range(14)]
    content = {"title": "A title", "text": "word " * 400, "entities": entities, "relations": relations}
    line = json.dumps(content).encode() + b"\n"
    units = documents // a_unit
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [folder / f"{unit}.jsonl" for unit in range(units)]
        for file in files:
            file.write_bytes(line * a_unit)
        lines = ((unit, number) for unit in range(units) for number in range(a_unit))
        places = Places.of(Place(u * a_unit + n, u, n * len(line), len(line)) for u, n in lines)
        kinds: list[tuple[Literal["documents", "text"], Statistics | None]] = [
            ("documents", Statistics(Counter(), Counter())),
            ("text", None),
        ]
        for kind, statistics in kinds:
            began = time.process_time()
            for _ in write_shards(folder, kind, spread(places, 42), files, 1000, statistics):
                pass
            cpu = (time.process_time() - began) / len(places)
            print(f"shards: {kind} of {len(line):,} bytes from {units:,} files: {1e6 * cpu:.0f} CPU microseconds each")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=7_000_000)
    parser.add_argument("--pages-a-unit", type=int, default=200)
    parser.add_argument("--written", type=int, default=30_000)
    args = parser.parse_args()

    began = time.process_time()
    for _ in made_indices(args.documents, args.pages, args.pages_a_unit):
        pass
    making, before = time.process_time() - began, peak_mb()
    print(f"{args.documents:,} documents, {args.pages:,} pages of text, {args.pages_a_unit} pages a unit")
    print(f"making the indices: {making:.1f} CPU s, {before:.0f} MB so far")
    began = time.process_time()
    indices = made_indices(args.documents, args.pages, args.pages_a_unit)
    gathered = gather(indices, FilterConfig(duplicates="exact"))
    print(f"gather: {time.process_time() - began - making:.1f} CPU s, peak {peak_mb() - before:.0f} MB more")
    began = time.process_time()
    order = spread(gathered.documents, 42)
    print(
        f"spread: {time.process_time() - began:.1f} CPU s, peak {peak_mb() - before:.0f} MB more, {len(order):,} places"
    )
    write(args.written)


if __name__ == "__main__":
    main()
