"""docs/design/layout.md: the folders are those of its tree, and the engine's include downwards.
CONTRIBUTING's rule for the size of functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


@pytest.mark.parametrize("package", ["jit", "ops", "passes"])
def test_the_docstring_of_a_package_lists_its_folders_in_their_order(package: str) -> None:
    init = ast.parse((REPOSITORY / "src/bringup" / package / "__init__.py").read_text())
    assert re.findall(r"^- `(\w+)`:", ast.get_docstring(init) or "", re.MULTILINE) == TREE[package]


def test_the_statements_of_a_function_fit_on_a_screen() -> None:
    long = [
        f"{path.relative_to(REPOSITORY)}: {node.name}"
        for path in (REPOSITORY / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for body in [node.body[ast.get_docstring(node) is not None :] or node.body]
        if (body[-1].end_lineno or 0) - body[0].lineno > 54
    ]
    assert long == []


PUBLIC_MODULES = {
    "errors.py",
    "plugins.py",
    "compiler/aten.py",
    "devices/sim.py",
    "passes/host.py",
}


def test_a_module_below_a_package_lists_no_names_of_its_own() -> None:
    sources = REPOSITORY / "src/bringup"
    lists = set()
    for path in sources.rglob("*.py"):
        tree = ast.parse(path.read_text())
        handed_on = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        for node in tree.body if path.name != "__init__.py" else []:
            if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != "__all__":
                continue
            if not handed_on & set(ast.literal_eval(node.value)):
                lists.add(path.relative_to(sources).as_posix())
    assert lists == PUBLIC_MODULES


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


def private_names(path: Path) -> Iterator[str]:
    """Where a file takes a name of bringup, or a member of what it got from there, that begins with
    an underscore. Modules that do are those of a flat package, which are for the tests of that
    package.
    """
    tree = ast.parse(path.read_text())
    ours: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bringup":
            ours.update(alias.asname or alias.name for alias in node.names)
            folder = REPOSITORY / "src" / str(node.module).replace(".", "/")
            for alias in node.names:
                is_module = (folder / f"{alias.name}.py").exists() or (folder / alias.name).is_dir()
                is_ours = (node.module or "bringup").split(".")[-1] in path.parts
                if is_private(alias.name) and not (is_module and (is_ours or alias.name in SHARED)):
                    yield f"{path.name}:{node.lineno}: {alias.name} of {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root: ast.expr = node.value
            while isinstance(root, (ast.Attribute, ast.Call, ast.Subscript)):
                root = root.func if isinstance(root, ast.Call) else root.value
            if isinstance(root, ast.Name) and root.id in ours and node.attr not in SHARED:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr":
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            for name in names:
                if isinstance(name, str) and is_private(name.rpartition(".")[2]):
                    yield f"{path.name}:{node.lineno}: {name}"


SHARED = {"_native", "_core", "_build", "_find", "_manifest", "_after_import"}
"""Modules without a public package around them."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_no_test_takes_private_names_of_bringup() -> None:
    paths = [path for path in (REPOSITORY / "tests").rglob("*.py") if path != Path(__file__)]
    assert [found for path in paths for found in private_names(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "from bringup.jit.lookup.compilation import _known",
        "from bringup.jit.lookup import compilation\ncompilation._known",
        "from bringup.graphs import _handlers",
        "from bringup import jit\njit.targets()['cpu']._known",
        "monkeypatch.setattr(target, '_known', None)",
        "monkeypatch.setattr('bringup.jit.target.cuda._known', None)",
    ],
)
def test_a_private_name_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert len(list(private_names(path))) == 1


# Which package the native code of a folder belongs to.
NATIVE_PACKAGES = {
    "native/torch/graphs": "graphs",
    "native/python": "ir",
    "native/torch/module.cpp": "_native",
}


def imports_by_string() -> Iterator[tuple[str, str]]:
    """Yield who imports a package of bringup by its name in a string, and which one it is."""
    for path in (REPOSITORY / "src/bringup").rglob("*.py"):
        owner = path.relative_to(REPOSITORY / "src/bringup").parts[0].removesuffix(".py")
        for found in re.finditer(
            r'(?:import_module|__import__)\(f?"bringup\.(\w+)', path.read_text()
        ):
            yield owner, found[1]
    for path in (REPOSITORY / "native").rglob("*.[ch]*"):
        name = path.relative_to(REPOSITORY).as_posix()
        for found in re.finditer(
            r'(?:import_|ImportModule)\("bringup\.(\w+)', path.read_text(errors="replace")
        ):
            owners = [pk for start, pk in NATIVE_PACKAGES.items() if name.startswith(start)]
            yield (owners or [name])[0], found[1]


def test_what_is_imported_by_a_string_lies_in_the_same_package_or_below() -> None:
    """Which import-linter does not see. A start of torch loads the devices (`_autoload`)."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    layers = re.findall(r'^    "(bringup\.[^"]*)",$', text[text.index("Arrows between") :], re.M)
    rows = {
        package.strip().removeprefix("bringup."): row
        for row, line in enumerate(layers)
        for package in line.split("|")
    }
    rows["_autoload"] = -1
    found = set(imports_by_string())
    assert len(found) > 3
    assert {
        edge for edge in found if edge[0] != edge[1] and rows[edge[0]] >= rows[edge[1]]
    } == set()
