"""Operator schemas: reading them, refusing what no kernel can take, and binding a call to one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bringup.errors import SchemaError
from bringup.ops.schema.defaults import default_of

MAX_ARGUMENTS = 64  # kMaxArguments of argument.h: inputs and outputs together

_ITEMS = ("Tensor", "int", "float", "bool")
_SINGLE = (
    "str",
    "ScalarType",
    "Scalar",
    "complex",
    "Device",
    "Layout",
    "MemoryFormat",
    "Generator",
)
_CARRIED = frozenset((*_SINGLE, *_ITEMS, *(f"{item}[]" for item in _ITEMS), "Tensor?[]"))
# The dtype in which a kernel writes a number that the operator returns.
NUMBERS = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
_WORDS = {"number": "Scalar", "Optional[Tensor][]": "Tensor?[]"}  # what schemas call torch's words
_LIST = re.compile(r"List\[(.*)\]")
_OPTIONAL = re.compile(r"Optional\[(.*)\]")
# What torch's parser says of itself.
_ADVICE = re.compile(r", file a bug report|; for a full list, please see \S+")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
# `int` as the type of an argument, or a quoted default, which is left alone. Not `int[2]`: torch
# takes one number for such a list, but not for `SymInt[2]`. So each length of such a list compiles
# anew; who writes `SymInt[2]` has one compilation for all, and no single number for a list.
_INT_TYPE = re.compile(r"\"[^\"]*\"|'[^']*'|\bint(?=(\[\])?\??\s+[A-Za-z_])")

_SYMBOLIC = re.compile(r"\"[^\"]*\"|'[^']*'|\bSymInt(?=(\[\d*\])?\??\s)")


@dataclass(frozen=True)
class SchemaArgument:
    """One argument of an operator."""

    name: str  # as in the schema
    # Its schema type without `?` and without a list's fixed length: "Tensor", "int[]", ..
    type: str
    optional: bool = False  # whether None is allowed
    keyword_only: bool = False  # whether it stands behind `*`
    mutated: bool = False  # whether the operator writes it (`Tensor(a!)`)
    required: bool = True  # whether it has no default
    default: Any = None  # the default, a `torch.dtype` for a ScalarType; None where there is none
    length: int = 0  # of a list of fixed length, `int[2]`; 0 for any other argument


@dataclass(frozen=True)
class Schema:
    """A parsed schema."""

    text: str  # as registered: with `SymInt` for `int`
    name: str  # "namespace::name"
    overload: str  # the overload's name, or ""
    arguments: tuple[SchemaArgument, ...]  # in schema order
    # For each the index of the written argument it is, or -1 for a fresh output.
    returns: tuple[int, ...]
    return_names: tuple[str, ...]  # the returns' names, "" where they have none
    return_types: tuple[str, ...]  # "Tensor", "Tensor[]", "int", "float", "bool"
    index: Mapping[str, int] = field(repr=False)

    @property
    def qualified_name(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @property
    def fresh_outputs(self) -> int:
        return sum(alias < 0 for alias in self.returns)

    @property
    def tensors(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self.arguments) if a.type.startswith("Tensor"))

    @property
    def written(self) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(self.arguments) if a.mutated)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        values = [argument.default for argument in self.arguments]
        values[: len(args)] = args
        for name, value in kwargs.items():
            values[self.index[name]] = value
        for index, argument in enumerate(self.arguments):
            if argument.length and isinstance(values[index], (bool, int, float)):
                values[index] = [values[index]] * argument.length
        return values

    def split(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        pairs = list(zip(self.arguments, values, strict=True))
        positional = tuple(value for argument, value in pairs if not argument.keyword_only)
        return positional, {a.name: value for a, value in pairs if a.keyword_only}

    def signature(self) -> str:
        parts: list[str] = []
        for argument in self.arguments:
            if argument.keyword_only and "*" not in parts:
                parts.append("*")
            parts.append(
                argument.name if argument.required else f"{argument.name}={argument.default!r}"
            )
        return f"({', '.join(parts)})"


def with_symbolic_ints(arguments: str) -> str:
    """Return the arguments of a schema text with `SymInt` where people write `int`."""
    return _INT_TYPE.sub(lambda m: "SymInt" if m[0] == "int" else m[0], arguments)


def with_plain_ints(text: str) -> str:
    """Return a schema text with `int` where a user wrote `SymInt`."""
    return _SYMBOLIC.sub(lambda m: "int" if m[0] == "SymInt" else m[0], text)


def read_schema(text: str, shown: str) -> Any:
    """Return torch's reading. Raises `SchemaError`, also for two arguments of one name or `...`."""
    try:
        parsed = torch._C.parse_schema(text)
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"{shown!r} is not a schema: names are made of ASCII letters, digits and _"
        ) from error
    except RuntimeError as error:
        raise SchemaError(f"{shown!r} is not a schema: {_reason(error)}") from error
    names = [argument.name for argument in parsed.arguments]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaError(f"{shown!r}: two arguments are called '{twice[0]}'")
    if "..." in _QUOTED.sub("", text):
        raise SchemaError(f"{shown!r}: '...' is not supported; name every argument")
    return parsed


