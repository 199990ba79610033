"""Functions that are compiled for a device, by name, with the inputs of one call.

A row is what a model does in a line or two; the inputs are made on the cpu and moved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from bringup.conformance._samples import Mover


class Row(NamedTuple):
    """One function.

    Attributes:
        name: for tests.
        function: of tensors.
        inputs: makes them, on the cpu.
        gradient: whether the gradient of its sum with respect to floating inputs is compared, too.
        tolerance: relative and absolute, where the usual one does not do.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    gradient: bool = False
    tolerance: float | None = None


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def _i(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape)


def _matrix() -> tuple[torch.Tensor, ...]:
    return (_x(37, 65),)


def _two() -> tuple[torch.Tensor, ...]:
    return _x(37, 65), _x(37, 65)


def _image() -> tuple[torch.Tensor, ...]:
    return (_x(2, 3, 9, 11),)


POINTWISE = [
    Row("add_scalar", lambda x: x + 1, _matrix),
    Row("chain", lambda x, y: torch.tanh(x) * y.exp().log1p() - x.abs().sqrt(), _two, True),
    Row("broadcast", lambda x, b: torch.relu(x + b), lambda: (_x(37, 65), _x(65)), True),
    Row("broadcast_rows", lambda x, b: x * b, lambda: (_x(4, 5, 6), _x(4, 1, 6)), True),
    Row("transposed", lambda x, y: x.t() + y, lambda: (_x(65, 37), _x(37, 65)), True),
    Row(
        "transposed_backwards",
        lambda x, y: x.flip(0).t() + x.flip(1).t() * y,
        lambda: (_x(40, 37), _x(37, 40)),
    ),
    Row(
        "transposed_batches",
        lambda x, y, z, w: (x.mT + y, z.mT + w),
        lambda: (_x(3, 32, 40), _x(3, 40, 32), _x(3, 20, 40), _x(3, 40, 20)),
    ),
    Row(
        "sizes_as_numbers",
        lambda x: x / x.size(0) + x * x.size(1) ** -0.5 + 1 / x.size(0) - x.size(1) // 3,
        lambda: (_x(6, 10),),
    ),
    Row("permuted", lambda x: x.permute(2, 0, 1).contiguous() + 1, lambda: (_x(3, 5, 7),)),
    Row("expanded", lambda x: x.expand(4, 5) * 2, lambda: (_x(1, 5),)),
    Row("zero_dim", lambda x, s: x * s + s, lambda: (_x(8), torch.tensor(2.5))),
    Row("empty", lambda x: (x + 1, x.sum(0)), lambda: (_x(0, 4),)),
    Row("gelu_tanh", lambda x: F.gelu(x, approximate="tanh") * x, _matrix, True),
    Row("gelu", F.gelu, _matrix, True),
    Row("silu", F.silu, _matrix, True),
    Row("sigmoid", torch.sigmoid, _matrix, True),
    Row("softplus", F.softplus, _matrix, True),
    Row("elu", F.elu, _matrix, True),
    Row("leaky_relu", F.leaky_relu, _matrix, True),
    Row("hardswish", F.hardswish, _matrix, True),
    Row("clamp", lambda x: x.clamp(-0.5, 0.5), _matrix, True),
    Row("where", lambda x, y: torch.where(x > y, x, y * 2), _two, True),
    Row("minmax", lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)), _two),
    Row("trigonometry", lambda x: (x.sin(), x.cos(), x.atan(), x.sinh(), x.cosh()), _matrix),
    Row("erf", lambda x: (x.erf(), x.erfc(), x.expm1()), _matrix),
    Row("rounding", lambda x: ((x * 3).round(), (x * 3).floor(), x.ceil(), x.trunc()), _matrix),
    Row("powers", lambda x: (x.abs() ** 1.5, x**3, x.abs().rsqrt(), 1 / x), _matrix),
    Row("remainders", lambda x, y: (x % y, torch.fmod(x, y), x // y), _two),
    Row("signs", lambda x: (x.sign(), -x, x.signbit(), torch.copysign(x, -x)), _matrix),
    Row("nan", lambda x: (x.log().isnan(), (x / 0).isinf(), x.log().nan_to_num(0.5)), _matrix),
    Row("lerp", lambda x, y: torch.lerp(x, y, 0.3), _two, True),
    Row("addcmul", lambda x, y: torch.addcmul(x, x, y, value=0.5), _two, True),
    Row("two_functions", lambda x, y: (torch.atan2(x, y), torch.hypot(x, y)), _two),
]
DTYPES = [
    Row(
        "int64",
        lambda a, b: (a + b, a * b, a // (b + 1), a % (b + 1)),
        lambda: (_i(100, 33), _i(9, 33)),
    ),
    Row("int32", lambda a: (a * 3 - 7, a >> 1, a << 2, a & 12, ~a), lambda: (_i(100, 33).int(),)),
    Row("int8_wraps", lambda a: (a + a, a * 3), lambda: (_i(100, 33).to(torch.int8),)),
    Row("uint8", lambda a: (a + 200, a // 3), lambda: (_i(200, 33).to(torch.uint8),)),
    Row(
        "bool",
        lambda a, b: (a & b, a | b, ~a, a ^ b, a.sum(), a.any(0), a.all(0)),
        lambda: (_i(2, 33, 5).bool(), _i(2, 33, 5).bool()),
    ),
    Row("compare", lambda a, b: (a == b, a < b, a >= 3), lambda: (_i(9, 33), _i(9, 33))),
    Row("half", lambda x: (x * 2 + 1).relu(), lambda: (_x(37, 65, dtype=torch.float16),)),
    Row("half_softmax", lambda x: x.softmax(-1), lambda: (_x(37, 65, dtype=torch.float16),)),
    Row("bfloat16", lambda x: (x * 2 + 1).tanh(), lambda: (_x(37, 65, dtype=torch.bfloat16),)),
    Row("bfloat16_sum", lambda x: x.sum(-1), lambda: (_x(37, 65, dtype=torch.bfloat16),)),
    Row("double", lambda x: x.exp().sum(-1), lambda: (_x(37, 65, dtype=torch.float64),)),
    Row(
        "casts",
        lambda x: (x.int(), x.to(torch.uint8), x.half().float(), x.bool(), x.double()),
        lambda: (_x(37, 65).abs() * 9,),
    ),
    Row("bits", lambda x: x.view(torch.int32) + 1, _matrix),
    Row("promotion", lambda x, a: x * a + a, lambda: (_x(33), _i(9, 33))),
]
REDUCTIONS = [
    Row("sum", lambda x: x.square().sum(), _matrix, True),
    Row("sum_rows", lambda x: x.sum(-1), _matrix, True),
    Row("sum_columns", lambda x: (x * 2).sum(0), _matrix, True, 3e-5),
    Row("sum_middle", lambda x: x.sum(1), lambda: (_x(5, 33, 70),), True),
    Row(
        "long_rows",
        lambda x: (torch.log_softmax(x, -1), x.var(-1), x.argmin(-1), x.sum(), (x > 3).any(-1)),
        lambda: (_x(3, 300),),
        True,
    ),
    Row("mean_keepdim", lambda x: x - x.mean(-1, keepdim=True), _matrix, True),
    Row("mean_outer", lambda x: x - x.mean(0, keepdim=True), _matrix, True),
    Row("prod", lambda x: x.prod(-1), lambda: (_x(9, 7),)),
    Row("amax", lambda x: (x.amax(-1), x.amin(0)), _matrix, True),
    Row("max", lambda x: x.max(-1), _matrix),
    Row("argmax", lambda x: (x.argmax(-1), x.argmin(0), x.argmax()), _matrix),
    Row("argmax_nan", lambda x: (x.log().argmax(-1), x.log().amax(-1)), _matrix),
    Row("argmax_ties", lambda a: (a.argmax(-1), a.argmin(-1)), lambda: (_i(3, 9, 40),)),
    Row("var", lambda x: (x.var(-1), x.std(0), x.var()), _matrix, True),
    Row("var_mean", lambda x: torch.var_mean(x, 0, correction=0), _matrix),
    Row("logsumexp", lambda x: x.logsumexp(-1), _matrix, True),
    Row("softmax", lambda x: x.softmax(-1), _matrix, True),
    Row("softmax_columns", lambda x: x.softmax(0), _matrix, True),
    Row("log_softmax", lambda x: x.log_softmax(-1), _matrix, True),
    Row("norm", lambda x: (x.norm(), x.norm(dim=0)), _matrix, True),
    Row("any_all", lambda x: ((x > 0).any(-1), (x > -9).all()), _matrix),
    Row(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x + 1, (65,), w, b),
        lambda: (_x(37, 65), _x(65), _x(65)),
        True,
    ),
    Row("rms_norm", lambda x, w: F.rms_norm(x, (65,), w), lambda: (_x(37, 65), _x(65)), True),
    Row("group_norm", lambda x: F.group_norm(x, 2), lambda: (_x(3, 4, 5, 6),), True),
    Row(
        "batch_norm",
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda: (_x(8, 4, 5),),
        True,
    ),
    Row(
        "running_means",
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        lambda: (_x(8, 4, 5), torch.zeros(4), torch.ones(4)),
    ),
    Row("mse", F.mse_loss, _two, True),
    Row(
        "cross_entropy", lambda x, t: F.cross_entropy(x, t), lambda: (_x(37, 65), _i(65, 37)), True
    ),
    Row("large_sum", lambda x: x.abs().sum(), lambda: (_x(70_000),)),
]
INDEXED = [
    Row("embedding", lambda i, w: F.embedding(i, w), lambda: (_i(11, 4, 5), _x(11, 8)), True),
    Row("gather", lambda x, i: x.gather(1, i), lambda: (_x(5, 9), _i(9, 5, 3)), True),
    Row("index", lambda x, i: x[i] * 2, lambda: (_x(9, 4), torch.tensor([0, -1, 3])), True),
    Row("index_two", lambda x, i, j: x[i, j], lambda: (_x(9, 4), _i(9, 6), _i(4, 6)), True),
    Row(
        "index_put",
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda: (_x(9, 4), _i(9, 20), _x(20, 4)),
    ),
    Row(
        "scatter_add",
        lambda x, i, v: x.scatter_add(0, i, v),
        lambda: (_x(9, 4), _i(9, 20, 4), _x(20, 4)),
    ),
    Row("scatter", lambda x, i: x.scatter(1, i, 2.0), lambda: (_x(5, 9), _i(9, 5, 1))),
    Row("index_select", lambda x, i: x.index_select(0, i), lambda: (_x(9, 4), _i(9, 5)), True),
    Row("masked_fill", lambda x: x.masked_fill(x > 0, -1.0), _matrix, True),
    Row("cat", lambda x, y: torch.cat([x, y * 2], 1), _two, True),
    Row("stack", lambda x, y: torch.stack([x, y]).sum(0), _two, True),
    Row("pad", lambda x: F.pad(x, (1, 2, 3, 0), value=0.5), _image, True),
    Row("reflection_pad", lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), _image, True),
    Row("roll_flip", lambda x: x.roll(3, 1).flip(0), _matrix),
    Row("slice", lambda x: x[1::2, 3:-4] + 1, _matrix, True),
    Row("slice_scatter", lambda x, y: torch.slice_scatter(x, y[:5], 0, 2, 7), _two),
    Row("tril", lambda x: x.tril(1) + x.triu(), _matrix),
    Row("arange", lambda x: x + torch.arange(65, device=x.device), _matrix),
    Row("one_hot", lambda i: F.one_hot(i, 7), lambda: (_i(7, 12),)),
    Row("max_pool", lambda x: F.max_pool2d(x, 2), _image, True),
    Row("avg_pool", lambda x: F.avg_pool2d(x, 3, padding=1), _image, True),
    Row("adaptive_pool", lambda x: F.adaptive_avg_pool2d(x, (2, 3)), _image, True),
    Row("interpolate", lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), _image, True),
    Row("nearest", lambda x: F.interpolate(x, size=(5, 20)), _image, True),
    Row(  # by several blocks
        "index_add_of_many",
        lambda x, i, y: x.index_add(0, i, y),
        lambda: (_i(5, 50, 100).float(), _i(50, 9000), _i(5, 9000, 100).float()),
    ),
]
EAGER = [
    Row("mm", lambda x, y: (x @ y.t()).relu() + 1, _two, True),
    Row(
        "linear",
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        lambda: (_x(7, 16), _x(9, 16), _x(9)),
        True,
    ),
    Row("bmm", lambda x, y: torch.bmm(x, y) * 0.5, lambda: (_x(3, 4, 5), _x(3, 5, 6)), True),
    Row(
        "conv",
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        lambda: (_x(2, 3, 9, 11), _x(4, 3, 3, 3)),
        True,
    ),
    Row(
        "attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: (_x(2, 2, 9, 8), _x(2, 2, 9, 8), _x(2, 2, 9, 8)),
        True,
    ),
    Row("sort", lambda x: (x * 2).sort(-1), _matrix),
    Row("cumsum", lambda x: (x + 1).cumsum(-1), _matrix, True),
    Row("topk", lambda x: x.topk(3), _matrix),
    Row("erfinv", lambda x: x.tanh().erfinv() + 1, _matrix),
    Row("bessel", lambda x: torch.special.bessel_j0(x) * 2, _matrix),
    Row("complex", lambda x: (torch.complex(x, x) * 2).abs() + 1, _matrix),
    # Inductor copies what does not lie as its caller expects
    Row(
        "complex_copies",
        lambda *given: [torch.view_as_complex(x.transpose(0, 1)) for x in given],
        lambda: tuple(_x(19, 37, 2, dtype=d) for d in (torch.half, torch.float, torch.double)),
    ),
    Row(
        "complex_of_expanded",
        lambda x: torch.view_as_complex(x.expand(3, 4, 2)),
        lambda: (_x(1, 4, 2),),
    ),
    Row(
        "negative_bit",
        lambda x: (x + 1, x.t() @ x, x.sum(0), x.t(), x.mul_(2)),
        lambda: (torch.view_as_complex(_x(5, 6, 2)).conj().imag,),
    ),
    Row("bucketize", lambda x, b: torch.bucketize(x, b), lambda: (_x(9), torch.arange(5.0))),
]
ROWS = {row.name: row for row in (*POINTWISE, *DTYPES, *REDUCTIONS, *INDEXED, *EAGER)}


def compare(row: Row, device: str, *, dynamic: bool | None = None) -> None:
    """Compile a row for a device, with `dynamic` shapes or not, and compare with what eager
    operators of the cpu give: results, what is written to inputs, which of them share memory, and
    gradients.
    """
    compiled = functools.partial(torch.compile, fullgraph=True, dynamic=dynamic)
    torch.manual_seed(0)
    torch._dynamo.reset()
    here = row.inputs()
    there = Mover(device)(here)
    how = {} if row.tolerance is None else {"rtol": row.tolerance, "atol": row.tolerance}
    if row.gradient:
        wanted = gradients_of(row.function, here)
        found = gradients_of(compiled(row.function), Mover(device)(here))
        torch.testing.assert_close(_moved(found, device), wanted, equal_nan=True, **how)
        torch._dynamo.reset()
    expected, got = row.function(*here), compiled(row.function)(*there)
    torch.testing.assert_close(_moved(got, device), expected, equal_nan=True, **how)
    torch.testing.assert_close(_moved(there, device), here, equal_nan=True, **how)
    assert shared(there, got) == shared(here, expected)


def _moved(value: Any, device: str) -> Any:
    """Return results of a device on the cpu."""

    def moved(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            assert one.device.type == device
            return one.cpu()
        return one

    return torch.utils._pytree.tree_map(moved, value)


def shared(*values: Any) -> list[int]:
    """Return for each tensor the first one that has the same storage."""
    leaves = torch.utils._pytree.tree_leaves(values)
    storages = [v.untyped_storage()._cdata for v in leaves if isinstance(v, torch.Tensor)]
    return [storages.index(storage) for storage in storages]


def gradients_of(function: Callable[..., Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the gradients of a function of all floating results."""
    leaves = [v.detach().requires_grad_() if v.is_floating_point() else v for v in inputs]
    results = torch.utils._pytree.tree_leaves(function(*leaves))
    wanted = [v for v in leaves if v.requires_grad]
    total = sum(
        (v if v.dtype == torch.float64 else v.float()).sin().sum()
        for v in results
        if v.requires_grad
    )
    return list(torch.autograd.grad(total, wanted, allow_unused=True))
