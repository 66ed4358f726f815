"""Masking: how many, which, and what stands in their place."""

from __future__ import annotations

import numpy as np
import pytest

from erica_dist.stream.masking import Chance, electra_mask, mask_counts, mlm_mask
from erica_dist.stream.randomness import KeyedRandom, smallest

ORDINARY = np.arange(5, 100)


@pytest.mark.parametrize(
    ("eligible", "probability", "largest", "expected"),
    [
        ([0, 1, 3, 10, 16, 17, 100], 0.15, None, [0, 1, 1, 2, 2, 3, 15]),  # halves up, at least one where any
        ([126, 1000], 0.15, int(0.155 * 128), [19, 19]),
        ([10, 0], 0.0, None, [0, 0]),
        ([2], 0.999, None, [2]),
    ],
)
def test_counts(eligible, probability, largest, expected):
    assert mask_counts(np.array(eligible), probability, largest).tolist() == expected


def chance_of(sequences: int, start) -> Chance:
    return Chance(KeyedRandom(0), np.zeros(sequences, np.int64), np.arange(sequences), np.asarray(start))


def score(*shares: float) -> np.ndarray:
    return np.array([int(share * 2**64) for share in shares], np.uint64)


def test_smallest_takes_the_smallest_scores_of_each_group():
    group = np.array([0, 0, 0, 2, 2])
    assert smallest(group, score(0.5, 0.2, 0.1, 0.9, 0.3), np.array([2, 0, 1])).tolist() == [1, 2, 4]
    # of equal scores the first
    assert smallest(group, score(0.5, 0.5, 0.5, 0.9, 0.3), np.array([2, 0, 5])).tolist() == [0, 1, 3, 4]


def test_smallest_of_many_groups_is_what_few_groups_give():
    """More groups and items than fit into one sorted word: the other way of sorting gives the same."""
    random = np.random.default_rng(0)
    group = np.sort(random.integers(0, 50, 3000))
    scores = random.integers(0, 2**64, 3000, dtype=np.uint64)
    scores[::3] &= np.uint64(3 << 62)  # many equal ones
    counts = random.integers(0, 60, 50)
    few = smallest(group, scores, counts)
    assert smallest(group, scores, np.append(counts, np.zeros(2**24, np.int64))).tolist() == few.tolist()


def test_mlm_shares_and_ids():
    pieces = 200_000
    random = np.random.default_rng(0)
    ids = random.integers(5, 100, pieces)
    eligible = random.random(pieces) < 0.7
    sequence = np.sort(random.integers(0, 500, pieces))
    start = np.searchsorted(sequence, np.arange(500))
    places = np.flatnonzero(eligible)
    masked, positions, labels = mlm_mask(ids, places, sequence[places], chance_of(500, start), 0.15, 4, ORDINARY)
    assert eligible[positions].all()
    assert (np.diff(positions) > 0).all()
    assert (labels == ids[positions]).all()
    untouched = np.ones(pieces, bool)
    untouched[positions] = False
    assert (masked[untouched] == ids[untouched]).all()
    counts = np.bincount(sequence[positions], minlength=500)
    assert (counts == mask_counts(np.bincount(sequence[eligible], minlength=500), 0.15)).all()
    shown = masked[positions]
    assert abs((shown == 4).mean() - 0.8) < 0.01
    # of the tenth that becomes a random piece, 1 in 95 is the piece itself
    assert abs((shown == labels).mean() - (0.1 + 0.1 / 95)) < 0.01
    replaced = shown[(shown != 4) & (shown != labels)]
    assert set(replaced.tolist()) == set(ORDINARY.tolist())


def test_electra_shares_and_limit():
    pieces, sequences = 128 * 400, 400
    sequence = np.repeat(np.arange(sequences), 128)
    eligible = np.ones(pieces, bool)
    eligible[::128] = False
    chance = chance_of(sequences, np.arange(sequences) * 128)
    places = np.flatnonzero(eligible)
    positions, keep, sample = electra_mask(places, sequence[places], chance, 0.15, 128)
    assert eligible[positions].all()
    assert len(set(positions.tolist())) == len(positions)
    assert (np.bincount(sequence[positions]) == 19).all()
    assert abs(keep.mean() - 0.15) < 0.01
    assert (sample == chance.uniform("electra sample", sequence[positions], positions)).all()
    # every place is as likely as any other
    per_place = np.bincount(positions % 128, minlength=128)
    assert per_place[0] == 0
    assert abs(per_place[1:] - 400 * 19 / 127).max() < 5 * np.sqrt(60)


def test_electra_masks_one_of_a_short_sequence_and_none_of_an_empty_one():
    positions, _, _ = electra_mask(np.array([1]), np.array([0]), chance_of(2, [0, 3]), 0.15, 8)
    assert positions.tolist() == [1]
