"""A kernel cache for one test, empty at its start, a source, a compiler that counts, and targets
that have to be there for a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from tests.unit.jit.support import ADD

from bringup import jit
from bringup.jit.store import active_cache


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
def source(tmp_path: Path, request: pytest.FixtureRequest) -> jit.Source:
    """A kernel that is no other test's: a process loads a kernel once, whichever cache holds it."""
    path = tmp_path / "source" / "add.cpp"
    path.parent.mkdir()
    path.write_text(f"{ADD}// {request.node.name}\n")
    return jit.Source(path)


def _need(target: str, kind: Literal["host", "device"] = "host") -> None:
    """Skips a test where the target has no compiler, with the command that gets it."""
    if problem := jit.toolchain(target, kind=kind).problem:
        pytest.skip(problem)


@pytest.fixture(scope="session")
def aarch64(kernel_cache: Path) -> None:
    """The cross compiler for aarch64."""
    _need("aarch64")


@pytest.fixture(scope="session")
def nvcc(kernel_cache: Path) -> None:
    """CUDA's compiler for host entries."""
    _need("cuda")


@pytest.fixture(scope="session")
def nvrtc(kernel_cache: Path) -> None:
    """CUDA's compiler for device code."""
    _need("cuda", "device")


@pytest.fixture(autouse=True)
def no_private_cache() -> Iterator[None]:
    """What one test had to build privately is not found by the next one."""
    yield
    active_cache.private_cache.cache_clear()
    active_cache.warn_private.cache_clear()
