"""RD, ED and pooling against numbers of an independent implementation and the slow one in tests/slow_erica.py."""

import json
import math
import random

import pytest
import torch

from erica_dist.objectives.entity_discrimination import entity_loss_sum
from erica_dist.objectives.gradient_cache import backward_term, cached_gradients
from erica_dist.objectives.pair_labels import PairLabels, anchor_rows, positives_and_negatives
from erica_dist.objectives.pooling import pair_states, pool_entities
from erica_dist.objectives.relation_discrimination import MEASURES, PARTS, relation_loss, relation_loss_sum
from erica_dist.objectives.retrieval import mean_average_precision
from tests.shared_files import shared
from tests.slow_erica import (
    SlowPair,
    cosine,
    entity_loss,
    entity_state,
    made_fixture,
    relation_losses,
    relation_terms,
)


def pool(document: dict) -> torch.Tensor:
    """Entity states of one fixture document by the real pooling."""
    hidden = torch.tensor(document["hidden"], dtype=torch.float64)
    positions, piece_mention, mention_entity = [], [], []
    for entity, mentions in enumerate(document["entities"]):
        for start, end in mentions:
            positions += range(start, end)
            piece_mention += [len(mention_entity)] * (end - start)
            mention_entity.append(entity)
    index = [torch.tensor(x) for x in (positions, piece_mention, mention_entity)]
    return pool_entities(hidden, *index, len(document["entities"]))


def labels_of(rows: list[tuple[int, int, int, list[int]]]) -> PairLabels:
    width = max((len(r[3]) for r in rows), default=1) or 1
    columns = torch.tensor([r[:3] for r in rows], dtype=torch.int64).reshape(-1, 3)
    table = torch.tensor([r[3] + [-1] * (width - len(r[3])) for r in rows], dtype=torch.int64).reshape(-1, width)
    return PairLabels(columns[:, 0], columns[:, 1], columns[:, 2], torch.zeros(len(rows), dtype=torch.bool), table)


def fixture_pairs(documents: list[dict], with_none: bool) -> tuple[torch.Tensor, PairLabels]:
    names = sorted({name for document in documents for _, _, name in document["relations"]})
    states, rows = [], []
    for number, document in enumerate(documents):
        entity_ED = pool(document)
        pairs: dict[tuple[int, int], list[int]] = {}
        for head, tail, name in document["relations"]:
            pairs.setdefault((head, tail), []).append(names.index(name))
        if with_none:
            pairs |= {(head, tail): [] for head, tail in document["none"]}
        for (head, tail), relations in pairs.items():
            rows.append((number, head, tail, relations))
            states.append(pair_states(entity_ED, torch.tensor([head]), torch.tensor([tail]))[0])
    return torch.stack(states), labels_of(rows)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_fixtures_are_matched(number: int) -> None:
    check_fixture(json.loads(shared("fixtures", f"erica_loss_{number}.json").read_text()))


@pytest.mark.parametrize("seed", range(16))
def test_made_fixtures_are_matched(seed: int) -> None:
    check_fixture(made_fixture(seed))


def test_made_fixtures_hold_what_they_are_made_for() -> None:
    documents = [document for seed in range(16) for document in made_fixture(seed)["documents"]]
    labels = [
        [(h, t) for h, t, _ in document["relations"]].count((h2, t2))
        for document in documents
        for h2, t2, _ in document["relations"]
    ]
    assert set(labels) == {1, 2, 3, 4}
    assert {len(mentions) for document in documents for mentions in document["entities"]} == {1, 2, 3}
    assert {len(document["other_tails"]) for document in documents} == {0, 1, 2}
    assert all(document["none"] for document in documents)


def check_fixture(fixture: dict) -> None:
    documents, tau, expected = fixture["documents"], fixture["tau"], fixture["expected"]
    states = torch.tensor(expected["entity_states_first_document"], dtype=torch.float64)
    torch.testing.assert_close(pool(documents[0]), states, rtol=0, atol=1e-9)

    for with_none, suffix in ((True, "with_no_relation_pairs"), (False, "without_no_relation_pairs")):
        pairs_PD, labels = fixture_pairs(documents, with_none)
        anchors = int(anchor_rows(labels, labels).sum())
        loss = relation_loss_sum(pairs_PD, labels, pairs_PD, labels, tau) / anchors
        assert anchors == expected["relation_loss"]["anchors" if with_none else "anchors_without"]
        assert len(labels) == expected["relation_loss"]["pool" if with_none else "pool_without"]
        assert float(loss) == pytest.approx(expected["relation_loss"][suffix], abs=1e-6)

    for key in ("all_negatives", "other_tails_excluded"):
        total = 0.0
        for document in documents:
            head, tail = document["query"]
            left_out = document["other_tails"] if key == "other_tails_excluded" else []
            candidates = [e for e in range(len(document["entities"])) if e != head and e not in left_out]
            one = torch.tensor
            loss, _ = entity_loss_sum(
                pool(document), one([head]), one([tail]), one(candidates), torch.zeros(len(candidates)).long(), tau
            )
            total += float(loss)
        assert total / len(documents) == pytest.approx(expected["entity_loss"][key], abs=1e-6)


