"""Masking: how many, which, and what stands in their place."""

from __future__ import annotations

import numpy as np
import pytest

from erica_dist.stream.masking import choose, electra_mask, mask_counts, mlm_mask

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


def test_choose_takes_the_smallest_scores_of_each_sequence():
    eligible = np.array([True, True, False, True, True, True])
    sequence = np.array([0, 0, 0, 0, 2, 2])
    score = np.array([0.5, 0.2, 0.0, 0.1, 0.9, 0.3])
    assert choose(eligible, sequence, score, np.array([2, 0, 1])).tolist() == [1, 3, 5]


def test_mlm_shares_and_ids():
    pieces = 200_000
    random = np.random.default_rng(0)
    ids = random.integers(5, 100, pieces)
    eligible = random.random(pieces) < 0.7
    sequence = np.sort(random.integers(0, 500, pieces))
    masked, positions, labels = mlm_mask(ids, eligible, sequence, random.random((3, pieces)), 500, 0.15, 4, ORDINARY)
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
    random = np.random.default_rng(0)
    pieces, sequences = 128 * 400, 400
    sequence = np.repeat(np.arange(sequences), 128)
    eligible = np.ones(pieces, bool)
    eligible[::128] = False
    uniform = random.random((3, pieces))
    positions, keep, sample = electra_mask(eligible, sequence, uniform, sequences, 0.15, 128)
    assert eligible[positions].all()
    assert len(set(positions.tolist())) == len(positions)
    assert (np.bincount(sequence[positions]) == 19).all()
    assert abs(keep.mean() - 0.15) < 0.01
    assert (sample == uniform[2, positions]).all()
    # every place is as likely as any other
    per_place = np.bincount(positions % 128, minlength=128)
    assert per_place[0] == 0
    assert abs(per_place[1:] - 400 * 19 / 127).max() < 5 * np.sqrt(60)


def test_electra_masks_one_of_a_short_sequence_and_none_of_an_empty_one():
    positions, _, _ = electra_mask(
        np.array([False, True, False, False, False]), np.array([0, 0, 0, 1, 1]), np.full((3, 5), 0.5), 2, 0.15, 8
    )
    assert positions.tolist() == [1]
