"""k ranks x a micro-steps = one process with the whole batch: losses, gradients, weights; every stage, objective, pool.

The one process here is plain PyTorch and its losses are written out below from the definitions: of the project it uses
the stream's micro-batches and the encoder (both tested on their own), none of the objectives, no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from erica_dist import settings
from erica_dist.config import ElectraJob, EricaJob
from erica_dist.models.encoder import build_encoder, hidden_states, mlm_logits
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.loader import ElectraStream, EricaStream
from erica_dist.training.engine import seed_dropout
from erica_dist.training.job import _build_module
from tests.ranks import run_ranks
from tests.slow_reference import PairKey, chosen_pairs
from tests.synthetic import write_documents_folder, write_sequences_folder

pytestmark = pytest.mark.distributed

STEPS = 3
COMMON = ["model.size=tiny", "model.max_length=128", "train.lr=1e-3", "train.clip_norm=0.5", "data.workers=0"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("documents") / "shards", documents=40, seed=5))


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_sequences_folder(tmp_path_factory.mktemp("sequences") / "shards", sequences=40, seed=5))


# ------------------------------------------------------------------------------------------------ one plain process


def erica_terms(model: Any, cells: list[list[Any]], job: EricaJob, step: int) -> dict[str, Tensor]:
    """Losses of one step on the union; `cells[rank][micro]` are the micro-batches."""
    accumulation = len(cells[0])
    pairs, masked_losses, query_losses = [], [], []
    half_means: tuple[list[Tensor], list[Tensor]] = ([], [])
    for rank, own in enumerate(cells):
        for micro, batch in enumerate(own):
            seed_dropout(job.train.seed, step, rank * accumulation + micro)
            states = hidden_states(model, batch.packed)
            mentions = []
            for mention in range(batch.mention_count):
                mentions.append(states[batch.piece_positions_N[batch.piece_mention_N == mention]].mean(0))
            entities = []
            for entity in range(batch.entity_count):
                entities.append(
                    torch.stack([m for m, e in zip(mentions, batch.mention_entity_M, strict=True) if e == entity]).mean(
                        0
                    )
                )
            for p in range(len(batch.pair_head_P)):
                state = torch.cat([entities[batch.pair_head_P[p]], entities[batch.pair_tail_P[p]]])
                found = {int(x) for x in batch.pair_labels_PL[p] if x >= 0}
                ends = (int(batch.pair_document_P[p]), int(batch.pair_head_local_P[p]), int(batch.pair_tail_local_P[p]))
                single = bool(batch.pair_same_sentence_P[p])
                bits = int(batch.pair_draw_P[p]) % 2**64
                pairs.append((rank, micro, ends, found, functional.normalize(state, dim=0), single, bits))
            for q in range(len(batch.query_head_Q)):
                head = functional.normalize(entities[batch.query_head_Q[q]], dim=0)
                chosen = batch.candidate_entity_C[batch.candidate_query_C == q].tolist()
                scores = torch.stack([head @ functional.normalize(entities[c], dim=0) for c in chosen])
                place = chosen.index(int(batch.query_tail_Q[q]))
                scores = scores / job.erica.temperature
                again = scores[place : place + 1] if job.erica.tail_counted_twice else scores[:0]
                query_losses.append(torch.cat([scores, again]).logsumexp(0) - scores[place])
            logits = mlm_logits(model, states[batch.masked_positions_K])
            masked_losses.append(functional.cross_entropy(logits, batch.masked_labels_K, reduction="none"))
            of_rd = masked_losses[-1][: batch.masked_of_rd], masked_losses[-1][batch.masked_of_rd :]
            for means, losses in zip(half_means, of_rd, strict=True):
                means += [losses.mean()] if len(losses) else []
    if job.erica.mlm_mean == "micro_batch":
        mlm = torch.stack(half_means[0]).mean() + torch.stack(half_means[1]).mean()
    else:
        mlm = torch.cat(masked_losses).mean()
    anchor_losses = _anchor_losses(pairs, job)
    if job.erica.rd_mean == "micro_batch":
        of_cells = [torch.stack([loss for at, loss in anchor_losses if at == cell]).mean() for cell, _ in anchor_losses]
        each = {cell: mean for (cell, _), mean in zip(anchor_losses, of_cells, strict=True)}
        rd = torch.stack(list(each.values())).sum() / (len(cells) * accumulation)
    else:
        rd = torch.stack([loss for _, loss in anchor_losses]).mean()
    return {"rd": rd, "ed": torch.stack(query_losses).mean(), "mlm": mlm}


def _anchor_losses(pairs: list[tuple], job: EricaJob) -> list[tuple[tuple[int, int], Tensor]]:
    """(cell, loss) of each pair that has a positive and a negative in its pool."""
    same_pool = {
        "local": lambda a, b: a[:2] == b[:2],
        "gather": lambda a, b: a[1] == b[1],
        "global": lambda a, b: True,
    }[job.erica.negatives]
    kept: dict[int, set[int]] = {}
    for i, anchor in enumerate(pairs):
        if i not in kept:
            pool = [j for j, other in enumerate(pairs) if same_pool(anchor, other)]
            keys = [PairKey(*pairs[j][2], sorted(pairs[j][3]), pairs[j][6]) for j in pool]
            drawn = chosen_pairs(keys, job.erica.positives == "one", job.erica.negatives_per_anchor)
            for j, parts in zip(pool, drawn, strict=True):
                kept[j] = {pool[place] for part in parts for place in part}
    losses = []
    for i, anchor in enumerate(pairs):
        positives, negatives = [], []
        for j, other in enumerate(pairs):
            document, head, tail = anchor[2]
            near = other[2][0] == document and (other[2][1] == head or other[2][2] == tail)
            if i == j or near or not same_pool(anchor, other) or j not in kept[i]:
                continue
            score = anchor[4] @ other[4] / job.erica.temperature
            if anchor[3] & other[3]:
                positives.append((score, job.erica.weights.rd_parts[2 * (not anchor[5]) + (not other[5])]))
            else:
                negatives.append(score)
        if anchor[3] and positives and negatives:
            below = torch.stack(negatives).logsumexp(0)
            loss = torch.stack([w * (torch.logaddexp(p, below) - p) for p, w in positives]).mean()
            losses.append((anchor[:2], loss))
    return losses


def plain_training(
    kind: str, folder: Path, overrides: list[str], ranks: int
) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    job: Any = settings.load(EricaJob if kind == "erica" else ElectraJob, None, [*overrides, f"train.steps={STEPS}"])
    shards = ShardFolder.open(folder, split="train")
    streams = [
        (EricaStream if kind == "erica" else ElectraStream)(shards, job, rank, ranks, 0) for rank in range(ranks)
    ]
    torch.set_num_threads(2)
    if kind == "erica":
        model = build_encoder(job.model, shards.tokenizer, job.train.seed)
        names = {id(p): f"model.{name}" for name, p in model.named_parameters()}
        module: Any = model
    else:
        module, _ = _build_module(kind, job, shards)
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
            terms = erica_terms(module, cells, job, step)
            loss = terms["rd"] + terms["ed"] + terms["mlm"]
            row = {f"loss_{name}": float(value.detach()) for name, value in terms.items()}
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


# ------------------------------------------------------------------------------------------------ the comparison


def compare(
    kind: str,
    folder: Path,
    out: Path,
    ranks: int,
    combinations: list[list[str]],
    references: list[list[str]],
    plain_ranks: Sequence[int] = (),
) -> None:
    """`references[i]` is what combination i must equal in the plain process, its batch dealt to as many ranks, or to
    `plain_ranks[i]`."""
    arguments = {"kind": kind, "folder": str(folder), "out": str(out), "combinations": combinations, "steps": STEPS}
    results = run_ranks("tests.rank_programs:train", ranks, arguments)
    known: dict[tuple[str, ...], Any] = {}
    dealt = plain_ranks or [ranks] * len(references)
    for number, (overrides, reference, plain) in enumerate(zip(combinations, references, dealt, strict=True)):
        if tuple(reference) not in known:
            known[tuple(reference)] = plain_training(kind, folder, reference, plain)
        rows, tensors = known[tuple(reference)]
        found = load_file(out / f"{number}.safetensors")
        for mine in (result[number] for result in results):
            for step, (row, expected) in enumerate(zip(mine, rows, strict=True)):
                for name, value in expected.items():
                    assert row[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (overrides, step, name)
        assert rows[0]["grad_norm"] > 2 * 0.5, "the clipping must really happen for the weights to prove it"
        # Attention does not depend on the bias of its keys: that gradient is rounding only, and Adam blows it up.
        names = [name for name in tensors if not name.endswith("key.bias")]
        for name in names:
            expected_tensor = tensors[name]
            if name.startswith("gradient."):
                worst = float((found[name] - expected_tensor).norm() / (expected_tensor.norm() + 1e-6))
                assert worst < 1e-4, (overrides, name, worst)
            else:
                torch.testing.assert_close(
                    found[name], expected_tensor, rtol=0, atol=1e-4, msg=lambda text, name=name: f"{name} {text}"
                )
        gradients = [name for name in names if name.startswith("gradient.")]
        total = torch.cat([tensors[name].flatten() for name in gradients])
        error = torch.cat([(found[name] - tensors[name]).flatten() for name in gradients])
        assert float(error.norm() / total.norm()) < 1e-5, overrides


@pytest.mark.parametrize("ranks", [1, 2])
def test_erica_equals_one_plain_process(ranks: int, documents: Path, tmp_path: Path) -> None:
    base = [*COMMON, "model.dropout=0", "train.global_batch=8", "erica.temperature=0.3"]
    combinations, references = [], []
    for stage in (0, 1, 2, 3):
        for negatives, micro in (
            (("gather", 4), ("global", 2), ("local", 4)) if stage == 2 else (("gather", 2), ("global", 4))
        ):
            job = [*base, f"erica.negatives={negatives}", f"train.micro_batch={micro}"]
            combinations.append([*job, f"train.zero_stage={stage}"])
            references.append(job)
    # micro-batches fitted to a token budget, and RD's four parts weighted differently
    for stage, negatives, budget in ((1, "global", 140), (2, "gather", 200), (3, "global", 200)):
        job = [*base, f"erica.negatives={negatives}", f"train.micro_tokens={budget}"]
        job.append("erica.weights.rd_parts=[1.0, 0.5, 2.0, 0.25]")
        combinations.append([*job, f"train.zero_stage={stage}"])
        references.append(job)
    compare("erica", documents, tmp_path, ranks, combinations, references)


def test_global_negatives_with_dropout_use_the_same_masks_in_both_passes(documents: Path, tmp_path: Path) -> None:
    job = [
        *COMMON,
        "model.dropout=0.2",
        "train.global_batch=8",
        "train.micro_batch=2",
        "erica.temperature=0.3",
        "erica.negatives=global",
    ]
    compare("erica", documents, tmp_path, 2, [[*job, "train.zero_stage=2"]], [job])


@pytest.mark.parametrize("ranks", [1, 2])
def test_electra_equals_one_plain_process(ranks: int, sequences: Path, tmp_path: Path) -> None:
    base = [
        *COMMON,
        "model.dropout=0",
        "train.global_batch=8",
        "train.micro_batch=2",
        "electra.generator_hidden_size=0.5",
    ]
    combinations = [[*base, f"train.zero_stage={stage}"] for stage in (0, 1, 2, 3)]
    compare("electra", sequences, tmp_path, ranks, combinations, [base] * 4)
