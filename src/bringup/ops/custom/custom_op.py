"""`custom_op`: a Python function becomes a torch operator."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any, Literal, overload

import torch
from torch.autograd import forward_ad

from bringup.errors import SchemaError
from bringup.ops.custom.structured_arguments import Structure
from bringup.ops.registration.autograd import (
    call_boxed,
    direct_node_class,
    runner_below_autograd,
)
from bringup.ops.registration.definition_rollback import defining, note, rehearsed
from bringup.ops.registration.functionalize import refuse_taken_name
from bringup.ops.registration.handle_lifetime import (
    REDEFINED,
    UNDEFINED,
    destroy,
    expired,
    hold_for_users,
)
from bringup.ops.registration.methods import Function, RegistrationMethods
from bringup.ops.registration.pickling import find_operator_by, reduced
from bringup.ops.registration.vmap import GeneratedRule
from bringup.ops.schema.dispatch_keys import AUTOGRAD_KEYS, device_key, listed
from bringup.ops.schema.infer import infer, registered_text, tags_of, taken
from bringup.ops.schema.operator_facts import find_overload
from bringup.ops.schema.schema import read_schema

_any_requires_grad = torch._C._any_requires_grad
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_in_function_mode = torch._C._is_torch_function_mode_enabled
_has_torch_function = torch._C._has_torch_function_variadic
_in_functorch = torch._C._are_functorch_transforms_active
_included = torch._C._dispatch_tls_local_include_set
_in_autocast = torch._C._is_any_autocast_enabled
_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
_set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_registered_by_others = torch.library._impls


def _untouched_keys() -> Any:
    """Return the keys that a thread includes where nothing is switched on."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(_included()))
    thread.start()
    thread.join()
    return found[0]


_UNTOUCHED = _untouched_keys()
_operators: dict[str, CustomOperator] = {}


