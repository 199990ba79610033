"""What ONNX's operators take and return, from the schemas of the package onnx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import onnx
from onnx import defs

from bringup import ir
from bringup.compiler.onnx.attributes import AttributeReference, canonical, round32, value_of
from bringup.errors import SchemaError, did_you_mean
from bringup.passes import Variadic

DEFAULT_DOMAIN = "onnx"
"""What the default domain, whose name is empty, is called in operator types."""
CAPTURES = "captures"
"""The argument that has the values of outer graphs that the graphs a node calls read."""

_COMMUTATIVE = frozenset(
    ("Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
)
_BROADCASTS_SINCE = 7
"""Before this version of ai.onnx only the second operand was broadcast."""
_MANY = 2**31 - 1
_ABSENT = "absent"
_INPUTS = ir.Parameter("inputs", "List[Tensor]")
_FOREIGN = (
    _INPUTS,
    ir.Parameter("attributes", "Dict", True),
    ir.Parameter(CAPTURES, "List[Tensor]", True),
)


class IncompleteError(SchemaError):
    """A call lacks an input or an attribute."""


@dataclass(frozen=True)
class AttributeSlot:
    """An attribute of a schema; `name` is the parameter's. `default` None is no value."""

    name: str
    attribute: str
    kind: int
    required: bool
    default: object


