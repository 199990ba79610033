"""What chooses an operator's binary: its template, and how a call's dtypes, layouts, choices and
buckets are handed to the native library, in fields of a key (native/torch/ops/variant.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from bringup import jit
from bringup._language._core import (
    DTYPE_BITS,
    FIELD_BITS,
    LAYOUT_BITS,
    KeyFieldKind,
    NativeExpression,
)
from bringup.errors import ContractError, SchemaError
from bringup.ops.contract.outputs import BoundOutput
from bringup.ops.schema.schema import Schema


class KeyField(NamedTuple):
    """One declared property of a call that chooses the binary."""

    kind: KeyFieldKind  # which
    argument: int = -1  # its index; -1 for a bucket. Of a dtype: past the inputs it is an output.
    bits: int = 1  # how many it takes in a key
    layouts: int = 0  # of a layout: a bit for each that is allowed
    choices: Sequence[str] = ()  # of a choice among texts
    numbers: Sequence[int] = ()  # of a choice among numbers
    predicate: NativeExpression | None = None  # of a bucket


def output_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of fresh outputs: those of the returns, or `out`, or `out0`, `out1`, ..."""
    if schema.fresh_outputs == 0:
        return ()
    several = schema.fresh_outputs > 1 or "out" in schema.index
    return tuple(
        name or (f"out{i}" if several else "out") for i, name in enumerate(schema.return_names)
    )


def signature_of_schema(schema: Schema, counts: bool = False) -> tuple[jit.Argument, ...]:
    """Return the arguments of a schema's kernel."""
    inputs = [jit.Argument(a.name, a.type, a.optional, a.mutated) for a in schema.arguments]
    outputs = [
        jit.Argument(name, "Tensor[]" if kind == "Tensor[]" else "Tensor", written=True)
        for name, kind in zip(output_names(schema), schema.return_types, strict=False)
    ]
    return (*inputs, *outputs, *((jit.Argument("counts", "Tensor"),) if counts else ()))


class Variants:
    """The binaries of one operator; `bound` is its template, resolved against the schema."""

    def __init__(self, template: jit.Template, schema: Schema, *, counts: bool = False) -> None:
        """Resolve the template; with `counts` the kernel gets them last. Raises `SchemaError`."""
        self._schema = schema
        try:
            self.bound = template.bind(signature_of_schema(schema, counts))
        except ValueError as error:
            raise SchemaError(f"{schema.qualified_name}: {error}") from None
        self._check_layouts()
        bits = sum(field.bits for field in self.fields())
        if bits > FIELD_BITS:
            raise SchemaError(
                f"{schema.qualified_name}: what chooses the binary takes {bits} bits, at most "
                f"{FIELD_BITS} are there: a dtype takes {DTYPE_BITS}, a layout "
                f"{LAYOUT_BITS}, a bucket 1, a choice as many as number its values"
            )

    def _check_layouts(self) -> None:
        inputs = len(self._schema.arguments)
        seen: set[int] = set()
        for choice in self.bound.layouts:
            where = f"{self._schema.qualified_name}: layouts[{choice.macro!r}]"
            if choice.argument >= inputs:
                raise SchemaError(f"{where}: an output is always allocated contiguous, in rows")
            if choice.argument in seen:
                name = self._schema.arguments[choice.argument].name
                raise SchemaError(f"{where}: the layout of {name} is a macro already")
            seen.add(choice.argument)

    def fields(self) -> list[KeyField]:
        """Return the fields of a variant's key, in the order in which they lie in it."""
        fields = [KeyField(KeyFieldKind.DTYPE, i, DTYPE_BITS) for _, i in self.bound.dtypes]
        for layout in self.bound.layouts:
            mask = sum(1 << one for one in layout.allowed)
            fields.append(KeyField(KeyFieldKind.LAYOUT, layout.argument, LAYOUT_BITS, mask))
        for choice in self.bound.choices:
            words = [value for value in choice.allowed if isinstance(value, str)]
            numbers = [int(value) for value in choice.allowed if not isinstance(value, str)]
            bits = max(1, (len(choice.allowed) - 1).bit_length())
            fields.append(KeyField(KeyFieldKind.CHOICE, choice.argument, bits, 0, words, numbers))
        for _, predicate in self.bound.buckets:
            fields.append(KeyField(KeyFieldKind.BUCKET, predicate=predicate.native()))
        return fields

    def params_of_key(self, values: Sequence[Any]) -> jit.Params:
        """Return parameters of a key. Raises `ContractError` for a dtype without a C type."""
        rest = iter(values)
        parts = [
            [next(rest) for _ in declared]
            for declared in (
                self.bound.dtypes,
                self.bound.layouts,
                self.bound.choices,
                self.bound.buckets,
            )
        ]
        try:
            return jit.Params.of_key(self.bound, *parts)
        except ValueError as error:
            raise ContractError(f"{self._schema.qualified_name}: {error}") from None

    def params_of_call(
        self, values: Sequence[Any], outputs: Sequence[BoundOutput], strided: Sequence[int]
    ) -> jit.Params:
        """Return the parameter set of a call with these values; `strided` are taken in any layout.
        Raises `ContractError` without the operator's name for values that no binary can be for.
        """
        self.verify(values)
        try:
            return jit.Params.of_call(self.bound, self._as_passed(values, outputs, strided))
        except ValueError as error:
            raise ContractError(str(error)) from None

    def _as_passed(
        self, values: Sequence[Any], outputs: Sequence[BoundOutput], strided: Sequence[int]
    ) -> list[Any]:
        """Return what the kernel gets; what is copied, and outputs, without memory."""
        arguments = self._schema.arguments
        results = [rule.fake(i, values, arguments, "meta") for i, rule in enumerate(outputs)]

        def as_passed(index: int, value: Any) -> Any:
            if isinstance(value, torch.Tensor) and not self.takes(index, value, strided):
                return torch.empty(value.shape, dtype=value.dtype, device="meta")
            return value

        return [*(as_passed(i, value) for i, value in enumerate(values)), *results]

    def takes(self, index: int, tensor: torch.Tensor, strided: Sequence[int]) -> bool:
        """Return whether the kernel takes a tensor as it lies, as it does those in `strided`."""
        layouts = {choice.argument: choice.allowed for choice in self.bound.layouts}
        return _taken(tensor, layouts.get(index), index not in strided)

    def verify(self, values: Sequence[Any]) -> None:
        """Raise `ContractError` (without the operator's name) for a value that no choice allows."""
        for choice in self.bound.choices:
            name = self._schema.arguments[choice.argument].name
            try:
                choice.number_of(values[choice.argument], name)
            except ValueError as error:
                raise ContractError(str(error)) from None


def _taken(tensor: torch.Tensor, allowed: Sequence[jit.Layout] | None, contiguous: bool) -> bool:
    """Return whether a kernel takes the tensor as it lies in memory (takes_layout of record.h)."""
    if allowed is None:
        return not contiguous or tensor.is_contiguous()
    everything = [one for one in jit.Layout if one is not jit.Layout.NZ or one in allowed]
    return jit.layout_of(tensor, everything) in allowed
