"""`Library`, and the functions that register for an operator by its name, of any origin."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from bringup.errors import SchemaError
from bringup.ops.custom.custom_op import find_custom_operator
from bringup.ops.registration.handle_lifetime import destroy, expired, hold_for_users
from bringup.ops.registration.methods import (
    Function,
    RegistrationMethods,
    forget,
    methods_by_name,
    remember,
)
from bringup.ops.registration.vmap import GeneratedRule
from bringup.ops.schema import dispatch_keys
from bringup.ops.schema.dispatch_keys import AUTOGRAD_KEYS
from bringup.ops.schema.infer import registered_text
from bringup.ops.schema.operator_facts import find_overload, is_defined

_kept: list[torch.library.Library] = []  # libraries of the free functions: for good, as torch's
_defined: weakref.WeakValueDictionary[str, _Defined] = weakref.WeakValueDictionary()
_of_libraries: weakref.WeakKeyDictionary[torch.library.Library, dict[Any, RegistrationMethods]] = (
    weakref.WeakKeyDictionary()
)


class _Defined(RegistrationMethods):
    """An operator of a `Library`, and the autograd kernel that it gets unless it brings its own."""

    def __init__(self, operator: Any) -> None:
        super().__init__(operator, _fragment(operator.namespace))
        self._brings_autograd = False

    def prepare(self, key: str) -> None:
        if key in {"Autograd", "CompositeImplicitAutograd"}:
            self._brings_autograd = True
            self._drop_autograd()
        elif key not in AUTOGRAD_KEYS and not self._brings_autograd:
            self._install_autograd()

    def with_lengths(self, function: Callable[..., Any], with_keyset: bool) -> Callable[..., Any]:
        """`function`, refusing lists whose length is not the schema's."""
        facts = self.facts
        if not facts.lengths or function is torch.library.fallthrough_kernel:
            return function

        @functools.wraps(function, updated=())
        def checked(*args: Any, **kwargs: Any) -> Any:
            facts.check_lengths(facts.values(args[1:] if with_keyset else args, kwargs))
            return function(*args, **kwargs)

        return checked

    def _install_autograd(self) -> None:
        if self._node is None:
            self._autograd_library = _fragment(self._library.ns)
        super()._install_autograd()

    def _drop_autograd(self) -> None:
        if self._node is not None:
            self._node = None
            self._autograd_library._destroy()

    def destroy(self) -> None:
        self._drop_autograd()
        super().destroy()


class Library(torch.library.Library):  # type: ignore[misc]
    """`torch.library.Library`, with every dispatch key by the name that people use for it.

    `define` takes schemas written with `int` (registered as `SymInt`) and `Tensor!`; `impl` is also
    a decorator. Backward through an operator that has no gradient raises and names it, and
    arguments that an operator writes get a new version. The registrations live as long as this
    object.

    Args:
        ns: the namespace.
        kind: "DEF" (one a namespace), "FRAGMENT" (adds to a namespace) or "IMPL" (defines nothing).
        dispatch_key: key of `impl` calls that name none.

    Raises:
        SchemaError: the kind or key is unknown, or the namespace is taken.
    """

    def __init__(self, ns: str, kind: str = "FRAGMENT", dispatch_key: str = "") -> None:
        self._operators: dict[str, _Defined] = {}
        if kind not in ("DEF", "FRAGMENT", "IMPL"):
            raise SchemaError(
                f"Library({ns!r}, {kind!r}): expected 'DEF', 'FRAGMENT' or 'IMPL' as its kind"
            )
        key = dispatch_key and dispatch_keys.dispatch_key(dispatch_key)
        try:
            super().__init__(ns, kind, key)
        except RuntimeError as error:
            raise SchemaError(
                f"there is a 'DEF' library for the namespace {ns!r} already; open it with "
                "'FRAGMENT' to add to it"
            ) from error

    def define(
        self, schema: str, alias_analysis: str = "", *, tags: Iterable[torch.Tag] | torch.Tag = ()
    ) -> str:
        """Define an operator, `"name(Tensor x, int n=1) -> Tensor"`, and return its name. Raises
        `SchemaError`: the text is no schema, the name is taken, or this library's kind is "IMPL".
        """
        if self.kind == "IMPL":
            raise SchemaError(
                f"a library of kind 'IMPL' defines no operators: open one for {self.ns!r} with "
                "'FRAGMENT'"
            )
        more = (tags,) if isinstance(tags, torch.Tag) else tuple(dict.fromkeys(tags))
        try:
            name = super().define(registered_text(schema), alias_analysis, tags=more)
        except RuntimeError as error:
            reason = next(iter(str(error).strip().splitlines()), "")
            what = "is defined already" if "multiple times" in reason else "is not a schema"
            raise SchemaError(f"{self.ns}: {schema!r} {what}: {reason}") from error
        qualified = name if "::" in name else f"{self.ns}::{name}"
        operator = self._operators[qualified] = _Defined(find_overload(qualified))
        _defined[operator.qualified_name] = operator
        operator._install_versions()
        operator.install_functionalization(registered_text(schema))
        return str(name)

    def impl(
        self,
        op_name: Any,
        fn: Callable[..., Any] | None = None,
        dispatch_key: str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = True,
    ) -> Any:
        """Register `fn` for an operator of this namespace at a dispatch key; also a decorator.

        Args:
            op_name: the operator's name, with or without namespace, or an `OpOverload`.
            fn: the implementation.
            dispatch_key: "CPU", "NPU", "Meta", "Autograd", ...; by default the library's, else
                "CompositeImplicitAutograd".
            with_keyset: whether `fn` gets the key set as its first argument.
            allow_override: False to refuse where Python has registered one already.

        Raises:
            SchemaError: the key is unknown.
            RuntimeError: there is no such operator.
        """
        key = dispatch_keys.dispatch_key(dispatch_key) if dispatch_key else self.dispatch_key
        if fn is None:

            def decorate(function: Function) -> Function:
                self.impl(
                    op_name, function, key, with_keyset=with_keyset, allow_override=allow_override
                )
                return function

            return decorate
        name = self._qualified(op_name)
        if not is_defined(name):
            raise RuntimeError(
                f"{name} cannot have an implementation for {key or 'all devices'}: there is no "
                "such operator; define it first"
            )
        operator = _defined.get(name)
        kernel = fn
        if operator is not None:
            operator.prepare(key or "CompositeImplicitAutograd")
            kernel = operator.with_lengths(fn, with_keyset)
        super().impl(op_name, kernel, key, with_keyset=with_keyset, allow_override=allow_override)
        return fn

    def _qualified(self, op_name: Any) -> str:
        if not isinstance(op_name, str):
            return str(op_name.name()).removesuffix(".default")
        return op_name if "::" in op_name else f"{self.ns}::{op_name}"

    def _destroy(self) -> None:
        for operator in self._operators.values():
            operator.destroy()
        self._operators.clear()
        for name in self._op_defs:
            hold_for_users(name, expired(name, "removed with the library that defined it"))
        destroy(self)


