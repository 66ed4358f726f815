"""A checkpoint taken over by another number of ranks, or by another ZeRO stage.

DeepSpeed writes what its optimizer holds as each rank holds it: flat tensors with pieces of many parameters, cut by the
stage and by the number of ranks. Here both sides are seen as pieces of named parameters, those of the files and those
of the new engine, and each piece is filled from the ones it overlaps. So nothing whole is ever put together, a save
costs nothing more, and each rank reads of the files (memory-mapped) what it needs. Weights are compared with the whole
ones that lie beside (`weights/model.safetensors`), so a layout that is not understood is an error, never a wrong run.

    stage 0     mp_rank_00_model_states.pt                  weights by name, moments by their place among the parameters
    stages 1, 2 *zero_pp_rank_R_mp_rank_00_optim_states.pt  flat parts of groups with the address of each piece
    stage 3     the same files, each parameter cut evenly   in the order of param_shapes in the model states

At stage 0 in half precision DeepSpeed wraps the optimizer in another way: such a checkpoint goes on at stage 0 only.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from erica_dist.errors import UserError
from erica_dist.objectives.gather import rank
from erica_dist.training.agreement import together
from erica_dist.training.tensor_files import load_tensors

MOMENTS = ("exp_avg", "exp_avg_sq")
WEIGHT = "weight"


@dataclass(frozen=True)
class Piece:
    """Elements of one parameter, in the order of its rows, from `first` on.

    values: weight and, once there has been a step, exp_avg and exp_avg_sq; 1-D, float32, views of what holds them.
    """

    first: int
    values: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.values[WEIGHT])


@dataclass
class Saved:
    """The pieces of each parameter in a checkpoint's files, and what all ranks have in common."""

    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    optimizer_step: float | None = None  # None: there was none yet
    common: dict[str, Any] = field(default_factory=dict)  # of the engine and the loss scale

    def add(self, name: str, first: int, start: int, count: int, flats: dict[str, Tensor]) -> None:
        if count > 0:
            self.pieces.setdefault(name, []).append(_cut(flats, first, start, count))


def layout(stage: int) -> int:
    """How a ZeRO stage cuts the optimizer: 0 not at all, 2 as stages 1 and 2 do, 3."""
    return 2 if stage == 1 else stage


def layout_of(folder: Path) -> int:
    """The layout of a checkpoint's files: as its state.json says, or, of an older version, as its files do."""
    try:
        return int(json.loads((folder / "state.json").read_text(encoding="utf-8"))["layout"])
    except (OSError, ValueError, KeyError):
        if not (folder / "mp_rank_00_model_states.pt").exists():
            return 3
        return 2 if next(folder.glob("*zero_pp_rank_*_optim_states.pt"), None) else 0


def take_over(engine: Any, folder: Path, ranks_before: int) -> None:
    """Load module and optimizer of `engine` from a complete checkpoint of `ranks_before` ranks; all ranks call it.

    Raises:
        UserError: files are missing or not those of this module, or stage 0 in half precision is on one of the sides.
    """
    stage = engine.zero_optimization_stage()
    half = engine.bfloat16_enabled() or engine.fp16_enabled()
    if half and (stage == 0 or layout_of(folder) == 0):
        raise UserError(
            f"{folder}: in half precision a checkpoint of ZeRO stage 0 goes on at stage 0 only, and one of another "
            "stage not at 0: keep train.zero_stage, or give another run.dir"
        )
    if stage == 3:
        engine.optimizer.checkpoint_event_prologue()
    saved = together(lambda: _fill_own(engine, folder, ranks_before))
    if stage == 3:
        engine.optimizer.checkpoint_event_epilogue()
    for name in ("global_steps", "global_samples", "skipped_steps"):
        setattr(engine, name, saved.common[name])
    for name in ("loss_scaler", "dynamic_loss_scale"):
        if name in saved.common and hasattr(engine.optimizer, name):
            setattr(engine.optimizer, name, saved.common[name])


def _fill_own(engine: Any, folder: Path, ranks_before: int) -> Saved:
    """What this rank holds, from the files; talks to no other rank."""
    saved = read(folder, ranks_before, engine.module)
    with torch.no_grad(), _whole_weights(folder / "weights" / "model.safetensors") as whole:
        for name, piece in _own_pieces(engine, saved.optimizer_step):
            _fill(piece, saved.pieces.get(name, []), f"{folder}: {name}")
            if not torch.equal(piece.values[WEIGHT].cpu(), _stored(whole, name).narrow(0, piece.first, len(piece))):
                raise UserError(f"{folder}: DeepSpeed's files and weights/ differ in {name}: is one of them damaged?")
        _refresh_module(engine, whole)
    return saved


