"""Handles on operators that somebody else has registered: what they add, refuse and leave."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import graphs, ops
from bringup.errors import ExpiredHandleError, SchemaError

_numbers = itertools.count()


class Vendor:
    """A library of somebody else's in Python, with one operator that has a CPU kernel only."""

    def __init__(self) -> None:
        self.namespace = f"bringup_test_vendor_{next(_numbers)}"
        self.library = torch.library.Library(self.namespace, "DEF")
        self.library.define("scale(Tensor x, float by=2.0, *, int n=1) -> Tensor")
        self.library.impl("scale", self.scale, "CPU")
        self.name = f"{self.namespace}::scale"
        self.operator = getattr(torch.ops, self.namespace).scale

    @staticmethod
    def scale(x: Tensor, by: float = 2.0, *, n: int = 1) -> Tensor:
        return x.detach() * by * n


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    vendor = Vendor()
    yield vendor
    vendor.library._destroy()


def fake(x: Tensor, by: float = 2.0, *, n: int = 1) -> Tensor:
    return torch.empty_like(x)


def set_up(ctx: Any, inputs: Any, keywords: Any, output: Any) -> None:
    ctx.factor = inputs[1] * keywords["n"]


def backward(ctx: Any, grad: Tensor) -> Any:
    return grad * ctx.factor, None, None


def has(vendor: Vendor, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(vendor.name, key))


def test_a_handle_is_the_operator(vendor: Vendor) -> None:
    """For an operator of somebody else's."""
    scale = ops.adopt(vendor.name)
    x = torch.arange(3.0)
    assert scale(x).tolist() == [0, 2, 4]
    assert scale(x, 3.0, n=2).tolist() == [0, 6, 12]
    assert scale(x, by=0.5).tolist() == [0, 0.5, 1]
    assert (scale.qualified_name, scale.overload) == (vendor.name, vendor.operator.default)
    assert scale.schema.startswith(vendor.name)
    assert ops.adopt(vendor.operator) is ops.adopt(vendor.operator.default) is scale
    for wrong in ((), (x, "text"), (x, 1.0, 2)):
        with pytest.raises(RuntimeError, match=f"{vendor.namespace}::scale"):
            scale(*wrong)


def test_a_fake_and_a_gradient_can_be_added(vendor: Vendor) -> None:
    scale = ops.adopt(vendor.name)
    scale.register_fake(fake)
    scale.register_autograd(backward, setup_context=set_up)
    assert scale(torch.ones(2, 3, device="meta")).shape == (2, 3)
    x = torch.ones(3, requires_grad=True)
    for call in (scale, vendor.operator, torch.compile(scale, fullgraph=True, backend="aot_eager")):
        (grad,) = torch.autograd.grad(call(x, 3.0, n=2).sum(), x)
        assert grad.tolist() == [6, 6, 6]
    assert torch.func.grad(lambda x: scale(x).sum())(x).tolist() == [2, 2, 2]


def test_its_own_registrations_can_be_replaced(vendor: Vendor) -> None:
    scale = ops.adopt(vendor.name)
    scale.register_fake(lambda x, by=2.0, *, n=1: x.new_empty(1))
    scale.register_fake(fake)
    assert scale(torch.ones(2, device="meta")).shape == (2,)
    scale.register_autograd(lambda ctx, grad: (grad, None, None))
    scale.register_autograd(backward, setup_context=set_up)
    x = torch.ones(1, requires_grad=True)
    assert torch.autograd.grad(scale(x), x)[0].item() == 2


VERBS: dict[str, tuple[str, Any]] = {
    "a kernel": ("CPU", lambda h, **o: h.register_kernel("cpu", Vendor.scale, **o)),
    "a fake": ("Meta", lambda h, **o: h.register_fake(fake, **o)),
    "a gradient": (
        "AutogradCPU",
        lambda h, **o: h.register_autograd(backward, setup_context=set_up, **o),
    ),
    "a batching rule": ("FuncTorchBatched", lambda h, **o: h.register_vmap("pointwise", **o)),
    "an autocast rule": (
        "AutocastCPU",
        lambda h, **o: h.register_autocast("cpu", torch.bfloat16, **o),
    ),
}


@pytest.mark.parametrize("what", VERBS)
def test_what_an_operator_has_is_taken_only_when_asked(vendor: Vendor, what: str) -> None:
    """Nobody's registration is replaced silently; afterwards it is back."""
    key, register = VERBS[what]
    calls: list[str] = []

    def theirs(*args: Any, **kwargs: Any) -> Tensor:
        calls.append("theirs")
        return args[0]

    if key != "CPU":
        vendor.library.impl("scale", theirs, key)
    scale = ops.adopt(vendor.name)
    book = set(torch.library._impls)
    with pytest.raises(SchemaError, match=rf"has {what} already \(at {key}\); override=True takes"):
        register(scale)
    register(scale, override=True)
    register(scale)  # what the handle has registered itself
    x = torch.ones(2, device="meta" if key == "Meta" else "cpu", requires_grad=key[0] == "A")
    with torch.autocast("cpu", torch.bfloat16, enabled=key == "AutocastCPU"):
        result = scale(x)
    assert result.dtype == (torch.bfloat16 if key == "AutocastCPU" else torch.float32)
    assert not calls
    if what == "a gradient":
        assert torch.autograd.grad(result.sum(), x)[0].tolist() == [2, 2]
    scale.undefine()
    assert has(vendor, key)
    assert set(torch.library._impls) >= book
    if key in {"Meta", "AutogradCPU"}:
        vendor.operator(x)
        assert calls == ["theirs"]