class _Constructor(type):
    """Lets `CustomOpHandle(qualname, schema, impl_fn, mutates_args)` define an operator."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "qualname" in kwargs or (args and isinstance(args[0], str)):
            return _from_schema(*args, **kwargs, make=cls)
        return super().__call__(*args, **kwargs)


class CustomOperator(RegistrationMethods, metaclass=_Constructor):
    """What `custom_op` returns: call it like the function; it is `overload`, only faster.

    The call goes around the autograd kernel where no gradient is to be recorded, and records it
    without a detour where one is. It does so only as long as nothing else has registered a kernel
    for autograd, and in a thread that is in no transform and no mode which could tell; to record,
    in one where nothing above autograd is switched on.

    `CustomOpHandle(qualname, schema, impl_fn, mutates_args=())` defines an operator too, as in
    mindtorch_v2.

    Attributes:
        schema: the schema as registered.
        qualified_name: `namespace::name`.
        overload: the operator in `torch.ops`.

    Args:
        operator: the operator, as it is registered.
        library: keeps its registrations.
        function: what it runs.
        structure: of arguments that are dicts, lists or tuples; None where all are flat.
        where: the place of the definition, for messages.
    """

    def __init__(
        self,
        operator: Any,
        library: torch.library.Library,
        function: Callable[..., Any],
        structure: Structure | None,
        where: str,
    ) -> None:
        super().__init__(operator, library)
        functools.update_wrapper(self, function)
        self.schema = str(operator._schema)
        self._function = function
        self._structure = structure
        self._where = where
        self._registered: dict[str, Callable[..., Any]] = {}  # by dispatch key
        self._disabled: set[str] = set()  # dispatch keys
        self._thread = weakref.ref(threading.current_thread())
        self._declared: tuple[Any, ...] = ()
        self._handle = operator._handle
        run = runner_below_autograd(operator)
        self._record = direct_node_class(self.facts, self._formula, run).apply
        self._arity = len(self.facts.names)
        self._direct = self.facts.simple and structure is None
        self._autograd_names = frozenset(f"{library.ns}/{self._bare}/{k}" for k in AUTOGRAD_KEYS)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return self._through_dispatcher(args, kwargs)
        if (
            self._direct
            and not kwargs
            and not _in_functorch()
            and forward_ad._current_level < 0
            and not _in_function_mode()
            and not _has_torch_function(*args)
            and self._autograd_names.isdisjoint(_registered_by_others)
        ):
            if not (_is_grad_enabled() and _any_requires_grad(*args)):
                if _is_excluded(_AUTOGRAD):
                    return call_boxed(self._handle, *args)
                _set_excluded(_AUTOGRAD, True)  # `below_autograd`, without its frame
                try:
                    return call_boxed(self._handle, *args)
                finally:
                    _set_excluded(_AUTOGRAD, False)
            if not _is_excluded(_AUTOGRAD) and not _in_autocast() and _included() == _UNTOUCHED:
                if len(args) == self._arity:
                    return self._record(*args)
                return self._record(*args, *self.facts.defaults[len(args) :])
        return self._through_dispatcher(args, kwargs)

    def _through_dispatcher(self, args: Any, kwargs: Any) -> Any:
        if self._structure is not None:
            args, kwargs = self._structure.flatten(args, kwargs)
        return self.overload(*args, **kwargs)

    def __reduce__(self) -> Any:
        """Reduce to the name: a copy is the operator itself, and so is what is unpickled."""
        return reduced(self.qualified_name, getattr(self._function, "__module__", None) or "")

    def __repr__(self) -> str:
        return f"<custom operator {self.qualified_name}>"

    def _adapt(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self._structure is None else self._structure.kernel(self.facts, function)

    def _put_kernel(self, key: str, function: Callable[..., Any]) -> None:
        self._registered[key] = function
        super()._put_kernel(key, self._function if key in self._disabled else function)

    @contextmanager
    def set_kernel_enabled(self, device_type: str, enabled: bool = True) -> Iterator[None]:
        """See `RegistrationMethods.set_kernel_enabled`."""
        key = device_key(device_type)
        if key not in self._registered:
            warnings.warn(f"{self.qualified_name} has no kernel for {device_type}", stacklevel=3)
        before = key in self._disabled
        self._enable(key, enabled)
        try:
            yield
        finally:
            self._enable(key, not before)

    def _enable(self, key: str, enabled: bool) -> None:
        (self._disabled.discard if enabled else self._disabled.add)(key)
        if key in self._registered:
            self._put_kernel(key, self._registered[key])

    def register_fake(self, function: Function) -> Function:
        """See `RegistrationMethods.register_fake`. Warns where a tag says what the fake is."""
        if self.facts.is_out or torch.Tag.inplace in self.overload.tags:
            warnings.warn(
                f"the fake of {self.qualified_name} is unnecessary, since its tag says what it "
                "returns; it is used instead",
                stacklevel=2,
            )
        return super().register_fake(function)

    def register_autograd(
        self, backward: Callable[..., Any], /, *, setup_context: Callable[..., Any] | None = None
    ) -> None:
        """See `RegistrationMethods.register_autograd`.

        Where the function takes structured arguments, `inputs` and the gradients are structured
        like them; a gradient may be None for all of one.
        """
        if self._structure is not None:
            backward = self._structure.backward(backward)
            if setup_context is not None:
                setup_context = self._structure.setup_context(setup_context)
        super().register_autograd(backward, setup_context=setup_context)

    def register_vmap(self, rule: Callable[..., Any] | GeneratedRule) -> Any:
        """See `RegistrationMethods.register_vmap`. The rule gets what the function gets."""
        if self._structure is None or not callable(rule):
            return super().register_vmap(rule)
        super().register_vmap(self._structure.vmap_rule(rule))
        return rule

    def undefine(self) -> None:
        """Remove the operator and free its name; calls of it raise `ExpiredHandleError`."""
        self._remove(UNDEFINED)

    def _remove(self, reason: str) -> None:
        with defining(self.qualified_name):
            if _operators.get(self.qualified_name) is not self:
                return
            del _operators[self.qualified_name]
            self._direct, self._structure = False, None
            self.overload = expired(self.qualified_name, reason)
            hold_for_users(self.qualified_name, self.overload)
            self.destroy()

    def _register(self, devices: Sequence[str] | None) -> None:
        if devices is None:
            self._put_kernel("CompositeExplicitAutograd", self._function)
        else:
            self.register_kernel(devices, self._function)
        super().register_fake(self._default_fake)
        self._install_autograd()
        self._install_versions()
        self.register_vmap("loop")
        if self.facts.pure_without_result:
            self.register_effect("ordered")

    def _default_fake(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the schema says: nothing, or the arguments that are written."""
        facts = self.facts
        if facts.returns_written:
            values = facts.values(args, kwargs)
            returned = tuple(values[index] for index in facts.returned)
            return returned if len(returned) > 1 else returned[0]
        if facts.returns:
            raise RuntimeError(
                f"{self.qualified_name} has no fake, which meta tensors, torch.compile and export "
                "need; give it one with register_fake"
            )
        return None


CustomOpHandle = CustomOperator  # mindtorch_v2's name for it


