"""What operators return: a run on fake tensors, remembered for calls that look the same.

A model repeats its layers, so most calls of one compilation look like one before. Torch's fake
kernels take a fraction of a millisecond each; a look and a new fake tensor take microseconds.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped]
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from bringup import ir
from bringup._native import has_torch_library, torch_library
from bringup.compiler.schema import overload_of, signature_of
from bringup.compiler.sizes import ARITHMETIC, Sizes
from bringup.errors import PassSkipException
from bringup.ir.node import map_argument

_MOST = 4096  # calls remembered by one dialect; then it begins again
_PLAIN = frozenset(
    {
        *(bool, int, complex, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)


class Look(NamedTuple):
    """What two tensors share that no consumer can tell apart; symbolic sizes as expressions."""

    shape: tuple[object, ...]
    dtype: torch.dtype
    device: torch.device
    strides: tuple[object, ...]


_QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
_NO_LOOK = Look((), torch.float32, torch.device("meta"), ())


class _Template(NamedTuple):
    """What a new tensor is made from."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device
    look: Look
    memory_size: object


class _Facts(NamedTuple):
    """What torch says of one tensor without data; each question costs half a microsecond."""

    tensor: torch.Tensor  # kept, so that its id stays its own
    key: tuple[object, ...] | None  # all that fake kernels see; None when that is not known
    look: Look
    is_plain: bool  # whether a template makes the like


class _UnlikeError(Exception):
    """A call may look like others with other results."""


