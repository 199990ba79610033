"""`torch.autograd.Function` in both styles, on cpu and on the device. Includes
the eleven cases of mindtorch_v2's test_autograd_function.py; the rest is what a device adds.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.autograd_function_db import autograd_function_db

Function = torch.autograd.Function


class Square(Function):
    """The older style: one forward that gets the context."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        assert grad.device == x.device
        return 2 * x * grad


class SetUpSquare(Function):
    """The newer style: forward without a context, and setup_context."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
STYLES = pytest.mark.parametrize("square", [Square, SetUpSquare])


def leaf(device: str, *values: float) -> torch.Tensor:
    return torch.tensor(values or [3.0], device=device, requires_grad=True)


@DEVICES
@STYLES
def test_backward_gives_the_function_s_gradient(device: str, square: type[Function]) -> None:
    """Old style, new style."""
    x = leaf(device, 3.0, -2.0)
    y = square.apply(x)
    assert y.grad_fn is not None
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.device == x.device
    assert x.grad.tolist() == [6, -4]


@DEVICES
@STYLES
def test_no_grad_records_nothing(device: str, square: type[Function]) -> None:
    x = leaf(device)
    with torch.no_grad():
        y = square.apply(x)
    assert y.grad_fn is None
    assert not y.requires_grad
    assert square.apply(x.detach()).grad_fn is None


@DEVICES
def test_output_marked_non_differentiable_needs_no_gradient(device: str) -> None:
    class Sort(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, order = x.sort()
            ctx.mark_non_differentiable(order)
            ctx.save_for_backward(order)
            return values, order

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            (order,) = ctx.saved_tensors
            return torch.zeros_like(grad).scatter(0, order, grad)

    x = leaf(device, 3.0, 1.0, 2.0)
    values, order = Sort.apply(x)
    assert values.requires_grad
    assert not order.requires_grad
    (values * torch.arange(3.0, device=device)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 0, 1]


@DEVICES
def test_needs_input_grad_says_which_inputs_need_one(device: str) -> None:
    asked: list[tuple[bool, ...]] = []

    class Multiply(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            asked.append(ctx.needs_input_grad)
            x, y = ctx.saved_tensors
            first, second = ctx.needs_input_grad
            return grad * y if first else None, grad * x if second else None

    x, y = leaf(device), leaf(device, 5.0)
    Multiply.apply(x, y.detach()).backward()
    Multiply.apply(x.detach(), y).backward()
    assert asked == [(True, False), (False, True)]
    assert x.grad is not None
    assert x.grad.tolist() == [5]
    assert y.grad is not None
    assert y.grad.tolist() == [3]


@DEVICES
@STYLES
def test_saved_tensor_that_was_written_is_noticed(device: str, square: type[Function]) -> None:
    x = leaf(device)
    inner = x + 0
    y = square.apply(inner)
    with torch.no_grad():
        inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@DEVICES
@STYLES
def test_second_backward_through_a_freed_graph_raises(device: str, square: type[Function]) -> None:
    y = square.apply(leaf(device))
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


@DEVICES
@STYLES
def test_retain_graph_allows_a_second_backward(device: str, square: type[Function]) -> None:
    x = leaf(device)
    y = square.apply(x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 12


@DEVICES
@STYLES
def test_gradients_of_several_uses_add_up(device: str, square: type[Function]) -> None:
    x = leaf(device)
    (square.apply(x) + square.apply(x) + 3 * x).backward()
    assert x.grad is not None
    assert x.grad.item() == 15


@DEVICES
def test_functions_chain(device: str) -> None:
    """Both styles in one graph."""
    x = leaf(device)
    SetUpSquare.apply(Square.apply(x)).backward()
    assert x.grad is not None
    assert x.grad.item() == 4 * 3**3


@DEVICES
@STYLES
def test_autograd_grad_gives_the_gradient_and_leaves_the_leaf(
    device: str, square: type[Function]
) -> None:
    x = leaf(device)
    (gradient,) = torch.autograd.grad(square.apply(x), x)
    assert gradient.item() == 6
    assert x.grad is None


@DEVICES
@STYLES
def test_gradient_of_the_gradient_is_right(device: str, square: type[Function]) -> None:
    x = leaf(device)
    (first,) = torch.autograd.grad(square.apply(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert second.item() == 2


@DEVICES
def test_once_differentiable_backward_refuses_a_second_derivative(device: str) -> None:
    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x, weight = leaf(device), leaf(device, 1.0)
    (first,) = torch.autograd.grad(Once.apply(x), x, weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.backward()


@DEVICES
@pytest.mark.parametrize("materialize", [True, False])
def test_missing_gradients_are_zeros_or_none_as_asked(device: str, materialize: bool) -> None:
    seen: list[Any] = []

    class Two(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.set_materialize_grads(materialize)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, first: Any, second: Any) -> Any:
            seen.append(second)
            return 2 * first + (0 if second is None else 3 * second)

    x = leaf(device)
    Two.apply(x)[0].backward()
    assert x.grad is not None
    assert x.grad.item() == 2
    if materialize:
        assert seen[0].device == x.device
        assert seen[0].tolist() == [0]
    else:
        assert seen == [None]


@DEVICES
def test_input_marked_dirty_is_the_result(device: str) -> None:
    class Double(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return 2 * grad

    x = leaf(device)
    inner = x + 0
    version = inner._version
    assert Double.apply(inner) is inner
    assert inner._version > version
    inner.backward()
    assert x.grad is not None
    assert x.grad.item() == 2
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        Double.apply(x)


@DEVICES
def test_returning_the_input_itself_gives_an_alias(device: str) -> None:
    """The openreg row "custom autograd function returns self"."""

    class Same(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 0.5

    x = leaf(device)
    y = Same.apply(x)
    assert y is not x
    assert y.data_ptr() == x.data_ptr()
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 0.5


@DEVICES
def test_returning_a_view_of_the_input_keeps_the_alias(device: str) -> None:
    """The openreg row "custom autograd function aliasing"."""

    class View(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 0.5

    x = leaf(device)
    y = View.apply(x)
    assert y.data_ptr() == x.data_ptr()
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 0.5


@DEVICES
def test_error_in_backward_reaches_the_caller(device: str) -> None:
    class Fails(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ValueError("no gradient today")

    with pytest.raises(ValueError, match="no gradient today"):
        Fails.apply(leaf(device)).backward()


@DEVICES
def test_gradient_of_another_shape_is_refused(device: str) -> None:
    class Wrong(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return torch.zeros(7, device=grad.device)

    with pytest.raises(RuntimeError, match=r"invalid gradient at index 0 - got \[7\]"):
        Wrong.apply(leaf(device, 1.0, 2.0)).sum().backward()


def test_copies_between_cpu_and_device_bring_the_gradient_back() -> None:
    x = leaf("cpu", 3.0, 4.0)
    Square.apply(x.to("npu")).cpu().sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [6, 8]


def test_backward_runs_on_the_device_s_autograd_thread_and_current_stream() -> None:
    seen: list[tuple[str, torch.Stream]] = []

    class Look(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append((threading.current_thread().name, torch.accelerator.current_stream()))
            return grad * 2

    stream = torch.Stream("npu")
    x = leaf("npu")
    with stream:
        y = Look.apply(x)
    y.backward()
    torch.npu.synchronize()
    ((name, used),) = seen
    assert name != threading.main_thread().name
    assert used == stream
    assert x.grad is not None
    assert x.grad.item() == 2


@DEVICES
@STYLES
def test_gradcheck_agrees(device: str, square: type[Function]) -> None:
    x = torch.randn(4, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(square.apply, (x,))
    assert torch.autograd.gradgradcheck(square.apply, (x,))


@DEVICES
def test_saved_tensor_hooks_see_what_is_saved(device: str) -> None:
    packed: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        packed.append(x)
        return x.cpu()

    x = leaf(device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.to(device)):
        y = Square.apply(x)
    y.backward()
    assert len(packed) >= 1
    assert x.grad is not None
    assert x.grad.item() == 6


@DEVICES
def test_torch_func_differentiates_the_newer_style(device: str) -> None:
    x = torch.tensor(3.0, device=device)
    assert torch.func.grad(SetUpSquare.apply)(x).item() == 6
    assert torch.func.jacrev(SetUpSquare.apply)(torch.ones(2, device=device)).tolist() == [
        [2, 0],
        [0, 2],
    ]


@DEVICES
def test_forward_mode_uses_the_function_s_jvp(device: str) -> None:
    class Cube(Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * tangent

    x = torch.tensor(2.0, device=device)
    _, tangent = torch.func.jvp(Cube.apply, (x,), (torch.ones_like(x),))
    assert tangent.item() == 12


@DEVICES
def test_custom_forward_and_backward_choose_the_precision(device: str) -> None:
    class Precise(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x = torch.tensor([3.0], device=device, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = Precise.apply(x)
    assert y.dtype is torch.float32
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 6


@DEVICES
@STYLES
def test_compiled_gradient_is_the_eager_one(device: str, square: type[Function]) -> None:
    """The openreg row "custom autograd function, eager against aot_eager"."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return (square.apply(x) * 2 + 1).sum()

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    x, twin = leaf(device, 3.0, -1.0), leaf(device, 3.0, -1.0)
    value = compiled(x)
    value.backward()
    model(twin).backward()
    assert value.item() == model(twin).item()
    assert x.grad is not None
    assert twin.grad is not None
    assert torch.equal(x.grad, twin.grad)


