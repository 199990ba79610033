"""`adopt`: a handle on an operator that other code registered, and what it refuses to replace."""

from __future__ import annotations

import difflib
import functools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from bringup._native import has_torch_library, torch_library
from bringup.errors import ExpiredHandleError, SchemaError
from bringup.ops.contract.outputs import BoundOutput
from bringup.ops.custom.custom_op import find_custom_operator
from bringup.ops.kernel.backward import formula_of, match
from bringup.ops.kernel.kernel_op import definition_of
from bringup.ops.registration.autograd import autograd_kernel
from bringup.ops.registration.definition_rollback import note
from bringup.ops.registration.handle_lifetime import hold
from bringup.ops.registration.methods import RegistrationMethods
from bringup.ops.registration.vmap import GeneratedRule
from bringup.ops.schema.dispatch_keys import AUTOGRAD_KEYS, autocast_key, device_keys, listed
from bringup.ops.schema.operator_facts import find_overload, is_dispatched
from bringup.ops.schema.schema import Schema, SchemaArgument, type_of

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_is_compiling = torch.compiler.is_compiling
_registered = torch.library._impls
_COMPOSITE = "CompositeImplicitAutograd"

_handles: weakref.WeakValueDictionary[str, AdoptedOperator] = weakref.WeakValueDictionary()


