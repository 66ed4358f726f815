"""One optimizer step of ERICA, and its held-out scores.

Half of a micro-batch's documents serve RD and half ED; MLM runs on both. Each loss is a sum divided by its count over
the whole global batch, so accumulation over any split of the batch adds up to one big batch. `erica.negatives` says
what the pool of RD is: the own micro-batch (local), the micro-batches of all ranks at one micro-step (gather), or the
whole global batch (global, by the gradient cache). `erica.mlm_mean=micro_batch` and `erica.rd_mean=micro_batch` alone
take means as the published code does: by micro-batch (MLM: and half), so that they do depend on the split.
"""

from __future__ import annotations

import math
import sys
from dataclasses import astuple, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from erica_dist.config import EricaConfig, EricaJob, EricaWeights
from erica_dist.objectives.entity_discrimination import entity_loss_sum
from erica_dist.objectives.gather import gather_rows, gather_tables, rank, ranks, row_counts
from erica_dist.objectives.gradient_cache import backward_term, cached_gradients
from erica_dist.objectives.pair_labels import PairLabels, anchor_rows
from erica_dist.objectives.pair_sampling import PairSampling
from erica_dist.objectives.pooling import pair_states
from erica_dist.objectives.relation_discrimination import MEASURES, PARTS, relation_loss
from erica_dist.objectives.retrieval import mean_average_precision
from erica_dist.stream.micro_batches import EricaMicroBatch
from erica_dist.training.engine import backward, device, seed_dropout, sum_over_ranks


def train_step(engine: Any, batches: list[EricaMicroBatch], job: EricaJob, step: int) -> dict[str, float]:
    """Forward and backward of this rank's micro-batches; the optimizer step is the caller's. Returns global metrics."""
    erica, weights = job.erica, job.erica.weights
    batches = [batch.to(device()) for batch in batches]
    labels = [PairLabels.of(batch) for batch in batches]
    pools = _pools(labels, erica)
    sampling = PairSampling.of(erica)
    counts, own_anchors = _counts(batches, labels, pools, sampling)
    cells = ranks() * len(batches)
    first_cell = rank() * len(batches)

    by_half = erica.mlm_mean == "micro_batch"
    mlm_count = 1 if by_half else max(counts.masked, 1)
    cached: list[Tensor] = []
    sums = torch.zeros(4 + len(PARTS) + len(MEASURES), dtype=torch.float64)
    rd_weights = weights.rd * torch.tensor(weights.rd_parts, device=device())
    divisors = [max(counts.anchors, 1)] * len(batches)
    if erica.rd_mean == "micro_batch":
        divisors = [max(own, 1) * cells for own in own_anchors]
    if erica.negatives == "global":
        scale = rd_weights / divisors[0]
        sums_7, cached = _first_pass(engine, batches, labels, pools[0], erica, scale, job.train.seed, step, first_cell)
        sums[4:] += _divided(sums_7, divisors[0])
    for micro, batch in enumerate(batches):
        seed_dropout(job.train.seed, step, first_cell + micro)
        entity_ED, mlm_sum, mlm_right = engine(batch, by_half=by_half)
        if by_half:
            mlm_sum = _sum_of_means(mlm_sum, batch, counts)
        pairs_PD = pair_states(entity_ED, batch.pair_head_P, batch.pair_tail_P)
        if cached:
            rd_term = backward_term(pairs_PD, cached[micro])
        else:
            own, pool = labels[micro], pools[micro]
            if erica.negatives == "gather":
                pool_ND = gather_rows(pairs_PD, row_counts(len(pairs_PD), pairs_PD.device))
            else:
                pool_ND = pairs_PD
            scale = rd_weights / divisors[micro]
            rd_term, sums_7 = relation_loss(pairs_PD, own, pool_ND, pool, erica.temperature, scale, sampling)
            sums[4:] += _divided(sums_7, divisors[micro])
        ed_sum, ed_right = _entity_loss(entity_ED, batch, erica, erica.tail_counted_twice)
        loss = rd_term + ed_sum * (weights.ed / max(counts.queries, 1)) + mlm_sum * (weights.mlm / mlm_count)
        backward(engine, loss, last=micro == len(batches) - 1)
        sums[:4] += torch.stack([x.detach().double().cpu() for x in (ed_sum, mlm_sum, ed_right, mlm_right)])
    return _scores(sum_over_ranks(sums.to(device())).tolist(), counts, weights, mlm_count, cells)


