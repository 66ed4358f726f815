"""RD, ED, pooling and the gradient cache over random ragged documents: equal to loops in float64, and what must hold of
any pool, at any temperature, in any precision.

Legend: T tokens, E entities, N pairs (each is an anchor and of the pool), D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor

from erica_dist.config import ModelConfig
from erica_dist.models.encoder import build_encoder
from erica_dist.objectives.entity_discrimination import entity_loss_sum
from erica_dist.objectives.gradient_cache import backward_term, cached_gradients
from erica_dist.objectives.pair_labels import PairLabels, anchor_rows, positives_and_negatives
from erica_dist.objectives.pooling import entity_states, pair_states
from erica_dist.objectives.relation_discrimination import PARTS, relation_loss, relation_loss_sum
from erica_dist.stream.micro_batches import EricaMicroBatch
from erica_dist.stream.randomness import KeyedRandom
from erica_dist.training.modules import EricaModule
from tests.slow_erica import (
    SlowPair,
    add_to,
    entity_gradients,
    entity_loss,
    mean,
    relation_gradients,
    relation_losses,
    relation_terms,
)
from tests.test_stream_collate import collate_erica, collation_of, random_view, slow_erica

SEEDS = st.integers(0, 2**32)
TAU = st.sampled_from([0.05, 0.2, 1.0])
PARTS_OF_RD = [1.0, 0.5, 2.0, 0.25]
OTHER = 99  # a relation that no made pair has


def examples(number: int) -> Any:
    return settings(max_examples=number, deadline=None, derandomize=True)


def ragged_views(seed: int, documents: int) -> list[tuple[Any, int]]:
    random = np.random.default_rng(seed)
    return [(random_view(random, key), int(random.integers(3))) for key in range(documents)]


def made_pool(seed: int, width: int = 5) -> tuple[Tensor, PairLabels]:
    """States [N, D] and labels of 6 to 30 pairs of few documents, ends and relations; some have none."""
    random = np.random.default_rng(seed)
    ends = {
        (int(random.integers(5)), *random.choice(5, 2, replace=False).tolist())
        for _ in range(int(random.integers(6, 31)))
    }
    table = []
    for document, head, tail in sorted(ends):
        relations = random.choice(4, int(random.choice([0, 1, 1, 2])), replace=False).tolist()
        single, bits = int(random.integers(2)), int(random.integers(2**62))
        table.append([document, head, tail, single, bits, *relations, *[-1] * (2 - len(relations))])
    states_ND = torch.from_numpy(random.normal(size=(len(table), width)))
    return states_ND, PairLabels.from_table(torch.tensor(table))


def loss_and_gradient(states_ND: Tensor, labels: PairLabels, tau: float, order: Tensor | None = None) -> list[Tensor]:
    """[the weighted loss, its parts, its gradient for the states], the pool in another order."""
    leaf = states_ND.clone().requires_grad_()
    order = torch.arange(len(leaf)) if order is None else order
    loss, sums_7 = relation_loss(leaf, labels, leaf[order], labels[order], tau, torch.tensor(PARTS_OF_RD))
    return [loss.detach(), sums_7[: len(PARTS)], torch.autograd.grad(loss, leaf)[0]]


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


# ------------------------------------------------------------------------------------------------ against loops


def slow_pools(out: dict[str, list], states: list[list[float]], entities: int) -> list[list[float]]:
    """Entity states by loops, from the slow collation's lists."""
    pieces: dict[int, list[list[float]]] = {}
    for position, mention in zip(out["piece_positions"], out["piece_mention"], strict=True):
        pieces.setdefault(mention, []).append(states[position])
    mentions: dict[int, list[list[float]]] = {}
    for mention, entity in enumerate(out["mention_entity"]):
        mentions.setdefault(entity, []).append(mean(pieces[mention]))
    return [mean(mentions[entity]) for entity in range(entities)]


