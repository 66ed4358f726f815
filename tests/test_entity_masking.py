"""Mentions masked as a whole: which, how many at which step, what is predicted; nothing else is drawn otherwise."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from erica_dist import settings
from erica_dist.config import EricaConfig, EricaJob, check_erica
from erica_dist.errors import UserError
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream import collate
from erica_dist.stream.collate import EricaCollation
from erica_dist.stream.loader import EricaStream, erica_validation
from erica_dist.stream.randomness import KeyedRandom
from tests.columns import columns_of
from tests.slow_mentions import CLS, END, MASK, SEP, START, UNK, slow_batch
from tests.synthetic import write_documents_folder
from tests.test_entity_markers import lists_of, marked, sequences
from tests.test_stream_collate import collation_of, random_view, view_of

TINY = ["model.size=tiny", "model.max_length=64", "train.global_batch=16", "data.workers=0"]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_documents_folder(tmp_path_factory.mktemp("documents") / "shards", documents=48, seed=8))


def masked_batch(rd: list, ed: list, collation: EricaCollation, seed: int, ahead: float) -> Any:
    both = [*rd, *ed]
    epochs = np.array([epoch for _, epoch in both])
    columns = columns_of([view for view, _ in both])
    return collate.collate_erica(columns, epochs, len(rd), collation, KeyedRandom(seed), ahead)


def flat(batch: Any) -> list:
    fields = [getattr(batch, field.name) for field in dataclasses.fields(batch) if field.name != "packed"]
    packed = [getattr(batch.packed, field.name) for field in dataclasses.fields(batch.packed)]
    return [value.tolist() if isinstance(value, torch.Tensor) else value for value in [*fields, *packed]]


@hypothesis_settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    max_length=st.integers(8, 64),
    markers=st.booleans(),
    mask_mentions=st.booleans(),
    probability=st.sampled_from([0.2, 0.9]),
    ahead=st.sampled_from([1.0, 0.5, 0.1, 0.0]),
    mask_probability=st.sampled_from([0.0, 0.15]),
)
def test_whole_masked_mentions_equal_those_masked_one_by_one(
    seed, max_length, markers, mask_mentions, probability, ahead, mask_probability
) -> None:
    random = np.random.default_rng(seed)
    changes = {"mask_mentions": mask_mentions, "mask_probability": mask_probability}
    changes |= {"entity_mask_probability": probability, "no_relation_pairs": 2}
    collation = (marked if markers else collation_of)(max_length, **changes)
    views = [(random_view(random, int(random.integers(10**12))), int(random.integers(5))) for _ in range(8)]
    half = int(random.integers(0, 9))
    batch = masked_batch(views[:half], views[half:], collation, seed, ahead)
    expected = slow_batch(views[:half], views[half:], max_length, collation.erica, KeyedRandom(seed), ahead)
    expected.pop("hidden")
    assert lists_of(batch) == expected
    assert batch.masked_of_rd == sum(position < batch.packed.cu_seqlens[half] for position in expected["masked"])


#         0   1   2    3   4   5   6   7   8   9
TOKENS = [10, 11, UNK, 13, 14, 15, 16, 17, 18, 19]
MENTIONS = [(0, 1, 0, 0), (2, 4, 1, 0), (5, 7, 2, 1)]  # of entities 0, 1 and 2


def test_by_hand_all_words_become_the_mask_token_and_are_predicted_but_special_pieces() -> None:
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0)])
    settings_of = {"mask_probability": 0.0, "entity_mask_probability": 0.999, "no_relation_pairs": 0}
    batch = masked_batch([(view, 0)], [], collation_of(64, **settings_of), 1, 1.0)
    # entity 2 takes no part: it stays as it is
    assert batch.packed.input_ids_T.tolist() == [CLS, MASK, 11, MASK, MASK, 14, 15, 16, 17, 18, 19, SEP]
    assert batch.masked_positions_K.tolist() == [1, 4]
    assert batch.masked_labels_K.tolist() == [10, 13]
    with_markers = masked_batch([(view, 0)], [], marked(64, **settings_of), 1, 1.0)
    assert with_markers.packed.input_ids_T.tolist() == [
        CLS, START, MASK, END, 11, START, MASK, MASK, END, 14, START, 15, 16, END, 17, 18, 19, SEP
    ]  # fmt: skip
    # the prompt of ED names its head all the same
    asked = masked_batch([], [(view, 0)], collation_of(64, **settings_of), 1, 1.0)
    assert asked.packed.input_ids_T.tolist()[:5] == [CLS, 50, 10, SEP, MASK]


def test_other_draws_stay_and_what_is_masked_later_was_masked_before() -> None:
    random = np.random.default_rng(11)
    views = [(random_view(random, key), 3) for key in range(40)]
    plain = masked_batch(views[:20], views[20:], collation_of(48), 5, 1.0)
    collation = collation_of(48, entity_mask_probability=0.8)
    assert flat(masked_batch(views[:20], views[20:], collation, 5, 0.0)) == flat(plain)
    before: set[int] = set()
    sizes = []
    for ahead in (0.0, 0.2, 0.6, 1.0):
        batch = masked_batch(views[:20], views[20:], collation, 5, ahead)
        positions = set(batch.masked_positions_K.tolist())
        assert positions >= before | set(plain.masked_positions_K.tolist())
        same = [name for name in ("pair_draw_P", "pair_head_P", "query_tail_Q", "candidate_entity_C")]
        assert all(torch.equal(getattr(batch, name), getattr(plain, name)) for name in same)
        others = torch.ones(batch.tokens, dtype=torch.bool)
        others[list(positions - set(plain.masked_positions_K.tolist()))] = False
        shown, expected = batch.packed.input_ids_T[others], plain.packed.input_ids_T[others]
        assert set(expected[shown != expected].tolist()) <= {UNK}  # in a masked mention, and not predicted
        before = positions
        sizes.append(len(positions))
    assert sizes == sorted(set(sizes))
    again = masked_batch([(view, 4) for view, _ in views[:20]], [(view, 4) for view, _ in views[20:]], collation, 5, 1)
    assert again.masked_positions_K.tolist() != batch.masked_positions_K.tolist(), "another epoch, another draw"


def job_of(*words: str) -> EricaJob:
    return settings.load(EricaJob, None, [*TINY, "train.micro_batch=4", "train.steps=4", *words])


def test_the_share_falls_evenly_to_nothing_over_the_steps(documents: Path) -> None:
    shards = ShardFolder.open(documents, "train")
    words = ["train.global_batch=48", "train.micro_batch=48", "erica.mask_probability=0"]
    masked = EricaStream(shards, job_of(*words, "erica.entity_mask_probability=0.6", "train.steps=60"))
    # so long a training that its first steps mask all mentions that take part
    every = EricaStream(shards, job_of(*words, "erica.entity_mask_probability=0.9999", "train.steps=1000000"))
    steps = (0, 15, 30, 45, 59)
    found, whole = ([len(s.step(k).micro_batches[0].masked_positions_K) for k in steps] for s in (masked, every))
    shares = [part / total for part, total in zip(found, whole, strict=True)]
    assert shares == pytest.approx([0.6 * (1 - step / 60) for step in steps], abs=0.09)
    assert shares[-1] > 0


@pytest.mark.parametrize(("ranks", "micro", "workers"), [(2, 4, 0), (2, 2, 2), (4, 2, 0)])
def test_the_split_does_not_matter(documents: Path, ranks: int, micro: int, workers: int) -> None:
    shards = ShardFolder.open(documents, "train")
    masking = "erica.entity_mask_probability=0.5"
    expected = sequences([EricaStream(shards, job_of(masking, "train.micro_batch=16"))])
    assert expected != sequences([EricaStream(shards, job_of("train.micro_batch=16"))])
    job = job_of(masking, f"train.micro_batch={micro}", f"data.workers={workers}")
    streams = [EricaStream(shards, job, rank, ranks) for rank in range(ranks)]
    assert sequences(streams) == expected
    for stream in streams:
        stream.close()
    resumed = sequences([EricaStream(shards, job_of(masking, "train.micro_batch=16"), start_step=2)])
    assert resumed == expected[2:]


def test_held_out_documents_are_scored_without(documents: Path) -> None:
    held_out = ShardFolder.open(documents, "validation")
    plain, masked = (
        erica_validation(held_out, job_of(*words)) for words in ([], ["erica.entity_mask_probability=0.9"])
    )
    assert [flat(batch) for batch in masked] == [flat(batch) for batch in plain]
    assert plain


@pytest.mark.parametrize("probability", [-0.1, 1.0, 1.5, float("nan")])
def test_a_probability_out_of_range_is_refused(probability: float) -> None:
    with pytest.raises(UserError, match=r"erica\.entity_mask_probability must be in \[0, 1\), got"):
        check_erica(EricaConfig(entity_mask_probability=probability))
