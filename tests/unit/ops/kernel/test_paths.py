"""The fast path does what the dispatcher does: same results, same visibility, same errors."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import ops


class DispatchLog(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class FunctionLog(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "dispatch mode": DispatchLog,
    "function mode": FunctionLog,
    "saved hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "deterministic": lambda: (
        torch.utils.deterministic.fill_uninitialized_memory and contextlib.nullcontext()
    ),
}


def observed(call: Callable[..., Any], args: tuple[torch.Tensor, ...], mode: str) -> object:
    """Everything about a call that a user could see."""
    try:
        with MODES[mode]():
            result = call(*args)
    except Exception as error:
        return type(error), str(error)
    gradients = []
    if result.requires_grad:
        inputs = [a for a in args if a.requires_grad]
        grads = torch.autograd.grad(result, inputs, torch.ones_like(result))
        gradients = [g.tolist() for g in grads]
    facts = (result.dtype, result.stride(), result.requires_grad, result.is_inference())
    return facts, result.tolist(), gradients


def views(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    count = max(1, torch.Size(shape).numel())
    base = torch.arange(4 * count).to(dtype)
    flat = base[: torch.Size(shape).numel()].reshape(shape)
    return [flat, base[::2][: flat.numel()].reshape(shape), flat.clone().t() if flat.dim() == 2
            else flat, torch.ones((), dtype=dtype).expand(shape)]  # fmt: skip


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    mode=st.sampled_from(sorted(MODES)),
    shapes=st.tuples(*[st.sampled_from([(), (0,), (3,), (5,), (2, 2), (2, 0)])] * 2),
    same=st.booleans(),
    dtypes=st.tuples(*[st.sampled_from([torch.float32, torch.float64, torch.int64])] * 2),
    layouts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    grads=st.tuples(st.booleans(), st.booleans()),
)
def test_fast_and_slow_path_agree(
    mul: ops.KernelOperator,
    mode: str,
    shapes: tuple[tuple[int, ...], ...],
    same: bool,
    dtypes: tuple[torch.dtype, ...],
    layouts: tuple[int, ...],
    grads: tuple[bool, ...],
) -> None:
    if same:
        shapes, dtypes = (shapes[0],) * 2, (dtypes[0],) * 2
    args = tuple(
        views(shape, dtype)[layout].detach().requires_grad_(grad and dtype.is_floating_point)
        for shape, dtype, layout, grad in zip(shapes, dtypes, layouts, grads, strict=True)
    )
    assert observed(mul, args, mode) == observed(mul.overload, args, mode)


def test_modes_see_the_call(add: ops.KernelOperator) -> None:
    x = torch.ones(2)
    with DispatchLog() as dispatched:
        add(x, x)
    assert dispatched.seen == [str(add.overload)]
    with FunctionLog() as functions:
        add(x, x)
    assert functions.seen == [str(add.overload)]
    with torch.profiler.profile() as profile:
        add(x, x)
    assert add.qualified_name in [event.name for event in profile.events()]


def test_fake_tensors_and_tracing_see_the_operator(add: ops.KernelOperator) -> None:
    x = torch.ones(2)
    with FakeTensorMode() as mode:
        assert isinstance(add(mode.from_tensor(x), mode.from_tensor(x)), FakeTensor)
    traced = make_fx(lambda a, b: add(a, b))(x, x)
    assert add.overload in [node.target for node in traced.graph.nodes]
    symbolic = torch.fx.symbolic_trace(lambda a, b: add(a, b))
    assert torch.equal(symbolic(x, x), x + x)


def test_subclasses_and_parameters_are_taken_as_torch_takes_them(add: ops.KernelOperator) -> None:
    class Tagged(torch.Tensor):
        pass

    x = torch.ones(2)
    assert isinstance(add(x.as_subclass(Tagged), x), Tagged)
    with torch.no_grad():
        assert type(add(torch.nn.Parameter(x), x)) is torch.Tensor


@contextlib.contextmanager
def overridden(
    operator: ops.KernelOperator, key: str, function: Callable[..., Any]
) -> Iterator[None]:
    namespace, _, name = operator.qualified_name.partition("::")
    with torch.library._scoped_library(namespace, "IMPL") as library:
        library.impl(name, function, key, allow_override=True)
        yield


@pytest.mark.parametrize("key", ["CPU", "AutogradCPU", "AutocastCPU"])
def test_an_override_is_noticed_and_its_end_too(add: ops.KernelOperator, key: str) -> None:
    x = torch.ones(2)
    with overridden(add, key, lambda a, b: a * 42), torch.autocast("cpu", dtype=torch.bfloat16):
        assert add(x, x).tolist() == add.overload(x, x).tolist() == [42, 42]
    assert add(x, x).tolist() == [2, 2]


def test_an_override_of_the_kernel_keeps_the_gradient(mul: ops.KernelOperator) -> None:
    x = torch.ones(2, requires_grad=True)
    with overridden(mul, "CPU", lambda a, b: a * 42):
        result = mul(x, torch.full((2,), 3.0))
    result.sum().backward()
    assert result.tolist() == [42, 42]
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_callables_are_told_apart_and_copied_by_reference(
    add: ops.KernelOperator, mul: ops.KernelOperator
) -> None:
    assert add == add
    assert add != mul
    assert len({add, mul, add}) == 2
    assert copy.deepcopy({"op": add})["op"] is add
