"""One plain PyTorch process on the whole batch, its losses written out from the definitions: no engine, no objectives.

Of the project it uses the stream's micro-batches and the encoder, both tested on their own. Every pool of RD is a dense
matrix here, and the batch is one graph, whatever its split.

Legend: T tokens, N pieces of mentions, M mentions, E entities, P pairs of all micro-batches, L labels, D width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from erica_dist import settings
from erica_dist.config import ElectraJob, EricaJob
from erica_dist.models.encoder import build_encoder, hidden_states, mlm_logits
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.loader import ElectraStream, EricaStream
from erica_dist.training.engine import seed_dropout
from erica_dist.training.job import _build_module
from tests.slow_reference import PairKey, chosen_pairs

PARTS = ("rd_single_single", "rd_single_cross", "rd_cross_single", "rd_cross_cross")


def averaging(owner: Tensor, owners: int) -> Tensor:
    """The matrix [owners, items] whose product with the items' rows is each owner's mean."""
    belongs = (torch.arange(owners)[:, None] == owner).double()
    return belongs / belongs.sum(1, keepdim=True)


def erica_terms(
    model: Any, cells: list[list[Any]], job: EricaJob, step: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """(losses of one step on the union, what else is reported); `cells[rank][micro]` are the micro-batches."""
    accumulation = len(cells[0])
    pairs: list[tuple[Tensor, ...]] = []
    masked_losses, query_losses = [], []
    half_means: tuple[list[Tensor], list[Tensor]] = ([], [])
    for rank, own in enumerate(cells):
        for micro, batch in enumerate(own):
            seed_dropout(job.train.seed, step, rank * accumulation + micro)
            states_TD = hidden_states(model, batch.packed)
            wide_TD = states_TD if states_TD.dtype == torch.float64 else states_TD.float()
            of_mentions = averaging(batch.piece_mention_N, batch.mention_count).to(wide_TD.dtype)
            of_entities = averaging(batch.mention_entity_M, batch.entity_count).to(wide_TD.dtype)
            entities_ED = of_entities @ (of_mentions @ wide_TD[batch.piece_positions_N])
            place = torch.tensor([[rank, micro]]).expand(len(batch.pair_head_P), 2)
            ends = (batch.pair_document_P, batch.pair_head_local_P, batch.pair_tail_local_P)
            table = torch.stack([*place.T, *ends, batch.pair_same_sentence_P.long(), batch.pair_draw_P], dim=1)
            pair_PD = torch.cat([entities_ED[batch.pair_head_P], entities_ED[batch.pair_tail_P]], dim=1)
            pairs.append((table, batch.pair_labels_PL, pair_PD))
            query_losses += _query_losses(entities_ED, batch, job)
            logits = mlm_logits(model, states_TD[batch.masked_positions_K]).to(wide_TD.dtype)
            masked_losses.append(functional.cross_entropy(logits, batch.masked_labels_K, reduction="none"))
            of_rd = masked_losses[-1][: batch.masked_of_rd], masked_losses[-1][batch.masked_of_rd :]
            for means, losses in zip(half_means, of_rd, strict=True):
                means += [losses.mean()] if len(losses) else []
    if job.erica.mlm_mean == "micro_batch":
        mlm = torch.stack(half_means[0]).mean() + torch.stack(half_means[1]).mean()
    else:
        mlm = torch.cat(masked_losses).mean()
    parts_4, anchors = relation_parts(pairs, job, len(cells) * accumulation)
    rd = (parts_4 * torch.tensor(job.erica.weights.rd_parts)).sum()
    ed = torch.stack(query_losses).mean() if query_losses else mlm.new_zeros(())
    pools = {"local": len(cells) * accumulation, "gather": accumulation, "global": 1}[job.erica.negatives]
    reported = {"rd_anchors": float(anchors), "rd_pool": sum(len(table) for table, _, _ in pairs) / pools}
    reported |= dict(zip(PARTS, parts_4.tolist(), strict=True))
    return {"rd": rd, "ed": ed, "mlm": mlm}, reported


def _query_losses(entities_ED: Tensor, batch: Any, job: EricaJob) -> list[Tensor]:
    losses = []
    unit_ED = functional.normalize(entities_ED, dim=1)
    for query, (head, tail) in enumerate(zip(batch.query_head_Q.tolist(), batch.query_tail_Q.tolist(), strict=True)):
        chosen = batch.candidate_entity_C[batch.candidate_query_C == query]
        scores = unit_ED[chosen] @ unit_ED[head] / job.erica.temperature
        place = chosen.tolist().index(tail)
        again = scores[place : place + 1] if job.erica.tail_counted_twice else scores[:0]
        losses.append(torch.cat([scores, again]).logsumexp(0) - scores[place])
    return losses


def relation_parts(pairs: list[tuple[Tensor, ...]], job: EricaJob, cells: int) -> tuple[Tensor, int]:
    """(the four parts of RD's mean [4]; the number of anchors) of all pairs of the global batch in so many cells."""
    table_P7 = torch.cat([table for table, _, _ in pairs])
    width = max(labels.shape[1] for _, labels, _ in pairs)
    labels_PL = torch.cat([functional.pad(labels, (0, width - labels.shape[1]), value=-1) for _, labels, _ in pairs])
    unit_PD = functional.normalize(torch.cat([states for _, _, states in pairs]), dim=1)
    rank_P, micro_P, document_P, head_P, tail_P, single_P = table_P7.T[:6]

    def same(column_P: Tensor) -> Tensor:
        return column_P[:, None] == column_P

    pool_PP = {
        "local": same(rank_P) & same(micro_P),
        "gather": same(micro_P),
        "global": torch.ones(len(table_P7), len(table_P7), dtype=torch.bool),
    }[job.erica.negatives]
    kept_PP = pool_PP & ~(same(document_P) & (same(head_P) | same(tail_P)))
    if job.erica.positives == "one" or job.erica.negatives_per_anchor:
        kept_PP &= _drawn(pool_PP, table_P7, labels_PL, job)
    equal_PPLL = labels_PL[:, None, :, None] == labels_PL[None, :, None, :]
    share_PP = (equal_PPLL & (labels_PL >= 0)[:, None, :, None]).flatten(2).any(2)
    positive_PP = kept_PP & share_PP
    negative_PP = kept_PP & ~share_PP & (labels_PL >= 0).any(1)[:, None]
    anchor_P = positive_PP.any(1) & negative_PP.any(1)
    if not anchor_P.any():
        return unit_PD.sum() * unit_PD.new_zeros(4), 0
    scores_AP = unit_PD[anchor_P] @ unit_PD.T / job.erica.temperature
    below_A1 = scores_AP.masked_fill(~negative_PP[anchor_P], float("-inf")).logsumexp(1, keepdim=True)
    share_AP = positive_PP[anchor_P] / positive_PP[anchor_P].sum(1, keepdim=True)
    losses_AP = (torch.logaddexp(scores_AP, below_A1) - scores_AP) * share_AP
    part_AP = 2 * (1 - single_P[anchor_P])[:, None] + (1 - single_P)
    anchors = int(anchor_P.sum())
    divisor_A1 = torch.full_like(below_A1, anchors)
    if job.erica.rd_mean == "micro_batch":
        same_cell_PP = same(rank_P) & same(micro_P)
        divisor_A1 = same_cell_PP[anchor_P][:, anchor_P].sum(1, keepdim=True) * cells
    losses_AP = losses_AP / divisor_A1
    return torch.stack([losses_AP[part_AP == part].sum() for part in range(4)]), anchors


def _drawn(pool_PP: Tensor, table_P7: Tensor, labels_PL: Tensor, job: EricaJob) -> Tensor:
    """Which pairs the published draws leave to each, by the loops of tests/slow_reference.py."""
    drawn_PP = torch.zeros_like(pool_PP)
    keys = [
        PairKey(*row[2:5], sorted(x for x in labels if x >= 0), row[6] % 2**64)
        for row, labels in zip(table_P7.tolist(), labels_PL.tolist(), strict=True)
    ]
    for pool_P in torch.unique(pool_PP, dim=0):
        pool = pool_P.nonzero()[:, 0].tolist()
        options = (job.erica.positives == "one", job.erica.negatives_per_anchor)
        for i, parts in zip(pool, chosen_pairs([keys[j] for j in pool], *options), strict=True):
            drawn_PP[i, [pool[place] for part in parts for place in part]] = True
    return drawn_PP


def electra_terms(module: Any, cells: list[list[Any]], job: ElectraJob, step: int) -> tuple[Tensor, dict[str, float]]:
    accumulation = len(cells[0])
    generator_losses, detection_losses = [], []
    for rank, own in enumerate(cells):
        for micro, batch in enumerate(own):
            seed_dropout(job.train.seed, step, rank * accumulation + micro)
            ids = batch.packed.input_ids_T
            masked = ids.clone()
            masked[batch.masked_positions_K[~batch.keep_K]] = module.mask_id
            states = hidden_states(module.generator, batch.packed, masked)[batch.masked_positions_K]
            logits = mlm_logits(module.generator, states)
            original = ids[batch.masked_positions_K]
            generator_losses.append(functional.cross_entropy(logits, original, reduction="none"))
            below = logits.detach().double().softmax(1).cumsum(1)
            drawn = (below <= batch.sample_uniform_K[:, None] * below[:, -1:]).sum(1)
            corrupted = ids.clone()
            corrupted[batch.masked_positions_K] = drawn
            decision = module.discriminator.discriminator_predictions(
                hidden_states(module.discriminator, batch.packed, corrupted)
            )
            truth = (corrupted != ids).float()
            detection_losses.append(functional.binary_cross_entropy_with_logits(decision, truth, reduction="none"))
    generator, detection = torch.cat(generator_losses).mean(), torch.cat(detection_losses).mean()
    row = {"loss_generator": float(generator.detach()), "loss_discriminator": float(detection.detach())}
    return generator + 50 * detection, row


def plain_training(
    kind: str, folder: Path, overrides: list[str], ranks: int, steps: int, dtype: torch.dtype = torch.float32
) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """(metrics of each step; `gradient.*` of the first step and `weight.*` after the last) of the batch as it is dealt
    to so many ranks.

    `dtype` is that of the weights and of the forward pass: in float64 there is no rounding to speak of.
    """
    job: Any = settings.load(EricaJob if kind == "erica" else ElectraJob, None, [*overrides, f"train.steps={steps}"])
    shards = ShardFolder.open(folder, split="train")
    streams = [
        (EricaStream if kind == "erica" else ElectraStream)(shards, job, rank, ranks, 0) for rank in range(ranks)
    ]
    module: Any
    if kind == "erica":
        module = build_encoder(job.model, shards.tokenizer, job.train.seed).to(dtype)
        names = {id(p): f"model.{name}" for name, p in module.named_parameters()}
    else:
        module = _build_module(kind, job, shards)[0].to(dtype)
        names = {id(p): name for name, p in module.named_parameters()}
    groups = [
        {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": job.train.weight_decay},
        {"params": [p for p in module.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=job.train.lr, betas=(0.9, 0.999), eps=job.train.epsilon)
    rows, tensors = [], {}
    for step, parts in enumerate(zip(*streams, strict=True), start=1):
        cells = [part.micro_batches for part in parts]
        optimizer.zero_grad()
        if kind == "erica":
            terms, reported = erica_terms(module, cells, job, step)
            loss = terms["rd"] + terms["ed"] + terms["mlm"]
            row = {f"loss_{name}": float(value.detach()) for name, value in terms.items()} | reported
        else:
            loss, row = electra_terms(module, cells, job, step)
        loss.backward()
        if step == 1:
            tensors |= {f"gradient.{names[id(p)]}": p.grad.clone() for p in module.parameters()}
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), job.train.clip_norm)
        optimizer.step()
        rows.append({"loss": float(loss.detach()), **row, "grad_norm": float(norm)})
    tensors |= {f"weight.{names[id(p)]}": p.detach().clone() for p in module.parameters()}
    return rows, tensors
