"""docs/design/layout.md: the folders are those of its tree, and the engine's include downwards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TREE = {
    package: folders.split()
    for package, folders in re.findall(
        r"^ {4}(\S+)/ +(\S.*)$", (REPOSITORY / "docs/design/layout.md").read_text(), re.MULTILINE
    )
}
ENGINE = REPOSITORY / "native/engine"


def folders_in(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir() if any(entry.glob("*.py"))}


@pytest.mark.parametrize("package", ["jit", "ops", "passes"])
def test_the_folders_of_a_package_are_those_of_the_tree(package: str) -> None:
    assert folders_in(REPOSITORY / "src/bringup" / package) == set(TREE[package])


@pytest.mark.parametrize("package", ["jit", "ops", "passes"])
def test_the_folders_of_a_packages_tests_have_names_of_the_tree(package: str) -> None:
    assert folders_in(REPOSITORY / "tests/unit" / package) <= set(TREE[package])


def test_a_folder_of_the_engine_includes_only_those_before_it() -> None:
    order = TREE["native/engine"]
    assert {header.parent.name for header in ENGINE.rglob("*.h")} == set(order)
    upwards = [
        f"{source.relative_to(ENGINE)} includes {included}"
        for source in ENGINE.rglob("*")
        if source.suffix in {".h", ".cpp"} and source.parent.name in order
        for included in re.findall(r'#include "engine/(\w+/\w+)\.h"', source.read_text())
        if order.index(included.partition("/")[0]) > order.index(source.parent.name)
    ]
    assert upwards == []
