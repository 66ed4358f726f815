"""Ranks x accumulation x ZeRO stage x pool of RD: all equal one plain PyTorch process on the whole batch.

1, 2 and 4 processes are really started. What the plain process (tests/plain_training.py) must know of the split is
little, and is written down in `reference_of`: nothing where the pool is the whole global batch.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from erica_dist import settings
from erica_dist.config import EricaJob
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.loader import EricaStream
from erica_dist.training.engine import CONFIGS
from tests.plain_training import plain_training
from tests.ranks import run_ranks
from tests.synthetic import write_documents_folder

pytestmark = pytest.mark.distributed

GLOBAL_BATCH = 32  # 4 ranks x 4 micro-steps x an RD document and an ED document
STAGES, POOLS, ACCUMULATIONS = (0, 1, 2, 3), ("local", "gather", "global"), (1, 2, 4)
MODEL = ["model.size=tiny", "model.hidden_size=32", "model.feed_forward=64", "model.max_length=64"]
TRAIN = [f"train.global_batch={GLOBAL_BATCH}", "train.lr=1e-3", "train.clip_norm=0.5", "data.workers=0"]
BASE = [*MODEL, *TRAIN, "model.dropout=0", "erica.temperature=0.3", "erica.no_relation_pairs=6"]
Known = tuple[list[dict[str, float]], dict[str, Tensor]]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("documents") / "shards", documents=100, seed=5))


@pytest.fixture(scope="module")
def partitioned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """zero3.json whose small weights are spread over the ranks, too: by default the whole of this model stays whole."""
    path = tmp_path_factory.mktemp("deepspeed") / "zero3.json"
    config = json.loads((CONFIGS / "zero3.json").read_text())
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    path.write_text(json.dumps(config))
    return f"train.deepspeed_config={path}"


def reference_of(pool: str, ranks: int, accumulation: int) -> tuple[str, int, int]:
    """(pool, ranks, accumulation) of the plain process that a run must equal.

    `global`: one process with the whole batch at once, for every split. `local`: the micro-batches are the same at any
    number of ranks, as long as there are equally many. `gather`: which micro-batches meet at a micro-step depends on
    both numbers; but at one micro-step all meet, and of one rank they stay alone.
    """
    if pool == "global" or ranks * accumulation == 1 or (pool == "gather" and accumulation == 1):
        return "global", 1, 1
    if pool == "local" or ranks == 1:
        return "local", 1, ranks * accumulation
    return "gather", ranks, accumulation


def words_of(pool: str, ranks: int, accumulation: int) -> list[str]:
    return [f"erica.negatives={pool}", f"train.micro_batch={GLOBAL_BATCH // ranks // accumulation}"]


def stage_words(stage: int, partitioned: str) -> list[str]:
    return [f"train.zero_stage={stage}", *[partitioned] * (stage == 3)]


@pytest.fixture(scope="module")
def plain(documents: Path) -> Callable[[tuple[str, int, int], int], Known]:
    """The plain process in float64, each only once: (reference, steps) -> its rows and tensors."""

    @functools.cache
    def of(reference: tuple[str, int, int], steps: int) -> Known:
        overrides = [*BASE, *words_of(*reference)]
        return plain_training("erica", documents, overrides, reference[1], steps, torch.float64)

    return of


def launch(ranks: int, out: Path, groups: dict[str, dict[str, Any]]) -> Callable[[str, int], Known]:
    """Really start so many ranks; gives (group, combination) -> rows of rank 0 and tensors. All ranks say the same."""
    arguments = {"kind": "erica", "out": str(out), "groups": [*groups.values()]}
    results = run_ranks("tests.rank_programs:train", ranks, arguments, timeout=550)
    assert results == [results[0]] * ranks
    names = list(groups)

    def of(name: str, number: int) -> Known:
        place = names.index(name)
        return results[0][place][number], load_file(out / f"{place}-{number}.safetensors")

    return of


def group(folder: Path, steps: int, *combinations: list[str]) -> dict[str, Any]:
    return {"folder": str(folder), "steps": steps, "combinations": combinations}


def check(found: Known, expected: Known, where: object, tolerance: float = 1e-5, of_each: float = 1e-5) -> None:
    """Every reported number of each step, and the first step's gradients: of each parameter, and of all together.

    Attention does not depend on the bias of its keys: that gradient is rounding only.
    """
    for step, (row, numbers) in enumerate(zip(found[0], expected[0], strict=True)):
        for name, number in numbers.items():
            assert row[name] == pytest.approx(number, rel=tolerance, abs=1e-12), (where, step, name)
    names = [name for name in expected[1] if name.startswith("gradient.") and not name.endswith("key.bias")]
    error = {name: float((found[1][name].double() - expected[1][name].double()).norm()) for name in names}
    size = {name: float(expected[1][name].double().norm()) for name in names}
    worst = max(names, key=lambda name: error[name] / size[name])
    assert error[worst] <= of_each * size[worst], (where, worst)
    assert math.hypot(*error.values()) <= tolerance * math.hypot(*size.values()), where


def check_weights(found: Known, expected: Known, where: object) -> None:
    assert all(row["grad_norm"] > 2 * 0.5 for row in expected[0]), "the clipping must really happen"
    names = [name for name in expected[1] if name.startswith("weight.") and not name.endswith("key.bias")]
    apart = {name: float((found[1][name].double() - expected[1][name].double()).abs().max()) for name in names}
    worst = max(names, key=lambda name: apart[name])
    assert apart[worst] < 1e-4, (where, worst)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_pool_stage_and_split_equals_one_plain_process(
    ranks: int, documents: Path, plain: Callable[..., Known], partitioned: str, tmp_path: Path
) -> None:
    """The first step everywhere; five steps at every stage, with two ranks at every pool, too."""
    shapes = [(pool, ranks, accumulation) for pool in POOLS for accumulation in ACCUMULATIONS]
    groups = {}
    for stage in STAGES:
        words = [*BASE, *stage_words(stage, partitioned)]
        groups[f"first {stage}"] = group(documents, 1, *([*words, *words_of(*shape)] for shape in shapes))
    accumulation = 4 if ranks == 1 else 2
    longer = [(stage, pool) for stage in STAGES for pool in POOLS]
    longer = longer if ranks == 2 else list(zip(STAGES, ("global", "gather", "local", "global"), strict=True))
    for stage, pool in longer:
        words = [*BASE, *stage_words(stage, partitioned), *words_of(pool, ranks, accumulation)]
        groups[f"five {stage} {pool}"] = group(documents, 5, words)
    found = launch(ranks, tmp_path, groups)
    for stage in STAGES:
        for number, shape in enumerate(shapes):
            expected = plain(reference_of(*shape), 1)
            check(found(f"first {stage}", number), expected, (stage, shape))
    for stage, pool in longer:
        expected = plain(reference_of(pool, ranks, accumulation), 5)
        check(found(f"five {stage} {pool}", 0), expected, (stage, pool))
        check_weights(found(f"five {stage} {pool}", 0), expected, (stage, pool))


HALF = dict(zip(STAGES, ("global", "gather", "local", "global"), strict=True))  # the pool of each stage under bf16
SMALL = [*BASE, "train.global_batch=8", "train.micro_batch=2", "erica.weights.rd_parts=[1.0, 0.5, 2.0, 0.25]"]
DROPOUT = [*BASE, *words_of("global", 2, 2), "model.dropout=0.2"]


@pytest.fixture(scope="module")
def some_bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("some") / "shards", documents=40, seed=3, bare=0.6))


@pytest.fixture(scope="module")
def all_bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("all") / "shards", documents=40, seed=3, bare=1.0))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fewer documents than a global batch takes."""
    return Path(write_documents_folder(tmp_path_factory.mktemp("few") / "shards", documents=12, seed=5))


