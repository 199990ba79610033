"""Everything that a backward operator can be told and can leave out, on both paths; and the methods
that a kernel operator shares with every other one.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ELEMENTWISE, MUL, each, kernel
from torch.autograd import forward_ad

from bringup import ops
from bringup.errors import SchemaError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
Path = Callable[[ops.KernelOperator], Callable[..., Any]]


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


# (scale, xs) -> out = scale[0] * sum of all xs, element by element
SUM = kernel(
    "for (int64_t i = 0; i < count(TENSOR(2)); ++i) DATA(2)[i] = 0;"
    "for (int64_t k = 0; k < LIST(1)->size; ++k)"
    "  for (int64_t i = 0; i < count(TENSOR(2)); ++i)"
    "    DATA(2)[i] += DATA(0)[0] * static_cast<const T*>("
    "        static_cast<const DLTensor* const*>(LIST(1)->data)[k]->data)[i];"
)
# (grad, scale, xs) -> grad_scale, grad_xs
SUM_BACKWARD = kernel(
    "for (int64_t i = 0; i < count(TENSOR(1)); ++i) DATA(3)[i] = 0;"
    "for (int64_t k = 0; k < LIST(2)->size; ++k) {"
    "  const auto* x = static_cast<const DLTensor* const*>(LIST(2)->data)[k];"
    "  const auto* g = static_cast<const DLTensor* const*>(LIST(4)->data)[k];"
    "  for (int64_t i = 0; i < count(x); ++i) {"
    "    DATA(3)[0] += DATA(0)[i] * static_cast<const T*>(x->data)[i];"
    "    static_cast<T*>(g->data)[i] = DATA(0)[i] * DATA(1)[0];"
    "  }"
    "}"
)


@pytest.fixture
def total(define: Define) -> ops.KernelOperator:
    backward = define(
        "total_backward(Tensor grad, Tensor scale, Tensor[] xs) -> (Tensor, Tensor[])",
        source=SUM_BACKWARD,
        outputs=(ops.empty_like("scale"), ops.empty_like("xs")),
        checks=ops.same_shape("grad", "xs"),
        dtypes={"T": "grad"},
    )
    operator = define(
        "total(Tensor scale, Tensor[] xs) -> Tensor",
        source=SUM,
        outputs=ops.empty(2),
        checks=[ops.shape("xs", 2), ops.same_dtype("scale", "xs")],
        dtypes={"T": "scale"},
    )
    operator.register_backward(backward.qualified_name, save=("scale", "xs"))
    return operator


@PATHS
def test_lists_of_tensors_have_gradients_without_python(
    total: ops.KernelOperator, path: Path
) -> None:
    """A Tensor[] input, its gradient a Tensor[] output of a kernel."""
    call = path(total)
    assert torch.autograd.gradcheck(
        lambda s, *xs: call(s, [*xs]), (doubles(1), doubles(2), doubles(2), doubles(2))
    )
    x, y = doubles(2), doubles(2)
    scale = torch.full((1,), 3.0, dtype=torch.float64)
    call(scale, [x, y.detach(), x]).sum().backward()  # one twice, one without
    assert x.grad.tolist() == [6, 6]
    assert y.grad is None
    assert call(scale.requires_grad_(), []).requires_grad
    assert not call(scale.detach(), [y.detach()]).requires_grad


def test_lists_work_under_function_transforms(total: ops.KernelOperator) -> None:
    scale, xs = torch.full((1,), 2.0), [torch.ones(2), torch.ones(2)]
    grad_scale, grads = torch.func.grad(lambda s, a: total(s, a).sum(), argnums=(0, 1))(scale, xs)
    assert grad_scale.tolist() == [4]
    assert [g.tolist() for g in grads] == [[2, 2], [2, 2]]
    batch = torch.arange(6.0).view(3, 2)
    assert torch.equal(torch.vmap(lambda x: total(scale, [x, x]))(batch), 4 * batch)


@PATHS
def test_a_backward_that_gives_the_wrong_number_of_gradients_is_named(
    define: Define, custom: Any, path: Path
) -> None:
    def wrong(grad: torch.Tensor, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [grad.clone()]

    backward = custom(wrong)
    first = define("first(Tensor x, Tensor[] xs) -> Tensor", outputs=ops.empty_like("x"),
                   checks=ops.kernel_checks())  # fmt: skip
    first.register_backward(backward.qualified_name, save=("xs",), gradients=("xs",))
    text = r"returned 1 gradients for the list 'xs' of .*2"
    with pytest.raises(RuntimeError, match=text):
        path(first)(torch.ones(2), [doubles(2), doubles(2)]).sum().backward()


@pytest.fixture
def masked(define: Define, product: ops.KernelOperator) -> ops.KernelOperator:
    """x * y; the backward computes what is wanted, and a wrong number for the rest."""
    backward = define(
        "masked_backward(Tensor grad, Tensor x, Tensor y, bool[2] output_mask)"
        " -> (Tensor, Tensor)",
        source=kernel(
            "const auto* mask = static_cast<const int64_t*>(LIST(3)->data);"
            "for (int64_t i = 0; i < count(TENSOR(0)); ++i) {"
            "  if (mask[0]) DATA(4)[i] = DATA(0)[i] * DATA(2)[i];"
            "  if (mask[1]) DATA(5)[i] = DATA(0)[i] * DATA(1)[i];"
            "}"
        ),
        outputs=[ops.empty_like("x", when="output_mask[0]"),
                 ops.empty_like("y", when="output_mask[1]")],
        checks=ops.same_shape("grad", "x", "y"),
        dtypes={"T": "x"},
    )  # fmt: skip
    product.register_backward(backward.qualified_name, save=("x", "y"))
    return product


@PATHS
def test_a_mask_says_which_gradients_are_wanted(masked: ops.KernelOperator, path: Path) -> None:
    """None gradients; nothing is allocated or computed for them."""
    call = path(masked)
    assert torch.autograd.gradcheck(call, (doubles(3), doubles(3)))
    x, y = doubles(3), doubles(3)
    call(x, y.detach()).sum().backward()
    assert torch.equal(x.grad, y)
    assert y.grad is None
    (grad,) = torch.autograd.grad(call(x, y).sum(), y)  # of both, one is asked for
    assert torch.equal(grad, x)
    assert torch.equal(torch.func.grad(lambda a: call(x, a).sum())(y), x)


@PATHS
def test_an_undefined_gradient_is_none_where_the_backward_takes_none(
    define: Define, pair: ops.KernelOperator, path: Path
) -> None:
    """`set_materialize_grads(False)` in the words of a schema: `Tensor?` instead of `Tensor`."""
    backward = define(
        "pair_backward(Tensor? grad_a, Tensor? grad_b, Tensor x) -> Tensor",
        source=kernel(
            "for (int64_t i = 0; i < count(TENSOR(2)); ++i)"
            "  DATA(3)[i] = (args[0] ? 2 * DATA(0)[i] : 100) + (args[1] ? 3 * DATA(1)[i] : 1000);"
        ),
        outputs=ops.empty_like("x"),
        checks=ops.kernel_checks(),
        dtypes={"T": "x"},
    )
    pair.register_backward(backward.qualified_name, save=("x",))
    for used, expected in (((0,), 1002), ((1,), 103), ((0, 1), 5)):
        x = doubles(1)
        outputs = path(pair)(x)
        sum(outputs[i] for i in used).sum().backward()
        assert x.grad.item() == expected


@PATHS
def test_outputs_without_a_gradient(define: Define, path: Path) -> None:
    """`mark_non_differentiable`."""
    backward = define("split_backward(Tensor grad_out) -> Tensor",
                      source=each("DATA(1)[i] = 2 * DATA(0)[i];"),
                      outputs=ops.empty_like("grad_out"), dtypes={"T": "grad_out"})  # fmt: skip
    split = define(
        "split(Tensor x) -> (Tensor scratch, Tensor out)",
        source=each("DATA(1)[i] = 7; DATA(2)[i] = 2 * DATA(0)[i];"),
        outputs=[ops.empty_like("x")] * 2,
        dtypes={"T": "x"},
    )
    split.register_backward(backward.qualified_name, non_differentiable=("scratch",))
    x = doubles(2)
    scratch, out = path(split)(x)
    assert (scratch.requires_grad, out.requires_grad) == (False, True)
    out.sum().backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(SchemaError, match="non_differentiable= names 'x', which is no"):
        split.register_backward(backward.qualified_name, non_differentiable=("x",))


@pytest.fixture
def square_(define: Define) -> ops.KernelOperator:
    """x becomes x * x; its backward reads what is left there, its root."""
    backward = define(
        "square_backward(Tensor grad, Tensor x) -> Tensor",
        source=each("DATA(2)[i] = DATA(0)[i] * 2 * __builtin_sqrt(DATA(1)[i]);"),
        outputs=ops.empty_like("x"),
        checks=ops.same_shape("grad", "x"),
        dtypes={"T": "x"},
    )
    operator = define(
        "square_(Tensor(a!) x) -> Tensor(a!)",
        source=each("DATA(0)[i] = DATA(0)[i] * DATA(0)[i];"),
        dtypes={"T": "x"},
    )
    operator.register_backward(backward.qualified_name, save=("x",))
    return operator


@PATHS
def test_an_operator_that_writes_in_place_has_a_gradient(
    square_: ops.KernelOperator, path: Path
) -> None:
    """`mark_dirty`: history rebased, version bumped, the result saved after the write."""
    call = path(square_)

    def through(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        call(y)
        return y * 2

    assert torch.autograd.gradcheck(through, (doubles(3).abs().detach().requires_grad_(),))
    x = doubles(4)
    with torch.no_grad():
        x.abs_()
    y = x * 1
    half = y[:2]
    call(half)  # a view: its base is differentiated too
    y.sum().backward()
    expected = torch.cat([2 * x[:2], torch.ones(2)])
    torch.testing.assert_close(x.grad, expected.detach())
    z = x * 1
    call(z)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_write_with_a_gradient_returns_the_same_object_and_bumps_its_version(
    square_: ops.KernelOperator,
) -> None:
    for x in (torch.ones(2), doubles(2) * 1):
        version = x._version
        assert square_(x) is x
        assert x._version > version


@PATHS
def test_an_out_variant_cuts_the_history_of_what_it_overwrites(define: Define, path: Path) -> None:
    backward = define(
        "into_backward(Tensor grad, Tensor x, Tensor y) -> (Tensor, Tensor)",
        source=each("DATA(3)[i] = DATA(0)[i] * DATA(2)[i]; DATA(4)[i] = DATA(0)[i] * DATA(1)[i];"),
        outputs=[ops.empty_like("x")] * 2,
        checks=ops.same_shape("grad", "x", "y"),
        dtypes={"T": "x"},
    )
    into = define(
        "into(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)",
        source=MUL,
        checks=ops.same_shape("x", "y", "out"),
        dtypes={"T": "x"},
    )
    into.register_backward(backward.qualified_name, save=("x", "y"), gradients=("x", "y"))
    x, y, before = doubles(2), doubles(2), doubles(2)
    out = before * 2
    path(into)(x, y, out=out)
    out.sum().backward()
    assert torch.equal(x.grad, y)
    assert before.grad is None
    out = before * 2
    path(into)(x.detach(), y.detach(), out=out)  # nothing else requires a gradient
    out.sum().backward()
    assert before.grad is None


@PATHS
def test_a_registered_jvp_is_used_beside_a_native_backward(
    mul: ops.KernelOperator, path: Path
) -> None:
    """Forward mode, forward over reverse, and both transforms nested."""
    mul.register_jvp(lambda ctx, dx, dy: _product_rule(ctx, dx, dy))
    call = path(mul)
    x, y, dx = (torch.randn(3, dtype=torch.float64) for _ in range(3))
    value, tangent = torch.func.jvp(lambda a: call(a, y), (x,), (dx,))
    assert torch.equal(value, x * y)
    assert torch.equal(tangent, dx * y)
    with forward_ad.dual_level():
        dual = call(forward_ad.make_dual(x, dx), y)
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, dx * y)
    assert torch.equal(torch.func.jacfwd(lambda a: call(a, y))(x), torch.diag(y))
    assert torch.equal(torch.vmap(torch.func.grad(lambda a: call(a, y).sum()))(x.expand(2, 3)),
                       y.expand(2, 3))  # fmt: skip
    leaf = x.clone().requires_grad_()
    call(leaf, y).sum().backward()  # the native node stays
    assert torch.equal(leaf.grad, y)
    assert call(leaf, y).grad_fn.name() == f"{mul.qualified_name}Backward"
    with forward_ad.dual_level():
        dual = call(forward_ad.make_dual(leaf, dx), y)
        primal, tangent = forward_ad.unpack_dual(dual)
        assert torch.equal(tangent, dx * y)
    assert torch.equal(torch.autograd.grad(primal.sum(), leaf)[0], y)


def _product_rule(ctx: Any, dx: Any, dy: Any) -> Any:
    x, y = ctx.inputs
    parts = [d * other for d, other in ((dx, y), (dy, x)) if d is not None]
    return sum(parts[1:], start=parts[0])


def test_reverse_over_forward_uses_jvp_and_backward(mul: ops.KernelOperator) -> None:
    """d/dx of the directional derivative of x * x along v is 2 v."""
    mul.register_jvp(_product_rule)
    x, v = torch.randn(3), torch.randn(3)

    def directional(a: torch.Tensor) -> torch.Tensor:
        return torch.func.jvp(lambda b: mul(b, b), (a,), (v,))[1].sum()

    torch.testing.assert_close(torch.func.grad(directional)(x), 2 * v)


def test_forward_over_reverse_needs_the_jvp_of_the_backward(mul: ops.KernelOperator) -> None:
    """It raises and names the backward, or is right."""
    mul.register_jvp(_product_rule)
    backward = mul.qualified_name.replace("::mul", "::mul_backward")
    x, v = torch.randn(3), torch.randn(3)

    def directional() -> torch.Tensor:
        return torch.func.jvp(torch.func.grad(lambda a: (a * mul(a, a)).sum()), (x,), (v,))[1]

    with pytest.raises(NotImplementedError, match=f"{backward} has no forward-mode derivative"):
        directional()

    def jvp(ctx: Any, dgrad: Any, dx: Any, dy: Any) -> Any:
        grad, a, b = ctx.inputs
        dgrad = torch.zeros_like(grad) if dgrad is None else dgrad
        return dgrad * b + grad * dy, dgrad * a + grad * dx

    ops.register_jvp(backward, jvp)
    torch.testing.assert_close(directional(), 6 * x * v)


def test_a_jvp_of_an_operator_that_writes_is_refused(square_: ops.KernelOperator) -> None:
    with pytest.raises(SchemaError, match="square_ writes its argument 'x'; only an operator that"):
        square_.register_jvp(lambda ctx, dx: dx)


@PATHS
def test_batches_run_without_a_rule_and_without_a_warning(
    mul: ops.KernelOperator, path: Path
) -> None:
    """One call a sample unless declared otherwise; torch.library warns."""
    x, y = torch.randn(4, 3), torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = torch.vmap(path(mul), in_dims=(0, 1))(x, y)
        assert torch.equal(got, x * y.t())
        assert torch.equal(torch.vmap(path(mul), in_dims=(0, None))(x, x[0]), x * x[0])


def test_a_pointwise_kernel_runs_once_for_a_batch(define: Define) -> None:
    """A generated rule."""
    ranks = define(
        "ranks(Tensor x, Tensor y) -> Tensor",
        source=each("DATA(2)[i] = DATA(0)[i] * 10 + TENSOR(0)->ndim;"),
        outputs=ops.empty_like("x"),
        checks=ELEMENTWISE,
        dtypes={"T": "x"},
    )
    ranks.register_vmap("pointwise")
    x = torch.ones(4, 3)
    assert torch.vmap(ranks)(x, x).unique().tolist() == [12]  # two dimensions: one call
    assert torch.vmap(ranks, in_dims=(0, None))(x, x[0]).unique().tolist() == [12]
    ranks.register_vmap("loop")
    assert torch.vmap(ranks)(x, x).unique().tolist() == [11]


@PATHS
def test_writing_one_tensor_for_every_sample_is_refused(define: Define, path: Path) -> None:
    add_ = define("add_(Tensor(a!) x, Tensor y) -> ()", source=each("DATA(0)[i] += DATA(1)[i];"),
                  checks=ops.same_shape("x", "y"), dtypes={"T": "x"})  # fmt: skip
    batch, one = torch.ones(4, 3), torch.zeros(3)
    torch.vmap(path(add_), in_dims=(0, None), out_dims=None)(batch, one + 1)
    assert batch.unique().tolist() == [2]
    for rule in ("loop", "pointwise"):
        add_.register_vmap(rule)
        with pytest.raises(RuntimeError, match="add_ writes its argument 'x', which has no batch"):
            torch.vmap(path(add_), in_dims=(None, 0), out_dims=None)(one, batch)
    assert one.tolist() == [0, 0, 0]


VERBS = [
    "register_kernel",
    "register_fake",
    "register_autograd",
    "register_jvp",
    "register_vmap",
    "register_autocast",
    "register_effect",
    "register_sharding",
]


def test_every_operator_has_every_method(mul: ops.KernelOperator, custom: Any) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    for operator in (mul, custom(twice)):
        for method in VERBS:
            assert callable(getattr(operator, method))


def test_methods_replace_what_is_native_and_reach_the_fast_path(mul: ops.KernelOperator) -> None:
    x = torch.full((2,), 3.0)
    mul.register_kernel("cpu", lambda a, b: a * b + 1)
    assert mul(x, x).tolist() == mul.overload(x, x).tolist() == [10, 10]
    mul.register_autocast("cpu", torch.bfloat16)
    with torch.autocast("cpu"):
        assert mul(x, x).dtype == torch.bfloat16

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 42, None

    mul.register_autograd(backward, setup_context=setup)
    for call in (mul, mul.overload):
        leaf = x.clone().requires_grad_()
        call(leaf, x).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.tolist() == [42, 42]


def test_a_backward_operator_replaces_a_python_backward(
    define: Define, mul: ops.KernelOperator
) -> None:
    """The last registration counts, also with a jvp between them."""
    x = torch.full((2,), 3.0)

    def gradient() -> list[float]:
        leaf = x.clone().requires_grad_()
        mul(leaf, x).sum().backward()
        assert leaf.grad is not None
        got: list[float] = leaf.grad.tolist()
        return got

    backward = mul.qualified_name.replace("::mul", "::mul_backward")
    mul.register_jvp(_product_rule)
    mul.register_autograd(lambda ctx, grad: (grad * 5, None))
    assert gradient() == [5, 5]
    mul.register_backward(backward, save=("x", "y"))
    assert gradient() == [3, 3]
    assert torch.func.jvp(lambda a: mul(a, a), (x,), (x,))[1].tolist() == [18, 18]
    mul.register_autograd(lambda ctx, grad: (grad * 6, None))
    assert gradient() == [6, 6]


def test_functions_by_name_find_the_methods_of_the_callable(mul: ops.KernelOperator) -> None:
    ops.register_vmap(mul.qualified_name, "pointwise")
    ops.register_jvp(mul, _product_rule)
    x = torch.ones(2)
    assert torch.func.jvp(lambda a: mul(a, a), (x,), (x,))[1].tolist() == [2, 2]
    mul.undefine()


def test_gradients_of_lists_and_masks_on_the_device() -> None:
    """In a process of its own: torch's autograd engine counts the devices at its first backward."""
    script = """
        import torch
        from tests.unit.ops.support import each
        from tests.unit.ops.kernel.test_backward_operator import SUM, SUM_BACKWARD
        from bringup import devices, ops
        devices.load_driver("sim")
        common = {"kind": "device", "checks": ops.kernel_checks()}
        ops.kernel_op("t::total_backward(Tensor grad, Tensor scale, Tensor[] xs)"
                      " -> (Tensor, Tensor[])", source=SUM_BACKWARD, dtypes={"T": "grad"},
                      outputs=(ops.empty_like("scale"), ops.empty_like("xs")), **common)
        total = ops.kernel_op("t::total(Tensor scale, Tensor[] xs) -> Tensor", source=SUM,
                              outputs=ops.empty(2), dtypes={"T": "scale"}, **common)
        total.register_backward("t::total_backward", save=("scale", "xs"))
        for call in (total, total.overload):
            scale = torch.full((1,), 3.0, device="npu", requires_grad=True)
            xs = [torch.ones(2, device="npu", requires_grad=True) for _ in range(2)]
            call(scale, xs).sum().backward()
            assert scale.grad.item() == 4
            assert [x.grad.tolist() for x in xs] == [[3, 3], [3, 3]]
    """
    output_of(textwrap.dedent(script))