def read(folder: Path, ranks_before: int, module: nn.Module) -> Saved:
    """The pieces in a checkpoint's files, memory-mapped.

    Raises:
        UserError: a rank's file is missing or cannot be read.
    """
    stage = layout_of(folder)
    saved = Saved()
    of_module = _load(_of_module(folder, 0))
    saved.common = {name: of_module[name] for name in ("global_steps", "global_samples", "skipped_steps")}
    if stage == 0:
        _read_whole(saved, of_module, module)
        return saved
    for number in range(ranks_before):
        of_rank = _load(_of_rank(folder, number))["optimizer_state_dict"]
        saved.common |= {name: of_rank[name] for name in ("loss_scaler", "dynamic_loss_scale")}
        if stage == 3:
            _read_even(saved, of_rank, of_module["param_shapes"], number, ranks_before)
        else:
            _read_addressed(saved, of_rank)
    return saved


def check_files(folder: Path) -> None:
    """Look whether this rank's files of a checkpoint of as many ranks can be read, without reading their tensors.

    Raises:
        UserError: one is missing or damaged.
    """
    _load(_of_module(folder, rank()))
    if layout_of(folder):
        _load(_of_rank(folder, rank()))


def _of_module(folder: Path, number: int) -> Path:
    return folder / f"{f'zero_pp_rank_{number}_' if layout_of(folder) == 3 else ''}mp_rank_00_model_states.pt"


def _of_rank(folder: Path, number: int) -> Path:
    prefix = "bf16_" if next(folder.glob("bf16_zero_pp_rank_*"), None) else ""
    return folder / f"{prefix}zero_pp_rank_{number}_mp_rank_00_optim_states.pt"


