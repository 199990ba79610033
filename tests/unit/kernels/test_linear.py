"""`packed_linear` against torch.nn.functional.linear in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bringup import graphs, kernels, ops
from bringup.errors import ContractError, KernelError

FLOATS = (torch.float32, torch.float64)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
SIZES = st.sampled_from([0, 1, 2, 5, 13, 14, 15, 16, 17, 31, 32, 33, 47, 64, 191, 192, 193, 400])
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "rows apart": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "steps": lambda x: x.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
    "expanded": lambda x: x[:1].expand(x.shape[0], -1),
}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
    packed = kernels.pack_weight(weight)
    result: Tensor = kernels.packed_linear(x, packed, bias, -weight.shape[0] % 16, activation)
    return result


def bound(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Of the error, element by element: a sum of k + 1 terms in any order (Higham, section 3.1).
    Activations stretch it by 1.13 at most, and have an error of their own.
    """
    unit = torch.finfo(x.dtype).eps / 2
    magnitudes = x.double().abs() @ weight.double().abs().t()
    if bias is not None:
        magnitudes = magnitudes + bias.double().abs()
    own = 1e-6 if x.dtype is torch.float32 else 1e-13
    return 1.13 * (x.shape[1] + 2) * unit * magnitudes + own * (1 + magnitudes)


@settings(max_examples=150, deadline=None)
@given(
    m=SIZES,
    k=SIZES,
    n=SIZES,
    dtype=st.sampled_from(FLOATS),
    biased=st.booleans(),
    activation=st.sampled_from(list(ACTIVATIONS)),
    layout=st.sampled_from(list(LAYOUTS)),
    threads=st.sampled_from([1, 2]),
)
def test_packed_linear_is_linear(
    m: int,
    k: int,
    n: int,
    dtype: torch.dtype,
    biased: bool,
    activation: str,
    layout: str,
    threads: int,
) -> None:
    torch.manual_seed(m + k + n)
    x = LAYOUTS[layout](torch.randn(m, k, dtype=dtype))
    weight = torch.randn(n, k, dtype=dtype)
    bias = torch.randn(n, dtype=dtype) if biased else None
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = linear(x, weight, bias, activation)
    finally:
        torch.set_num_threads(before)
    error = (ours.double() - ACTIVATIONS[activation](exact)).abs()
    assert ours.shape == (m, n)
    assert ours.is_contiguous()
    assert bool((error <= bound(x, weight, bias)).all())


@pytest.mark.bits
@pytest.mark.parametrize("shape", [(70, 400, 100), (3, 4096, 40)])
def test_a_row_has_the_same_bits_alone_among_others_and_on_one_thread(
    shape: tuple[int, int, int],
) -> None:
    m, k, n = shape
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    whole = linear(x, weight, bias, "gelu")
    alone = torch.cat([linear(row[None], weight, bias, "gelu") for row in x])
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        single = linear(x, weight, bias, "gelu")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(whole, alone)
    assert torch.equal(whole, single)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations_keep_nan_and_the_tails(activation: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[float("nan")], [float("inf")], [1e30], [-1e30]], dtype=dtype)
    ours = linear(x, torch.ones(1, 1, dtype=dtype), None, activation)
    lowest = -1e30 if activation == "none" else 0.0
    expected = torch.tensor([[float("nan")], [float("inf")], [1e30], [lowest]], dtype=dtype)
    torch.testing.assert_close(ours, expected, equal_nan=True)


def unpacked(panels: Tensor, n: int, k: int) -> Tensor:
    """The weight [n, k] of panels."""
    count, words, width, in_word = panels.shape
    return panels.transpose(1, 2).reshape(count * width, words * in_word)[:n, :k]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_pack_weight_fills_up_with_zeros(dtype: torch.dtype) -> None:
    weight = torch.randn(20, 3)
    panels = kernels.pack_weight(weight, dtype)
    assert panels.shape == ((2, 2, 16, 2) if dtype is torch.bfloat16 else (2, 3, 16, 1))
    assert torch.equal(unpacked(panels, 20, 3), weight.to(dtype))
    whole = unpacked(panels, 32, panels.shape[1] * panels.shape[3])
    assert bool((whole[20:] == 0).all())
    assert bool((whole[:, 3:] == 0).all())


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_error_of_a_deep_product_is_that_of_its_blocks(rows: int) -> None:
    # one sum over all of the depth would be four times further off, with spreads of one
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 8192), torch.randn(64, 8192) / 8192**0.5
    exact = x.double() @ weight.double().t()
    error = kernels.packed_linear(x, kernels.pack_weight(weight)) - exact
    assert error.pow(2).mean().sqrt() < 6e-7


