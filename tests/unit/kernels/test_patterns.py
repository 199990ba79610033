"""Patterns of the library: every spelling is found, what only looks like it is not."""

import math

import pytest
import torch
from tests.unit.passes.support import empty_registry, traced
from torch.nn import functional

from bringup import compiler, passes
from bringup.kernels.patterns import LIBRARY, register_patterns

__all__ = ["empty_registry", "traced"]

X = torch.randn(2, 3, 8)
WEIGHT = torch.randn(8)


def matched(traced, function, *examples, only=None):
    """Matches by class name, after checking that the rewritten graph computes the same."""
    register_patterns(only)
    module = traced(function, *examples)
    report = compiler.apply_passes(module)
    module.graph.lint()
    torch.testing.assert_close(module(*examples), function(*examples), atol=2e-6, rtol=2e-6)
    return {name.removeprefix("Library"): count for name, count in report.matches.items()}


def mean_square(x, square, dim=-1):
    return square(x).mean(dim, keepdim=True) + 1e-6


SQUARES = {"pow": lambda x: x.pow(2), "mul": lambda x: x * x, "square": torch.square}
ROOTS = {
    "rsqrt": torch.rsqrt,
    "pow": lambda v: v.pow(-0.5),
    "reciprocal": lambda v: v.sqrt().reciprocal(),
}


@pytest.mark.parametrize("root", list(ROOTS))
@pytest.mark.parametrize("square", list(SQUARES))
def test_rms_norm_is_found_in_every_spelling(traced, square, root):
    def norm(x, weight):
        return weight * (x * ROOTS[root](mean_square(x, SQUARES[square])))

    assert matched(traced, norm, X, WEIGHT)["RmsNorm"] == 1


@pytest.mark.parametrize("dim", [(-1,), (2,)])
def test_rms_norm_over_the_last_dimension_under_either_number(traced, dim):
    def norm(x, weight):
        return x * torch.rsqrt(mean_square(x, SQUARES["pow"], dim)) * weight

    assert matched(traced, norm, X, WEIGHT)["RmsNorm"] == 1


def test_rms_norm_between_casts_of_half_precision_keeps_the_casts(traced):
    def norm(x, weight):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(mean_square(wide, SQUARES["pow"]))
        return weight * wide.to(x.dtype)

    register_patterns()
    x, weight = X.bfloat16(), WEIGHT.bfloat16()
    module = traced(norm, x, weight)
    assert compiler.apply_passes(module).matches["LibraryRmsNorm"] == 1
    torch.testing.assert_close(module(x, weight), norm(x, weight))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, weight: weight * (x * torch.rsqrt(mean_square(x, SQUARES["pow"], 1))),
        lambda x, weight: weight * (x * torch.rsqrt(mean_square(x, lambda v: v.pow(3)))).abs(),
        lambda x, weight: weight * (x * torch.rsqrt(mean_square(x + 1, SQUARES["pow"]))),
    ],
    ids=["another dimension", "another power", "the mean of another value"],
)
def test_what_only_looks_like_rms_norm_is_left_alone(traced, function):
    assert matched(traced, function, X.abs() + 1, WEIGHT)["RmsNorm"] == 0


def test_norm_whose_inner_value_is_read_elsewhere_is_left_alone(traced):
    def norm(x, weight):
        scale = torch.rsqrt(mean_square(x, SQUARES["pow"]))
        return weight * (x * scale), scale

    assert matched(traced, norm, X, WEIGHT)["RmsNorm"] == 0


@pytest.mark.parametrize("shared", [False, True])
def test_residual_joins_the_layer_norm_and_the_sum_stays_where_it_is_read(traced, shared):
    def block(x, residual, weight, bias):
        total = x + residual
        normalized = functional.layer_norm(total, (8,), weight, bias)
        return (normalized, total * 2) if shared else normalized

    assert matched(traced, block, X, X + 1, WEIGHT, WEIGHT + 1)["AddLayerNorm"] == 1


def test_broadcast_residual_is_left_alone(traced):
    def block(x, residual, weight, bias):
        return functional.layer_norm(x + residual, (8,), weight, bias)

    assert matched(traced, block, X, X[0], WEIGHT, WEIGHT)["AddLayerNorm"] == 0


@pytest.mark.parametrize("halves", ["slices", "chunk"])
def test_rotary_is_found_with_slices_and_with_a_chunk(traced, halves):
    def rotate_half(x):
        if halves == "slices":
            return torch.cat((-x[..., 4:], x[..., :4]), -1)
        low, high = x.chunk(2, -1)
        return torch.cat((-high, low), -1)

    def rotary(x, cos, sin):
        q = x.transpose(1, 2)
        return (q * cos.unsqueeze(1)) + (rotate_half(q) * sin.unsqueeze(1))

    x, cos, sin = torch.randn(2, 5, 3, 8), torch.randn(1, 5, 8), torch.randn(2, 5, 8)
    assert matched(traced, rotary, x, cos, sin)["Rotary"] == 1


def test_rotation_with_unequal_parts_or_another_sign_is_left_alone(traced):
    def unequal(x, cos, sin):
        q = x.transpose(1, 2)
        return (q * cos) + (torch.cat((-q[..., 3:], q[..., :3]), -1) * sin)

    def other_sign(x, cos, sin):
        q = x.transpose(1, 2)
        return (q * cos) + (torch.cat((q[..., 4:], -q[..., :4]), -1) * sin)

    x, cos = torch.randn(2, 5, 3, 8), torch.randn(5, 8)
    for function in (unequal, other_sign):
        assert matched(traced, function, x, cos, cos)["Rotary"] == 0


