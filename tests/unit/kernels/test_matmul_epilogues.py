"""Products and what follows them: bias, activation, alpha and beta, dequantisation; gemv."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.unit.kernels.matmul_support import (
    FLOATS,
    LAYOUTS,
    QUANT_TOLERANCE,
    close,
    lay_out,
    matrix,
)
from torch.nn import functional

from bringup import graphs, kernels
from bringup.errors import ContractError, KernelError

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(12)


# --- bias and activation


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_activation_of_the_product_plus_bias(dtype: torch.dtype, activation: str) -> None:
    """Bias, relu, gelu, silu."""
    a, b = matrix(33, 70, dtype=dtype), matrix(70, 45, dtype=dtype, layout="column")
    bias = matrix(45, 1, dtype=dtype)[:, 0]
    ours = kernels.matmul_bias_activation(a, b, bias, activation)
    close(ours, ACTIVATIONS[activation](a.double() @ b.double() + bias.double()))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_without_a_bias(activation: str) -> None:
    a, b = matrix(5, 7), matrix(7, 100)
    ours = kernels.matmul_bias_activation(a, b, activation=activation)
    close(ours, ACTIVATIONS[activation](a.double() @ b.double()))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_keeps_nan_and_the_tails(activation: str) -> None:
    values = torch.tensor([torch.inf, torch.nan, -200.0, 200.0, 0.0, 1e-30])
    ours = kernels.matmul_bias_activation(values[:, None], torch.ones(1, 1), None, activation)
    assert ours[0] == torch.inf  # torch's gelu makes it NaN
    expected = ACTIVATIONS[activation](values[1:])[:, None]
    torch.testing.assert_close(ours[1:], expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_a_bias_of_another_dtype_or_with_gaps_is_added_as_it_is() -> None:
    a, b = matrix(9, 8, dtype=torch.float16), matrix(8, 20, dtype=torch.float16)
    for bias in (torch.randn(20), torch.randn(20).double(), torch.randn(60)[::3], torch.ones(1)):
        bias = bias.expand(20)
        ours = kernels.matmul_bias_activation(a, b, bias)
        close(ours, a.double() @ b.double() + bias.double())


def test_a_depth_of_zero_gives_the_activation_of_the_bias() -> None:
    bias = torch.randn(40)
    ours = kernels.matmul_bias_activation(torch.empty(3, 0), torch.empty(0, 40), bias, "silu")
    close(ours, functional.silu(bias.double()).expand(3, 40))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_another_bias_is_refused_by_name(device: str) -> None:
    words = r"bringup::matmul_bias_activation: bias must have shape \[5\]"
    with pytest.raises(ContractError, match=words):
        kernels.matmul_bias_activation(
            *(torch.ones(shape, device=device) for shape in ((2, 3), (3, 5), (3,)))
        )


def test_another_activation_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(ContractError, match=r"bringup::matmul_bias_activation.*tanh") as caught:
        kernels.matmul_bias_activation(torch.ones(2, 3), torch.ones(3, 5), None, "tanh")
    assert all(name in str(caught.value) for name in ACTIVATIONS)


@pytest.mark.parametrize("name", ["matmul_bias_activation", "gemm"])
def test_gradients_of_an_operator_without_a_backward_are_refused_by_name(name: str) -> None:
    a = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match=f"bringup::{name}"):
        getattr(kernels, name)(a, torch.ones(3, 5)).sum().backward()


# --- alpha and beta


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gemm_is_alpha_product_plus_beta_addend(layout: str, dtype: torch.dtype) -> None:
    """torch_catlass: matmul add and gemm."""
    a, b = matrix(21, 40, dtype=dtype), matrix(40, 37, dtype=dtype)
    c = matrix(21, 37, dtype=dtype, layout=layout)
    ours = kernels.gemm(a, b, c, alpha=0.5, beta=-2.0)
    close(ours, 0.5 * (a.double() @ b.double()) - 2.0 * c.double())


def test_gemm_does_not_read_the_addend_where_beta_is_zero() -> None:
    a, b = matrix(4, 5), matrix(5, 6)
    ours = kernels.gemm(a, b, torch.full((4, 6), torch.nan), alpha=2.0, beta=0.0)
    close(ours, 2 * (a.double() @ b.double()))
    close(kernels.gemm(a, b), a.double() @ b.double())


def test_new_scalars_and_sizes_need_no_new_binary() -> None:
    """A shape or a slope alone never recompiles; torch_catlass compiles each slope anew."""
    a, b = matrix(4, 5), matrix(5, 6)
    kernels.gemm(a, b, a @ b)
    count = torch_variants("gemm")
    for n, alpha in ((1, 0.1), (50, 1e-7), (1000, -3.0)):
        b = matrix(5, n)
        close(kernels.gemm(a, b, a @ b, alpha, 1.0), (1 + alpha) * (a.double() @ b.double()))
    assert torch_variants("gemm") == count


def torch_variants(name: str) -> int:
    from bringup._native import torch_library
    from bringup.kernels import _matmul

    return int(torch_library().ops.variant_count(getattr(_matmul, f"_{name}")))


# --- gemv


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 300), (65, 17), (130, 1000), (0, 4), (4, 0)])
def test_gemv_is_a_matrix_times_a_vector(m: int, k: int, layout: str) -> None:
    """Gemv on both kinds of cores."""
    a, x = matrix(m, k, layout=layout), torch.randn(k)
    close(kernels.gemv(a, x), a.double() @ x.double())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["row", "column"])
def test_gemv_adds_beta_times_y(layout: str, dtype: torch.dtype) -> None:
    a = matrix(50, 90, dtype=dtype, layout=layout)
    x, y = matrix(90, 3, dtype=dtype)[:, 1], matrix(50, 2, dtype=dtype)[:, 1]
    ours = kernels.gemv(a, x, y, alpha=2.0, beta=0.5)
    close(ours, 2 * (a.double() @ x.double()) + 0.5 * y.double())


def test_gemv_does_not_read_y_where_beta_is_zero() -> None:
    a, x = matrix(5, 6), torch.randn(6)
    close(kernels.gemv(a, x, torch.full((5,), torch.nan), beta=0.0), a.double() @ x.double())


def test_gemv_refuses_a_vector_of_another_length() -> None:
    with pytest.raises(ContractError, match=r"bringup::gemv: x must have shape \[3\]"):
        kernels.gemv(torch.ones(2, 3), torch.ones(2))


# --- int8


def int8(*shape: int, layout: str = "row") -> torch.Tensor:
    values = torch.randint(-128, 128, shape, dtype=torch.int8)
    return values.mT.contiguous().mT if layout == "column" else values


@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("layout", ["row", "column"])
def test_quant_matmul_dequantises(layout: str, per_channel: bool, out_dtype: str) -> None:
    """Per-tensor and per-channel scales."""
    a, b = int8(33, 130), int8(130, 45, layout=layout)
    scale = torch.rand(45 if per_channel else 1) / 1000
    ours = kernels.quant_matmul(a, b, scale, out_dtype=out_dtype)
    assert ours.dtype == getattr(torch, out_dtype)
    close(ours, (a.double() @ b.double()) * scale.double(), QUANT_TOLERANCE)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("per_token", [False, True])
def test_quant_matmul_with_per_token_scales_and_bias(per_token: bool, bias: bool) -> None:
    """Quantisation modes x bias."""
    a, b, scale = int8(20, 64), int8(64, 70), torch.rand(70) / 100
    token = torch.rand(20) if per_token else None
    addend = torch.randn(70) if bias else None
    expected = (a.double() @ b.double()) * scale.double()
    expected = expected * token.double()[:, None] if token is not None else expected
    expected = expected + addend.double() if addend is not None else expected
    close(kernels.quant_matmul(a, b, scale, token, addend, "float32"), expected, 1e-5)


@pytest.mark.bits
def test_sums_of_int8_are_exact_over_any_depth() -> None:
    """torch_catlass asks for exact sums of int8; the largest products there are, 131071 of them."""
    depth = 131071
    a = torch.full((2, depth), -128, dtype=torch.int8)
    ours = kernels.quant_matmul(a, a[:1].t(), torch.ones(1), out_dtype="float32")
    assert ours.tolist() == [[float(torch.tensor(depth * 128 * 128).float())]] * 2
    a, b = int8(9, 3001), int8(3001, 11)
    ours = kernels.quant_matmul(a, b, torch.ones(1), out_dtype="float32")
    assert torch.equal(ours, (a.double() @ b.double()).float())


@pytest.mark.bits
@pytest.mark.parametrize("layouts", [("row", "column"), ("column", "row"), ("strided", "padded")])
@pytest.mark.parametrize(("m", "n", "k"), [(17, 96, 64), (100, 70, 131), (5, 33, 3), (1, 1, 1)])
def test_sums_of_int8_are_exact_in_any_layout(
    m: int, n: int, k: int, layouts: tuple[str, str]
) -> None:
    """Words of four bytes along the depth, and what is left of them; with and without VNNI."""
    a, b = lay_out(int8(m, k), layouts[0]), lay_out(int8(k, n), layouts[1])
    ours = kernels.quant_matmul(a, b, torch.ones(1), out_dtype="float32")
    assert torch.equal(ours, (a.double() @ b.double()).float())


def test_a_depth_at_which_int32_may_overflow_is_refused_with_the_reason() -> None:
    """What a kernel cannot do is an error with a reason; torch_catlass returns silently."""
    a = torch.zeros(1, 131072, dtype=torch.int8)
    with pytest.raises(KernelError, match=r"bringup::quant_matmul.*k must be at most 131071"):
        kernels.quant_matmul(a, a.t(), torch.ones(1))


def test_a_number_of_scales_that_fits_neither_way_is_refused_with_the_reason() -> None:
    words = "bringup::quant_matmul.*scale must have one element, or as many as the result"
    with pytest.raises(KernelError, match=words):
        kernels.quant_matmul(int8(2, 3), int8(3, 5), torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_of_int8_with_activations_of_floats(dtype: torch.dtype) -> None:
    """w8a16."""
    a, b, scale = matrix(17, 90, dtype=dtype), int8(90, 40, layout="column"), torch.rand(40) / 100
    ours = kernels.quant_matmul(a, b, scale, out_dtype="bfloat16")
    close(ours, (a.double() @ b.double()) * scale.double(), QUANT_TOLERANCE)


def test_quant_matmul_of_no_depth_is_the_bias() -> None:
    a, b, bias = int8(3, 0), int8(0, 4), torch.randn(4)
    assert torch.equal(
        kernels.quant_matmul(a, b, torch.ones(4), None, bias, "float32"), bias.expand(3, 4)
    )


@pytest.mark.parametrize(
    ("out_dtype", "error"), [("int8", ValueError), (torch.float64, ContractError)]
)
def test_quant_matmul_refuses_results_it_has_no_rounding_for(
    out_dtype: object, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"quant_matmul: out_dtype.*float16"):
        kernels.quant_matmul(int8(2, 3), int8(3, 4), torch.ones(1), out_dtype=out_dtype)


# --- everywhere

CALLS: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "batched_matmul": lambda: (matrix(2, 3, 4), matrix(2, 4, 5)),
    "matmul_bias_activation": lambda: (matrix(3, 4), matrix(4, 5), torch.randn(5)),
    "gemm": lambda: (matrix(3, 4), matrix(4, 5, layout="column"), matrix(3, 5)),
    "gemv": lambda: (matrix(3, 4), torch.randn(4)),
    "quant_matmul": lambda: (int8(3, 4), int8(4, 5), torch.ones(1)),
    "grouped_matmul": lambda: (matrix(3, 4), matrix(2, 4, 5), torch.tensor([1, 3])),
    "grouped_matmul_slice_k": lambda: (matrix(3, 4), matrix(4, 5), torch.tensor([1, 3])),
    "nz_matmul": lambda: (matrix(3, 4), kernels.to_nz(matrix(4, 5))),
}


@pytest.mark.parametrize("name", CALLS)
def test_fake_and_compiled_results_are_as_the_real_ones(name: str) -> None:
    """torch.ops with fake and meta, which torch_catlass lacks."""
    operator, arguments = getattr(kernels, name), CALLS[name]()
    real = operator(*arguments)
    fake = operator(*(argument.to("meta") for argument in arguments))
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), real)


@pytest.mark.parametrize("name", CALLS)
def test_captured_and_replayed_with_new_values(name: str) -> None:
    operator, arguments = getattr(kernels, name), CALLS[name]()
    with torch.no_grad():
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            out = operator(*arguments)
        arguments[0].copy_(CALLS[name]()[0])
        graph.replay()
    assert torch.equal(out, operator(*arguments))