def random_documents(seed: int, documents: int = 5) -> list[dict]:
    draw = random.Random(seed)
    made = []
    for _ in range(documents):
        length, entities = draw.randint(10, 20), draw.randint(2, 5)
        spans = [sorted(draw.sample(range(length + 1), 2)) for _ in range(draw.randint(entities, entities + 3))]
        mentions = [[] for _ in range(entities)]
        for i, span in enumerate(spans):
            mentions[i % entities].append(tuple(span))
        pairs = [(h, t) for h in range(entities) for t in range(entities) if h != t]
        chosen = draw.sample(pairs, min(len(pairs), draw.randint(1, 5)))
        labelled = chosen[: len(chosen) // 2 + 1]
        made.append(
            {
                "hidden": [[draw.gauss(0, 1) for _ in range(6)] for _ in range(length)],
                "entities": mentions,
                "relations": [(h, t, draw.choice("abc")) for h, t in labelled for _ in range(draw.randint(1, 2))],
                "none": [pair for pair in chosen if pair not in labelled],
            }
        )
    return made


def slow_pairs(documents: list[dict]) -> list[SlowPair]:
    pairs = []
    for number, document in enumerate(documents):
        states = [entity_state(document["hidden"], mentions) for mentions in document["entities"]]
        relations: dict[tuple[int, int], set[int]] = {}
        for head, tail, name in document["relations"]:
            relations.setdefault((head, tail), set()).add(ord(name))
        for head, tail in document["none"]:
            relations[head, tail] = set()
        pairs += [SlowPair(number, h, t, states[h] + states[t], frozenset(r)) for (h, t), r in relations.items()]
    return pairs


@pytest.mark.parametrize("seed", range(12))
def test_relation_loss_equals_the_definition_written_as_loops(seed: int) -> None:
    documents = random_documents(seed)
    expected = relation_losses(slow_pairs(documents), temperature=0.3)
    pairs_PD, labels = fixture_pairs(documents, with_none=True)
    assert int(anchor_rows(labels, labels).sum()) == len(expected)
    found = float(relation_loss_sum(pairs_PD, labels, pairs_PD, labels, 0.3))
    assert found == pytest.approx(sum(expected), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_four_parts_are_those_of_the_definition_and_add_up(seed: int) -> None:
    documents = random_documents(seed, documents=8)
    pairs_PD, labels = fixture_pairs(documents, with_none=True)
    draw = random.Random(seed)
    single = [draw.random() < 0.4 for _ in range(len(labels))]
    labels.same_sentence_N = torch.tensor(single)
    expected = [0.0] * 4
    for terms in relation_terms(slow_pairs(documents), temperature=0.3):
        for (anchor, positive), loss in terms:
            expected[2 * (not single[anchor]) + (not single[positive])] += loss
    assert PARTS == ("single_single", "single_cross", "cross_single", "cross_cross")
    loss, found = relation_loss(pairs_PD, labels, pairs_PD, labels, 0.3, torch.tensor([1.0, 0.5, 2.0, 0.25]))
    assert float(loss) == pytest.approx(sum(w * e for w, e in zip([1.0, 0.5, 2.0, 0.25], expected, strict=True)))
    assert found[: len(PARTS)].tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert min(expected) > 0
    assert float(relation_loss_sum(pairs_PD, labels, pairs_PD, labels, 0.3)) == pytest.approx(sum(expected))


@pytest.mark.parametrize("seed", range(4))
def test_measures_are_those_of_the_definition(seed: int) -> None:
    documents = random_documents(seed, documents=8)
    pairs_PD, labels = fixture_pairs(documents, with_none=True)
    pairs = slow_pairs(documents)
    positives, alignment, uniformity = 0, 0.0, 0.0
    for anchor in pairs:
        groups = {True: [], False: []}
        for other in pairs:
            near = anchor.document == other.document and (anchor.head == other.head or anchor.tail == other.tail)
            if not near:
                groups[bool(anchor.relations & other.relations)].append(2 - 2 * cosine(anchor.state, other.state))
        if anchor.relations and groups[True] and groups[False]:
            positives += len(groups[True])
            alignment += sum(groups[True]) / len(groups[True])
            both = [math.exp(-2 * distance) for distance in groups[True] + groups[False]]
            uniformity += sum(both) / len(both)
    _, found = relation_loss(pairs_PD, labels, pairs_PD, labels, 0.3, torch.ones(4))
    assert MEASURES == ("positives", "alignment", "uniformity")
    assert found[len(PARTS) :].tolist() == pytest.approx([positives, alignment, uniformity], rel=1e-10)


def test_own_pairs_apart_from_the_pool_get_their_share_of_the_gradient() -> None:
    pairs_PD, labels = fixture_pairs(random_documents(6, documents=6), with_none=True)
    whole = pairs_PD.clone().requires_grad_()
    relation_loss_sum(whole, labels, whole, labels, 0.2).backward()
    own, pool = pairs_PD.clone().requires_grad_(), pairs_PD.clone().requires_grad_()
    relation_loss_sum(own, labels, pool, labels, 0.2).backward()
    torch.testing.assert_close(own.grad + pool.grad, whole.grad)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))[: len(labels) // 2]
    some = pairs_PD[order].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: relation_loss_sum(x, labels[order], pairs_PD, labels, 0.5), (some,))