def test_what_is_made_of_operators_with_gradients_needs_none(vendor: Vendor) -> None:
    """Pitfall: a CompositeImplicitAutograd kernel comes before any at Autograd."""
    vendor.library.define("twice(Tensor x) -> Tensor")
    vendor.library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    twice = ops.adopt(f"{vendor.namespace}::twice")
    for register in (
        lambda **o: twice.register_fake(torch.empty_like, **o),
        lambda **o: twice.register_autograd(lambda ctx, grad: grad * 5, **o),
    ):
        with pytest.raises(SchemaError, match="it is made of operators that have one"):
            register()
    twice.register_autograd(lambda ctx, grad: grad * 5, override=True)
    x = torch.ones(1, requires_grad=True)
    assert torch.autograd.grad(twice(x), x)[0].item() == 5
    twice.undefine()
    twice_again = getattr(torch.ops, vendor.namespace).twice
    assert torch.autograd.grad(twice_again(x), x)[0].item() == 2


def test_a_torch_custom_op_without_fake_and_gradient_can_get_them(vendor: Vendor) -> None:
    """torch registers both for every custom_op; what only raises is nobody's work."""

    @torch.library.custom_op(f"{vendor.namespace}::bare", mutates_args=())
    def bare(x: Tensor) -> Tensor:
        return x.clone()

    handle = ops.adopt(f"{vendor.namespace}::bare")
    handle.register_fake(torch.empty_like)
    handle.register_autograd(lambda ctx, grad: grad * 3)
    assert handle(torch.ones(2, device="meta")).shape == (2,)
    x = torch.ones(2, requires_grad=True)
    assert torch.autograd.grad(bare(x).sum(), x)[0].tolist() == [3, 3]

    @torch.library.custom_op(f"{vendor.namespace}::full", mutates_args=())
    def full(x: Tensor) -> Tensor:
        return x.clone()

    full.register_fake(torch.empty_like)
    full.register_autograd(lambda ctx, grad: grad)
    with pytest.raises(SchemaError, match="has a fake already"):
        ops.adopt(f"{vendor.namespace}::full").register_fake(torch.empty_like)
    with pytest.raises(SchemaError, match="has a gradient already"):
        ops.adopt(f"{vendor.namespace}::full").register_autograd(lambda ctx, grad: grad)


def test_another_operator_is_its_backward(vendor: Vendor) -> None:
    vendor.library.define("square(Tensor x, float by, Tensor? y=None) -> Tensor out")
    vendor.library.define("square_backward(Tensor grad, Tensor x, float by, Tensor out) -> Tensor")
    vendor.library.impl("square", lambda x, by, y=None: torch.from_numpy(x.numpy() ** 2 * by),
                        "CPU")  # fmt: skip
    vendor.library.impl(
        "square_backward", lambda grad, x, by, out: grad * 2 * x * by + 0 * out, "CPU"
    )
    square = ops.adopt(f"{vendor.namespace}::square")
    square.register_kernel(
        "cpu",
        lambda x, by, y=None: torch.from_numpy(x.detach().numpy() ** 2 * by),
        override=True,
    )
    with pytest.raises(SchemaError, match="it reads the tensor 'x', which is not in save="):
        square.register_backward(f"{vendor.namespace}::square_backward", gradients=["x"])
    square.register_backward(
        f"{vendor.namespace}::square_backward", save=("x", "out"), gradients=["x"]
    )
    x = torch.tensor([3.0], requires_grad=True)
    assert torch.autograd.grad(square(x, 2.0), x)[0].item() == 12


def test_dropping_the_handle_leaves_the_operator_as_it_was(vendor: Vendor) -> None:
    """All or nothing: a handle that is gone has left no trace."""
    before = torch._C._dispatch_dump(vendor.name)
    scale: Any = ops.adopt(vendor.name)
    scale.register_fake(fake)
    scale.register_autograd(backward, setup_context=set_up)
    scale.register_vmap("pointwise")
    scale.register_autocast("cpu", torch.bfloat16)
    assert torch._C._dispatch_dump(vendor.name) != before
    del scale
    gc.collect()
    assert torch._C._dispatch_dump(vendor.name) == before
    with pytest.raises(NotImplementedError):
        vendor.operator(torch.ones(1, device="meta"))


