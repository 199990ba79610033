"""`basic_matmul` and `batched_matmul` against torch: sizes, dtypes, layouts, gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels.matmul_support import FLOATS, LAYOUTS, close, lay_out, matrix
from torch._dynamo.testing import CompileCounterWithBackend

from bringup import graphs, kernels
from bringup.errors import ContractError

SHAPES = [
    (1, 1, 1),
    (7, 5, 3),
    (12, 32, 16),
    (33, 65, 129),
    (5, 1030, 257),
    (97, 33, 513),
    (250, 530, 40),
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_basic_matmul_is_matmul(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Plain, optimized, tla, full-load, small."""
    a, b = matrix(m, k, dtype=dtype), matrix(k, n, dtype=dtype)
    ours = kernels.basic_matmul(a, b)
    assert ours.dtype == dtype
    close(ours, a.double() @ b.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(16, 48, 5000), (300, 2100, 2050), (130, 64, 9000)])
def test_basic_matmul_over_a_long_depth_and_in_several_blocks(
    m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    """Padding, split-k, preload, stream-k."""
    a, b = matrix(m, k, dtype=dtype) / 8, matrix(k, n, dtype=dtype) / 8
    close(kernels.basic_matmul(a, b), a.double() @ b.double())


@pytest.mark.parametrize("out_dtype", ["float16", torch.float16, "bfloat16", "float32", None])
def test_out_dtype_is_a_name_or_a_dtype_and_rounds_once(out_dtype: Any) -> None:
    """The output's dtype is a choice (torch_catlass: outDType)."""
    a, b = matrix(40, 70), matrix(70, 50)
    ours = kernels.basic_matmul(a, b, out_dtype=out_dtype)
    expected = torch.float32 if out_dtype is None else getattr(torch, str(out_dtype).split(".")[-1])
    assert ours.dtype == expected
    assert torch.equal(ours, kernels.basic_matmul(a, b).to(expected))


@pytest.mark.parametrize("operator", [kernels.basic_matmul, torch.ops.bringup.basic_matmul])
def test_half_rounds_as_torch_does_up_to_overflow_and_down_to_subnormals(
    operator: Callable[..., torch.Tensor],
) -> None:
    exponents = torch.linspace(-27, 17, 4001).exp2()
    values = torch.cat([exponents, -exponents, torch.tensor([0.0, torch.inf, torch.nan])])
    ours = operator(values[:, None], torch.ones(1, 1), torch.float16)[:, 0]
    torch.testing.assert_close(ours, values.half(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.bits
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_value_is_read_and_written_exactly(dtype: torch.dtype) -> None:
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)[:, None]
    ours = kernels.basic_matmul(values, torch.ones(1, 1, dtype=dtype))
    torch.testing.assert_close(ours, values, rtol=0, atol=0, equal_nan=True)
    wide = kernels.basic_matmul(values, torch.ones(1, 1, dtype=dtype), "float32")
    torch.testing.assert_close(wide, values.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_operands_are_taken_as_they_lie(left: str, right: str) -> None:
    """nn, nt, tn; strides and offsets, which torch_catlass does not honour."""
    a = matrix(37, 45, dtype=torch.float16, layout=left)
    b = matrix(45, 61, dtype=torch.float16, layout=right)
    close(kernels.basic_matmul(a, b), a.double() @ b.double())


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, 70)] * 3),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    seed=st.integers(0, 1 << 30),
)
def test_any_sizes_in_any_layouts(
    sizes: tuple[int, int, int], layouts: tuple[str, str], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    m, n, k = sizes
    a, b = (torch.randn(shape, generator=generator) for shape in ((m, k), (k, n)))
    ours = kernels.basic_matmul(lay_out(a, layouts[0]), lay_out(b, layouts[1]))
    close(ours, a.double() @ b.double())


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0)])
def test_sizes_of_zero_give_what_torch_gives(m: int, n: int, k: int) -> None:
    ours = kernels.basic_matmul(torch.empty(m, k), torch.empty(k, n))
    assert torch.equal(ours, torch.zeros(m, n))


def test_expanded_operands_are_read_from_one_row_or_one_column() -> None:
    row, column = torch.randn(1, 30), torch.randn(30, 1)
    ours = kernels.basic_matmul(row.expand(20, 30), column.expand(30, 40))
    close(ours, (row.double() @ column.double()).expand(20, 40))


def test_nan_and_infinity_reach_exactly_the_rows_and_columns_they_belong_to() -> None:
    a, b = torch.ones(20, 30), torch.ones(30, 40)
    a[3, 4], b[7, 9] = torch.nan, torch.inf
    ours = kernels.basic_matmul(a, b)
    assert bool(ours[3].isnan().all())
    assert bool(ours[:3, 9].isinf().all())
    ours[3], ours[:, 9] = 30, 30
    assert bool((ours == 30).all())


