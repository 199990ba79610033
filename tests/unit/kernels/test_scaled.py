"""Products of quantised operands, dequantisation, and epilogues: against float64."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels.matmul_support import LAYOUTS, lay_out
from tests.unit.kernels.scaled_support import (
    ELEMENTS,
    GRANULARITIES,
    RESULTS,
    SCALES,
    assert_near,
    element,
    product,
    scale,
    scales_of,
    spread,
)
from torch import Tensor
from torch.nn import functional

from bringup import devices, graphs, kernels
from bringup.errors import ContractError, KernelError

# Pairs that a sweep goes through in full (tests/sweeps/test_scaled_products.py).
PAIRS = (
    (torch.int8, torch.int8),
    (torch.float8_e4m3fn, torch.float8_e4m3fn),
    (torch.float8_e5m2, torch.float8_e4m3fn),
    (torch.bfloat16, torch.int8),
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(14)


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 40), st.integers(0, 70), st.integers(0, 90)),
    pair=st.sampled_from(PAIRS),
    granularities=st.tuples(st.sampled_from(GRANULARITIES), st.sampled_from(GRANULARITIES)),
    block=st.sampled_from([1, 3, 16, 32]),
    has_bias=st.booleans(),
)
def test_product_of_scaled_operands(
    sizes: tuple[int, int, int],
    pair: tuple[torch.dtype, torch.dtype],
    granularities: tuple[str, str],
    block: int,
    has_bias: bool,
) -> None:
    """Odd shapes and zero sizes; per tensor, token, channel, group and block."""
    m, n, k = sizes
    a, b = element((m, k), pair[0]), element((k, n), pair[1])
    scale_a, block_a = scales_of(m, k, granularities[0], torch.float32, "rows", block)
    scale_b, block_b = scales_of(k, n, granularities[1], torch.float32, "columns", block)
    bias = torch.randn(n) if has_bias else None
    ours = kernels.scaled_matmul(
        a, b, scale_a, scale_b, bias, block_a=block_a, block_b=block_b, out_dtype=torch.float32
    )
    of_a, of_b = spread(scale_a, m, k, block_a, "rows"), spread(scale_b, k, n, block_b, "columns")
    assert_near(ours, *product(a, b, of_a, of_b, bias))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("granularities", [("vector", "vector"), ("group", "block")])
def test_operands_are_taken_as_they_lie(layout: str, granularities: tuple[str, str]) -> None:
    a, b = (element(s, torch.int8, layout) for s in ((33, 70), (70, 45)))
    scale_a, block_a = scales_of(33, 70, granularities[0], torch.float32, "rows", 16)
    scale_b, block_b = scales_of(70, 45, granularities[1], torch.float32, "columns", 16)
    of_a, of_b = (
        spread(scale_a, 33, 70, block_a, "rows"),
        spread(scale_b, 70, 45, block_b, "columns"),
    )
    if scale_a is not None and scale_a.dim() == 2:
        scale_a = lay_out(scale_a, layout)
    ours = kernels.scaled_matmul(a, b, scale_a, scale_b, block_a=block_a, block_b=block_b)
    assert_near(ours, *product(a, b, of_a, of_b))


@pytest.mark.parametrize("dtype", SCALES)
@pytest.mark.parametrize("result", RESULTS)
def test_scales_of_every_dtype(dtype: torch.dtype, result: torch.dtype) -> None:
    """float16 and bfloat16 scales, and powers of two."""
    a, b = element((20, 64), torch.int8), element((64, 30), torch.int8)
    token, channel = scale((20,), dtype), scale((30,), dtype)
    ours = kernels.scaled_matmul(a, b, token, channel, out_dtype=result)
    expected = product(a, b, token.double()[:, None], channel.double())
    assert ours.dtype == result
    assert_near(ours, *expected)


def test_sums_of_int8_stay_exact_where_scales_do_not_differ_along_the_depth() -> None:
    a, b = element((9, 3001), torch.int8), element((3001, 40), torch.int8)
    ours = kernels.scaled_matmul(a, b, torch.ones(9), torch.full((40,), 0.5))
    assert torch.equal(ours, (a.double() @ b.double()).float() * 0.5)


@pytest.mark.parametrize("dtype", ELEMENTS[1:3])
def test_every_float_of_eight_bits_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    """Subnormal numbers, infinities, NaN, both zeros; each layout has a loop of its own."""
    bits = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    for layout in LAYOUTS:
        x = lay_out(bits, layout).view(dtype) if layout == "row" else _laid_out(bits, layout, dtype)
        ours = kernels.dequantize(x)
        assert torch.equal(ours.nan_to_num(7), x.float().nan_to_num(7))
        assert torch.equal(ours.signbit(), x.float().signbit() & ~ours.isnan() | ours.signbit())
        finite = x.float().isfinite()
        clean = torch.where(finite, x.float(), 0).to(dtype)
        for a, b in ((clean, torch.eye(32)), (torch.eye(8), clean)):
            assert torch.equal(kernels.scaled_matmul(a, b, out_dtype="float32"), clean.float())


def _laid_out(bits: Tensor, layout: str, dtype: torch.dtype) -> Tensor:
    return lay_out(bits.view(torch.int8), layout).view(dtype)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("granularity", ["vector", "group"])
def test_scales_that_are_not_finite_reach_their_rows_alone(granularity: str, value: float) -> None:
    a, b = element((20, 64), torch.int8), element((64, 30), torch.int8)
    scale_a, block_a = scales_of(20, 64, granularity, torch.float32, "rows", 16)
    scale_b, block_b = scales_of(64, 30, granularity, torch.float32, "columns", 16)
    assert scale_a is not None
    clean = kernels.scaled_matmul(a, b, scale_a, scale_b, block_a=block_a, block_b=block_b)
    scale_a[3] = value
    ours = kernels.scaled_matmul(a, b, scale_a, scale_b, block_a=block_a, block_b=block_b)
    assert not ours[3].isfinite().any()
    assert ours[3].isnan().all() == (value != value) or granularity == "group"
    others = torch.arange(20) != 3
    assert torch.equal(ours[others], clean[others])


def test_a_depth_of_zero_has_no_scales_to_read() -> None:
    a, b, bias = element((3, 0), torch.int8), element((0, 4), torch.int8), torch.randn(4)
    ours = kernels.scaled_matmul(a, b, torch.ones(3, 0), torch.ones(0, 4), bias)
    assert torch.equal(ours, bias.expand(3, 4))


# --- batches and groups


def test_a_batch_has_scales_of_its_own_or_shared_ones() -> None:
    a, b = element((3, 17, 40), torch.int8), element((3, 40, 33), torch.int8)
    token, group = scale((3, 17), torch.float32), scale((3, 3, 33), torch.float32)
    ours = kernels.scaled_matmul(a, b, token, group, block_b=(16, 1))
    for i in range(3):
        of_b = spread(group[i], 40, 33, (16, 1), "columns")
        assert_near(ours[i], *product(a[i], b[i], token[i].double()[:, None], of_b))
    shared = kernels.scaled_matmul(a, b, None, group[0, 0])
    assert_near(shared[2], *product(a[2], b[2], 1.0, group[0, 0].double()))


ENDS = [[10, 10, 37, 50], [0, 0, 0, 0], [60] * 4]


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_groups_of_rows_with_scales_of_each_token_and_groups_channel(
    dtype: torch.dtype, ends: list[int]
) -> None:
    """Slice m, per token and channel: a mixture of experts."""
    a, b = element((60, 40), torch.int8), element((4, 40, 33), torch.int8)
    token, channel = scale((60,), torch.float32), scale((4, 33), torch.float32)
    groups = torch.tensor(ends, dtype=dtype)
    ours = kernels.scaled_matmul(a, b, token, channel, group_list=groups)
    one = kernels.scaled_matmul(a, b, token[:1], channel[1], group_list=groups)
    start = 0
    for g, end in enumerate(ends):
        rows = slice(start, end)
        expected = product(a[rows], b[g], token[rows].double()[:, None], channel[g].double())
        assert_near(ours[rows].contiguous(), *expected)
        expected = product(a[rows], b[g], token[0].double(), channel[1].double())
        assert_near(one[rows].contiguous(), *expected)
        start = end
    assert not ours[start:].any()


def test_groups_of_rows_that_blocks_of_rows_do_not_end_with() -> None:
    """A block's scale belongs to rows of a, whichever group they are in."""
    a, b = element((50, 40), torch.float8_e4m3fn), element((2, 40, 33), torch.float8_e4m3fn)
    of_a, of_b = scale((4, 3), torch.float32), scale((2, 3, 3), torch.float32)
    ours = kernels.scaled_matmul(
        a, b, of_a, of_b, block_a=(16, 16), block_b=(16, 16), group_list=torch.tensor([21, 50])
    )
    rows = spread(of_a, 50, 40, (16, 16), "rows")
    for g, part in enumerate((slice(0, 21), slice(21, 50))):
        expected = product(a[part], b[g], rows[part], spread(of_b[g], 40, 33, (16, 16), "columns"))
        assert_near(ours[part].contiguous(), *expected)


