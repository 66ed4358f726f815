"""The order of documents and the deal to ranks: pure functions, the same global batches for every shape of a run."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from erica_dist.errors import UserError
from erica_dist.stream.batches import deal, deal_by_budget
from erica_dist.stream.mixture import CYCLE, Mixture
from erica_dist.stream.order import CorpusOrder, epoch_order, global_batch, permuted
from erica_dist.stream.randomness import KeyedRandom
from tests.columns import numbers


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
    dealt = np.array(deal(lengths, ranks, accumulation, parts))
    assert dealt.shape == (ranks, accumulation, micro * parts)
    assert sorted(dealt.ravel().tolist()) == list(range(batch))
    # every micro-batch holds its share of each part, in the parts' order
    assert (dealt // (batch // parts) == np.repeat(np.arange(parts), micro)).all()
    assert (np.array(deal(lengths, ranks, accumulation, parts)) == dealt).all()


@pytest.mark.parametrize(("ranks", "limit"), [(2, 1.005), (8, 1.005), (32, 1.01)])
def test_tokens_are_even_between_ranks(ranks, limit):
    lengths = np.random.default_rng(ranks).integers(128, 513, ranks * 4 * 16)
    tokens = lengths[np.array(deal(lengths, ranks, 4, parts=2))].sum(axis=2)
    at_each_micro_step = tokens.max(axis=0) / tokens.mean(axis=0)
    assert at_each_micro_step.max() < limit
    of_ranks = tokens.sum(axis=1)
    assert of_ranks.max() / of_ranks.mean() < limit


def listed(dealt) -> list:
    return [[micro.tolist() for micro in rank] for rank in dealt]


def test_deal_by_hand():
    # longest to the lightest: 9 | 8, then 2 to the one that holds 8, 1 to the one that holds 9
    assert listed(deal(np.array([1, 8, 9, 2]), 2, 1)) == [[[0, 2]], [[1, 3]]]
    # five documents: the lightest gets the fifth
    assert listed(deal(np.array([9, 8, 2, 1, 1]), 2, 1)) == [[[1, 2]], [[0, 3, 4]]]


def test_fewer_documents_than_micro_batches_are_refused():
    with pytest.raises(ValueError, match="3 documents cannot be dealt to 2 x 2 micro-batches"):
        deal(np.ones(3, np.int64), 2, 2)


@settings(max_examples=150, deadline=None)
@given(
    ranks=st.integers(1, 6),
    documents=st.integers(6, 200),
    longest=st.integers(1, 512),
    room=st.integers(0, 4000),
    parts=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
def test_a_token_budget_holds_with_as_many_micro_batches_on_every_rank(ranks, documents, longest, room, parts, seed):
    lengths = np.random.default_rng(seed).integers(1, longest + 1, documents)
    budget = longest + room
    dealt = deal_by_budget(lengths, ranks, budget, parts)
    assert {len(of_rank) for of_rank in dealt} == {len(dealt[0])}
    assert sorted(int(i) for of_rank in dealt for micro in of_rank for i in micro) == list(range(documents))
    tokens = [int(lengths[micro].sum()) for of_rank in dealt for micro in of_rank]
    assert min(tokens) > 0
    if len(dealt[0]) < documents // ranks:  # else there is one document a micro-batch, or too few documents to be even
        assert max(tokens) <= budget
    if len(dealt[0]) > 1:  # one micro-step less would not do
        assert (
            max(int(lengths[micro].sum()) for r in deal(lengths, ranks, len(dealt[0]) - 1, parts) for micro in r)
            > budget
        )


def test_micro_batches_under_a_budget_are_full():
    """Real lengths, real sizes: what is left empty of the budget is small, so no forward is wasted."""
    lengths = np.minimum(np.random.default_rng(0).gamma(4, 60, 2048).astype(np.int64) + 128, 512)
    for ranks in (1, 2, 8):
        dealt = deal_by_budget(lengths, ranks, 8192, parts=2)
        tokens = np.array([[lengths[micro].sum() for micro in of_rank] for of_rank in dealt])
        assert tokens.max() <= 8192
        assert tokens.shape[1] <= -(-lengths.sum() // (ranks * 8192)) + 1
        assert (tokens.max(axis=0) / tokens.mean(axis=0)).max() < 1.02


def test_a_document_above_the_budget_is_refused():
    with pytest.raises(ValueError, match="a document of 9 tokens is above the budget of 8"):
        deal_by_budget(np.array([1, 9]), 1, 8)


# ------------------------------------------------------------------------------------------------ block shuffle


SHARDS = np.array([13, 13, 13, 12, 12, 12, 12, 5])


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_a_block_shuffle_is_a_permutation_that_needs_few_shards_at_a_time(window):
    order = CorpusOrder(5, SHARDS, window)
    n = int(SHARDS.sum())
    shard_of = np.repeat(np.arange(len(SHARDS)), SHARDS)
    seen = set()
    for epoch in range(3):
        epochs, documents = order.at(np.arange(epoch * n, (epoch + 1) * n))
        assert set(epochs.tolist()) == {epoch}
        assert sorted(documents.tolist()) == list(range(n))
        seen.add(tuple(documents.tolist()))
        # shards come in runs: each stretch between the first and the last use of one is a window's at most
        shards = shard_of[documents]
        windows = [set(shards[i : i + 1].tolist()) for i in range(n)]
        open_shards = [
            sum(1 for s in range(len(SHARDS)) if (shards[: i + 1] == s).any() and (shards[i:] == s).any())
            for i in range(n)
        ]
        assert max(open_shards) <= window
        assert len(windows) == n
    assert len(seen) == 3


def test_a_block_shuffle_of_all_shards_or_none_is_the_full_one():
    n = int(SHARDS.sum())
    full = CorpusOrder(5, SHARDS).at(np.arange(2 * n))[1].tolist()
    assert CorpusOrder(5, SHARDS, 8).at(np.arange(2 * n))[1].tolist() == full
    assert full == [*epoch_order(5, 0, n).tolist(), *epoch_order(5, 1, n).tolist()]


@pytest.mark.parametrize("window", [0, 3])
def test_any_places_in_any_order_give_the_same_documents(window):
    sizes = np.full(40, 1000)
    whole = CorpusOrder(2, sizes, window).at(np.arange(90_000))
    random = np.random.default_rng(0)
    fresh = CorpusOrder(2, sizes, window)
    for _ in range(20):
        places = np.sort(random.integers(0, 90_000, 64))
        epochs, documents = fresh.at(places)
        assert epochs.tolist() == whole[0][places].tolist()
        assert documents.tolist() == whole[1][places].tolist()


# ------------------------------------------------------------------------------------------------ mixtures


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=6), start=st.integers(0, 10**9))
def test_a_mixture_keeps_its_shares_and_skips_nothing(weights, start):
    mixture = Mixture(weights)
    corpus, place = mixture.at(np.arange(start, start + 5000))
    for number, weight in enumerate(weights):
        own = place[corpus == number]
        # one after the other, none twice, none left out
        assert own.tolist() == list(range(own[0], own[0] + len(own))) if len(own) else True
        share = weight / sum(weights)
        assert abs(len(own) - share * 5000) <= len(weights) + 5000 / CYCLE
        assert abs(mixture.share(number) - share) <= 1 / CYCLE


def test_a_mixture_begins_with_the_first_place_of_every_corpus():
    corpus, place = Mixture([3.0, 1.0]).at(np.arange(CYCLE))
    assert corpus[:8].tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
    assert place[:8].tolist() == [0, 1, 0, 2, 3, 4, 1, 5]
    assert Mixture([3, 1]).at(np.array([CYCLE, CYCLE + 2]))[1].tolist() == [CYCLE * 3 // 4, CYCLE // 4]


@pytest.mark.parametrize("weights", [[], [0.0], [1, -1], [1, float("nan")], [1.0, 1e-9]])
def test_weights_that_make_no_sense_are_refused(weights):
    with pytest.raises(UserError, match=r"data\.mix"):
        Mixture(weights)


# ------------------------------------------------------------------------------------------------ chance


def test_numbers_belong_to_seed_purpose_epoch_and_document():
    random = KeyedRandom(3)
    first = numbers(random, "mlm", 1, 77, 15)
    others = [
        numbers(random, "mlm", 1, 78, 15),
        numbers(random, "mlm", 2, 77, 15),
        numbers(random, "triple", 1, 77, 15),
        numbers(KeyedRandom(4), "mlm", 1, 77, 15),
    ]
    assert numbers(random, "mlm", 1, 77, 15).tolist() == first.tolist()
    assert all((other != first).all() for other in others)
    assert 0 <= first.min() < first.max() < 1


def test_numbers_of_many_documents_are_those_of_each():
    random = KeyedRandom(3)
    epochs, keys = np.array([0, 0, 5]), np.array([7, 8, 2**62])
    together = random.uniform(random.streams("mlm", epochs, keys)[:, None], np.arange(4))
    assert together.tolist() == [
        numbers(random, "mlm", epoch, key, 4).tolist() for epoch, key in zip(epochs, keys, strict=True)
    ]
    assert random.uniform(random.streams("mlm", epochs, keys), 3).tolist() == together[:, 3].tolist()


def test_numbers_are_uniform_over_documents_epochs_and_places():
    """Chi-square over 64 cells along each way of counting, and no correlation of neighbours."""
    random = KeyedRandom(0)
    n = 64_000
    many = np.arange(n)
    for found in (
        random.uniform(random.streams("a", many * 0, many), 0),
        random.uniform(random.streams("a", many, many * 0), 0),
        numbers(random, "a", 0, 0, n),
    ):
        counts = np.histogram(found, 64, (0, 1))[0]
        assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 63 + 5 * np.sqrt(2 * 63)
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5 / np.sqrt(n)


def test_keyed_numbers_are_fixed_for_good():
    assert numbers(KeyedRandom(42), "mlm", 0, 7, 2).tolist() == [0.6072072151287357, 0.9037237440540918]