def _load(path: Path) -> dict[str, Any]:
    try:
        contents: dict[str, Any] = load_tensors(str(path), mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:  # as the damage will have it
        raise UserError(_damaged(path, error)) from error
    return contents


def _damaged(path: Path, error: Exception) -> str:
    if not path.exists():
        what = "is missing"
    elif not path.stat().st_size:
        what = "is empty"
    else:
        what = f"is damaged ({str(error).splitlines()[0].split('. ')[0]})"
    folder = next(part for part in path.parents if part.name != "weights")
    return f"{path} {what}: remove the folder {folder} to go on from the checkpoint before it"


def _moments(saved: Saved, states: dict[int, dict[str, Tensor]], number: int) -> dict[str, Tensor]:
    """The moments of the optimizer's tensor `number`, flat."""
    if number not in states:
        return {}
    saved.optimizer_step = float(states[number]["step"])
    return {key: states[number][key].flatten() for key in MOMENTS}


def _read_whole(saved: Saved, of_module: dict[str, Any], module: nn.Module) -> None:
    for number, name in enumerate(optimizer_order(module)):
        flats = {WEIGHT: of_module["module"][name].flatten()}
        flats |= _moments(saved, of_module["optimizer"]["state"], number)
        saved.add(name, 0, 0, len(flats[WEIGHT]), flats)


def _read_addressed(saved: Saved, of_rank: dict[str, Any]) -> None:
    for group, addresses in enumerate(of_rank["param_slice_mappings"]):
        flats = {WEIGHT: of_rank["single_partition_of_fp32_groups"][group]}
        flats |= _moments(saved, of_rank["base_optimizer_state"]["state"], group)
        for name, address in addresses.items():
            first = sum(len(piece) for piece in saved.pieces.get(name, []))  # ranks hold a group one after the other
            saved.add(name, first, address.start, address.numel, flats)


def _read_even(saved: Saved, of_rank: dict[str, Any], shapes: list[dict[str, Any]], number: int, ranks: int) -> None:
    for group, named in enumerate(shapes):
        flats = {WEIGHT: of_rank["fp32_flat_groups"][group]}
        flats |= _moments(saved, of_rank["optimizer_state_dict"]["state"], group)
        start = 0
        for name, shape in named.items():
            share = math.ceil(math.prod(shape) / ranks)  # the last ranks' are padded, or nothing but padding
            saved.add(name, number * share, start, min(share, math.prod(shape) - number * share), flats)
            start += share


def optimizer_order(module: nn.Module) -> list[str]:
    """The parameters' names in the order of the optimizer's groups (`engine.build_engine`): matrices, then the rest."""
    named = [(name, getattr(p, "ds_shape", p.shape)) for name, p in module.named_parameters() if p.requires_grad]
    return [name for name, shape in named if len(shape) > 1] + [name for name, shape in named if len(shape) <= 1]


def _own_pieces(engine: Any, step: float | None) -> Iterator[tuple[str, Piece]]:
    """(name, piece) of what this rank's optimizer holds, moments made where there were steps."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    if stage == 0:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                flats = {WEIGHT: parameter.data} | _own_moments(optimizer, parameter, step)
                yield names[id(parameter)], Piece(0, {key: flat.view(-1) for key, flat in flats.items()})
    elif stage < 3:
        for parameters, flat in zip(optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups, strict=True):
            flats = {WEIGHT: flat.data} | _own_moments(optimizer.optimizer, flat, step)
            for parameter in parameters:
                if (mapping := parameter._hp_mapping) is not None:
                    first, address = mapping.lp_fragment_address.start, mapping.hp_fragment_address
                    yield names[id(parameter)], _cut(flats, first, address.start, address.numel)
    else:
        for parameters, flat in zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True):
            flats = {WEIGHT: flat.data} | _own_moments(optimizer.optimizer, flat, step)
            for parameter in parameters:
                _, start, share = optimizer.grad_position[optimizer.get_param_id(parameter)]
                first = share * rank()
                if (count := min(share, parameter.ds_numel - first)) > 0:
                    yield names[id(parameter)], _cut(flats, first, start, count)


def _cut(flats: dict[str, Tensor], first: int, start: int, count: int) -> Piece:
    return Piece(first, {key: flat.narrow(0, start, count) for key, flat in flats.items()})


def _own_moments(optimizer: torch.optim.Optimizer, held: Tensor, step: float | None) -> dict[str, Tensor]:
    """New moments of one of the optimizer's tensors, as AdamW makes them at its first step."""
    if step is None:
        return {}
    fused = any(group.get("fused") for group in optimizer.param_groups)
    moments = {key: torch.zeros_like(held, memory_format=torch.preserve_format) for key in MOMENTS}
    counter = torch.tensor(step, dtype=torch.float32, device=held.device if fused else "cpu")
    optimizer.state[held] = {"step": counter, **moments}
    return {key: moment.detach() for key, moment in moments.items()}


def _fill(piece: Piece, sources: list[Piece], place: str) -> None:
    """Copy what `sources` have of the piece.

    Raises:
        UserError: they do not cover it once.
    """
    filled, end = 0, piece.first + len(piece)
    for source in sources:
        first, last = max(piece.first, source.first), min(end, source.first + len(source))
        if first >= last:
            continue
        for key, values in piece.values.items():
            part = source.values[key].narrow(0, first - source.first, last - first)
            values.narrow(0, first - piece.first, last - first).copy_(part)
        filled += last - first
    if filled != len(piece):
        raise UserError(f"{place}: {filled} of {len(piece)} values found in the checkpoint: is it of this model?")


def _whole_weights(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise UserError(_damaged(path, error)) from error


def _stored(whole: Any, name: str) -> Tensor:
    """A parameter of `weights/`, flat; the file holds all that the optimizer has."""
    try:
        return whole.get_tensor(name).flatten()  # type: ignore[no-any-return]
    except SafetensorError as error:
        raise UserError(f"weights/model.safetensors holds no {name}: is the checkpoint of this model?") from error


def _refresh_module(engine: Any, whole: Any) -> None:
    """The weights that forward passes use, in their own precision, from the optimizer's."""
    stage, optimizer = engine.zero_optimization_stage(), engine.optimizer
    if stage == 3:
        for held, used in zip(
            optimizer.fp32_partitioned_groups_flat, optimizer.fp16_partitioned_groups_flat, strict=True
        ):
            used.data.copy_(held.data)
    elif stage:  # every rank has all of them
        for name, parameter in engine.module.named_parameters():
            parameter.data.copy_(_stored(whole, name).view_as(parameter))