def test_groups_of_depth_with_scales_of_each_groups_tokens_and_channels() -> None:
    """Slice k, per token and channel."""
    a, b = element((20, 90), torch.int8, "column"), element((90, 33), torch.int8)
    token, channel = scale((3, 20), torch.bfloat16), scale((3, 33), torch.bfloat16)
    ends = [30, 30, 80]
    ours = kernels.scaled_matmul(
        a, b, token, channel, group_list=torch.tensor(ends), slices="depth", out_dtype="bfloat16"
    )
    start = 0
    for g, end in enumerate(ends):
        part = product(
            a[:, start:end], b[start:end], token[g].double()[:, None], channel[g].double()
        )
        assert_near(ours[g], *part)
        start = end


# --- four bits, microscaling

FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _nibbles(bytes_: Tensor) -> Tensor:
    return torch.stack((bytes_ & 15, bytes_ >> 4), -1).flatten(-2).long()


@pytest.mark.parametrize("columns", [1, 3, 8, 37])
def test_elements_of_four_bits(columns: int) -> None:
    bytes_ = torch.randint(0, 256, (3, columns), dtype=torch.uint8)
    whole = (_nibbles(bytes_) ^ 8) - 8
    assert torch.equal(kernels.dequantize(bytes_, packed="int4"), whole.float())
    narrow = kernels.dequantize(bytes_.view(torch.int8), packed="int4", out_dtype=torch.int8)
    assert torch.equal(narrow, whole.to(torch.int8))
    floats = torch.cat([FLOAT4, -FLOAT4])[_nibbles(bytes_)]
    ours = kernels.dequantize(bytes_.view(torch.float4_e2m1fn_x2))
    assert torch.equal(ours, floats)
    assert torch.equal(ours.signbit(), floats.signbit())


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("k", [32, 64, 130])
def test_microscaling_products(k: int, layout: str) -> None:
    """MX: a scale of e8m0 for 32 elements of e4m3, e5m2 or e2m1, in an even number of groups."""
    m, n, groups = 17, 34, -(-k // 32)
    of_a = scale((m, groups + groups % 2), torch.float8_e8m0fnu)
    of_b = scale((groups + groups % 2, n), torch.float8_e8m0fnu)
    for dtype in ELEMENTS[1:3]:
        a, b = element((m, k), dtype), element((k, n), dtype, "column" if layout == "nt" else "row")
        ours = kernels.scaled_matmul(a, b, of_a, of_b)
        left, right = spread(of_a, m, k, (1, 32), "rows"), spread(of_b, k, n, (32, 1), "columns")
        assert_near(ours, *product(a, b, left, right))
    bytes_a = torch.randint(0, 256, (m, k // 2), dtype=torch.uint8)
    shape = (n, k // 2) if layout == "nt" else (k, n // 2)
    bytes_b = torch.randint(0, 256, shape, dtype=torch.uint8)
    table = torch.cat([FLOAT4, -FLOAT4])
    a4, b4 = table[_nibbles(bytes_a)], table[_nibbles(bytes_b)]
    b4 = b4.t() if layout == "nt" else b4
    packed = bytes_b.view(torch.float4_e2m1fn_x2)
    ours = kernels.scaled_matmul(
        bytes_a.view(torch.float4_e2m1fn_x2), packed.t() if layout == "nt" else packed, of_a, of_b,
        out_dtype="float32",
    )  # fmt: skip
    left, right = spread(of_a, m, k, (1, 32), "rows"), spread(of_b, k, n, (32, 1), "columns")
    assert_near(ours, *product(a4, b4, left, right))


# --- dequantisation


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(0, 20), st.integers(0, 50)),
    block=st.tuples(st.sampled_from([1, 4, 128]), st.sampled_from([1, 16, 5])),
    has_offset=st.booleans(),
    dtype=st.sampled_from([torch.int8, torch.float8_e4m3fn]),
)
def test_dequantize(
    shape: tuple[int, int, int], block: tuple[int, int], has_offset: bool, dtype: torch.dtype
) -> None:
    """Weights: per tensor, channel, group and block, with a zero point."""
    items, rows, columns = shape
    x = element(shape, dtype)
    sizes = (items, -(-rows // block[0]), -(-columns // block[1]))
    of_x = scale(sizes, torch.float32)
    offset = torch.randint(-9, 9, sizes, dtype=torch.int32) if has_offset else None
    ours = kernels.dequantize(x, of_x, offset, block=block)
    for i in range(items):
        of_item = spread(of_x[i], rows, columns, block, "rows")
        zero = 0 if offset is None else spread(offset[i], rows, columns, block, "rows")
        expected = (x[i].double() - zero) * of_item
        torch.testing.assert_close(
            ours[i].double(), expected.expand(rows, columns), rtol=1e-6, atol=0
        )


def test_dequantize_to_int8_rounds_to_even_and_saturates() -> None:
    x = torch.tensor(
        [[0.5, 1.5, -0.5, -2.5, 126.6, 300.0, -300.0, torch.inf, -torch.inf, torch.nan]]
    )
    ours = kernels.dequantize(x, out_dtype=torch.int8)
    assert ours.tolist() == [[0, 2, 0, -2, 127, 127, -128, 127, -128, 0]]


def test_scales_of_one_row_and_of_columns_that_lie_apart() -> None:
    x, wide = element((5, 40), torch.int8), torch.rand(5, 80)
    ours = kernels.dequantize(x, wide[:, ::2])
    assert torch.equal(ours, x.float() * wide[:, ::2])
    ours = kernels.dequantize(x, wide[:1, :40])
    assert torch.equal(ours, x.float() * wide[:1, :40])


# --- epilogues

TREES: dict[str, Any] = {
    "acc + c": lambda x, t: x + t["c"],
    "leaky_relu(acc, 0.1)": lambda x, t: functional.leaky_relu(x, 0.1),
    "sigmoid(acc)": lambda x, t: torch.sigmoid(x),
    "tanh(acc)": lambda x, t: torch.tanh(x),
    "silu(acc + bias) * c": lambda x, t: functional.silu(x + t["bias"]) * t["c"],
    "-relu(acc * token - bias / 2)": lambda x, t: -torch.relu(x * t["token"] - t["bias"] / 2),
    "maximum(gelu(acc), minimum(c, one))": lambda x, t: torch.maximum(
        functional.gelu(x), torch.minimum(t["c"], t["one"])
    ),
    "gelu_tanh(acc)": lambda x, t: functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tree", TREES)
def test_an_epilogue_is_a_tree_of_operations_on_the_sums(tree: str, dtype: torch.dtype) -> None:
    m, n, k = 21, 37, 30
    a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
    given = {
        "c": torch.randn(n, m, dtype=torch.float16).t(), "bias": torch.randn(2 * n)[::2],
        "token": torch.randn(m, 1), "one": torch.tensor(0.25),
    }  # fmt: skip
    operator = kernels.fused_matmul(tree)
    names = [name for name in given if re.search(rf"\b{name}\b", tree)]
    ours = operator(a, b, **{name: given[name] for name in names})
    expected = TREES[tree](a.double() @ b.double(), {k: v.double() for k, v in given.items()})
    bound = 1e-5 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(ours.double(), expected, rtol=bound, atol=bound)
    assert kernels.fused_matmul(tree) is operator


@pytest.mark.parametrize("tree", ["sigmoid(acc)", "tanh(acc)", "maximum(acc, zero)"])
def test_functions_keep_nan_the_tails_and_small_values(tree: str) -> None:
    values = torch.tensor(
        [torch.inf, -torch.inf, torch.nan, -200.0, 200.0, 0.0, 1e-30, 0.24, -0.26]
    )
    extra = {"zero": torch.zeros(1)} if "zero" in tree else {}
    ours = kernels.fused_matmul(tree)(values[:, None], torch.ones(1, 1), **extra)[:, 0]
    function = {"s": torch.sigmoid, "t": torch.tanh, "m": lambda x: torch.maximum(x, extra["zero"])}
    expected = function[tree[0]](values.double()).float()
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_an_epilogue_can_requantise_sums_of_int8() -> None:
    a, b = element((20, 40), torch.int8), element((40, 30), torch.int8)
    requantise = kernels.fused_matmul("acc * token * channel + bias")
    token, channel, bias = torch.rand(20, 1) / 9, torch.rand(30) / 99, torch.randn(30)
    ours = requantise(a, b, token, channel, bias, out_dtype=torch.int8)
    exact = (a.double() @ b.double()).float() * token * channel + bias
    assert torch.equal(ours, exact.round().clamp(-128, 127).to(torch.int8))
    with pytest.raises(KernelError, match="out_dtype must be given where a is int8"):
        requantise(a, b, token, channel, bias)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("acc +", "invalid syntax"), ("acc @ c", "cannot have 'acc @ c'"),
        ("acc if c else d", "cannot have"), ("exp(acc)", r"cannot have 'exp\(acc\)'"),
        ("silu(acc, c)", "cannot have"), ("acc * True", "cannot have 'True'"),
        ("a * acc", "a is taken"), ("acc * f(x=1)", "cannot have"),
    ],
)  # fmt: skip
def test_what_an_epilogue_cannot_have_is_named(tree: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"{words}.*leaky_relu"):
        kernels.fused_matmul(tree)


# --- what is refused


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"scale_a": torch.ones(4)}, KernelError, "scale_a must have one element or one for each"),
        ({"scale_b": torch.ones(3, 7)}, KernelError, "scale_b must have one element or one for"),
        ({"scale_b": torch.ones(2, 7), "block_b": (0, 1)}, KernelError, "scale_b must have"),
        ({"scale_a": torch.ones(1, 1, 1)}, ContractError, "scale_a must have one element, 2 dim"),
        ({"scale_a": torch.ones(1).double()}, ContractError, "scale_a must be"),
        ({"bias": torch.ones(6)}, KernelError, "bias must have one element, or as many as"),
        ({"out_dtype": torch.float64}, ContractError, "out_dtype"),
        ({"out_dtype": "int8"}, ValueError, "out_dtype"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        kernels.scaled_matmul(element((5, 8), torch.int8), element((8, 7), torch.int8), **given)


def test_scales_of_slices_of_the_depth_that_differ_along_it_are_refused() -> None:
    a, b, ends = element((4, 64), torch.int8), element((64, 3), torch.int8), torch.tensor([2, 64])
    for scales in ({"scale_a": torch.ones(2, 4, 2)}, {"scale_b": torch.ones(2, 2, 3)}):
        with pytest.raises(KernelError, match="slices of the depth cannot differ along it"):
            kernels.scaled_matmul(a, b, **scales, group_list=ends, slices="depth")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [4, 6])
def test_one_scale_more_than_rows_or_groups_is_refused_but_in_microscaling(size: int) -> None:
    a, b = element((5, 96), torch.int8), element((96, 7), torch.int8)
    for scales in (
        {"scale_a": torch.ones(size)},
        {"scale_a": torch.ones(5, size), "block_a": (1, 35)},
    ):
        with pytest.raises(KernelError, match="scale_a must have"):
            kernels.scaled_matmul(a, b, **scales)  # type: ignore[arg-type]


def test_bytes_without_a_format_are_refused() -> None:
    a, b = torch.ones(2, 3, dtype=torch.uint8), torch.ones(3, 4)
    with pytest.raises(KernelError, match="uint8 needs the format of a float"):
        kernels.scaled_matmul(a, b)
    with pytest.raises(KernelError, match="uint8 needs a format"):
        kernels.dequantize(a)
    with pytest.raises(KernelError, match="packed must be 2"):
        torch.ops.bringup.dequantize(a[None], None, None, [1, 1], 1, "int4")
    with pytest.raises(KernelError, match="block must be two"):
        torch.ops.bringup.dequantize(b[None], None, None, [1])
    with pytest.raises(KernelError, match="blocks must be four"):
        torch.ops.bringup.scaled_matmul(b.t(), b, None, None, None, [1])


def test_int8_deeper_than_int32_holds_is_refused_where_it_would_be_whole() -> None:
    a = torch.zeros(1, 131072, dtype=torch.int8)
    with pytest.raises(KernelError, match="k must be at most 131071"):
        kernels.scaled_matmul(a, a.t(), torch.ones(1))
    grouped = kernels.scaled_matmul(a, a.t(), torch.ones(1, 1024), block_a=(1, 128))
    assert grouped.tolist() == [[0.0]]


# --- everywhere


def _calls() -> dict[str, Any]:
    a, b = element((12, 64), torch.int8), element((64, 20), torch.int8)
    f8a, f8b = (
        element((12, 64), torch.float8_e4m3fn),
        element((64, 20), torch.float8_e5m2, "column"),
    )
    mx = (scale((12, 2), torch.float8_e8m0fnu), scale((2, 20), torch.float8_e8m0fnu))
    ends = torch.tensor([5, 12])
    fp4 = torch.randint(0, 256, (12, 32), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    swiglu = kernels.fused_matmul("silu(acc + bias) * gate")
    return {
        "token and channel": (kernels.scaled_matmul, (a, b, torch.rand(12), torch.rand(20).half())),
        "groups": (
            lambda *x: kernels.scaled_matmul(*x, block_a=(1, 32), block_b=(32, 4)),
            (a, b, torch.rand(12, 2), torch.rand(2, 5)),
        ),
        "mx": (kernels.scaled_matmul, (f8a, f8b, *mx)),
        "fp4": (lambda x, y: kernels.scaled_matmul(x, y.t()), (fp4, fp4)),
        "rows": (
            lambda *x: kernels.scaled_matmul(*x[:4], group_list=x[4]),
            (a, b.expand(2, 64, 20), torch.rand(12), torch.rand(2, 20), ends),
        ),
        "dequantize": (
            lambda *x: kernels.dequantize(*x, block=(4, 32), out_dtype="bfloat16"),
            (a, torch.rand(3, 2)),
        ),
        "fused": (swiglu, (a.float(), b.float(), torch.rand(20), torch.rand(12, 20))),
    }


NAMES = tuple(_calls())


def _flip(tensor: Tensor) -> None:
    """Reverse the rows in place, of floats of 8 bits too."""
    is_small = tensor.dtype.is_floating_point and tensor.itemsize == 1
    whole = tensor.view(torch.uint8) if is_small else tensor
    whole.copy_(whole.flip(0))


@pytest.mark.parametrize("name", NAMES)
def test_fake_compiled_and_captured_results_are_the_same(name: str) -> None:
    operator, arguments = _calls()[name]
    real = operator(*arguments)
    fake = operator(*(argument.to("meta") for argument in arguments))
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), real)
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        out = operator(*arguments)
    _flip(arguments[0])
    graph.replay()
    assert torch.equal(out, operator(*arguments))
    assert not torch.equal(out, real)


