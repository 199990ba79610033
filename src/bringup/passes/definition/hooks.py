"""The forms in which a hook may be written, told apart once, when its class is defined.

Whatever its form, a session calls every hook as `hook(instance, subject, context)`; the subject is
the graph, the match or the node.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from bringup import ir
from bringup.passes.definition.context import PassContext
from bringup.passes.patterns.pattern import PatternInputs

Hook: TypeAlias = Callable[[Any, Any, PassContext], Any]


def _positional(cls: type, name: str) -> list[str]:
    """Return what a method is to be given, `*arguments` as `*`, or raise `TypeError`."""
    where = f"{cls.__qualname__}.{name}"
    raw = inspect.getattr_static(cls, name)
    parameters = list(inspect.signature(getattr(cls, name)).parameters.values())
    if not isinstance(raw, (staticmethod, classmethod)):
        parameters = parameters[1:]
    names = []
    for item in parameters:
        if item.kind is item.VAR_POSITIONAL:
            names.append("*")
        elif item.kind is item.KEYWORD_ONLY and item.default is item.empty:
            raise TypeError(
                f"{where} needs the keyword {item.name!r}: hooks are called by position"
            )
        elif item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD) and (
            item.default is item.empty or item.name == "context"
        ):
            names.append(item.name)
    return names


def check_arity(cls: type, name: str, expected: tuple[str, ...]) -> None:
    """`TypeError` unless the method takes exactly what `expected` names."""
    names = _positional(cls, name)
    if "*" not in names and len(names) != len(expected):
        raise TypeError(
            f"{cls.__qualname__}.{name} must take ({', '.join(('self', *expected))}), "
            f"got ({', '.join(('self', *names))})"
        )


def subject_hook(cls: type, name: str, subject: str) -> Hook:
    """Return a hook `(self, subject)` or `(self, subject, context)`."""
    names = _positional(cls, name)
    if len(names) == 1 and names != ["*"]:
        return lambda instance, given, context: getattr(instance, name)(given)
    if len(names) == 2 or "*" in names:
        return lambda instance, given, context: getattr(instance, name)(given, context)
    raise _signature_error(cls, name, f"(self, {subject}) or (self, {subject}, context)", names)


def expression_or_subject_hook(cls: type, name: str, subject: str) -> Hook:
    """Return a hook as in `subject_hook`, or of lazily made `inputs` where its first parameter is
    that. A second parameter `context` is the context, any other the subject; with both it is last.
    """
    names = _positional(cls, name)
    if not names or names[0] != "inputs":
        return subject_hook(cls, name, subject)
    rest = names[1:]
    if not rest:
        return lambda instance, given, context: getattr(instance, name)(_inputs())
    if rest == ["context"]:
        return lambda instance, given, context: getattr(instance, name)(_inputs(), context)
    if len(rest) == 1:
        return lambda instance, given, context: getattr(instance, name)(_inputs(), given)
    if len(rest) == 2 and rest[1] == "context":
        return lambda instance, given, context: getattr(instance, name)(_inputs(), given, context)
    forms = f"(self, inputs[, {subject}][, context])"
    raise _signature_error(cls, name, f"{forms} with context last", names)


def _inputs() -> PatternInputs:
    return PatternInputs(ir.GraphBuilder("replacement"))


def _signature_error(cls: type, name: str, forms: str, names: list[str]) -> TypeError:
    return TypeError(
        f"{cls.__qualname__}.{name} must take {forms}, got ({', '.join(('self', *names))})"
    )
