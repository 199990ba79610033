"""`devices.kernel`: a kernel for an operator that exists, on the device of the loaded driver."""

from __future__ import annotations

import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

import torch

from bringup import devices, jit
from bringup._language.c_call import Extent
from bringup._language.signature import ELEMENT_TYPES
from bringup._native import torch_library
from bringup.errors import DeviceError, SchemaError
from bringup.ops.kernel.kernel_source import locate
from bringup.ops.operators.contract import check_declared
from bringup.ops.operators.family import Kind, Overload, family_of
from bringup.ops.operators.planning import Declaration, PlainLaunch, Planner

_GROUPS: Mapping[str, tuple[torch.dtype, ...]] = {
    "floating": (torch.float16, torch.bfloat16, torch.float32, torch.float64),
    "integral": (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    "bool": (torch.bool,),
}

_HERE = __name__.rpartition(".")[0]
Form: TypeAlias = Literal["host", "device", "values"]  # in which a raw kernel is started

_lock = threading.Lock()
_registered: dict[str, OperatorKernel] = {}  # by overload
_in_front: dict[str, OperatorKernel] = {}  # of one of these, the host entry that is asked first


class OperatorKernel:
    """What `devices.kernel` returns: the kernel of a family of overloads.

    Attributes:
        operators: the overloads, "aten::gelu", "aten::gelu.out", ...
    """

    def __init__(self, where: str, handles: Mapping[str, Any], host: bool = False) -> None:
        """Keep `handles` by overload, declared at `where`; `host`: whose code the host runs."""
        self.operators: tuple[str, ...] = tuple(handles)
        self._where = where
        self._handles = dict(handles)
        self._host = host

    @property
    def enabled(self) -> bool:
        """Return whether calls come to the kernel; False also when it is closed."""
        return any(handle.enabled for handle in self._handles.values())

    def enable(self) -> None:
        """Let calls come to the kernel again. Raises `DeviceError` when it is closed."""
        if not self._handles:
            raise DeviceError(
                f"the kernel of {', '.join(self.operators)} is closed; declare it again with "
                "devices.kernel"
            )
        for handle in self._handles.values():
            handle.enabled = True

    def disable(self) -> None:
        """Let the operators fall back from now on, in all threads, as the fallback policy says."""
        for handle in self._handles.values():
            handle.enabled = False

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable the kernel for the time of a `with` block."""
        former = self.enabled
        self.disable()
        try:
            yield
        finally:
            if former:
                self.enable()

    def close(self) -> None:
        """Take the kernel out of the dispatcher. Captured graphs go on with it."""
        with _lock:
            self._take_out(self.operators)

    def _take_out(self, operators: Sequence[str]) -> None:
        for name in operators:
            handle = self._handles.pop(name, None)
            if handle is None:
                continue
            handle.remove()
            if _in_front.get(name) is self:
                del _in_front[name]
            else:
                _registered.pop(name, None)
                if front := _in_front.get(name):
                    front._take_out([name])

    def __repr__(self) -> str:
        state = "enabled" if self.enabled else "disabled" if self._handles else "closed"
        return f"<kernel of {', '.join(self.operators)}: {state}>"


def kernel(
    operator: str,
    *,
    source: str | os.PathLike[str] | jit.Source | None = None,
    expression: str | None = None,
    kind: Kind = "pointwise",
    entry: str | None = None,
    supports: Iterable[torch.dtype | Literal["floating", "integral", "bool"]] = ("floating",),
    dtypes: Mapping[str, str] | None = None,
    strided: Iterable[str] = (),
    flags: Iterable[str] = (),
    args: str | None = None,
    grid: Extent = 1,
    block: Extent = 1,
    shared: int | str = 0,
    work_items: Extent | None = None,
    host: bool = False,
    random: bool = False,
) -> OperatorKernel:
    """Give an operator of torch a kernel on the device of the loaded driver. Returns the handle
    with which the kernel is disabled or closed.

    Calls of all overloads of its family (functional, in place, into a given result) then come to
    the kernel, in stream order; what it does not support falls back as before. It is compiled on
    first use, once for each choice of dtypes. A second declaration for the same overload takes the
    place of the first, with a warning.

    Args:
        operator: "aten::add" for the family of its usual overload, or "aten::add.Tensor".
        source: device code: a path (looked up beside the calling file, then in the current folder),
            or a `jit.Source`. Its language is one of the device's target.
        expression: instead of a source what a pointwise kernel computes for one element, for every
            target: `"self + value * tensor1 * tensor2"`, with the names of the operator's arguments
            (the first tensors are `x`, `a`, `b` and `c`, too); several results are separated by
            commas. `jit.ElementExpression` says what it may have.
        kind: `"pointwise"`: a function template `T entry(T, ...)` that gives one element of the
            result, or `void entry(T, ..., T* out0, T* out1)` for several; the kit does
            broadcasting, promotion, layouts and empty tensors. Arguments come in schema order:
            tensors and Scalars as T, optional ones as `const T*`, strings as constants. T is the
            dtype in which torch computes, float for half precision. With `entry="run"` a C function
            of kernel.h's form, which gets views of one shape; T and OUT are macros, Scalars are
            double where T is of a floating type, else int64_t.
            `"reduction"`: a class template with `void add(T value, int64_t index)` and
            `result(int64_t count)`, which gives the one result, or `void result(int64_t count, T&,
            int64_t&)` for two; one is made for each result.
            `"raw"`: a C function of kernel.h's form, which gets the operator's arguments by its
            schema (Scalars as double where T or its first result is of a floating type, else as
            int64_t), then its results as torch's Meta kernel describes them.
        entry: the name of the function; by default the operator's own, `"run"` for raw kernels.
        supports: the dtypes that it computes in; with other ones the operator falls back. Of a raw
            kernel those of the first tensor in `dtypes`.
        dtypes: of a raw kernel, macro -> the argument or result ("out", "out0", ...) whose dtype's
            C type it is; by default T is the first tensor's.
        strided: of a raw kernel, the arguments that it takes in any layout; others are copied to
            rows where they are not contiguous. With `args` also results (`out`, `out0`, ...): where
            another one would not be contiguous, the operator falls back.
        flags: more compiler options.
        args: of a raw kernel, what its function gets as plain values, as in `ops.kernel_op`:
            `"ptr(self), ptr(out), numel(out)"`; the results are `out`, or `out0`, `out1`, ... By
            default it has kernel.h's form.
        grid: with `args`, the blocks: a number, an expression such as `"(numel(out) + 63) // 64"`,
            or up to three of them. Where the first is 0 there is nothing to do, and where it is
            negative the operator falls back: `"numel(out) - (numel(out) + 1) * (groups != 1)"`.
        block: likewise, the threads of a block.
        shared: likewise, the bytes of a block's shared memory.
        work_items: instead of `grid`, `block` and `shared`, how many independent threads there are,
            which the device divides into blocks: `"numel(out)"`. None waits for another, and none
            but these run. 0 and less as for `grid`.
        host: of a raw kernel, whether it runs on the host and starts work on the device itself, by
            a vendor's library, in the stream that `ctx->stream` is. Then it is built for the host,
            and `source` can be a library that is built already. Where the operator has a kernel of
            device code, it goes in front of that one, which has the calls that it does not take (by
            dtype, or by its `bringup_can_implement`) and with which it is closed.
        random: whether a source draws random numbers though its operator takes no generator. Where
            it takes one, or this is so, a call takes one offset of the device's generator (none
            where its `training` or `train` is False), and the kernel gets, in the generator's place
            or behind all other arguments, `bringup_random` with the random words of the element
            (`bringup/random.h`), or of kind `"raw"` a list of two integers, seed and offset:
            `"generator[0], generator[1]"` in `args`.

    Raises:
        DeviceError: no driver is loaded, or another library has a kernel for the operator.
        SchemaError: there is no such operator, it has arguments that such a kernel cannot get, it
            gives views, or it is no reduction where `kind` says so.
        FileNotFoundError: the source is not there.
    """
    caller = _caller()
    if kind not in ("pointwise", "reduction", "raw"):
        raise SchemaError(
            f"devices.kernel({operator!r}): kind={kind!r}: expected 'pointwise', 'reduction' or "
            "'raw'"
        )
    family = family_of(operator, kind)
    for one in family:
        check_declared(one, kind)
    launch = None if args is None else PlainLaunch(args, grid, block, shared, work_items)
    sizes = (grid, block, shared, work_items)
    _check_options(operator, kind, source, expression, launch, sizes, host)
    form: Form = "host" if host else "device" if launch is None else "values"
    supported = _supported(operator, supports)
    made = None if expression is None else _expression(operator, expression, family[0], supported)
    declaration = Declaration(
        kind,
        None if source is None else _source(operator, source, kind, form, caller),
        entry or ("run" if kind == "raw" else operator.partition("::")[2].partition(".")[0]),
        supported,
        _macros(operator, kind, family[0], dtypes),
        tuple(flags),
        made,
        launch,
        random or (made is not None and made.draws),
    )
    names = strided if isinstance(strided, str) else tuple(strided)
    return _register(operator, family, declaration, names, caller)


def _caller() -> FrameType:
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_HERE):
        frame = frame.f_back
    return frame


def _register(
    operator: str,
    family: Sequence[Overload],
    declaration: Declaration,
    strided: Sequence[str],
    caller: FrameType,
) -> OperatorKernel:
    """Return all overloads or, where one is refused, none."""
    where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    native = torch_library("devices.kernel").operators
    driver = _driver(operator)
    planners = [
        (one, Planner(one, declaration, driver.device_name, driver.takes_plain_values))
        for one in family
    ]
    places = [_strided(operator, one, declaration.kind, strided) for one in family]
    handles: dict[str, Any] = {}
    host = declaration.source is not None and declaration.source.kind == "host"
    with _lock:
        _replace(operator, [one.qualified_name for one in family], where, caller, host)
        try:
            for (one, planner), any_layout in zip(planners, places, strict=True):
                handles[one.qualified_name] = native.register(
                    name=one.name,
                    overload=one.overload,
                    kind=getattr(native.Kind, declaration.kind),
                    strided=any_layout,
                    takes_views=declaration.takes_views,
                    random=declaration.random,
                    plan=planner,
                    behind=known._handles[one.qualified_name]
                    if (known := _registered.get(one.qualified_name))
                    else None,
                    most_listed=_most_listed(one, declaration),
                )
        except RuntimeError as error:
            for handle in handles.values():
                handle.remove()
            raise DeviceError(str(error)) from None
        made = OperatorKernel(where, handles, host)
        for name in handles:
            (_in_front if name in _registered else _registered)[name] = made
    return made


def _most_listed(overload: Overload, declaration: Declaration) -> int:
    """Return how many tensors a call of cat, or of an operator that writes lists, takes."""
    first = overload.parameters[0]
    writes_lists = first.written and first.role == "tensor_list" and overload.results == 0
    joins = overload.qualified_name == "aten::cat"
    if declaration.launch is None or not (writes_lists or joins):
        return 0
    numbers = re.findall(rf"\b{first.name}\[(\d+)\]", declaration.launch.args)
    return 1 + max(map(int, numbers), default=-1)


def _replace(
    operator: str, names: Sequence[str], where: str, caller: FrameType, host: bool
) -> None:
    """Take out what is registered for these overloads, of host entries alone for another one."""
    former = {
        id(known): known
        for name in names
        for there in (_in_front, _registered)
        if (known := there.get(name)) and (known._host or not host)
    }
    for known in former.values():
        if known._where != where:
            warnings.warn_explicit(
                f"devices.kernel({operator!r}) takes the place of the kernel that {known._where} "
                "declared; close() that one first where this is meant",
                UserWarning,
                caller.f_code.co_filename,
                caller.f_lineno,
                registry=caller.f_globals.setdefault("__warningregistry__", {}),
            )
        known._take_out(names)


def _check_options(
    operator: str,
    kind: Kind,
    source: object,
    expression: str | None,
    launch: PlainLaunch | None,
    sizes: tuple[Extent, Extent, int | str, Extent | None],
    host: bool,
) -> None:
    where = f"devices.kernel({operator!r})"
    if (source is None) == (expression is None):
        raise SchemaError(f"{where}: expected source= or expression=, one of them")
    if expression is not None and kind != "pointwise":
        raise SchemaError(f"{where}: expression= is of one element: kind='pointwise', not {kind!r}")
    if launch is not None and kind != "raw":
        raise SchemaError(f"{where}: args= belongs to kind='raw'; the kit starts a {kind} kernel")
    if launch is None and sizes != (1, 1, 0, None):
        raise SchemaError(f"{where}: grid=, block=, shared= and work_items= belong to args=")
    if host and (kind != "raw" or launch is not None):
        raise SchemaError(
            f"{where}: host=True is of a raw kernel of kernel.h's form, without args="
        )


def _expression(
    operator: str, text: str, primary: Overload, supported: frozenset[torch.dtype]
) -> jit.ElementExpression:
    operands = [p for p in primary.parameters if p.role not in ("out", "generator")]
    made = jit.ElementExpression(
        text,
        tuple(p.name for p in operands),
        tuple(p.name for p in operands if p.role == "tensor"),
        f"devices.kernel({operator!r}): expression=",
    )
    if made.results != primary.results:
        raise made.error(
            f"it has {made.results} results, the operator {primary.results}: one for each, with "
            "commas between them"
        )
    whole = sorted(str(dtype) for dtype in supported if not dtype.is_floating_point)
    if whole and made.floating_only:
        raise made.error(
            f"it divides, or has a fraction or a function of such, and supports= has {whole[0]}: "
            "declare floating point dtypes only"
        )
    return made


def _source(
    operator: str,
    source: str | os.PathLike[str] | jit.Source,
    kind: Kind,
    form: Form,
    caller: FrameType,
) -> jit.Source:
    if not isinstance(source, jit.Source):
        source = jit.Source(locate(f"devices.kernel({operator!r})", Path(source), caller))
    if source.is_library and form != "host":
        raise SchemaError(
            f"devices.kernel({operator!r}): source={str(source)!r} is a library; device code is "
            "built from its source, and a library that starts work itself needs host=True"
        )
    if source.abi != "args":
        raise SchemaError(
            f"devices.kernel({operator!r}): source has abi={source.abi!r}, expected 'args'"
        )
    return replace(
        source,
        kind="host" if form == "host" else "device",
        entry=source.entry if kind == "raw" else "run",
        abi="values" if form == "values" else "args",
    )


def _supported(operator: str, supports: Iterable[Any]) -> frozenset[torch.dtype]:
    found: set[torch.dtype] = set()
    for one in (supports,) if isinstance(supports, str) else supports:
        group = _GROUPS.get(one) if isinstance(one, str) else (one,)
        if group is None or not all(
            isinstance(d, torch.dtype) and str(d).removeprefix("torch.") in ELEMENT_TYPES
            for d in group
        ):
            raise SchemaError(
                f"devices.kernel({operator!r}): supports={one!r}: expected {', '.join(_GROUPS)} or "
                f"a torch.dtype out of {', '.join(ELEMENT_TYPES)}"
            )
        found.update(group)
    return frozenset(found)


def _macros(
    operator: str, kind: Kind, primary: Overload, dtypes: Mapping[str, str] | None
) -> Mapping[str, str]:
    if kind != "raw":
        if dtypes:
            raise SchemaError(
                f"devices.kernel({operator!r}): dtypes= belongs to kind='raw'; a {kind} kernel is "
                "a template over T"
            )
        return {}
    first = next((p.name for p in primary.parameters if p.role == "tensor"), None)
    return dict(dtypes) if dtypes is not None else {"T": first} if first else {}


def _strided(operator: str, overload: Overload, kind: Kind, strided: Sequence[str]) -> list[int]:
    """Return the places of what is taken in any layout; those of results are behind all others."""
    places = {p.name: i for i, p in enumerate(overload.parameters)}
    written = {p.name for p in overload.parameters if p.role == "out"}
    names = ["out"] if overload.results == 1 else [f"out{i}" for i in range(overload.results)]
    for number, name in enumerate(names):
        if name not in places or name in written:
            places[name] = len(overload.parameters) + number
    for name in strided:
        if kind != "raw" or name not in places:
            raise SchemaError(
                f"devices.kernel({operator!r}): strided={name!r}: expected an argument of a raw "
                f"kernel, or a result ({', '.join(places)})"
            )
    return [places[name] for name in strided]


def _driver(operator: str) -> devices.DriverInfo:
    loaded = devices.loaded()
    if loaded is None:
        raise DeviceError(
            f"devices.kernel({operator!r}): no driver is loaded; call devices.load_driver() first"
        )
    return loaded
