"""Which attributes torch reads off a device module, found in the syntax trees of its sources.

A module is what `getattr(torch, <not a constant>)` gives, what torch's own functions return
(`torch.get_device_module`, `_get_device_handle`, ...), and every name or attribute that such a
value is assigned to in the same file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

__all__ = ["Read", "all_reads"]

_GIVES_MODULE = {"get_device_module", "_get_device_module", "_get_device_handle", "from_device"}
_NAMES_OF_MODULES = {"device_module", "device_mod", "custom_device_mod", "device_handle"}
_NAMES_OF_MODULES |= {f"_{name}" for name in _NAMES_OF_MODULES}
_WORTH_PARSING = re.compile(
    r"getattr\(\s*torch,\s*[^\"'\s]|device_mod|device_handle|_get_device_attr|_get_custom_mod_func"
)
_NAMES_A_DEVICE = re.compile(r"device|backend|accelerator|\bacc\b", re.IGNORECASE)


@dataclass(frozen=True)
class Read:
    """One place that reads an attribute; `name` is None where the text does not say which."""

    name: str | None
    place: str
    text: str


def all_reads() -> Iterator[Read]:
    """Every read in the installed torch, its tests' support left out."""
    root = Path(torch.__file__).parent
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if place.startswith("testing/"):
            continue
        text = path.read_text(errors="replace")
        if _WORTH_PARSING.search(text):
            yield from _File(ast.parse(text), place).reads()


class _File:
    def __init__(self, tree: ast.Module, place: str) -> None:
        self.nodes = list(ast.walk(tree))
        self.place = place
        self.modules = set(_NAMES_OF_MODULES)
        self.strings: dict[str, set[str]] = {}
        # `__getattr__(self, name)` hands on what somebody else reads, whatever else is called name
        self.handed_on = {
            inner
            for node in self.nodes
            if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"
            for inner in ast.walk(node)
        }
        for _ in range(2):  # a name may be assigned from one that is assigned further down
            for node in self.nodes:
                self._learn(node)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assigned(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._assigned(node.target, node.value)
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Name | ast.List | ast.Tuple):
            self._assigned(node.target, node.iter)

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        name = _name(target)
        if name is None:
            return
        if self._is_module(value):
            self.modules.add(name)
        if strings := self._strings(value):
            self.strings.setdefault(name, set()).update(strings)

    def _strings(self, node: ast.expr) -> set[str]:
        """The names that an expression may stand for."""
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else set()
        if isinstance(node, ast.List | ast.Tuple):
            return {text for element in node.elts for text in self._strings(element)}
        return self.strings.get(node.id, set()) if isinstance(node, ast.Name) else set()

    def _is_module(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name | ast.Attribute):
            return _name(node) in self.modules
        if isinstance(node, ast.IfExp):
            return self._is_module(node.body) or self._is_module(node.orelse)
        if not isinstance(node, ast.Call):
            return isinstance(node, ast.NamedExpr) and self._is_module(node.value)
        called = _name(node.func)
        if called == "getattr" and len(node.args) > 1 and ast.unparse(node.args[0]) == "torch":
            asked = node.args[1]
            return not isinstance(asked, ast.Constant) and bool(
                _NAMES_A_DEVICE.search(ast.unparse(asked))
            )
        return called in _GIVES_MODULE

    def reads(self) -> Iterator[Read]:
        for node in self.nodes:
            if isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Load) and self._is_module(node.value):
                    yield self._read(node.attr, node)
            elif isinstance(node, ast.Call):
                yield from self._read_by_name(node)

    def _read_by_name(self, call: ast.Call) -> Iterator[Read]:
        called = _name(call.func)
        if called in ("getattr", "hasattr") and len(call.args) > 1:
            if self._is_module(call.args[0]):
                names = set() if call in self.handed_on else self._strings(call.args[1])
                for name in sorted(names) or [None]:
                    yield self._read(name, call)
        elif called == "_get_custom_mod_func" and call.args:
            for name in sorted(self._strings(call.args[0])):
                yield self._read(name, call)
        elif called == "_get_device_attr" and call.args and isinstance(call.args[0], ast.Lambda):
            module = call.args[0].args.args[0].arg
            for node in ast.walk(call.args[0].body):
                if isinstance(node, ast.Attribute) and _name(node.value) == module:
                    yield self._read(node.attr, node)

    def _read(self, name: str | None, node: ast.expr) -> Read:
        return Read(name, f"{self.place}:{node.lineno}", ast.unparse(node))


def _name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None
