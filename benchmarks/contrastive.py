"""RD over large pools: time and memory of forward and backward, beside the bare matrix products and dense formulations.

    .venv/bin/python benchmarks/contrastive.py --work /tmp/contrastive                     1,024, 4,096 and 16,384 pairs
    .venv/bin/python benchmarks/contrastive.py --work /tmp/contrastive --pairs 100000 --anchors 4096 --ways ours
    .venv/bin/python benchmarks/contrastive.py --work /tmp/contrastive --table ranks                 two processes, gloo

Every pair is anchor and pool at once, as in one global batch of one rank: 20 pairs a document, half of them labelled by
one of 58 relations whose frequencies fall as 1/rank, half without relation. States are random.

bare: the three products that similarities and their gradients need, tile by tile, nothing else. ours: `relation_loss`.
dense: the same loss written with whole matrices and autograd. supcon: SupConLoss of pytorch-metric-learning, which has
the same positives but another loss, no pairs without relation (they have no label) and nothing left out; it is put into
the work folder, not into the environment.

`--table ranks` splits the pairs over two processes of one thread each. gather: what the trainer does under
`erica.negatives=gather`, from labels and states to the gradient of the own states, the count of all anchors included.
The others are losses of pytorch-metric-learning in its DistributedLossWrapper: each rank computes the loss of all
pairs, with gradient for its own; under `efficient` the loss of its own pairs as anchors, and so without the gradient
that they have as positives and negatives of the other rank's. NTXentLoss makes a matrix of all positive by all negative
pairs. What does not run is given with its reason; --limit-gb is for the address space of each process.

Each figure is from fresh processes: seconds of the wall clock and of all threads for one forward and backward after one
that warms up, medians of --repeats; memory is the largest resident set beyond that before the first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional

from erica_dist.objectives.gather import gather_rows, gather_tables, row_counts
from erica_dist.objectives.pair_labels import TILE, TILE_ENTRIES, PairLabels, anchor_rows, positives_and_negatives
from erica_dist.objectives.relation_discrimination import PARTS, relation_loss, relation_loss_sum

TEMPERATURE = 0.05
PEER = "pytorch-metric-learning==2.9.0"
WAYS = ("bare", "ours", "dense", "supcon")
RANKS = 2
RANK_WAYS = ("gather", "supcon", "supcon efficient", "ntxent", "ntxent efficient")
DENSE_MOST = 20_000  # pairs: dense matrices of more do not fit a common machine


def pairs_of(count: int, width: int, anchors: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, PairLabels]:
    """Random states and their labels, of `count` pairs a rank's share; `anchors` 0: half of the pairs are labelled,
    anywhere. The labels of all pairs do not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(0)
    frequency = 1 / torch.arange(1, 59, dtype=torch.float64)
    relation = torch.multinomial(frequency, count, replacement=True, generator=generator)
    without = torch.rand(count, generator=generator) < 0.5
    relation[torch.arange(count) >= anchors if anchors else without] = -1
    document = torch.arange(count) // 20
    ends = torch.randint(0, 8, (2, count), generator=generator)
    single = torch.rand(count, generator=generator) < 0.4
    own = slice(rank * count // ranks, (rank + 1) * count // ranks)
    labels = PairLabels(document, ends[0], ends[1], single, relation[:, None])[own]
    generator.manual_seed(1 + rank)
    return torch.randn(len(labels), width, generator=generator), labels


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


def dense(states_ND: Tensor, labels: PairLabels) -> Tensor:
    leaf = states_ND.requires_grad_()
    normal_ND = functional.normalize(leaf, dim=1)
    positive, negative = positives_and_negatives(labels, labels)
    is_anchor = positive.any(1) & negative.any(1)
    similarity = normal_ND @ normal_ND.T / TEMPERATURE
    below = similarity.masked_fill(~negative, float("-inf")).logsumexp(1, keepdim=True)
    loss = (torch.logaddexp(similarity, below) - similarity).masked_fill(~positive, 0).sum(1) / positive.sum(1).clamp(1)
    total = loss[is_anchor].sum()
    total.backward()
    return total.detach()


def supcon(states_ND: Tensor, labels: PairLabels) -> None:
    from pytorch_metric_learning.losses import SupConLoss

    leaf = states_ND.requires_grad_()
    SupConLoss(temperature=TEMPERATURE)(leaf, one_label(labels)).backward()


def one_label(labels: PairLabels, first: int = 0) -> Tensor:
    """[N] labels as the peer takes them: a pair without relation is a negative of all, so it has one of its own.

    `first`: how many pairs the ranks before have.
    """
    return torch.where(labels.labels_NL[:, 0] < 0, 1000 + first + torch.arange(len(labels)), labels.labels_NL[:, 0])


def gather(states_nD: Tensor, labels: PairLabels) -> Tensor:
    """This rank's share of the mean over all anchors, as `training/erica.py` has it under negatives=gather."""
    pool = PairLabels.union(gather_tables(labels.table()))
    anchors = anchor_rows(labels, pool).sum().double()
    dist.all_reduce(anchors)
    leaf = states_nD.requires_grad_()
    pool_ND = gather_rows(leaf, row_counts(len(leaf), leaf.device))
    loss, _ = relation_loss(leaf, labels, pool_ND, pool, TEMPERATURE, torch.ones(len(PARTS)) / anchors)
    loss.backward()
    return loss.detach()


def wrapped(way: str, states_nD: Tensor, labels: PairLabels) -> Tensor:
    from pytorch_metric_learning.losses import NTXentLoss, SupConLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    name, _, efficient = way.partition(" ")
    loss = (SupConLoss if name == "supcon" else NTXentLoss)(temperature=TEMPERATURE)
    leaf = states_nD.requires_grad_()
    first = sum(row_counts(len(leaf), leaf.device)[: dist.get_rank()])
    value = DistributedLossWrapper(loss, efficient=bool(efficient))(leaf, one_label(labels, first))
    value.backward()
    return value.detach()


def measure_rank(way: str, count: int, width: int, anchors: int, rank: int, meeting: str) -> dict[str, float]:
    """One figure of one of the `RANKS`, in this process; `meeting`: a file that is not there yet, the same for all."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    function = gather if way == "gather" else partial(wrapped, way)
    states, labels = pairs_of(count, width, anchors, rank, RANKS)
    # few enough for the peer's matrix of positive by negative pairs, as many as must be for it to have both
    function(*pairs_of(64, width, 0, rank, RANKS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    function(states, labels)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dist.destroy_process_group()
    return {"wall": wall, "cpu": cpu, "mb": (peak - before) / 1024}


def measure(way: str, count: int, width: int, anchors: int) -> dict[str, float]:
    """One figure, in this process."""
    states, labels = pairs_of(count, width, anchors)
    ways: dict[str, Callable[[Tensor, PairLabels], object]]
    ways = {"bare": bare, "ours": ours, "dense": dense, "supcon": supcon}
    function = ways[way]
    small, small_labels = pairs_of(256, width, 0)
    function(small, small_labels)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    function(states, labels)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"wall": wall, "cpu": cpu, "mb": (peak - before) / 1024}


def in_fresh_processes(way: str, count: int, args: argparse.Namespace) -> dict[str, float] | str:
    """The figures, or why there are none; of ranks the slowest's wall clock, the CPU seconds of all, the most MB."""
    ranks = RANKS if args.table == "ranks" else 1
    peer = str(args.work / "peer")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([peer, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, __file__, "--limit-gb", str(args.limit_gb), "--measure", way]
    command += map(str, (count, args.width, args.anchors))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        processes = []
        for rank in range(ranks):
            place = [] if ranks == 1 else [str(rank), f"{folder}/meeting"]
            with open(f"{folder}/out-{rank}", "w") as out, open(f"{folder}/err-{rank}", "w") as err:
                process = subprocess.Popen([*command, *place], env=environment, stdout=out, stderr=err)
            started.callback(process.wait)
            started.callback(process.kill)
            processes.append(process)
        # when one of the ranks fails, the other waits for it in vain
        while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
            time.sleep(0.05)
        for rank, process in enumerate(processes):
            if process.poll():
                lines = Path(f"{folder}/err-{rank}").read_text().strip().splitlines() or [f"status {process.poll()}"]
                return re.sub(r"^\[rank\d+\]:\s*", "", lines[-1])
        runs = [json.loads(Path(f"{folder}/out-{rank}").read_text()) for rank in range(ranks)]
    combine: dict[str, Callable[[list[float]], float]] = {"wall": max, "cpu": sum, "mb": max}
    return {key: function([run[key] for run in runs]) for key, function in combine.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--work", type=Path, default=Path("/tmp/contrastive"))
    parser.add_argument("--table", choices=("one", "ranks"), default="one", help="one process, or two")
    parser.add_argument("--pairs", type=int, nargs="+", help="1024 4096, and 16384 in one process")
    parser.add_argument("--width", type=int, default=1536, help="of a pair's state; 1,536: BERT base")
    parser.add_argument("--ways", nargs="+", help=f"of {', '.join(WAYS)}; with --table ranks of {', '.join(RANK_WAYS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--anchors", type=int, default=0)
    parser.add_argument("--limit-gb", type=float, default=0, help="address space of a process; 0: 8 with --table ranks")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    known = RANK_WAYS if args.table == "ranks" else WAYS
    args.ways = args.ways or list(known)
    if wrong := set(args.ways) - set(known):
        parser.error(f"--ways: {', '.join(wrong)}: not of {', '.join(known)}")
    args.pairs = args.pairs or [1024, 4096, 16384][: 2 if args.table == "ranks" else 3]
    args.limit_gb = args.limit_gb or (8 if args.table == "ranks" else 0)
    if args.measure:
        if args.limit_gb:
            limit = int(args.limit_gb * 2**30)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        way, count, width, anchors, *place = args.measure
        numbers = int(count), int(width), int(anchors)
        print(json.dumps(measure_rank(way, *numbers, int(place[0]), place[1]) if place else measure(way, *numbers)))
        return
    peer = any(way.startswith(("supcon", "ntxent")) for way in args.ways)
    if peer and not (args.work / "peer").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(args.work / "peer"), PEER]
        subprocess.run(pip, check=False, stderr=subprocess.DEVNULL)
    Console(width=120).print(table_of(args))


def table_of(args: argparse.Namespace) -> Table:
    where = f", split over {RANKS} processes of one thread" if args.table == "ranks" else ""
    load = f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    title = f"RD of width {args.width}{where}: one forward and backward; {load}"
    last = "MB beyond the states, a rank" if args.table == "ranks" else "MB beyond the states"
    table = Table("pairs", "way", "wall s", "CPU s", f"times {args.ways[0]}", last, title=title)
    for column in table.columns[2:]:
        column.justify = "right"
    for count in args.pairs:
        base = None
        for way in args.ways:
            if args.table == "one" and way in ("dense", "supcon") and count > DENSE_MOST:
                table.add_row(f"{count:,}", way, "", "", "", "not tried: matrices of pairs x pairs")
                continue
            runs: list[dict[str, float]] = []
            while len(runs) < args.repeats:
                run = in_fresh_processes(way, count, args)
                if isinstance(run, str):
                    table.add_row(f"{count:,}", way, "", "", "", escape(f"did not run: {run}"))
                    break
                runs.append(run)
            else:
                wall, cpu, mb = (statistics.median(run[key] for run in runs) for key in ("wall", "cpu", "mb"))
                base = base or cpu
                table.add_row(f"{count:,}", way, f"{wall:.2f}", f"{cpu:.2f}", f"{cpu / base:.2f}", f"{mb:,.0f}")
    return table


if __name__ == "__main__":
    main()
