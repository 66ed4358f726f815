"""Nothing asks a model hub and no library phones home: set before any of them is imported."""

from __future__ import annotations

import os

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "TOKENIZERS_PARALLELISM": "false",  # its threads do not survive the fork of loader workers, and it warns about that
}


def stay_offline() -> None:
    """Put the settings in the environment where the user has not set them."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
