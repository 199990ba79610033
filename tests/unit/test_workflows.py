"""What .github and .pre-commit-config.yaml name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [ROOT / ".pre-commit-config.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]
WORDS = "\n".join(file.read_text() for file in FILES)


def test_they_name_targets_of_make_and_files_that_exist() -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = set(re.findall(r"\bmake ([a-z-]+)", WORDS))
    files = set(re.findall(r"(?:\.ci|\.github|docs|tests|tools)/[\w./-]+", WORDS))
    assert targets
    assert targets <= rules
    assert len(files) >= 5
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_a_release_has_a_wheel_for_every_python_of_the_package_and_the_torch_that_it_is_for() -> (
    None
):
    project = (ROOT / "pyproject.toml").read_text()
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    minors = re.findall(r"Python :: 3\.(\d+)", project)
    assert len(minors) >= 4
    assert set(minors) <= set(re.findall(r"cp3(\d+)", release))
    (torch,) = set(re.findall(r'"torch==([\d.]+)"', project))
    assert set(re.findall(r"torch==([\d.]+)", release)) == {torch}