@pytest.mark.parametrize("given_dtype", ["int8", "half precision", torch.int8, 7])
@pytest.mark.parametrize(
    "name", ["basic_matmul", "batched_matmul", "gemm", "gemv", "matmul_bias_activation"]
)
def test_an_unknown_out_dtype_is_named_and_the_allowed_ones_are_listed(
    name: str, given_dtype: Any
) -> None:
    words = (
        f"{name}: out_dtype={given_dtype!r}: expected one of float16, bfloat16, float32, float64"
    )
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        getattr(kernels, name)(torch.ones(2, 2), torch.ones(2, 2), out_dtype=given_dtype)


def test_the_operator_itself_refuses_an_unknown_out_dtype_with_the_same_list() -> None:
    words = (
        "bringup::basic_matmul: out_dtype must be torch.float16 or torch.bfloat16 or "
        "torch.float32 or torch.float64, got torch.int8"
    )
    with pytest.raises(ContractError, match=words):
        torch.ops.bringup.basic_matmul(torch.ones(2, 2), torch.ones(2, 2), torch.int8)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (torch.ones(2, 3), torch.ones(4, 5), r"b must have shape \[3, 5\]"),
        (torch.ones(2, 3, 4), torch.ones(3, 5), r"a must have shape \[2, 3\]"),
        (torch.ones(3), torch.ones(3, 5), "a must have at least 2 dimensions"),
        (torch.ones(2, 3), torch.ones(3), "b must have at least 2 dimensions"),
        (torch.ones(2, 3), torch.ones(3, 5).half(), "a and b must have the same dtype"),
        (torch.ones(2, 3).int(), torch.ones(3, 5).int(), "a must be torch.float16 or"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_operands_that_do_not_fit_are_named(
    device: str, a: torch.Tensor, b: torch.Tensor, words: str
) -> None:
    with pytest.raises(ContractError, match=f"bringup::basic_matmul: {words}"):
        kernels.basic_matmul(a.to(device), b.to(device))


@pytest.mark.parametrize("out_dtype", [None, "bfloat16"])
def test_fake_results_have_the_real_shape_and_dtype(out_dtype: str | None) -> None:
    """torch.ops with fake and meta, which torch_catlass lacks."""
    a, b = matrix(4, 6, layout="column"), matrix(6, 9, layout="strided")
    real = kernels.basic_matmul(a, b, out_dtype)
    fake = kernels.basic_matmul(a.to("meta"), b.to("meta"), out_dtype)
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_in_a_full_graph_without_new_graphs_for_new_sizes(backend: str) -> None:
    def layer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return kernels.basic_matmul(a.t(), b, "float16").relu()

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(layer, backend=counter, fullgraph=True, dynamic=True)
    for m, n, k in ((4, 5, 6), (9, 8, 7), (30, 20, 10)):
        a, b = torch.randn(k, m), torch.randn(k, n)
        assert torch.equal(compiled(a, b), layer(a, b))
    assert counter.frame_count == 1


def test_captured_and_replayed_with_new_values() -> None:
    a, b = torch.randn(20, 30), matrix(30, 40, layout="column")
    with torch.no_grad():
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            out = kernels.basic_matmul(kernels.basic_matmul(a, b), b.t())
        a.copy_(torch.randn(20, 30))
        graph.replay()
    close(out, a.double() @ b.double() @ b.t().double())


def test_an_unknown_out_dtype_is_an_error_in_a_compiled_function_too() -> None:
    compiled = torch.compile(kernels.basic_matmul, backend="eager")
    with pytest.raises(ValueError, match="expected one of float16"):
        compiled(torch.ones(2, 2), torch.ones(2, 2), "int8")


@pytest.mark.parametrize("left", ["row", "column", "strided"])
@pytest.mark.parametrize("right", ["row", "column"])
def test_gradients_are_those_of_matmul(left: str, right: str) -> None:
    a = matrix(5, 7, dtype=torch.float64, layout=left).requires_grad_()
    b = matrix(7, 4, dtype=torch.float64, layout=right).requires_grad_()
    assert torch.autograd.gradcheck(kernels.basic_matmul, (a, b))


@pytest.mark.parametrize("name", ["basic_matmul", "batched_matmul"])
def test_gradients_come_in_the_dtypes_of_the_operands(name: str) -> None:
    batch = () if name == "basic_matmul" else (3,)
    a = matrix(*batch, 20, 30, dtype=torch.float16).requires_grad_()
    b = matrix(*batch, 30, 10, dtype=torch.float16, layout="column").requires_grad_()
    getattr(kernels, name)(a, b, out_dtype="float32").sum().backward()
    ones = torch.ones(*batch, 20, 10, dtype=torch.float64)
    for leaf, exact in ((a, ones @ b.detach().double().mT), (b, a.detach().double().mT @ ones)):
        assert leaf.grad is not None
        assert leaf.grad.dtype == torch.float16
        close(leaf.grad.contiguous(), exact)


def test_one_gradient_alone_can_be_asked_for() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5, requires_grad=True)
    kernels.basic_matmul(a, b).sum().backward()
    assert a.grad is None
    close(b.grad, a.double().t() @ torch.ones(3, 5).double())


