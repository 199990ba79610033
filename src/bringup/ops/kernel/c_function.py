"""Functions as they are behind an operator: `entry=`, `args=` and `returns=` of `kernel_op`, the
dtype behind an address, and how many dimensions a function knows of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from bringup import jit
from bringup._language.c_call import Cluster, Extent
from bringup._language.expression import Opcode
from bringup.errors import SchemaError
from bringup.ops.contract.constraints import BoundConstraint, CheckKind
from bringup.ops.contract.expressions import parse_dimension
from bringup.ops.contract.outputs import BoundOutput
from bringup.ops.schema.schema import Schema

_TVM_FFI = "tvm_ffi:"
_REAL = (torch.bool, torch.int64, torch.float64)
_DTYPES = (Opcode.DTYPE, Opcode.DTYPE_CODE, Opcode.DTYPE_BITS)


@dataclass(frozen=True)
class CFunction:
    """The options of `kernel_op` that say how a function is called."""

    entry: str | None
    args: str | None
    returns: Literal["status", "void"] | None

    def of(self, source: jit.Source) -> jit.Source:
        """Return `source` with the options' entry and form. Raises `TypeError`, `ValueError`."""
        for option, value in vars(self).items():
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{option}={value!r}: expected a text, got {type(value).__name__}")
        entry = source.entry if self.entry is None else self.entry
        abi = source.abi if self.args is None else "function"
        if entry.startswith(_TVM_FFI):
            entry, abi = entry.removeprefix(_TVM_FFI), "tvm_ffi"
        if abi == "args" and self.returns is not None:
            raise ValueError(
                f"returns={self.returns!r}: is for a function with args=; kernel.h's entry returns "
                "a status"
            )
        if abi == "function" and not (self.args or "").strip():
            raise ValueError(
                "args=: say what the function gets, as in args='ptr(out), ptr(x), numel(x)'"
            )
        if (entry, abi) == (source.entry, source.abi):
            return source
        return replace(source, entry=entry, abi=abi)


@dataclass(frozen=True)
class GridSize:
    """The options of `kernel_op` that say over how many blocks and threads device code runs."""

    grid: Extent | None
    block: Extent | None
    shared: int | str | None
    work_items: Extent | None = None
    cluster: Cluster | None = None
    cooperative: bool | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Return what a template with plain arguments has of them; nothing for other kernels."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return given if self.block is not None or self.work_items is not None else {}

    def of(self, source: jit.Source) -> jit.Source:
        """Return `source` in the options' form. Raises `TypeError`, `ValueError`."""
        of_blocks = self.work_items is None or source.abi != "function"
        if self.block is None and of_blocks:
            for option in ("shared", "cluster", "cooperative"):
                if (value := getattr(self, option)) is not None:
                    raise ValueError(f"{option}={value!r}: needs block=, the threads of a block")
            for option, value in (("grid", self.grid), ("work_items", self.work_items)):
                if not isinstance(value, (int, str, type(None))):
                    raise ValueError(
                        f"{option}={value!r}: several dimensions are for device code with plain "
                        "arguments, which needs block= (its threads) or work_items=, and args="
                    )
            return source
        for option in ("grid", "block", "work_items"):
            value = getattr(self, option)
            sizes = value if isinstance(value, (list, tuple)) else [value]
            if value is not None and not all(isinstance(size, (int, str)) for size in sizes):
                raise TypeError(f"{option}={value!r}: expected numbers or expressions, up to three")
        if source.abi != "function":
            raise ValueError(
                f"block={self.block!r}: is for device code with plain arguments: say in args= what "
                "the function gets"
            )
        return replace(source, abi="values")


def with_dtypes(
    schema: Schema,
    bound: jit.BoundTemplate,
    outputs: Sequence[BoundOutput],
    checks: Sequence[BoundConstraint],
) -> tuple[BoundConstraint, ...]:
    """Return the contract with a check for each dtype that the function's parameters tell. Raises
    `SchemaError` for an address of unknown dtype, or an output allocated with another.
    """
    required = _required(schema, bound, outputs)
    made = [
        BoundConstraint(CheckKind.DTYPE, (index,), (), (dtype,))
        for index, dtype in sorted(required.items())
    ]
    steps = [step for parameter in bound.parameters for step in parameter.program]
    scalars = {step.argument for step in steps if step.opcode is Opcode.REAL}
    made += [BoundConstraint(CheckKind.DTYPE, (i,), (), _REAL) for i in sorted(scalars)]
    complete = (*checks, *made)
    if not any(check.kind is CheckKind.KERNEL for check in checks):
        _require_known(schema, bound, outputs, complete)
    return complete


def _required(
    schema: Schema, bound: jit.BoundTemplate, outputs: Sequence[BoundOutput]
) -> dict[int, torch.dtype]:
    """Return the dtypes of inputs that parameters tell, also those of outputs like them."""
    found: dict[int, torch.dtype] = {}
    inputs = len(schema.arguments)
    for parameter in bound.parameters:
        index = parameter.address_of
        if index < 0 or not parameter.dtype:
            continue
        dtype = getattr(torch, parameter.dtype)
        name = bound.signature[index].name
        if index >= inputs:
            if index - inputs == len(outputs):  # the counts
                continue
            output = outputs[index - inputs]
            if output.promoted:
                raise SchemaError(
                    f"{schema.qualified_name}: output {name} is allocated as what arguments are "
                    f"promoted to, and the function takes {dtype}"
                )
            if output.dtype_of < 0 and output.dtype != dtype:
                raise SchemaError(
                    f"{schema.qualified_name}: output {name} is allocated as {output.dtype}, and "
                    f"the function takes {dtype}"
                )
            index = output.dtype_of
        if found.get(index, dtype) != dtype:
            raise SchemaError(
                f"{schema.qualified_name}: the function takes {name} as {dtype}, and as "
                f"{found[index]}"
            )
        if index >= 0:
            found[index] = dtype
    return found