def _reason(error: RuntimeError) -> str:
    """Return what torch's parser says, and where: it points at the place with a line of its own."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = _ADVICE.sub("", lines[0]).rstrip(":., ")
    for line, marker in itertools.pairwise(lines):
        if "<--- HERE" in marker:
            return f"{reason} at {line[marker.index('~') :]!r}"
    return reason


def parse_schema(text: str) -> Schema:
    """Parse a schema with its name. Raises `SchemaError`, also for a type that no kernel takes."""
    if not isinstance(text, str):
        raise SchemaError(
            "a kernel operator's schema is a text such as 'mylib::f(Tensor x) -> Tensor', got "
            f"{text!r}"
        )
    head, arrow, tail = text.partition("->")
    registered = with_symbolic_ints(head) + arrow + tail
    parsed = read_schema(registered, text)
    if "::" not in parsed.name:
        raise SchemaError(f"{text!r} has no namespace: write 'mylib::{parsed.name}(...) -> ...'")
    arguments = tuple(_argument(parsed.name, a) for a in parsed.arguments)
    returns = tuple(_return(parsed, r) for r in parsed.returns)
    schema = Schema(
        text=registered.strip(),
        name=parsed.name,
        overload=parsed.overload_name,
        arguments=arguments,
        returns=returns,
        return_names=tuple(r.name for r in parsed.returns),
        return_types=tuple(_LIST.sub(r"\1[]", str(r.type)) for r in parsed.returns),
        index={a.name: i for i, a in enumerate(arguments)},
    )
    _check(schema)
    return schema


def type_of(argument: Any) -> tuple[str, bool]:
    """Return an argument's type as schemas write it, without `?`, and whether it had that."""
    text = str(argument.real_type)
    optional = _OPTIONAL.fullmatch(text)
    word = _LIST.sub(r"\1[]", optional[1] if optional else text)
    return _WORDS.get(word, word), optional is not None


def _argument(operator: str, parsed: Any) -> SchemaArgument:
    alias = parsed.alias_info
    if alias is not None and not alias.is_write:
        raise SchemaError(
            f"{operator}: argument '{parsed.name}' is aliased without being written; no kernel "
            "runs for a view: write 'Tensor' or 'Tensor(a!)', or define it with ops.custom_op"
        )
    type_text, optional = type_of(parsed)
    if type_text not in _CARRIED or (alias is not None and type_text == "Tensor?[]"):
        raise SchemaError(
            f"{operator}: argument '{parsed.name}' has type {parsed.real_type}, which the kernel "
            "ABI cannot carry; "
            f"it carries {', '.join(sorted(_CARRIED))} and their optional forms"
        )
    return SchemaArgument(
        name=parsed.name,
        type=type_text,
        optional=optional,
        keyword_only=parsed.kwarg_only,
        mutated=alias is not None,
        required=not parsed.has_default_value(),
        default=default_of(parsed),
        length=parsed.N or 0,
    )


def _return(parsed: Any, returned: Any) -> int:
    if str(returned.type) not in {"Tensor", "List[Tensor]", *NUMBERS}:
        raise SchemaError(
            f"{parsed.name}: a kernel operator returns tensors, int, float and bool, got a return "
            f"of type {returned.type}"
        )
    if returned.alias_info is None:
        return -1
    for index, argument in enumerate(parsed.arguments):
        info = argument.alias_info
        if info is not None and info.before_set == returned.alias_info.before_set:
            return index
    raise SchemaError(f"{parsed.name}: a return aliases no argument")


def _check(schema: Schema) -> None:
    if schema.fresh_outputs + len(schema.arguments) > MAX_ARGUMENTS:
        raise SchemaError(
            f"{schema.name}: {len(schema.arguments)} arguments and {schema.fresh_outputs} outputs "
            "are more than "
            f"the {MAX_ARGUMENTS} that a kernel call carries"
        )
    if sum(a.type == "Generator" for a in schema.arguments) > 1:
        raise SchemaError(f"{schema.name}: a kernel draws from one Generator")
    if not any(a.type == "Tensor" and not a.optional for a in schema.arguments):
        raise SchemaError(
            f"{schema.name}: a kernel operator needs at least one Tensor argument that is not "
            "optional: it says on which device to run"
        )
    if 0 < schema.fresh_outputs < len(schema.returns):
        raise SchemaError(
            f"{schema.name}: the returns must be all new tensors or all written arguments; a "
            "written argument need not be returned"
        )
    if not schema.returns and not schema.written:
        raise SchemaError(
            f"{schema.name}: the operator returns nothing and writes no argument 'Tensor(a!)'"
        )