def find_custom_operator(name: str) -> CustomOperator | None:
    """Return the operator of this name that `custom_op` made, if there is one."""
    return _operators.get(name)


find_operator_by(find_custom_operator)


@overload
def custom_op(
    name: str,
    function: None = None,
    /,
    *,
    mutates_args: Iterable[str] | Literal["unknown"] | None = None,
    device_types: str | Iterable[str] | None = None,
    schema: str | None = None,
    tags: torch.Tag | Iterable[torch.Tag] | None = (),
    redefine: bool = False,
) -> Callable[[Callable[..., Any]], CustomOperator]: ...
@overload
def custom_op(
    name: str,
    function: Callable[..., Any],
    /,
    *,
    mutates_args: Iterable[str] | Literal["unknown"] | None = None,
    device_types: str | Iterable[str] | None = None,
    schema: str | None = None,
    tags: torch.Tag | Iterable[torch.Tag] | None = (),
    make: type[CustomOperator] = CustomOperator,
    redefine: bool = False,
) -> CustomOperator: ...
def custom_op(
    name: str,
    function: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: Iterable[str] | Literal["unknown"] | None = None,
    device_types: str | Iterable[str] | None = None,
    schema: str | None = None,
    tags: torch.Tag | Iterable[torch.Tag] | None = (),
    make: type[CustomOperator] = CustomOperator,
    redefine: bool = False,
) -> Any:
    """Make a torch operator of a Python function; a decorator.

    Parameters may be tensors, numbers, bool, str, dtypes, devices, their Optional forms, lists
    and tuples, and tuples of different types, named tuples, dataclasses and dictionaries with str
    keys, which become one argument of the schema for each member. A parameter without annotation
    is a Tensor. Returns: tensors, Optional and lists of them, numbers, str, None, or a tuple.

    Running the same definition again, as a notebook does, replaces the operator. What the earlier
    callable is called for from then on raises.

    Args:
        name: `"namespace::name"`, or `"namespace::name.overload"`; the operator is
            `torch.ops.namespace.name`.
        function: the function; left out when used as a decorator.
        mutates_args: names of the tensor parameters that the function writes, or "unknown" for all;
            by default none, or what `schema` says.
        device_types: device types that the function is for, "npu" for PrivateUse1; all by default.
        schema: the schema, `"(Tensor x, int n=1) -> Tensor"`, instead of the inferred one.
        tags: more `torch.Tag`s. What an operator with `Tag.inplace` or `Tag.out` returns is what it
            writes (`infer_schema`).
        make: a subclass of `CustomOperator` for what is returned. Called twice where an operator is
            replaced: once to see that it can be.
        redefine: replaces an operator of this name that another function has defined.

    Returns:
        The callable, which also registers fake, kernels, gradients and rules (`CustomOperator`).

    Raises:
        SchemaError: the name or the signature is wrong, or another function has defined the
            operator. Nothing is registered then, and an earlier operator stays.

    Examples:
        >>> from bringup import ops
        >>> @ops.custom_op("example::half")
        ... def half(x: torch.Tensor) -> torch.Tensor:
        ...     return x / 2
        >>> torch.ops.example.half(torch.ones(2))
        tensor([0.5000, 0.5000])
    """
    _parts(name)
    where = _caller()
    written = taken(mutates_args)
    devices = listed(device_types)
    more = tags_of(tags)

    def define(given: Callable[..., Any]) -> CustomOperator:
        return _define(name, given, written, devices, schema, more, where, make, redefine)

    return define if function is None else define(function)


def _caller() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("bringup.ops."):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _define(
    name: str,
    function: Callable[..., Any],
    mutates_args: Collection[str] | str | None,
    devices: Sequence[str] | None,
    schema: str | None,
    tags: Sequence[torch.Tag],
    where: str,
    make: type[CustomOperator],
    redefine: bool,
) -> CustomOperator:
    if not callable(function):
        raise SchemaError(f"{name}: expected a function to make an operator of, got {function!r}")
    structure = None
    if schema is None:
        signature = infer(function, () if mutates_args is None else mutates_args, tags)
        text = signature.text
        structure = None if signature.plain else Structure(name, signature)
    else:
        if not isinstance(schema, str) or "(" not in schema:
            raise SchemaError(
                f"{name}: schema={schema!r}: expected a text such as '(Tensor x) -> Tensor'"
            )
        text = schema[schema.find("(") :]
    text = registered_text(text)
    _check_text(name, text, mutates_args if schema is not None else None)
    for device in devices or ():
        device_key(device)

    def register(name: str) -> CustomOperator:
        """Return the operator in the dispatcher; nothing is left there when that fails."""
        namespace, bare = _parts(name)
        library = torch.library.Library(namespace, "FRAGMENT")
        try:
            _define_schema(library, name, bare + text, tags)
            operator = make(find_overload(name), library, function, structure, where)
            operator._register(devices)
            operator.install_functionalization(text)
        except BaseException:
            destroy(library)
            raise
        return operator

    with defining(name):
        known = _earlier(name, function, redefine)
        declared = (text, devices, tuple(tags), make)
        if known is not None and _is_of_another_thread(known, function, declared):
            return known
        if known is not None:
            _rehearse(name, register, known)
            known._remove(REDEFINED)
        operator = register(name)
        operator._declared = declared
        _operators[name] = operator
    note(operator)
    return operator