def test_a_handle_that_was_given_back_raises(vendor: Vendor) -> None:
    scale = ops.adopt(vendor.name)
    scale.register_fake(fake)
    scale.undefine()
    scale.undefine()
    for use in (lambda: scale(torch.ones(1)), lambda: scale.register_fake(fake)):
        with pytest.raises(ExpiredHandleError, match=f"handle on {vendor.name} was given back"):
            use()
    assert ops.adopt(vendor.name) is not scale
    assert vendor.operator(torch.ones(1)).item() == 2


UNKNOWN: list[tuple[Any, str]] = [
    ("{0}::scal", "did you mean '{0}::scale'?"),
    ("{0}::other", "{0} has {0}::scale"),
    ("bringup_test_nowhere::f", "nothing is registered in 'bringup_test_nowhere'"),
    ("aten::add", "its overloads are aten::add.Scalar, aten::add.Scalar_out, aten::add.Tensor"),
    ("scale", "expected 'namespace::name'"),
    (3, "expected 'namespace::name' or an operator of torch.ops, got int"),
]


@pytest.mark.parametrize(("name", "words"), UNKNOWN)
def test_an_unknown_operator_names_what_is_near(vendor: Vendor, name: Any, words: str) -> None:
    given = name.format(vendor.namespace) if isinstance(name, str) else name
    with pytest.raises(SchemaError) as failure:
        ops.adopt(given)
    assert words.format(vendor.namespace) in str(failure.value)


def test_bringups_own_operators_have_the_methods_already(mul: ops.KernelOperator) -> None:
    with pytest.raises(SchemaError, match="is an operator of bringup; its callable has these"):
        ops.adopt(mul.qualified_name)


def test_what_watches_calls_sees_those_of_a_handle(vendor: Vendor) -> None:
    """Modes, subclasses and overrides."""
    scale = ops.adopt(vendor.name)
    seen: list[Any] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any, kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Overriding:
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any) -> str:
            return "overridden"

    for mode in (Functions(), Dispatches()):
        seen.clear()
        with mode:
            scale(torch.ones(1))
        assert vendor.operator.default in seen
    assert scale(Overriding()) == "overridden"
    with torch.profiler.profile() as profile:
        scale(torch.ones(1))
    assert vendor.name in {event.key for event in profile.key_averages()}


def test_a_captured_graph_updates_its_arguments_by_the_schemas_names(vendor: Vendor) -> None:
    scale = ops.adopt(vendor.name)
    scale.register_fake(fake)
    x = torch.arange(3.0)
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        result = scale(x) + 1
    assert list(graph.slots) == ["scale.0.x", "scale.0.by", "scale.0.n"]
    graph.update({"scale.0.by": 10.0, "scale.0.n": 2})
    graph.replay()
    assert result.tolist() == [1, 21, 41]


def test_a_c_plus_plus_operator_is_adopted_too() -> None:
    """What is in torch.ops, whoever put it there."""
    add = ops.adopt("aten::add.Tensor")
    x = torch.ones(2)
    assert add(x, x, alpha=3).tolist() == [4, 4]
    with pytest.raises(SchemaError, match=r"aten::add\.Tensor has a gradient already"):
        add.register_autograd(lambda ctx, grad: (grad, grad, None))
    with pytest.raises(SchemaError, match=r"aten::add\.Tensor has a fake already"):
        add.register_fake(torch.empty_like)


def removed(vendor: Vendor) -> list[torch.library.Library]:
    """Takes the vendor's operator away, and puts others where torch had kept it."""
    vendor.library._destroy()
    others = [torch.library.Library(f"{vendor.namespace}_{i}", "DEF") for i in range(20)]
    for other in others:
        other.define("other(Tensor x, int n) -> Tensor")
    return others


def test_call_of_an_operator_that_was_removed_says_so_and_runs_no_other(vendor: Vendor) -> None:
    """torch frees the operator's entry; a handle that is left leads to whatever came there."""
    scale = ops.adopt(vendor.name)
    others = removed(vendor)
    with pytest.raises(ExpiredHandleError, match=r"::scale was removed by its definer"):
        scale(torch.ones(2))
    with pytest.raises(SchemaError, match="there is no such operator; nothing is registered in"):
        ops.adopt(vendor.name)
    for other in others:
        other._destroy()


def test_operator_that_was_defined_again_is_called_as_it_is_now(vendor: Vendor) -> None:
    ops.adopt(vendor.name)
    vendor.library._destroy()
    vendor.library = torch.library.Library(vendor.namespace, "DEF")
    vendor.library.define("scale(Tensor x) -> Tensor")
    vendor.library.impl("scale", lambda x: x * 9, "CPU")
    assert ops.adopt(vendor.name)(torch.ones(1)).tolist() == [9]


def test_replay_after_the_operator_was_removed_raises_and_names_it(vendor: Vendor) -> None:
    """The node has a handle: without its entry a replay was a crash."""
    x = torch.ones(2)
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        vendor.operator(x)
    others = removed(vendor)
    with pytest.raises(NotImplementedError, match=rf"{vendor.name}"):
        graph.replay()
    for other in others:
        other._destroy()