class AdoptedOperator(RegistrationMethods):
    """What `adopt` returns: call it like the operator, and register what it lacks.

    Each `register_` function refuses to take the place of what the operator has, unless `override`
    is true; what the handle itself has registered may be replaced at any time. All of it goes with
    the handle: with `undefine()`, or when it is freed. The operator is then as it was.

    A call does what a call of the overload in `torch.ops` does. It goes to the dispatcher without
    Python in between where the arguments have the schema's own types (exact tensors, numbers,
    strings, lists of these), and calls the overload in every other case, in a torch-function mode
    and without the native library.

    Attributes:
        schema: the schema as registered.
        qualified_name: `namespace::name`, with `.overload` where there is one.
        overload: the operator in `torch.ops`.
    """

    def __init__(self, operator: Any) -> None:
        super().__init__(operator, torch.library.Library(operator.namespace, "FRAGMENT"))
        self.schema = str(operator._schema)
        self.__name__ = self._bare
        self._held = hold(self.qualified_name)  # else the call could lead anywhere
        self._call = operator._op  # what the overload calls; Dynamo knows the overload only
        self._ours: set[str] = set()
        self._former: set[str] = set()
        self._finalizer = weakref.finalize(self, _give_back, self._library, self._former)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the operator. `ExpiredHandleError` when it is no longer defined."""
        if _is_compiling():
            return self.overload(*args, **kwargs)
        try:
            return self._call(*args, **kwargs)
        except RuntimeError as error:
            if isinstance(error, ExpiredHandleError) or is_dispatched(self.qualified_name):
                raise
            raise ExpiredHandleError(
                f"{self.qualified_name} was removed by its definer; define it again, and adopt that"
            ) from None

    def __reduce__(self) -> Any:
        """Reduce to the name: a copy is itself; what is unpickled is a handle of its own."""
        return adopt, (self.qualified_name,)

    def __repr__(self) -> str:
        return f"<adopted operator {self.qualified_name}>"

    def register_kernel(
        self, device: str | Iterable[str] | None, function: Any = None, *, override: bool = False
    ) -> Any:
        """Register a kernel, and return it, as `KernelOperator.register_kernel` does; a decorator
        without `function`. `SchemaError` when the operator has one for the device.

        Args:
            device: `"cpu"`, `"npu"`, ..., or several; None for all that have none of their own.
            function: gets the operator's arguments, returns its outputs.
            override: True takes the place of what is there, as long as this handle is held.
        """
        devices = listed(device)
        if function is None:
            return lambda given: self.register_kernel(devices, given, override=override)
        keys = device_keys(devices)
        with self._taking("a kernel", keys, override):
            return super().register_kernel(devices, function)

    def register_fake(self, function: Any = None, *, override: bool = False) -> Any:
        """See `CustomOperator.register_fake`. `SchemaError` without `override` when the operator
        has a fake or a Meta kernel, or is made of operators that have one.
        """
        if function is None:
            return lambda given: self.register_fake(given, override=override)
        with self._taking("a fake", ["Meta"], override):
            return super().register_fake(function)

    def register_autograd(
        self,
        backward: Callable[..., Any],
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
        override: bool = False,
    ) -> None:
        """See `CustomOperator.register_autograd`. `SchemaError`: it has one, and no `override`."""
        with self._taking("a gradient", sorted(AUTOGRAD_KEYS), override):
            super().register_autograd(backward, setup_context=setup_context)

    def register_jvp(self, jvp: Any = None, *, override: bool = False) -> Any:
        """See `CustomOperator.register_jvp`. `SchemaError` for a gradient without `override`."""
        if jvp is None:
            return lambda given: self.register_jvp(given, override=override)
        with self._taking("a gradient", sorted(AUTOGRAD_KEYS), override):
            return super().register_jvp(jvp)

    def register_backward(
        self,
        operator: str,
        *,
        save: Sequence[str] = (),
        gradients: Sequence[str] | None = None,
        override: bool = False,
    ) -> None:
        """Make another operator the backward of this one, as `KernelOperator.register_backward`
        does; an unneeded gradient is zeros for it.

        Args:
            operator: `"namespace::name"` of the backward.
            save: names of the tensors that it reads.
            gradients: names of the arguments that get gradients, in its order; all by default.
            override: True takes the place of a gradient that is there.

        Raises:
            SchemaError: the two operators do not fit together, or this one has a gradient.
        """
        schema = _schema_of(self.overload._schema)
        rule = BoundOutput(like=-1, dimensions=(), dtype_of=0, dtype=torch.float32)
        outputs = [rule for _ in self.facts.returns]
        backward, setup_context = formula_of(
            schema, match(schema, outputs, operator, save, gradients)
        )
        if self.facts.positional < len(self.facts.names):

            def with_keywords(ctx: Any, inputs: Any, keywords: Any, output: Any) -> None:
                setup_context(ctx, inputs, keywords, output)

            self.register_autograd(backward, setup_context=with_keywords, override=override)
        else:
            self.register_autograd(backward, setup_context=setup_context, override=override)

    def register_vmap(
        self, rule: Callable[..., Any] | GeneratedRule | None = None, *, override: bool = False
    ) -> Any:
        """See `CustomOperator.register_vmap`. `SchemaError` without `override` for a rule there."""
        if rule is None:
            return lambda given: self.register_vmap(given, override=override)
        with self._taking("a batching rule", ["FuncTorchBatched"], override):
            return super().register_vmap(rule)

    def register_autocast(self, device: str, dtype: torch.dtype, *, override: bool = False) -> None:
        """See `CustomOperator.register_autocast`. `SchemaError` for a rule without `override`."""
        with self._taking("an autocast rule", [autocast_key(device)], override):
            super().register_autocast(device, dtype)

    def undefine(self) -> None:
        """Take back what was registered through this handle, whose calls raise from then on."""
        if _handles.get(self.qualified_name) is self:
            del _handles[self.qualified_name]
        self.overload = self._call = _Expired(self.qualified_name)
        self._finalizer()

    @contextmanager
    def _taking(self, what: str, keys: Sequence[str], override: bool) -> Iterator[None]:
        """Permit a registration at these keys, of which one may be another library's."""
        if isinstance(self.overload, _Expired):
            self.overload()
        name = self.qualified_name
        present = [key for key in keys if key not in self._ours and _has_kernel(name, key)]
        if _has_kernel(name, _COMPOSITE) and what in ("a fake", "a gradient"):
            present.append(_COMPOSITE)
        if present and not override and not self._is_placeholder(what):
            why = (
                "it is made of operators that have one"
                if present == [_COMPOSITE]
                else f"at {', '.join(present)}"
            )
            raise SchemaError(
                f"{name} has {what} already ({why}); override=True takes its place "
                "as long as this handle is held"
            )
        # as torch's book of Python registrations calls them
        booked = {f"{name.replace('::', '/')}/{key}" for key in keys}
        self._former |= booked & (_registered - self._library._op_impls)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel is overridden, as asked
            with self._overriding(bool(present)):
                yield
            if what == "a gradient" and present:
                self._cover(present)
        self._ours.update(keys)

    def _is_placeholder(self, what: str) -> bool:
        """Return whether it is the kernel of a `torch.library.custom_op` that only raises."""
        member = {"a fake": "_abstract_fn", "a gradient": "_backward_fn"}.get(what)
        known = torch._library.custom_ops.OPDEFS.get(self.qualified_name)
        return known is not None and member is not None and getattr(known, member) is None

    @contextmanager
    def _overriding(self, override: bool) -> Iterator[None]:
        """Let the library take keys that a Python registration holds."""
        if not override:
            yield
            return
        library, plain = self._library, self._library.impl

        def impl(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **{**kwargs, "allow_override": True})

        library.impl = impl
        try:
            yield
        finally:
            del library.impl

    def _cover(self, keys: Sequence[str]) -> None:
        """Put the autograd kernel where one of another library's comes before the alias."""
        kernel = autograd_kernel(self.facts, self.overload, self._node)
        backends = [key for key in keys if key not in ("Autograd", _COMPOSITE)]
        if _COMPOSITE in keys:
            backends = sorted(AUTOGRAD_KEYS - {"Autograd", "AutogradNestedTensor"})
        for key in backends:
            if key not in self._ours:
                self._library.m.impl(self._bare, key, kernel, True)


