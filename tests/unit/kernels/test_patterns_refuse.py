"""What passes of the library leave alone because rewriting it would compute something else."""

import pytest
import torch
from tests.unit.passes.support import empty_registry

from bringup import compiler
from bringup.kernels.patterns import register_patterns

__all__ = ["empty_registry"]


def compiled(function):
    """The function behind the whole library."""
    torch.compiler.reset()
    register_patterns()
    return torch.compile(function, backend="bringup")


def assert_same(function, *examples):
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(*examples), function(*examples))


def fused():
    return compiler.last_report().matches["LibraryAttention"]


def attention(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.3, -1), v)


def heads(*shape):
    return torch.randn(shape)


def across(*shape):
    """Heads whose last dimension is not the innermost one in memory."""
    return torch.randn(*shape[:2], shape[3], shape[2]).transpose(2, 3)


def test_attention_is_still_found():
    """What the refusals below are measured against."""
    assert_same(attention, *(heads(2, 4, 6, 8) for _ in range(3)))
    assert fused() == 1


@pytest.mark.parametrize("strange", range(3), ids=["q", "k", "v"])
def test_heads_whose_rows_are_not_dense_are_left_alone(strange):
    """Torch's fused kernel assumes dense rows and would read other memory."""
    given = [(across if index == strange else heads)(2, 4, 6, 8) for index in range(3)]
    assert_same(attention, *given)
    assert fused() == 0


@pytest.mark.parametrize("shape", [(2, 4, 0, 8), (0, 4, 3, 8), (2, 0, 3, 8), (2, 4, 3, 0)])
def test_heads_without_elements_are_left_alone(shape):
    """Torch's fused kernel divides by zero, which ends the process."""
    assert_same(attention, *(heads(*shape) for _ in range(3)))
    assert fused() == 0


def test_what_is_added_to_the_last_product_stays():
    """With one batch the product has the rank of the heads but for one: it broadcasts."""

    def block(q, k, v, residual):
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1)
        return torch.bmm(weights.view(2, 4, 4), v.view(2, 4, 8)) + residual

    assert_same(block, *(heads(1, 2, 4, 8) for _ in range(4)))
    assert fused() == 0


def test_views_that_cut_across_heads_are_left_alone():
    def block(q, k, v):
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)), -1)
        return torch.bmm(weights.view(1, 4, 4), v.view(1, 4, 4)).view(1, 4, 2, 2)

    assert_same(block, *(heads(1, 4, 2, 2) for _ in range(3)))
    assert fused() == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, torch.zeros(3, 4).view(12)),
        lambda x: (x, torch.arange(6.0).view(2, 3).t()),
        lambda x: (lambda y: (y, y.clone().view(-1)))(x + 1),
        lambda x: (x.view(12).clone().view(3, 4),),
        lambda x: (torch.relu(x).view(12), torch.relu(x).clone()),
    ],
    ids=["factory", "turned factory", "copy", "copy of an input", "direct copy"],
)
def test_results_keep_memory_of_their_own(function):
    """Whoever writes one result finds it changed in no other, in no input and in no later call."""
    x = torch.randn(3, 4)
    run = compiled(function)
    with torch.no_grad():
        results, kept = run(x.clone()), function(x.clone())
        for result in results:
            expected = [item.clone() for item in results if item is not result]
            result.add_(1)
            others = [item for item in results if item is not result]
            assert all(map(torch.equal, others, expected))
        assert all(map(torch.equal, run(x.clone()), kept))
