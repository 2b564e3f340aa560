"""A data set of 24 small samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from libhelix.index.build import build
from tests.system.conftest import _own_cache, job  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 24 texts; tests take their numbers only."""
    folder = tmp_path_factory.mktemp("numbers")
    for i in range(24):
        (folder / f"{i:02}.txt").write_text(f"text {i}")
    path = folder / "numbers.arrow"
    build([folder], path)
    return path