@pytest.mark.parametrize("relations", [1, 63, 64, 200])
def test_any_number_of_relations_is_told_apart(relations: int) -> None:
    draw = random.Random(relations)
    rows = [(i, 0, 1, draw.sample(range(0, 3 * relations, 3), min(relations, draw.randint(0, 3)))) for i in range(60)]
    positive, negative = positives_and_negatives(labels_of(rows), labels_of(rows))
    for i, (_, _, _, own) in enumerate(rows):
        shares = [bool(set(own) & set(other)) and i != j for j, (_, _, _, other) in enumerate(rows)]
        assert positive[i].tolist() == shares
        assert negative[i].tolist() == [bool(own) and i != j and not shared for j, shared in enumerate(shares)]


def test_pairs_of_the_own_document_with_the_same_end_are_neither_positive_nor_negative() -> None:
    rows = [(7, 0, 1, [3]), (7, 0, 2, [3]), (7, 2, 1, [4]), (7, 2, 3, [3]), (8, 0, 1, [3, 4]), (8, 1, 0, [])]
    positive, negative = positives_and_negatives(labels_of(rows), labels_of(rows))
    assert positive[0].tolist() == [False, False, False, True, True, False]
    assert negative[0].tolist() == [False, False, False, False, False, True]
    assert positive[4].tolist() == [True, True, True, True, False, False]
    assert not negative[5].any(), "a pair without relation is no anchor"


def test_tiles_give_the_same_loss_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs_PD, labels = fixture_pairs(random_documents(3, documents=9), with_none=True)

    def loss_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        leaf = pairs_PD.clone().requires_grad_()
        loss = relation_loss_sum(leaf, labels, leaf, labels, 0.1)
        return loss, torch.autograd.grad(loss, leaf)[0]

    whole = loss_and_gradient()
    monkeypatch.setattr("erica_dist.objectives.pair_labels.TILE", 3)
    torch.testing.assert_close(loss_and_gradient(), whole)


def test_relation_gradient_agrees_with_finite_differences() -> None:
    pairs_PD, labels = fixture_pairs(random_documents(5, documents=3), with_none=True)
    leaf = pairs_PD.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: relation_loss_sum(x, labels, x, labels, 0.5), (leaf,))


@pytest.mark.parametrize(
    "rows", [[], [(1, 0, 1, [])], [(1, 0, 1, [2]), (2, 0, 1, [2])], [(1, 0, 1, [2]), (2, 0, 1, [3])]]
)
def test_no_anchor_is_zero_with_a_gradient_path(rows: list) -> None:
    labels = labels_of(rows)
    leaf = torch.randn(len(rows), 4, requires_grad=True)
    loss = relation_loss_sum(leaf, labels, leaf, labels, 0.05)
    loss.backward()
    assert float(loss) == 0
    assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("state", [torch.zeros(4, 6), torch.ones(4, 6), torch.full((4, 6), 1e4)])
