"""Kernels of devices.kernel in captured graphs: nodes of the driver's graph, with slots."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.ops.operators import kernels

from bringup import devices, graphs
from bringup.errors import CaptureError, UpdateError

Declare = Callable[..., devices.OperatorKernel]
DOUBLE = "template <class T> T gelu(T x, const char*) { return x + x; }"  # not what cpu computes


def test_a_replay_runs_the_devices_kernel(declare: Declare) -> None:
    declare("aten::gelu", DOUBLE)
    x = torch.ones(4, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.nn.functional.gelu(x)
    x.fill_(3)
    graph.replay()
    assert y.tolist() == [6, 6, 6, 6]


def test_scalars_of_a_captured_call_are_updated(declare: Declare) -> None:
    declare("aten::add", kernels.ADD)
    x, y = torch.ones(3, device="npu"), torch.ones(3, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        z = torch.add(x, y, alpha=2)
    graph.replay()
    assert z.tolist() == [3, 3, 3]
    slot = next(name for name in graph.slots if name.endswith("alpha"))
    graph.update({slot: 5})
    graph.replay()
    assert z.tolist() == [6, 6, 6]


def test_tensors_of_a_captured_call_are_exchanged(declare: Declare) -> None:
    declare("aten::add", kernels.ADD)
    x, y = torch.ones(2, 3, device="npu"), torch.ones(3, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        z = torch.add(x, y)
    slot = next(name for name in graph.slots if name.endswith("other"))
    graph.update({slot: torch.arange(3.0, device="npu")})
    graph.replay()
    assert z.tolist() == [[1, 2, 3], [1, 2, 3]]


def test_an_update_to_another_binary_is_refused_and_changes_nothing(declare: Declare) -> None:
    declare("aten::gelu", kernels.GELU)
    x = torch.randn(5, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.nn.functional.gelu(x)
    slot = next(name for name in graph.slots if name.endswith("approximate"))
    with pytest.raises(UpdateError, match="would not run the same binary"):
        graph.update({slot: "tanh"})
    graph.replay()
    torch.testing.assert_close(y.cpu(), torch.nn.functional.gelu(x.cpu()))


def test_forward_and_backward_of_a_block_are_captured(declare: Declare) -> None:
    declare("aten::gelu", kernels.GELU)
    declare("aten::gelu_backward", kernels.GELU_BACKWARD)
    declare("aten::native_layer_norm", kernels.LAYER_NORM, kind="raw")
    declare("aten::sum", kernels.SUM, kind="reduction")
    x = torch.randn(4, 8, device="npu", requires_grad=True)
    torch.nn.functional.gelu(torch.layer_norm(x, (8,))).sum().backward()  # compiles
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = torch.nn.functional.gelu(torch.layer_norm(x, (8,))).sum()
        (grad,) = torch.autograd.grad(result, x)
    with torch.no_grad():
        x.copy_(torch.randn(4, 8))
    graph.replay()
    there = x.detach().cpu().requires_grad_()
    expected = torch.nn.functional.gelu(torch.layer_norm(there, (8,))).sum()
    torch.testing.assert_close(result.detach().cpu(), expected.detach())
    torch.testing.assert_close(grad.cpu(), torch.autograd.grad(expected, there)[0])


def test_in_place_and_given_results_are_captured(declare: Declare) -> None:
    declare("aten::add", kernels.ADD)
    x, out = torch.ones(3, device="npu"), torch.zeros(3, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        x.add_(1)
        torch.add(x, x, out=out)
    assert x.tolist() == [1, 1, 1]
    graph.replay()
    graph.replay()
    assert (x.tolist(), out.tolist()) == ([3, 3, 3], [6, 6, 6])


def test_a_strided_argument_of_a_raw_kernel_is_copied_at_each_replay(declare: Declare) -> None:
    declare("aten::native_layer_norm", kernels.LAYER_NORM, kind="raw")
    x = torch.randn(8, 4, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.layer_norm(x.t(), (8,))
    x.copy_(torch.randn(8, 4))
    graph.replay()
    torch.testing.assert_close(y.cpu(), torch.layer_norm(x.cpu().t(), (8,)))


def test_a_number_in_a_tensor_of_the_host_is_read_at_each_replay(declare: Declare) -> None:
    declare("aten::mul", kernels.MUL)
    x, factor = torch.ones(3, device="npu"), torch.tensor(2.0)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = x * factor
    factor.fill_(5)
    graph.replay()
    assert y.tolist() == [5, 5, 5]


def test_a_graph_outlives_its_kernels_declaration(declare: Declare) -> None:
    kernel = declare("aten::gelu", DOUBLE)
    x = torch.ones(4, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.nn.functional.gelu(x)
    kernel.close()
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [4, 4, 4, 4]


def test_what_falls_back_in_a_capture_runs_on_the_host(declare: Declare) -> None:
    declare("aten::gelu", DOUBLE, supports=(torch.float32,))
    x = torch.ones(4, device="npu", dtype=torch.float64)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = torch.nn.functional.gelu(x)
    x.fill_(2)
    graph.replay()
    torch.testing.assert_close(y.cpu(), torch.nn.functional.gelu(x.cpu()))


@pytest.mark.parametrize("lazy", ["read", "written"])
def test_a_lazy_negation_is_computed_before_the_devices_kernel(declare: Declare, lazy: str) -> None:
    declare("aten::add", kernels.ADD)
    x = torch.arange(6.0, device="npu").view(2, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        if lazy == "read":
            return torch._neg_view(x.t()) + 1
        y = x.clone()
        torch._neg_view(y).add_(1)
        return y

    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = program(x)
    x.fill_(4)
    graph.replay()
    assert y.tolist() == program(x.cpu()).tolist()


def test_a_loop_over_a_list_runs_the_devices_kernel_of_another_name(declare: Declare) -> None:
    text = """
template <class T> struct half {  // not what cpu computes
  double sum = 0;
  explicit half(T) {}
  void add(T value, int64_t) { sum += value * value; }
  T result(int64_t) const { return T(sum / 2); }
};"""
    declare("aten::linalg_vector_norm", text, kind="reduction", entry="half")
    x = [torch.ones(4, device="npu"), torch.ones(2, device="npu")]
    assert [norm.item() for norm in torch._foreach_norm(x)] == [2, 1]
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        norms = torch._foreach_norm(x)
    x[0].fill_(2)
    graph.replay()
    assert [norm.item() for norm in norms] == [8, 1]


def test_a_kernel_that_replaced_ours_is_refused_in_a_capture(declare: Declare) -> None:
    declare("aten::gelu", kernels.GELU)
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(
            "gelu", lambda x, approximate="none": torch.relu(x), "PrivateUse1", allow_override=True
        )
        x = torch.zeros(4, device="npu")
        with (
            pytest.raises(CaptureError, match="starts its own work"),
            graphs.capture(graphs.CapturedGraph()),
        ):
            torch.nn.functional.gelu(x)
    finally:
        library._destroy()
