"""Kernel operators in a process without the library that links libtorch: defined with
`torch.library`, run through Python, with the same contract, results and errors, only slower.

Owns the kernels registered for such an operator (backend, autograd, versions). The rules come from
its definition, the call of the kernel is in `host_frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

from bringup.errors import ContractError, ExpiredHandleError
from bringup.ops.contract.outputs import BoundOutput, cut
from bringup.ops.kernel.backward import keep_inputs
from bringup.ops.kernel.host_frame import HostFrame
from bringup.ops.kernel.variants import Variants
from bringup.ops.registration import autograd
from bringup.ops.registration.autograd import Formula
from bringup.ops.schema.facts import Facts, facts_of
from bringup.ops.schema.schema import Schema

__all__ = ["Definition", "PythonOperator"]

_is_grad_enabled = torch.is_grad_enabled


class Definition(Protocol):
    """What is declared of an operator, as `kernel_op` holds it."""

    schema: Schema
    outputs: tuple[BoundOutput, ...]
    variants: Variants
    strided: tuple[int, ...]
    library: Any

    def verify(self, values: Sequence[Any]) -> Any:
        """Checks the input contract and gives the device."""

    def kernel_for(self, device: str, values: Sequence[Any], *, again: bool = False) -> int:
        """The number of the kernel for a call; loaded anew with `again`."""


class PythonOperator:
    """The registrations of one operator, and its callable.

    Args:
        definition: what was declared; its schema is in the dispatcher already.
        overload: the operator in `torch.ops`.

    Attributes:
        function: the callable.
        formula: the gradient; changing it changes the next call.
        node: the autograd function that follows it.
        receivers: the arguments that can have a gradient; None for all tensors.
    """

    def __init__(self, definition: Definition, overload: Any) -> None:
        self._definition = definition
        self._facts: Facts = facts_of(overload)
        self._name = definition.schema.qualified_name
        self.formula = Formula(setup_context=keep_inputs)
        self.receivers: tuple[int, ...] | None = None
        self._closed = False
        self.function = self._callable(overload)
        self._register(overload)

    def close(self) -> None:
        """Lets calls of the callable raise."""
        self._closed = True

    def _callable(self, overload: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._closed:
                raise ExpiredHandleError(
                    f"{self._name} was removed by undefine(); define it again to call it"
                )
            return overload(*args, **kwargs)

        return _Callable(call, self._definition.schema)

    def _register(self, overload: Any) -> None:
        library, bare = self._definition.library, self._name.partition("::")[2]
        for key in ("CPU", "PrivateUse1"):
            library.impl(bare, self._run, key)
        self.node = autograd.node_class(self._facts, self.formula, self._name)
        self._record = autograd.autograd_kernel(self._facts, overload, self.node)
        self._redispatch = overload._handle.redispatch_boxed
        library.impl(bare, self._autograd, "Autograd", with_keyset=True)
        if self._facts.written:
            library.impl(bare, self._write, "ADInplaceOrView", with_keyset=True)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """The backend kernel: contract, layouts, outputs, launch."""
        definition = self._definition
        arguments = definition.schema.arguments
        values = definition.schema.bind(args, kwargs)
        try:
            self._refuse_none(values)
            device = definition.verify(values)
            self._check_written(values)
            passed = self._as_passed(values)
            kernel = definition.kernel_for(device.type, values)
            outputs = [
                rule.fake(i, values, arguments, device) for i, rule in enumerate(definition.outputs)
            ]
        except ContractError as error:
            prefix = "" if str(error).startswith(f"{self._name}: ") else f"{self._name}: "
            raise ContractError(f"{prefix}{error}") from None
        counts = torch.full((max((r.count for r in definition.outputs), default=-1) + 1,), -1)
        behind = [counts] if counts.numel() else []
        frame = HostFrame(self._name, arguments, passed, [*outputs, *behind])
        try:
            frame.run(kernel)
        except IndexError:  # somebody has unloaded the kernels that nothing held
            frame.run(definition.kernel_for(device.type, values, again=True))
        for i, rule in enumerate(definition.outputs):
            if rule.count >= 0:
                outputs[i] = cut(self._name, i, outputs[i], counts.tolist()[rule.count])
        if not outputs:
            outputs = [values[index] for index in definition.schema.returns]
        if not outputs:
            return None
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _as_passed(self, values: Sequence[Any]) -> list[Any]:
        """The arguments with copies of those whose layout the kernel does not take."""
        return [_each_tensor(value, partial(self._taken, i)) for i, value in enumerate(values)]

    def _taken(self, index: int, tensor: torch.Tensor) -> torch.Tensor:
        definition = self._definition
        if definition.variants.takes(index, tensor, definition.strided):
            return tensor
        argument = definition.schema.arguments[index]
        if argument.mutated:
            raise ContractError(
                f"{argument.name} is written and must be contiguous, got strides "
                f"{list(tensor.stride())} for sizes {list(tensor.shape)}; pass a contiguous "
                "tensor or name it in strided="
            )
        return tensor.contiguous()

    def _refuse_none(self, values: Sequence[Any]) -> None:
        for argument, value in zip(self._definition.schema.arguments, values, strict=True):
            items = value if argument.type == "Tensor[]" else (value,)
            needs_tensor = argument.type == "Tensor[]" or not argument.optional
            if argument.type in {"Tensor", "Tensor[]"} and needs_tensor and None in _kinds(items):
                raise ContractError(f"{argument.name} is None, expected a tensor")

    def _check_written(self, values: Sequence[Any]) -> None:
        facts = self._facts
        tensors = [
            (i, name, tensor)
            for i in range(len(values))
            for name, tensor in facts.tensors_of(values, (i,))
        ]
        for place, (index, name, tensor) in enumerate(tensors):
            if index not in facts.written:
                continue
            if tensor.is_inference() and not torch.is_inference_mode_enabled():
                raise ContractError(
                    f"{name} is an inference tensor and cannot be written outside "
                    "torch.inference_mode(); pass a .clone()"
                )
            if torch._debug_has_internal_overlap(tensor) == 1:
                raise ContractError(
                    f"{name} is written, but several of its elements share memory (strides "
                    f"{list(tensor.stride())}); pass a .clone()"
                )
            for other_index, other_name, other in [*tensors[:place], *tensors[place + 1 :]]:
                _check_overlap(name, tensor, other_name, other, other_index in facts.written)

    def _autograd(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        values = self._facts.values(args, kwargs)
        tensors = [t for _, t in self._facts.tensors_of(values, range(len(values)))]
        tangents = forward_ad._current_level >= 0 and any(
            forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
        )
        if tangents and self.formula.jvp is None:
            raise NotImplementedError(autograd.no_jvp(self._facts))
        if self.receivers is not None and not self._facts.written:
            tensors = [t for _, t in self._facts.tensors_of(values, self.receivers)]
        needs = _is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if not needs and not tangents:
            after = keyset & torch._C._after_autograd_keyset
            return autograd.below_autograd(self._redispatch, after, *args, **kwargs)
        return self._record(keyset, *args, **kwargs)

    def _write(self, keyset: Any, *args: Any, **kwargs: Any) -> Any:
        after = keyset & torch._C._after_ADInplaceOrView_keyset
        result = self._redispatch(after, *args, **kwargs)
        values = self._facts.values(args, kwargs)
        for _, tensor in self._facts.tensors_of(values, self._facts.written):
            torch.autograd.graph.increment_version(tensor)
        return result


class _Callable:
    """The callable: a function with attributes, in a type of its own, so that it is pickled by the
    operator's name.
    """

    def __init__(self, call: Callable[..., Any], schema: Schema) -> None:
        self._call = call
        self.__name__ = self.__qualname__ = schema.name.partition("::")[2]
        self.__text_signature__ = schema.signature()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the operator."""
        return self._call(*args, **kwargs)


