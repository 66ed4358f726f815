"""DeepSpeed around a module: precision, ZeRO stage and optimizer from the job, one engine and one optimizer.

The losses come here already divided by what the whole global batch holds, so the engine must neither divide by the
accumulation nor average over ranks: `backward` undoes both. The accumulation boundary is set by hand, since the trainer
may run more forward passes than backward passes.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from erica_dist.config import TrainConfig
from erica_dist.errors import UserError
from erica_dist.models.arithmetic import HALF, lacks
from erica_dist.objectives.gather import ranks
from erica_dist.training.native import prepare

CONFIGS = Path(__file__).resolve().parents[2] / "deepspeed_configs"


def device() -> torch.device:
    """The accelerator of this rank where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def start_process_group() -> None:
    """Join the job's ranks: NCCL on CUDA, gloo elsewhere. The environment names the rendezvous (training.cluster).

    Raises:
        UserError: the rendezvous cannot be reached or its port is taken.
    """
    on_cuda = device().type == "cuda"
    if not on_cuda:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # before DeepSpeed is imported: else it guesses, with a warning
    prepare()
    import deepspeed

    for name in ("DeepSpeed", "deepspeed"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # DeepSpeed calls collectives by names that torch has renamed: nothing a user can act on
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if on_cuda:
        torch.cuda.set_device(device())
    try:
        deepspeed.init_distributed(dist_backend="nccl" if on_cuda else "gloo", auto_mpi_discovery=False, verbose=False)
    except dist.DistNetworkError as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        reason = str(error).splitlines()[0]
        raise UserError(
            f"the ranks cannot meet at {place} ({reason}): if that port is in use, give another one "
            "(deepspeed --master_port, or MASTER_PORT in the environment)"
        ) from error


def build_engine(module: nn.Module, train: TrainConfig, accumulation: int) -> Any:
    """The DeepSpeed engine of `module`, on this rank's device."""
    import deepspeed

    from erica_dist.training.tensor_files import load_tensors

    optimizer = torch.optim.AdamW(
        _parameter_groups(module, train.weight_decay),
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        eps=train.epsilon,
        fused=device().type == "cuda",
    )
    engine, *_ = deepspeed.initialize(
        model=module.to(device()), optimizer=optimizer, config=engine_config(train, accumulation)
    )
    engine.checkpoint_engine.load = load_tensors
    return engine


def engine_config(train: TrainConfig, accumulation: int) -> dict[str, Any]:
    """The stage's JSON from deepspeed_configs/ (or `train.deepspeed_config`) with what the job decides filled in.

    Raises:
        UserError: no such file, no valid JSON, or the file sets what the job's configuration decides.
    """
    path = Path(train.deepspeed_config) if train.deepspeed_config else CONFIGS / f"zero{train.zero_stage}.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the DeepSpeed configuration {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is no valid JSON: {error}") from error
    if accumulation:
        sizes = (train.global_batch, train.micro_batch, accumulation)
    else:  # under a token budget they change from step to step; DeepSpeed must only know that gradients accumulate
        sizes = (2 * ranks(), 1, 2)
    batch_names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    decided = {
        **dict(zip(batch_names, sizes, strict=True)),
        "gradient_clipping": train.clip_norm,
        **_precision(train),
    }
    clash = sorted(set(config) & (set(decided) | {"optimizer", "scheduler", "bf16", "fp16"}))
    if clash:
        raise UserError(f"{path} sets {', '.join(clash)}: leave that to the job's train.* settings")
    return config | decided


def _precision(train: TrainConfig) -> dict[str, Any]:
    precision = train.precision
    if precision == "bf16" and device().type == "cuda" and not torch.cuda.is_bf16_supported():
        warnings.warn("this GPU has no bf16: training in fp32", stacklevel=2)
        precision = "fp32"
    if precision == "bf16":
        return {"bf16": {"enabled": True}}
    if precision == "fp16":
        return {"fp16": {"enabled": True}}
    return {}


def slow_precision(precision: str) -> str:
    """What to tell the user of a precision that this device has no arithmetic for; "" where it has."""
    if device().type != "cpu" or precision not in HALF or not lacks(HALF[precision]):
        return ""
    return f"this CPU has no {precision} arithmetic: products are taken in fp32 and rounded, no faster than fp32 itself"


def _parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay for matrices, none for biases and norms."""
    decayed = [p for p in module.parameters() if p.requires_grad and p.ndim > 1]
    plain = [p for p in module.parameters() if p.requires_grad and p.ndim <= 1]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def backward(engine: Any, loss: Tensor, last: bool) -> None:
    """Accumulate the gradient of this rank's share of one global loss; `last`: of the step's micro-batches."""
    engine.set_gradient_accumulation_boundary(last)
    engine.backward(loss * ranks(), scale_wrt_gas=False)


def optimizer_step(engine: Any, rate: float) -> tuple[float, bool]:
    """One optimizer step at learning rate `rate` -> (gradient norm before clipping, skipped for fp16 overflow)."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate
    norm = None if engine.zero_optimization_stage() else _plain_norm(engine)
    before = engine.skipped_steps
    engine.step()
    norm = norm if norm is not None else engine.get_global_grad_norm()
    return float(norm) if norm is not None else 0.0, engine.skipped_steps > before


def _plain_norm(engine: Any) -> Tensor | None:
    """Without ZeRO and in fp32 the engine reports no norm; its gradients are whole and reduced by now."""
    gradients = [p.grad for p in engine.module.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients) if gradients else None


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sums over ranks of a float64 vector."""
    if ranks() > 1:
        dist.all_reduce(values)
    return values


def seed_dropout(seed: int, step: int, cell: int) -> None:
    """Dropout masks of one micro-batch follow from (seed, step, its place in the global batch), whatever ran before.

    So a resumed run draws the same masks, and so does the second pass of the gradient cache.
    """
    torch.manual_seed(((seed * 1_000_003 + step) * 1_000_003 + cell) % (1 << 63))