def _divided(sums_7: Tensor, divisor: float) -> Tensor:
    """RD's parts as shares of the loss; the measures stay sums over anchors."""
    sums_7 = sums_7.double().cpu().clone()
    sums_7[: len(PARTS)] /= divisor
    return sums_7


def _scores(sums: list[float], counts: Counts, weights: EricaWeights, mlm_count: float, cells: int) -> dict[str, float]:
    """What is journalled of a step. `sums`, over ranks: ED's loss, MLM's, right ones of both, RD's parts, measures."""
    ed, mlm, ed_right, mlm_right = sums[:4]
    parts, (positives, alignment, uniformity) = sums[4 : 4 + len(PARTS)], sums[4 + len(PARTS) :]
    rd = sum(weight * part for weight, part in zip(weights.rd_parts, parts, strict=True))
    queries, anchors = max(counts.queries, 1), max(counts.anchors, 1)
    ed, mlm = ed / queries, mlm / mlm_count
    scores = {
        "loss": weights.rd * rd + weights.ed * ed + weights.mlm * mlm,
        "loss_rd": rd,
        "loss_ed": ed,
        "loss_mlm": mlm,
        **{f"rd_{name}": part for name, part in zip(PARTS, parts, strict=True)},
        "rd_anchors": int(counts.anchors),
        "rd_pool": counts.pool / max(cells, 1),
    }
    # what there is nothing to measure of is left out: 0 would be a result
    if counts.labelled:
        scores["rd_left_out"] = 1 - counts.anchors / counts.labelled
    if counts.anchors:
        scores["rd_positives"] = positives / anchors
        scores["rd_alignment"] = alignment / anchors
        scores["rd_uniformity"] = math.log(max(uniformity / anchors, sys.float_info.min))
    if counts.queries:
        scores |= {"ed_accuracy": ed_right / queries, "ed_candidates": counts.candidates / queries}
    if counts.masked:
        scores["mlm_accuracy"] = mlm_right / counts.masked
    return scores


def _pools(labels: list[PairLabels], erica: EricaConfig) -> list[PairLabels]:
    """What each own micro-batch is contrasted with; under `global` the same pool for all."""
    if erica.negatives == "local":
        return labels
    if erica.negatives == "gather":
        return [PairLabels.union(gather_tables(label.table())) for label in labels]
    own = PairLabels.union([label.table() for label in labels])
    return [PairLabels.union(gather_tables(own.table()))] * len(labels)


@dataclass(frozen=True)
class Counts:
    """What the whole global batch holds."""

    anchors: float  # of RD
    labelled: float  # RD's pairs that hold a relation
    pool: float  # RD's pool entries, added up over all micro-batches
    queries: float  # of ED
    candidates: float  # of all queries
    masked: float  # pieces
    rd_halves: float  # micro-batches whose RD half has a masked piece
    ed_halves: float


def _counts(
    batches: list[EricaMicroBatch], labels: list[PairLabels], pools: list[PairLabels], sampling: PairSampling
) -> tuple[Counts, list[int]]:
    """(over all ranks; the anchors of each own micro-batch)."""
    anchors = [int(anchor_rows(own, pool, sampling).sum()) for own, pool in zip(labels, pools, strict=True)]
    total = torch.zeros(len(fields(Counts)), dtype=torch.float64)
    for batch, pool, found in zip(batches, pools, anchors, strict=True):
        own = Counts(
            anchors=found,
            labelled=int((batch.pair_labels_PL >= 0).any(1).sum()),
            pool=len(pool),
            queries=len(batch.query_head_Q),
            candidates=len(batch.candidate_entity_C),
            masked=len(batch.masked_positions_K),
            rd_halves=bool(_halves(batch)[0]),
            ed_halves=bool(_halves(batch)[1]),
        )
        total += torch.tensor(astuple(own), dtype=torch.float64)
    return Counts(*sum_over_ranks(total.to(device())).tolist()), anchors


def _halves(batch: EricaMicroBatch) -> tuple[int, int]:
    """Masked pieces of the RD documents and of the ED documents."""
    return batch.masked_of_rd, len(batch.masked_positions_K) - batch.masked_of_rd