def _each_tensor(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_each_tensor(item, change) for item in value]
    return value


def _overlap(one: torch.Tensor, other: torch.Tensor) -> str:
    """ "whole", "part" or "no": how two tensors share memory (at::get_overlap_status)."""
    storage = one.untyped_storage()
    if storage._cdata != other.untyped_storage()._cdata or not one.numel() or not other.numel():
        return "no"
    if not (_is_dense(one) and _is_dense(other)):
        return "no"  # not judged, as in torch
    begin, end = _extent(one)
    other_begin, other_end = _extent(other)
    if (begin, end) == (other_begin, other_end):
        return "whole" if one.stride() == other.stride() else "part"
    return "part" if begin < other_end and other_begin < end else "no"


def _check_overlap(
    name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor, other_written: bool
) -> None:
    """As torch's own operators: an input may be written as a whole, but not in part."""
    shared = _overlap(tensor, other)
    both = shared == "whole" and other_written
    if shared != "part" and not both:
        return
    raise ContractError(
        f"{name} is written, but shares {'its' if both else 'part of its'} memory with "
        f"{other_name}{', which is written too' if both else ''}; pass a .clone()"
    )


def _kinds(items: Sequence[Any]) -> list[Any]:
    """The items with a mark for every tensor, so that `in` compares none."""
    return [None if item is None else True for item in items]


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(tensor))


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()