@pytest.mark.bits
def test_weight_in_bfloat16_is_rounded_once_and_computed_with_in_float32() -> None:
    for m, k, n in ((1, 400, 33), (70, 385, 48), (16, 768, 20)):
        x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
        narrow = kernels.pack_weight(weight, torch.bfloat16)
        ours = kernels.packed_linear(x, narrow, bias, -n % 16, "gelu")
        wide = linear(x, weight.bfloat16().float(), bias, "gelu")
        assert torch.equal(ours, wide)


@settings(max_examples=60, deadline=None)
@given(
    m=SIZES, k=SIZES, n=SIZES, biased=st.booleans(), activation=st.sampled_from(list(ACTIVATIONS))
)
def test_weight_in_int8_is_rounded_to_half_a_127th_of_the_largest_of_its_column(
    m: int, k: int, n: int, biased: bool, activation: str
) -> None:
    torch.manual_seed(m + k + n)
    x, weight = torch.randn(m, k), torch.randn(n, k)
    bias = torch.randn(n) if biased else None
    panels, scales = kernels.pack_weight_int8(weight)
    rounded = (unpacked(panels, n, k).double() - 128) * scales[:, None].double()
    assert bool(((rounded - weight).abs() <= 0.5001 * scales[:, None]).all())
    arguments = (panels, scales, bias, -n % 16, activation)
    exact = x.double() @ rounded.t() + (0 if bias is None else bias.double())
    ours = kernels.packed_linear_int8(x, *arguments)
    error = (ours.double() - ACTIVATIONS[activation](exact)).abs()
    # one rounding more than a float32 weight: 128 is taken off exactly, the scale is multiplied by
    assert ours.shape == (m, n)
    assert bool((error <= 2 * bound(x, rounded.float(), bias) + 1e-6).all())

    rows = x.abs().amax(1, keepdim=True) / 127 if k else torch.ones(m, 1)
    ours = kernels.packed_linear_w8a8(x, *arguments)
    # each element of x is off by half a step of its row at most
    stretch = 0.51 * rows.double() @ rounded.abs().sum(1)[None]
    error = (ours.double() - ACTIVATIONS[activation](exact)).abs()
    assert bool((error <= 1.13 * stretch + 2 * bound(x, rounded.float(), bias) + 1e-6).all())


@pytest.mark.bits
def test_rows_in_int8_give_exact_sums_of_whole_numbers() -> None:
    x = torch.randint(-127, 128, (30, 1600)).float()
    x[:, 0] = 127  # so that the scale of every row is 1
    weight = torch.randint(-127, 128, (37, 1600)).float()
    weight[:, 0] = 127
    panels, scales = kernels.pack_weight_int8(weight)
    for ours in (kernels.packed_linear_w8a8, kernels.packed_linear_int8):
        assert torch.equal(
            ours(x, panels, scales, None, 11), (x.double() @ weight.t().double()).float()
        )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_row_in_int8_that_is_not_finite_comes_out_as_nan_alone(value: float) -> None:
    x, (panels, scales) = torch.randn(3, 40), kernels.pack_weight_int8(torch.randn(16, 40))
    clean = kernels.packed_linear_w8a8(x, panels, scales)
    x[1, 7] = value
    ours = kernels.packed_linear_w8a8(x, panels, scales)
    assert bool(ours[1].isnan().all())
    assert torch.equal(ours[::2], clean[::2])


def test_zeros_in_int8_stay_zeros() -> None:
    panels, scales = kernels.pack_weight_int8(torch.zeros(16, 5))
    x = torch.randn(2, 5)
    assert bool((kernels.packed_linear_w8a8(x, panels, scales) == 0).all())
    panels, scales = kernels.pack_weight_int8(torch.randn(16, 5))
    assert bool((kernels.packed_linear_w8a8(torch.zeros(2, 5), panels, scales) == 0).all())


def test_depth_at_which_sums_of_int8_might_overflow_is_refused() -> None:
    panels, scales = kernels.pack_weight_int8(torch.ones(1, 65537))
    with pytest.raises(KernelError, match="deeper than 65536"):
        kernels.packed_linear_w8a8(torch.ones(1, 65537), panels, scales, None, 15)
    deepest = kernels.pack_weight_int8(torch.ones(1, 65536))
    ours = kernels.packed_linear_w8a8(torch.ones(1, 65536), *deepest, None, 15)
    assert ours.item() == pytest.approx(65536)


