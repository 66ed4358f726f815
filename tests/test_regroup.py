"""Pieces of parameters taken from one cut into another: every value once, and an error for what is not there."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

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


def checkpoint_of_one_rank(folder: Path) -> dict[str, int]:
    """Files of stage 1 or 2 without any parameter, and the numbers that they hold."""
    numbers = {"global_steps": 4, "global_samples": 32, "skipped_steps": 0}
    torch.save({**numbers, "module": {}}, folder / "mp_rank_00_model_states.pt")
    common = {"loss_scaler": 1.0, "dynamic_loss_scale": False}
    of_rank = {"param_slice_mappings": [], "base_optimizer_state": {"state": {}}, **common}
    torch.save({"optimizer_state_dict": of_rank}, folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    return {**numbers, **common}


def test_a_missing_file_of_a_rank_is_named(tmp_path: Path) -> None:
    numbers = checkpoint_of_one_rank(tmp_path)
    assert regroup.read(tmp_path, 1, torch.nn.Linear(2, 2)).common == numbers
    regroup.check_files(tmp_path)
    remedy = f"remove the folder {tmp_path} to go on from the checkpoint before it"
    with pytest.raises(UserError, match=rf"zero_pp_rank_1_mp_rank_00_optim_states.pt is missing: {remedy}"):
        regroup.read(tmp_path, 2, torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match=rf"weights/model.safetensors is missing: {remedy}"):
        regroup._whole_weights(tmp_path / "weights" / "model.safetensors")


@pytest.mark.parametrize("kept", [0, 100, 900])
@pytest.mark.parametrize("name", ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"])
def test_a_damaged_file_is_one_error_before_the_engine_reads_it(tmp_path: Path, name: str, kept: int) -> None:
    checkpoint_of_one_rank(tmp_path)
    with open(tmp_path / name, "r+b") as file:
        file.truncate(kept)
    what = r"damaged \([^.]+\)" if kept else "empty"
    with pytest.raises(UserError, match=rf"{name} is {what}: remove the folder {tmp_path} to go on"):
        regroup.check_files(tmp_path)


def test_the_layout_is_that_of_the_state_whatever_files_are_left(tmp_path: Path) -> None:
    checkpoint_of_one_rank(tmp_path)
    assert regroup.layout_of(tmp_path) == 2
    (tmp_path / "state.json").write_text('{"layout": 2}')
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        path = tmp_path / name
        contents = path.read_bytes()
        path.unlink()
        with pytest.raises(UserError, match=f"/{name} is missing"):
            regroup.check_files(tmp_path)
        path.write_bytes(contents)
    assert [regroup.layout(stage) for stage in range(4)] == [0, 2, 2, 3]


def test_damaged_weights_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    path = tmp_path / "weights" / "model.safetensors"
    save_file({"a": torch.zeros(100)}, path)
    assert regroup._stored(regroup._whole_weights(path), "a").tolist() == [0.0] * 100
    with pytest.raises(UserError, match=r"holds no b: is the checkpoint of this model"):
        regroup._stored(regroup._whole_weights(path), "b")
    with open(path, "r+b") as file:
        file.truncate(200)
    with pytest.raises(UserError, match=rf"model.safetensors is damaged \(.+\): remove the folder {tmp_path} to go on"):
        regroup._whole_weights(path)


def test_the_order_of_the_optimizer_is_matrices_then_the_rest() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 1))
    module[0].weight.requires_grad_(False)
    order = ["2.weight", "0.bias", "1.weight", "1.bias", "2.bias"]
    assert regroup.optimizer_order(module) == order
