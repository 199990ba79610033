"""Gradients of `ops.custom_op`: backward, setup_context, lists, several outputs, torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bringup import ops
from bringup.errors import SchemaError

Custom = Callable[..., ops.CustomOperator]
PATHS = pytest.mark.parametrize("path", ["callable", "torch.ops"])


def by(path: str, operator: ops.CustomOperator) -> Callable[..., Any]:
    return operator if path == "callable" else operator.overload


def leaf(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def scale(x: Tensor, factor: float = 3.0) -> Tensor:
    return x * factor


def save_factor(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.factor = inputs[1]


def scale_backward(ctx: Any, grad: Tensor) -> Any:
    return grad * ctx.factor, None


def square(x: Tensor) -> Tensor:
    return x * x


def save_input(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def square_backward(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * 2 * x


@pytest.fixture
def scaled(custom: Custom) -> ops.CustomOperator:
    operator = custom(scale)
    operator.register_autograd(scale_backward, setup_context=save_factor)
    return operator


@pytest.fixture
def squared(custom: Custom) -> ops.CustomOperator:
    operator = custom(square)
    operator.register_autograd(square_backward, setup_context=save_input)
    return operator


@PATHS
def test_backward_gives_the_registered_gradient(scaled: ops.CustomOperator, path: str) -> None:
    """Defaults are filled in."""
    x = leaf(1, 2)
    y = by(path, scaled)(x)
    assert y.grad_fn is not None
    assert y.grad_fn.name() == f"{scaled.overload._opname}Backward"
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


@PATHS
def test_setup_context_saves_tensors(squared: ops.CustomOperator, path: str) -> None:
    x = leaf(3)
    by(path, squared)(x).backward()
    assert x.grad is not None
    assert x.grad.item() == 6


@PATHS
def test_a_backward_needs_no_setup_context(custom: Custom, path: str) -> None:
    operator = custom(lambda x: x * 2)
    operator.register_autograd(lambda ctx, grad: grad * 2)
    x = leaf(1)
    assert torch.autograd.grad(by(path, operator)(x), x)[0].item() == 2


@PATHS
def test_without_requires_grad_nothing_is_recorded(scaled: ops.CustomOperator, path: str) -> None:
    assert by(path, scaled)(torch.ones(1)).grad_fn is None
    with torch.no_grad():
        assert by(path, scaled)(leaf(1)).grad_fn is None
    with torch.inference_mode():
        assert by(path, scaled)(torch.ones(1)).is_inference()


@PATHS
def test_backward_without_a_formula_raises_naming_the_operator(custom: Custom, path: str) -> None:
    operator = custom(square)
    y = by(path, operator)(leaf(1))
    with pytest.raises(
        RuntimeError, match=f"{operator.qualified_name} has no backward, but a gradient"
    ):
        y.backward()


def test_a_tensor_by_keyword_is_differentiated(squared: ops.CustomOperator) -> None:
    """Tensors passed by keyword must not skip autograd."""
    x = leaf(3)
    squared(x=x).backward()
    assert x.grad is not None
    assert x.grad.item() == 6


@PATHS
def test_several_outputs_bring_one_gradient_each(custom: Custom, path: str) -> None:
    """The derivative d(2x + 3x) is 5."""

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    operator = custom(both)
    operator.register_autograd(lambda ctx, first, second: first * 2 + second * 3)
    x = leaf(1)
    first, second = by(path, operator)(x)
    (first + second).backward()
    assert x.grad is not None
    assert x.grad.item() == 5


@PATHS
def test_lists_of_tensors_have_lists_of_gradients(custom: Custom, path: str) -> None:
    def weighted(xs: list[Tensor], weights: list[float]) -> list[Tensor]:
        return [x * w for x, w in zip(xs, weights, strict=True)]

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        assert isinstance(output, list)
        ctx.weights = inputs[1]
        assert ctx.needs_input_grad == ([True, False], False)

    def backward(ctx: Any, grads: list[Tensor]) -> Any:
        assert ctx.needs_input_grad == ([True, False], False)
        return [g * w for g, w in zip(grads, ctx.weights, strict=True)], None

    operator = custom(weighted)
    operator.register_autograd(backward, setup_context=setup)
    x, y = leaf(1), torch.ones(1)
    result = by(path, operator)([x, y], [2.0, 5.0])
    assert isinstance(result, list)
    torch.stack(result).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 2


@PATHS
def test_keyword_only_tensors_have_gradients(custom: Custom, path: str) -> None:
    """torch.library refuses keyword-only tensors."""

    def affine(x: Tensor, *, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return x * weight if bias is None else x * weight + bias

    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], keyword_only_inputs["weight"])
        assert list(keyword_only_inputs) == ["weight", "bias"]

    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad * weight, grad * x, None

    operator = custom(affine)
    operator.register_autograd(backward, setup_context=setup)
    x, weight = leaf(2), leaf(5)
    by(path, operator)(x, weight=weight).backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert (x.grad.item(), weight.grad.item()) == (5, 2)


def test_setup_context_may_name_its_parameters_as_it_likes(custom: Custom) -> None:
    """torch.library calls it by keyword only."""
    for setup in (
        lambda c, i, o: c.save_for_backward(i[0]),
        lambda output, inputs, ctx: ctx.save_for_backward(inputs[0]),
    ):
        operator = custom(square)
        operator.register_autograd(square_backward, setup_context=setup)
        x = leaf(4)
        operator(x).backward()
        assert x.grad is not None
        assert x.grad.item() == 8


@PATHS
def test_marks_and_unmaterialized_gradients_reach_the_node(custom: Custom, path: str) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, x * 3, x * 4

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    seen: list[Any] = []

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.extend(grad is None for grad in grads)
        return grads[0] * 2

    operator = custom(both)
    operator.register_autograd(backward, setup_context=setup)
    first, second, third = by(path, operator)(leaf(1))
    assert (first.requires_grad, second.requires_grad, third.requires_grad) == (True, False, True)
    first.backward()
    assert seen == [False, True, True]


@PATHS
def test_a_gradient_of_a_gradient_is_right_or_raises(
    squared: ops.CustomOperator, custom: Custom, path: str
) -> None:
    """Double backward."""
    x = leaf(3)
    (first,) = torch.autograd.grad(by(path, squared)(x * x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (4 * 27, 12 * 9)

    inner = custom(lambda x, grad: 2 * x * grad)
    outer = custom(square)
    outer.register_autograd(
        lambda ctx, grad: inner(*ctx.saved_tensors, grad), setup_context=save_input
    )
    (first,) = torch.autograd.grad(by(path, outer)(x), x, create_graph=True)
    assert first.item() == 6
    with pytest.raises(RuntimeError, match=f"{inner.qualified_name} has no backward"):
        torch.autograd.grad(first, x)


@PATHS
def test_saved_tensors_that_were_written_since_are_noticed(
    squared: ops.CustomOperator, path: str
) -> None:
    x = leaf(3) * 1
    y = by(path, squared)(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_gradcheck_holds(squared: ops.CustomOperator) -> None:
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squared, x)
    assert torch.autograd.gradgradcheck(squared, x)


def test_recording_keeps_no_input_alive_that_was_not_saved(custom: Custom) -> None:
    def total(xs: list[Tensor]) -> Tensor:
        return torch.stack(xs).sum()

    operator = custom(total)
    operator.register_autograd(lambda ctx, grad: [grad.expand(2)])
    import weakref

    leaves = [leaf(1, 2)]
    middle = leaves[0] * 2
    gone = weakref.ref(middle)
    result = operator([middle])
    del middle
    assert gone() is None
    result.backward()


# ---------------------------------------------------------------- what registration refuses


def test_a_setup_context_with_other_arguments_is_refused(custom: Custom) -> None:
    operator = custom(scale)
    with pytest.raises(SchemaError, match=r"setup_context takes \(ctx\), expected \(ctx, inputs, "):
        operator.register_autograd(scale_backward, setup_context=lambda ctx: None)


def test_a_backward_of_an_operator_that_writes_or_returns_nothing_is_refused(
    custom: Custom,
) -> None:
    def fill(x: Tensor) -> None:
        x.fill_(1)

    def look(x: Tensor) -> None:
        del x

    with pytest.raises(SchemaError, match=r"writes its argument 'x'; only an operator that ret"):
        custom(fill, mutates_args=["x"]).register_autograd(scale_backward)
    with pytest.raises(SchemaError, match="returns nothing; only an operator that returns"):
        custom(look).register_autograd(scale_backward)


@PATHS
def test_a_wrong_number_of_gradients_is_named(custom: Custom, path: str) -> None:
    operator = custom(scale)
    operator.register_autograd(lambda ctx, grad: (grad, None, None))
    with pytest.raises(RuntimeError, match=r"returned 3 gradients; expected one for each of its"):
        by(path, operator)(leaf(1)).backward()


@PATHS
def test_a_wrong_number_of_gradients_for_a_list_is_named(custom: Custom, path: str) -> None:
    def total(xs: list[Tensor]) -> Tensor:
        return torch.stack(xs).sum()

    operator = custom(total)
    operator.register_autograd(lambda ctx, grad: [[grad]])
    with pytest.raises(RuntimeError, match="returned 1 gradients for the list 'xs' of 2 tensors"):
        by(path, operator)([leaf(1), leaf(2)]).backward()


@PATHS
def test_an_exception_of_a_callback_reaches_the_caller(custom: Custom, path: str) -> None:
    def fail(*_: Any) -> Any:
        raise KeyError("mine")

    operator = custom(scale)
    operator.register_autograd(fail)
    with pytest.raises(KeyError, match="mine"):
        by(path, operator)(leaf(1)).backward()
    operator.register_autograd(scale_backward, setup_context=lambda ctx, i, o: fail())
    with pytest.raises(KeyError, match="mine"):
        by(path, operator)(leaf(1))


def test_forward_over_reverse_is_right(custom: Any) -> None:
    """A jvp around a grad, as `torch.func.hessian` runs it, loses no tangent silently."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    def jvp(ctx: Any, dx: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        x, y = ctx.saved_tensors
        return dx * y + x * dy

    operator = custom(product)
    operator.register_autograd(backward, setup_context=setup)
    operator.register_jvp(jvp)
    x = torch.randn(3)
    hessian = torch.func.hessian(lambda a: (a * operator(a, a)).sum())(x)
    torch.testing.assert_close(hessian, torch.diag(6 * x))
