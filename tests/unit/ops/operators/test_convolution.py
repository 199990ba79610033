"""Convolution, which torch hands to a device under a name that no other device has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.ops.operators import kernels

from bringup import devices, graphs

Declare = Callable[..., devices.OperatorKernel]

FORWARD = "aten::convolution_overrideable"
BACKWARD = "aten::convolution_backward_overrideable"

# Without padding, dilation and groups; 1000 more, to be told from the CPU's.
CONVOLUTION = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const T, 4> x(args[0]), weight(args[1]);
  const bringup::View<T, 4> out(args[9]);
  const auto* step = static_cast<const int64_t*>(static_cast<bringup_list*>(args[3])->data);
  for (int64_t n = 0; n < out.size(0); ++n)
    for (int64_t o = 0; o < out.size(1); ++o)
      for (int64_t y = 0; y < out.size(2); ++y)
        for (int64_t i = 0; i < out.size(3); ++i) {
          T sum = 1000;
          for (int64_t c = 0; c < x.size(1); ++c)
            for (int64_t j = 0; j < weight.size(2); ++j)
              for (int64_t k = 0; k < weight.size(3); ++k)
                sum += x(n, c, y * step[0] + j, i * step[1] + k) * weight(o, c, j, k);
          out(n, o, y, i) = sum;
        }
  return 0;
}
"""
# A result that is there gets its number, and the others' memory is none.
GRADIENTS = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  for (int i = 0; i < 3; ++i) {
    if (args[10 + i] == nullptr) continue;
    const DLTensor& out = bringup::tensor(args[10 + i]);
    for (int64_t j = 0; j < bringup::numel(out); ++j) static_cast<T*>(out.data)[j] = i + 1;
  }
  return 0;
}
"""


def native_calls() -> dict[str, int]:
    return {row.operator: row.calls for row in devices.fallback_report(reset=True).native}


def given() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 3, 7, 6), torch.randn(4, 3, 2, 3)


def test_a_packages_convolution_runs_in_the_place_of_the_fallback(declare: Declare) -> None:
    x, weight = given()
    before = torch._C._dispatch_dump(FORWARD)
    kernel = declare(FORWARD, CONVOLUTION, kind="raw")
    wanted = torch.conv2d(x, weight, stride=2)
    got = torch.conv2d(x.to("npu"), weight.to("npu"), stride=2)
    torch.testing.assert_close(got.cpu(), wanted + 1000)
    assert native_calls() == {FORWARD: 1}
    with kernel.disabled():
        got = torch.conv2d(x.to("npu"), weight.to("npu"), stride=2)
    torch.testing.assert_close(got.cpu(), wanted)
    kernel.close()
    assert torch._C._dispatch_dump(FORWARD) == before
    torch.testing.assert_close(torch.conv2d(x.to("npu"), weight.to("npu"), stride=2).cpu(), wanted)


def test_other_dtypes_fall_back_as_the_policy_says(declare: Declare) -> None:
    declare(FORWARD, CONVOLUTION, kind="raw", supports=(torch.float32,))
    x, weight = (one.double() for one in given())
    got = torch.conv2d(x.to("npu"), weight.to("npu"))
    torch.testing.assert_close(got.cpu(), torch.conv2d(x, weight))
    with (
        devices.fallback_policy("forbid"),
        pytest.raises(NotImplementedError, match="convolution_overrideable"),
    ):
        torch.conv2d(x.to("npu"), weight.to("npu"))


def test_what_torch_refuses_is_refused_as_on_the_cpu(declare: Declare) -> None:
    declare(FORWARD, CONVOLUTION, kind="raw")
    x, weight = (one.to("npu") for one in given())
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 2 channels"):
        torch.conv2d(x[:, :2], weight)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        torch.conv2d(x[:, :, :1], weight)


def test_results_lie_by_channels_where_an_operand_does(declare: Declare) -> None:
    declare(FORWARD, CONVOLUTION, kind="raw", strided=("input", "weight", "out"))
    x, weight = (one.to("npu") for one in given())
    last = torch.channels_last
    got = torch.conv2d(x.to(memory_format=last), weight)
    assert got.is_contiguous(memory_format=last)
    torch.testing.assert_close(got.cpu(), torch.conv2d(x.cpu(), weight.cpu()) + 1000)
    assert torch.conv2d(x, weight.to(memory_format=last)).is_contiguous(memory_format=last)


def test_gradients_are_made_where_they_are_asked_for(declare: Declare) -> None:
    kernel = declare(BACKWARD, GRADIENTS, kind="raw")
    x, weight = (one.to("npu").requires_grad_() for one in given())
    bias = torch.zeros(4, device="npu", requires_grad=True)
    made = torch.conv2d(x, weight, bias).sum()
    for number, one in enumerate((x, weight, bias), 1):
        (gradient,) = torch.autograd.grad(made, one, retain_graph=True)
        assert gradient.shape == one.shape
        assert (gradient == number).all()
    assert native_calls()[BACKWARD] == 3
    with kernel.disabled():
        (gradient,) = torch.autograd.grad(made, bias)
    assert (gradient == made.numel() * 2 * 6 * 4).all()


def test_a_convolution_that_falls_back_is_captured_beside_native_operators(
    declare: Declare,
) -> None:
    declare("aten::mul", kernels.MUL)
    x, weight = (one.to("npu").requires_grad_() for one in given())
    bias = torch.zeros(4, device="npu", requires_grad=True)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        got = torch.conv2d(x * 2, weight, bias).square().sum()
        gradients = torch.autograd.grad(got, (x, weight, bias))
    with torch.no_grad():
        x.mul_(2)
    graph.replay()
    there = [one.detach().cpu().requires_grad_() for one in (x, weight, bias)]
    wanted = torch.conv2d(there[0] * 2, *there[1:]).square().sum()
    torch.testing.assert_close(got.detach().cpu(), wanted.detach())
    for one, other in zip(gradients, torch.autograd.grad(wanted, there), strict=True):
        torch.testing.assert_close(one.cpu(), other)


def test_a_captured_convolution_is_a_kernel_node(declare: Declare) -> None:
    kernel = declare(FORWARD, CONVOLUTION, kind="raw")
    x, weight = (one.to("npu") for one in given())
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        got = torch.conv2d(x, weight)
    x.mul_(2)
    kernel.disable()
    graph.replay()
    torch.testing.assert_close(got.cpu(), torch.conv2d(x.cpu(), weight.cpu()) + 1000)
