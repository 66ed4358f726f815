"""k ranks x a micro-steps = one process with the whole batch: ELECTRA, and ERICA where micro-batches are fitted to a
token budget and the parts of RD are weighted. Every pool x stage x split: tests/test_training_matrix.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.plain_training import plain_training
from tests.ranks import run_ranks
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
    groups = [{"folder": str(folder), "steps": STEPS, "combinations": [overrides]} for overrides in combinations]
    arguments = {"kind": kind, "out": str(out), "groups": groups}
    results = run_ranks("tests.rank_programs:train", ranks, arguments)
    known: dict[tuple[str, ...], Any] = {}
    dealt = plain_ranks or [ranks] * len(references)
    for number, (overrides, reference, plain) in enumerate(zip(combinations, references, dealt, strict=True)):
        if tuple(reference) not in known:
            known[tuple(reference)] = plain_training(kind, folder, reference, plain, STEPS)
        rows, tensors = known[tuple(reference)]
        found = load_file(out / f"{number}-0.safetensors")
        for mine in (result[number][0] for result in results):
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
def test_erica_under_a_token_budget_equals_one_plain_process(ranks: int, documents: Path, tmp_path: Path) -> None:
    base = [*COMMON, "model.dropout=0", "train.global_batch=8", "erica.temperature=0.3"]
    combinations, references = [], []
    for stage, negatives, budget in ((1, "global", 140), (2, "gather", 200), (3, "global", 200)):
        job = [*base, f"erica.negatives={negatives}", f"train.micro_tokens={budget}"]
        job.append("erica.weights.rd_parts=[1.0, 0.5, 2.0, 0.25]")
        combinations.append([*job, f"train.zero_stage={stage}"])
        references.append(job)
    compare("erica", documents, tmp_path, ranks, combinations, references)


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
