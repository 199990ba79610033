"""The shipped operators against torch, on every length, layout and dtype they take."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import functional

from bringup import kernels
from bringup.errors import ContractError, KernelError

FLOATS = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}


def close(ours: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    assert ours.shape == expected.shape
    bound = TOLERANCE[ours.dtype] * scale
    torch.testing.assert_close(ours, expected.to(ours.dtype), atol=bound, rtol=bound)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 384), (3, 5, 13), (2, 0, 8), (90, 100)])
def test_add_layer_norm_is_layer_norm_of_the_sum(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, residual = torch.randn(2, *shape, dtype=dtype)
    weight, bias = torch.randn(2, shape[-1], dtype=dtype)
    ours = kernels.add_layer_norm(x, residual, weight, bias, 1e-5)
    exact = [tensor.double() for tensor in (x + residual, weight, bias)]
    close(ours, functional.layer_norm(exact[0], shape[-1:], exact[1], exact[2], 1e-5), scale=2)


def test_add_layer_norm_of_a_row_without_elements_is_an_error() -> None:
    empty = torch.randn(3, 0)
    with pytest.raises(KernelError, match="x needs a last dimension of at least 1"):
        kernels.add_layer_norm(empty, empty, torch.randn(0), torch.randn(0), 1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1,), (5, 1536), (2, 3, 17), (0, 4)])
def test_bias_gelu_is_exact_gelu_of_the_sum(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, bias = torch.randn(shape, dtype=dtype) * 4, torch.randn(shape[-1], dtype=dtype)
    close(kernels.bias_gelu(x, bias), functional.gelu((x + bias).double()))


def test_bias_gelu_stays_within_a_millionth_everywhere() -> None:
    x = torch.linspace(-30, 30, 400_001).unsqueeze(1)
    ours = kernels.bias_gelu(x, torch.zeros(1))
    assert (ours - functional.gelu(x.double())).abs().max() < 1e-6


def test_bias_gelu_keeps_nan_and_the_tails() -> None:
    x = torch.tensor([[float("nan"), float("inf"), -1e30, 1e30]])
    ours = kernels.bias_gelu(x, torch.zeros(4))[0]
    assert ours[0].isnan()
    assert ours[1:].tolist() == [float("inf"), 0.0, pytest.approx(1e30)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 384), (3, 5, 13), (2, 0, 8)])
def test_norms_with_their_sum(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, *shape, dtype=dtype)
    weight, bias = torch.randn(2, shape[-1], dtype=dtype)
    normalized, total = kernels.add_layer_norm_sum(x, residual, weight, bias, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normalized, kernels.add_layer_norm(x, residual, weight, bias, 1e-5))
    normalized, total = kernels.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    exact = functional.rms_norm(total.double(), shape[-1:], weight.double(), 1e-6)
    close(normalized, exact, scale=2)
    close(kernels.rms_norm(total, weight, 1e-6), exact, scale=2)
    close(
        kernels.rms_norm(total, None, 1e-6),
        functional.rms_norm(total.double(), shape[-1:], None, 1e-6),
        scale=2,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("depth", [2, 22, 64])
def test_rotary_turns_halves_and_broadcasts_its_tables(depth: int, dtype: torch.dtype) -> None:
    q = torch.randn(2, 7, 3, depth, dtype=dtype).transpose(1, 2)
    cos, sin = torch.randn(1, 1, 7, depth, dtype=dtype), torch.randn(2, 1, 1, depth, dtype=dtype)
    half = depth // 2
    turned = torch.cat([-q[..., half:], q[..., :half]], -1)
    ours = kernels.rotary(q, cos, sin)
    assert ours.shape == (2, 7, 3, depth)
    close(ours.transpose(1, 2), (q * cos + turned * sin).double())


def test_rotary_refuses_what_it_cannot_turn() -> None:
    x, table = torch.randn(1, 2, 3, 5), torch.randn(1, 1, 3, 5)
    with pytest.raises(KernelError, match=r"bringup::rotary.*an even depth"):
        kernels.rotary(x, table, table)
    x, table = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 2, 4)
    with pytest.raises(KernelError, match="cos and sin must be"):
        kernels.rotary(x, table, table)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 37, 256])
def test_silu_mul_takes_halves_of_one_projection(width: int, dtype: torch.dtype) -> None:
    gate, up = (torch.randn(3, 5, 2 * width, dtype=dtype) * 4).split(width, -1)
    exact = functional.silu(gate.double()) * up.double()
    close(kernels.silu_mul(gate, up), exact, scale=8)


def qkv(batch: int, heads: int, length: int, depth: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Three views into one projection, transposed, as BERT makes them."""
    joined = torch.randn(batch, length, 3 * heads * depth, dtype=dtype)
    parts = joined.split(heads * depth, dim=-1)
    return [part.view(batch, length, heads, depth).transpose(1, 2) for part in parts]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("batch", "heads", "length", "depth"),
    [(1, 12, 6, 32), (3, 2, 17, 5), (2, 3, 33, 64), (1, 1, 1, 1), (5, 13, 7, 8), (1, 2, 130, 80)],
)
def test_attention_looks_at_the_first_rows_of_each_sequence_and_zeroes_the_rest(
    batch: int, heads: int, length: int, depth: int, dtype: torch.dtype
) -> None:
    q, k, v = qkv(batch, heads, length, depth, dtype)
    lengths = [length, *torch.randint(0, length + 1, (batch - 1,)).tolist()]
    ours = kernels.attention(q, k, v, lengths, depth**-0.5)
    assert ours.shape == (batch, length, heads, depth)
    for b, n in enumerate(lengths):
        valid = [tensor[b, :, :n].double() for tensor in (q, k, v)]
        expected = functional.scaled_dot_product_attention(*valid, scale=depth**-0.5)
        close(ours[b, :n], expected.transpose(0, 1))
        assert bool((ours[b, n:] == 0).all())


