"""What the Python side needs to know of a registered operator, read once from its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bringup.errors import ContractError, SchemaError
from bringup.ops.schema.defaults import default_of


@dataclass(frozen=True)
class Facts:
    """An operator's schema, as calls of it need it."""

    name: str  # `namespace::name`, with `.overload` where there is one
    names: tuple[str, ...]  # of all arguments, in schema order
    defaults: tuple[Any, ...]  # of all arguments; None where there is none
    positional: int  # how many arguments are not keyword-only; they come first
    required: int  # how many of these come before the last ones that have defaults
    tensors: tuple[int, ...]  # indices of the arguments that are tensors
    lists: tuple[int, ...]  # indices of the arguments that are lists of tensors
    written: tuple[int, ...]  # indices of the arguments that the operator writes
    returns: tuple[str, ...]  # the types of what it returns
    returns_lists: bool  # whether a return is a list of tensors
    returns_aliases: bool  # whether a return is declared to be, or to be a view of, an argument
    returned: tuple[int, ...]  # for each return the index of the written argument that it is, or -1
    is_out: bool  # whether it has `Tag.out`: what it writes it does not read
    lengths: tuple[tuple[int, int], ...]  # index and length of the lists of fixed length, `int[2]`

    @property
    def simple(self) -> bool:
        return not (
            self.lists
            or self.written
            or self.returns_lists
            or self.returns_aliases
            or self.positional < len(self.names)
        )

    @property
    def returns_written(self) -> bool:
        """Return whether it returns what it writes, and nothing else."""
        return bool(self.returned) and all(index >= 0 for index in self.returned)

    @property
    def pure_without_result(self) -> bool:
        """Return whether a compiler would find nothing to keep: it returns and writes nothing."""
        return not self.returns and not self.written

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        values = [*args, *self.defaults[len(args) :]]
        for name, value in kwargs.items():
            values[self.names.index(name)] = value
        return values

    def passed(self, values: Sequence[Any]) -> int:
        """Return how many arguments a call passed, without last ones at their defaults."""
        count = self.positional
        while count > self.required and _is_default(values[count - 1], self.defaults[count - 1]):
            count -= 1
        return count

    def check_lengths(self, values: Sequence[Any]) -> None:
        for index, length in self.lengths:
            value = values[index]
            if value is not None and len(value) != length:
                raise ContractError(
                    f"{self.name}: {self.names[index]} must have {length} elements, got "
                    f"{len(value)}"
                )

    def split(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`values` as positional and keyword arguments of a call."""
        keywords = dict(zip(self.names[self.positional :], values[self.positional :], strict=True))
        return tuple(values[: self.positional]), keywords

    def tensors_of(
        self, values: Sequence[Any], indices: Sequence[int]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor among the arguments `indices`, with its argument's name."""
        for index in indices:
            value = values[index]
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor):
                    yield self.names[index], item


def _is_default(value: Any, default: Any) -> bool:
    """Return whether a value is its default; not asked of tensors and symbolic numbers."""
    if value is default:
        return True
    return type(value) is type(default) and bool(value == default)


def is_defined(name: str) -> bool:
    return torch._C._get_operation_overload(*_parts(name)) is not None


def is_dispatched(name: str) -> bool:
    """Return the same for a name that TorchScript alone may know (`aten::add`)."""
    try:
        torch._C._dispatch_find_schema_or_throw(*_parts(name))
    except RuntimeError:
        return False
    return True


def find_overload(name: str) -> Any:
    """Return the operator `ns::name` or `ns::name.overload`; `SchemaError` if there is none."""
    namespace, separator, rest = name.partition("::")
    if not separator or not rest:
        raise SchemaError(f"{name!r} is not an operator name; expected 'namespace::name'")
    bare, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), bare), overload or "default")
    except AttributeError as error:
        raise SchemaError(
            f"there is no operator {name}; define it first, or import what defines it"
        ) from error


def facts_of(overload: Any) -> Facts:
    schema = overload._schema
    arguments = schema.arguments
    kinds = [str(a.type) for a in arguments]
    positional = [a for a in arguments if not a.kwarg_only]
    return Facts(
        name=f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name,
        names=tuple(a.name for a in arguments),
        defaults=tuple(map(default_of, arguments)),
        positional=len(positional),
        required=max(
            (i + 1 for i, a in enumerate(positional) if not a.has_default_value()), default=0
        ),
        tensors=tuple(i for i, k in enumerate(kinds) if k in {"Tensor", "Optional[Tensor]"}),
        lists=tuple(i for i, k in enumerate(kinds) if "List[" in k and "Tensor" in k),
        written=tuple(i for i, a in enumerate(arguments) if a.is_write),
        returns=tuple(str(r.type) for r in schema.returns),
        returns_lists=any("List[" in str(r.type) for r in schema.returns),
        returns_aliases=any(r.alias_info is not None for r in schema.returns),
        returned=tuple(_returned(schema, r) for r in schema.returns),
        is_out=torch.Tag.out in overload.tags,
        lengths=tuple((i, a.N) for i, a in enumerate(arguments) if a.N),
    )


def _returned(schema: Any, returned: Any) -> int:
    """Return the written argument that a return is, or -1."""
    alias = returned.alias_info
    if alias is None or not alias.is_write:
        return -1
    sets = [a.alias_info and a.alias_info.before_set for a in schema.arguments]
    return sets.index(alias.before_set) if alias.before_set in sets else -1


def _parts(name: str) -> tuple[str, str]:
    namespace, _, rest = name.partition("::")
    bare, _, overload = rest.partition(".")
    return f"{namespace}::{bare}", overload
