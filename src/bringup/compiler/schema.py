"""Operator schemas: choosing an overload, and bringing arguments into one order and form."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from bringup import ir
from bringup.errors import SchemaError, first_line
from bringup.passes import AnyValue, Constant, Variadic

_SIZES = (torch.SymInt, ir.SymbolicDim)


@dataclass(frozen=True)
class SchemaParameter:
    """One parameter of a schema, read once: asking torch for it costs microseconds every time."""

    name: str
    kwarg_only: bool
    has_default: bool
    default: object
    is_float: bool
    is_tensor: bool
    list_size: int
    """How often a single number given for a list is repeated; 0 when this is not a list."""

    def canonical(self, argument: object) -> object:
        """Return one form per meaning: tuples, floats for float parameters, dtypes for names."""
        if isinstance(argument, ir.Value):
            return argument
        if isinstance(argument, (tuple, list)):
            return _tuples(argument)
        if self.list_size and isinstance(argument, (int, float, *_SIZES)):
            return (argument,) * self.list_size
        if self.is_float and isinstance(argument, int):
            return float(argument)
        return _dtype_or_same(argument) if self.name.endswith("dtype") else argument


@cache
def signature_of(overload: Any) -> tuple[SchemaParameter, ...]:
    return tuple(_slot(argument) for argument in overload._schema.arguments)


def _slot(argument: Any) -> SchemaParameter:
    kind = argument.type
    if isinstance(kind, torch.OptionalType):
        kind = kind.getElementType()
    slot = SchemaParameter(
        name=argument.name,
        kwarg_only=argument.kwarg_only,
        has_default=argument.has_default_value(),
        default=None,
        is_float=isinstance(kind, torch.FloatType),
        is_tensor=isinstance(kind, torch.TensorType),
        list_size=(argument.N or 1) if isinstance(kind, torch.ListType) else 0,
    )
    return dataclasses.replace(slot, default=slot.canonical(argument.default_value))


def overload_of(op_type: str) -> Any:
    """Return the `OpOverload` of a type such as `aten::add.Tensor`. Raises `SchemaError`."""
    return _overload(*_packet_of(op_type))


def _overload(packet: Any, name: str) -> Any:
    name = name or "default"
    found = getattr(packet, name, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise SchemaError(
            f"operator {packet._qualified_op_name!r} has no overload {name!r}; it has "
            f"{sorted(packet.overloads())}"
        )
    return found


def _packet_of(op_type: str) -> tuple[Any, str]:
    namespace, separator, rest = op_type.partition("::")
    name, _, overload = rest.partition(".")
    if not separator or not name:
        raise SchemaError(
            f"an operator type reads namespace::name or namespace::name.overload, got {op_type!r}"
        )
    try:
        return getattr(getattr(torch.ops, namespace), name), overload
    except AttributeError:
        raise SchemaError(
            f"there is no operator {namespace}::{name}; is the library that defines it loaded?"
        ) from None


def resolve(op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]) -> Any:
    """Return the `OpOverload` that torch would choose for a call. Raises `SchemaError`."""
    packet, overload = _packet_of(op_type)
    if overload:
        return _overload(packet, overload)
    names = packet.overloads()
    if names == ["default"]:
        return packet.default
    given = [*arguments, *keywords.values()]
    if any(isinstance(argument, AnyValue) for argument in given):
        fitting = [
            name
            for name in sorted(names, key=lambda item: item != "default")
            if _takes(getattr(packet, name), len(arguments), keywords)
        ]
        if not fitting:
            raise SchemaError(
                f"no overload of {op_type} takes {len(arguments)} arguments and {sorted(keywords)}"
            )
        overloads = [getattr(packet, name) for name in fitting]
        return min(overloads, key=lambda one: _values_as_numbers(one, arguments, keywords))
    try:
        name = _resolved(op_type, arguments, keywords, 1.0)
    except RuntimeError as error:
        with contextlib.suppress(RuntimeError):  # a constant may be a tensor as well
            return getattr(packet, _resolved(op_type, arguments, keywords, _example()) or "default")
        texts = [ir.argument_text(argument) for argument in arguments]
        texts += [f"{key}={ir.argument_text(item)}" for key, item in keywords.items()]
        shown = ", ".join(texts)
        reason = first_line(error)
        raise SchemaError(f"no overload of {op_type} takes ({shown}): {reason}") from None
    return getattr(packet, name or "default")


def _resolved(
    op_type: str, arguments: Sequence[object], keywords: Mapping[str, object], constant: object
) -> str:
    """Return the overload of a call in which constants without a number are `constant`."""
    return str(
        torch._C._jit_resolve_packet(
            op_type,
            *(_stand_in(argument, constant) for argument in arguments),
            **{key: _stand_in(argument, constant) for key, argument in keywords.items()},
        )
    )


def _takes(overload: Any, positional: int, keywords: Mapping[str, object]) -> bool:
    signature = signature_of(overload)
    needed = {slot.name for slot in signature[positional:] if not slot.has_default}
    by_position = sum(not slot.kwarg_only for slot in signature)
    names = {slot.name for slot in signature}
    return positional <= by_position and needed <= keywords.keys() <= names


def _values_as_numbers(
    overload: Any, arguments: Sequence[object], keywords: Mapping[str, object]
) -> int:
    """Return how many values of a graph the overload takes for numbers (as `aten::mul` may)."""
    signature = signature_of(overload)
    named = [(slot, keywords[slot.name]) for slot in signature if slot.name in keywords]
    given = [*zip(signature, arguments, strict=False), *named]
    return sum(isinstance(item, ir.Value) and not slot.is_tensor for slot, item in given)


@cache
def _example() -> Any:
    return torch.empty(0, device="meta")


def _stand_in(argument: object, constant: object) -> object:
    if isinstance(argument, ir.Value):
        number = _unknown_number(argument.meta)
        return _example() if number is None else number
    if isinstance(argument, Constant):
        is_number = bool(argument.values) and argument.shape is None
        return argument.values[0] if is_number and isinstance(constant, float) else constant
    if isinstance(argument, AnyValue):  # in a list: what stands alone chooses by itself
        return 1
    if isinstance(argument, Variadic):
        return [_example()]
    if isinstance(argument, (tuple, list)):
        return [
            _example() if isinstance(item, Variadic) else _stand_in(item, constant)
            for item in argument
        ]
    if isinstance(argument, (bool, int, float)):
        return argument
    number = _unknown_number(argument)
    return _dtype_or_same(argument) if number is None else number


def _unknown_number(given: object) -> object:
    """Return a number of the type of one not known, so that no guard is added; None for others."""
    if isinstance(given, torch.SymBool):
        return True
    if isinstance(given, (torch.SymFloat, float)):
        return 1.0
    return 1 if isinstance(given, (*_SIZES, int)) else None


def _dtype_or_same(argument: object) -> object:
    if isinstance(argument, str):
        dtype = getattr(torch, argument, None)
        return dtype if isinstance(dtype, torch.dtype) else argument
    return argument


def in_schema_order(
    overload: Any, arguments: Sequence[object], keywords: Mapping[str, object]
) -> tuple[object, ...]:
    """Return all arguments of a call in schema order, with defaults. Raises `SchemaError`."""
    signature = signature_of(overload)
    given = len(arguments)
    used = by_position = 0
    ordered = []
    for index, slot in enumerate(signature):
        if not slot.kwarg_only:
            by_position += 1
        if index < given and not slot.kwarg_only:
            ordered.append(slot.canonical(arguments[index]))
        elif slot.name in keywords:
            ordered.append(slot.canonical(keywords[slot.name]))
            used += 1
        elif slot.has_default:
            ordered.append(slot.default)
        else:
            raise SchemaError(f"{overload} needs an argument for {slot.name!r}: {overload._schema}")
    if given > by_position or used < len(keywords):
        raise _argument_mismatch(overload, arguments, keywords, by_position)
    return tuple(ordered)


def _argument_mismatch(
    overload: Any, arguments: Sequence[object], keywords: Mapping[str, object], by_position: int
) -> SchemaError:
    schema = overload._schema
    if len(arguments) > by_position:
        return SchemaError(
            f"{overload} takes at most {by_position} positional arguments, "
            f"got {len(arguments)}: {schema}"
        )
    names = [slot.name for slot in signature_of(overload)]
    unknown = next((name for name in keywords if name not in names), None)
    if unknown is not None:
        return SchemaError(f"{overload} has no parameter {unknown!r}: {schema}")
    twice = next(name for name in names[: len(arguments)] if name in keywords)
    return SchemaError(f"{overload} got {twice!r} twice: {schema}")


def _tuples(argument: object) -> object:
    if isinstance(argument, (tuple, list)):
        return tuple(_tuples(item) for item in argument)
    return argument
