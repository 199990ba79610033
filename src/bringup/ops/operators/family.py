"""Which overloads one declaration covers, and what their arguments are for a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from bringup.errors import SchemaError

Kind = Literal["pointwise", "reduction", "raw"]
Role = Literal[
    "tensor", "scalar", "number", "string", "dtype", "list", "tensor_list", "generator", "dim",
    "keepdim", "out",
]  # fmt: skip

_ROLES: dict[str, Role] = {
    "Tensor": "tensor", "number": "scalar", "Scalar": "scalar", "int": "number", "SymInt": "number",
    "float": "number", "bool": "number", "str": "string", "ScalarType": "dtype",
    "List[int]": "list", "List[SymInt]": "list", "List[float]": "list", "List[bool]": "list",
    "List[Tensor]": "tensor_list", "List[Optional[Tensor]]": "tensor_list",
    "Generator": "generator",
}  # fmt: skip
_CARRIED: dict[Kind, frozenset[Role]] = {
    "pointwise": frozenset({"tensor", "scalar", "number", "string", "generator", "out"}),
    "reduction": frozenset(
        {"tensor", "scalar", "number", "string", "dtype", "dim", "keepdim", "out"}
    ),
    "raw": frozenset(_ROLES.values()) | {"out"},
}
_PREFERRED = ("default", "Tensor", "self", "Tensor_Tensor")
# Of an operator that makes a tensor of numbers, and is given how: arange.
_OPTIONS = ("dtype", "layout", "device", "pin_memory")
_OF_REDUCTIONS: dict[str, Role] = {"dim": "dim", "dims": "dim", "keepdim": "keepdim"}


@dataclass(frozen=True)
class Parameter:
    """An argument of an overload."""

    name: str  # as in its schema
    type: str  # as torch shows it, without Optional: "Tensor", "number", "float", ..
    role: Role  # what it is for a kernel
    optional: bool  # whether it may be None
    keyword_only: bool  # whether it stands behind `*`
    written: bool  # whether the operator writes it


@dataclass(frozen=True)
class Overload:
    """One overload of an operator."""

    function: Any  # the operator in `torch.ops`
    name: str  # "aten::add_"
    overload: str  # "Tensor", or "" for the one without a name
    parameters: tuple[Parameter, ...]  # in schema order
    results: int  # how many tensors it returns

    @property
    def qualified_name(self) -> str:
        return f"{self.name}.{self.overload}" if self.overload else self.name

    @property
    def functional(self) -> bool:
        """Return whether it writes none of its arguments."""
        return not any(p.written for p in self.parameters)

    @property
    def in_place(self) -> bool:
        """Return whether it writes an argument that it also computes with."""
        return any(p.written and p.role != "out" for p in self.parameters)

    @property
    def operands(self) -> tuple[int, ...]:
        """Return the indices of the arguments that a kernel computes with."""
        return tuple(i for i, p in enumerate(self.parameters) if p.role != "out")

    def call(self, values: list[Any]) -> Any:
        args = [v for p, v in zip(self.parameters, values, strict=True) if not p.keyword_only]
        named = {p.name: v for p, v in zip(self.parameters, values, strict=True) if p.keyword_only}
        return self.function(*args, **named)

    def has_kernel(self, key: str) -> bool:
        found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(self.qualified_name, key)
        return found

    @property
    def takes_generator(self) -> bool:
        return any(p.role == "generator" for p in self.parameters)

    @property
    def composite(self) -> bool:
        """Return whether it is made of others above autograd, so that torch has no formula."""
        return self.has_kernel("CompositeImplicitAutograd") and not self.has_kernel("Autograd")

    @property
    def given_roles(self) -> tuple[Role, ...]:
        """Return what its arguments are, without those that are only written, and options."""
        return tuple(p.role for p in self.parameters if p.role != "out" and not self.is_option(p))

    def is_option(self, parameter: Parameter) -> bool:
        """Return whether it says of what kind a new tensor is, which a given result says itself."""
        has_all = any(p.name == "pin_memory" for p in self.parameters)
        return has_all and parameter.keyword_only and parameter.name in _OPTIONS

    def signature(self, kind: Kind) -> tuple[object, ...]:
        """Return what the forms of one family share: a tensor in one may be a number in another."""
        same: list[tuple[str, str]] = []
        for parameter in self.parameters:
            if parameter.role in {"out", "dim", "keepdim", "dtype"} and kind == "reduction":
                continue
            if parameter.role == "out" or self.is_option(parameter):
                continue
            values = kind == "pointwise" and parameter.role in {"tensor", "scalar"}
            same.append((parameter.name, "value" if values else parameter.type))
        return (*same, self.results)


def family_of(operator: str, kind: Kind) -> tuple[Overload, ...]:
    """Return the overloads that a kernel for "aten::add" (its usual family) or "aten::add.Tensor"
    covers, functional ones first. Raises `SchemaError` where there is no such operator, it is
    made of others, or a kernel of this `kind` cannot get its arguments.
    """
    namespace, separator, rest = operator.partition("::")
    base, _, wanted = rest.partition(".")
    if not separator or not base:
        raise SchemaError(
            f"devices.kernel({operator!r}): expected an operator, 'aten::gelu' or "
            "'aten::add.Tensor'"
        )
    everything = [
        _overload(name, function, kind)
        for name in (f"{namespace}::{base}", f"{namespace}::{base}_")
        for function in _overloads(name)
    ]
    if not everything:
        raise SchemaError(f"devices.kernel({operator!r}): torch has no such operator")
    primary = _primary(operator, everything, wanted, f"{namespace}::{base}")
    signature = primary.signature(kind)
    family = [one for one in everything if one.signature(kind) == signature and not one.composite]
    if wanted:  # pow of a tensor and pow of a number are not one function
        family = [one for one in family if one.given_roles == primary.given_roles]
    if primary not in family:
        raise SchemaError(
            f"devices.kernel({operator!r}): it is made of other operators wherever it is called; "
            "register kernels for those, which devices.fallback_report() names"
        )
    own = [one for one in family if one.has_kernel("CPU")]
    if wanted and primary not in own:
        own.insert(0, primary)
    own = own or [primary]
    for one in own:
        _check(one, kind)
    return tuple(sorted(own, key=lambda one: not one.functional))


def functional_form(overload: Overload, kind: Kind) -> Overload:
    """Return an overload's form that makes its own results, or itself where there is no other."""
    if overload.functional:
        return overload
    namespace, _, base = overload.name.partition("::")
    names = dict.fromkeys((overload.name, f"{namespace}::{base.removesuffix('_')}"))
    forms = [_overload(name, function, kind) for name in names for function in _overloads(name)]
    for form in forms:
        if not form.functional or form.signature(kind) != overload.signature(kind):
            continue
        if form.given_roles == overload.given_roles:
            return form
    if overload.in_place:
        return overload
    raise SchemaError(f"{overload.qualified_name}: torch has no form of it without written results")


