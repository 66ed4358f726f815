"""DeepSpeed's own files, read without running anything that they name."""

from __future__ import annotations

from typing import Any

import torch


def load_tensors(path: str, map_location: Any = None, mmap: bool = False) -> Any:
    """One of DeepSpeed's own files, unpickling nothing but tensors and the few plain classes that it stores.

    Takes the place of the engine's reader, which would run whatever code the file names. mmap: tensors are mapped, and
    read where they are looked at.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    with torch.serialization.safe_globals([LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]):
        return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
