"""One table: backward and forward mode through an operator that has none is one error, whatever way
it was defined, wherever and however it runs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.unit.ops.support import ADD_INPLACE, SCALE

from bringup import ops

_numbers = itertools.count()
Definition = Callable[[str], contextlib.AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def npu(simulator: object) -> None:
    """The device is there."""


def _scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def _add_(x: torch.Tensor, y: torch.Tensor) -> None:
    x += y


@contextlib.contextmanager
def _undefined_after(operator: Any) -> Iterator[Any]:
    yield operator
    operator.undefine()


def _kernel_op(name: str) -> contextlib.AbstractContextManager[Any]:
    operator = ops.kernel_op(
        f"{name}(Tensor x, float factor) -> Tensor",
        source=SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
        kind="device",
    )
    return _undefined_after(operator)


def _writing_kernel_op(name: str) -> contextlib.AbstractContextManager[Any]:
    operator = ops.kernel_op(
        f"{name}(Tensor(a!) x, Tensor y) -> ()",
        source=ADD_INPLACE,
        checks=ops.same_shape("x", "y"),
        dtypes={"T": "x"},
        kind="device",
    )
    return _undefined_after(operator)


def _custom_op(name: str) -> contextlib.AbstractContextManager[Any]:
    return _undefined_after(ops.custom_op(name)(_scale))


def _writing_custom_op(name: str) -> contextlib.AbstractContextManager[Any]:
    return _undefined_after(ops.custom_op(name, mutates_args=("x",))(_add_))


@contextlib.contextmanager
def _in_a_library(name: str, signature: str, function: Callable[..., Any]) -> Iterator[Any]:
    namespace, _, bare = name.partition("::")
    library = ops.Library(namespace, "FRAGMENT")
    library.define(f"{bare}{signature}")
    for key in ("CPU", "NPU"):
        library.impl(bare, function, key)
    yield getattr(getattr(torch.ops, namespace), bare).default
    library._destroy()


def _library(name: str) -> contextlib.AbstractContextManager[Any]:
    return _in_a_library(name, "(Tensor x, float factor) -> Tensor", _scale)


def _writing_library(name: str) -> contextlib.AbstractContextManager[Any]:
    return _in_a_library(name, "(Tensor! x, Tensor y) -> ()", _add_)


WAYS = pytest.mark.parametrize("way", [_kernel_op, _custom_op, _library])
WRITING_WAYS = pytest.mark.parametrize(
    "way", [_writing_kernel_op, _writing_custom_op, _writing_library]
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
PATHS = pytest.mark.parametrize("path", ["fast", "slow"])


@contextlib.contextmanager
def _defined(way: Definition, path: str) -> Iterator[tuple[Any, str]]:
    name = f"missing_backward::op{next(_numbers)}"
    with way(name) as operator:
        yield (getattr(operator, "overload", operator) if path == "slow" else operator), name


@WAYS
@DEVICES
@PATHS
def test_backward_raises_one_error_that_names_the_operator(
    way: Definition, device: str, path: str
) -> None:
    """torch warns and loses the gradient."""
    with _defined(way, path) as (call, name):
        result = call(torch.ones(3, device=device, requires_grad=True), 2.0)
        with pytest.raises(NotImplementedError) as failure:
            result.sum().backward()
    assert str(failure.value) == (
        f"{name} has no backward, but a gradient through it was asked for; give it one with "
        "register_autograd(), or call it under torch.no_grad()"
    )


@WRITING_WAYS
@DEVICES
@PATHS
def test_backward_through_an_operator_that_writes_is_one_error(
    way: Definition, device: str, path: str
) -> None:
    with _defined(way, path) as (call, name):
        x = torch.ones(3, device=device, requires_grad=True) * 1
        call(x, torch.ones(3, device=device))
        with pytest.raises(NotImplementedError) as failure:
            x.sum().backward()
    assert str(failure.value) == (
        f"{name} has no backward, but a gradient through it was asked for; it writes its "
        "arguments: call it on detached tensors, or on clones under torch.no_grad()"
    )


@WRITING_WAYS
@DEVICES
@PATHS
def test_a_leaf_is_refused_by_name(way: Definition, device: str, path: str) -> None:
    """A leaf that requires grad is not written."""
    with _defined(way, path) as (call, name):
        leaf = torch.ones(3, device=device, requires_grad=True)
        for written, what in ((leaf, "is a leaf"), (leaf[:2], "is a view of a leaf")):
            with pytest.raises(RuntimeError) as failure:
                call(written, torch.ones_like(written))
            assert str(failure.value) == (
                f"{name} writes its argument 'x', which {what} tensor that requires grad; call it "
                "under torch.no_grad(), or on a clone"
            )
        with torch.no_grad():
            call(leaf, torch.ones_like(leaf))
        assert leaf.tolist() == [2] * 3


@WAYS
@DEVICES
@PATHS
def test_forward_mode_raises_one_error_that_names_the_operator(
    way: Definition, device: str, path: str
) -> None:
    """torch.library.custom_op returns zero tangents."""
    with _defined(way, path) as (call, name):
        x = torch.ones(3, device=device)
        with pytest.raises(NotImplementedError) as failure:
            torch.func.jvp(lambda a: call(a, 2.0), (x,), (x,))
    assert str(failure.value) == (
        f"{name} has no forward-mode derivative, but an input has a tangent; give it one with "
        "register_jvp(jvp), or detach the input"
    )