class FakeInference:
    """Infers what calls of operators return, under one fake mode. Adds no guard.

    A result is made anew for calls whose arguments look the same. Not remembered: shared memory,
    operators that write or alias, and what depends on data.
    """

    def __init__(self, mode: Any, sizes: Sizes) -> None:
        self.mode = mode
        self._sizes = sizes
        self._known: dict[object, tuple[_Template, ...]] = {}
        self._facts: dict[int, _Facts] = {}

    @functools.cached_property
    def _read(self) -> Callable[[object], tuple[Any, ...] | None]:
        """Read all of a tensor without symbolic sizes at once, if the native library is there."""
        if not has_torch_library():
            return lambda tensor: None
        read: Callable[[object], tuple[Any, ...] | None]
        read = torch_library("shape inference").compiler.tensor_look
        return read

    def outputs(self, node: ir.Node, instead_of: ir.Value | None = None) -> tuple[object, ...]:
        """Return the meta of every output of `node`, from those of its inputs. Raises what the
        operator raises, and `PassSkipException` where it has no kernel on a GPU of theirs.

        That of `instead_of`, a value that goes and that the only output stands for, is taken over
        where it looks the same and has memory of its own: a new fake tensor costs more than all
        the rest, and views of the value keep the memory that is theirs.
        """
        if node.op_type in ARITHMETIC:
            return (self._number(node),)
        overload = overload_of(node.op_type)
        key = self._key(node, overload)
        known = self._known.get(key) if key is not None else None
        if known is not None:
            if instead_of is not None and len(known) == 1 and self._fits(instead_of, known[0]):
                return (instead_of.meta,)
            return tuple([self._made(template) for template in known])
        given = self._metas(node)
        _require_kernel(overload, given.values())
        arguments = [filled(argument, given) for argument in node.arguments]
        guards = _no_guards(self.mode)
        with unlogged(), guards, self.mode, enable_python_dispatcher(), torch.no_grad():
            metas = outputs_of(call(overload, arguments))
        if key is not None:
            self._remember(key, given.values(), metas)
        else:
            self._facts.clear()  # it may have written to its arguments
        return metas

    def _metas(self, node: ir.Node) -> dict[object, object]:
        """Return what stands for the values and symbolic sizes in the arguments of a node."""
        metas: dict[object, object] = {value: self._faked(value.meta) for value in node.inputs}
        for size in ir.sizes_in(node.arguments):
            metas[size] = self._sizes.symint(size, self.mode.shape_env)
        return metas

    def _faked(self, meta: Any) -> object:
        """Return a tensor without data in the mode; torch would make a new one at every call."""
        return self.mode.from_tensor(meta, static_shapes=True) if _is_plain_meta(meta) else meta

    def _number(self, node: ir.Node) -> object:
        """Return the size that a node computes from sizes."""
        metas = self._metas(node)
        with _no_guards(self.mode):
            return ARITHMETIC[node.op_type](*[filled(item, metas) for item in node.arguments])

    def _key(self, node: ir.Node, overload: Any) -> object:
        """Return what calls that return the same have in common; None when that is not known."""
        operator = node.operator
        unusual = (
            torch._C._is_any_autocast_enabled()
            or torch.is_inference_mode_enabled()
            or self.mode.propagate_real_tensors
        )
        if unusual or operator.mutates or operator.aliases:
            return None
        try:
            looks = tuple([self._look(argument) for argument in node.arguments])
        except _UnlikeError:
            return None
        return overload, torch.get_default_dtype(), looks

    def _look(self, argument: object) -> object:
        if isinstance(argument, ir.Value):
            argument = argument.meta
        kind = type(argument)
        if kind is FakeTensor or _is_plain_meta(argument):
            key = self._facts_of(argument).key
            if key is None:
                raise _UnlikeError
            return key
        if kind in _PLAIN:
            return kind, argument
        if kind is float:  # a text tells 0.0 from -0.0, and is equal for two NaNs
            return kind, repr(argument)
        if isinstance(argument, (tuple, list)):
            return tuple([self._look(item) for item in argument])
        if kind is torch.SymInt:
            if free_unbacked_symbols(argument):  # one that only the data tell
                raise _UnlikeError
            return kind, expression(argument)
        raise _UnlikeError

    def _facts_of(self, tensor: Any) -> _Facts:
        known = self._facts.get(id(tensor))
        if known is None:
            if len(self._facts) >= _MOST:
                self._facts.clear()
            known = self._facts[id(tensor)] = self._looked_at(tensor)
        return known

    def _looked_at(self, tensor: Any) -> _Facts:
        key: tuple[object, ...] | None = None
        is_fake = type(tensor) is FakeTensor
        if is_fake and (tensor.fake_mode is not self.mode or tensor.constant is not None):
            return _Facts(tensor, None, _NO_LOOK, False)
        if (read := self._read(tensor)) is not None:
            shape, strides, offset, dtype, requires_grad = read
            device = tensor.fake_device if is_fake else tensor.device
            seen = Look(shape, dtype, device, strides)
            key = (shape, strides, offset, dtype, device, requires_grad)
            return _Facts(tensor, key, seen, self._is_plain(tensor, seen, offset, requires_grad))
        found = look(tensor)
        if (
            found is None
            or (found.dtype.is_complex and tensor.is_conj())
            or tensor.is_neg()
            or tensor._is_zerotensor()
        ):
            return _Facts(tensor, None, _NO_LOOK, False)
        seen = found
        offset = expression(tensor.storage_offset())
        requires_grad = tensor.requires_grad
        is_data_dependent = (
            is_fake and tensor._has_symbolic_sizes_strides and free_unbacked_symbols(tensor)
        )
        if not is_data_dependent:
            key = (seen.shape, seen.strides, offset, seen.dtype, seen.device, requires_grad)
        is_plain = key is not None and self._is_plain(tensor, seen, offset, requires_grad)
        return _Facts(tensor, key, seen, is_plain)

    def _is_plain(self, tensor: Any, seen: Look, offset: object, requires_grad: bool) -> bool:
        """Return whether a template makes the like."""
        has_data = type(tensor) is FakeTensor and tensor.real_tensor is not None
        return (
            not has_data
            and not requires_grad
            and seen.dtype not in _QUANTIZED
            and bool(offset == 0)
        )

    def _remember(self, key: object, given: Iterable[object], metas: Sequence[Any]) -> None:
        memory = {_memory(meta) for meta in given if isinstance(meta, torch.Tensor)}
        templates: list[_Template] = []
        for meta in metas:
            if type(meta) is not FakeTensor:
                return
            facts = self._facts_of(meta)
            own = _memory(meta)
            if not facts.is_plain or own in memory:
                return
            memory.add(own)
            template = _Template(
                tuple(meta.shape),
                tuple(meta.stride()),
                meta.dtype,
                meta.fake_device,
                facts.look,
                _memory_size(meta),
            )
            if not _same_memory_size(self._made(template), meta):
                return
            templates.append(template)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = tuple(templates)

    def _fits(self, old: ir.Value, template: _Template) -> bool:
        """Return whether a value that goes has a fake tensor as `template` makes them."""
        meta: Any = old.meta
        if type(meta) is not FakeTensor and not _is_plain_meta(meta):
            return False
        facts = self._facts_of(meta)
        if not facts.is_plain or facts.look != template.look:
            return False
        return _memory_size(meta) == template.memory_size and not any(
            isinstance(value.meta, torch.Tensor) and torch._C._is_alias_of(meta, value.meta)
            for value in old.node.inputs
        )

    def _made(self, template: _Template) -> FakeTensor:
        shape, strides, dtype, device = template[:4]
        symbolic = any(type(size) is torch.SymInt for size in (*shape, *strides))
        with torch._C._DisableTorchDispatch():
            if not symbolic:
                empty = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            else:
                with _no_guards(self.mode):
                    empty = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            return FakeTensor(self.mode, empty, device)


