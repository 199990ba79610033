"""`checks=`, resolved against a schema: for the native library, and for fake and meta tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bringup._language._core import CheckKind as CheckKind
from bringup._native import torch_library
from bringup.errors import ContractError, SchemaError
from bringup.ops.contract.expressions import Dimension, parse_dimension, shape_text
from bringup.ops.schema.schema import Schema, SchemaArgument

Size = int | str


@dataclass(frozen=True)
class InputConstraint:
    """One item of an operator's input contract. Made by the functions below; arguments that are
    None are left out.

    Attributes:
        kind: which rule.
        names: the arguments that it is about.
        sizes: numbers or expressions: of a shape, or the one number of dimensions.
        dtypes: which are allowed.
    """

    kind: CheckKind
    names: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()

    def bind(self, schema: Schema, where: str) -> BoundConstraint:
        """Return the check over `schema`'s indices. Raises `SchemaError` after `where`."""
        return BoundConstraint(
            self.kind,
            tuple(self._index(schema, name, where) for name in self.names),
            tuple(parse_dimension(size, schema.arguments, where) for size in self.sizes),
            self.dtypes,
        )

    def _index(self, schema: Schema, name: str, where: str) -> int:
        index = schema.index.get(name)
        constants = ("ScalarType", "Scalar") if self.kind is CheckKind.DTYPE else ()
        if index is not None and schema.arguments[index].type in constants:
            return index
        return _tensors_index(schema, name, where)


def same_shape(*names: str) -> InputConstraint:
    """Return the rule that the named tensors have the same shape."""
    _at_least_two("same_shape", names)
    return InputConstraint(CheckKind.SAME_SHAPE, names)


def same_dtype(*names: str) -> InputConstraint:
    """Return the rule that the named tensors have the same dtype."""
    _at_least_two("same_dtype", names)
    return InputConstraint(CheckKind.SAME_DTYPE, names)


def shape(name: str, *sizes: Size) -> InputConstraint:
    """Return the rule that the named tensor has exactly these sizes.

    Args:
        name: a tensor argument of the schema; None is left out.
        sizes: one for each dimension, written as for `empty`: 3, `"x.shape[0] * 2"`.
    """
    return InputConstraint(CheckKind.SHAPE, (name,), sizes)


def dtype(name: str, *dtypes: torch.dtype) -> InputConstraint:
    """Return the rule that the named tensor, ScalarType or Scalar has one of these dtypes.

    Args:
        name: an argument of the schema; None is left out. A Scalar is of torch.bool, torch.int64,
            torch.float64 or torch.complex128.
        dtypes: one or more.

    Raises:
        SchemaError: no dtype is given, or something else than a dtype.
    """
    if not dtypes or not all(isinstance(d, torch.dtype) for d in dtypes):
        raise SchemaError(
            f"ops.dtype({name!r}, ...): expected one torch.dtype or more, got {dtypes!r}"
        )
    return InputConstraint(CheckKind.DTYPE, (name,), (), dtypes)


def rank(name: str, dimensions: int) -> InputConstraint:
    """Return the rule that the named tensor has this many dimensions.

    Args:
        name: a tensor argument of the schema; None is left out.
        dimensions: how many, 0 or more.

    Raises:
        SchemaError: `dimensions` is no such number.
    """
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or dimensions < 0:
        raise SchemaError(
            f"ops.rank({name!r}, {dimensions!r}): expected a number of dimensions, 0 or more"
        )
    return InputConstraint(CheckKind.RANK, (name,), (dimensions,))


def fixed_lengths(schema: Schema) -> tuple[BoundConstraint, ...]:
    """Return the checks of lists of fixed length: a kernel reads `int[2]` as two numbers."""
    return tuple(
        BoundConstraint(CheckKind.LENGTH, (i,), (parse_dimension(a.length, (), ""),), ())
        for i, a in enumerate(schema.arguments)
        if a.length
    )


def kernel_checks() -> InputConstraint:
    """Leave it to the kernel to refuse inputs: it returns non-zero after ctx->set_error."""
    return InputConstraint(CheckKind.KERNEL)


