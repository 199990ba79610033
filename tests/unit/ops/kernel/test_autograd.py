"""Gradients of kernel operators: right where there is a backward, an error where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import MUL, NOTHING, each, kernel

from bringup import ops
from bringup.errors import KernelError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
Path = Callable[[ops.KernelOperator], Callable[..., Any]]


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@PATHS
def test_gradients_are_right(mul: ops.KernelOperator, path: Path) -> None:
    assert torch.autograd.gradcheck(path(mul), (doubles(3, 2), doubles(3, 2)))
    assert torch.autograd.gradcheck(path(mul), (doubles(2, 3).t(), doubles(3, 2)))
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    result = path(mul)(x, y)
    assert result.grad_fn.name() == f"{mul.qualified_name}Backward"
    result.sum().backward()  # an expanded gradient
    assert torch.equal(x.grad, y)


@PATHS
def test_numbers_named_outputs_and_chosen_gradients(define: Define, path: Path) -> None:
    # out = x ** n * scale[0], saved; grad_x = grad * n * out / x
    backward = define(
        "power_backward(Tensor grad, Tensor x, int n, Tensor out) -> Tensor",
        source=each("DATA(4)[i] = DATA(0)[i] * INT(2) * DATA(3)[i] / DATA(1)[i];"),
        outputs=ops.empty_like("x"),
        checks=ops.same_shape("grad", "x", "out"),
        dtypes={"T": "x"},
    )
    power = define(
        "power(Tensor x, Tensor scale, int n=3) -> (Tensor out, Tensor rounds)",
        source=each(
            "DATA(3)[i] = DATA(1)[0]; for (int k = 0; k < INT(2); ++k) DATA(3)[i] *= DATA(0)[i];"
            "*static_cast<int64_t*>(TENSOR(4)->data) = INT(2);"
        ),
        outputs=(ops.empty_like("x"), ops.empty(1, dtype=torch.int64)),
        checks=ops.same_dtype("x", "scale"),
        dtypes={"T": "x"},
    )
    power.register_backward(backward.qualified_name, save=("x", "out"), gradients=("x",))
    scale = torch.full((1,), 2.0, dtype=torch.float64)
    x = doubles(3)
    assert torch.autograd.gradcheck(lambda a: path(power)(a, scale)[0], (x,))
    assert torch.autograd.gradcheck(lambda a: path(power)(a, scale, n=2)[0], (x,))
    out, rounds = path(power)(x, scale)
    assert (out.requires_grad, rounds.requires_grad, rounds.item()) == (True, False, 3)
    # scale was declared to have no gradient: alone it makes nothing differentiable
    assert not path(power)(x.detach(), scale.clone().requires_grad_())[0].requires_grad


@PATHS
def test_undefined_gradients_of_several_outputs_are_zeros(
    define: Define, pair: ops.KernelOperator, path: Path
) -> None:
    backward = define(
        "both_backward(Tensor grad_a, Tensor grad_b) -> Tensor",
        source=each("DATA(2)[i] = 2 * DATA(0)[i] + 3 * DATA(1)[i];"),
        outputs=ops.empty_like("grad_a"),
        checks=ops.same_shape("grad_a", "grad_b"),
        dtypes={"T": "grad_a"},
    )
    pair.register_backward(backward.qualified_name)
    x = doubles(3)
    for used, factor in [((0,), 2), ((1,), 3), ((0, 1), 5)]:
        outputs = path(pair)(x)
        loss = torch.stack([outputs[i].sum() for i in used]).sum()
        (grad,) = torch.autograd.grad(loss, x)
        assert grad.tolist() == [factor] * 3


@PATHS
def test_backward_through_an_operator_without_one_raises_and_names_it(
    add: ops.KernelOperator, path: Path
) -> None:
    result = path(add)(doubles(2), doubles(2))
    with pytest.raises(NotImplementedError, match=f"{add.qualified_name} has no backward"):
        result.sum().backward()


@PATHS
def test_lists_of_tensors_have_no_silent_gradient(define: Define, path: Path) -> None:
    total = define("total(Tensor x, Tensor[] more) -> Tensor", source=NOTHING,
                   outputs=ops.empty_like("x"), checks=ops.kernel_checks())  # fmt: skip
    result = path(total)(torch.ones(1), [doubles(1)])
    with pytest.raises(NotImplementedError, match="total has no backward"):
        result.sum().backward()


@PATHS
def test_double_backward_raises_and_names_the_backward(mul: ops.KernelOperator, path: Path) -> None:
    x = doubles(2)
    (grad,) = torch.autograd.grad(path(mul)(x, x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="::mul_backward has no backward"):
        grad.sum().backward()


@PATHS
def test_double_backward_works_where_the_backward_has_its_own(define: Define, path: Path) -> None:
    options = {"source": MUL, "outputs": ops.empty_like("y"), "dtypes": {"T": "y"}}
    # f(x, y) = x * y, differentiated in x only; its backward is the same operator
    inner = define("inner(Tensor grad, Tensor y) -> Tensor", checks=ops.same_shape("grad", "y"),
                   **options)  # fmt: skip
    outer = define("outer(Tensor x, Tensor y) -> Tensor", checks=ops.same_shape("x", "y"),
                   **options)  # fmt: skip
    outer.register_backward(inner.qualified_name, save=("y",), gradients=("x",))
    twice = define("twice(Tensor grad, Tensor y) -> Tensor", checks=ops.same_shape("grad", "y"),
                   **options)  # fmt: skip
    inner.register_backward(twice.qualified_name, save=("y",), gradients=("grad",))
    x, y = doubles(2), torch.full((2,), 3.0, dtype=torch.float64)
    seed = torch.ones(2, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(path(outer)(x, y), x, seed, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), seed)
    assert second.tolist() == [3, 3]


@PATHS
def test_forward_mode_raises_and_names_the_operator(mul: ops.KernelOperator, path: Path) -> None:
    x = torch.ones(2)
    text = f"{mul.qualified_name} has no forward-mode derivative"
    with pytest.raises(NotImplementedError, match=text):
        torch.func.jvp(lambda a: path(mul)(a, x), (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=text):
        path(mul)(forward_ad.make_dual(x, x), x)


@PATHS
def test_function_transforms_are_right(mul: ops.KernelOperator, path: Path) -> None:
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(torch.func.grad(lambda a: path(mul)(a, y).sum())(x), y)
    assert torch.equal(torch.func.jacrev(lambda a: path(mul)(a, y))(x), torch.diag(y))
    batch = torch.randn(2, 3)
    assert torch.equal(torch.vmap(path(mul))(batch, batch), batch * batch)
    per_sample = torch.vmap(torch.func.grad(lambda a, b: path(mul)(a, b).sum()))
    assert torch.equal(per_sample(batch, 2 * batch), 2 * batch)


@PATHS
def test_a_saved_tensor_changed_in_place_is_noticed(mul: ops.KernelOperator, path: Path) -> None:
    x, y = doubles(2), torch.ones(2, dtype=torch.float64)
    result = path(mul)(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@PATHS
def test_writing_into_a_tensor_with_history_loses_no_gradient_silently(
    define: Define, path: Path
) -> None:
    fill = define("fill(Tensor(a!) x) -> ()", source=each("DATA(0)[i] = 1;"), dtypes={"T": "x"})
    x = doubles(2) * 1
    path(fill)(x)
    with pytest.raises(NotImplementedError, match="fill has no backward, but a gradient"):
        x.sum().backward()


def test_a_backward_that_was_undefined_is_named(define: Define, mul: ops.KernelOperator) -> None:
    backward = define("b(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
                      outputs=[ops.empty_like("x")] * 2, checks=ops.kernel_checks())  # fmt: skip
    mul.register_backward(backward.qualified_name, save=("x", "y"))
    result = mul(doubles(2), doubles(2))
    backward.undefine()
    with pytest.raises(RuntimeError, match=r"::b is not defined any more"):
        result.sum().backward()


def test_a_second_backward_through_freed_buffers_raises(mul: ops.KernelOperator) -> None:
    result = mul(doubles(2), doubles(2)).sum()
    result.backward(retain_graph=True)
    result.backward()
    with pytest.raises(RuntimeError, match="second time"):
        result.backward()


def test_an_error_in_backward_keeps_its_class(define: Define) -> None:
    refuse = kernel('ctx->set_error(ctx, "no gradient today"); return 1;')
    like = ops.empty_like("grad")
    backward = define("fail_backward(Tensor grad) -> Tensor", source=refuse, outputs=like)
    fail = define("fail(Tensor x) -> Tensor", outputs=ops.empty_like("x"))
    fail.register_backward(backward.qualified_name)
    with pytest.raises(KernelError, match=r"fail_backward: .* no gradient today"):
        fail(doubles(2)).sum().backward()
