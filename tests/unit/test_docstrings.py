"""Docstrings begin with a verb; public ones name every parameter and every error that is raised."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bringup
from bringup import ir

PACKAGES = (
    "compiler",
    "conformance",
    "devices",
    "graphs",
    "ir",
    "jit",
    "kernels",
    "ops",
    "passes",
    "plugins",
    "report",
    "settings",
)

# Callables that do not yet keep the rule, by package. The sets only shrink: the test fails where a
# name here keeps it.
KNOWN: dict[str, frozenset[str]] = {
    "ir": frozenset(
        (
            "AliasAnalysis.__init__",
            "Graph.add_constant",
            "Graph.insert",
            "Graph.insert_call",
            "Graph.insert_as_is",
            "GraphBuilder.one_of",
            "Node.set_attr",
            "Operator.index_of",
            "Shape.same_as",
            "SymbolicDim.__init__",
            "TensorConstraint.of",
            "TensorConstraint.joined",
            "TensorHolder.__init__",
            "node_text",
        )
    ),
    "jit": frozenset(
        (
            "AscendTarget.__init__",
            "Cache.export_bundle",
            "Cache.import_bundle",
            "Cache.recall",
            "Cache.keep",
            "Cache.lookup",
            "Cache.lookup_portable",
            "Cache.note_call",
            "Cache.publish",
            "Cache.add_portable",
            "Cache.verified",
            "CudaTarget.__init__",
            "Memo.keep",
            "Params.of_call",
            "Params.of_key",
            "Params.spec",
            "Spec.of",
            "Template.error",
            "Template.compile",
            "Template.load",
            "TritonTarget.__init__",
            "use_bundle",
        )
    ),
    "ops": frozenset(
        (
            "AdoptedOperator.register_kernel",
            "AdoptedOperator.register_backward",
            "CustomOpHandle.__init__",
            "CustomOperator.__init__",
            "InputConstraint.bind",
            "OutputRule.bind",
        )
    ),
    "passes": frozenset(
        (
            "MatchResult.__init__",
            "PatternInputs.__init__",
        )
    ),
}

_FORWARDED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _is_documented_here(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _members(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that the class itself defines, generated ones left out."""
    for name, member in vars(owner).items():
        function = getattr(member, "__func__", member)
        generated = name == "__init__" and dataclasses.is_dataclass(owner)
        own = inspect.isfunction(function) and function.__module__.startswith("bringup")
        if own and _is_documented_here(name) and not generated:
            yield name, function


def _documentation(owner: type, name: str) -> str:
    """What a reader of the method finds: its docstring, and those of the methods it implements.

    An implementation of `ir.Dialect` says "See `ir.Dialect.<name>`", or names the protocol alone,
    whose docstring lists what a dialect may have besides.
    """
    if name == "__init__":
        return f"{owner.__doc__ or ''}\n{vars(owner)[name].__doc__ or ''}"
    found = "\n".join(
        vars(base)[name].__doc__ or "" for base in owner.__mro__ if name in vars(base)
    )
    if re.search(r"See `(ir\.)?Dialect", found):
        found += getattr(ir.Dialect, name, ir.Dialect).__doc__ or ""
    return found


def _public_callables(package: str) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Name, function and docstring of each callable that the package exports."""
    module = importlib.import_module(f"bringup.{package}")
    for exported in module.__all__:
        item = getattr(module, exported)
        if inspect.isclass(item):
            if not item.__module__.startswith("bringup") or issubclass(item, enum.Enum):
                continue
            for name, function in _members(item):
                yield f"{exported}.{name}", function, _documentation(item, name)
        elif inspect.isfunction(item):
            yield exported, item, item.__doc__ or ""


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w]){re.escape(word)}(?!\w)", text) is not None


def _own_raises(function: Callable[..., Any]) -> Iterator[str]:
    """The names in `raise Name(...)` of the function's own body, nested functions left out."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    waiting: list[ast.AST] = list(getattr(tree.body[0], "body", []))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield ast.unparse(node.exc.func).rpartition(".")[2]
        waiting.extend(ast.iter_child_nodes(node))


def _names_of_error(function: Callable[..., Any], name: str) -> list[str]:
    """The error's own name and those of its bases, without the roots that say nothing."""
    error = inspect.unwrap(function).__globals__.get(name) or getattr(
        importlib.import_module("builtins"), name, None
    )
    if not inspect.isclass(error):
        return [name]
    return [
        base.__name__ for base in error.__mro__ if base not in (Exception, BaseException, object)
    ]


def _gaps(function: Callable[..., Any], doc: str) -> list[str]:
    """What the docstring leaves unsaid: parameters it does not name, and errors."""
    parameters = list(inspect.signature(function).parameters.values())
    missing = [
        f"parameter {parameter.name}"
        for parameter in parameters
        if parameter.name not in ("self", "cls")
        and not parameter.name.startswith("_")
        and parameter.kind not in _FORWARDED
        and not _has_word(doc, parameter.name)
    ]
    return missing + [
        f"raises {error}"
        for error in sorted(set(_own_raises(function)))
        if error[:1].isupper()
        and not any(_has_word(doc, name) for name in _names_of_error(function, error))
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_public_docstrings_name_every_parameter_and_raised_error(package: str) -> None:
    gaps = {
        name: found
        for name, function, doc in _public_callables(package)
        if (found := _gaps(function, doc))
    }
    known = KNOWN.get(package, frozenset())

    unsaid = [f"{name}: {', '.join(found)}" for name, found in gaps.items() if name not in known]
    assert not unsaid, "\n".join(unsaid)
    assert not known - gaps.keys(), "these keep the rule now: take them out of KNOWN"


# How a docstring begins that says what a function is, not what it does.
NO_VERB = re.compile(
    "(A|All|An|Any|Each|Every|Everything|How|None|One|The|What|Where|Whether|Which|Whose|Why)[,:;]?"
    "|(?!This)[A-Z][a-z]+[^s]s"
)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_docstrings_begin_with_a_verb(package: str) -> None:
    found = {
        name
        for name, function, _ in _public_callables(package)
        if name.rpartition(".")[2] != "__init__"
        for word in (inspect.unwrap(function).__doc__ or "A").split()[:1]
        if NO_VERB.fullmatch(word)
    }
    assert found == set()


SOURCES = Path(bringup.__file__).parent


def first_words(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of each function of a file and the first word of its docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
            yield node.name, (ast.get_docstring(node) or "").split()[0]


def test_all_docstrings_of_functions_begin_with_a_verb() -> None:
    found = {
        path.relative_to(SOURCES).as_posix(): name
        for path in SOURCES.rglob("*.py")
        for name, word in first_words(path)
        if NO_VERB.fullmatch(word)
    }
    assert not found
