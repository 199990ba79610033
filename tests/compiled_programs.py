"""Functions that are compiled for a device: views, mutation, indices, programs."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from tests.compiled_functions import Row, _i, _image, _matrix, _two, _x
from tests.compiled_layers import NORMS_AND_LOSSES, WINDOWS

VIEWS = [
    Row("view", lambda x: (x + 1).view(65, 37).t() * 2, _matrix, True),
    Row("unsqueeze", lambda x: x[None, :, None] + x[:, None, None], _matrix),
    Row("squeeze", lambda x: x.squeeze(1) + 1, lambda: (_x(5, 1, 3),), True),
    Row("movedim", lambda x: x.movedim(0, 2).reshape(-1, 3) * 2, lambda: (_x(3, 5, 7),), True),
    Row("swapaxes", lambda x: x.swapaxes(0, 2) + x.swapaxes(0, 2).sin(), lambda: (_x(3, 5, 3),)),
    Row("expand_as", lambda x, y: x[:1].expand_as(y) - y, _two, True),
    Row("as_strided", lambda x: x.as_strided((5, 4), (3, 1), 2) + 1, _matrix, True),
    Row("as_strided_overlaps", lambda x: x.as_strided((5, 4), (1, 1)).sum(0), _matrix, True),
    Row("diagonal", lambda x: x.diagonal(1) * 3, _matrix, True),
    Row("diag_embed", lambda x: x[0].diag_embed() + 1, _matrix, True),
    Row("diagonal_scatter", lambda x: x.diagonal_scatter(torch.ones(37, device=x.device)), _matrix),
    Row("select_scatter", lambda x, y: x.select_scatter(y[0], 0, 3), _two, True),
    Row("unfold", lambda x: x.unfold(1, 5, 2) * 2, _matrix, True),
    Row("chunk", lambda x: [c + 1 for c in x.chunk(4, 1)], _matrix, True),
    Row("split", lambda x: [c * 2 for c in x.split([30, 30, 5], 1)], _matrix, True),
    Row("tensor_split", lambda x: [c - 1 for c in x.tensor_split(3)], _matrix),
    Row("unbind", lambda x: sum(x[:4].unbind(0)), _matrix, True),
    Row("narrow", lambda x: x.narrow(1, 7, 20).tanh(), _matrix, True),
    Row("repeat", lambda x: x.repeat(2, 3) + 1, lambda: (_x(3, 4),), True),
    Row("tile", lambda x: x.tile(2) * 2, lambda: (_x(3, 4),), True),
    Row("repeat_interleave", lambda x: x.repeat_interleave(3, 1) + 1, lambda: (_x(3, 4),), True),
    Row("rot90", lambda x: x.rot90() + 1, _matrix, True),
    Row("flatten", lambda x: x.transpose(1, 2).flatten(1) + 1, _image, True),
    Row("unflatten", lambda x: x.unflatten(1, (5, 13)).sum(1), _matrix, True),
    Row("view_as_real_bits", lambda x: x.view(torch.int32) & 0x7FFFFF, _matrix),
    Row("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2) + 1, lambda: (_x(2, 8, 3, 4),), True),
    Row("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), lambda: (_x(2, 3, 4, 6),), True),
    Row("channel_shuffle", lambda x: F.channel_shuffle(x, 2) * 2, lambda: (_x(2, 4, 3, 5),)),
    Row(
        "channels_last", lambda x: x.contiguous(memory_format=torch.channels_last) + 1, _image, True
    ),
    Row("cat_dims", lambda x, y: (torch.cat([x, y]), torch.cat([x, y, x], 1)), _two, True),
    Row("cat_dtypes", lambda x, i: torch.cat([x, i]) + 1, lambda: (_x(3, 4), _i(9, 2, 4))),
    Row("cat_empty", lambda x, e: torch.cat([x, e, x]), lambda: (_x(3, 4), _x(0, 4))),
    Row("cat_of_slices", lambda x: torch.cat([x[:, 30:], -x[:, :30]], 1), _matrix, True),
    Row("cat_many", lambda x: torch.cat([x[i : i + 1] * i for i in range(12)]), _matrix),
    Row("stack_last", lambda x, y: torch.stack([x, y, x * y], -1), _two, True),
    Row("hstack_vstack", lambda x, y: (torch.hstack([x, y]), torch.vstack([x, y])), _two),
    Row("block_diag", lambda x, y: torch.block_diag(x, y), lambda: (_x(2, 3), _x(3, 2)), True),
    Row("meshgrid", lambda x, y: torch.meshgrid(x[0], y[0], indexing="ij")[0] * 2, _two),
    Row("cartesian", lambda x, y: x[:, None] * y[None], lambda: (_x(9), _x(7)), True),
    Row("tril_triu_of_batches", lambda x: (x.tril(-1), x.triu(2)), lambda: (_x(3, 6, 5),), True),
    Row("constant_pad", lambda x: F.pad(x, (2, -1, 0, 3), value=-1.0), _matrix, True),
    Row("replication_pad", lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), _image, True),
    Row("circular_pad", lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), _image, True),
    Row("pad_of_bool", lambda x: F.pad(x > 0, (1, 1), value=True), _matrix),
    Row("pad_of_whole", lambda i: F.pad(i, (1, 2), value=-3), lambda: (_i(9, 5),)),
    Row("pad_then_sum", lambda x: F.pad(x, (3, 3), value=2.0).sum(-1), _matrix, True),
    Row("roll_two", lambda x: x.roll((2, -3), (0, 1)) + 1, _matrix, True),
]


def _writes(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.add_(1)
    x[3:5] = y[3:5]
    return x * 2


def _writes_through_a_view(x: torch.Tensor) -> Any:
    x.t()[2].mul_(3)
    return x.sum(0)


def _writes_after_reading(x: torch.Tensor) -> Any:
    before = x * 2
    x.sin_()
    return before, x + before


def _swaps(x: torch.Tensor, y: torch.Tensor) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x - y


def _swaps_views(x: torch.Tensor, y: torch.Tensor) -> Any:
    kept = x.clone()
    x[:9].copy_(y[3:12])
    y[:5].copy_(kept[:5])
    return x - y


def _turns_around(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    kept = x.clone()
    x.copy_(y)
    y.copy_(z)
    z.copy_(kept)
    return x + 2 * y + 3 * z


def _writes_with_step(x: torch.Tensor) -> Any:
    x[::2, 1::3] += 5
    return x.relu()


def _writes_masked(x: torch.Tensor) -> Any:
    x[x > 0.5] = -1
    return x + 0.5


def _writes_indexed(x: torch.Tensor, i: torch.Tensor) -> Any:
    x[i] = 7
    x.index_add_(0, i, torch.ones(i.numel(), x.size(1), device=x.device))
    return x * 1


def _fills(x: torch.Tensor) -> Any:
    x.zero_()
    x[0].fill_(3)
    return x.cos()


def _counts(n: torch.Tensor, x: torch.Tensor) -> Any:
    n += 1
    return x / n


def _writes_two_types(x: torch.Tensor, i: torch.Tensor) -> Any:
    i.copy_(x * 10)
    return i + 1


MUTATION = [
    Row("writes", _writes, _two),
    Row("writes_through_a_view", _writes_through_a_view, _matrix),
    Row("writes_after_reading", _writes_after_reading, _matrix),
    Row("swaps", _swaps, _two),
    Row("swaps_views", _swaps_views, _two),
    Row("swaps_transposed", lambda x, y: _swaps(x, y.t()), lambda: (_x(9, 9), _x(9, 9))),
    Row("turns_around", _turns_around, lambda: (_x(9), _x(9), _x(9))),
    Row("writes_with_step", _writes_with_step, _matrix),
    Row("writes_masked", _writes_masked, _matrix),
    Row("writes_indexed", _writes_indexed, lambda: (_x(9, 4), torch.tensor([1, 3, 7]))),
    Row("fills", _fills, _matrix),
    Row("counts", _counts, lambda: (torch.tensor(3), _x(5))),
    Row("writes_two_types", _writes_two_types, lambda: (_x(9), _i(5, 9))),
    Row("writes_bool", lambda b: b.logical_not_().sum(), lambda: (_i(2, 33).bool(),)),
    Row("writes_half", lambda x: x.mul_(3).add_(1), lambda: (_x(33, dtype=torch.float16),)),
    Row("view_returned", lambda x: (x[2:4], x.t(), x + 1), _matrix),
    Row("input_returned", lambda x: (x, x * 2, x), _matrix),
    Row("view_of_result", lambda x: ((y := x + 1), y[1:], y.t()), _matrix),
    Row("written_input_returned", lambda x: (x.mul_(2), x[1:]), _matrix),
    Row("constants_returned", lambda x: (x + 1, 3, None, [x * 2]), _matrix),
    Row("dictionary_returned", lambda x: {"a": x + 1, "b": (x.sum(0), x.amax())}, _matrix),
    Row("one_result_twice", lambda x: ((y := x.exp()), y, y + 1), _matrix),
    Row("detached", lambda x: (x * 2).detach() * x, _matrix, True),
]
INDICES = [
    Row(
        "index_negative", lambda x: x[torch.tensor([-1, -9], device=x.device)], lambda: (_x(9, 4),)
    ),
    Row(
        "index_broadcast",
        lambda x, i, j: x[i[:, None], j] * 2,
        lambda: (_x(9, 4), _i(9, 6), _i(4, 3)),
        True,
    ),
    Row("index_middle", lambda x, i: x[:, i] + 1, lambda: (_x(3, 9, 4), _i(9, 5)), True),
    Row("index_apart", lambda x, i: x[i, :, i] + 1, lambda: (_x(4, 5, 4), _i(4, 6)), True),
    Row(
        "index_bool_where",
        lambda x, b: torch.where(b[:, None], x, 0.0),
        lambda: (_x(9, 4), _i(2, 9).bool()),
    ),
    Row("index_int32", lambda x, i: x[i.int()], lambda: (_x(9, 4), _i(9, 5)), True),
    Row(
        "index_zero_dim",
        lambda x, i: x.index_select(0, i) * 2,
        lambda: (_x(9, 4), torch.tensor(3)),
    ),
    Row("index_of_index", lambda x, i, j: x[i[j]], lambda: (_x(9), _i(9, 5), _i(5, 7)), True),
    Row("index_after_sum", lambda x, i: x.sum(-1)[i], lambda: (_x(9, 40), _i(9, 5)), True),
    Row(
        "put_values",
        lambda x, i, v: x.index_put((i,), v),
        lambda: (_x(9, 4), torch.tensor([5, 2]), _x(2, 4)),
        True,
    ),
    Row(
        "put_scalar",
        lambda x, i: x.index_put((i,), torch.tensor(3.0, device=x.device)),
        lambda: (_x(9, 4), _i(9, 3)),
    ),
    Row(
        "put_two",
        lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
        lambda: (_x(5, 4), _i(5, 9), _i(4, 9), _x(9)),
        True,
    ),
    Row(
        "put_whole",
        lambda x, i: x.index_put((i,), i, accumulate=True),
        lambda: (_i(9, 9), _i(9, 20)),
    ),
    Row("put_mask", lambda x: x.masked_fill(x < 0, 0.5).masked_fill(x > 1, -0.5), _matrix, True),
    Row("masked_scatter", lambda x, y: x.masked_scatter(x > 0, y), _two),
    Row("gather_first", lambda x, i: x.gather(0, i) * 2, lambda: (_x(5, 9), _i(5, 3, 9)), True),
    Row(
        "take_along_dim", lambda x, i: x.take_along_dim(i, 1), lambda: (_x(5, 9), _i(9, 5, 2)), True
    ),
    Row("take", lambda x, i: x.take(i), lambda: (_x(5, 9), _i(45, 4)), True),
    Row(
        "scatter_values",
        lambda x, i, v: x.scatter(1, i, v),
        lambda: (_x(5, 9), torch.tensor([[3, 1]] * 5), _x(5, 2)),
        True,
    ),
    Row(
        "scatter_reduce_sum",
        lambda x, i, v: x.scatter_reduce(0, i, v, "sum"),
        lambda: (_x(5, 4), _i(5, 9, 4), _x(9, 4)),
    ),
    Row(
        "scatter_reduce_amax",
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
        lambda: (_x(5, 4), _i(5, 9, 4), _x(9, 4)),
    ),
    Row(
        "scatter_reduce_mean",
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
        lambda: (_x(5, 4), _i(5, 9, 4), _x(9, 4)),
    ),
    Row(
        "scatter_reduce_prod",
        lambda x, i, v: x.scatter_reduce(0, i, v, "prod"),
        lambda: (_x(5, 4), _i(5, 9, 4), _x(9, 4)),
    ),
    Row("scatter_add_whole", lambda x, i: x.scatter_add(0, i, i), lambda: (_i(5, 5), _i(5, 9))),
    Row(
        "scatter_add_half",
        lambda x, i, v: x.scatter_add(0, i, v),
        lambda: (_x(5, dtype=torch.float16), torch.arange(5), _x(5, dtype=torch.float16)),
    ),
    Row(
        "index_add",
        lambda x, i, v: x.index_add(0, i, v, alpha=2),
        lambda: (_x(5, 4), _i(5, 9), _x(9, 4)),
        True,
    ),
    Row(
        "index_copy",
        lambda x, i, v: x.index_copy(0, i, v),
        lambda: (_x(5, 4), torch.tensor([3, 0]), _x(2, 4)),
        True,
    ),
    Row("index_fill", lambda x, i: x.index_fill(0, i, 2.5), lambda: (_x(5, 4), _i(5, 2)), True),
    Row(
        "embedding_padding",
        lambda i, w: F.embedding(i, w, padding_idx=3),
        lambda: (_i(11, 4, 5), _x(11, 8)),
        True,
    ),
    Row(
        "embedding_half",
        lambda i, w: F.embedding(i, w) * 2,
        lambda: (_i(11, 4, 5), _x(11, 8, dtype=torch.float16)),
    ),
    Row(
        "embedding_bag",
        lambda i, w: F.embedding_bag(i, w, mode="mean"),
        lambda: (_i(11, 4, 5), _x(11, 8)),
    ),
    Row(
        "searchsorted", lambda s, x: torch.searchsorted(s.sort().values, x), lambda: (_x(9), _x(20))
    ),
    Row("nonzero_static", lambda x: torch.nonzero_static(x > 0, size=9), lambda: (_x(20),)),
    Row("bincount_like", lambda i: F.one_hot(i, 7).sum(0), lambda: (_i(7, 40),)),
    Row(
        "histogram_by_scatter",
        lambda i: torch.zeros(7, dtype=torch.int64, device=i.device).scatter_add(
            0, i, torch.ones_like(i)
        ),
        lambda: (_i(7, 40),),
    ),
    Row(
        "isin", lambda i: torch.isin(i, torch.tensor([1, 4], device=i.device)), lambda: (_i(7, 40),)
    ),
]
CREATION = [
    Row("arange_step", lambda x: torch.arange(3, 40, 7, device=x.device) * x[0, 0].long(), _matrix),
    Row("arange_float", lambda x: torch.arange(0.5, 4.0, 0.25, device=x.device) + 1, _matrix),
    Row("linspace", lambda x: torch.linspace(-1, 1, 17, device=x.device) * 2, _matrix),
    Row("logspace", lambda x: torch.logspace(-1, 1, 9, device=x.device), _matrix),
    Row("eye", lambda x: torch.eye(5, 7, device=x.device) + 1, _matrix),
    Row("full", lambda x: torch.full((3, 4), 2.5, device=x.device) + x[:3, :4], _matrix),
    Row("full_infinite", lambda x: torch.full((3,), -math.inf, device=x.device).exp(), _matrix),
    Row("full_whole", lambda x: torch.full((3,), -(2**63), device=x.device) + 1, _matrix),
    Row("zeros_ones_like", lambda x: torch.zeros_like(x) + torch.ones_like(x) * x, _matrix),
    Row("new_full", lambda x: x.new_full((4,), 3).half() + 1, _matrix),
    Row("tri", lambda x: torch.ones(5, 5, device=x.device, dtype=torch.bool).tril(), _matrix),
    Row("tril_indices", lambda x: torch.tril_indices(4, 5, device=x.device) + 1, _matrix),
    Row("hann_window", lambda x: torch.hann_window(9, device=x.device) * 2, _matrix),
    Row("scalar_tensor", lambda x: x + torch.tensor(2.0, device=x.device) * 3, _matrix),
    Row(
        "constant_list",
        lambda x: x[:, :3] * torch.tensor([1.0, 2.0, 3.0], device=x.device),
        _matrix,
    ),
    Row(
        "positions",
        lambda x: (
            x
            + torch.arange(65, device=x.device)
            .float()
            .outer(torch.ones(1, device=x.device))
            .t()
            .sin()
        ),
        _matrix,
    ),
    Row(
        "causal_mask",
        lambda x: (
            x[:, :37]
            .masked_fill(torch.ones(37, 37, device=x.device).triu(1).bool(), -math.inf)
            .softmax(-1)
        ),
        _matrix,
        True,
    ),
    Row("large_literal", lambda i: (i + 2**40, i * -(2**62), i ^ (2**63 - 1)), lambda: (_i(9, 5),)),
]
MANY = [
    Row("count_nonzero", lambda x: ((x > 0).sum(0), torch.count_nonzero(x.relu())), _matrix),
    Row("median_fallback", lambda x: x.median(-1), _matrix),
    Row("mode_fallback", lambda i: i.mode(-1), lambda: (_i(3, 5, 40),)),
    Row("kthvalue_fallback", lambda x: (x + 1).kthvalue(3), _matrix),
    Row("argsort", lambda x: (x * 2).argsort(-1), _matrix),
    Row("cumprod", lambda x: (x.sigmoid() + 0.5).cumprod(0), _matrix, False, 1e-4),
    Row("cummax", lambda x: (x + 1).cummax(-1), _matrix),
    Row("logcumsumexp", lambda x: (x + 1).logcumsumexp(-1), _matrix, False, 1e-5),
    Row("cumsum_whole", lambda i: i.cumsum(0) * 2, lambda: (_i(9, 7, 5),)),
    Row("diff", lambda x: x.diff(), _matrix, True),
    Row("trapezoid", lambda x: torch.trapezoid(x), _matrix, True),
    Row("aminmax", lambda x: torch.aminmax(x, dim=-1), _matrix),
    Row("nansum", lambda x: (x.log().nansum(), x.log().nanmean(0)), _matrix),
    Row("std_mean", lambda x: torch.std_mean(x, -1), _matrix, True),
    Row(
        "var_two",
        lambda x: (x.var((0, 2)), x.var((1,), correction=3)),
        lambda: (_x(5, 6, 7),),
        True,
    ),
    Row("sum_of_two_dims", lambda x: (x.sum((0, 2)), x.mean((1, 2))), lambda: (_x(5, 6, 7),), True),
    Row("sum_to_double", lambda x: x.sum(dtype=torch.float64), _matrix),
    Row(
        "sum_of_half_to_float",
        lambda x: x.sum(-1, dtype=torch.float32),
        lambda: (_x(9, 65, dtype=torch.float16),),
    ),
    Row("prod_of_all", lambda x: (x / 4 + 1).prod(), lambda: (_x(9, 7),), True),
    Row("all_any_none", lambda x: (x.bool().all(), (x > 99).any(0)), _matrix),
    Row(
        "argmax_keepdim", lambda x: (x.argmax(0, keepdim=True), x.argmin(1, keepdim=True)), _matrix
    ),
    Row("argmax_of_all", lambda x: (x.argmax(), x.flatten().argmin()), lambda: (_x(30, 40),)),
    Row("argmax_bool", lambda x: ((x > 1).long().argmax(-1), (x > 1).byte().argmax(0)), _matrix),
    Row(
        "max_with_infinity",
        lambda x: (x / 0).amax(-1),
        lambda: (torch.tensor([[1.0, -1], [-1, -1]]),),
    ),
    Row("large_columns", lambda x: (x * 2).sum(0), lambda: (_x(3000, 11),), True, 1e-4),
    Row("large_rows", lambda x: x.softmax(-1), lambda: (_x(3, 9001),), True),
    Row("large_max", lambda x: (x.amax(), x.argmax()), lambda: (_x(70_000),)),
    Row("large_mean", lambda x: (x.mean(), x.var()), lambda: (_x(70_000),)),
    Row("two_reductions", lambda x: (x.sum(-1) / x.abs().amax(-1)).softmax(0), _matrix, True),
    Row(
        "reduction_of_reduction",
        lambda x: x.sum(-1).amax(0) + x.amax(0).sum(),
        lambda: (_x(9, 7, 5),),
        True,
    ),
    Row("reductions_both_ways", lambda x: x - x.mean(0) - x.mean(1, keepdim=True), _matrix, True),
    Row(
        "softmax_of_scores",
        lambda q, k: (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1),
        lambda: (_x(2, 9, 8), _x(2, 9, 8)),
        True,
    ),
    Row(
        "online_stats",
        lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
        _matrix,
        True,
    ),
    Row("many_outputs", lambda x: [x * i for i in range(30)], _matrix),
    Row(
        "many_inputs",
        lambda *xs: sum(x * i for i, x in enumerate(xs)),
        lambda: tuple(_x(7) for _ in range(50)),
        True,
    ),
    Row("long_chain", lambda x: _chain(x, 60), _matrix, True),
    Row(
        "shared_subexpressions", lambda x: (x.tanh() + 1) * (x.tanh() + 1) - x.tanh(), _matrix, True
    ),
    Row("mixed_shapes", lambda x, y: (x.sum(0) + y[:, 0].amax() - 1, y.t() * 2), _two, True),
    Row(
        "mixed_dtypes",
        lambda x, i, b: (x * i, i + b, torch.where(b, x, i)),
        lambda: (_x(9), _i(9, 9), _i(2, 9).bool()),
    ),
    Row(
        "half_with_float",
        lambda x, h: (x + h, x.half() * h, h.sum(dtype=torch.float32)),
        lambda: (_x(9), _x(9, dtype=torch.float16)),
    ),
    Row(
        "half_with_bfloat16",
        lambda h, b: h + b,
        lambda: (_x(9, dtype=torch.float16), _x(9, dtype=torch.bfloat16)),
    ),
    Row(
        "double_with_float",
        lambda x, d: (x + d, x * d.float()),
        lambda: (_x(9), _x(9, dtype=torch.float64)),
    ),
    Row(
        "casts_there_and_back",
        lambda x: (x.half().float(), x.bfloat16().float(), x.int().float()),
        _matrix,
    ),
    Row(
        "cast_of_negative_to_uint8",
        lambda x: x.to(torch.uint8),
        lambda: (torch.tensor([-1.0, -3.5, 250.0, -255.0]),),
    ),
    Row(
        "cast_of_large_to_int8",
        lambda i: (i.to(torch.int8), i.to(torch.uint8)),
        lambda: (torch.tensor([300, -129, 128, 2**40]),),
    ),
    Row(
        "cast_overflows_half",
        lambda x: (x * 1e5).half(),
        lambda: (torch.tensor([1.0, -1.0, 0.5, 1e-9, 0.6552]),),
    ),
    Row(
        "half_rounds_to_even",
        lambda x: (x.half(), x.bfloat16()),
        lambda: (torch.arange(2048, 2080).float() + 0.5,),
    ),
    Row(
        "half_subnormal",
        lambda x: x.half().float() * 2**20,
        lambda: (torch.arange(1, 40) * 2.0**-25,),
    ),
    Row(
        "bfloat16_of_nan",
        lambda x: (x.log().bfloat16(), (x / 0).half()),
        lambda: (torch.tensor([-1.0, 1.0, 0.0]),),
    ),
    Row(
        "whole_beyond_float",
        lambda i: (i + 1, i == 2**53 + 1, i.double()),
        lambda: (torch.tensor([2**53, 2**53 + 1]),),
    ),
    Row("integer_powers", lambda x: (x**4, x**5, x**-1, x**0, x**1), _matrix),
    Row("number_arithmetic", lambda x: (3 - x, 2 / x, 2**x, x // 0.3, x % -0.7), _matrix),
    Row(
        "bool_arithmetic", lambda x: ((x > 0) * x, (x > 0) + (x < 1), (x > 0).float() - 1), _matrix
    ),
    Row("where_scalars", lambda x: (torch.where(x > 0, 1, 0), torch.where(x > 0, 1.5, x)), _matrix),
    Row("clamp_both", lambda x, y: (x.clamp(max=y), x.clamp(min=0).clamp(max=0.1)), _two, True),
    Row("nan_in_where", lambda x: torch.where(x > 0, x.log(), torch.zeros_like(x)), _matrix, True),
    Row(
        "negative_zero",
        lambda x: (x * -1, -x, x.abs(), x + -0.0, x.relu(), x.sqrt()),
        lambda: (torch.tensor([0.0, -0.0]),),
    ),
    Row("fallback_between", lambda x: (torch.special.bessel_j1(x + 1) * 2).relu(), _matrix),
    Row("fallback_of_complex", lambda x: torch.fft.rfft(x * 2).abs() + 1, _matrix),
    Row(
        "products_between",
        lambda x, w: ((x + 1) @ w).relu() @ w.t(),
        lambda: (_x(9, 5), _x(5, 7)),
        True,
    ),
    Row("einsum", lambda x, y: torch.einsum("ij,kj->ik", x, y).tanh(), _two, True),
    Row(
        "addmm",
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2),
        lambda: (_x(7), _x(9, 5), _x(5, 7)),
        True,
    ),
    Row(
        "conv1d", lambda x, w: F.conv1d(x + 1, w).relu(), lambda: (_x(2, 3, 20), _x(4, 3, 3)), True
    ),
    Row(
        "conv_transpose",
        lambda x, w: F.conv_transpose2d(x, w, stride=2) * 2,
        lambda: (_x(1, 3, 4, 5), _x(3, 2, 3, 3)),
        True,
    ),
    Row(
        "rotary",
        lambda x: torch.cat([-x[..., 8:], x[..., :8]], -1) * x.cos() + x,
        lambda: (_x(2, 5, 16),),
        True,
    ),
    Row(
        "swiglu",
        lambda x, w, v: F.silu(x @ w) * (x @ v),
        lambda: (_x(5, 8), _x(8, 6), _x(8, 6)),
        True,
    ),
    Row(
        "adam_step",
        lambda p, g, m, v: _adam(p, g, m, v.abs()),
        lambda: tuple(_x(33) for _ in range(4)),
    ),
]


def _chain(x: torch.Tensor, steps: int) -> torch.Tensor:
    for step in range(steps):
        x = (x * 0.9 + 0.01 * step).sin()
    return x


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
    m = m.lerp(g, 0.1)
    v = v * 0.99 + g * g * 0.01
    return p - 0.01 * m / (v.sqrt() + 1e-8), m, v


PROGRAMS = [*VIEWS, *MUTATION, *INDICES, *CREATION, *WINDOWS, *NORMS_AND_LOSSES, *MANY]
