"""The GEMM family on the simulated NPU: results of the cpu, in stream order, late errors named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.kernels.matmul_support import close, matrix
from tests.unit.kernels.test_matmul_epilogues import CALLS

from bringup import devices, graphs, kernels
from bringup.errors import KernelError


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.mark.parametrize("name", ["basic_matmul", *CALLS])
def test_results_on_the_npu_are_those_of_the_cpu(name: str) -> None:
    arguments = CALLS.get(name, lambda: (matrix(130, 40), matrix(40, 70)))()
    operator: Callable[..., torch.Tensor] = getattr(kernels, name)
    ours = operator(*(argument.to("npu") for argument in arguments))
    assert ours.device.type == "npu"
    assert torch.equal(ours.cpu(), operator(*arguments))


@pytest.mark.parametrize("layout", ["column", "offset", "strided"])
def test_views_on_the_npu_are_taken_as_they_lie(layout: str) -> None:
    """Offset and strided views; torch_catlass reads from the start of the storage."""
    a, b = (matrix(9, 9).to("npu") for _ in range(2))
    view = {"column": b.t(), "offset": b[2:, 3:], "strided": b[::2, ::3]}[layout]
    ours = kernels.basic_matmul(a[:, : view.shape[0]], view)
    close(ours.cpu(), a.cpu()[:, : view.shape[0]].double() @ view.cpu().double())


def test_gradients_on_the_npu_are_those_of_the_cpu() -> None:
    a, b = torch.randn(5, 6, device="npu", requires_grad=True), torch.randn(6, 7, device="npu")
    kernels.basic_matmul(a, b).sum().backward()
    assert a.grad is not None
    close(a.grad.cpu(), torch.ones(5, 7).double() @ b.cpu().double().t())


def test_a_graph_on_the_npu_replays_a_chain_of_products() -> None:
    a, b = torch.randn(8, 8, device="npu"), torch.randn(8, 8, device="npu")
    with torch.no_grad():
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            out = kernels.matmul_bias_activation(kernels.basic_matmul(a, b), b, None, "relu")
        a.copy_(torch.eye(8))
        graph.replay()
    close(out.cpu(), torch.relu(b.cpu().double() @ b.cpu().double()))


def test_a_refusal_is_raised_at_the_call_and_a_failure_at_the_next_synchronisation() -> None:
    """Reasons at the call; launches do not wait."""
    with pytest.raises(KernelError, match=r"bringup::quant_matmul.*scale must have"):
        kernels.quant_matmul(
            torch.ones(2, 3, dtype=torch.int8, device="npu"),
            torch.ones(3, 5, dtype=torch.int8, device="npu"),
            torch.ones(4, device="npu"),
        )
    groups = torch.tensor([3, 2]).to("npu")
    kernels.grouped_matmul(matrix(10, 4).to("npu"), matrix(2, 4, 5).to("npu"), groups)
    with pytest.raises(KernelError, match=r"bringup::grouped_matmul.*rise from 0"):
        torch.npu.synchronize()


def test_many_launches_need_no_synchronisation_in_between() -> None:
    x = torch.eye(16, device="npu")
    turn = torch.eye(16, device="npu").roll(1, 0)
    for _ in range(160):
        x = kernels.basic_matmul(x, turn)
    assert torch.equal(x.cpu(), torch.eye(16))