MISMATCHES = [
    ("b(Tensor grad, Tensor[] xs) -> Tensor[]", {}, r"which is not in save="),
    ("b(Tensor grad) -> Tensor", {"gradients": ("xs",)}, r"for 'xs' a Tensor\[\]; got Tensor"),
    ("b(int grad, Tensor x) -> Tensor", {}, r"must be the gradients of the results"),
    ("b(Tensor grad, bool output_mask) -> Tensor", {}, r"nor bool\[\] output_mask"),
]


@pytest.mark.parametrize(("schema", "options", "text"), MISMATCHES)
def test_backward_operators_that_do_not_fit_are_refused(
    define: Define, schema: str, options: dict[str, Any], text: str
) -> None:
    like = "xs" if schema.endswith("[]") else "grad" if "Tensor grad" in schema else "x"
    backward = define(schema, outputs=ops.empty_like(like), checks=ops.kernel_checks())
    forward = define("f(Tensor x, Tensor[] xs) -> Tensor", outputs=ops.empty_like("x"),
                     checks=ops.kernel_checks())  # fmt: skip
    with pytest.raises(SchemaError, match=text):
        forward.register_backward(backward.qualified_name, **options)


def test_list_outputs_and_written_lists_have_no_backward(define: Define) -> None:
    backward = define("b(Tensor grad) -> Tensor", outputs=ops.empty_like("grad"))
    lists = define("f(Tensor x, Tensor[] xs) -> Tensor[]", outputs=ops.empty_like("xs"),
                   checks=ops.kernel_checks())  # fmt: skip
    with pytest.raises(SchemaError, match="the operator returns a list of tensors"):
        lists.register_backward(backward.qualified_name)
    writes = define("g(Tensor x, Tensor(a!)[] xs) -> ()", checks=ops.kernel_checks())
    with pytest.raises(SchemaError, match="writes its argument 'xs', which is a list or may be"):
        writes.register_backward(backward.qualified_name)
    for call in (lists, lists.overload):
        (result,) = call(torch.ones(1), [doubles(1)])
        with pytest.raises(NotImplementedError, match="f has no backward"):
            result.sum().backward()
