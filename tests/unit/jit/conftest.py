"""A kernel cache for one test, empty at its start."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test's own cache; it is made when it is needed."""
    root = tmp_path / "cache"
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
    return root
