"""Programs of public reports and of users that a captured graph replays as eager computes them:
a function, the inputs that it is captured with, and inputs for replays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.sweeps.reports.device_programs import values
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Captured:
    """A function of tensors; `inputs(device, seed)` makes its arguments."""

    function: Callable[..., Any]
    inputs: Callable[[str, int], list[Any]]
    gradients: bool = False


PROGRAMS: dict[str, Captured] = {}


def captured(
    *shapes: tuple[int, ...],
    inputs: Callable[[str, int], list[Any]] | None = None,
    gradients: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function of random tensors of these shapes, or of `inputs`, to the corpus."""

    def of_shapes(device: str, seed: int) -> list[Any]:
        return [values(device, *shape, seed=seed + i) for i, shape in enumerate(shapes)]

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = Captured(function, inputs or of_shapes, gradients)
        return function

    return add


def mask_and_values(device: str, seed: int) -> list[Any]:
    """16 values and a mask with another number of trues for each seed."""
    mask = torch.arange(16, device=device) < (5 * seed) % 16
    return [values(device, 16, seed=seed), mask]


def indices_and_values(device: str, seed: int) -> list[Any]:
    """Six values and three indices."""
    return [values(device, 6, seed=seed), torch.tensor([0, 1, 2], device=device) + seed % 4]


def number_of_the_host(device: str, seed: int) -> list[Any]:
    """Four values and a number on the CPU."""
    return [values(device, 4, seed=seed), torch.tensor(1.5 + seed)]


def rising(device: str, seed: int) -> list[Any]:
    """Six values over six rising places."""
    return [values(device, 6, seed=seed), torch.arange(6.0, device=device) * (1 + seed)]


@captured(inputs=mask_and_values)
def a_mask_chooses_what_is_written(x: Any, mask: Any) -> Any:
    y = x.clone()
    y[mask] = 0
    y.index_put_((mask,), torch.ones((), device=x.device), accumulate=True)
    return y, torch.where(mask, x, -x), x.masked_fill(mask, 3.0)


@captured(inputs=indices_and_values)
def indices_are_read_at_each_replay(x: Any, i: Any) -> Any:
    added, filled = x.index_add(0, i, x[:3]), x.index_fill(0, i, 3.0)
    return x.scatter(0, i, 1.0), x.gather(0, i), added, filled, x.index_reduce(0, i, x[:3], "amax")


@captured(inputs=number_of_the_host)
def a_number_of_the_host_is_read_at_each_replay(x: Any, s: Any) -> Any:
    return x * s + s, torch.where(x > 0, x, s), x.abs() ** s, torch.lerp(x, x * 2, s)


@captured((2,))
def a_constant_of_the_block_starts_anew(x: Any) -> Any:
    c = torch.tensor([1.0, 2.0], device=x.device)
    c.add_(1)
    host = torch.tensor([1.0, 2.0])
    host.mul_(2)
    return x * c + host.to(x.device)


@captured((3,))
def a_sum_is_collected_in_a_number(x: Any) -> Any:
    c = torch.scalar_tensor(3.0, device=x.device)
    c += x.sum()
    return c


@captured((3, 3))
def inputs_and_views_of_them_are_written(x: Any) -> Any:
    x.add_(1)
    x[0].mul_(2)
    x.t()[1].sub_(3)
    return x.sum(0)


@captured((3, 3))
def results_are_views(x: Any) -> Any:
    y = x * 2
    return x.t(), y.view(-1)[2:], y.sum(0).expand(4, 3), y.as_strided((2, 2), (1, 1), 1)


@captured((4, 2))
def lazy_bits_in_the_block(x: Any) -> Any:
    c = torch.view_as_complex(x)
    return c.conj() * c, c.imag + 1, torch.view_as_real(c * c.conj()).clone(), c.conj().imag + 0


@captured((3,))
def a_resized_tensor_of_the_block(x: Any) -> Any:
    y = torch.empty(0, device=x.device)
    y.resize_(3).copy_(x)
    return y * 2


