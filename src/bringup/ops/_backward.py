"""Matching a backward operator to its forward operator: where each of its arguments comes from.

Owns the rules of `register_backward`; the node that calls the backward operator is native.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from bringup.errors import SchemaError
from bringup.ops._rules import BoundOutput
from bringup.ops._schema import Schema

__all__ = ["BackwardPlan", "SourceKind", "match"]


class SourceKind(IntEnum):
    """Where an argument of the backward operator comes from; numbered as in autograd.h."""

    GRAD = 0
    INPUT = 1
    OUTPUT = 2
    CONSTANT = 3


@dataclass(frozen=True)
class BackwardPlan:
    """What the native library takes: sources by backward argument, receiving inputs by backward
    return.
    """

    name: str
    overload: str
    sources: list[tuple[int, int]]
    receivers: list[int]


def match(
    forward: Schema,
    outputs: Sequence[BoundOutput],
    operator: str,
    save: tuple[str, ...],
    gradients: Sequence[str] | None,
) -> BackwardPlan:
    """Matches `operator` to `forward`. Raises `SchemaError` naming both where they do not fit."""
    matcher = _Matcher(forward, outputs, operator, save)
    matcher.require_functional()
    backward = matcher.find_backward()
    return BackwardPlan(
        backward.name,
        backward.overload_name,
        matcher.sources(backward),
        matcher.receivers(backward, gradients),
    )


class _Matcher:
    """One attempt; every refusal goes through `error`."""

    def __init__(
        self, forward: Schema, outputs: Sequence[BoundOutput], operator: str, save: tuple[str, ...]
    ) -> None:
        self._forward = forward
        self._operator = operator
        self._save = save
        self._grads = [number for number, output in enumerate(outputs) if output.differentiable]

    def error(self, reason: str) -> SchemaError:
        return SchemaError(
            f"{self._operator} cannot be the backward of {self._forward.qualified_name}: {reason}"
        )

    def require_functional(self) -> None:
        written = [a.name for a in self._forward.arguments if a.mutated]
        if written:
            raise self.error(
                f"the operator writes its argument '{written[0]}'; only one that returns new "
                "tensors can have a backward"
            )

    def find_backward(self) -> Any:
        namespace, separator, rest = self._operator.partition("::")
        name, _, overload = rest.partition(".")
        if not separator:
            raise self.error("expected 'namespace::name'")
        try:
            packet = getattr(getattr(torch.ops, namespace), name)
            return getattr(packet, overload or "default")._schema
        except AttributeError as error:
            raise self.error("there is no such operator; define it first") from error

    def sources(self, backward: Any) -> list[tuple[int, int]]:
        arguments = list(backward.arguments)
        count = len(self._grads)
        leading = arguments[:count]
        if len(leading) < count or any(str(a.type) != "Tensor" for a in leading):
            raise self.error(
                f"its first {count} arguments must be the gradients of the outputs, of type Tensor"
            )
        sources = [(int(SourceKind.GRAD), output) for output in self._grads]
        sources += [self._source(argument) for argument in arguments[count:]]
        used = {a.name for a in arguments[count:]}
        unused = [name for name in self._save if name not in used]
        if unused:
            raise self.error(f"save= names '{unused[0]}', which it does not take")
        return sources

    def _source(self, argument: Any) -> tuple[int, int]:
        name = argument.name
        if name in self._forward.index:
            return self._input(argument, self._forward.index[name])
        if name and name in self._forward.return_names:
            if name not in self._save:
                raise self.error(f"it reads the output '{name}', which is not in save=")
            return int(SourceKind.OUTPUT), self._forward.return_names.index(name)
        known = [*self._forward.index, *filter(None, self._forward.return_names)]
        raise self.error(
            f"its argument '{name}' is no argument or named return of the forward operator "
            f"({', '.join(known)})"
        )

    def _input(self, argument: Any, index: int) -> tuple[int, int]:
        declared = self._forward.arguments[index]
        expected = _type_text(declared.type, declared.optional)
        allowed = {expected, _type_text(declared.type, True)}
        if _schema_type(argument) not in allowed:
            raise self.error(
                f"its argument '{argument.name}' is {_schema_type(argument)}, the forward "
                f"operator's is {expected}"
            )
        if declared.type == "Tensor[]":
            raise self.error(f"'{argument.name}' is a list of tensors, which cannot be saved yet")
        if declared.type != "Tensor":
            return int(SourceKind.CONSTANT), index
        if argument.name not in self._save:
            raise self.error(f"it reads the tensor '{argument.name}', which is not in save=")
        return int(SourceKind.INPUT), index

    def receivers(self, backward: Any, gradients: Sequence[str] | None) -> list[int]:
        if any(str(r.type) != "Tensor" for r in backward.returns):
            raise self.error("it must return tensors, one gradient each")
        if gradients is None:
            names = [a.name for a in self._forward.arguments if a.type == "Tensor"]
        else:
            names = list(gradients)
        for name in names:
            index = self._forward.index.get(name)
            if index is None or self._forward.arguments[index].type != "Tensor":
                raise self.error(
                    f"gradients= names '{name}', which is no Tensor argument of the forward "
                    "operator"
                )
        if len(names) != len(backward.returns):
            raise self.error(
                f"it returns {len(backward.returns)} gradients for the {len(names)} arguments "
                f"{', '.join(names)}; "
                "name those that get one with gradients="
            )
        return [self._forward.index[name] for name in names]


def _type_text(type_text: str, optional: bool) -> str:
    return f"{type_text}?" if optional else type_text


def _schema_type(argument: Any) -> str:
    text = str(argument.real_type)
    optional = text.startswith("Optional[")
    if optional:
        text = text[len("Optional[") : -1]
    if text.startswith("List["):
        text = f"{text[len('List[') : -1]}[]"
    return _type_text(text, optional)
