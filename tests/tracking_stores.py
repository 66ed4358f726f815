"""MLflow stores for tests: an SQLite store takes seconds to set up, so one is made a session and its file copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from erica_dist.tracking import store


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an SQLite store without experiments of ours."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    store.connect(f"sqlite:///{path}")
    return path


@pytest.fixture
def store_uri(empty_store: Path, tmp_path: Path) -> str:
    """The URI of a fresh SQLite store, `mlflow.db` in `tmp_path`: what a run folder `tmp_path/NAME` is tracked in."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"
