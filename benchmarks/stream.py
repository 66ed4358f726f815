"""Reading documents: our training shards beside plain webdataset with one document a sample, on the same documents.

    .venv/bin/python benchmarks/stream.py --corpus runs/quickstart/corpus --shards runs/quickstart/documents

The corpus folder is itself a WebDataset of one JSON document a sample, which is what plain webdataset reads here; our
shards hold the same documents as word pieces. One process, medians of several passes over everything, CPU seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import webdataset
from rich.console import Console
from rich.table import Table

from erica_dist import settings
from erica_dist.config import EricaJob
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.loader import EricaStream


def read_with_webdataset(corpus: Path) -> int:
    files = sorted(str(path) for path in corpus.glob("documents-*.tar"))
    return sum(1 for _ in webdataset.WebDataset(files, shardshuffle=False).decode())


def read_shards(folder: ShardFolder) -> int:
    return sum(len(folder.document(i).tokens) > 0 for i in range(len(folder)))


def collate(folder: ShardFolder, steps: int) -> int:
    words = ["train.global_batch=32", "train.micro_batch=16", f"train.steps={steps}", "data.workers=0"]
    with EricaStream(folder, settings.load(EricaJob, None, words)) as stream:
        return sum(batch.documents for batch in stream)


def rate(function: Callable[[], int], passes: int) -> float:
    """Documents a CPU second, median of `passes` after one that warms up."""
    function()
    rates = []
    for _ in range(passes):
        began = time.process_time()
        documents = function()
        rates.append(documents / (time.process_time() - began))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=5)
    args = parser.parse_args()

    folder = ShardFolder.open(args.shards)
    stored = sum(path.stat().st_size for path in args.corpus.glob("documents-*.tar"))
    ours = sum(path.stat().st_size for path in args.shards.glob("*-*.tar"))
    documents = read_with_webdataset(args.corpus)
    held_out = len(ShardFolder.open(args.shards, split="validation"))
    rows = {
        "webdataset, one JSON document a sample": (
            rate(lambda: read_with_webdataset(args.corpus), args.passes),
            stored / documents,
        ),
        "our shards, read": (rate(lambda: read_shards(folder), args.passes), ours / (len(folder) + held_out)),
        "our shards, all the way to collated micro-batches": (rate(lambda: collate(folder, 20), args.passes), 0.0),
    }
    base = next(iter(rows.values()))[0]
    table = Table("way", "documents/CPU-s", "times", "bytes a document", title=f"{documents:,} documents")
    for name, (value, size) in rows.items():
        table.add_row(name, f"{value:,.0f}", f"{value / base:.1f}", f"{size:,.0f}" if size else "")
    for column in table.columns[1:]:
        column.justify = "right"
    Console().print(table)


if __name__ == "__main__":
    main()
