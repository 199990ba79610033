"""The callable of `ops.custom_op` is its operator: the same under every mode and override.

The shortcut of the callable is only a shortcut; each test compares it with `torch.ops`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.forked_python import output_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import ops

Custom = Callable[..., ops.CustomOperator]
PATHS = pytest.mark.parametrize("path", ["callable", "torch.ops"])


def by(path: str, operator: ops.CustomOperator) -> Callable[..., Any]:
    return operator if path == "callable" else operator.overload


def multiply(x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
    return torch.from_numpy(np.asarray(x.detach().numpy() * y.detach().numpy() * factor))


def setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.factor = inputs[2]


def backward(ctx: Any, grad: Tensor) -> Any:
    x, y = ctx.saved_tensors
    return grad * y * ctx.factor, grad * x * ctx.factor, None


@pytest.fixture
def product(custom: Custom) -> ops.CustomOperator:
    operator = custom(multiply)
    operator.register_fake(
        lambda x, y, factor=1.0: x.new_empty(torch.broadcast_shapes(x.shape, y.shape))
    )
    operator.register_autograd(backward, setup_context=setup)
    operator.register_vmap("pointwise")
    return operator


# ---------------------------------------------------------------- modes, overrides, threads


@PATHS
def test_a_dispatch_mode_sees_the_operator(product: ops.CustomOperator, path: str) -> None:
    seen: list[Any] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    with Record():
        by(path, product)(x, x.detach())
        by(path, product)(x.detach(), x.detach())
    assert seen.count(product.overload) == 2


@PATHS
def test_a_function_mode_sees_the_operator(product: ops.CustomOperator, path: str) -> None:
    seen: list[Any] = []

    class Record(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append((func, torch._C._dispatch_tls_local_exclude_set()))
            return func(*args, **(kwargs or {}))

    before = torch._C._dispatch_tls_local_exclude_set()
    x = torch.ones(2)
    with Record():
        by(path, product)(x, x)
    assert [(f, e == before) for f, e in seen if f is product.overload] == [
        (product.overload, True)
    ]


@PATHS
def test_a_subclass_that_overrides_functions_gets_the_call(
    product: ops.CustomOperator, path: str
) -> None:
    class Named(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return "overridden"

    x = torch.ones(2).as_subclass(Named)
    assert by(path, product)(torch.ones(2), x) == "overridden"


@PATHS
def test_fake_tensors_run_the_fake(product: ops.CustomOperator, path: str) -> None:
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.ones(3, 1, requires_grad=True))
        y = by(path, product)(x, torch.empty(2))
    assert y.shape == (3, 2)
    assert y.requires_grad


@PATHS
def test_the_profiler_sees_the_operator(product: ops.CustomOperator, path: str) -> None:
    x = torch.ones(2)
    with torch.profiler.profile() as profile:
        by(path, product)(x, x)
    assert product.qualified_name in {event.name for event in profile.events()}


KEYS = ["CPU", "AutogradCPU", "Autograd", "AutocastCPU"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_kernel_that_somebody_else_puts_there_is_respected(
    product: ops.CustomOperator, key: str, requires_grad: bool
) -> None:
    x = torch.ones(2, requires_grad=requires_grad)
    with torch.library._scoped_library("bringup_test_custom", "IMPL") as other:
        name = product.qualified_name.partition("::")[2]
        other.impl(name, lambda x, y, factor=1.0: torch.full((1,), 42.0), key)
        with torch.autocast("cpu", enabled=key == "AutocastCPU"):
            assert product(x, x).item() == product.overload(x, x).item() == 42
    assert product(x, x).tolist() == [1, 1]


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes_give_what_the_operator_gives(product: ops.CustomOperator, guard: Any) -> None:
    x = torch.ones(2, requires_grad=True)
    with guard():
        found, expected = product(x, x), product.overload(x, x)
    assert (found.requires_grad, found.is_inference()) == (
        expected.requires_grad,
        expected.is_inference(),
    )


def test_below_autograd_nothing_is_recorded(product: ops.CustomOperator) -> None:
    x = torch.ones(2, requires_grad=True)
    with torch._C._AutoDispatchBelowAutograd():
        assert product(x, x).requires_grad == product.overload(x, x).requires_grad == False  # noqa: E712


def test_an_operator_inside_another_is_not_recorded(
    custom: Custom, product: ops.CustomOperator
) -> None:
    seen: list[bool] = []

    def outer(x: Tensor) -> Tensor:
        y = product(x, x)
        seen.append(y.requires_grad)
        return y + 1

    operator = custom(outer)
    operator(torch.ones(2, requires_grad=True))
    assert seen == [False]


def test_two_threads_call_and_register_at_once(product: ops.CustomOperator) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def call() -> None:
        try:
            for _ in range(200):
                x = torch.full((2,), 3.0, requires_grad=True)
                product(x, x.detach()).sum().backward()
                assert x.grad is not None
                assert x.grad.tolist() == [3, 3]
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=call)
    thread.start()
    while not done.is_set():
        product.register_kernel("cpu", multiply)
        product.register_autograd(backward, setup_context=setup)
    thread.join()
    assert failures == []


def test_the_state_of_the_importing_thread_does_not_matter() -> None:
    program = (
        "import torch\n"
        "with torch.autocast('cpu'), torch.inference_mode():\n"
        "    from bringup import ops\n"
        "@ops.custom_op('importing::f')\n"
        "def f(x: torch.Tensor) -> torch.Tensor: return x * 2\n"
        "f.register_autocast('cpu', torch.bfloat16)\n"
        "f.register_autograd(lambda ctx, g: g * 2)\n"
        "x = torch.ones(1, requires_grad=True)\n"
        "with torch.autocast('cpu'): print(f(x).dtype)\n"
        "print(f(x).dtype)\n"
    )
    assert output_of(program).split() == ["torch.bfloat16", "torch.float32"]


@PATHS
@pytest.mark.parametrize(
    "x",
    [
        torch.empty(0),
        torch.randn(3, 4).t(),
        torch.randn(6)[2:],
        torch.randn(1).expand(4),
        torch.randn(()),
        torch.arange(3),
    ],
    ids=["empty", "strided", "offset", "expanded", "scalar", "integer"],
)
def test_any_input_is_taken_as_it_is(product: ops.CustomOperator, path: str, x: Tensor) -> None:
    assert torch.equal(by(path, product)(x, x), x * x)


@PATHS
@pytest.mark.parametrize(
    "arguments", [(1, torch.ones(1)), (torch.ones(1),), (torch.ones(1), torch.ones(1), "a")]
)
def test_arguments_that_do_not_fit_raise_what_torch_raises(
    product: ops.CustomOperator, path: str, arguments: Any
) -> None:
    with pytest.raises(RuntimeError, match=rf"{product.qualified_name}\(\)"):
        by(path, product)(*arguments)


# ---------------------------------------------------------------- torch.compile, export, opcheck


@PATHS
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_operator_compiles_into_one_graph_with_gradients(
    product: ops.CustomOperator, path: str, backend: str
) -> None:
    call = by(path, product)
    compiled = torch.compile(
        lambda x, y: call(x + 1, y, factor=2.0) * 3, fullgraph=True, backend=backend
    )
    x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    result = compiled(x, y)
    expected = (x + 1) * y * 6
    assert torch.allclose(result, expected)
    for found, wanted in zip(
        torch.autograd.grad(result.sum(), (x, y)),
        torch.autograd.grad(expected.sum(), (x, y)),
        strict=True,
    ):
        assert torch.allclose(found, wanted)


def test_a_graph_holds_the_operator(product: ops.CustomOperator) -> None:
    targets: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        targets.extend(node.target for node in module.graph.nodes if node.op == "call_function")
        return module

    torch.compile(lambda x: product(x, x), fullgraph=True, backend=backend)(torch.ones(2))
    assert targets == [product.overload]


def test_export_keeps_the_operator(product: ops.CustomOperator) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return product(x, x)  # type: ignore[no-any-return]

    program = torch.export.export(Model(), (torch.ones(2),))
    assert product.overload in {node.target for node in program.graph.nodes}
    assert program.module()(torch.full((2,), 3.0)).tolist() == [9, 9]


def test_a_new_size_does_not_compile_again(product: ops.CustomOperator) -> None:
    compiles: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        compiles.append(1)
        return module

    compiled = torch.compile(lambda x: product(x, x), fullgraph=True, backend=backend, dynamic=True)
    for size in (3, 4, 5):
        assert compiled(torch.ones(size)).shape == (size,)
    assert len(compiles) == 1


def test_an_output_may_have_a_size_that_depends_on_data(custom: Custom) -> None:
    operator = custom(lambda x: x[x > 0].clone())
    operator.register_fake(lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()))
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x: operator(x) * 2, fullgraph=True, backend="aot_eager")
        assert compiled(torch.tensor([1.0, -1.0, 3.0])).tolist() == [2, 6]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_an_operator_that_writes_is_functionalized(custom: Custom, backend: str) -> None:
    def fill(x: Tensor, value: float) -> None:
        x.numpy().fill(value)

    operator = custom(fill, mutates_args=("x",))

    def run(x: Tensor) -> Tensor:
        y = x + 1
        operator(y, 5.0)
        operator(x, 7.0)
        return y * 2

    x = torch.zeros(3)
    assert torch.compile(run, fullgraph=True, backend=backend)(x).tolist() == [10, 10, 10]
    assert x.tolist() == [7, 7, 7]


def test_a_return_that_may_be_none_compiles(custom: Custom) -> None:
    def maybe(x: Tensor, present: bool) -> tuple[Tensor, Tensor | None]:
        return x + 1, x * 2 if present else None

    operator = custom(maybe)
    operator.register_fake(
        lambda x, present: (torch.empty_like(x), torch.empty_like(x) if present else None)
    )

    def run(x: Tensor, present: bool) -> Any:
        first, second = operator(x, present)
        return first if second is None else first + second

    for backend in ("aot_eager", "inductor"):
        compiled = torch.compile(run, fullgraph=True, backend=backend)
        assert compiled(torch.ones(2), False).tolist() == [2, 2]
        assert compiled(torch.ones(2), True).tolist() == [4, 4]


def test_compiled_autograd_runs_the_backward(product: ops.CustomOperator) -> None:
    x = torch.full((2,), 3.0, requires_grad=True)
    with torch._dynamo.compiled_autograd._enable(lambda module: module):
        product(x, x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6]


def test_opcheck_is_green(product: ops.CustomOperator, custom: Custom) -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    torch.library.opcheck(product.overload, (x, y, 2.0))
    torch.library.opcheck(product.overload, (x.detach(), y.detach()))

    def listed(xs: list[Tensor], *, weight: Tensor) -> tuple[Tensor, list[Tensor]]:
        return sum(xs) * weight, [x * weight for x in xs]  # type: ignore[return-value]

    operator = custom(listed)
    operator.register_fake(
        lambda xs, *, weight: (torch.empty_like(weight), [torch.empty_like(x) for x in xs])
    )

    def save(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.save_for_backward(keyword_only_inputs["weight"], *inputs[0])

    def gradients(ctx: Any, total: Tensor, parts: list[Tensor]) -> Any:
        weight, *xs = ctx.saved_tensors
        pairs = list(zip(xs, parts, strict=True))
        return [(total + part) * weight for _, part in pairs], sum(
            (total + part) * x for x, part in pairs
        )

    operator.register_autograd(gradients, setup_context=save)
    torch.library.opcheck(operator.overload, ([x, y],), {"weight": x})


def test_every_check_of_the_operator_passes(product: ops.CustomOperator) -> None:
    # numpy has no bfloat16, and takes no tensor of a device that another test may have loaded.
    product.register_kernel(["cpu", "npu"], lambda x, y, factor=1.0: x * y * factor)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    report = ops.check(product, [(x, y), (x, y, 3.0)])
    assert report.failures == ()