def _give_back(library: torch.library.Library, former: set[str]) -> None:
    """Remove a handle's registrations, and restore those that it replaced."""
    library._destroy()
    library._op_impls.clear()  # torch strikes these out of its book once more later
    _registered.update(former)


class _Expired:
    """What stands for the operator of a handle that was given back."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        raise ExpiredHandleError(
            f"the handle on {self._name} was given back by undefine(); adopt the operator again"
        )


def adopt(operator: str | Any) -> AdoptedOperator:
    """Return a handle on an operator of another library, in C++ or in Python.

    It adds what the operator lacks (a fake, a gradient, a batching rule, ...) with the methods of
    our own operators, and its host arguments become slots of captured graphs. Keep the handle:
    what it has registered goes with it. A second `adopt` gives the same handle.

    Args:
        operator: `"namespace::name"`, `"namespace::name.overload"`, or the operator of `torch.ops`.

    Raises:
        SchemaError: there is no such operator, or it is one of `kernel_op` or `custom_op`, whose
            callable has these methods.
    """
    name = operator
    if isinstance(operator, torch._ops.OpOverload):
        name = operator.name().removesuffix(".default")
    elif isinstance(operator, torch._ops.OpOverloadPacket):
        name = operator._qualified_op_name
    if not isinstance(name, str):
        raise SchemaError(
            f"ops.adopt({operator!r}): expected 'namespace::name' or an operator of torch.ops, got "
            f"{type(operator).__name__}"
        )
    name = name.removesuffix(".default")
    _check_known(name)
    known = _handles.get(name)
    if known is not None and known.overload is find_overload(name):
        return known
    handle = _handle_type()(find_overload(name))
    _handles[name] = handle
    note(handle)
    return handle


@functools.cache
def _handle_type() -> type[AdoptedOperator]:
    """`AdoptedOperator`, with native calls where the library is there."""
    if not has_torch_library():
        return AdoptedOperator
    base: Any = torch_library().ops.AdoptedCall

    class NativelyAdopted(AdoptedOperator, base):  # type: ignore[misc]
        """A handle whose calls begin in C++; Dynamo traces `__call__` instead."""

        def __init__(self, operator: Any) -> None:
            super().__init__(operator)
            self._open(operator._schema.name, operator._schema.overload_name)

        def undefine(self) -> None:
            self._close()
            super().undefine()

    return NativelyAdopted


def adopted_names() -> list[str]:
    """Return the operators that there are handles on."""
    return list(_handles)


def _check_known(name: str) -> None:
    if "::" not in name:
        raise SchemaError(f"ops.adopt({name!r}): expected 'namespace::name'")
    if definition_of(name) is not None or find_custom_operator(name) is not None:
        raise SchemaError(
            f"ops.adopt({name!r}): it is an operator of bringup; its callable has these methods"
        )
    if is_dispatched(name):
        return
    raise SchemaError(f"ops.adopt({name!r}): there is no such operator{_near(name)}")


def _near(name: str) -> str:
    known = [full.removesuffix(".default") for full in torch._C._dispatch_get_all_op_names()]
    known = [full for full in known if full != name]  # registered for, but not defined
    overloads = [full for full in known if full.startswith(f"{name}.")]
    if overloads:
        return f"; its overloads are {', '.join(sorted(overloads))}"
    namespace, _, bare = name.partition("::")
    beside = sorted(full for full in known if full.startswith(f"{namespace}::"))
    if not beside:
        same = [full for full in known if full.partition("::")[2] == bare]
        hint = f" (there is {' and '.join(sorted(same)[:3])})" if same else ""
        return (
            f"; nothing is registered in {namespace!r}, so import or load what registers it "
            f"first{hint}"
        )
    names = [full.partition("::")[2] for full in beside]
    near = [f"{namespace}::{found}" for found in difflib.get_close_matches(bare, names, 3, 0.6)]
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; {namespace} has {', '.join(beside[:8])}"


def _schema_of(parsed: Any) -> Schema:
    """Return the parts of a schema that matching a backward looks at; its types may be any."""
    arguments = tuple(
        SchemaArgument(a.name, *type_of(a), a.kwarg_only, a.is_write) for a in parsed.arguments
    )
    return Schema(
        text=str(parsed),
        name=parsed.name,
        overload=parsed.overload_name,
        arguments=arguments,
        returns=tuple(-1 for _ in parsed.returns),
        return_names=tuple(r.name for r in parsed.returns),
        return_types=tuple(
            "Tensor[]" if "List[" in str(r.type) else "Tensor" for r in parsed.returns
        ),
        index={a.name: i for i, a in enumerate(arguments)},
    )
