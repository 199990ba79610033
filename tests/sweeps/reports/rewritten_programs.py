"""Programs of public reports and of users that `backend="bringup"` compiles to what eager
computes: functions of tensors, with the shapes of their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {}


def compiled(*shapes: tuple[int, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function of random tensors of these shapes to the corpus."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = (function, shapes)
        return function

    return add


@compiled((3, 5), (5,), (5,))
def a_norm_written_out(x: Any, w: Any, b: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * w + b


@compiled((3, 8), (8,))
def a_root_mean_square_norm(x: Any, w: Any) -> Any:
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@compiled((4, 6))
def a_gelu_by_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@compiled((4, 6), (4, 6))
def a_gated_activation(x: Any, y: Any) -> Any:
    return functional.silu(x) * y, functional.gelu(x + y[0])


@compiled((1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8))
def attention_written_out(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-2, -1) / math.sqrt(8)
    hidden = torch.ones(6, 6, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


@compiled((1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8))
def attention_whose_weights_are_read(q: Any, k: Any, v: Any) -> Any:
    weights = (q @ k.transpose(-2, -1) * 0.3).softmax(-1)
    return weights @ v, weights.sum()


@compiled((3, 4))
def an_input_is_written_between(x: Any) -> Any:
    y = torch.sin(x)
    x.add_(1)
    return y + torch.sin(x), x * 1


@compiled((8,))
def written_slices_of_an_intermediate(x: Any) -> Any:
    y = x * 2
    y[1:4].mul_(3)
    y[2:].sub_(y[:-2].clone())
    return y + 0


@compiled((3, 4))
def sums_of_factories(x: Any) -> Any:
    ones = torch.ones(3, 1, dtype=torch.int64, device=x.device)
    return x + torch.arange(4, device=x.device), torch.full_like(x, 2) * x, ones.cumsum(0) * 2


@compiled((3, 4))
def reversed_twice_and_chained_views(x: Any) -> Any:
    return x.flip(0).flip(0) + 1, x.t().t() * 2, x.view(-1).view(4, 3).t().contiguous() - 1


@compiled((5, 3), (3, 4), (4,))
def products_with_factors(x: Any, w: Any, b: Any) -> Any:
    return torch.addmm(b, x, w, beta=2, alpha=3), torch.addmm(b, x, w, beta=0), x @ w + b


@compiled((2, 4, 6, 6), (4, 4, 3, 3), (4,))
def a_convolution_and_its_norm(x: Any, w: Any, mean: Any) -> Any:
    y = functional.conv2d(x, w, padding=1)
    return functional.batch_norm(y, mean, mean.abs() + 0.5, training=False)


@compiled((6, 4))
def equal_calls_are_merged_but_random_ones_are_not(x: Any) -> Any:
    return torch.exp(x) + torch.exp(x), (torch.rand_like(x) - torch.rand_like(x)).abs().sum() > 0


@compiled((0, 4), (4, 3))
def rows_that_are_none(x: Any, w: Any) -> Any:
    return x @ w, x.sum(), functional.softmax(x, -1)


@compiled((4, 4))
def infinities_and_their_differences(x: Any) -> Any:
    y = torch.where(x > 0, torch.inf, x)
    return y - y, y * 0, torch.maximum(y, x), 1 / (x - x)


@compiled((2, 3, 4))
def dtypes_there_and_back(x: Any) -> Any:
    return x.to(torch.float16).to(torch.float32), x.to(torch.float32) + 1, x.double().sum()


@compiled((4, 6))
def a_loss_that_users_train_with(x: Any) -> Any:
    target = torch.arange(4, device=x.device)
    return functional.cross_entropy(x, target, label_smoothing=0.1), functional.nll_loss(x, target)


@compiled((2, 5, 8))
def rotary_positions(x: Any) -> Any:
    angles = torch.arange(5, device=x.device)[:, None] * torch.ones(4, device=x.device)
    left, right = x.chunk(2, -1)
    turned = torch.cat([-right, left], -1)
    sine, cosine = angles.sin().repeat(1, 2), angles.cos().repeat(1, 2)
    return x * cosine + turned * sine
