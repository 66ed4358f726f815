"""Dropout on the CPU: what is dropped how often, what the rest is multiplied with, and gradients by the same mask."""

import pytest
import torch
from torch import nn

from erica_dist.models.attention import attend_by_sequence
from erica_dist.models.dropout import Dropout, dropout, kept, make_dropout_cheap


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_and_factor(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    out = dropout(torch.ones(1_000_003, dtype=dtype), probability)
    share = float((out == 0).double().mean())
    assert share == pytest.approx(probability, abs=5 * (probability * (1 - probability) / 1e6) ** 0.5)
    exact = 65536 / (65536 - round(probability * 65536))
    assert out[out != 0].unique().tolist() == [pytest.approx(exact, rel=1e-6 if dtype == torch.float32 else 4e-3)]


def test_the_four_lanes_of_a_word_and_neighbours_are_independent() -> None:
    torch.manual_seed(4)
    mask, _ = kept(torch.Size([400_000]), 0.3)
    assert mask.view(-1, 4).double().mean(0).tolist() == pytest.approx([0.7] * 4, abs=0.01)
    deviation = torch.corrcoef(mask.view(-1, 4).double().T) - torch.eye(4)
    assert deviation.abs().max() < 0.02


@pytest.mark.parametrize("count", [0, 1, 5, 4096])
def test_any_number_of_elements(count: int) -> None:
    torch.manual_seed(5)
    assert dropout(torch.ones(count), 0.5).shape == (count,)
    mask, factor = kept(torch.Size([count]), 0.9999999)
    assert mask.shape == (count,)
    assert factor == 65536, "the rounded probability stays below 1"


def test_the_gradient_goes_through_what_was_kept() -> None:
    x = torch.randn(50, 7, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(6)
    out = dropout(x, 0.4)
    out.sum().backward()
    torch.manual_seed(6)
    mask, factor = kept(x.shape, 0.4)
    assert torch.equal(x.grad, mask.double() * factor)
    assert torch.equal(out, x * mask.double() * factor)


def test_a_seed_fixes_it_and_evaluation_leaves_it_out() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Dropout(0.5)))
    make_dropout_cheap(module)
    assert isinstance(module[1][0], Dropout)
    x = torch.randn(64, 8)

    def run() -> torch.Tensor:
        torch.manual_seed(7)
        return module(x).detach()

    assert torch.equal(run(), run())
    assert (run() == 0).float().mean() > 0.4
    module.eval()
    assert torch.equal(module(x), module[0](x))


def test_attention_with_dropout_equals_the_plain_form_under_the_same_masks() -> None:
    bounds, heads, width = [0, 5, 6, 15], 3, 4
    shape = (1, heads, bounds[-1], width)
    query, key, value = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(3))
    upstream = torch.randn(shape, dtype=torch.float64)
    torch.manual_seed(8)
    out = attend_by_sequence(query, key, value, bounds, 0.5, 0.3)
    found = torch.autograd.grad(out, (query, key, value), upstream)
    torch.manual_seed(8)
    parts = []
    for start, end in ((0, 5), (5, 6), (6, 15)):
        q, k, v = (x[:, :, start:end] for x in (query, key, value))
        mask, factor = kept(torch.Size([heads, end - start, end - start]), 0.3)
        parts.append((q @ k.transpose(-1, -2) * 0.5).softmax(-1).mul(mask).mul(factor) @ v)
    expected = torch.cat(parts, dim=2)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (query, key, value), upstream))
