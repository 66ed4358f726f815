"""The losses of the published ERICA's options against loops, finite differences, and what the draws must hold to."""

import random

import numpy as np
import pytest
import torch

from erica_dist.config import ModelConfig
from erica_dist.models.encoder import build_encoder, hidden_states, mlm_logits
from erica_dist.objectives.entity_discrimination import entity_loss_sum
from erica_dist.objectives.gradient_cache import backward_term, cached_gradients
from erica_dist.objectives.pair_labels import PairLabels, anchor_rows
from erica_dist.objectives.pair_sampling import PairSampling, mixed, partner_rows, partners_of, sampled
from erica_dist.objectives.relation_discrimination import relation_loss, relation_loss_sum
from erica_dist.stream import randomness
from erica_dist.training.erica import Counts, _sum_of_means
from erica_dist.training.modules import EricaModule
from tests.slow_reference import PairKey, chosen_pairs, couples, sampled_losses, twice_counted_loss
from tests.test_objectives_erica import fixture_pairs, random_documents, slow_pairs
from tests.test_stream_collate import collate_erica, collation_of, random_view

SAMPLINGS = [PairSampling(True, 0), PairSampling(False, 3), PairSampling(True, 2), PairSampling(True, 64)]


def words(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def documents_of(seed: int, documents: int = 6) -> list[dict]:
    return [made | {"relations": sorted(set(made["relations"]))} for made in random_documents(seed, documents)]


def pairs_with_bits(seed: int, documents: int = 6) -> tuple[torch.Tensor, PairLabels, list[int]]:
    pairs_PD, labels = fixture_pairs(documents_of(seed, documents), with_none=True)
    bits = words(len(labels), seed)
    labels.bits_N = torch.from_numpy(bits.view(np.int64).copy())
    return pairs_PD, labels, bits.tolist()


def made_pool(seed: int, pairs: int = 40) -> tuple[list[PairKey], PairLabels]:
    """Pairs of few documents and ends, of none to three relations."""
    draw = random.Random(seed)
    ends = {(draw.randrange(6), *draw.sample(range(5), 2)) for _ in range(pairs)}
    bits = words(len(ends), seed)
    relations = [sorted(draw.sample(range(4), draw.choice([0, 1, 1, 1, 2, 3]))) for _ in ends]
    keys = [PairKey(*end, found, int(b)) for end, found, b in zip(sorted(ends), relations, bits, strict=True)]
    table = [[*key.relations, *[-1] * (3 - len(key.relations))] for key in keys]
    columns = torch.tensor([(key.document, key.head, key.tail) for key in keys])
    single = torch.zeros(len(keys), dtype=torch.bool)
    return keys, PairLabels(*columns.T, single, torch.tensor(table), torch.from_numpy(bits.view(np.int64).copy()))


def test_bits_are_mixed_as_the_streams_are() -> None:
    numbers = words(1000, 1)
    found = mixed(torch.from_numpy(numbers.view(np.int64).copy())).numpy().view(np.uint64)
    assert np.array_equal(found, randomness.mixed(numbers))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("seed", range(6))
def test_relation_loss_equals_the_published_rule_written_as_loops(seed: int, sampling: PairSampling) -> None:
    pairs_PD, labels, bits = pairs_with_bits(seed)
    pairs = slow_pairs(documents_of(seed))
    expected = sampled_losses(pairs, bits, 0.3, sampling.one_positive, sampling.negatives)
    assert int(anchor_rows(labels, labels, sampling).sum()) == len(expected) > 0
    found = float(relation_loss_sum(pairs_PD, labels, pairs_PD, labels, 0.3, sampling))
    assert found == pytest.approx(sum(expected), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_couples_of_pairs_with_several_relations_equal_the_loops(seed: int) -> None:
    keys, labels = made_pool(seed)
    found = partner_rows(labels.labels_NL, labels.bits_N).tolist()
    assert {i: j for i, j in enumerate(found) if j >= 0} == couples(keys)
    assert all(found[found[i]] == i for i in couples(keys))
    anchors = torch.tensor(random.Random(seed).sample(range(len(keys)), 9))
    own = partners_of(labels.bits_N[anchors], labels.labels_NL, labels.bits_N)
    assert own.tolist() == [found[i] for i in anchors.tolist()]
    expected = chosen_pairs(keys, one_positive=True, negatives=4)
    anchor = [bool(positive and negative) for positive, negative in expected]
    assert anchor_rows(labels, labels, PairSampling(True, 4)).tolist() == anchor


def test_one_of_an_odd_number_is_a_negative_only() -> None:
    rows = [(document, 0, 1) for document in range(6)]
    relations = torch.tensor([[5], [5], [5], [6], [6], [-1]])
    bits = torch.from_numpy(words(6, 3).view(np.int64).copy())
    labels = PairLabels(*torch.tensor(rows).T, torch.zeros(6, dtype=torch.bool), relations, bits)
    partner = partner_rows(relations, bits).tolist()
    assert (partner[3], partner[4], partner[5]) == (4, 3, -1)
    (left,) = (i for i in range(3) if partner[i] < 0)
    anchors = anchor_rows(labels, labels, PairSampling(True, 0)).tolist()
    assert anchors == [i not in (left, 5) for i in range(6)]
    states = torch.randn(6, 4, dtype=torch.float64).requires_grad_()
    relation_loss_sum(states, labels, states, labels, 0.3, PairSampling(True, 0)).backward()
    assert states.grad[left].abs().sum() > 0, "it repels the anchors of the other relation"


def test_a_couple_that_must_not_meet_makes_no_anchor() -> None:
    relations = torch.tensor([[5], [5], [6]])
    bits = torch.from_numpy(words(3, 3).view(np.int64).copy())
    columns = torch.tensor([(1, 0, 1), (1, 0, 2), (2, 0, 1)]).T
    labels = PairLabels(*columns, torch.zeros(3, dtype=torch.bool), relations, bits)
    assert partner_rows(relations, bits).tolist() == [1, 0, -1]
    assert not anchor_rows(labels, labels, PairSampling(True, 0)).any()


def test_every_positive_and_every_negative_is_drawn_equally_often() -> None:
    draws, size, positive, negative = 1500, 7, np.zeros((7, 7)), np.zeros(7)
    for draw in range(draws):
        bits = torch.from_numpy(words(size, draw).view(np.int64).copy())
        for i, j in enumerate(partner_rows(torch.zeros(size, 1, dtype=torch.int64), bits).tolist()):
            if j >= 0:
                positive[i, j] += 1
        negative += sampled(torch.ones(1, size, dtype=torch.bool), bits[:1], bits, 2)[0].numpy()
    others = positive[~np.eye(size, dtype=bool)] / draws
    # 6 of 7 are coupled, each with one of 6 others; 2 of 7 negatives are drawn; five standard deviations
    assert np.abs(others - 1 / size).max() < 5 * (1 / size / draws) ** 0.5
    assert np.abs(negative / draws - 2 / size).max() < 5 * (2 / size / draws) ** 0.5


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_draw_does_not_depend_on_the_order_of_the_pool_or_on_tiles(
    sampling: PairSampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs_PD, labels, _ = pairs_with_bits(4, documents=12)
    whole = relation_loss(pairs_PD, labels, pairs_PD, labels, 0.2, torch.ones(4), sampling)[1]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    turned = relation_loss(pairs_PD, labels, pairs_PD[order], labels[order], 0.2, torch.ones(4), sampling)[1]
    torch.testing.assert_close(turned, whole, rtol=1e-12, atol=0)
    moved = PairLabels.from_table(PairLabels.union([labels.table()[:9], labels.table()[9:]]).table())
    torch.testing.assert_close(relation_loss(pairs_PD, moved, pairs_PD, moved, 0.2, torch.ones(4), sampling)[1], whole)
    monkeypatch.setattr("erica_dist.objectives.pair_labels.TILE", 3)
    monkeypatch.setattr("erica_dist.objectives.pair_sampling.SCORES", 2 * len(labels))
    tiled = relation_loss(pairs_PD, labels, pairs_PD, labels, 0.2, torch.ones(4), sampling)[1]
    torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_relation_gradient_agrees_with_finite_differences(sampling: PairSampling) -> None:
    pairs_PD, labels, _ = pairs_with_bits(5, documents=3)
    leaf = pairs_PD.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: relation_loss_sum(x, labels, x, labels, 0.5, sampling), (leaf,))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_gradient_cache_equals_the_direct_gradient(sampling: PairSampling) -> None:
    pairs_PD, labels, _ = pairs_with_bits(4)
    leaf = pairs_PD.clone().requires_grad_()
    relation_loss_sum(leaf, labels, leaf, labels, 0.2, sampling).backward()
    cut = len(labels) // 3
    states, own = [pairs_PD[:cut], pairs_PD[cut:]], [labels[:cut], labels[cut:]]
    _, gradients = cached_gradients(states, own, labels, scale=1.0, temperature=0.2, sampling=sampling)
    torch.testing.assert_close(torch.cat(gradients), leaf.grad, rtol=1e-10, atol=1e-12)
    assert backward_term(pairs_PD[:cut].requires_grad_(), gradients[0]).requires_grad


@pytest.mark.parametrize("rows", [[], [(1, 0, 1, -1)], [(1, 0, 1, 2), (2, 0, 1, 2)], [(1, 0, 1, 2), (2, 0, 1, 3)]])
def test_no_anchor_is_zero_with_a_gradient_path(rows: list) -> None:
    table = torch.tensor(rows, dtype=torch.int64).reshape(-1, 4)
    single, bits = torch.zeros(len(rows), dtype=torch.bool), torch.arange(len(rows))
    labels = PairLabels(*table[:, :3].T, single, table[:, 3:], bits)
    leaf = torch.randn(len(rows), 4, requires_grad=True)
    loss = relation_loss_sum(leaf, labels, leaf, labels, 0.05, PairSampling(True, 1))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(leaf.grad, torch.zeros_like(leaf))


# ------------------------------------------------------------------------------------------------ ED and MLM


@pytest.mark.parametrize("seed", range(6))
def test_entity_loss_with_the_tail_counted_twice(seed: int) -> None:
    draw = random.Random(seed)
    entities, heads, tails, candidates, owner, expected = [], [], [], [], [], 0.0
    for query in range(4):
        states = [[draw.gauss(0, 1) for _ in range(5)] for _ in range(draw.randint(3, 6))]
        head, tail, other = draw.sample(range(len(states)), 3)
        left_out = [other] if draw.random() < 0.5 else []
        expected += twice_counted_loss(states, head, tail, left_out, 0.2)
        kept = [i + len(entities) for i in range(len(states)) if i != head and i not in left_out]
        heads.append(head + len(entities))
        tails.append(tail + len(entities))
        candidates += kept
        owner += [query] * len(kept)
        entities += states
    index = [torch.tensor(x) for x in (heads, tails, candidates, owner)]
    leaf = torch.tensor(entities, dtype=torch.float64).requires_grad_()
    loss, _ = entity_loss_sum(leaf, *index, 0.2, True)
    assert loss.item() == pytest.approx(expected, rel=1e-10)
    assert torch.autograd.gradcheck(lambda x: entity_loss_sum(x, *index, 0.2, True)[0], (leaf,))


def test_entity_loss_with_the_tail_counted_twice_without_queries() -> None:
    leaf, none = torch.randn(3, 4, requires_grad=True), torch.zeros(0).long()
    loss, _ = entity_loss_sum(leaf, none, none, none, none, 0.05, True)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(leaf.grad, torch.zeros_like(leaf))


@pytest.mark.parametrize("rd", [0, 3, 6])
def test_mlm_by_half_is_the_mean_of_each_half(rd: int) -> None:
    draw = np.random.default_rng(8)
    views = [(random_view(draw, key), 0) for key in range(6)]
    batch = collate_erica(views[:rd], views[rd:], collation_of(48, mask_probability=0.5), randomness.KeyedRandom(1))
    borders = batch.packed.cu_seqlens.tolist()
    owner = np.searchsorted(borders, batch.masked_positions_K.numpy(), side="right") - 1
    tokenizer = {"vocab_size": 60, "pad_id": 0, "cls_id": 2, "sep_id": 3, "mask_id": 4}
    model = build_encoder(ModelConfig(size="tiny", dropout=0.0, max_length=64), tokenizer, seed=1).double()
    module = EricaModule(model)

    def loss() -> torch.Tensor:
        _, sums, _ = module(batch, by_half=True)
        return _sum_of_means(sums, batch, Counts(0, 0, 0, 0, 0, 0, rd_halves=2, ed_halves=5))

    logits = mlm_logits(model, hidden_states(model, batch.packed)).detach()
    expected = 0.0
    for documents, count in ((range(rd), 2), (range(rd, 6), 5)):
        terms = []
        for k in [k for k in range(len(owner)) if owner[k] in documents]:
            terms.append(-float(logits[batch.masked_positions_K[k]].log_softmax(0)[batch.masked_labels_K[k]]))
        expected += sum(terms) / len(terms) / count if terms else 0.0
    found = loss()
    assert float(found.detach()) == pytest.approx(expected, rel=1e-9)
    found.backward()
    weight, step = next(module.parameters()), 1e-5
    direction = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    slope = float((weight.grad * direction).sum())
    with torch.no_grad():
        weight += step * direction
        above = float(loss())
        weight -= 2 * step * direction
        below = float(loss())
    assert (above - below) / (2 * step) == pytest.approx(slope, rel=1e-5)