def _require_known(
    schema: Schema,
    bound: jit.BoundTemplate,
    outputs: Sequence[BoundOutput],
    checks: Sequence[BoundConstraint],
) -> None:
    known = {index for check in checks if check.kind is CheckKind.DTYPE for index in check.indices}
    known |= {index for _, index in bound.dtypes}
    for parameter in bound.parameters:
        known |= {step.argument for step in parameter.program if step.opcode in _DTYPES}
    _spread(known, [check.indices for check in checks if check.kind is CheckKind.SAME_DTYPE])
    inputs = len(schema.arguments)
    known.add(inputs + len(outputs))  # the counts
    for number, output in enumerate(outputs):
        needed = {*output.promoted} if output.promoted else {output.dtype_of} - {-1}
        if needed <= known:
            known.add(inputs + number)
    for parameter in bound.parameters:
        index = parameter.address_of
        if index < 0 or index in known:
            continue
        name = bound.signature[index].name
        raise SchemaError(
            f"{schema.qualified_name}: args= passes the address of {name}, and nothing says which "
            f"dtype the function takes there: write ptr({name}, float32), or checks="
            f"ops.dtype(...), or pass dtype({name}) as well; checks=ops.kernel_checks() when it "
            "takes every dtype"
        )


def implied_ranks(
    schema: Schema,
    bound: jit.BoundTemplate,
    outputs: Sequence[BoundOutput],
    checks: Sequence[BoundConstraint],
) -> tuple[BoundConstraint, ...]:
    """Return a check for each shape whose sizes the function gets one by one, and behind one of
    whose addresses it reads or writes: dimensions that `args=` does not name would be left out.
    None where a check says shape or rank, or the function gets `numel` or `ndim`. Raises
    `SchemaError` where the named axes are not all: of an output allocated with others, or
    `size(x,1)` without `size(x,0)`.
    """
    inputs, known = len(schema.arguments), len(schema.arguments) + len(outputs)
    groups = [check.indices for check in checks if check.kind is CheckKind.SAME_SHAPE]
    groups += [(inputs + n, output.like) for n, output in enumerate(outputs) if output.like >= 0]
    addressed = {parameter.address_of for parameter in bound.parameters}
    rank_kinds = (CheckKind.SHAPE, CheckKind.RANK)
    free = {index for check in checks if check.kind in rank_kinds for index in check.indices}
    axes: dict[tuple[int, ...], set[int]] = {}
    for step in (step for parameter in bound.parameters for step in parameter.program):
        if not 0 <= step.argument < known:
            continue
        alike = {step.argument}
        _spread(alike, groups)
        if step.opcode in (Opcode.NUMEL, Opcode.NDIM):
            free |= alike
        elif step.opcode in (Opcode.SIZE, Opcode.SIZE_OR) and addressed & alike:
            axes.setdefault(tuple(sorted(alike)), set()).add(step.dimension)
    kernel_checks = any(check.kind is CheckKind.KERNEL for check in checks)
    found = []
    for group, named in sorted(axes.items()):
        if free.intersection(group):
            continue
        index, rank = group[0], _rank_of(named)
        allocated = len(outputs[index - inputs].dimensions) if index >= inputs else rank
        if not rank or rank != allocated:
            if kernel_checks:
                continue
            raise SchemaError(_not_all(schema, bound.signature[index].name, named, allocated))
        if index < inputs:
            expected = (parse_dimension(rank, (), ""),)
            found.append(BoundConstraint(CheckKind.RANK, (index,), expected, ()))
    return tuple(found)


def _not_all(schema: Schema, name: str, named: set[int], allocated: int) -> str:
    given = ", ".join(f"size({name},{axis})" for axis in sorted(named))
    has = f"; it is allocated with {allocated} dimensions" if allocated else ""
    return (
        f"{schema.qualified_name}: args= passes {given}, which are not all sizes of a tensor{has}, "
        f"so the function would leave out the rest: pass those of every dimension, or "
        f"numel({name}), or say in checks= what there is, e.g. ops.rank('{name}', 2); checks="
        "ops.kernel_checks() when the function knows the others"
    )


def _rank_of(axes: set[int]) -> int:
    """Return how many dimensions there are when these are all; 0 where they may be some of more."""
    front, back = sum(axis >= 0 for axis in axes), sum(axis < 0 for axis in axes)
    complete = axes == {*range(front), *range(-back, 0)}
    return front + back if front > 0 and complete else 0


def _spread(known: set[int], groups: Sequence[Sequence[int]]) -> None:
    """Make every member of a group known of which one is."""
    for _ in groups:
        for group in groups:
            if known.intersection(group):
                known.update(group)