@pytest.mark.parametrize(
    "function",
    [lambda g, u: functional.silu(g) * u, lambda g, u: u * (g * torch.sigmoid(g))],
    ids=["silu", "sigmoid"],
)
def test_swiglu_is_found_in_both_spellings(traced, function):
    assert matched(traced, function, X, X + 1)["SwiGlu"] == 1


def test_halves_of_one_projection_are_taken_as_they_lie(traced):
    def gated(x):
        gate, up = x.split(4, -1)
        return functional.silu(gate) * up

    assert matched(traced, gated, X)["SwiGlu"] == 1


ROOT = math.sqrt(2 / math.pi)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x.pow(3)))), "TanhGelu"),
        (lambda x: x * 0.5 * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x))), None),
        (lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + (x * x) * x * 0.044715))), "TanhGelu"),
        (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2))), "ErfGelu"),
        (lambda x: 0.5 * x * (torch.erf(x * math.sqrt(0.5)) + 1), "ErfGelu"),
        (lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.05 * x.pow(3)))), None),
        (lambda x: 0.5 * x * (1 + torch.erf(x / 1.5)), None),
    ],
)
def test_gelu_is_found_by_its_formula_and_its_numbers(traced, function, name):
    found = matched(traced, function, X)
    assert (found["TanhGelu"], found["ErfGelu"]) == (name == "TanhGelu", name == "ErfGelu")


def attention(q, k, v, mask=None, scale=0.5):
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if mask is not None:
        scores = scores + mask
    return torch.matmul(torch.softmax(scores, -1), v)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("repeats", [1, 2])
def test_attention_written_out_becomes_one_operator_with_heads_as_they_were(
    traced, repeats, masked
):
    def block(x, k, v, mask):
        wide = [part[:, :, None].expand(2, 2, repeats, 5, 8) for part in (k, v)]
        k, v = (part.reshape(2, 2 * repeats, 5, 8) for part in wide)
        return attention(x.transpose(1, 2), k, v, mask if masked else None).transpose(1, 2) + 0

    q, kv = torch.randn(2, 5, 2 * repeats, 8), torch.randn(2, 2, 5, 8)
    register_patterns()
    module = traced(block, q, kv, kv + 1, torch.randn(2, 1, 5, 5))
    compiler.apply_passes(module)
    mask = torch.randn(2, 1, 5, 5)
    torch.testing.assert_close(module(q, kv, kv + 1, mask), block(q, kv, kv + 1, mask))
    text = module.code
    assert text.count("_for_cpu.default(") == 1
    assert "bmm" not in text
    assert "expand" not in text


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: attention(q, k, v.flip(2)) + torch.softmax(q @ k.transpose(2, 3), 2).sum(),
        lambda q, k, v: torch.matmul(torch.softmax(q @ k.transpose(2, 3), 2), v),
        lambda q, k, v: torch.matmul(torch.softmax(q @ k, -1), v),
    ],
    ids=["and another softmax", "another dimension", "keys not transposed"],
)
def test_softmax_of_something_else_is_left_alone(traced, function):
    examples = [torch.randn(2, 2, 8, 8) for _ in range(3)]
    register_patterns(["Attention"])
    module = traced(function, *examples)
    compiler.apply_passes(module)
    torch.testing.assert_close(module(*examples), function(*examples))


def causal_mask(size, kind):
    mask = torch.full((size, size), -math.inf if kind != "least" else torch.finfo().min)
    mask = torch.triu(mask, diagonal=2 if kind == "shifted" else 1)
    return mask.expand(2, 1, size, size)


@pytest.mark.parametrize(
    ("kind", "causal"), [("infinite", True), ("least", True), ("shifted", False)]
)
def test_mask_from_sizes_alone_is_folded_and_a_causal_one_dropped(traced, kind, causal):
    def block(q, k, v):
        mask = causal_mask(8, kind)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    examples = [torch.randn(2, 2, 8, 8) for _ in range(3)]
    register_patterns()
    module = traced(block, *examples)
    compiler.apply_passes(module)
    torch.testing.assert_close(module(*examples), block(*examples))
    assert ("True" in module.code) is causal


def test_graph_that_writes_memory_is_left_to_patterns_that_know_where(traced):
    def block(x):
        y = torch.relu(x).clone()
        y.add_(1)
        return functional.silu(y) * x

    register_patterns()
    module = traced(block, X)
    report = compiler.apply_passes(module)
    torch.testing.assert_close(module(X), block(X))
    assert report["LibraryDropCopies"].status is passes.PassStatus.SKIPPED
    assert "writes memory" in report["LibraryDropCopies"].message


def test_library_is_registered_on_demand_once_and_by_name():
    assert register_patterns(["RmsNorm"]) == ("LibraryRmsNorm",)
    assert len(register_patterns()) == len(LIBRARY)
    assert register_patterns(["Rotary", "RmsNorm"]) == ("LibraryRmsNorm", "LibraryRotary")
    with pytest.raises(ValueError, match="the pass library has no 'RmsNrom'; it has"):
        register_patterns(["RmsNrom"])