@pytest.fixture(scope="module")
def at_two_ranks(
    documents: Path,
    some_bare: Path,
    all_bare: Path,
    few: Path,
    partitioned: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, int], Known]:
    """First steps of two ranks with two micro-steps each: one launch for all of the tests below."""
    groups = {}
    for stage in STAGES:
        words = stage_words(stage, partitioned)
        half = [*BASE, *words, *words_of(HALF[stage], 2, 2), "train.precision=bf16"]
        by_pool = [[*SMALL, *words, f"erica.negatives={pool}"] for pool in POOLS]
        groups[f"dropout {stage}"] = group(documents, 1, [*DROPOUT, *words])
        groups[f"bf16 {stage}"] = group(documents, 1, half)
        groups[f"some {stage}"] = group(some_bare, 1, *by_pool)
        groups[f"none {stage}"] = group(all_bare, 1, *by_pool)
        groups[f"few {stage}"] = group(few, 1, *([*BASE, *words, *words_of(pool, 2, 2)] for pool in POOLS))
    return launch(2, tmp_path_factory.mktemp("ranks"), groups)


def test_the_gradient_cache_replays_dropout_at_every_stage(
    documents: Path, at_two_ranks: Callable[[str, int], Known]
) -> None:
    """The plain process draws the same masks, but keeps one graph: it has nothing to replay."""
    expected = plain_training("erica", documents, DROPOUT, 2, 1)
    for stage in STAGES:
        check(at_two_ranks(f"dropout {stage}", 0), expected, stage)