def test_attention_ignores_what_stands_in_padded_rows_even_nan() -> None:
    q, k, v = (part.clone() for part in qkv(1, 2, 9, 4, torch.float32))
    clean = kernels.attention(q, k, v, [5], 0.5)
    for part in (q, k, v):
        part[:, :, 5:] = float("nan")
    assert torch.equal(kernels.attention(q, k, v, [5], 0.5), clean)


@pytest.mark.bits
def test_attention_takes_any_strides() -> None:
    q, k, v = qkv(2, 3, 10, 8, torch.float32)
    expected = kernels.attention(q, k, v, [10, 4], 0.3)
    laid_out_anew = [part.transpose(2, 3).contiguous().transpose(2, 3) for part in (q, k, v)]
    assert torch.equal(kernels.attention(*laid_out_anew, [10, 4], 0.3), expected)
    one_key = k[:, :, :1].expand_as(k)
    close(
        kernels.attention(q, one_key, v, [10, 10], 0.3),
        v.mean(2, keepdim=True).expand_as(v).transpose(1, 2),
    )


def test_attention_with_large_scores_does_not_overflow() -> None:
    q, k, v = qkv(1, 1, 20, 16, torch.float32)
    ours = kernels.attention(q * 100, k * 100, v, [20], 1.0)
    expected = functional.scaled_dot_product_attention(
        *(t.double() for t in (q * 100, k * 100, v)), scale=1.0
    )
    torch.testing.assert_close(ours, expected.transpose(1, 2).float(), atol=1e-3, rtol=1e-3)


def test_attention_over_no_rows_is_empty() -> None:
    q = torch.randn(2, 3, 0, 4)
    assert kernels.attention(q, q, q, [0, 0], 1.0).shape == (2, 0, 3, 4)


@pytest.mark.parametrize("lengths", [[], [3], [3, 3, 3]])
def test_attention_with_a_wrong_number_of_lengths_says_so(lengths: list[int]) -> None:
    q = torch.randn(2, 3, 5, 4)
    with pytest.raises(KernelError, match=r"bringup::attention.*one length for each sequence"):
        kernels.attention(q, q, q, lengths, 1.0)