def slow_states_gradient(out: dict[str, list], of_entities: list[list[float]], tokens: int) -> list[list[float]]:
    """What the entities' gradients are for the token states: each is shared out evenly, twice."""
    gradient = [[0.0] * len(of_entities[0]) for _ in range(tokens)]
    for position, mention in zip(out["piece_positions"], out["piece_mention"], strict=True):
        entity = out["mention_entity"][mention]
        share = 1 / out["piece_mention"].count(mention) / out["mention_entity"].count(entity)
        add_to(gradient[position], of_entities[entity], share)
    return gradient


@examples(20)
@given(seed=SEEDS, rd=st.integers(0, 8), tau=st.sampled_from([0.2, 1.0]))
def test_documents_to_losses_and_gradients_equal_the_loops(seed: int, rd: int, tau: float) -> None:
    views, collation, random = ragged_views(seed, 8), collation_of(40, no_relation_pairs=3), KeyedRandom(seed)
    batch = collate_erica(views[:rd], views[rd:], collation, random)
    leaf_TD = torch.randn(batch.tokens, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    leaf_TD.requires_grad_()
    entity_ED = entity_states(leaf_TD, batch)
    pairs_PD, labels = pair_states(entity_ED, batch.pair_head_P, batch.pair_tail_P), PairLabels.of(batch)
    rd_loss, sums_7 = relation_loss(pairs_PD, labels, pairs_PD, labels, tau, torch.tensor(PARTS_OF_RD))
    ed_loss, _ = entity_loss_of(entity_ED, batch, tau)
    (gradient_TD,) = torch.autograd.grad(rd_loss + ed_loss, leaf_TD)

    out, _, listed, entities, _ = slow_erica(views[:rd], views[rd:], collation, random)
    states = slow_pools(out, leaf_TD.tolist(), entities)
    close(entity_ED.detach(), torch.tensor(states, dtype=torch.float64).reshape(-1, 3))
    pairs = [SlowPair(key, i, j, states[h] + states[t], frozenset(r)) for h, t, key, i, j, r, _, _ in listed]
    single = [together for *_, together, _ in listed]

    def part(anchor: int, positive: int) -> int:
        return 2 * (not single[anchor]) + (not single[positive])

    expected, of_entities = [0.0] * 4, [[0.0] * 3 for _ in range(entities)]
    for terms in relation_terms(pairs, tau):
        for (anchor, positive), loss in terms:
            expected[part(anchor, positive)] += loss
    close(sums_7[: len(PARTS)], torch.tensor(expected, dtype=torch.float64))
    of_pairs = relation_gradients(pairs, tau, lambda anchor, positive: PARTS_OF_RD[part(anchor, positive)])
    for (head, tail, *_), slope in zip(listed, of_pairs, strict=True):
        add_to(of_entities[head], slope[:3], 1)
        add_to(of_entities[tail], slope[3:], 1)
    ed_expected = 0.0
    for query, (head, tail) in enumerate(zip(out["query_head"], out["query_tail"], strict=True)):
        mine = [e for e, q in zip(out["candidate_entity"], out["candidate_query"], strict=True) if q == query]
        left_out = [e for e in range(entities) if e not in mine]
        ed_expected += entity_loss(states, head, tail, left_out, tau)
        for total, slope in zip(of_entities, entity_gradients(states, head, tail, left_out, tau), strict=True):
            add_to(total, slope, 1)
    assert float(ed_loss.detach()) == pytest.approx(ed_expected, rel=1e-9, abs=1e-12)
    if entities:
        expected_TD = torch.tensor(slow_states_gradient(out, of_entities, batch.tokens), dtype=torch.float64)
        close(gradient_TD, expected_TD)


def entity_loss_of(entity_ED: Tensor, batch: EricaMicroBatch, tau: float) -> tuple[Tensor, Tensor]:
    index = (batch.query_head_Q, batch.query_tail_Q, batch.candidate_entity_C, batch.candidate_query_C)
    return entity_loss_sum(entity_ED, *index, tau)


@examples(30)
@given(seed=SEEDS, tau=TAU)
def test_the_tiled_gradient_equals_the_loops(seed: int, tau: float) -> None:
    states_ND, labels = made_pool(seed)
    rows = zip(*(column.tolist() for column in (labels.document_N, labels.head_N, labels.tail_N)), strict=True)
    relations = [frozenset(r for r in row if r >= 0) for row in labels.labels_NL.tolist()]
    pairs = [SlowPair(*end, x, r) for end, x, r in zip(rows, states_ND.tolist(), relations, strict=True)]
    leaf = states_ND.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("erica_dist.objectives.pair_labels.TILE", 4)
        loss = relation_loss_sum(leaf, labels, leaf, labels, tau)
    (found,) = torch.autograd.grad(loss, leaf)
    assert float(loss.detach()) == pytest.approx(sum(relation_losses(pairs, tau)), rel=1e-9, abs=1e-12)
    close(found, torch.tensor(relation_gradients(pairs, tau), dtype=torch.float64))


# ------------------------------------------------------------------------------------------------ any pool


@examples(40)
@given(seed=SEEDS, tau=TAU)
def test_the_order_of_anchors_and_pool_and_the_split_do_not_matter(seed: int, tau: float) -> None:
    states_ND, labels = made_pool(seed)
    loss, parts_4, gradient_ND = loss_and_gradient(states_ND, labels, tau)
    generator = torch.Generator().manual_seed(seed)
    order, other = (torch.randperm(len(labels), generator=generator) for _ in range(2))
    close(loss_and_gradient(states_ND, labels, tau, other), [loss, parts_4, gradient_ND])
    close(loss_and_gradient(states_ND[order], labels[order], tau, other), [loss, parts_4, gradient_ND[order]])

    cuts = torch.randint(0, len(labels) + 1, (3,), generator=generator).sort().values.tolist()
    rows = [torch.arange(a, b) for a, b in zip([0, *cuts], [*cuts, len(labels)], strict=True)]  # some may be empty
    weights_4 = torch.tensor(PARTS_OF_RD)
    split = [labels[part] for part in rows]
    whole, gradients = cached_gradients([states_ND[part] for part in rows], split, labels, weights_4, tau)
    close([whole[: len(PARTS)], torch.cat(gradients)], [parts_4, gradient_ND])


@examples(40)
@given(seed=SEEDS, tau=TAU)
def test_the_cosine_knows_no_length(seed: int, tau: float) -> None:
    states_ND, labels = made_pool(seed)
    loss, parts_4, gradient_ND = loss_and_gradient(states_ND, labels, tau)
    assert min(parts_4.tolist()) >= 0
    sizes_N1 = 10 ** torch.randn(len(labels), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    longer = loss_and_gradient(states_ND * sizes_N1, labels, tau)
    close(longer[:2], [loss, parts_4])
    close(longer[2] * sizes_N1, gradient_ND)
    along_N = (gradient_ND * states_ND).sum(1)
    close(along_N, torch.zeros_like(along_N))


@examples(40)
@given(seed=SEEDS)
def test_positives_negatives_and_neither_share_out_the_pool(seed: int) -> None:
    _, labels = made_pool(seed)
    positive, negative = positives_and_negatives(labels, labels)
    columns = zip(labels.document_N.tolist(), labels.head_N.tolist(), labels.tail_N.tolist(), strict=True)
    ends, relations = list(columns), [{r for r in row if r >= 0} for row in labels.labels_NL.tolist()]
    for i, (document, head, tail) in enumerate(ends):
        neither = {j for j, (d, h, t) in enumerate(ends) if d == document and (h == head or t == tail)}
        attracts, repels = (set(mask[i].nonzero()[:, 0].tolist()) for mask in (positive, negative))
        assert i in neither
        assert not attracts & repels
        assert not (attracts | repels) & neither
        if relations[i]:
            assert attracts | repels | neither == set(range(len(ends)))
            assert attracts == {j for j in range(len(ends)) if relations[i] & relations[j]} - neither
        else:
            assert not attracts | repels
    assert torch.equal(positive, positive.T)


@examples(40)
@given(seed=SEEDS, tau=TAU, width=st.sampled_from([2, 8]))
def test_a_further_negative_never_lowers_an_anchors_loss(seed: int, tau: float, width: int) -> None:
    states_ND, labels = made_pool(seed, width)
    stranger = torch.tensor([[10**6, 0, 1, 0, 0, OTHER]])
    more_ND = torch.cat([states_ND, torch.randn(1, width, dtype=torch.float64)])
    more = PairLabels.union([labels.table(), stranger])
    for i in anchor_rows(labels, labels).nonzero()[:, 0].tolist():
        row = slice(i, i + 1)
        before = relation_loss_sum(states_ND[row], labels[row], states_ND, labels, tau)
        after = relation_loss_sum(states_ND[row], labels[row], more_ND, more, tau)
        assert after >= before - 1e-12
        assert after > before or tau < 1, "at a high temperature every negative counts"


# ------------------------------------------------------------------------------------------------ extremes

PRECISIONS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
KINDS = st.sampled_from(["drawn", "zero", "identical", "opposite", "huge", "tiny", "some zero", "some huge"])


def extreme_states(states: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """`states` [rows, D] turned into an extreme kind that `dtype` can still hold."""
    if kind == "tiny" and dtype == torch.float16:
        reject()  # the true gradient, some 1 / (length x temperature), is above what float16 holds
    largest = {torch.float16: 6e4, torch.bfloat16: 1e30, torch.float32: 1e30}[dtype]
    bounded = states / states.abs().max()
    if kind == "identical":
        bounded = states[:1].expand_as(states)
    elif kind == "opposite":
        bounded = states[:1] * torch.tensor([1.0, -1.0]).repeat(len(states))[: len(states), None]
    elif kind in ("zero", "huge", "tiny"):
        bounded = bounded * {"zero": 0.0, "huge": largest, "tiny": 1e-6}[kind]
    elif kind.startswith("some"):
        bounded = bounded.clone()
        bounded[::2] *= 0.0 if kind == "some zero" else largest
    return bounded.to(dtype).requires_grad_()


@examples(60)
@given(seed=SEEDS, tau=st.sampled_from([0.001, 0.01, 0.05, 100.0]), kind=KINDS, dtype=PRECISIONS)
def test_relation_loss_and_gradient_are_finite(seed: int, tau: float, kind: str, dtype: torch.dtype) -> None:
    states_ND, labels = made_pool(seed)
    leaf = extreme_states(states_ND, kind, dtype)
    loss = relation_loss_sum(leaf, labels, leaf, labels, tau) / max(int(anchor_rows(labels, labels).sum()), 1)
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    assert torch.isfinite(leaf.grad).all()


@examples(60)
@given(seed=SEEDS, tau=st.sampled_from([0.001, 0.01, 0.05, 100.0]), kind=KINDS, dtype=PRECISIONS, twice=st.booleans())
def test_entity_loss_and_gradient_are_finite(seed: int, tau: float, kind: str, dtype: torch.dtype, twice: bool) -> None:
    batch = collate_erica([], ragged_views(seed, 5), collation_of(40), KeyedRandom(seed))
    states_ED = torch.randn(batch.entity_count + 1, 4, generator=torch.Generator().manual_seed(seed))
    leaf = extreme_states(states_ED, kind, dtype)
    index = (batch.query_head_Q, batch.query_tail_Q, batch.candidate_entity_C, batch.candidate_query_C)
    loss = entity_loss_sum(leaf, *index, tau, twice)[0] / max(len(batch.query_head_Q), 1)
    loss.backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
    assert torch.isfinite(leaf.grad).all()


# ------------------------------------------------------------------------------------------------ finite differences


def check_slope(function: Any, leaf: Tensor, seed: int) -> None:
    """Along a random direction the gradient is the central difference."""
    generator = torch.Generator().manual_seed(seed)
    direction, step = torch.randn(leaf.shape, dtype=torch.float64, generator=generator), 1e-6
    (gradient,) = torch.autograd.grad(function(leaf), leaf)
    with torch.no_grad():
        difference = float(function(leaf + step * direction) - function(leaf - step * direction)) / (2 * step)
    assert float((gradient * direction).sum()) == pytest.approx(difference, rel=1e-5, abs=1e-7)


@examples(15)
@given(seed=SEEDS, tau=st.sampled_from([0.2, 1.0]))
def test_gradients_are_finite_differences(seed: int, tau: float) -> None:
    states_ND, labels = made_pool(seed)
    leaf = states_ND.clone().requires_grad_()
    weights_4 = torch.tensor(PARTS_OF_RD)
    check_slope(lambda x: relation_loss(x, labels, x, labels, tau, weights_4)[0], leaf, seed)

    batch = collate_erica([], ragged_views(seed, 5), collation_of(40), KeyedRandom(seed))
    entities = torch.randn(batch.entity_count, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    check_slope(lambda x: entity_loss_of(x, batch, tau)[0], entities.requires_grad_(), seed)

    # the cached gradient is taken at fixed states; along it the term to back-propagate rises as RD does
    cut = len(labels) // 2
    parts, own = [states_ND[:cut], states_ND[cut:]], [labels[:cut], labels[cut:]]
    _, cached = cached_gradients(parts, own, labels, weights_4, tau)
    direction = torch.randn(leaf.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))

    def cached_term(x: Tensor) -> float:
        return sum(float((part.double() * slope).sum()) for part, slope in zip((x[:cut], x[cut:]), cached, strict=True))

    def direct(x: Tensor) -> float:
        return float(relation_loss(x, labels, x, labels, tau, weights_4)[0])

    rises = [
        (function(states_ND + 1e-6 * direction) - function(states_ND - 1e-6 * direction)) / 2e-6
        for function in (cached_term, direct)
    ]
    assert rises[0] == pytest.approx(rises[1], rel=1e-5, abs=1e-7)
    terms = [backward_term(part, slope) for part, slope in zip((leaf[:cut], leaf[cut:]), cached, strict=True)]
    torch.testing.assert_close(torch.autograd.grad(sum(terms), leaf)[0], torch.cat(cached), rtol=1e-6, atol=1e-9)


@examples(3)
@given(seed=st.integers(0, 1000))
def test_the_whole_modules_gradient_is_a_finite_difference(seed: int) -> None:
    """All three losses, through pooling and encoder, along a random direction of all weights at once."""
    views = ragged_views(seed, 8)
    batch = collate_erica(views[:4], views[4:], collation_of(48, mask_probability=0.3), KeyedRandom(seed))
    labels = PairLabels.of(batch)
    tokenizer = {"vocab_size": 60, "pad_id": 0, "cls_id": 2, "sep_id": 3, "mask_id": 4}
    size = ModelConfig(size="tiny", hidden_size=16, feed_forward=32, dropout=0.0, max_length=64)
    module = EricaModule(build_encoder(size, tokenizer, seed=1)).double()

    def loss() -> Tensor:
        entity_ED, mlm_sum, _ = module(batch)
        pairs_PD = pair_states(entity_ED, batch.pair_head_P, batch.pair_tail_P)
        rd_sum, _ = relation_loss(pairs_PD, labels, pairs_PD, labels, 0.3, torch.tensor(PARTS_OF_RD))
        return rd_sum + entity_loss_of(entity_ED, batch, 0.3)[0] + mlm_sum

    loss().backward()
    generator = torch.Generator().manual_seed(seed)
    directions = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in module.parameters()]
    slope = sum(float((p.grad * d).sum()) for p, d in zip(module.parameters(), directions, strict=True))
    values, step = [], 1e-6
    with torch.no_grad():
        for move in (step, -2 * step):
            for parameter, direction in zip(module.parameters(), directions, strict=True):
                parameter += move * direction
            values.append(float(loss()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-5)
