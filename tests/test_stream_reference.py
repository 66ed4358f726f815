"""What the stream leaves out for the options of the published ERICA, by hand; held-out documents are asked the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from erica_dist import settings
from erica_dist.config import EricaJob
from erica_dist.shards.reader import ShardFolder
from erica_dist.stream.loader import EricaStream, erica_validation
from erica_dist.stream.micro_batches import EricaMicroBatch
from erica_dist.stream.randomness import KeyedRandom
from tests.synthetic import write_documents_folder
from tests.test_stream_collate import MENTIONS, TOKENS, collate_erica, no_masking, view_of

EVERYTHING = [
    "erica.positives=one",
    "erica.negatives_per_anchor=2",
    "erica.relations_per_pair=one",
    "erica.sentences=cross",
    "erica.no_relation_pairs=0",
    "erica.other_tails_as_negatives=true",
    "erica.tail_counted_twice=true",
    "erica.mlm_mean=micro_batch",
]


def pairs_of(batch: EricaMicroBatch) -> list[tuple[int, int]]:
    return list(zip(batch.pair_head_local_P.tolist(), batch.pair_tail_local_P.tolist(), strict=True))


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        # entities 0 and 1 share a sentence, and 0 and 2; labelled pairs first
        ("single", [(0, 1), (0, 2), (1, 0), (2, 0)]),
        ("cross", [(1, 3), (0, 3), (1, 2), (2, 1), (2, 3), (3, 0), (3, 1), (3, 2)]),
    ],
)
def test_pairs_that_share_a_sentence_or_none(sentences: str, expected: list) -> None:
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0), (1, 3, 1)])
    batch = collate_erica([(view, 0)], [], no_masking(64, sentences=sentences), KeyedRandom(1))
    assert pairs_of(batch) == expected
    assert batch.pair_same_sentence_P.tolist() == [sentences == "single"] * len(expected)


def test_pairs_that_hold_no_relation_are_drawn_among_those_that_fit() -> None:
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0)])
    for epoch in range(10):
        settings = no_masking(64, sentences="single", no_relation_pairs=3)
        batch = collate_erica([(view, epoch)], [], settings, KeyedRandom(1))
        assert pairs_of(batch) == [(0, 1), (0, 2), (1, 0), (2, 0)], "all three are drawn, though there are eleven"


def test_one_relation_of_a_pair_is_drawn_evenly_and_anew_each_epoch_for_both_objectives() -> None:
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0), (0, 1, 1), (0, 1, 3), (2, 0, 0)])
    settings = no_masking(64, relations_per_pair="one")
    drawn, asked = Counter(), Counter()
    for epoch in range(900):
        batch = collate_erica([(view, epoch)], [(view, epoch)], settings, KeyedRandom(3))
        assert batch.pair_labels_PL.shape[1] == 1
        assert batch.pair_labels_PL[1].tolist() == [0]
        drawn[batch.pair_labels_PL[0, 0].item()] += 1
        if batch.query_tail_Q.item() - batch.query_head_Q.item() == 1:
            asked[batch.packed.input_ids_T[batch.packed.cu_seqlens[1] + 1].item()] += 1
    assert set(drawn) == {0, 1, 3}
    assert all(250 < count < 350 for count in drawn.values())
    # half of the queries ask for the tail of (0, 1), whose relation is one of three
    assert set(asked) == {50, 51, 53}
    assert all(110 < count < 190 for count in asked.values())


def test_a_relation_that_was_not_drawn_still_makes_a_true_tail() -> None:
    view = view_of(7, TOKENS, MENTIONS, [(0, 1, 0), (0, 2, 0), (0, 2, 1)])
    for epoch in range(30):
        batch = collate_erica([], [(view, epoch)], no_masking(64, relations_per_pair="one"), KeyedRandom(1))
        if batch.query_tail_Q.item() == 1:
            assert batch.candidate_entity_C.tolist() == [1, 3], "entity 2 holds the relation too"


def test_held_out_documents_are_asked_the_same_whatever_is_left_out_of_training(tmp_path: Path) -> None:
    folder = write_documents_folder(tmp_path / "shards", documents=24, seed=4)
    base = ["model.size=tiny", "model.max_length=64", "train.global_batch=8", "train.micro_batch=4", "train.steps=1"]
    plain, published = (settings.load(EricaJob, None, [*base, *words]) for words in ([], EVERYTHING))
    held_out, train = ShardFolder.open(folder, "validation"), ShardFolder.open(folder, "train")
    first, second = ([flat(batch) for batch in erica_validation(held_out, job)] for job in (plain, published))
    assert first == second
    first, second = (flat(EricaStream(train, job).step(0).micro_batches[0]) for job in (plain, published))
    assert first != second


def flat(batch: EricaMicroBatch | None) -> list:
    assert batch is not None
    tensors = (batch.pair_labels_PL, batch.pair_head_P, batch.candidate_entity_C, batch.masked_positions_K)
    return [tensor.tolist() for tensor in tensors]
