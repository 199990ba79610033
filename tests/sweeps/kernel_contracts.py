"""Calls that the CPU refuses, or answers in its own way, of every kernel that `devices.kernel` has
in the kit: the table of drivers/sim_ops and the page docs/devices/operators.md.

Each is made of a sample of torch's OpInfo: other dtypes, no elements, numbers of other kinds,
results of other dtypes, `dtype=`; and torch's own error inputs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tests.sweeps.test_sim_operators import OPERATORS
from torch.utils import _pytree

import bringup_sim_ops
from bringup import devices
from bringup.conformance._opinfo import operators
from bringup.conformance._samples import Mover, outcome, tensors

__all__ = ["CASES", "differences", "kernels"]

DOCUMENTED = ["nn.functional.gelu", "sum", "max", "mul", "add"]
KINDS = ("dtype", "mixed", "empty", "out", "asked", "numbers", "errors")
# Random numbers (dropout); a result that overlaps itself is resized before it is looked at.
LEFT_OUT = {
    ("sim_ops", "nn.functional.scaled_dot_product_attention", "numbers"),
    ("sim_ops", "index_select", "errors"),
}
CASES = [
    *itertools.product(["sim_ops"], OPERATORS, KINDS),
    *itertools.product(["documented"], DOCUMENTED, KINDS),
]
CASES = [case for case in CASES if case not in LEFT_OUT]

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
)
# Each is a kernel more to compile.
_MIXED = (torch.float64, torch.uint8, torch.bool)
_SAMPLES = 2  # of those that OpInfo gives, spread over all
_PAGE = Path(__file__).parents[2] / "docs/devices/operators.md"
_TIES = {"sort", "topk"}  # any order of equal elements is right

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # a sample's input, args and kwargs


@contextmanager
def kernels(registered: str) -> Iterator[None]:
    """The table's kernels ("sim_ops") or those that the page declares ("documented")."""
    devices.load_driver("sim")
    if registered == "sim_ops":
        bringup_sim_ops.load()
        try:
            yield
        finally:
            bringup_sim_ops.unload()
        return
    made: list[devices.OperatorKernel] = []
    declare = devices.kernel

    def recorded(*args: Any, **options: Any) -> devices.OperatorKernel:
        made.append(declare(*args, **options))
        return made[-1]

    blocks = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    with (
        mock.patch.object(devices, "kernel", recorded),
        mock.patch.object(devices.OperatorKernel, "close"),
    ):
        for block in blocks:
            exec(compile(block, str(_PAGE), "exec"), {})
    try:
        yield
    finally:
        for one in made:
            one.close()


@cache
def _info(name: str) -> Any:
    return next(op for op in operators(torch.float32) if op.name == name)


