"""Operators in programs that are compiled ahead of time, and called from generated C++."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import SCALE
from torch import Tensor, nn

from bringup import graphs, ops
from bringup.errors import CaptureError


class Model(nn.Module):
    def __init__(self, scale: ops.KernelOperator, twice: ops.CustomOperator) -> None:
        super().__init__()
        self._scale, self._twice = scale, twice

    def forward(self, x: Tensor) -> Tensor:
        return self._twice(self._scale(x.sin(), 0.5)).cos()


@pytest.fixture
def model(define: Define, custom: Callable[..., ops.CustomOperator]) -> Model:
    """A kernel and a Python function between operators of torch."""
    scale = define(
        "scale(Tensor x, float factor) -> Tensor",
        source=SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )

    def double(x: Tensor) -> Tensor:
        return x * 2

    twice = custom(double)
    twice.register_fake(torch.empty_like)
    return Model(scale, twice)


def _exported(model: Model) -> Any:
    length = torch.export.Dim("length", min=2, max=64)
    return torch.export.export(model, (torch.randn(16),), dynamic_shapes=({0: length},))


@pytest.mark.parametrize("length", [7, 16])
def test_an_exported_program_has_the_operators_and_takes_other_lengths(
    model: Model, length: int
) -> None:
    program = _exported(model)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    aten = torch.ops.aten
    assert called == [
        aten.sin.default,
        model._scale.overload,
        model._twice.overload,
        aten.cos.default,
    ]
    x = torch.randn(length)
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.slow
def test_a_package_of_aot_inductor_calls_the_operators_and_no_capture_takes_it(
    model: Model, tmp_path: Path
) -> None:
    """Through the proxy executor of torch; half a minute of compiling torch's headers."""
    path = torch._inductor.aoti_compile_and_package(
        _exported(model), package_path=str(tmp_path / "model.pt2")
    )
    loaded = torch._inductor.aoti_load_package(path)
    for length in (7, 16):
        x = torch.randn(length)
        torch.testing.assert_close(loaded(x), model(x))
    words = "calls code that AOTInductor generated"
    with pytest.raises(CaptureError, match=words), graphs.capture(graphs.CapturedGraph()):
        loaded(x)
    torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.slow
def test_the_cpp_wrapper_of_inductor_calls_the_operators(model: Model) -> None:
    """Half a minute of compiling torch's headers."""
    x = torch.randn(16)
    with torch.no_grad(), torch._inductor.config.patch(cpp_wrapper=True):
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