def _overloads(name: str) -> list[Any]:
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    if packet is None:
        return []
    # TorchScript's own forms (add.str) are in the packet, too, and in no dispatcher.
    return [
        getattr(packet, overload)
        for overload in packet.overloads()
        if torch._C._dispatch_has_kernel(name if overload == "default" else f"{name}.{overload}")
    ]


def _overload(name: str, function: Any, kind: Kind) -> Overload:
    schema = function._schema
    parameters = tuple(_parameter(argument, kind) for argument in schema.arguments)
    return Overload(function, name, schema.overload_name, parameters, len(schema.returns))


def _parameter(argument: Any, kind: Kind) -> Parameter:
    text = str(argument.real_type)
    optional = text.startswith("Optional[")
    if optional:
        text = text[len("Optional[") : -1]
    alias = argument.alias_info
    written = alias is not None and alias.is_write
    role: Role | None = _ROLES.get(text)
    if kind == "reduction" and argument.name in _OF_REDUCTIONS:
        role = _OF_REDUCTIONS[argument.name]
    if written and argument.is_out:
        role = "out"
    # An unknown type is refused where the overload is chosen.
    return Parameter(argument.name, text, role or "list", optional, argument.kwarg_only, written)


def _primary(operator: str, all_of_it: list[Overload], wanted: str, name: str) -> Overload:
    named = {one.overload or "default": one for one in all_of_it if one.name == name}
    if wanted:
        if wanted not in named:
            raise SchemaError(
                f"devices.kernel({operator!r}): expected one of its overloads, "
                f"{', '.join(sorted(named))}"
            )
        return named[wanted]
    for usual in _PREFERRED:
        if usual in named and named[usual].functional and not named[usual].composite:
            return named[usual]
    if len(named) == 1:  # of normal_ there is no other form
        return next(iter(named.values()))
    functional = [one for one in named.values() if one.functional]
    own = [one for one in functional if one.has_kernel("CPU")]
    for candidates in (own, functional):
        if len(candidates) == 1:
            return candidates[0]
    raise SchemaError(
        f"devices.kernel({operator!r}): say which overload: "
        + ", ".join(one.qualified_name for one in functional)
    )


def _check(overload: Overload, kind: Kind) -> None:
    where = f"{overload.qualified_name}: a kernel of kind {kind!r}"
    for parameter in overload.parameters:
        known = parameter.type in _ROLES or parameter.role in {"dim", "keepdim", "out"}
        if known and parameter.role in _CARRIED[kind]:
            continue
        raise SchemaError(
            f"{where} cannot get its argument '{parameter.name}' of type {parameter.type}"
        )
    tensors = [p for p in overload.parameters if p.role == "tensor"]
    if kind == "pointwise" and overload.results < 1:
        raise SchemaError(f"{where} has a result, and this operator none; use kind='raw'")
    if kind == "reduction" and (len(tensors) != 1 or overload.parameters[0].role != "tensor"):
        raise SchemaError(f"{where} has one tensor argument, the first; use kind='raw'")
    if kind == "reduction" and overload.results > 2:
        raise SchemaError(f"{where} has one or two results, not {overload.results}")