@captured((), (0,))
def no_dimensions_and_no_elements(x: Any, e: Any) -> Any:
    return x + 1, e * 2, torch.cat([x.view(1), e]), e.sum()


@captured((9,))
def orders_of_values(x: Any) -> Any:
    return x.sort(), x.topk(3), x.median(), x.kthvalue(2), x.cummax(0), torch.histc(x, 4, -3, 3)


@captured((4, 4))
def linear_algebra_of_the_input(x: Any) -> Any:
    a = x @ x.T + 3 * torch.eye(4, device=x.device)
    return torch.linalg.solve(a, x), torch.linalg.cholesky(a), torch.linalg.eigvalsh(a)


@captured((2, 3), (2, 4), (5, 3, 4))
def what_is_made_of_products_and_sums(x: Any, y: Any, weight: Any) -> Any:
    between = torch.linspace(x[0, 0], x[1, 1], 5, device=x.device)
    return functional.bilinear(x, y, weight), torch.linalg.pinv(y), between


@captured((2, 3, 8, 8), (4, 3, 3, 3))
def an_image_with_channels_last(x: Any, weight: Any) -> Any:
    y = functional.conv2d(x.contiguous(memory_format=torch.channels_last), weight)
    return functional.adaptive_avg_pool2d(functional.group_norm(y, 2), 2)


@captured((3, 3))
def function_transforms_in_the_block(x: Any) -> Any:
    def loss(v: Any) -> Any:
        return (v.sin() * v).sum()

    rows = torch.vmap(lambda row: row * row.sum())(x)
    return rows, torch.func.grad(loss)(x), torch.func.jvp(lambda v: v.exp(), (x,), (x,))[1]


@captured(inputs=rising)
def places_given_as_a_tensor(x: Any, y: Any) -> Any:
    return torch.trapezoid(x, y), torch.gradient(x, spacing=(y,))[0], torch.bucketize(x, y)


@captured(inputs=lambda d, seed: [values(d, 6, seed=seed), torch.tensor([2 + seed % 3, 4])])
def lengths_of_the_host(x: Any, lengths: Any) -> Any:
    return x * lengths.sum(), x.cumsum(0) / lengths.max(), lengths * 2


@captured((4,))
def random_numbers_continue(x: Any) -> Any:
    drawn = torch.empty(5, device=x.device).exponential_(), torch.randint_like(x, 9)
    return functional.dropout(x, 0.5, True), torch.rand_like(x), torch.bernoulli(x.sigmoid()), drawn


def layer_and_values(device: str, seed: int) -> list[Any]:
    """A sequence, and the parameters of an encoder layer in evaluation."""
    return [values(device, 2, 5, 16, seed=seed), *LAYER.to(device).state_dict().values()]


torch.manual_seed(2)
LAYER = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()


@captured(inputs=layer_and_values)
def an_encoder_layer(x: Any, *state: Any) -> Any:
    named = dict(zip(LAYER.state_dict(), state, strict=True))
    return torch.func.functional_call(LAYER, named, (x,))


@captured((2,))
def numpy_memory_from_before_is_read(x: Any) -> Any:
    return x + torch.from_numpy(OUTSIDE).to(x.device)


OUTSIDE = np.ones(2, np.float32)


@captured((6, 3), (6,), (3,), gradients=True)
def gradients_within_the_block(x: Any, y: Any, w: Any) -> Any:
    with torch.enable_grad():
        weight = w.detach().requires_grad_()
        loss = functional.mse_loss(x @ weight, y)
        (first,) = torch.autograd.grad(loss, weight, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), weight)
    return loss.detach(), first.detach(), second


@captured((4, 8))
def lists_of_tensors_in_the_block(x: Any) -> Any:
    parts = list(x.clone().unbind(0))
    torch._foreach_mul_(parts, 2.0)
    torch._foreach_add_(parts, parts[::-1])
    return parts, torch._foreach_norm(parts)