def test_weight_that_is_not_finite_is_refused_in_int8() -> None:
    with pytest.raises(ValueError, match="not finite"):
        kernels.pack_weight_int8(torch.tensor([[1.0, float("nan")]]))


def test_panels_of_another_wide_dtype_than_x_are_refused() -> None:
    panels = kernels.pack_weight(torch.randn(16, 8))
    with pytest.raises(KernelError, match="panels must be of x's dtype, or bfloat16"):
        kernels.packed_linear(torch.randn(4, 8, dtype=torch.float64), panels)
    narrow = kernels.pack_weight(torch.randn(16, 8), torch.bfloat16)
    with pytest.raises(KernelError, match="panels must be of x's dtype, or bfloat16"):
        kernels.packed_linear(torch.randn(4, 8, dtype=torch.float64), narrow)


def test_panels_of_a_dtype_that_nobody_computes_with_are_not_made() -> None:
    with pytest.raises(ValueError, match=r"expected float32, float64 or bfloat16.*float16"):
        kernels.pack_weight(torch.randn(16, 8), torch.float16)


def test_pack_weight_of_something_else_than_a_matrix_says_so() -> None:
    with pytest.raises(ValueError, match=r"expected a weight \[n, k\], got shape \[2, 3, 4\]"):
        kernels.pack_weight(torch.randn(2, 3, 4))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.randn(4, 8), torch.randn(2, 9, 16, 1)), r"panels must have shape \[2, 8, 16, 1\]"),
        ((torch.randn(1, 1, 4, 8), torch.randn(2, 1, 16, 1)), r"x must have shape \[1, 1\]"),
        (
            (torch.randn(4, 8), torch.randn(2, 8, 16, 1), torch.randn(8)),
            r"bias must have shape \[32\]",
        ),
        ((torch.randn(4, 8).half(), torch.randn(2, 8, 16, 1)), "torch.float32 or torch.float64"),
    ],
)
def test_wrong_input_names_operator_and_argument(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ContractError, match=f"bringup::packed_linear.*{words}"):
        kernels.packed_linear(*arguments)


@pytest.mark.parametrize("padding", [-1, 16])
def test_padding_of_more_than_a_panel_is_refused(padding: int) -> None:
    with pytest.raises(KernelError, match=r"bringup::packed_linear.*padding must be .* 0 to 15"):
        kernels.packed_linear(torch.randn(4, 8), torch.randn(2, 8, 16, 1), None, padding)


def test_unknown_activation_names_those_that_there_are() -> None:
    with pytest.raises(KernelError, match="none, relu, gelu, gelu_tanh or silu"):
        kernels.packed_linear(torch.randn(4, 8), torch.randn(2, 8, 16, 1), None, 0, "swish")


def test_operators_pass_torchs_own_check() -> None:
    x, panels = torch.randn(5, 8), kernels.pack_weight(torch.randn(20, 8))
    torch.library.opcheck(
        torch.ops.bringup.packed_linear.default, (x, panels, torch.randn(20), 12, "silu")
    )
    torch.library.opcheck(torch.ops.bringup.pack_weight.default, (torch.randn(20, 8),))
    torch.library.opcheck(torch.ops.bringup.pack_weight_int8.default, (torch.randn(20, 7),))
    quantised = kernels.pack_weight_int8(torch.randn(20, 7))
    for operator in (torch.ops.bringup.packed_linear_int8, torch.ops.bringup.packed_linear_w8a8):
        torch.library.opcheck(operator.default, (torch.randn(5, 7), *quantised, None, 12))
    assert ops.check(kernels.packed_linear, [((x, panels, None, 12), {})])


def test_captured_product_reads_new_rows_at_every_replay() -> None:
    x, weight = torch.randn(5, 30), torch.randn(20, 30)
    panels = kernels.pack_weight(weight)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = kernels.packed_linear(x, panels, None, 12, "relu")
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert torch.equal(y, kernels.packed_linear(x, panels, None, 12, "relu"))


def test_compiled_with_dynamic_rows_is_compiled_once() -> None:
    panels = kernels.pack_weight(torch.randn(20, 8))
    compiles = 0

    def count(module: Any, _: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return module

    def run(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.bringup.packed_linear(x, panels, None, 12)
        return result

    compiled = torch.compile(run, backend=count, dynamic=True, fullgraph=True)
    for rows in (5, 2, 40):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x), run(x))
    assert compiles == 1
