"""Arguments to check an operator with, given or made from its schema, and variants of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from bringup.errors import BringupError, ContractError
from bringup.ops.contract.constraints import CheckKind
from bringup.ops.kernel.kernel_op import definition_of
from bringup.ops.schema.operator_facts import Facts
from bringup.ops.schema.schema import SchemaArgument

_SIZES = (2, 3, 4, 5)
_SCALARS: Mapping[str, Any] = {
    "int": 1, "float": 0.5, "bool": False, "int[]": [1, 1], "float[]": [0.5, 0.5],
    "bool[]": [True, False], "ScalarType": torch.float32,
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """What samples are made of."""

    # Those of a tensor whose contract leaves them open, by its number of dimensions.
    sizes: Callable[[int], tuple[int, ...]] = lambda rank: _SIZES[:rank]
    ranks: Sequence[int] = (2, 1, 3, 4)  # the numbers of dimensions that are tried, in this order
    dtype: torch.dtype = torch.float32  # of tensors whose contract leaves it open, or takes it
    # Whether one is made without the optional tensors, with them, or each.
    optional: Sequence[bool] = (False, True)
    memory: float = math.inf  # bytes that arguments and results may fill


@dataclass(frozen=True)
class Sample:
    """Arguments of one call. The tensors are never given to an operator, only copies of them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        args, kwargs = _pytree.tree_map_only(torch.Tensor, change, (self.args, dict(self.kwargs)))
        return Sample(args, kwargs)

    def mapped_inputs(self, facts: Facts, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        """Return the sample with every tensor changed that the operator only reads."""
        written = {id(tensor) for tensor in self.written(facts)}
        return self.mapped(lambda tensor: tensor if id(tensor) in written else change(tensor))

    def tensors(self) -> list[torch.Tensor]:
        leaves = _pytree.tree_leaves((self.args, dict(self.kwargs)))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def written(self, facts: Facts) -> list[torch.Tensor]:
        values = facts.values(self.args, self.kwargs)
        leaves = _pytree.tree_leaves([values[index] for index in facts.written])
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def copied(self) -> Sample:
        return self.mapped(_copy)


Samples = Iterable[Any] | Callable[[], Iterable[Any]]


def read(operator: str, samples: Samples) -> list[Sample]:
    """Return what a caller gave as samples. Raises `ValueError` if that is none or no arguments."""
    given = list(samples() if callable(samples) else samples)
    if not given:
        raise ValueError(f"{operator}: samples is empty; give the arguments of one call or more")
    return [_read_one(operator, index, item) for index, item in enumerate(given)]


def _read_one(operator: str, index: int, item: Any) -> Sample:
    if not isinstance(item, tuple):
        raise ValueError(
            f"{operator}: sample {index}: expected a tuple of arguments, or (args, kwargs), got "
            f"{type(item).__name__}; write (x,) for one argument"
        )
    if len(item) == 2 and isinstance(item[0], tuple) and isinstance(item[1], Mapping):
        return Sample(item[0], dict(item[1]))
    return Sample(item, {})


def generate(operator: str, form: Form = Form()) -> list[Sample]:
    """Return samples by schema and contract, without and with optional tensors. Raises `ValueError`
    where that cannot be, `MemoryError` where they would fill too much.
    """
    definition = definition_of(operator)
    if definition is None:
        raise ValueError(
            f"{operator} declares no contract to make samples from (it is no kernel operator); "
            "give samples=[(x, ...), ...], the arguments of one call or more"
        )
    reason = "there is no tensor among its arguments"
    optional = any(a.type == "Tensor" and a.optional for a in definition.schema.arguments)
    for rank in form.ranks:
        try:
            return [
                _fitting(definition, form, rank, with_optional=given)
                for given in (form.optional if optional else (False,))
            ]
        except (BringupError, IndexError, RuntimeError, TypeError) as error:
            reason = str(error)
    raise ValueError(
        f"{operator}: no arguments that its contract and its kernel take could be made from the "
        f"schema ({reason}); give samples=[(x, ...), ...], the arguments of one call or more"
    )


def _fitting(definition: Any, form: Form, rank: int, *, with_optional: bool) -> Sample:
    """Return arguments that the operator takes; raises what its contract or its kernel raises."""
    arguments = definition.schema.arguments
    dtypes = _dtypes(definition.checks, arguments, form.dtype)
    sizes = form.sizes(rank)
    values = [_value(a, dtypes[i], sizes, with_optional) for i, a in enumerate(arguments)]
    for _ in arguments:  # a shape may hang on another one
        for check in definition.checks:
            _fit(check, values, arguments, form)
    args, kwargs = definition.schema.split(values)
    leaves = _pytree.tree_leaves((values, definition.fake(*args, **kwargs)))
    filled = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
    if filled > form.memory:
        raise MemoryError(f"{definition.schema.qualified_name} would fill {filled:,} bytes")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sample = Sample(args, kwargs).mapped(_filled)
    copy = sample.copied()
    definition.function.overload(*copy.args, **copy.kwargs)
    return sample


def _dtypes(
    checks: Sequence[Any], arguments: Sequence[SchemaArgument], wanted: torch.dtype
) -> list[torch.dtype]:
    dtypes = [wanted] * len(arguments)
    for check in checks:
        if check.kind is CheckKind.DTYPE and wanted not in check.dtypes:
            for index in check.indices:
                dtypes[index] = check.dtypes[0]
    for check in checks:
        if check.kind is CheckKind.SAME_DTYPE:
            for index in check.indices:
                dtypes[index] = dtypes[check.indices[0]]
    return dtypes


def _value(
    argument: SchemaArgument, dtype: torch.dtype, sizes: tuple[int, ...], with_optional: bool
) -> Any:
    """Return a first value; tensors are on meta, their shapes still to be fitted."""
    if argument.type in {"Tensor", "Tensor[]"}:
        if argument.optional and not with_optional:
            return None
        tensor = torch.empty(sizes, dtype=dtype, device="meta")
        return tensor if argument.type == "Tensor" else [tensor, torch.empty_like(tensor)]
    if not argument.required or argument.optional:
        return argument.default
    if argument.type not in _SCALARS:
        raise ContractError(f"{argument.name} is a {argument.type} without a default")
    return dtype if argument.type == "ScalarType" else _SCALARS[argument.type]


def _fit(check: Any, values: list[Any], arguments: Sequence[SchemaArgument], form: Form) -> None:
    """Give the tensors of a check the shapes that it asks for."""
    targets = [i for i in check.indices if isinstance(values[i], torch.Tensor)]
    if check.kind is CheckKind.SAME_SHAPE and targets:
        for index in targets[1:]:
            values[index] = _resized(values[index], values[targets[0]].shape)
    elif check.kind is CheckKind.SHAPE:
        for index in targets:
            if values[index].dim() < len(check.dimensions):  # its own sizes may be among them
                values[index] = _resized(values[index], form.sizes(len(check.dimensions)))
            sizes = [n for d in check.dimensions for n in d.evaluate(values, arguments)]
            values[index] = _resized(values[index], sizes)


def _resized(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    return torch.empty(tuple(sizes), dtype=tensor.dtype, device="meta")


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return torch.randn(tensor.shape, dtype=torch.float32).to(tensor.dtype)
    return torch.randint(0, 2, tensor.shape).to(tensor.dtype)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if plain.layout is not torch.strided or plain.device.type == "meta":
        return plain.clone()
    storage = plain.untyped_storage().clone()
    copy = torch.empty(0, dtype=plain.dtype, device=plain.device)
    return copy.set_(storage, plain.storage_offset(), plain.shape, plain.stride())


def resized(sample: Sample, *, times: int) -> Iterator[tuple[str, Sample]]:
    """Yield the sample with one size, wherever it stands, 0 or 2 `times` as large, for each."""
    for size in sorted({size for tensor in sample.tensors() for size in tensor.shape if size}):
        yield (
            f"with size {times * size} in place of {size}",
            sample.mapped(lambda tensor, n=size: _with_size(tensor, n, times)),  # type: ignore[misc]
        )


def _with_size(tensor: torch.Tensor, old: int, times: int) -> torch.Tensor:
    for dim, size in enumerate(tensor.shape):
        if size == old:
            tensor = tensor.narrow(dim, 0, 0) if times == 0 else torch.cat([tensor] * times, dim)
    return tensor.detach().contiguous()
