"""The blocks of docs/devices/opencl.md, where the package is installed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.docs.test_fenced_blocks import blocks
from tests.forked_python import output_of
from tests.opencl.conftest import ROOT, SOURCES

PAGE = ROOT / "docs" / "devices" / "opencl.md"
PROGRAMS = [(line, text) for line, language, text in blocks(PAGE) if language == "python"]


@pytest.fixture(scope="module")
def installed(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and what its wheel says of it."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(SOURCES / "bringup_opencl", folder / "bringup_opencl")
    shutil.copy(library, folder / "bringup_opencl")
    metadata = folder / "bringup_opencl-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: bringup-opencl\nVersion: 0.1\n"
    )
    project = (ROOT / "drivers/opencl/pyproject.toml").read_text()
    groups = project.split("[project.entry-points.")[1:]
    lines = (group.split("\n[", 1)[0].replace('"', "") for group in groups)
    (metadata / "entry_points.txt").write_text("\n".join(f"[{group}" for group in lines))
    return folder


@pytest.mark.parametrize(("line", "text"), PROGRAMS, ids=lambda value: str(value)[:4])
def test_a_block_of_the_page_runs(installed: Path, line: int, text: str) -> None:
    begin = f"import sys\nsys.path.insert(0, {str(installed)!r})\n"
    end = "\nimport torch\nprint(torch.ones(1, device='ocl').device)"
    path = os.pathsep.join([str(installed), *sys.path])
    said = output_of(begin + text + end, PYTHONPATH=path, BRINGUP_OPENCL_MEMORY="coarse")
    assert said == "ocl:0"
