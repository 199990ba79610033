"""Packages whose names are imported when they are asked for."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("bringup.jit", "bringup.ops")
ALL = (*PACKAGES, "bringup.compiler", "bringup.devices", "bringup.kernels", "bringup.passes")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_that_a_package_offers_is_found(package: str) -> None:
    """In a new process, where nothing has been asked for yet."""
    program = (
        f"import {package} as package\n"
        "assert dir(package) == sorted(package.__all__)\n"
        "print([name for name in package.__all__ if not hasattr(package, name)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_a_package_does_not_offer_is_an_attribute_error(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'kernal_op'"):
        module.kernal_op  # noqa: B018


def test_a_name_that_was_patched_stays_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    from bringup import jit

    monkeypatch.setattr(jit, "prebuild", "patched")
    assert jit.prebuild == "patched"
    monkeypatch.undo()
    assert callable(jit.prebuild)


@pytest.mark.parametrize(("package", "name"), [("bringup.jit", "tune"), ("bringup.ops", "adopt")])
def test_a_name_is_looked_up_once(package: str, name: str) -> None:
    module = importlib.import_module(package)
    found = getattr(module, name)
    assert vars(module)[name] is found


@pytest.mark.parametrize("package", ALL)
def test_what_a_type_checker_sees_is_what_is_found(package: str) -> None:
    """The imports for types, `__all__`, and the modules that names come from."""
    module = importlib.import_module(package)
    parsed = ast.parse(Path(str(module.__file__)).read_text())
    found = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in ast.walk(parsed)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    defined = {node.name for node in parsed.body if isinstance(node, ast.FunctionDef)}
    above = {"Operator", "OperatorKernel", "OperatorTable", "POINTWISE"}
    above |= {"kernel", "pointwise_kernels"}
    loaded_from_above = above if package == "bringup.devices" else set()
    assert set(module.__all__) - defined - loaded_from_above <= set(found)
    for name in set(module.__all__) & set(found):
        owner, original = found[name]
        assert getattr(module, name) is getattr(importlib.import_module(owner), original)


@pytest.mark.parametrize("package", ["bringup", "bringup.compiler.onnx", *ALL])
def test_a_type_checker_sees_no_names_but_those(package: str) -> None:
    """A `__getattr__` that it saw would make every misspelled name one of the package."""
    text = Path(str(importlib.import_module(package).__file__)).read_text()
    assert re.search(r"^(def )?__getattr__\b", text, re.MULTILINE) is None
