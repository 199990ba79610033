"""torch.compile takes kernel operators whole: eager and compiled agree, forward and backward."""

from __future__ import annotations

import textwrap

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import ADD, ADD_INPLACE, kernel
from torch._dynamo.testing import CompileCounter

from bringup import ops

BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", "inductor"])


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@BACKENDS
def test_forward_and_backward_are_those_of_eager(mul: ops.KernelOperator, backend: str) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mul(x.t(), y=y) * 3 + mul(y, y)

    results = []
    for call in (model, torch.compile(model, fullgraph=True, backend=backend)):
        torch.manual_seed(0)
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        result = call(x, y)
        result.square().sum().backward()
        results.append((result.detach(), x.grad, y.grad))
    torch.testing.assert_close(results[0], results[1])


@BACKENDS
def test_writing_operators_compile(define: Define, backend: str) -> None:
    add_ = define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)", source=ADD_INPLACE,
                  checks=ops.same_shape("x", "y"), dtypes={"T": "x"})  # fmt: skip
    add_out = define("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)", source=ADD,
                     checks=ops.same_shape("x", "y", "out"), dtypes={"T": "x"})  # fmt: skip

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        add_(z, y)
        return add_out(z, y, out=torch.empty_like(z)) + z

    x, y = torch.randn(4), torch.randn(4)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x, y), model(x, y))


def test_a_new_length_does_not_recompile(define: Define) -> None:
    lengths = define(
        "lengths(Tensor x, int n, int[] lengths) -> Tensor",
        source=kernel(
            "DATA(3)[0] = INT(1); for (int64_t i = 0; i < LIST(2)->size; ++i)"
            " DATA(3)[0] += static_cast<const int64_t*>(LIST(2)->data)[i];"
        ),
        outputs=ops.empty(1, dtype=torch.int64),
        macros={"T": "int64_t"},
    )
    counter = CompileCounter()
    compiled = torch.compile(
        lambda x, n, m: lengths(x, n, [m, 2 * m]), fullgraph=True, backend=counter
    )
    for n in range(3, 12):
        assert compiled(torch.ones(1), n, n + 50).item() == n + 3 * (n + 50)
    assert counter.frame_count <= 2


def test_opcheck_passes(mul: ops.KernelOperator, add: ops.KernelOperator) -> None:
    x, y = torch.randn(3), torch.randn(3)
    torch.library.opcheck(mul.overload, (x.clone().requires_grad_(), y.clone().requires_grad_()))
    torch.library.opcheck(add.overload, (x, y))


def test_opcheck_passes_for_writing_operators(define: Define) -> None:
    add_ = define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)", source=ADD_INPLACE,
                  checks=ops.same_shape("x", "y"), dtypes={"T": "x"})  # fmt: skip
    add_into = define("add_into(Tensor x, Tensor y, Tensor(a!) out) -> ()", source=ADD,
                      checks=ops.same_shape("x", "y", "out"), dtypes={"T": "x"})  # fmt: skip
    torch.library.opcheck(add_.overload, (torch.ones(3), torch.ones(3)))
    torch.library.opcheck(add_into.overload, (torch.ones(3), torch.ones(3), torch.empty(3)))


def test_a_broken_contract_is_an_error_at_compile_time(add: ops.KernelOperator) -> None:
    compiled = torch.compile(lambda x, y: add(x, y), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="x and y must have the same shape"):
        compiled(torch.ones(5), torch.ones(3))


def test_defining_an_operator_does_not_import_dynamo() -> None:
    script = """
        import sys
        from bringup import jit, ops
        source = jit.Source(text='extern "C" int run(void**, int, const void*) { return 0; }')
        op = ops.kernel_op("late::op(Tensor x) -> Tensor", source=source, outputs=ops.empty(2))
        assert "torch._dynamo" not in sys.modules, "defining an operator imported Dynamo"
        import torch
        traced = torch.compile(lambda x: op(x), fullgraph=True, backend="eager")(torch.ones(1))
        assert traced.shape == (2,)
    """
    output_of(textwrap.dedent(script))
