"""Public docstrings say what a caller has to know: arguments, what is returned, errors, an example.

Every parameter and field and every error that the body raises is named; what is not None is said
to be returned. An example uses a public function or class: `>>>` lines of a docstring, which run
here and have `torch`, or a Python block of a page, which runs in test_fenced_blocks.py; the name's
page of the site leads there.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from tests.forked_python import output_of
from tools.docs_site import PACKAGES, docstring_examples, examples, names

from bringup import ir

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


def _public_objects() -> Iterator[tuple[str, Any]]:
    """Name and value of each public function and class of the kit's own."""
    for package in (*PACKAGES, "bringup.settings"):
        for name in names(package):
            item = getattr(importlib.import_module(package), name)
            is_callable = inspect.isclass(item) or inspect.isfunction(item)
            if is_callable and item.__module__.startswith("bringup"):
                yield f"{package}.{name}", item


def _public_callables() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Name, function and docstring of each callable that is public, methods among them."""
    for exported, item in _public_objects():
        if inspect.isfunction(item):
            yield exported, item, item.__doc__ or ""
        elif inspect.isclass(item) and not issubclass(item, enum.Enum):
            for name, function in _members(item):
                yield f"{exported}.{name}", function, _documentation(item, name)


def _is_named_only(item: Any) -> bool:
    """Whether nobody calls it: errors are raised, choices are named, records only have fields."""
    if not inspect.isclass(item):
        return False
    is_record = dataclasses.is_dataclass(item) and not any(_members(item))
    return is_record or issubclass(item, (BaseException, enum.Enum))


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


# A decorated generator gives its context nothing; a builder's method its own object.
_NOTHING = {"None", "NoReturn", "Iterator[None]", "Generator[None]", "Self"}


def _fields(item: type) -> list[str]:
    """The public fields that a call of a dataclass or named tuple may give."""
    if dataclasses.is_dataclass(item):
        names = [field.name for field in dataclasses.fields(item) if field.init]
    else:
        names = list(getattr(item, "_fields", ()))
    return [name for name in names if not name.startswith("_")]


def _words_of(item: type) -> str:
    """The docstrings of a class and of those it inherits from, without examples."""
    docs = [base.__doc__ or "" for base in item.__mro__ if base.__module__.startswith("bringup")]
    return "\n".join(doc.partition("Examples:")[0] for doc in docs)


def _returns_something(function: Callable[..., Any]) -> bool:
    returned = inspect.signature(inspect.unwrap(function)).return_annotation
    return returned is not None and str(returned) not in _NOTHING


def _gaps(function: Callable[..., Any], doc: str) -> list[str]:
    """What the docstring leaves unsaid: parameters that it does not name, returns and errors."""
    parameters = list(inspect.signature(function).parameters.values())
    missing = [
        f"parameter {parameter.name}"
        for parameter in parameters
        if parameter.name not in ("self", "cls")
        and not parameter.name.startswith("_")
        and parameter.kind not in _FORWARDED
        and not _has_word(doc, parameter.name)
    ]
    if _returns_something(function) and not re.search(r"\b(return|yield)s?\b", doc, re.IGNORECASE):
        missing.append("returns")
    return missing + [
        f"raises {error}"
        for error in sorted(set(_own_raises(function)))
        if error[:1].isupper()
        and not any(_has_word(doc, name) for name in _names_of_error(function, error))
    ]


def _undocumented(item: Any) -> Iterator[str]:
    """What has no docstring: the item, or a public function or property that its class defines."""
    if not item.__doc__ and not issubclass(type(item), enum.EnumMeta):
        yield "docstring"
    for name, member in vars(item).items() if inspect.isclass(item) else ():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        is_ours = inspect.isfunction(function) and function.__module__.startswith("bringup")
        if is_ours and not name.startswith("_") and not inspect.getdoc(getattr(item, name)):
            yield f"docstring of {name}"


def unsaid() -> dict[str, list[str]]:
    """What each public name lacks, by name."""
    found = {name: _gaps(function, doc) for name, function, doc in _public_callables()}
    for name, item in _public_objects():
        found.setdefault(name, []).extend(_undocumented(item))
        if not (_is_named_only(item) or name in examples() or any(docstring_examples(item))):
            found.setdefault(name, []).append("example")
        if inspect.isclass(item):
            words = _words_of(item)
            lacking = [field for field in _fields(item) if not _has_word(words, field)]
            found.setdefault(name, []).extend(f"field {field}" for field in lacking)
    return {name: gaps for name, gaps in sorted(found.items()) if gaps}


def test_public_docstrings_say_what_a_caller_has_to_know() -> None:
    missing = [f"{name}: {gap}" for name, gaps in unsaid().items() for gap in gaps]
    assert not missing, "\n".join(["say it in the docstring:", *missing])


# One program for all, since a start costs more than an example.
PROGRAM = """
import doctest, json, sys, torch
failed = 0
for name, text in json.loads(sys.argv[1]):
    test = doctest.DocTestParser().get_doctest(text, {'torch': torch}, name, name, 0)
    failed += doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed
sys.exit(failed)
"""


def test_examples_of_docstrings_run() -> None:
    found = [(name, text) for name, item in _public_objects() for text in docstring_examples(item)]
    assert len(found) > 15
    output_of(PROGRAM, json.dumps(found))


def test_a_docstring_that_says_nothing_has_every_gap() -> None:
    def function(size: int) -> int:
        """Do it."""
        if size < 0:
            raise ValueError("size")
        return size

    said = "Return `size` again, or raise ValueError."
    assert _gaps(function, function.__doc__ or "") == [
        "parameter size",
        "returns",
        "raises ValueError",
    ]
    assert _gaps(function, said) == []


def test_a_class_and_a_member_without_a_docstring_lack_it() -> None:
    class Bare:
        def run(self) -> None: ...

        @property
        def size(self) -> int:
            return 0

        def told(self) -> None:
            """Do it."""

    for function in (Bare.run, vars(Bare)["size"].fget, Bare.told):
        function.__module__ = "bringup"
    found = list(_undocumented(Bare))
    assert found == ["docstring", "docstring of run", "docstring of size"]


def test_a_record_that_does_not_name_a_field_lacks_it() -> None:
    @dataclasses.dataclass
    class Record:
        """It has a `size`."""

        size: int
        name: str

    Record.__module__ = "bringup"
    assert _fields(Record) == ["size", "name"]
    assert [_has_word(_words_of(Record), field) for field in _fields(Record)] == [True, False]
