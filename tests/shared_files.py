"""The project's shared folder of real data and numbers, where a checkout has one beside it."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared(*parts: str) -> Path:
    """A path inside the shared folder; the test is skipped, and says so, where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no shared folder beside this checkout: {'/'.join(parts)} is not here")
    return path