def _samples(name: str) -> list[Call]:
    torch.manual_seed(0)
    given = list(itertools.islice(_info(name).sample_inputs("cpu", torch.float32), 40))
    calls = [(s.input, s.args, s.kwargs) for s in given]
    step = max(1, len(calls) // _SAMPLES)
    return calls[::step][:_SAMPLES]


def _with_leaves(call: Call, change: Any) -> Call:
    """The same call, each tensor replaced by `change(its number, tensor)`."""
    numbers = itertools.count()

    def changed(leaf: Any) -> Any:
        return change(next(numbers), leaf) if isinstance(leaf, torch.Tensor) else leaf

    found: Call = _pytree.tree_map(changed, call)
    return found


def _dtype(name: str) -> Iterator[tuple[str, Call]]:
    """All floating tensors as another dtype."""
    for call, dtype in itertools.product(_samples(name), _DTYPES):
        yield (
            f"{dtype}",
            _with_leaves(call, lambda _, t, d=dtype: t.to(d) if t.is_floating_point() else t),
        )


def _mixed(name: str) -> Iterator[tuple[str, Call]]:
    """One tensor as another dtype."""
    for call in _samples(name):
        for number, dtype in itertools.product(range(len(list(tensors(call)))), _MIXED):
            yield (
                f"tensor {number} {dtype}",
                _with_leaves(call, lambda i, t, n=number, d=dtype: t.to(d) if i == n else t),
            )


def _empty(name: str) -> Iterator[tuple[str, Call]]:
    """One dimension, of one tensor or of all, without elements."""
    for call in _samples(name):
        shapes = [t.shape for t in tensors(call)]
        for number, dim in itertools.product([None, *range(len(shapes))], range(4)):

            def change(i: int, t: torch.Tensor, n: Any = number, d: int = dim) -> torch.Tensor:
                return t.narrow(d, 0, 0) if n in (None, i) and t.dim() > d else t

            yield f"tensor {number} dim {dim}", _with_leaves(call, change)


def _out(name: str) -> Iterator[tuple[str, Call]]:
    """The results into tensors of another dtype."""
    for call, dtype in itertools.product(_samples(name), _DTYPES):
        results, error = outcome(lambda call=call: _info(name).op(call[0], *call[1], **call[2]))
        if error is not None:
            continue
        outs = _pytree.tree_map(lambda t, d=dtype: torch.zeros(t.shape, dtype=d), results)
        yield f"out {dtype}", (call[0], call[1], {**call[2], "out": outs})


def _asked(name: str) -> Iterator[tuple[str, Call]]:
    """`dtype=`, where the function has one."""
    for call, given, dtype in itertools.product(_samples(name), _DTYPES[:4], _DTYPES):
        changed = _with_leaves(
            call, lambda _, t, g=given: (t * 1.6).to(g) if t.is_floating_point() else t
        )
        yield f"{given} as {dtype}", (changed[0], changed[1], {**changed[2], "dtype": dtype})


def _numbers(name: str) -> Iterator[tuple[str, Call]]:
    """Each number among the arguments, and `alpha`, `beta`, as a number of another kind."""
    for call, dtype in itertools.product(_samples(name), (torch.float32, torch.int64, torch.bool)):
        given = _with_leaves(call, lambda _, t, d=dtype: t.to(d) if t.is_floating_point() else t)
        leaves, spec = _pytree.tree_flatten(given)
        for i, number in itertools.product(range(len(leaves)), (True, 2, 0.5, -1)):
            if isinstance(leaves[i], int | float):
                changed = [*leaves[:i], number, *leaves[i + 1 :]]
                yield f"{dtype} argument {i} = {number}", _pytree.tree_unflatten(changed, spec)
        for key, number in itertools.product(("alpha", "beta"), (True, 2, 0.5, -1)):
            yield f"{dtype} {key} = {number}", (given[0], given[1], {**given[2], key: number})


def _errors(name: str) -> Iterator[tuple[str, Call]]:
    """torch's own."""
    if _info(name).error_inputs_func is None:
        return
    for error in _info(name).error_inputs("cpu"):
        sample = error.sample_input
        if all(t.device.type == "cpu" for t in tensors((sample.input, sample.args, sample.kwargs))):
            yield error.error_regex, (sample.input, sample.args, sample.kwargs)


_MAKERS = {
    "dtype": _dtype,
    "mixed": _mixed,
    "empty": _empty,
    "out": _out,
    "asked": _asked,
    "numbers": _numbers,
    "errors": _errors,
}


def differences(name: str, kind: str) -> tuple[int, dict[str, str]]:
    """How many calls of one operator and kind were tried, and which are not the CPU's."""
    tried, found = 0, {}
    for number, (what, call) in enumerate(_MAKERS[kind](name)):
        tried += 1
        if words := _difference(name, call):
            found[f"{number}: {what}: {_described(call)}"] = words
    return tried, found


def _described(call: Call) -> str:
    return str(
        _pytree.tree_map(lambda x: list(x.shape) if isinstance(x, torch.Tensor) else x, call)
    )


def _difference(name: str, call: Call) -> str:
    function = _info(name).op
    there = Mover("npu")(call)
    here = Mover("cpu")(call)
    want, theirs = outcome(lambda: function(here[0], *here[1], **here[2]))
    got, ours = outcome(lambda: function(there[0], *there[1], **there[2]))
    _, late = outcome(torch.npu.synchronize)  # a kernel's own error
    if theirs is not None or ours is not None:
        if ours is None and late is not None:
            return "" if theirs is not None else f"{late!r}, expected none"
        if type(ours) is type(theirs):
            return ""
        return f"{ours!r:.200}, expected {theirs!r:.200}"
    for one, other in zip(tensors(got), tensors(want), strict=True):
        if one.dtype is not other.dtype or one.shape != other.shape:
            return f"{one.dtype} {list(one.shape)}, expected {other.dtype} {list(other.shape)}"
        if name in _TIES and other.dtype is torch.int64:
            continue
        loose = torch.finfo(torch.float16 if other.dtype is torch.float16 else torch.float32).eps
        try:
            torch.testing.assert_close(
                one.cpu(), other, rtol=100 * loose, atol=100 * loose, equal_nan=True
            )
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
    return ""
