"""Operators in Python on a driver's device: the same gradients, rules and errors as on cpu."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from bringup import devices, ops

PATHS = pytest.mark.parametrize("path", ["callable", "torch.ops"])


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture
def square() -> Iterator[ops.CustomOperator]:
    @ops.custom_op("bringup_test_custom_device::square")
    def function(x: Tensor) -> Tensor:
        return x * x

    yield function
    function.undefine()


def call(path: str, operator: ops.CustomOperator, x: Tensor) -> Tensor:
    return (operator if path == "callable" else operator.overload)(x)  # type: ignore[no-any-return]


def with_gradient(operator: ops.CustomOperator) -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    operator.register_autograd(
        lambda ctx, grad: grad * 2 * ctx.saved_tensors[0], setup_context=setup
    )


@PATHS
def test_a_gradient_is_recorded_on_the_device(square: ops.CustomOperator, path: str) -> None:
    with_gradient(square)
    x = torch.full((2,), 3.0, device="npu", requires_grad=True)
    y = call(path, square, x)
    assert y.device.type == "npu"
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.cpu().tolist() == [6, 6]
    found = torch.func.grad(lambda x: call(path, square, x).sum())(x.detach())
    assert found.cpu().tolist() == [6, 6]


@PATHS
def test_backward_and_tangents_without_a_formula_raise(
    square: ops.CustomOperator, path: str
) -> None:
    x = torch.ones(2, device="npu", requires_grad=True)
    with pytest.raises(RuntimeError, match="custom_device::square has no backward"):
        call(path, square, x).sum().backward()
    with pytest.raises(NotImplementedError, match="square has no forward-mode derivative"):
        torch.func.jvp(lambda x: call(path, square, x), (x.detach(),), (x.detach(),))


@PATHS
def test_autocast_of_the_device_casts(square: ops.CustomOperator, path: str) -> None:
    square.register_autocast("npu", torch.bfloat16)
    x = torch.ones(2, device="npu")
    assert call(path, square, x).dtype == torch.float32
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert call(path, square, x).dtype == torch.bfloat16
        assert call(path, square, x.cpu()).dtype == torch.float32


def test_a_kernel_of_the_device_is_used_there_only(square: ops.CustomOperator) -> None:
    square.register_kernel("npu", lambda x: x + 100)
    assert square(torch.ones(1, device="npu")).item() == 101
    assert square(torch.ones(1)).item() == 1


def test_a_write_on_the_device_is_checked_like_one_on_cpu() -> None:
    @ops.custom_op("bringup_test_custom_device::fill", mutates_args=("x",))
    def fill(x: Tensor) -> None:
        x.detach().fill_(2)

    x = torch.zeros(2, device="npu", requires_grad=True)
    with pytest.raises(RuntimeError, match="fill writes its argument 'x', which is a leaf"):
        fill(x)
    y = torch.zeros(2, device="npu")
    fill(y)
    assert y.cpu().tolist() == [2, 2]
    fill.undefine()


def test_the_operator_compiles_for_the_device(square: ops.CustomOperator) -> None:
    square.register_fake(torch.empty_like)
    with_gradient(square)
    compiled = torch.compile(lambda x: square(x) + 1, fullgraph=True, backend="aot_eager")
    x = torch.full((2,), 3.0, device="npu", requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    assert x.grad is not None
    assert (y.cpu().tolist(), x.grad.cpu().tolist()) == ([10, 10], [6, 6])


def test_a_result_on_another_device_of_the_same_memory_is_no_alias(
    square: ops.CustomOperator,
) -> None:
    square.register_kernel("npu", lambda x: x.cpu())
    assert square(torch.ones(1, device="npu")).device.type == "cpu"
