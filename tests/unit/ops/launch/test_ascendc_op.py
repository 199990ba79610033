"""`ascendc_op`: an operator over launched kernels. Includes
the cases of mindtorch_v2's test_custom_kernel.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bringup import devices, ops
from bringup.errors import SchemaError

ADD_CUSTOM = Path(__file__).parents[4] / "examples/ascendc/add_custom.cpp"

_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture(scope="module")
def kernels() -> ops.KernelLauncher:
    return ops.ascendc_load("adder", ADD_CUSTOM)


@pytest.fixture
def define() -> Iterator[Callable[..., Any]]:
    """`define(function, **options)`: `ascendc_op` under a name of its own."""
    defined: list[Any] = []

    def apply(function: Callable[..., Any], **options: Any) -> Any:
        name = f"bringup_test_ascendc_{next(_numbers)}::f"
        defined.append(ops.ascendc_op(name, **options)(function))
        return defined[-1]

    yield apply
    for operator in defined:
        operator.undefine()


@pytest.fixture
def add(define: Callable[..., Any], kernels: ops.KernelLauncher) -> Any:
    def vector_add(x: Tensor, y: Tensor) -> Tensor:
        z = ops.alloc_like(x)
        args = [ops.tensor_ptr(t) for t in (x.contiguous(), y.contiguous(), z)]
        kernels.launch("add_custom", block_dim=8, args=[*args, ops.u32(x.numel())])
        return z

    operator = define(vector_add)
    operator.register_autograd(lambda ctx, grad: (grad, grad))
    return operator


def halves(*shape: int, **options: Any) -> Tensor:
    return torch.randn(*shape, device="npu").half().requires_grad_(options.get("grad", False))


def test_it_is_registered_for_the_npu_alone(add: Any) -> None:
    name = add.qualified_name
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    with pytest.raises(NotImplementedError, match="CPU"):
        add(torch.zeros(1024).half(), torch.zeros(1024).half())


def test_one_tensor_returned_gives_a_fake(add: Any) -> None:
    """Contiguous, whatever the input's strides."""
    x = torch.empty(3, 4, dtype=torch.half, device="meta").t()
    got = add(x, x)
    assert got.is_meta
    assert got.shape == (4, 3)
    assert got.dtype is torch.half
    assert got.is_contiguous()


def test_it_returns_what_custom_op_returns(add: Any, define: Callable[..., Any]) -> None:
    """It keeps the function's name."""
    assert type(add) is type(ops.custom_op(f"bringup_test_ascendc_{next(_numbers)}::g", plain))
    assert add.__name__ == "vector_add"


def plain(x: Tensor) -> Tensor:
    return x.clone()


def test_function_that_returns_no_tensor_gets_no_fake(define: Callable[..., Any]) -> None:
    def count(x: Tensor) -> int:
        return x.numel()

    operator = define(count)
    assert operator(torch.zeros(3, device="npu")) == 3
    with pytest.raises(RuntimeError, match="no fake"):
        operator(torch.zeros(3, device="meta"))


def test_function_that_returns_two_tensors_gets_no_fake(define: Callable[..., Any]) -> None:
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.clone(), x.clone()

    with pytest.raises(RuntimeError, match="no fake"):
        define(twice)(torch.zeros(3, device="meta"))


def test_function_without_a_tensor_argument_gets_no_fake(define: Callable[..., Any]) -> None:
    def ones(n: int, device: torch.device) -> Tensor:
        return torch.ones(n, device=device)

    operator = define(ones)
    assert operator(2, torch.device("npu")).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="no fake"):
        operator(2, torch.device("meta"))


def test_first_tensor_may_stand_behind_numbers_and_be_given_by_name(
    define: Callable[..., Any],
) -> None:
    def scale(factor: float, x: Tensor) -> Tensor:
        return x * factor

    meta = torch.empty(2, device="meta")
    assert define(scale)(2.0, x=meta).shape == (2,)


def test_own_fake_takes_the_place_of_the_automatic_one(add: Any) -> None:
    seen: list[Tensor] = []

    @add.register_fake  # type: ignore[untyped-decorator, unused-ignore]
    def fake(x: Tensor, y: Tensor) -> Tensor:
        seen.append(x)
        return x.new_empty(7)

    meta = torch.empty(2, device="meta")
    assert add(meta, meta).shape == (7,)
    assert len(seen) == 1


@pytest.mark.parametrize("shape", [(1024,), (8, 1024), (2, 2, 2048)])
def test_forward_adds_and_backward_gives_ones(add: Any, shape: tuple[int, ...]) -> None:
    """mindtorch_v2's custom_add example: half, 1024 and 8192 elements."""
    x, y = halves(*shape, grad=True), halves(*shape, grad=True)
    z = add(x, y)
    torch.testing.assert_close(z.cpu(), x.detach().cpu() + y.detach().cpu(), atol=1e-3, rtol=0)
    z.sum().backward()
    for leaf in (x, y):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad.cpu(), torch.ones(shape).half())


def test_strided_inputs_and_empty_ones_work(add: Any) -> None:
    x, y = halves(32, 64).t(), halves(64, 32)
    assert torch.equal(add(x, y).cpu(), x.cpu() + y.cpu())
    assert add(halves(0), halves(0)).shape == (0,)


def test_it_is_a_node_of_a_compiled_graph(add: Any) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x, y: add(x, y) * 2, backend=backend, fullgraph=True)
    x, y = halves(1024), halves(1024)
    assert torch.equal(compiled(x, y).cpu(), (x.cpu() + y.cpu()) * 2)
    targets = [node.target for node in graphs[0].graph.nodes]
    packet = add.overload.overloadpacket
    assert add.overload in targets or packet in targets


def test_other_devices_may_be_added(define: Callable[..., Any]) -> None:
    both = define(plain, device_types=("npu", "cpu"))
    assert both(torch.ones(2)).tolist() == [1, 1]
    assert both(torch.ones(2, device="npu")).tolist() == [1, 1]
    add_later = define(plain)
    add_later.register_kernel("cpu")(lambda x: x + 1)
    assert add_later(torch.ones(2)).tolist() == [2, 2]


def test_written_argument_has_its_version_bumped(define: Callable[..., Any]) -> None:
    def fill(x: Tensor) -> None:
        x.fill_(3)

    operator = define(fill, mutates_args=("x",))
    x = torch.zeros(2, device="npu")
    before = x._version
    operator(x)
    assert x.tolist() == [3, 3]
    assert x._version > before


def test_name_that_is_taken_names_the_place_of_the_definition(define: Callable[..., Any]) -> None:
    operator = define(plain)
    with pytest.raises(SchemaError, match=r"is defined already, at .*test_ascendc_op.py:\d+"):
        ops.ascendc_op(operator.qualified_name)(lambda x: x.clone())


def test_wrong_definition_is_refused() -> None:
    with pytest.raises(SchemaError, match="'vector_add' is not an operator name"):
        ops.ascendc_op("vector_add")(plain)
