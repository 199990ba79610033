"""Kernel operators on a driver's device: the same calls, the same checks, errors that come late."""

from __future__ import annotations

import textwrap

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import SCALE, kernel

from bringup import devices, graphs, ops
from bringup.errors import ContractError, DeviceError, UpdateError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture
def scale(define: Define) -> ops.KernelOperator:
    return define(
        "scale(Tensor x, float factor) -> Tensor",
        source=SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
        kind="device",
    )


@PATHS
def test_device_code_runs_where_its_tensors_are(scale: ops.KernelOperator, path: object) -> None:
    for x in (torch.randn(5), torch.randn(3, 4).t(), torch.empty(0), torch.randn(())):
        result = path(scale)(x.to("npu"), 3.0)  # type: ignore[operator]
        assert result.device.type == "npu"
        assert result.is_contiguous()
        assert torch.equal(result.cpu(), x * 3)
    assert torch.equal(scale(torch.ones(2), 3.0), torch.full((2,), 3.0))


@PATHS
def test_the_grid_is_evaluated_for_each_call(define: Define, path: object) -> None:
    blocks = define(
        "blocks(Tensor x, int n) -> Tensor",
        source=kernel("DATA(2)[ctx->block_index] = 10 * ctx->block_index + ctx->block_count;"),
        outputs=ops.empty("n + 1", dtype=torch.int64),
        kind="device",
        grid="n + 1",
        macros={"T": "int64_t"},
    )
    x = torch.ones(1, device="npu")
    assert path(blocks)(x, 2).tolist() == [3, 13, 23]  # type: ignore[operator]
    assert path(blocks)(x, 0).tolist() == [1]  # type: ignore[operator]
    with pytest.raises(ContractError, match=r"output 0 would have the negative shape \[-4\]"):
        path(blocks)(x, -5)  # type: ignore[operator]


def test_an_empty_grid_is_refused(define: Define) -> None:
    blocks = define(
        "blocks(Tensor x) -> Tensor", outputs=ops.empty_like("x"), kind="device", grid="x.numel()"
    )
    with pytest.raises(ContractError, match=r"the grid 'x.numel\(\)' must be at least 1, got 0"):
        blocks(torch.empty(0, device="npu"))


def test_blocks_have_one_work_item_each_at_least(define: Define) -> None:
    shared = define(
        "shared(Tensor x, int n) -> Tensor",
        outputs=ops.empty_like("x"),
        kind="device",
        grid=2,
        work_items="n",
    )
    x = torch.ones(3, device="npu")
    shared(x, 2)
    words = "the number of work items 'n' must be at least 2, got 1"
    with pytest.raises(ContractError, match=words):
        shared(x, 1)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        shared(x, 5)
    graph.update({"shared.0.n": 5})
    with pytest.raises(UpdateError, match="2 blocks of 6 work items, and runs on 2 blocks of 5"):
        graph.update({"shared.0.n": 6})


def test_gradients_are_computed_on_the_device() -> None:
    # In a process of its own: torch's autograd engine counts the devices at its first backward.
    script = """
        import torch
        from tests.unit.ops.support import MUL, MUL_BACKWARD
        from bringup import devices, ops
        devices.load_driver("sim")
        common = {"dtypes": {"T": "x"}, "kind": "device", "checks": ops.same_shape("x", "y")}
        ops.kernel_op("t::mul_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
                      source=MUL_BACKWARD, outputs=[ops.empty_like("x")] * 2, **common)
        mul = ops.kernel_op("t::mul(Tensor x, Tensor y) -> Tensor", source=MUL,
                            outputs=ops.empty_like("x"), **common)
        mul.register_backward("t::mul_backward", save=("x", "y"))
        for call in (mul, mul.overload):
            x = torch.randn(4, device="npu", requires_grad=True)
            y = torch.randn(4, device="npu")
            call(x, y).sum().backward()
            assert torch.equal(x.grad.cpu(), y.cpu())
    """
    output_of(textwrap.dedent(script))


@PATHS
def test_tensors_on_cpu_and_device_are_refused(define: Define, path: object) -> None:
    both = define(
        "both(Tensor x, Tensor y) -> Tensor",
        outputs=ops.empty_like("x"),
        checks=ops.kernel_checks(),
        kind="device",
    )
    with pytest.raises(ContractError, match="must be on one device, got x: npu:0, y: cpu"):
        path(both)(torch.ones(1, device="npu"), torch.ones(1))  # type: ignore[operator]


def test_a_kernel_that_fails_is_named_at_the_next_synchronisation(define: Define) -> None:
    fail = define(
        "fail(Tensor x) -> Tensor",
        source=kernel('ctx->set_error(ctx, "bad lengths"); return 5;'),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    fail(torch.ones(1, device="npu"))
    with pytest.raises(RuntimeError, match=f"{fail.qualified_name}.*bad lengths"):
        torch.npu.synchronize()


def test_a_device_without_our_driver_is_refused(
    scale: ops.KernelOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(1, device="npu")
    monkeypatch.setattr(devices, "loaded", lambda: None)
    with pytest.raises(DeviceError, match="bringup has no driver for device 'npu'"):
        scale(x, 2.0)
