"""Pieces of parameters taken from one cut into another: every value once, and an error for what is not there."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from erica_dist.errors import UserError
from erica_dist.training import regroup
from erica_dist.training.regroup import Piece

KEYS = (regroup.WEIGHT, *regroup.MOMENTS)


def cut(whole: dict[str, torch.Tensor], places: list[int]) -> list[Piece]:
    """The pieces between `places`, which begin with 0 and end with the number of values."""
    return [Piece(a, {key: values[a:b].clone() for key, values in whole.items()}) for a, b in pairwise(places)]


@given(st.integers(1, 40), st.data())
def test_any_cut_is_filled_from_any_other(count: int, data: st.DataObject) -> None:
    whole = {key: torch.arange(count) + 100.0 * number for number, key in enumerate(KEYS)}
    places = st.lists(st.integers(1, max(count - 1, 1)), unique=True, max_size=5).map(
        lambda some: [0, *sorted(place for place in some if place < count), count]
    )
    sources = data.draw(st.permutations(cut(whole, data.draw(places))))
    for piece in cut({key: torch.full((count,), -1.0) for key in KEYS}, data.draw(places)):
        regroup._fill(piece, sources, "here")
        for key in KEYS:
            assert piece.values[key].tolist() == whole[key][piece.first : piece.first + len(piece)].tolist()


def test_what_is_not_covered_once_is_an_error() -> None:
    whole = {key: torch.arange(10.0) for key in KEYS}
    first, _, last = sources = cut(whole, [0, 3, 6, 10])
    (target,) = cut({key: torch.zeros(10) for key in KEYS}, [0, 10])
    with pytest.raises(UserError, match=r"step-9: encoder.weight: 7 of 10 values found in the checkpoint"):
        regroup._fill(target, [first, last], "step-9: encoder.weight")
    with pytest.raises(UserError, match="13 of 10 values"):
        regroup._fill(target, [*sources, first], "step-9: encoder.weight")


def test_a_missing_file_of_a_rank_is_named(tmp_path: Path) -> None:
    numbers = {"global_steps": 4, "global_samples": 32, "skipped_steps": 0}
    torch.save({**numbers, "module": {}}, tmp_path / "mp_rank_00_model_states.pt")
    of_rank = {
        "param_slice_mappings": [],
        "base_optimizer_state": {"state": {}},
        "loss_scaler": 1.0,
        "dynamic_loss_scale": False,
    }
    torch.save({"optimizer_state_dict": of_rank}, tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    module = torch.nn.Linear(2, 2)
    assert regroup.read(tmp_path, 1, module).common == {**numbers, "loss_scaler": 1.0, "dynamic_loss_scale": False}
    with pytest.raises(UserError, match=r"zero_pp_rank_1_mp_rank_00_optim_states.pt cannot be read: No such file"):
        regroup.read(tmp_path, 2, module)


def test_the_order_of_the_optimizer_is_matrices_then_the_rest() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 1))
    module[0].weight.requires_grad_(False)
    order = ["2.weight", "0.bias", "1.weight", "1.bias", "2.bias"]
    assert regroup.optimizer_order(module) == order