@dataclass(frozen=True)
class Signature:
    """One version of one operator; `has_bodies` tells that `captures` is the last argument."""

    operator: ir.Operator
    inputs: tuple[str, ...]
    required: tuple[bool, ...]
    variadic: bool
    attributes: tuple[AttributeSlot, ...]
    has_bodies: bool
    schema: Any = field(compare=False)

    def bound(
        self, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[object, ...]:
        """Return all arguments of a call in order. Raises `SchemaError` when they do not fit."""
        named = dict(keywords)
        ordered = [*self._inputs_of(arguments, named), *self._attributes_of(named)]
        if self.has_bodies:
            ordered.append(named.pop(CAPTURES, ()))
        if named:
            kind = self.operator.type
            raise SchemaError(f"{kind} has no parameter {next(iter(named))!r}; it has {self.names}")
        return tuple(ordered)

    @property
    def names(self) -> list[str]:
        """Return the names of all parameters."""
        return [parameter.name for parameter in self.operator.parameters]

    def _inputs_of(self, arguments: Sequence[object], named: dict[str, object]) -> list[object]:
        kind, count = self.operator.type, len(self.inputs)
        given = list(arguments)
        if self.variadic:
            given[count - 1 :] = _as_list(given[count - 1 :])
        if len(given) > count:
            raise SchemaError(f"{kind} takes at most {count} inputs, got {len(given)}")
        for index, name in enumerate(self.inputs):
            if name in named and index >= len(given):
                given.extend([None] * (index - len(given)))
                given.append(named.pop(name))
        given.extend([None] * (count - len(given)))
        if self.variadic and given and given[-1] is None:
            given[-1] = ()
        for name, needed, item in zip(self.inputs, self.required, given, strict=True):
            if item is None and needed:
                raise IncompleteError(f"{kind} needs an argument for {name!r}; it has {self.names}")
            if isinstance(item, (bool, int, float, str)):
                raise SchemaError(
                    f"{kind} takes a tensor for {name!r}, got {item!r}: use create_constant, or "
                    "passes.constant in a pattern"
                )
        return given

    def _attributes_of(self, named: dict[str, object]) -> list[object]:
        kind = self.operator.type
        found = []
        for slot in self.attributes:
            given = named.pop(slot.name, None)
            if given is not None:
                found.append(canonical(f"{slot.name!r} of {kind}", slot.kind, given))
            elif slot.required:
                raise IncompleteError(
                    f"{kind} needs the attribute {slot.name!r}; in a pattern, passes.any_value() "
                    "leaves it open"
                )
            else:
                found.append(slot.default)
        return found


def _as_list(given: list[object]) -> list[object]:
    """Return what stands for a variadic input: a list, or values one by one."""
    if len(given) == 1 and isinstance(given[0], (tuple, list, Variadic)):
        return [tuple(given[0]) if isinstance(given[0], list) else given[0]]
    return [tuple(given)] if given else []


def type_of(domain: str, name: str, overload: str = "") -> str:
    """Return the operator type of a node; `SchemaError` for a reserved domain."""
    if domain in ("ir", DEFAULT_DOMAIN):
        raise SchemaError(f"the domain {domain!r} (of {name!r}) cannot be distinguished from ours")
    base = f"{DEFAULT_DOMAIN if domain in ('', 'ai.onnx') else domain}::{name}"
    return f"{base}.{overload}" if overload else base


def domain_of(op_type: str) -> tuple[str, str]:
    """Domain ("" for the default one) and name of an operator type."""
    domain, _, name = op_type.partition("::")
    return ("" if domain == DEFAULT_DOMAIN else domain), name


@cache
def _versions() -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return {key: sorted(versions) for key, versions in found.items()}


@cache
def newest(domain: str) -> int | None:
    """Return the newest version of a domain that onnx knows; None for an unknown domain."""
    if domain == "":
        return int(defs.onnx_opset_version())
    known = [max(versions) for (owner, _), versions in _versions().items() if owner == domain]
    return max(known, default=None)


@cache
def signature(domain: str, name: str, version: int) -> Signature | None:
    """Return the operator in that version of its domain; None when there is none."""
    try:
        schema = defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None
    return _signature_of(schema)


def _signature_of(schema: Any) -> Signature:
    option = defs.OpSchema.FormalParameterOption
    variadic = bool(schema.inputs) and schema.inputs[-1].option == option.Variadic
    attributes = tuple(_slot(schema, item) for _, item in sorted(schema.attributes.items()))
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    has_bodies = any(slot.kind in graphs for slot in attributes)
    parameters = [ir.Parameter(item.name, _INPUT_TYPES[item.option.name]) for item in schema.inputs]
    parameters += [ir.Parameter(slot.name, _kind_text(slot.kind), True) for slot in attributes]
    if has_bodies:
        parameters.append(_FOREIGN[2])
    least, most = schema.min_output, min(schema.max_output, _MANY)
    random = schema.node_determinism == defs.OpSchema.NodeDeterminism.NonDeterministic
    operator = ir.Operator(
        type=type_of(schema.domain, schema.name),
        parameters=tuple(parameters),
        output_count=None if most == _MANY else max(least, 1),
        optional_outputs=most - max(least, 1),
        random=random or has_bodies,
        commutes=(
            schema.domain == ""
            and schema.name in _COMMUTATIVE
            and schema.since_version >= _BROADCASTS_SINCE
        ),
    )
    return Signature(
        operator,
        tuple(item.name for item in schema.inputs),
        tuple(item.option == option.Single for item in schema.inputs),
        variadic,
        attributes,
        has_bodies,
        schema,
    )


_INPUT_TYPES = {"Single": "Tensor", "Optional": "Optional[Tensor]", "Variadic": "List[Tensor]"}


def _kind_text(kind: int) -> str:
    name = str(onnx.AttributeProto.AttributeType.Name(kind)).lower()
    return f"List[{name[:-1]}]" if name.endswith("s") else name


def _slot(schema: Any, item: Any) -> AttributeSlot:
    kind = int(item.type.value)
    stated = item.default_value
    has_default = stated.name and stated.type != onnx.AttributeProto.UNDEFINED
    default = value_of(stated, _no_body) if has_default else None
    is_taken = any(one.name == item.name for one in schema.inputs)
    name = f"{item.name}_attribute" if is_taken else item.name
    return AttributeSlot(name, item.name, kind, item.required, default)


def _no_body(proto: Any) -> Any:
    raise SchemaError("no schema has a graph as a default")


@cache
def with_outputs(operator: ir.Operator, count: int) -> ir.Operator:
    """Return the operator as a call with `count` outputs has it."""
    return replace(operator, output_count=count, optional_outputs=0)


# Operators without a schema


@cache
def foreign(op_type: str) -> ir.Operator:
    """Return an operator that no schema describes: values, attributes by name, captured values."""
    return ir.Operator(op_type, _FOREIGN, optional_outputs=_MANY, random=True)


def is_foreign(operator: ir.Operator) -> bool:
    return operator.parameters[-len(_FOREIGN) :] == _FOREIGN


def foreign_arguments(
    arguments: Sequence[object], keywords: Mapping[str, object]
) -> tuple[object, ...]:
    named = dict(keywords)
    captures = named.pop(CAPTURES, ())
    inputs = _as_list(list(arguments)) or [()]
    attributes = {name: _foreign_value(named[name]) for name in sorted(named)}
    return (*inputs, attributes, captures)


def _foreign_value(value: object) -> object:
    if isinstance(value, float):
        return round32(value)
    if isinstance(value, (tuple, list)):
        return tuple(_foreign_value(item) for item in value)
    return value


# Operators of other versions


def absent(op_type: str, since: int) -> ir.Operator:
    """Stand in a pattern for a call that the model's domain version lacks: no node is like it."""
    marker = ir.Parameter(f"opset {since}", _ABSENT)
    return ir.Operator(
        f"{op_type} of opset {since}", (_INPUTS, marker, *_FOREIGN[1:]), optional_outputs=_MANY
    )


def absent_reason(operator: ir.Operator) -> str | None:
    """Return why a graph cannot have this operator; None when it can."""
    for parameter in operator.parameters[1:2]:
        if parameter.type == _ABSENT:
            return f"there is no {operator.type} in the version that the model imports"
    return None


def other_version(
    domain: str, name: str, arguments: Sequence[object], keywords: Mapping[str, object]
) -> int | None:
    """Return the newest version of the operator that takes these arguments; None when none does."""
    for version in reversed(_versions().get((domain, name), [])):
        found = signature(domain, name, version)
        try:
            if found is not None:
                found.bound(arguments, keywords)
                return version
        except SchemaError:
            continue
    return None


def no_such_operator(domain: str, name: str) -> SchemaError:
    names = [known for owner, known in _versions() if owner == domain]
    return SchemaError(f"there is no operator {type_of(domain, name)}{did_you_mean(name, names)}")


def is_known_domain(domain: str) -> bool:
    return domain in ("", "ai.onnx.ml")


def reference_in(arguments: Sequence[object]) -> bool:
    """Return whether an argument is an attribute of the function around."""
    return any(
        isinstance(item, AttributeReference)
        or (isinstance(item, dict) and reference_in(list(item.values())))
        for item in arguments
    )
