"""Checkpoints that are there whole or not at all, and the way back from them.

    RUN_DIR/checkpoints/step-00000060/     DeepSpeed's files (module, optimizer partition of each rank)
                                           weights/model.safetensors: the whole module in float32, tied weights once
                                           state.json: step, job, ranks, layout, shards; `complete` - written last
                        latest             name of the newest complete one

A save goes to `incomplete-...`, is flushed, and gets its name by one rename; a kill in between leaves a folder that no
resume looks at. All ranks call `save` and `restore`: which checkpoint counts is decided by rank 0 and broadcast.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from erica_dist.errors import UserError
from erica_dist.objectives.gather import rank, ranks
from erica_dist.training import regroup
from erica_dist.training.agreement import together

_NAME = re.compile(r"step-(\d{8})")


def newest(run_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    folders = sorted(Path(run_dir, "checkpoints").glob("step-*"), reverse=True)
    return next((folder for folder in folders if _NAME.fullmatch(folder.name) and _state(folder)), None)


def newest_checkpoint(run_dir: str | Path) -> Path:
    """The newest complete checkpoint of a run.

    Raises:
        UserError: there is none.
    """
    folder = newest(run_dir)
    if folder is None:
        raise UserError(f"{run_dir} holds no complete checkpoint: is it the run.dir of a training that saved one?")
    return folder


def read_state(folder: Path) -> dict[str, Any]:
    """`state.json` of a complete checkpoint."""
    state = _state(folder)
    if state is None:
        raise UserError(f"{folder} is no complete checkpoint: its state.json is missing or unfinished")
    return state


def _state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if state.get("complete") else None


def check_disk(run_dir: str | Path, parameters: int, keep: int) -> None:
    """Refuse to train where the checkpoints will not fit: weights, two moments and the whole weights, 4 bytes each.

    Raises:
        UserError: too little room below `run_dir`.
    """
    needed = 16 * parameters * (max(keep, 1) + 1)  # one more while the oldest is not removed yet
    existing = next(path for path in [Path(run_dir), *Path(run_dir).parents] if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise UserError(
            f"{run_dir}: {free / 1e9:.1f} GB are free and checkpoints of this model take up to {needed / 1e9:.1f} GB: "
            "make room, choose another run.dir, or lower train.keep_checkpoints"
        )


def save(engine: Any, run_dir: str | Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write the checkpoint of `step`; all ranks call it. Older ones beyond the newest `keep` are removed."""
    root = Path(run_dir, "checkpoints")
    temporary, final = root / f"incomplete-{step:08d}", root / f"step-{step:08d}"
    if rank() == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        root.mkdir(parents=True, exist_ok=True)
    barrier()
    engine.save_checkpoint(str(root), tag=temporary.name, save_latest=False)
    weights, tied = whole_weights(engine)
    barrier()
    if rank() == 0:
        (temporary / "weights").mkdir()
        save_file(weights, temporary / "weights" / "model.safetensors")
        layout = regroup.layout(engine.zero_optimization_stage())
        known = {"step": step, "ranks": ranks(), "layout": layout, "tied": tied, "complete": True}
        text = json.dumps({**state, **known}, indent=1)
        (temporary / "state.json").write_text(text + "\n", encoding="utf-8")
        _flush(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _write_pointer(root, final.name)
        _remove_old(root, keep)
    barrier()
    return final


def check(folder: Path, order: dict[str, Any], allow_changed: bool = False) -> int:
    """The step of a complete checkpoint that a job may go on from, on any number of ranks.

    Args:
        order: what decides which document is read when, and what the weights and their files are, as given to `save`. A
            run that changed it half-way would skip some documents and repeat others. What the checkpoint does not say
            is not compared.
        allow_changed: go on although the shards have changed: at the same step, in the order of the new ones.

    Raises:
        UserError: the checkpoint was written under another `order`.
    """
    state = read_state(folder)
    changed = [
        f"{key} {state[key]} there and {value} here"
        for key, value in order.items()
        if key in state and state[key] != value and not (allow_changed and key == "shards")
    ]
    if changed:
        hint = " (shards changed on purpose: data.allow_changed=true)" if changed[0].startswith("shards ") else ""
        raise UserError(
            f"{folder} does not fit this job ({', '.join(changed)}): keep these, or give another run.dir{hint}"
        )
    return int(state["step"])


def check_weights(folder: Path, parameters: int) -> None:
    """Refuse a checkpoint of a model of another size.

    Raises:
        UserError: it says how many parameters it has, and they are not so many.
    """
    there = read_state(folder).get("parameters", parameters)
    if there != parameters:
        raise UserError(
            f"{folder} holds a model of {there:,} parameters and this job's has {parameters:,}: keep model.* as they "
            "were, or give another run.dir"
        )


def restore(engine: Any, folder: Path) -> dict[str, Any]:
    """Load module and optimizer from a complete checkpoint; all ranks call it. Returns its state.

    From as many ranks at the same ZeRO stage (or at stage 0, where nothing is partitioned) all is bit-equal.

    Raises:
        UserError: its files are missing or do not fit the engine.
    """
    state = read_state(folder)
    layout = regroup.layout(engine.zero_optimization_stage())
    if regroup.layout_of(folder) != layout or (layout and state["ranks"] != ranks()):
        regroup.take_over(engine, folder, state["ranks"])
        return state
    together(lambda: regroup.check_files(folder))
    path, _ = engine.load_checkpoint(str(folder.parent), tag=folder.name, load_lr_scheduler_states=False)
    if path is None:
        raise UserError(f"{folder} holds no DeepSpeed checkpoint that this engine can load")
    return state


def agree_on_newest(run_dir: str | Path) -> Path | None:
    """The checkpoint to go on from, as rank 0 sees it."""
    chosen: list[Any] = [str(newest(run_dir) or "")] if rank() == 0 else [None]
    if ranks() > 1:
        dist.broadcast_object_list(chosen, src=0)
    return Path(chosen[0]) if chosen[0] else None


def whole_weights(engine: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(name -> float32 tensor on the CPU, tied name -> the name it is stored under), filled on rank 0 only.

    All ranks call it: under ZeRO the float32 weights are spread over them.
    """
    from deepspeed.utils import safe_get_full_fp32_param

    weights: dict[str, Tensor] = {}
    first_name: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in engine.module.named_parameters(remove_duplicate=False):
        if id(parameter) in first_name:
            tied[name] = first_name[id(parameter)]
            continue
        first_name[id(parameter)] = name
        full = (
            safe_get_full_fp32_param(parameter)
            if hasattr(parameter, "_hp_mapping") or hasattr(parameter, "ds_id")
            else None
        )
        if rank() == 0:
            source = parameter.detach() if full is None else full
            weights[name] = source.float().cpu().clone().contiguous()
    return weights, tied


def barrier() -> None:
    """Wait for all ranks."""
    if ranks() > 1:
        dist.barrier()


def _flush(folder: Path) -> None:
    """To disk, so that the rename never overtakes the contents."""
    for path in [*folder.rglob("*"), folder, folder.parent]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _write_pointer(root: Path, name: str) -> None:
    pointer = root / "latest.incomplete"
    pointer.write_text(name + "\n", encoding="utf-8")
    pointer.replace(root / "latest")


def _remove_old(root: Path, keep: int) -> None:
    complete = sorted(folder for folder in root.glob("step-*") if _NAME.fullmatch(folder.name))
    for folder in [*complete[: -max(keep, 1)], *root.glob("incomplete-*")]:
        shutil.rmtree(folder, ignore_errors=True)