def test_bf16_agrees_with_a_plain_bf16_process(documents: Path, at_two_ranks: Callable[[str, int], Known]) -> None:
    """Both have bf16 weights and states and float32 losses; but there gradients add up in bf16, so single parameters
    are further apart. (From float64, all gradients together are off by 1.1e-2: that is what bf16 costs.)"""
    for stage, pool in HALF.items():
        words = [*BASE, *words_of(pool, 2, 2)]
        expected = plain_training("erica", documents, words, 2, 1, torch.bfloat16)
        check(at_two_ranks(f"bf16 {stage}", 0), expected, stage, tolerance=1e-2, of_each=4e-2)


def test_a_rank_without_any_pair_takes_part(some_bare: Path, at_two_ranks: Callable[[str, int], Known]) -> None:
    shards, job = ShardFolder.open(some_bare, split="train"), settings.load(EricaJob, None, SMALL)
    pairs = [[len(b.pair_head_P) for b in EricaStream(shards, job, r, 2).step(0).micro_batches] for r in (0, 1)]
    assert pairs[0] == [0, 0]
    assert min(pairs[1]) > 0
    for number, pool in enumerate(POOLS):
        expected = plain_training("erica", some_bare, [*SMALL, f"erica.negatives={pool}"], 2, 1, torch.float64)
        assert pool == "local" or expected[0][0]["rd_anchors"] > 0
        for stage in STAGES:
            check(at_two_ranks(f"some {stage}", number), expected, (stage, pool))


def test_a_batch_without_any_pair_or_query_trains_mlm_alone(
    all_bare: Path, at_two_ranks: Callable[[str, int], Known]
) -> None:
    expected = plain_training("erica", all_bare, SMALL, 2, 1, torch.float64)
    for stage in STAGES:
        for number, pool in enumerate(POOLS):
            found = at_two_ranks(f"none {stage}", number)
            check(found, expected, (stage, pool))
            row = found[0][0]
            assert (row["loss_rd"], row["loss_ed"], row["rd_anchors"]) == (0, 0, 0)
            assert row["loss"] == row["loss_mlm"] > 0


def test_a_pair_that_occurs_on_several_ranks_is_no_negative_of_itself(
    few: Path, at_two_ranks: Callable[[str, int], Known]
) -> None:
    """The plain process knows pairs by document and entities, wherever they lie."""
    shards = ShardFolder.open(few, split="train")
    job = settings.load(EricaJob, None, [*BASE, *words_of("global", 2, 2), "train.steps=1"])
    batches = [EricaStream(shards, job, rank, 2).step(0).micro_batches for rank in (0, 1)]
    ends = [set(torch.cat([batch.pair_document_P for batch in own]).tolist()) for own in batches]
    assert ends[0] & ends[1]
    for number, pool in enumerate(POOLS):
        expected = plain_training("erica", few, [*BASE, *words_of(pool, 2, 2)], 2, 1, torch.float64)
        for stage in STAGES:
            check(at_two_ranks(f"few {stage}", number), expected, (stage, pool))
