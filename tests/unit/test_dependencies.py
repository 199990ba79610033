"""What the package imports is what it says that it needs."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Names of modules that are not those of their distributions.
MODULES = {"cuda_core": "cuda", "cuda_bindings": "cuda", "apache_tvm_ffi": "tvm_ffi"}
# torch needs them itself, and only what needs torch imports them; `google` is onnx's protobuf.
INDIRECT = {"bringup", "google", "sympy", "typing_extensions"}


def declared() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text()
    project = text[text.index("dependencies = [") : text.index("[dependency-groups]")]
    names = re.findall(r'"([A-Za-z][\w-]*)[^"]*"', project)
    return {MODULES.get(n.replace("-", "_"), n.replace("-", "_")) for n in names}


def imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_every_import_is_of_a_declared_dependency() -> None:
    files = sorted((ROOT / "src" / "bringup").rglob("*.py"))
    known = declared() | INDIRECT | set(sys.stdlib_module_names)
    undeclared = {f"{f.name}: {name}" for f in files for name in imported(f) - known}
    assert len(files) > 100
    assert undeclared == set()
