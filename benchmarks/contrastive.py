"""RD over large pools: time and memory of forward and backward, beside the bare matrix products and dense formulations.

    .venv/bin/python benchmarks/contrastive.py --work /tmp/contrastive                     1,024, 4,096 and 16,384 pairs
    .venv/bin/python benchmarks/contrastive.py --work /tmp/contrastive --pairs 100000 --anchors 4096 --ways ours

Every pair is anchor and pool at once, as in one global batch of one rank: 20 pairs a document, half of them labelled by
one of 58 relations whose frequencies fall as 1/rank, half without relation. States are random.

bare: the three products that similarities and their gradients need, tile by tile, nothing else. ours: `relation_loss`.
dense: the same loss written with whole matrices and autograd. supcon: SupConLoss of pytorch-metric-learning, which has
the same positives but another loss, no pairs without relation (they have no label) and nothing left out; it is put into
the work folder, not into the environment. Its wrapper for several processes gathers, then computes the same matrices.

Each figure is from fresh processes: seconds of the wall clock and of all threads for one forward and backward after one
that warms up, medians of --repeats; memory is the largest resident set beyond that before the first.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from erica_dist.objectives.pair_labels import TILE, TILE_ENTRIES, PairLabels, positives_and_negatives
from erica_dist.objectives.relation_discrimination import relation_loss_sum

TEMPERATURE = 0.05
PEER = "pytorch-metric-learning==2.9.0"
WAYS = ("bare", "ours", "dense", "supcon")
DENSE_MOST = 20_000  # pairs: dense matrices of more do not fit a common machine


def pairs_of(count: int, width: int, anchors: int) -> tuple[Tensor, PairLabels]:
    """Random states [count, width] and their labels; `anchors` 0: half of the pairs are labelled, anywhere."""
    generator = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1, 59, dtype=torch.float64)
    relation = torch.multinomial(frequency, count, replacement=True, generator=generator)
    without = torch.rand(count, generator=generator) < 0.5
    relation[torch.arange(count) >= anchors if anchors else without] = -1
    document = torch.arange(count) // 20
    ends = torch.randint(0, 8, (2, count), generator=generator)
    single = torch.rand(count, generator=generator) < 0.4
    labels = PairLabels(document, ends[0], ends[1], single, relation[:, None])
    return torch.randn(count, width, generator=generator), labels


def bare(states_ND: Tensor, _: PairLabels) -> None:
    states_ND = functional.normalize(states_ND, dim=1)
    of_pool = torch.zeros_like(states_ND)
    tile = min(TILE, max(1, TILE_ENTRIES // len(states_ND)))
    for start in range(0, len(states_ND), tile):
        rows = states_ND[start : start + tile]
        similarity = rows @ states_ND.T
        similarity @ states_ND  # the anchors' gradient
        of_pool.addmm_(similarity.T, rows)


def ours(states_ND: Tensor, labels: PairLabels) -> None:
    leaf = states_ND.requires_grad_()
    relation_loss_sum(leaf, labels, leaf, labels, TEMPERATURE).backward()


def dense(states_ND: Tensor, labels: PairLabels) -> None:
    leaf = states_ND.requires_grad_()
    normal_ND = functional.normalize(leaf, dim=1)
    positive, negative = positives_and_negatives(labels, labels)
    is_anchor = positive.any(1) & negative.any(1)
    similarity = normal_ND @ normal_ND.T / TEMPERATURE
    below = similarity.masked_fill(~negative, float("-inf")).logsumexp(1, keepdim=True)
    loss = (torch.logaddexp(similarity, below) - similarity).masked_fill(~positive, 0).sum(1) / positive.sum(1).clamp(1)
    loss[is_anchor].sum().backward()


def supcon(states_ND: Tensor, labels: PairLabels) -> None:
    from pytorch_metric_learning.losses import SupConLoss

    leaf = states_ND.requires_grad_()
    relation = labels.labels_NL[:, 0].clone()
    alone = relation < 0
    relation[alone] = 1000 + torch.arange(int(alone.sum()))  # negatives of all: a label of their own each
    SupConLoss(temperature=TEMPERATURE)(leaf, relation).backward()


def measure(way: str, count: int, width: int, anchors: int) -> dict[str, float]:
    """One figure, in this process."""
    states, labels = pairs_of(count, width, anchors)
    function: Callable[[Tensor, PairLabels], None] = {"bare": bare, "ours": ours, "dense": dense, "supcon": supcon}[way]
    small, small_labels = pairs_of(256, width, 0)
    function(small, small_labels)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    function(states, labels)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"wall": wall, "cpu": cpu, "mb": (peak - before) / 1024}


def in_fresh_process(way: str, count: int, args: argparse.Namespace) -> dict[str, float] | None:
    peer = str(args.work / "peer")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([peer, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, __file__, "--measure", way, *map(str, (count, args.width, args.anchors))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/contrastive"))
    parser.add_argument("--pairs", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--width", type=int, default=1536, help="of a pair's state; 1,536: BERT base")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--anchors", type=int, default=0)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure[0], *map(int, args.measure[1:]))))
        return
    if "supcon" in args.ways and importlib.util.find_spec("pytorch_metric_learning") is None:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(args.work / "peer"), PEER]
        subprocess.run(pip, check=False, stderr=subprocess.DEVNULL)
    title = f"RD of width {args.width}: one forward and backward; load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    table = Table("pairs", "way", "wall s", "CPU s", "times the bare products", "MB beyond the states", title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for count in args.pairs:
        base = None
        for way in args.ways:
            if way in ("dense", "supcon") and count > DENSE_MOST:
                table.add_row(f"{count:,}", way, "", "", "", "not tried: matrices of pairs x pairs")
                continue
            runs = [run for _ in range(args.repeats) if (run := in_fresh_process(way, count, args))]
            if not runs:
                table.add_row(f"{count:,}", way, "", "", "", "did not run")
                continue
            wall, cpu, mb = (statistics.median(run[key] for run in runs) for key in ("wall", "cpu", "mb"))
            base = cpu if way == "bare" else base
            times = f"{cpu / base:.2f}" if base else ""
            table.add_row(f"{count:,}", way, f"{wall:.2f}", f"{cpu:.2f}", times, f"{mb:,.0f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
