"""`example::rms_norm`: right in every way that torch may call it, and in a model."""

from __future__ import annotations

import torch
from bringup_example_rms_norm import rms_norm
from bringup_example_rms_norm.model import Block

from bringup import ops


def test_every_check_passes() -> None:
    samples = [(torch.randn(3, 4), torch.randn(4)), (torch.randn(2, 3, 5), torch.randn(5), 1e-3)]
    ops.check(rms_norm, samples).require()


def test_results_and_gradients_are_those_of_torch() -> None:
    x, weight = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 4), (4,)))
    torch.testing.assert_close(
        rms_norm(x, weight), torch.nn.functional.rms_norm(x, (4,), weight, 1e-6)
    )
    inputs = (x.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(rms_norm, inputs)


def test_a_compiled_model_trains_as_the_eager_one() -> None:
    torch.manual_seed(0)
    model, x = Block(8), torch.randn(3, 8)
    model(x).sum().backward()
    expected = model.norm.weight.grad.clone()
    model.zero_grad()
    torch.compile(model, fullgraph=True, backend="aot_eager")(x).sum().backward()
    torch.testing.assert_close(model.norm.weight.grad, expected)