@pytest.mark.parametrize("length", [-1, 6])
def test_attention_with_a_length_out_of_range_says_the_range(length: int) -> None:
    q = torch.randn(1, 3, 5, 4)
    with pytest.raises(KernelError, match="between 0 and the padded length"):
        kernels.attention(q, q, q, [length], 1.0)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_mean_pool_is_the_mean_of_the_first_rows(dtype: torch.dtype, normalize: bool) -> None:
    x, lengths = torch.randn(3, 10, 37, dtype=dtype), [10, 1, 4]
    x[1, 1:] = float("nan")
    expected = torch.stack([x[b, :n].double().mean(0) for b, n in enumerate(lengths)])
    if normalize:
        expected = functional.normalize(expected, dim=-1)
    close(kernels.mean_pool(x, lengths, normalize), expected)


def test_mean_pool_of_no_rows_is_an_error() -> None:
    with pytest.raises(KernelError, match=r"bringup::mean_pool.*between 1 and the padded length"):
        kernels.mean_pool(torch.randn(1, 3, 4), [0])


X = torch.randn(4, 8)
V = torch.randn(8)
Q = torch.randn(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("add_layer_norm", (X, X[:3], V, V), "residual"),
        ("add_layer_norm", (X, X, V[:5], V), r"weight must have shape \[8\]"),
        ("add_layer_norm", (X.double(), X, V, V), "residual"),
        ("bias_gelu", (X, torch.randn(3)), r"bias must have shape \[8\]"),
        ("bias_gelu", (X.int(), V.int()), "torch.bfloat16 or torch.float16, got torch.int32"),
        ("attention", (Q, Q[..., :2], Q, [3], 1.0), "k"),
    ],
)
def test_wrong_input_names_operator_and_argument(
    name: str, arguments: tuple[Any, ...], words: str
) -> None:
    with pytest.raises(ContractError, match=f"bringup::{name}.*{words}"):
        getattr(kernels, name)(*arguments)


def test_backward_of_mean_pool_is_refused_by_name() -> None:
    x = torch.randn(1, 2, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"bringup::mean_pool has no backward"):
        kernels.mean_pool(x, [2]).sum().backward()


def test_operators_are_in_torch_ops_and_work_in_a_full_graph() -> None:
    def both(x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        q = x.view(1, -1, 2, 4).transpose(1, 2)
        attended = torch.ops.bringup.attention(q, q, q, lengths, 0.5)
        return torch.ops.bringup.mean_pool(attended.flatten(2), lengths)

    kernels.load()
    compiled = torch.compile(both, backend="eager", fullgraph=True, dynamic=True)
    for rows, length in ((5, 3), (9, 9), (12, 2)):
        x = torch.randn(rows, 8)
        assert torch.equal(compiled(x, [length]), both(x, [length]))


def test_names_are_the_sources_and_each_builds() -> None:
    assert set(kernels.names()) == {
        "add_layer_norm",
        "add_layer_norm_sum",
        "add_rms_norm",
        "attention",
        "bias_gelu",
        "mean_pool",
        "packed_linear",
        "rms_norm",
        "rotary",
        "silu_mul",
    }
    for name in kernels.names():
        assert kernels.build(name, torch.float64).path.is_file()


def test_unknown_name_in_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"bringup\.kernels' has no attribute 'convolution'"):
        _ = kernels.convolution


@pytest.mark.parametrize("name", kernels.names())
def test_every_shipped_operator_describes_each_of_its_arguments(name: str) -> None:
    text, arguments = getattr(kernels, name).__doc__, schema_arguments(name)
    described = text.partition("Args:")[2]
    assert [one for one in arguments if not re.search(rf"\b{one}\b.*:", described)] == []


def schema_arguments(name: str) -> list[str]:
    operator = getattr(torch.ops.bringup, name).default
    return [argument.name for argument in operator._schema.arguments]
