"""What can be registered for every operator of this package after its definition, repeatedly."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

import torch
from torch._library.custom_ops import CustomOpDef

from bringup.errors import SchemaError
from bringup.ops.registration import functionalize
from bringup.ops.registration.autograd import Formula, autograd_kernel, node_class
from bringup.ops.registration.handle_lifetime import destroy
from bringup.ops.registration.python_kernel import FunctionCell, python_kernel
from bringup.ops.registration.vmap import GeneratedRule, batching_kernel, rule_for
from bringup.ops.schema.dispatch_keys import (
    autocast_key,
    device_key,
    device_keys,
    device_type,
    listed,
)
from bringup.ops.schema.operator_facts import Facts, facts_of

Function = TypeVar("Function", bound=Callable[..., Any])


class RegistrationMethods(CustomOpDef):  # type: ignore[misc]
    """What can be registered for an operator.

    A `CustomOpDef` in name only, so that `torch.library.opcheck` and `torch.library.register_*`
    take the handle; nothing of that class is used.

    Attributes:
        overload: the operator in `torch.ops`.
        qualified_name: `namespace::name`, with `.overload` where there is one.
    """

    overload: Any
    qualified_name: str
    facts: Facts

    def __init__(self, operator: Any, library: torch.library.Library) -> None:
        self.overload = operator
        self.facts = facts_of(operator)
        self.qualified_name = self.facts.name
        self._library = library
        self._autograd_library = library
        self._bare = self.facts.name.partition("::")[2]
        self._kernels: dict[str, FunctionCell] = {}
        self._casts: dict[str, torch.dtype] = {}
        self._fake: FunctionCell | None = None
        self._batching: FunctionCell | None = None
        self._formula = Formula()
        self._node: Any = None
        self._functionalized: Any = None
        self._torch_dispatch: dict[type, FunctionCell] = {}

    @property
    def _opoverload(self) -> Any:
        return self.overload

    @property
    def _qualname(self) -> str:
        return self.qualified_name

    def destroy(self) -> None:
        """Remove all that was registered for the operator after its definition."""
        self._functionalized = None
        destroy(self._library)

    @typing.overload
    def register_kernel(
        self, device: str | Iterable[str] | None, function: Function
    ) -> Function: ...
    @typing.overload
    def register_kernel(
        self, device: str | Iterable[str] | None, function: None = None
    ) -> Callable[[Function], Function]: ...
    def register_kernel(self, device: str | Iterable[str] | None, function: Any = None) -> Any:
        """Register the Python implementation for one device type or several, or with None for all
        that have none of their own; also a decorator.

        A later one replaces an earlier one, however either was given. "npu" is PrivateUse1. Raises
        `SchemaError`: there is no such device type, or the operator has neither a tensor nor a
        `device` argument that could say where to run.
        """
        devices = listed(device)
        if function is None:
            return lambda given: self.register_kernel(devices, given)
        for key in device_keys(devices):
            self._put_kernel(key, function)
        if devices is not None and not self.facts.tensors and not self.facts.lists:
            self._select_by_device()
        return function

    def set_kernel_enabled(
        self, device_type: str, enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Run what the operator was defined with, in a block, instead of a kernel for one device.

        A kernel that is registered in the block is not run in it either.

        Args:
            device_type: of the kernel; one that has none warns.
            enabled: True to run the kernel within a block in which it is not.

        Raises:
            SchemaError: there is no such device type, or the operator was defined without a
                function.
        """
        raise SchemaError(f"{self.qualified_name} was not defined with a function to run instead")

    def register_torch_dispatch(self, torch_dispatch_class: type, function: Any = None, /) -> Any:
        """Register what a tensor subclass or a `TorchDispatchMode` does with the operator; also a
        decorator. A later one for the same class replaces an earlier one.

        Args:
            torch_dispatch_class: the subclass or mode; it needs a `__torch_dispatch__`.
            function: `function(mode, func, types, args, kwargs)`, or with the class instead of the
                mode; called instead of `__torch_dispatch__`.
        """
        if function is None:
            return lambda given: self.register_torch_dispatch(torch_dispatch_class, given)
        slot = self._torch_dispatch.get(torch_dispatch_class)
        if slot is None:
            slot = self._torch_dispatch[torch_dispatch_class] = FunctionCell(function)
            self._library._register_torch_dispatch_rule(
                self._bare, torch_dispatch_class, lambda *args: slot.function(*args)
            )
        slot.function = function
        return function

    def _put_kernel(self, key: str, function: Callable[..., Any]) -> None:
        adapted = self._adapt(function)
        slot = self._kernels.get(key)
        if slot is not None:
            slot.function = adapted
            return
        slot = self._kernels[key] = FunctionCell(adapted)
        self._library.impl(self._bare, python_kernel(self.facts, slot), key)

    def _adapt(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as the dispatcher calls it: with the schema's arguments."""
        return function

    def _select_by_device(self) -> None:
        """Dispatch an operator without tensors by its `device` argument."""
        arguments = self.overload._schema.arguments
        index = next((i for i, a in enumerate(arguments) if str(a.type) == "Device"), None)
        if index is None:
            raise SchemaError(
                f"{self.qualified_name} has no tensor argument, so kernels for devices need an "
                "argument `device: torch.device`"
            )
        facts, redispatch = self.facts, self.overload._handle.redispatch_boxed

        def select(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            device = facts.values(args, kwargs)[index]
            key = getattr(torch._C.DispatchKey, device_key(device.type))
            return redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)

        if "BackendSelect" not in self._kernels:
            self._kernels["BackendSelect"] = FunctionCell(select)
            self._library.impl(self._bare, select, "BackendSelect", with_keyset=True)

    def register_fake(self, function: Function) -> Function:
        """Register what the operator does on fake and meta tensors; usable as a decorator.

        The function gets the operator's arguments and returns tensors of the right shape, dtype and
        strides. `torch.library.get_ctx().new_dynamic_size()` gives a size that depends on data.
        """
        adapted = self._adapt(function)
        if self._fake is None:
            slot, facts = FunctionCell(adapted), self.facts
            self._fake = slot

            def fake(*args: Any, **kwargs: Any) -> Any:
                values = facts.values(args, kwargs)
                facts.check_lengths(values)
                positional, keywords = facts.split(values)
                return slot.function(*positional, **keywords)

            torch.library.register_fake(
                self.qualified_name, fake, lib=self._library, allow_override=True
            )
        self._fake.function = adapted
        return function

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """Register a gradient formula written in Python.

        Args:
            backward: `backward(ctx, *grads)` gets one gradient for each output and returns one for
                each argument, None for those that have none; for a list of tensors, a list.
            setup_context: `setup_context(ctx, inputs, output)`, or `(ctx, inputs,
                keyword_only_inputs, output)` for an operator with keyword-only arguments, stores
                on `ctx` what `backward` needs. `inputs` has every argument, defaults included.
                `ctx` is that of `torch.autograd.Function`: `save_for_backward`,
                `needs_input_grad`, `mark_non_differentiable`, `set_materialize_grads`.

        Raises:
            SchemaError: the operator writes an argument or returns nothing, or `setup_context`
                takes other arguments.
        """
        self._formula.set_backward(self.facts, backward, setup_context)
        self._install_autograd()

    def register_jvp(self, jvp: Function) -> Function:
        """Register the forward-mode derivative; usable as a decorator.

        `jvp(ctx, *tangents)` gets one tangent for each argument (None for those without one) and
        the `ctx` that `setup_context` filled, and returns one tangent for each output.
        """
        self._formula.jvp = jvp
        self._install_autograd()
        return jvp

    def _install_autograd(self) -> None:
        """Put the autograd kernel in place, once. Without a formula its node raises."""
        if self._node is not None:
            return
        self._node = node_class(self.facts, self._formula)
        kernel = autograd_kernel(self.facts, self.overload, self._node)
        # Not by Library.impl: its book of names then shows whether other code has put a kernel
        # there, which the callable has to respect.
        self._autograd_library.m.impl(self._bare, "Autograd", kernel, True)

    def _install_versions(self) -> None:
        """Track the schema's views, and version counters of written arguments."""
        facts, overload = self.facts, self.overload
        if overload._schema._is_view_op():
            self._library.m.register_ad_inplace_or_view_fallback(self._bare)
            return
        if not facts.written:
            return
        redispatch = overload._handle.redispatch_boxed
        after = torch._C._after_ADInplaceOrView_keyset

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            values = facts.values(args, kwargs)
            result = redispatch(keyset & after, *args, **kwargs)
            for _, tensor in facts.tensors_of(values, facts.written):
                torch.autograd.graph.increment_version(tensor)
            return result

        self._library.impl(self._bare, kernel, "ADInplaceOrView", with_keyset=True)

    def install_functionalization(self, text: str, function: Any = None) -> None:
        """Let compilers trace an operator of this schema that returns what it writes."""
        self._functionalized = functionalize.install(
            self.overload, self.facts, text, self._library, function
        )

    def register_vmap(self, rule: Callable[..., Any] | GeneratedRule) -> Any:
        """Register how the operator runs under `torch.vmap`; usable as a decorator.

        Args:
            rule: `rule(info, in_dims, *args)` returns the batched result and its batch dimensions,
                as for `torch.library.register_vmap`; `in_dims` has an entry for every argument,
                keyword-only ones last. Or "pointwise" for an operator that works element by
                element, called once with the batch in front and ranks aligned; or "loop" for one
                call a sample, which is what a `custom_op` does unless told otherwise. For an empty
                batch it asks the fake, and runs nothing.
        """
        function = rule_for(self.overload, self.facts, rule)
        if self._batching is None:
            self._batching = FunctionCell(function)
            kernel = batching_kernel(self.overload, self.facts, self._batching)
            self._library.impl(self._bare, kernel, "FuncTorchBatched", with_keyset=True)
        self._batching.function = function
        return rule

    def register_autocast(self, device: str, dtype: torch.dtype) -> None:
        """Make the operator run in `dtype` inside `torch.autocast(device)`.

        Floating-point tensors of that device, float64 excepted, are cast, also in lists and keyword
        arguments. Another call for the same device replaces the dtype. Raises `SchemaError`: the
        device has no autocast, or `dtype` is no floating-point dtype.
        """
        key = autocast_key(device)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise SchemaError(
                f"{self.qualified_name}: register_autocast(dtype={dtype!r}): expected a "
                "floating-point torch.dtype such as torch.bfloat16"
            )
        known = key in self._casts
        self._casts[key] = dtype
        if known:
            return
        outside = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        casts, call = self._casts, self.overload

        def kernel(*args: Any, **kwargs: Any) -> Any:
            type_, target = device_type(device), casts[key]
            with torch._C._ExcludeDispatchKeyGuard(outside):
                return call(
                    *(_cast(value, type_, target) for value in args),
                    **{name: _cast(value, type_, target) for name, value in kwargs.items()},
                )

        self._library.impl(self._bare, kernel, key)

    def register_effect(self, effect: Literal["ordered"] | None) -> None:
        """Say whether calls have an effect that their results do not show.

        "ordered": a compiler keeps every call and their order. None: a call whose result is not
        used may go. An operator that neither returns nor writes anything is "ordered" unless this
        says otherwise.
        """
        from torch._library.effects import EffectType

        if effect not in ("ordered", None):
            raise SchemaError(
                f"{self.qualified_name}: register_effect({effect!r}): expected 'ordered' or None"
            )
        self._library._register_effectful_op(
            self.qualified_name, EffectType.ORDERED if effect else None
        )

    def register_sharding(self, strategy: Function) -> Function:
        """Register how the operator runs on `DTensor`s; usable as a decorator.

        `strategy(*args)` gets `DTensorSpec`s for tensors and returns the acceptable placements, as
        for `torch.distributed.tensor.experimental.register_sharding`, to which this is handed on.
        Raises `SchemaError`: this torch was built without `torch.distributed`.
        """
        if not torch.distributed.is_available():
            raise SchemaError(
                f"{self.qualified_name}: a sharding rule needs a torch built with torch.distributed"
            )
        from torch.distributed.tensor.experimental import register_sharding

        register_sharding(self.overload)(strategy)
        return strategy


def _cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        eligible = (
            value.is_floating_point()
            and value.device.type == device
            and value.dtype is not torch.float64
        )
        return value.to(dtype) if eligible else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(item, device, dtype) for item in value)
    return value


methods_by_name: dict[str, RegistrationMethods] = {}


def remember(name: str, methods: RegistrationMethods) -> None:
    """Let ops.register_* find the methods of an operator by its name."""
    methods_by_name[name] = methods


def forget(name: str) -> None:
    """Remove what was registered by name for an operator that is about to be removed."""
    known = methods_by_name.pop(name, None)
    if known is not None:
        known.destroy()
