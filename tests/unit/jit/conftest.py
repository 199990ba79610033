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


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a compiler that does what the file beside it says before it builds.

    It is one for all tests: a process asks each compiler what it is, in a dozen starts.
    """
    wrapper = tmp_path_factory.mktemp("compiler") / "stand-in-c++"
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" -o "*) . {wrapper.parent}/before.sh;; esac\nexec c++ "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


@pytest.fixture
def before_builds(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Compile with a compiler that does this, in a shell, before each build."""

    def do(script: str) -> None:
        stand_in.with_name("before.sh").write_text(f"{script}\n")
        monkeypatch.setenv("BRINGUP_JIT_CXX", str(stand_in))

    return do


@pytest.fixture
def counted(tmp_path: Path, before_builds: Callable[[str], None]) -> Callable[[], int]:
    """Compile with a compiler that notes each build; return what says how many there were."""
    notes = tmp_path / "builds"
    before_builds(f"echo build >> {notes}")
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
    """CUDA's compiler for device code; without it nvcc takes its place."""
    _need("cuda", "device")
    if not jit.toolchain("cuda", kind="device").version.startswith("NVRTC"):
        pytest.skip("there is no NVRTC")


@pytest.fixture(autouse=True)
def no_private_cache() -> Iterator[None]:
    """What one test had to build privately is not found by the next one."""
    yield
    active_cache.private_cache.cache_clear()
    active_cache.warn_private.cache_clear()
