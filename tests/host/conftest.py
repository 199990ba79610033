"""The host program, built once, and files with passes for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.host.programs import STAGE, Passes, built


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, watched by sanitizers where the libraries are."""
    sanitize = () if STAGE is None else ("-DSANITIZE=address,undefined",)
    return built(tmp_path_factory.mktemp("host"), *sanitize)


@pytest.fixture
def passes_file(tmp_path: Path) -> Passes:
    """Writes a file with passes; its path."""

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write