def test_degenerate_states_give_finite_loss_and_gradient(state: torch.Tensor) -> None:
    labels = labels_of([(1, 0, 1, [2]), (2, 0, 1, [2]), (3, 0, 1, [5]), (3, 1, 0, [])])
    leaf = state.half().float().requires_grad_()
    relation_loss_sum(leaf, labels, leaf, labels, 0.05).backward()
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad.abs().max() < 100, "not even a row of zeros is thrown far away"


def test_half_precision_states_are_widened_before_the_loss() -> None:
    pairs_PD, labels = fixture_pairs(random_documents(2), with_none=True)
    half = pairs_PD.bfloat16()
    found = relation_loss_sum(half, labels, half, labels, 0.05)
    assert found.dtype == torch.float32
    expected = relation_loss_sum(half.double(), labels, half.double(), labels, 0.05)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_entity_loss_equals_the_definition_written_as_loops(seed: int) -> None:
    draw = random.Random(seed)
    entities, heads, tails, candidates, owner, expected, right = [], [], [], [], [], 0.0, 0
    for query in range(4):
        states = [[draw.gauss(0, 1) for _ in range(5)] for _ in range(draw.randint(3, 6))]
        head, tail, other = draw.sample(range(len(states)), 3)
        left_out = [other] if draw.random() < 0.5 else []
        expected += entity_loss(states, head, tail, left_out, 0.2)
        kept = [i for i in range(len(states)) if i != head and i not in left_out]
        losses = {i: entity_loss(states, head, i, left_out, 0.2) for i in kept}
        right += min(losses, key=losses.get) == tail
        heads.append(head + len(entities))
        tails.append(tail + len(entities))
        candidates += [i + len(entities) for i in kept]
        owner += [query] * len(kept)
        entities += states
    index = [torch.tensor(x) for x in (heads, tails, candidates, owner)]
    loss, correct = entity_loss_sum(torch.tensor(entities, dtype=torch.float64), *index, 0.2)
    assert float(loss) == pytest.approx(expected, rel=1e-10)
    assert int(correct) == right


def test_entity_loss_without_queries_is_zero_with_a_gradient_path() -> None:
    leaf, none = torch.randn(3, 4, requires_grad=True), torch.zeros(0).long()
    loss, correct = entity_loss_sum(leaf, none, none, none, none, 0.05)
    loss.backward()
    assert (float(loss), int(correct)) == (0, 0)
    assert torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_gradient_cache_equals_the_direct_gradient() -> None:
    pairs_PD, labels = fixture_pairs(random_documents(4, documents=6), with_none=True)
    pairs_PD = pairs_PD.float()
    weight = torch.randn(pairs_PD.shape[1], 5)
    direct = weight.clone().requires_grad_()
    relation_loss_sum(pairs_PD @ direct, labels, pairs_PD @ direct, labels, 0.2).mul(0.5).backward()

    cut = len(labels) // 3
    parts, own = [pairs_PD[:cut], pairs_PD[cut:]], [labels[:cut], labels[cut:]]
    cached = weight.clone().requires_grad_()
    with torch.no_grad():
        states = [part @ cached for part in parts]
    _, gradients = cached_gradients(states, own, labels, scale=0.5, temperature=0.2)
    for part, gradient in zip(parts, gradients, strict=True):
        backward_term(part @ cached, gradient).backward()
    torch.testing.assert_close(cached.grad, direct.grad, rtol=1e-5, atol=1e-6)


def test_mean_average_precision_of_a_ranking_done_by_hand() -> None:
    # similarities to row 0: row 1 (other relation) 0.9, row 2 (same) 0.8, row 3 (other) 0, row 4 (same) -0.6
    angle = torch.tensor([0.0, 0.451, 0.6435, 1.5708, 2.2143])
    states = torch.stack([angle.cos(), angle.sin()], dim=1)
    rows = [(1, 0, 1, [5]), (2, 0, 1, [6]), (3, 0, 1, [5]), (4, 0, 1, [6]), (5, 0, 1, [5])]
    expected = []
    for i, row in enumerate(rows):
        order = sorted((j for j in range(5) if j != i), key=lambda j: -float(states[i] @ states[j]))
        hits = [rank for rank, j in enumerate(order, 1) if rows[j][3] == row[3]]
        expected.append(sum((k + 1) / rank for k, rank in enumerate(hits)) / len(hits))
    assert expected[0] == pytest.approx((1 / 2 + 2 / 4) / 2)
    score, anchors = mean_average_precision(states, labels_of(rows))
    assert anchors == 5
    assert score == pytest.approx(sum(expected) / 5)
