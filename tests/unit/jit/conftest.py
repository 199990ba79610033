"""A kernel cache for one test, empty at its start, a source, and a compiler that counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD

from bringup import jit


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test's own cache; it is made when it is needed."""
    root = tmp_path / "cache"
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
    return root


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A compiler that notes each build; how many there were so far."""
    notes = tmp_path / "builds"
    wrapper = tmp_path / "counting-c++"
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" -o "*) echo build >> {notes};; esac\nexec c++ "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))
    return lambda: len(notes.read_text().splitlines()) if notes.exists() else 0


@pytest.fixture
def source(tmp_path: Path) -> jit.Source:
    path = tmp_path / "source" / "add.cpp"
    path.parent.mkdir()
    path.write_text(ADD)
    return jit.Source(path)