def impl(
    name: str,
    keys: str | Iterable[str],
    function: Callable[..., Any] | None = None,
    *,
    lib: Library | None = None,
) -> Any:
    """Register and return an implementation of any operator, `"namespace::name"`; a decorator, too.

    Args:
        name: the operator.
        keys: dispatch keys ("CPU", "NPU", "AutogradNPU") or device types ("cpu", "npu"), one or
            several; "default" for all devices.
        function: the implementation.
        lib: a library that keeps the registration; by default it is kept for good.

    Raises:
        SchemaError: a key is unknown.
        RuntimeError: there is no such operator.
    """
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if function is None:
        return lambda given: impl(name, names, given, lib=lib)
    chosen = [_key_of(key) for key in names]
    library = _keep(name) if lib is None else lib
    for key in chosen:
        library.impl(name, function, key)
    return function


def _key_of(name: str) -> str:
    if name == "default":
        return "CompositeExplicitAutograd"
    return (
        dispatch_keys.dispatch_key(name) if name[:1].isupper() else dispatch_keys.device_key(name)
    )


def _fragment(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "FRAGMENT")


def _keep(name: str) -> Library:
    library = Library(name.partition("::")[0], "IMPL")
    _kept.append(library)
    return library


def _registration_of(
    operator: Any, lib: torch.library.Library | None = None
) -> RegistrationMethods:
    """Return the methods of an operator, which register for as long as `lib`, or else it, lives."""
    if isinstance(operator, RegistrationMethods):
        return operator
    name = operator
    if isinstance(operator, torch._ops.OpOverload):
        name = operator.name().removesuffix(".default")
    elif not isinstance(operator, str):
        name = getattr(operator, "qualified_name", operator)
    if not isinstance(name, str):
        raise SchemaError(f"{operator!r} is no operator; expected 'namespace::name' or a callable")
    overload = find_overload(name)
    known = find_custom_operator(name) or _defined.get(name) or methods_by_name.get(name)
    if known is not None and known.overload is not overload:
        known = None
    if lib is not None and type(known) in (type(None), RegistrationMethods, _Defined):
        return _of_library(lib, name, overload)
    if known is not None:
        return known
    forget(name)  # an operator of this name that was removed without telling
    remember(name, RegistrationMethods(overload, _fragment(overload.namespace)))
    return methods_by_name[name]


def _of_library(lib: torch.library.Library, name: str, overload: Any) -> RegistrationMethods:
    if isinstance(lib, Library) and name in lib._operators:
        return lib._operators[name]
    if lib.ns != overload.namespace:
        raise SchemaError(
            f"{overload} cannot be registered for in a library of the namespace {lib.ns!r}"
        )
    methods = _of_libraries.setdefault(lib, {})
    if overload not in methods:
        methods[overload] = RegistrationMethods(overload, weakref.proxy(lib))
    return methods[overload]