def test_the_second_derivative_is_refused_by_name() -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)
    (grad,) = torch.autograd.grad(kernels.basic_matmul(a, b).square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="basic_matmul_backward"):
        grad.sum().backward()


def test_threads_that_need_new_variants_at_once_all_get_theirs() -> None:
    operands = [
        (matrix(9, 8, dtype=dtype, layout=layout), matrix(8, 7, dtype=dtype, layout="strided"))
        for dtype in (torch.bfloat16, torch.float64)
        for layout in ("strided", "column", "strided")
    ]
    results: dict[int, torch.Tensor] = {}

    def multiply(number: int) -> None:
        results[number] = kernels.basic_matmul(*operands[number])

    threads = [threading.Thread(target=multiply, args=(n,)) for n in range(len(operands))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, (a, b) in enumerate(operands):
        close(results[number], a.double() @ b.double())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("items", "m", "n", "k"), [(1, 4, 5, 6), (5, 33, 65, 20), (40, 8, 8, 8), (3, 110, 40, 300)]
)
def test_batched_matmul_is_bmm(items: int, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    a, b = matrix(items, m, k, dtype=dtype), matrix(items, k, n, dtype=dtype)
    close(kernels.batched_matmul(a, b), a.double() @ b.double())


@pytest.mark.parametrize("transposed_output", [False, True])
@pytest.mark.parametrize("transposed_b", [False, True])
@pytest.mark.parametrize("transposed_a", [False, True])
def test_strided_batched_with_transposed_operands_and_output(
    transposed_a: bool, transposed_b: bool, transposed_output: bool
) -> None:
    """Strided batched, transA x transB, transposed output, k = 513."""
    a = matrix(3, 65, 513, dtype=torch.float16, layout="column" if transposed_a else "offset")
    b = matrix(3, 513, 33, dtype=torch.float16, layout="column" if transposed_b else "offset")
    if transposed_output:
        ours = kernels.batched_matmul(b.mT, a.mT)
        close(ours, (a.double() @ b.double()).mT)
    else:
        close(kernels.batched_matmul(a, b), a.double() @ b.double())


def test_an_operand_of_all_items_is_expanded_not_copied() -> None:
    a, b = torch.randn(6, 5, 4), torch.randn(4, 3)
    close(kernels.batched_matmul(a, b.expand(6, 4, 3)), a.double() @ b.double())


def test_every_second_item_of_a_batch_in_reverse_axes() -> None:
    a = torch.randn(5, 8, 6).permute(2, 0, 1)[::2]
    b = torch.randn(8, 3, 7).permute(1, 0, 2)
    close(kernels.batched_matmul(a, b), a.double() @ b.double())


@pytest.mark.parametrize(
    ("a", "b"), [((0, 3, 4), (0, 4, 5)), ((2, 0, 4), (2, 4, 5)), ((2, 3, 0), (2, 0, 5))]
)
def test_batches_of_nothing(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    ours = kernels.batched_matmul(torch.empty(a), torch.empty(b))
    assert torch.equal(ours, torch.zeros(a[0], a[1], b[2]))


def test_gradients_of_a_batch_are_those_of_bmm() -> None:
    a = matrix(3, 4, 5, dtype=torch.float64, layout="column").requires_grad_()
    b = matrix(3, 5, 2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(kernels.batched_matmul, (a, b))


@pytest.mark.parametrize(
    ("b", "words"),
    [
        ((3, 4, 5), r"b must have shape \[2, 4, 5\]"),
        ((2, 9, 5), r"b must have shape \[2, 4, 5\]"),
        ((4, 5), "b must have at least 3 dimensions"),
    ],
)
def test_batches_that_do_not_fit_are_named(b: tuple[int, ...], words: str) -> None:
    with pytest.raises(ContractError, match=f"bringup::batched_matmul: {words}"):
        kernels.batched_matmul(torch.ones(2, 3, 4), torch.ones(b))