def _sum_of_means(sums_2: Tensor, batch: EricaMicroBatch, counts: Counts) -> Tensor:
    """What this micro-batch adds to MLM under `mlm_mean=micro_batch`: each half's mean, divided by how many there are.

    Averaged over micro-batches and ranks, each half makes a term of its own, as the two forward passes of the published
    code do; so MLM is about twice what it is under `global`.
    """
    of_rd, of_ed = _halves(batch)
    divisors = [max(of_rd, 1) * max(counts.rd_halves, 1), max(of_ed, 1) * max(counts.ed_halves, 1)]
    return (sums_2 / torch.tensor(divisors, device=sums_2.device)).sum()


def _first_pass(
    engine: Any,
    batches: list[EricaMicroBatch],
    labels: list[PairLabels],
    pool: PairLabels,
    erica: EricaConfig,
    scale: Tensor,
    seed: int,
    step: int,
    first_cell: int,
) -> tuple[Tensor, list[Tensor]]:
    """Pair states of every micro-batch without graph, and the gradient of RD over the whole pool for them."""
    pairs = []
    with torch.no_grad():
        for micro, batch in enumerate(batches):
            seed_dropout(seed, step, first_cell + micro)
            entity_ED, _, _ = engine.module(batch, states_only=True)
            pairs.append(pair_states(entity_ED, batch.pair_head_P, batch.pair_tail_P))
    return cached_gradients(pairs, labels, pool, scale, erica.temperature, PairSampling.of(erica))


def _entity_loss(
    entity_ED: Tensor, batch: EricaMicroBatch, erica: EricaConfig, tail_counted_twice: bool = False
) -> tuple[Tensor, Tensor]:
    return entity_loss_sum(
        entity_ED,
        batch.query_head_Q,
        batch.query_tail_Q,
        batch.candidate_entity_C,
        batch.candidate_query_C,
        erica.temperature,
        tail_counted_twice,
    )


@torch.no_grad()
def evaluate(
    engine: Any, batches: list[EricaMicroBatch | None], job: EricaJob, filler: EricaMicroBatch | None
) -> dict[str, float]:
    """Scores on held-out documents, the same on every rank.

    All ranks pass equally many micro-batches; where one has None it runs the `filler` and forgets it, since ZeRO 3
    gathers weights by collectives that every rank must join.

    ed_accuracy: share of queries whose tail is the nearest candidate. rd_map: mean average precision of finding the
    pairs of the same relation among all held-out pairs. mlm_loss: cross entropy of a masked piece, mlm_perplexity its
    exponential. The options of the published code change none of them, so that runs with and without can be compared.
    """
    engine.eval()
    sums = torch.zeros(5, dtype=torch.float64)
    rows: list[Tensor] = []
    tables: list[Tensor] = []
    for batch in batches:
        if batch is None:
            assert filler is not None
            engine.module(filler.to(device()))
            continue
        batch = batch.to(device())
        entity_ED, mlm_sum, _ = engine.module(batch)
        ed_sum, ed_right = _entity_loss(entity_ED, batch, job.erica)
        numbers = (ed_sum, ed_right, len(batch.query_head_Q), mlm_sum, len(batch.masked_positions_K))
        sums += torch.tensor([float(x) for x in numbers], dtype=torch.float64)
        rows.append(pair_states(entity_ED, batch.pair_head_P, batch.pair_tail_P))
        tables.append(PairLabels.of(batch).table())
    engine.train()
    # A rank without held-out documents has no rows, of the right shape
    no_rows = torch.zeros(0, 2 * engine.module.model.config.hidden_size, device=device())
    no_table = torch.zeros(0, 6, dtype=torch.int64, device=device())
    own_ND = torch.cat([no_rows, *rows])
    own = PairLabels.union([no_table, *tables])
    pool = PairLabels.union(gather_tables(own.table()))
    pool_ND = gather_rows(own_ND, row_counts(len(own_ND), own_ND.device))
    score, anchors = mean_average_precision(pool_ND, pool)
    ed, right, queries, mlm, masked = sum_over_ranks(sums.to(device())).tolist()
    return {
        "ed_accuracy": right / max(queries, 1),
        "ed_loss": ed / max(queries, 1),
        "rd_map": score,
        "mlm_loss": mlm / max(masked, 1),
        "mlm_perplexity": math.exp(min(mlm / max(masked, 1), 700.0)),
        "queries": int(queries),
        "anchors": anchors,
    }
