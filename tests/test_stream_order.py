"""The order of documents and the deal to ranks: pure functions, the same global batches for every shape of a run."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erica_dist.stream.batches import deal
from erica_dist.stream.order import epoch_order, global_batch, permuted
from erica_dist.stream.randomness import KeyedRandom


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 16, 17, 63, 64, 65, 1000, 4096, 5001])
def test_an_epoch_is_a_permutation(n):
    for epoch in range(3):
        assert sorted(epoch_order(42, epoch, n).tolist()) == list(range(n))


def test_orders_differ_by_seed_and_epoch_and_repeat_exactly():
    orders = {(seed, epoch): epoch_order(seed, epoch, 200).tolist() for seed, epoch in product(range(4), range(4))}
    assert len({tuple(order) for order in orders.values()}) == 16
    assert epoch_order(3, 2, 200).tolist() == orders[3, 2]


def test_the_order_is_fixed_for_good():
    # a change here breaks every run that is to be resumed
    assert epoch_order(42, 0, 12).tolist() == [1, 8, 10, 7, 9, 5, 11, 3, 6, 4, 0, 2]


@pytest.mark.parametrize("n", [5, 12, 100])
def test_orders_are_uniform(n):
    """Chi-square over (place, document): 1,000 epochs, each cell n by n equally likely."""
    epochs = 1000
    counts = np.zeros((n, n))
    for epoch in range(epochs):
        counts[np.arange(n), epoch_order(7, epoch, n)] += 1
    expected = epochs / n
    chi = ((counts - expected) ** 2 / expected).sum()
    freedom = (n - 1) ** 2
    assert abs(chi - freedom) < 5 * np.sqrt(2 * freedom)


def test_neighbours_end_up_far_apart():
    n = 20_000
    order = epoch_order(1, 0, n)
    place = np.argsort(order)
    apart = np.abs(np.diff(place))
    # of two random places the distance is n / 3 on average
    assert abs(apart.mean() / n - 1 / 3) < 0.01
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 0.03


def test_a_slice_of_a_huge_epoch_needs_no_more_than_the_slice():
    n = 10**12
    places = np.arange(n - 1000, n)
    documents = permuted(5, 3, n, places)
    assert len(set(documents.tolist())) == 1000
    assert documents.min() >= 0
    assert documents.max() < n
    assert permuted(5, 3, n, places[500:]).tolist() == documents[500:].tolist()


@pytest.mark.parametrize(("n", "batch"), list(product([1, 5, 8, 12, 100], [1, 4, 8, 24])))
def test_each_document_exactly_once_an_epoch(n, batch):
    steps = -(-3 * n // batch)
    slices = [global_batch(9, step, batch, n) for step in range(steps)]
    epochs = np.concatenate([epochs for epochs, _ in slices])
    documents = np.concatenate([documents for _, documents in slices])
    for epoch in range(3):
        assert documents[epochs == epoch].tolist() == epoch_order(9, epoch, n).tolist()
    assert (np.diff(epochs) >= 0).all()


def test_the_last_batch_of_an_epoch_is_filled_from_the_next():
    epochs, documents = global_batch(9, 1, 8, 12)
    assert epochs.tolist() == [0] * 4 + [1] * 4
    assert documents.tolist() == epoch_order(9, 0, 12)[8:].tolist() + epoch_order(9, 1, 12)[:4].tolist()


# ------------------------------------------------------------------------------------------------ dealing


@settings(max_examples=100, deadline=None)
@given(
    ranks=st.integers(1, 6),
    accumulation=st.integers(1, 4),
    micro=st.integers(1, 4),
    parts=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
def test_every_position_is_dealt_once_in_equal_numbers(ranks, accumulation, micro, parts, seed):
    batch = ranks * accumulation * micro * parts
    lengths = np.random.default_rng(seed).integers(1, 513, batch)
    dealt = deal(lengths, ranks, accumulation, parts)
    assert dealt.shape == (ranks, accumulation, micro * parts)
    assert sorted(dealt.ravel().tolist()) == list(range(batch))
    # every micro-batch holds its share of each part, in the parts' order
    assert (dealt // (batch // parts) == np.repeat(np.arange(parts), micro)).all()
    assert (deal(lengths, ranks, accumulation, parts) == dealt).all()


@pytest.mark.parametrize(("ranks", "limit"), [(2, 1.005), (8, 1.005), (32, 1.01)])
def test_tokens_are_even_between_ranks(ranks, limit):
    lengths = np.random.default_rng(ranks).integers(128, 513, ranks * 4 * 16)
    tokens = lengths[deal(lengths, ranks, 4, parts=2)].sum(axis=2)
    at_each_micro_step = tokens.max(axis=0) / tokens.mean(axis=0)
    assert at_each_micro_step.max() < limit
    of_ranks = tokens.sum(axis=1)
    assert of_ranks.max() / of_ranks.mean() < limit


def test_deal_by_hand():
    # longest to the lightest: 9 | 8, then 2 to the one that holds 8, 1 to the one that holds 9
    assert deal(np.array([1, 8, 9, 2]), 2, 1).tolist() == [[[2, 0]], [[1, 3]]]


@pytest.mark.parametrize("count", [0, 6, 9])
def test_an_uneven_batch_is_refused(count):
    with pytest.raises(ValueError, match="do not divide into 2 x 2 x 2"):
        deal(np.ones(count, np.int64), 2, 2, parts=2)


# ------------------------------------------------------------------------------------------------ chance


def test_numbers_belong_to_seed_purpose_epoch_and_document():
    random = KeyedRandom(3)
    first = random.uniform("mlm", 1, 77, (3, 5))
    others = [
        random.uniform("mlm", 1, 78, (3, 5)),
        random.uniform("mlm", 2, 77, (3, 5)),
        random.uniform("triple", 1, 77, (3, 5)),
        KeyedRandom(4).uniform("mlm", 1, 77, (3, 5)),
    ]
    assert random.uniform("mlm", 1, 77, (3, 5)).tolist() == first.tolist()
    assert all((other != first).all() for other in others)
    reference = np.random.Generator(np.random.Philox(key=0))
    assert first.shape == reference.random((3, 5)).shape
    assert 0 <= first.min() < first.max() < 1


def test_keyed_numbers_are_fixed_for_good():
    assert KeyedRandom(42).uniform("mlm", 0, 7, 3).tolist() == [
        0.9379564547192051,
        0.12132385026980086,
        0.07357967588599978,
    ]