@pytest.mark.parametrize("name", NAMES)
def test_results_on_the_npu_are_those_of_the_cpu(name: str) -> None:
    devices.load_driver("sim")
    operator, arguments = _calls()[name]
    ours = operator(*(argument.to("npu") for argument in arguments))
    assert ours.device.type == "npu"
    assert torch.equal(ours.cpu(), operator(*arguments))
    there = [argument.to("npu") for argument in arguments]
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        out = operator(*there)
    _flip(there[0])
    graph.replay()
    assert torch.equal(out.cpu(), operator(*(argument.cpu() for argument in there)))


@pytest.mark.bits
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rows_and_threads_change_no_bit(granularity: str) -> None:
    a, b = element((130, 300), torch.float8_e4m3fn), element((300, 600), torch.int8)
    scale_a, block_a = scales_of(130, 300, granularity, torch.float32, "rows", 1)
    scale_b, block_b = scales_of(300, 600, granularity, torch.float16, "columns", 32)
    options: dict[str, Any] = {"block_a": block_a, "block_b": block_b}
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    together = kernels.scaled_matmul(a, b, scale_a, scale_b, **options)
    torch.set_num_threads(1)
    alone = kernels.scaled_matmul(a, b, scale_a, scale_b, **options)
    torch.set_num_threads(threads)
    assert torch.equal(alone, together)
    part = scale_a if scale_a is None or scale_a.numel() == 1 else scale_a[7:8]
    row = kernels.scaled_matmul(a[7:8], b, part, scale_b, **options)
    assert torch.equal(row, together[7:8])