def register_fake(
    operator: Any,
    function: Callable[..., Any] | None = None,
    *,
    lib: torch.library.Library | None = None,
) -> Any:
    """Register the fake of any operator, and return it; a decorator, too.

    Args:
        operator: `"namespace::name"`, an `OpOverload`, or the callable of an operator.
        function: gets the operator's arguments, gives outputs of the right shape, dtype and device.
        lib: keeps the registration as long as it lives; an operator of `custom_op` keeps its own.

    Raises:
        SchemaError: there is no such operator.
    """
    if function is None:
        return lambda given: register_fake(operator, given, lib=lib)
    return _registration_of(operator, lib).register_fake(function)


def register_kernel(
    operator: Any,
    device: str | Iterable[str] | None,
    function: Callable[..., Any] | None = None,
    *,
    lib: torch.library.Library | None = None,
) -> Any:
    """Register a kernel of any operator, and return it; a decorator, too.

    Args:
        operator, lib: as for `register_fake`, which says what is raised.
        device: `"cpu"`, `"npu"`, `"cuda"`, ..., or several of them; None for all that have no
            kernel of their own.
        function: gets the operator's arguments, gives its outputs.

    Raises:
        SchemaError: there is no such operator, or no such device.
    """
    return _registration_of(operator, lib).register_kernel(device, function)


def register_autograd(
    operator: Any,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: torch.library.Library | None = None,
) -> None:
    """Register the gradient of any operator. See `CustomOperator.register_autograd`.

    Args:
        operator, lib: as for `register_fake`, which says what is raised.
        backward: `backward(ctx, *gradients)` gives a gradient, or None, for each input.
        setup_context: `setup_context(ctx, inputs, output)` keeps what backward needs.
    """
    _registration_of(operator, lib).register_autograd(backward, setup_context=setup_context)


def register_jvp(
    operator: Any,
    jvp: Callable[..., Any] | None = None,
    *,
    lib: torch.library.Library | None = None,
) -> Any:
    """Register the forward-mode derivative of any operator, and return it; a decorator, too.

    Args:
        operator, lib: as for `register_fake`, which says what is raised.
        jvp: gives the tangents of the outputs.
    """
    if jvp is None:
        return lambda given: register_jvp(operator, given, lib=lib)
    return _registration_of(operator, lib).register_jvp(jvp)


def register_vmap(
    operator: Any,
    rule: Callable[..., Any] | GeneratedRule | None = None,
    *,
    lib: torch.library.Library | None = None,
) -> Any:
    """Register the batching rule of any operator, and return it; a decorator, too.

    Args:
        operator, lib: as for `register_fake`, which says what is raised.
        rule: a function, or "pointwise" or "loop" for one that is generated.
    """
    if rule is None:
        return lambda given: register_vmap(operator, given, lib=lib)
    return _registration_of(operator, lib).register_vmap(rule)


def register_autocast(
    operator: Any,
    device: str,
    dtype: torch.dtype,
    *,
    lib: torch.library.Library | None = None,
) -> None:
    """Register the autocast rule of any operator. See `CustomOperator.register_autocast`.

    Args:
        operator, lib: as for `register_fake`, which says what is raised.
        device: of the autocast region, `"cpu"` or `"npu"`.
        dtype: to which floating-point inputs are cast.
    """
    _registration_of(operator, lib).register_autocast(device, dtype)


def register_effect(
    operator: Any,
    effect: Literal["ordered"] | None,
    *,
    lib: torch.library.Library | None = None,
) -> None:
    """Declare the effect of any operator. See `CustomOperator.register_effect`.

    Args:
        operator, lib: as for `register_fake`, which says what is raised.
        effect: "ordered": calls are neither dropped nor reordered; None: it has none.
    """
    _registration_of(operator, lib).register_effect(effect)


def register_sharding(operator: Any, strategy: Callable[..., Any] | None = None) -> Any:
    """Register the sharding rule of any operator, and return it; a decorator, too.

    Args:
        operator: as for `register_fake`, which says what is raised.
        strategy: gives the acceptable shardings of outputs and inputs.
    """
    if strategy is None:
        return lambda given: register_sharding(operator, given)
    return _registration_of(operator).register_sharding(strategy)


def register_torch_dispatch(
    operator: Any,
    torch_dispatch_class: type,
    function: Callable[..., Any] | None = None,
    /,
    *,
    lib: torch.library.Library | None = None,
) -> Any:
    """Register what a tensor subclass or a `TorchDispatchMode` does with any operator, and return
    it; a decorator, too.

    Args:
        operator, lib: as for `register_fake`, which says what is raised.
        torch_dispatch_class: the subclass or mode.
        function: `function(mode, func, types, args, kwargs)`, with the class for a subclass; called
            instead of its `__torch_dispatch__`.
    """
    return _registration_of(operator, lib).register_torch_dispatch(torch_dispatch_class, function)
