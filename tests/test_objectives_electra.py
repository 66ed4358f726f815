"""Masked input, sampling of replacements, detection loss and scores, against definitions written out."""

import pytest
import torch
from torch.nn import functional

from erica_dist.objectives.electra import (
    AUC_BINS,
    corrupt,
    detection_counts,
    detection_loss_sum,
    detection_scores,
    masked_input,
    sample_replacements,
)
from erica_dist.objectives.mlm import masked_loss_sum
from erica_dist.stream.micro_batches import ElectraMicroBatch, Packed


def batch(ids: list[int], positions: list[int], keep: list[bool]) -> ElectraMicroBatch:
    ids_T = torch.tensor(ids)
    packed = Packed(ids_T, torch.arange(len(ids)), torch.zeros_like(ids_T), torch.tensor([0, len(ids)]).int(), len(ids))
    return ElectraMicroBatch(
        packed, torch.tensor(positions), torch.tensor(keep), torch.rand(len(keep)).double(), 1, len(ids)
    )


def test_masked_input_keeps_what_is_to_be_kept() -> None:
    micro = batch([1, 10, 11, 12, 2], positions=[1, 3], keep=[False, True])
    assert masked_input(micro, mask_id=4).tolist() == [1, 4, 11, 12, 2]
    assert micro.packed.input_ids_T.tolist() == [1, 10, 11, 12, 2], "the originals are the labels: not touched"


def test_a_replacement_equal_to_the_original_is_an_original() -> None:
    micro = batch([1, 10, 11, 12, 2], positions=[1, 3], keep=[False, True])
    ids, replaced = corrupt(micro, torch.tensor([10, 13]))
    assert ids.tolist() == [1, 10, 11, 13, 2]
    assert replaced.tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_replacements_follow_the_softmax(temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]])
    draws = 40_000
    uniform = torch.rand(draws, generator=torch.Generator().manual_seed(0)).double()
    sampled = sample_replacements(logits.expand(draws, 4), uniform, torch.zeros(draws).long(), temperature, False)
    share = torch.bincount(sampled, minlength=4) / draws
    torch.testing.assert_close(share, (logits[0] / temperature).softmax(0), rtol=0, atol=0.01)


def test_disallow_correct_never_draws_the_original_and_renormalises() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]])
    uniform = torch.rand(40_000, generator=torch.Generator().manual_seed(1)).double()
    sampled = sample_replacements(logits.expand(40_000, 4), uniform, torch.full((40_000,), 3), 1.0, True)
    share = torch.bincount(sampled, minlength=4) / 40_000
    assert share[3] == 0
    torch.testing.assert_close(share[:3], logits[0, :3].softmax(0), rtol=0, atol=0.01)


def test_draws_over_a_large_vocabulary_invert_the_cumulative_distribution() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(200, 1000, generator=generator) * 3
    uniform = torch.rand(200, generator=generator).double()
    cumulative = logits.double().softmax(1).cumsum(1)
    expected = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(1)
    drawn = sample_replacements(logits, uniform, torch.zeros(200).long(), 1.0, False)
    assert drawn.tolist() == expected.tolist()


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    logits = torch.full((1, 700), float("-inf"))
    logits[0, [300, 301]] = 0.0
    drawn = sample_replacements(logits, torch.tensor([uniform]).double(), torch.tensor([300]), 1.0, True)
    assert drawn.tolist() == [301]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_uniform_give_tokens_of_the_vocabulary(uniform: float) -> None:
    logits = torch.randn(3, 30_522)
    sampled = sample_replacements(logits, torch.full((3,), uniform).double(), torch.zeros(3).long(), 1.0, False)
    assert ((sampled >= 0) & (sampled < 30_522)).all()


def test_detection_loss_is_the_sum_over_real_tokens() -> None:
    logits, replaced = torch.randn(11), torch.rand(11) > 0.7
    expected = sum(
        float(functional.softplus(-x if r else x)) for x, r in zip(logits.tolist() and logits, replaced, strict=True)
    )
    assert float(detection_loss_sum(logits, replaced)) == pytest.approx(expected, rel=1e-5)


def test_scores_add_over_micro_batches_and_match_the_definitions() -> None:
    generator = torch.Generator().manual_seed(4)
    logits, replaced = torch.randn(600, generator=generator) * 2, torch.rand(600, generator=generator) > 0.8
    logits = logits + replaced.float()
    counts = detection_counts(logits[:250], replaced[:250]) + detection_counts(logits[250:], replaced[250:])
    assert len(counts) == 3 + 2 * AUC_BINS
    scores = detection_scores(counts)
    predicted = logits > 0
    assert scores["recall"] == pytest.approx(float((predicted & replaced).sum() / replaced.sum()))
    assert scores["precision"] == pytest.approx(float((predicted & replaced).sum() / predicted.sum()))
    assert scores["accuracy"] == pytest.approx(float((predicted == replaced).double().mean()))
    assert scores["replaced_share"] == pytest.approx(float(replaced.double().mean()))
    wins = (logits[replaced][:, None] > logits[~replaced][None]).double().mean()
    assert scores["auc"] == pytest.approx(float(wins), abs=1e-3)


def test_scores_without_any_replaced_token_are_defined() -> None:
    scores = detection_scores(detection_counts(torch.randn(5) - 9, torch.zeros(5, dtype=torch.bool)))
    assert scores == {"accuracy": 1.0, "precision": 0.0, "recall": 0.0, "auc": 0.5, "replaced_share": 0.0}


def test_mlm_sum_and_hits_and_the_empty_case() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]], requires_grad=True)
    loss, right = masked_loss_sum(logits, torch.tensor([0, 2]))
    expected = -logits.detach().log_softmax(1)[0, 0] - logits.detach().log_softmax(1)[1, 2]
    assert float(loss.detach()) == pytest.approx(float(expected))
    assert int(right) == 1
    empty = torch.zeros(0, 3, requires_grad=True)
    loss, right = masked_loss_sum(empty, torch.zeros(0).long())
    loss.backward()
    assert (float(loss.detach()), int(right)) == (0, 0)
