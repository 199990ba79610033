"""The loop nests whose generated code is measured, and functions that are compiled for a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import SystemRandom
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

__all__ = ["LOOPS", "Loop", "compiled", "given", "odd_shape"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Loop:
    """A function that Inductor makes one kernel of.

    Attributes:
        name: of a row.
        shape: that budgets are for.
        function: of as many tensors as `shapes` gives shapes.
        shapes: of the inputs, of a shape.
        kernels: that a device without a compiler runs for it, as torch's own operators.
    """

    name: str
    shape: Shape
    function: Callable[..., torch.Tensor]
    shapes: Callable[[Shape], Sequence[Shape]]
    kernels: int


def _sixteen(x: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = torch.relu(x * 1.01 + 0.1)
    return x


def _norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return F.layer_norm(x + y, weight.shape, weight, bias)


LOOPS = (
    Loop("16 pointwise", (1 << 20,), _sixteen, lambda s: [s], 24),
    Loop("gelu(x) * y", (1 << 18,), lambda x, y: F.gelu(x) * y, lambda s: [s, s], 2),
    Loop("softmax", (512, 512), lambda x: torch.softmax(x * 0.5, -1), lambda s: [s], 2),
    Loop("layer_norm(x + y)", (512, 768), _norm, lambda s: [s, s, s[-1:], s[-1:]], 2),
    Loop("sum over dim 0", (1024, 1024), lambda x: x.sum(0), lambda s: [s], 1),
    Loop("x.t() + y", (1024, 1024), lambda x, y: x.t() + y, lambda s: [s[::-1], s], 1),
)


def odd_shape(shape: Shape) -> Shape:
    """A shape of about as many elements, whose sizes are odd: another one for every call."""
    return tuple(size + 2 * SystemRandom().randrange(-size // 8, size // 8) + 1 for size in shape)


def given(loop: Loop, shape: Shape, device: str) -> list[torch.Tensor]:
    """Inputs of a function, the same for every device."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(one, generator=generator).to(device) for one in loop.shapes(shape)]


def compiled(function: Callable[..., Any], tensors: Sequence[Any]) -> Callable[[], Any]:
    """A call of the function, compiled for these tensors alone, that ends when its device is
    done.
    """
    made = torch.compile(function, dynamic=False)
    made(*tensors)
    return waited(made, tensors)


def waited(function: Callable[..., Any], tensors: Sequence[Any]) -> Callable[[], Any]:
    """A call of a function that ends when its device is done."""
    device = tensors[0].device.type
    wait = None if device == "cpu" else torch.get_device_module(device).synchronize

    def call() -> Any:
        result = function(*tensors)
        if wait is not None:
            wait()
        return result

    return call
