"""What every test shares: a kernel cache of its own, so that no test reads or fills the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The session's kernel cache; processes that a test starts inherit it."""
    folder = tmp_path_factory.mktemp("kernel-cache")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRINGUP_CACHE_DIR", str(folder))
        environment.setenv("BRINGUP_JIT_AUTOTUNE", "0")
        environment.setenv("BRINGUP_JIT_PROGRESS", "0")  # a slow machine would say more on stderr
        yield folder