def gradients(entry: Any, sample: Any) -> list[torch.Tensor]:
    """Outputs and gradients of an entry of torch's own list for one of its samples."""
    tensors = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    leaves = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = entry.op(sample.input, *sample.args, **sample.kwargs)
    results = [t for t in torch.utils._pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
    roots = [t for t in results if t.requires_grad]
    if not roots:
        return results
    grads = torch.autograd.grad(
        roots, leaves, [torch.ones_like(t) for t in roots], allow_unused=True
    )
    return [*results, *(torch.zeros(()) if g is None else g for g in grads)]


# It writes into the result of x.cpu().numpy(), which is x itself only where x is on the cpu.
ONLY_ON_CPU = {"NumpyExpMarkDirtyAutogradFunction"}


@pytest.mark.parametrize(
    "entry",
    [entry for entry in autograd_function_db if entry.name not in ONLY_ON_CPU],
    ids=lambda entry: entry.name,
)
def test_functions_of_torch_s_own_list_agree_with_cpu(entry: Any) -> None:
    """autograd_function_db: NumPy bodies, several outputs, generated vmap rules."""
    to: Callable[[Any], Any] = lambda value: (  # noqa: E731 - SampleInput.transform takes one
        value.detach().to("npu").requires_grad_(value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
    )
    samples = list(entry.sample_inputs("cpu", torch.float32, requires_grad=True))
    assert samples
    for sample in samples:
        expected = gradients(entry, sample)
        got = gradients(entry, sample.transform(to))
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other)


EXITS_AT_ONCE = """
import sys, threading, torch
from bringup import devices
devices.load_driver("sim")
def work():
    x = torch.ones(512, device="npu", requires_grad=True)
    (x * 2).sum().backward()
if sys.argv[1] == "thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""


def test_process_that_ends_right_behind_a_backward_ends_well() -> None:
    """Autograd's thread may still hold what torch keeps for each backward: an abort, two of three
    times, unless somebody waits for it.
    """
    processes = [
        subprocess.Popen([sys.executable, "-c", EXITS_AT_ONCE, where], stderr=subprocess.PIPE)
        for where in ("main", "main", "main", "thread")
    ]
    ended = [(process.communicate()[1].decode(), process.returncode) for process in processes]
    assert ended == [("", 0)] * 4