@dataclass(frozen=True)
class BoundConstraint:
    """A check over argument indices."""

    kind: CheckKind
    indices: tuple[int, ...]
    dimensions: tuple[Dimension, ...]
    dtypes: tuple[torch.dtype, ...]

    def native(self) -> Any:
        return torch_library().ops.Check(
            kind=self.kind,
            arguments=list(self.indices),
            shape=[dimension.native() for dimension in self.dimensions],
            dtypes=list(self.dtypes),
        )

    def verify(self, values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> None:
        """Raise `ContractError` (without a name) when fake or meta inputs break the check."""
        tensors = [(arguments[i].name, t) for i in self.indices for t in tensors_in(values[i])]
        if self.kind is CheckKind.SAME_SHAPE:
            self._verify_same_shape(tensors, arguments)
        elif self.kind is CheckKind.SAME_DTYPE:
            if any(t.dtype != tensors[0][1].dtype for _, t in tensors):
                got = ", ".join(f"{name}: {t.dtype}" for name, t in tensors)
                raise ContractError(
                    f"{self._names(arguments)} must have the same dtype, got {got}; convert with "
                    ".to()"
                )
        elif self.kind is CheckKind.SHAPE:
            for name, tensor in tensors:
                self._verify_shape(name, tensor, evaluate(self.dimensions, values, arguments))
        elif self.kind is CheckKind.DTYPE:
            self._verify_dtype(tensors)
        else:
            self._verify_number(values, arguments)

    def _verify_number(self, values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> None:
        """Of elements, or of dimensions."""
        (index,) = self.indices
        (expected,) = evaluate(self.dimensions, values, arguments)
        name, value = arguments[index].name, values[index]
        if self.kind is CheckKind.LENGTH:
            if value is not None and len(value) != expected:
                raise ContractError(f"{name} must have {expected} elements, got {len(value)}")
            return
        for tensor in tensors_in(value):
            if tensor.dim() != expected:
                raise ContractError(
                    f"{name} must have {expected} dimensions, got shape {shape_text(tensor.shape)}"
                )

    def _verify_dtype(self, given: list[tuple[str, Any]]) -> None:
        allowed = " or ".join(str(d) for d in self.dtypes)
        for name, value in given:
            if isinstance(value, torch.dtype):
                dtype, hint = value, ""
            elif not isinstance(value, torch.Tensor):
                dtype, hint = scalar_dtype(value), ""
            else:
                dtype, hint = value.dtype, "; convert with .to()"
            if dtype not in self.dtypes:
                raise ContractError(f"{name} must be {allowed}, got {dtype}{hint}")

    def _names(self, arguments: Sequence[SchemaArgument]) -> str:
        names = [arguments[i].name for i in self.indices]
        return f"{', '.join(names[:-1])} and {names[-1]}"

    def _verify_same_shape(
        self, tensors: list[tuple[str, Any]], arguments: Sequence[SchemaArgument]
    ) -> None:
        if any(_differ(t.shape, tensors[0][1].shape) for _, t in tensors):
            got = ", ".join(f"{name}: {shape_text(t.shape)}" for name, t in tensors)
            raise ContractError(f"{self._names(arguments)} must have the same shape, got {got}")

    def _verify_shape(self, name: str, tensor: Any, expected: list[Any]) -> None:
        if _differ(tensor.shape, expected):
            raise ContractError(
                f"{name} must have shape {shape_text(expected)} "
                f"{dimensions_text(self.dimensions)}, "
                f"got {shape_text(tensor.shape)}"
            )


def verify(checks: Sequence[BoundConstraint], values: Sequence[Any], schema: Schema) -> Any:
    """Return the one device of all tensors. Raises `ContractError` without the operator's name."""
    tensors = [(schema.arguments[i].name, t) for i in schema.tensors for t in tensors_in(values[i])]
    device = values[first_tensor(schema.arguments)].device
    if any(t.device != device for _, t in tensors):
        got = ", ".join(f"{name}: {t.device}" for name, t in tensors)
        raise ContractError(f"all tensors must be on one device, got {got}; move them with .to()")
    _verify_texts(values, schema.arguments)
    for check in checks:
        if check.kind is not CheckKind.KERNEL:
            check.verify(values, schema.arguments)
    return device


def _verify_texts(values: Sequence[Any], arguments: Sequence[SchemaArgument]) -> None:
    """`ContractError` for a text that a kernel would take to end too early (Frame::load_string)."""
    for value, argument in zip(values, arguments, strict=True):
        if argument.type != "str" or value is None or "\0" not in value:
            continue
        text = value.encode()
        raise ContractError(
            f"{argument.name} has a NUL at byte {text.index(0)} of {len(text)}, where a kernel "
            "would take its text to end; remove it"
        )


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors of an argument: itself, those of a list, none of None."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in several if item is not None]


def scalar_dtype(number: Any) -> torch.dtype:
    """Return the dtype that a Scalar has for a kernel."""
    kinds = ((bool, torch.SymBool), (int, torch.SymInt), (float, torch.SymFloat), (complex,))
    dtypes = (torch.bool, torch.int64, torch.float64, torch.complex128)
    return next(d for kind, d in zip(kinds, dtypes, strict=True) if isinstance(number, kind))


def evaluate(
    dimensions: Sequence[Dimension], values: Sequence[Any], arguments: Sequence[SchemaArgument]
) -> list[Any]:
    """Return the sizes that these dimensions are for the values of a call."""
    return [size for item in dimensions for size in item.evaluate(values, arguments)]


def _differ(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) != len(right) or any(
        statically_true(a != b) for a, b in zip(left, right, strict=True)
    )


def statically_true(condition: Any) -> bool:
    """Return the truth of a comparison; the real call checks unbacked sizes."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def dimensions_text(dimensions: Sequence[Dimension]) -> str:
    """Return the dimensions as a shape, "(x.shape[0], 3)"."""
    return f"({', '.join(d.size.text for d in dimensions)})"


def _at_least_two(function: str, names: Sequence[str]) -> None:
    if len(names) < 2:
        raise SchemaError(f"ops.{function} compares two arguments or more, got {list(names)}")


def is_dtype(schema: Schema, index: int) -> bool:
    """Return whether an argument is a ScalarType."""
    return schema.arguments[index].type == "ScalarType"


def _tensors_index(schema: Schema, name: str, where: str) -> int:
    index = schema.index.get(name)
    if index is None or index not in schema.tensors:
        known = ", ".join(schema.arguments[i].name for i in schema.tensors)
        raise SchemaError(f"{where}: there is no tensor argument {name!r} (there are {known})")
    return index


def tensor_index(schema: Schema, name: str, where: str) -> int:
    """Return the index of a tensor argument. Raises `SchemaError` for another, a list too."""
    index = _tensors_index(schema, name, where)
    argument = schema.arguments[index]
    if argument.type != "Tensor" or argument.optional:
        raise SchemaError(
            f"{where}: {name!r} may be None or is a list; expected an argument of type Tensor"
        )
    return index


def first_tensor(arguments: Sequence[SchemaArgument]) -> int:
    """Return the argument that says on which device to run."""
    return next(i for i, a in enumerate(arguments) if a.type == "Tensor" and not a.optional)
