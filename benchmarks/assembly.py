"""What the driver needs to put a large corpus together: time and memory of places alone, for made indices of units.

    .venv/bin/python benchmarks/assembly.py --documents 1000000 --pages 7000000

Nothing is written: the indices are made as they are asked for, digests are drawn, and sketches are left out.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

from data_tools.assembly import gather, spread
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=7_000_000)
    parser.add_argument("--pages-a-unit", type=int, default=200)
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


if __name__ == "__main__":
    main()
