"""Captured operators that take or give lazy zeros: tensors without memory, which forward gradients
of autograd are full of.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bringup import devices, graphs

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, Program] = {
    "copied": lambda zeros, x: zeros.clone() + x,
    "copied into another": lambda zeros, x: torch.empty_like(x).copy_(zeros) + x,
    "handled by the operator": lambda zeros, x: zeros * x + x,
    "zero in spite of NaN": lambda zeros, x: (zeros * (x / 0 * 0)).clone(),
    "a sum": lambda zeros, x: zeros + x,
    "a sum into another": lambda zeros, x: torch.add(x, zeros, out=torch.empty_like(x)),
    "a sum in place": lambda zeros, x: (x * 1).add_(zeros),
    "read by an operator that knows none": lambda zeros, x: zeros.exp() + x,
    "reduced": lambda zeros, x: zeros.sum() + x,
    "in a list": lambda zeros, x: torch.cat([zeros, x]),
    "a view": lambda zeros, x: zeros[1:] + x[1:],
    "a product of vectors": lambda zeros, x: zeros.dot(x) + x,
    "a product of matrices": lambda zeros, x: zeros.view(1, 4) @ x.view(4, 1),
    "with a number": lambda zeros, x: zeros * 3 + x,
    "negated": lambda zeros, x: -zeros + x,
    "another dtype": lambda zeros, x: zeros.double() + x,
    "made inside": lambda zeros, x: torch._efficientzerotensor([4], device=x.device) * x + x,
    "forward over reverse": lambda _, x: torch.func.jvp(torch.func.grad(_cubes), (x,), (x,))[1],
    "hessian": lambda _, x: torch.func.hessian(_cubes)(x),
}


def _cubes(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum() * x.prod()


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_lazy_zeros_are_captured_as_zeros(name: str, device: str) -> None:
    program = PROGRAMS[name]
    devices.load_driver("sim")
    zeros = torch._efficientzerotensor([4], device=device)
    x = torch.arange(1.0, 5.0, device=device)
    program(zeros, x)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = program(zeros, x)
    x.add_(1)
    graph.replay()
    assert torch.equal(result, program(zeros, x))


def test_lazy_zeros_cannot_be_written_in_a_capture_either() -> None:
    zeros, x = torch._efficientzerotensor([4]), torch.ones(4)
    for write in (lambda: zeros.add_(x), lambda: torch.exp(x, out=zeros)):
        with (
            pytest.raises(RuntimeError, match="ZeroTensors are immutable"),
            graphs.capture(graphs.CapturedGraph()),
        ):
            write()