def _from_schema(
    qualname: str,
    schema: str,
    impl_fn: Callable[..., Any],
    mutates_args: Iterable[str] = (),
    *,
    make: Any,
) -> CustomOperator:
    """Return what mindtorch_v2 constructs as `CustomOpHandle`."""
    return custom_op(qualname, impl_fn, mutates_args=mutates_args, schema=schema, make=make)


def _rehearse(name: str, register: Callable[[str], CustomOperator], known: CustomOperator) -> None:
    """Register under another name and undo it: errors come before the earlier one is gone."""
    operator = register(rehearsed(name))
    try:
        refuse_taken_name(name, operator.facts, known.facts)
    finally:
        operator.destroy()


def _parts(name: str) -> tuple[str, str]:
    """Namespace and bare name of an operator. Raises `SchemaError` for what is no name."""
    namespace, separator, bare = name.partition("::") if isinstance(name, str) else ("", "", "")
    parts = (namespace, *bare.split(".", 1))
    if not (separator and name.isascii() and all(part.isidentifier() for part in parts)):
        raise SchemaError(
            f"{name!r} is not an operator name; expected 'namespace::name' or "
            "'namespace::name.overload', of ASCII letters, digits and _"
        )
    return namespace, bare


def _define_schema(
    library: torch.library.Library, name: str, text: str, tags: Sequence[torch.Tag]
) -> None:
    every = tuple(dict.fromkeys((torch.Tag.pt2_compliant_tag, *tags)))
    try:
        library.define(text, tags=every)
    except RuntimeError as error:
        if "multiple times" not in str(error):
            raise
        raise SchemaError(f"{name} is defined already, by other code: {error}") from error


def _check_text(name: str, text: str, mutates_args: Collection[str] | str | None) -> None:
    parsed = read_schema(name + text, name + text)
    written = {a.name for a in parsed.arguments if a.is_write}
    if mutates_args is not None and set(mutates_args) != written:
        raise SchemaError(
            f"{name}: mutates_args={mutates_args!r}, but the schema says that "
            f"{', '.join(sorted(written)) or 'nothing'} is written: {text}"
        )


def _earlier(name: str, function: Callable[..., Any], redefine: bool) -> CustomOperator | None:
    """Return the operator of this name, which `function` may replace."""
    known = _operators.get(name)
    if known is None:
        return None
    if not redefine and not _is_same_definition(known._function, function):
        raise SchemaError(
            f"{name} is defined already, at {known._where}; choose another name, pass "
            "redefine=True to replace it, or call undefine() on it first"
        )
    return known


def _is_of_another_thread(
    known: CustomOperator, function: Callable[..., Any], declared: tuple[Any, ...]
) -> bool:
    """Return whether another thread has run this very definition: both then have one operator."""
    return (
        known._thread() is not threading.current_thread()
        and known._declared == declared
        and _contents(known._function) == _contents(function)
    )


def _contents(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return what decides what a function does; compared by identity but for its code."""
    if not isinstance(function, FunctionType):
        return (id(function),)
    closure = inspect.getclosurevars(function).nonlocals.values()
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return function.__code__, *map(id, (function.__globals__, *closure, *defaults))


def _is_same_definition(earlier: Callable[..., Any], function: Callable[..., Any]) -> bool:
    """Return whether it is the function of that name in one file; unnamed ones by code."""
    if earlier is function:
        return True
    if not isinstance(earlier, FunctionType) or not isinstance(function, FunctionType):
        return False
    if function.__name__ == "<lambda>" and earlier.__code__ != function.__code__:
        return False

    def place(given: FunctionType) -> tuple[str, str, str]:
        file = "" if given.__module__ == "__main__" else given.__code__.co_filename
        return given.__module__, given.__qualname__, file

    return place(earlier) == place(function)