def _is_plain_meta(meta: object) -> bool:
    """Return whether this is a tensor without data that no fake mode made (`device="meta"`)."""
    return isinstance(meta, torch.Tensor) and type(meta) is torch.Tensor and meta.is_meta


def look(meta: object) -> Look | None:
    """Return how a tensor looks to its consumers; None for what is no tensor with strides."""
    if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided:
        return None
    shape, strides = tuple(meta.shape), meta.stride()
    if not isinstance(meta, FakeTensor) or meta._has_symbolic_sizes_strides:
        shape = tuple([expression(size) for size in shape])
        strides = tuple([expression(stride) for stride in strides])
    return Look(shape, meta.dtype, meta.device, strides)


def expression(value: object) -> object:
    """Return what a symbolic integer stands for, which can be compared without a guard."""
    return value.node.expr if isinstance(value, torch.SymInt) else value


def call(overload: Any, arguments: Sequence[object]) -> object:
    positional, keywords = [], {}
    for slot, argument in zip(signature_of(overload), arguments, strict=True):
        if slot.kwarg_only:
            keywords[slot.name] = argument
        else:
            positional.append(argument)
    return overload(*positional, **keywords)


def filled(argument: object, replace: Mapping[Any, object]) -> object:
    """Return an argument of a node as torch takes it: values exchanged, lists for tuples."""
    exchanged = map_argument(argument, replace)
    return list(exchanged) if isinstance(exchanged, tuple) else exchanged


def outputs_of(result: object) -> tuple[object, ...]:
    """Return what an operator returned, as one item an output."""
    if result is None:
        return ()
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _memory(tensor: Any) -> int:
    """Return what tells the memory of a tensor from others."""
    address: int = tensor.untyped_storage()._cdata
    return address


def _memory_size(tensor: Any) -> object:
    return expression(tensor.untyped_storage().nbytes())


def _same_memory_size(left: Any, right: Any) -> bool:
    sizes = [_memory_size(tensor) for tensor in (left, right)]
    if all(isinstance(size, int) for size in sizes):
        return sizes[0] == sizes[1]
    return bool(sympy.expand(sizes[0]) == sympy.expand(sizes[1]))


_RAISED: ContextVar[bool] = ContextVar("bringup_errors_are_raised", default=False)


class _NotRaised(logging.Filter):
    """Leaves out what torch logs about an error that reaches the caller anyway."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _RAISED.get()


for _name in ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"):
    logging.getLogger(_name).addFilter(_NotRaised())


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Torch logs no error that is raised in this block."""
    token = _RAISED.set(True)
    try:
        yield
    finally:
        _RAISED.reset(token)


@contextlib.contextmanager
def _no_guards(mode: Any) -> Iterator[None]:
    if mode.shape_env is None:
        yield
        return
    with mode.shape_env.suppress_guards(), mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


def _require_kernel(overload: Any, metas: Iterable[object]) -> None:
    """Raise `PassSkipException` for an operator of a library that has kernels, but none for the
    device of an input: torch's CUDA backend, or a driver's device whose code is in another
    language. The CPU has a kernel for every operator of ours.
    """
    if overload.namespace in ("aten", "prims"):
        return
    name = overload.name()
    kinds = {meta.device.type for meta in metas if isinstance(meta, torch.Tensor)}
    if "cuda" in kinds and not torch._C._dispatch_has_computed_kernel_for_dispatch_key(
        name, "CUDA"
    ):
        raise PassSkipException(f"{name} has no kernel for cuda")
    driven = torch._C._get_privateuse1_backend_name()
    if driven in kinds:
        from bringup.ops.kernel.availability import wrong_language  # with the first such device

        if reason := wrong_language(name, driven):
            raise PassSkipException(f"{name} has no kernel for {driven}: {reason}")
