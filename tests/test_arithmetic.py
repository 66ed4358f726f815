"""Products of half precision on a CPU that lacks it: those of float32, rounded, with gradients."""

import pytest
import torch
from torch import nn

from erica_dist.config import ModelConfig
from erica_dist.models import arithmetic
from erica_dist.models.attention import attend_by_sequence
from erica_dist.models.encoder import build_encoder
from tests.test_models import TOKENIZER


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "lacks", lambda dtype: dtype in (torch.bfloat16, torch.float16))


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_that_of_float32_rounded_once(bias: bool, lacking: None) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(64, 32, bias=bias).bfloat16()
    weights = [layer.weight]
    arithmetic.use_fast_products(layer)
    assert type(layer) is arithmetic.Linear
    assert layer.weight is weights[0]
    x = torch.randn(5, 64).bfloat16().requires_grad_()
    out = layer(x)
    wide = x.detach().float().requires_grad_()
    weight = layer.weight.detach().float().requires_grad_()
    expected = wide @ weight.T + (layer.bias.detach().float() if bias else 0)
    assert torch.equal(out, expected.bfloat16())
    out.sum().backward()
    expected.sum().backward()
    assert torch.equal(x.grad, wide.grad.bfloat16())
    assert torch.equal(layer.weight.grad, weight.grad.bfloat16())


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_is_that_of_float32_rounded_once(dropout: float, lacking: None) -> None:
    states = [torch.randn(1, 2, 9, 4).bfloat16() for _ in range(3)]
    torch.manual_seed(2)
    out = attend_by_sequence(*states, [0, 4, 9], 0.5, dropout)
    torch.manual_seed(2)
    expected = attend_by_sequence(*(x.float() for x in states), [0, 4, 9], 0.5, dropout)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, expected.bfloat16())


def test_float32_is_left_alone(lacking: None) -> None:
    layer = nn.Linear(8, 8)
    x = torch.randn(3, 8)
    expected = layer(x)
    arithmetic.use_fast_products(layer)
    assert torch.equal(layer(x), expected)


def test_all_products_of_an_encoder_are_reached() -> None:
    model = build_encoder(ModelConfig(size="tiny", max_length=32), TOKENIZER, seed=0)
    kinds = {type(part) for part in model.modules() if isinstance(part, nn.Linear)}
    assert kinds == {arithmetic.Linear}
    assert model.cls.predictions.decoder.weight is model.get_input_embeddings().weight
