"""Calls of adopted operators: the native call does what the overload does, or calls it."""

from __future__ import annotations

import functools
import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from bringup import ops
from bringup.errors import ExpiredHandleError

_numbers = itertools.count()
Make = Callable[[str], tuple[Sequence[Any], Mapping[str, Any]]]


def tensor(device: str, *shape: int) -> Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape).to(device)


def integers(device: str, *values: int) -> Tensor:
    return torch.tensor(values).to(device)


CALLS: dict[str, tuple[str, Make]] = {
    "two tensors": ("aten::add.Tensor", lambda d: ((tensor(d, 2, 3), tensor(d, 3)), {})),
    "a keyword": ("aten::add.Tensor", lambda d: ((tensor(d, 3), tensor(d, 3)), {"alpha": 2})),
    "a real": ("aten::add.Tensor", lambda d: ((tensor(d, 3), tensor(d, 3)), {"alpha": 0.5})),
    "keywords only": ("aten::mul.Tensor", lambda d: ((), {"other": tensor(d, 3),
                                                           "self": tensor(d, 3)})),
    "a list of tensors": ("aten::cat", lambda d: (([tensor(d, 2, 3), tensor(d, 1, 3)],), {})),
    "a tuple of tensors": ("aten::cat", lambda d: (((tensor(d, 3, 2), tensor(d, 3, 1)), 1), {})),
    "several views": ("aten::split.Tensor", lambda d: ((tensor(d, 6), 4), {"dim": 0})),
    "two outputs": ("aten::topk", lambda d: ((tensor(d, 5), 2), {"sorted": True})),
    "a maximum": ("aten::max.dim", lambda d: ((tensor(d, 5, 2), 1, False), {})),
    "indices": ("aten::embedding", lambda d: ((tensor(d, 4, 3), integers(d, 0, 3), -1), {})),
    "optional tensors": ("aten::layer_norm", lambda d: ((tensor(d, 2, 3), [3]),
                                                         {"weight": tensor(d, 3)})),
    "no optional tensors": ("aten::layer_norm", lambda d: ((tensor(d, 2, 3), (3,), None, None,
                                                            1e-3), {})),
    "three outputs": ("aten::native_layer_norm", lambda d: ((tensor(d, 2, 3), [3], None, None,
                                                             1e-5), {})),
    "an optional list": ("aten::index.Tensor", lambda d: ((tensor(d, 4, 3),
                                                           [None, integers(d, 2, 0)]), {})),
    "in place": ("aten::add_.Tensor", lambda d: ((tensor(d, 3), tensor(d, 3)), {})),
    "an out argument": ("aten::add.out", lambda d: ((tensor(d, 3), tensor(d, 3)),
                                                    {"out": torch.empty(3, device=d)})),
    "None": ("aten::clamp", lambda d: ((tensor(d, 3), None, 0.5), {})),
    "a default": ("aten::clamp", lambda d: ((tensor(d, 3),), {"max": 0})),
    "dimensions": ("aten::sum.dim_IntList", lambda d: ((tensor(d, 2, 3), [0, -1], True), {})),
    "a dtype": ("aten::sum.dim_IntList", lambda d: ((tensor(d, 2, 3), (0,)),
                                                    {"dtype": torch.float64})),
    "a view": ("aten::view", lambda d: ((tensor(d, 2, 3), torch.Size([3, 2])), {})),
    "a transposed view": ("aten::transpose.int", lambda d: ((tensor(d, 2, 3), 0, 1), {})),
    "device and layout": ("aten::empty_like", lambda d: ((tensor(d, 2, 3),), {
        "dtype": torch.int32, "layout": torch.strided, "device": torch.device(d),
        "memory_format": torch.contiguous_format})),
    "a factory": ("aten::full", lambda d: (([2, 3], 0.5), {"device": torch.device(d),
                                                           "dtype": torch.float32})),
    "text": ("aten::gelu", lambda d: ((tensor(d, 3),), {"approximate": "tanh"})),
    "text by default": ("aten::gelu", lambda d: ((tensor(d, 3),), {})),
    "reals": ("aten::upsample_nearest1d.vec", lambda d: ((tensor(d, 1, 1, 4), None, [2.0]), {})),
    "bools": ("aten::convolution_backward", lambda d: ((
        tensor(d, 1, 1, 3), tensor(d, 1, 1, 3), tensor(d, 1, 1, 1), None, [1], [0], [1], False, [0],
        1, [True, False, False]), {})),
    "a number is returned": ("aten::is_same_size", lambda d: ((tensor(d, 3), tensor(d, 3)), {})),
}  # fmt: skip
WRITES = {"in place", "an out argument"}
WITHOUT_VALUES = {"device and layout"}

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "fake": lambda: FakeTensorMode(allow_non_fake_inputs=True),
}


def outcome(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a call gives or raises."""
    try:
        return call(*args, **kwargs)
    except Exception as error:
        # torch may add the Python stack, which has the line of this call
        return type(error), str(error).partition("\n\nAt:\n")[0]


def facts(value: Any, values: bool) -> Any:
    """All that can be told of a result."""
    if isinstance(value, (list, tuple)):
        return type(value), [facts(item, values) for item in value]
    if not isinstance(value, Tensor):
        return value
    readable = values and value.device.type != "meta" and type(value) is Tensor
    return (
        type(value),
        value.dtype,
        value.device,
        value.shape,
        value.stride(),
        value.requires_grad,
        value.is_inference(),
        value._is_view() if not value.is_inference() else None,
        value._version if not value.is_inference() else None,
        type(value.grad_fn).__name__,
        value.detach().cpu().tolist() if readable else None,
    )


def places(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """Which arguments are the result itself."""
    return [i for i, value in enumerate([*args, *kwargs.values()]) if value is result]


class Refused:
    """Stands for the overload where the native call must not need it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the overload was called")


@pytest.fixture
def handle() -> Iterator[Callable[[str], Any]]:
    """`handle(name)`: adopts an operator until the test ends."""
    held: list[Any] = []

    def adopt(name: str) -> Any:
        held.append(ops.adopt(name))
        return held[-1]

    yield adopt
    for each in held:
        each.undefine()


@pytest.fixture
def vendor() -> Iterator[torch.library.Library]:
    library = torch.library.Library(f"bringup_test_adopted_{next(_numbers)}", "DEF")
    yield library
    library._destroy()


@pytest.mark.parametrize("what", CALLS)
def test_a_call_with_the_schemas_types_never_calls_the_overload(
    what: str, handle: Callable[[str], Any]
) -> None:
    name, make = CALLS[what]
    operator = handle(name)
    overload, operator.overload = operator.overload, Refused()
    args, kwargs = make("cpu")
    result = operator(*args, **kwargs)
    again, keywords = make("cpu")
    expected = overload(*again, **keywords)
    known = what not in WITHOUT_VALUES
    assert facts(result, known) == facts(expected, known)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["cpu", "meta", "npu"])
@pytest.mark.parametrize("what", CALLS)
def test_a_call_does_what_the_overload_does(
    what: str, device: str, mode: str, handle: Callable[[str], Any], simulator: Any
) -> None:
    """Results, aliases, versions, gradients and errors are the same everywhere."""
    name, make = CALLS[what]
    operator = handle(name)
    seen = []
    for call in (operator, operator.overload):
        with MODES[mode]():
            args, kwargs = make(device)
            for value in args if mode == "plain" and what not in WRITES else ():
                if isinstance(value, Tensor) and value.is_floating_point():
                    value.requires_grad_()
            result = outcome(call, args, kwargs)
            known = what not in WITHOUT_VALUES and mode != "fake"
            seen.append((facts(result, known), places(result, args, kwargs)))
    assert seen[0] == seen[1]
    if what in WRITES and mode == "plain":
        assert seen[0][1]


WRONG: dict[str, Make] = {
    "nothing": lambda d: ((), {}),
    "too few": lambda d: ((tensor(d, 3),), {}),
    "too many": lambda d: ((tensor(d, 3), tensor(d, 3), 1, 2), {}),
    "an unknown keyword": lambda d: ((tensor(d, 3), tensor(d, 3)), {"beta": 2}),
    "given twice": lambda d: ((tensor(d, 3), tensor(d, 3)), {"other": tensor(d, 3)}),
    "text for a number": lambda d: ((tensor(d, 3), tensor(d, 3)), {"alpha": "2"}),
    "None for a tensor": lambda d: ((tensor(d, 3), None), {}),
    "a list for a tensor": lambda d: ((tensor(d, 3), [1.0]), {}),
    "shapes": lambda d: ((tensor(d, 3), tensor(d, 4)), {}),
    "a huge number": lambda d: ((tensor(d, 3), tensor(d, 3)), {"alpha": 1 << 70}),
    "a real for integers": lambda d: ((integers(d, 3), integers(d, 3)), {"alpha": 0.5}),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_as_the_overload_says_it(
    what: str, handle: Callable[[str], Any]
) -> None:
    operator = handle("aten::add.Tensor")
    ours = outcome(operator, *WRONG[what]("cpu"))
    theirs = outcome(operator.overload, *WRONG[what]("cpu"))
    assert ours == theirs
    assert issubclass(ours[0], Exception)


class Subclass(Tensor):
    """Overrides nothing but its type."""


UNUSUAL: dict[str, tuple[str, Make]] = {
    "a number for a tensor": ("aten::add.Tensor", lambda d: ((tensor(d, 3), 2.0), {})),
    "a bool for a number": ("aten::mul.Scalar", lambda d: ((tensor(d, 3), True), {})),
    "a subclass": ("aten::mul.Tensor", lambda d: ((tensor(d, 3).as_subclass(Subclass),
                                                   tensor(d, 3)), {})),
    "a number for a list": ("aten::sum.dim_IntList", lambda d: ((tensor(d, 2, 3), 1), {})),
    "a range": ("aten::sum.dim_IntList", lambda d: ((tensor(d, 2, 3), range(2)), {})),
    "a device's name": ("aten::empty_like", lambda d: ((tensor(d, 3),), {"device": "meta"})),
    "a complex number": ("aten::mul.Scalar", lambda d: ((tensor(d, 3), 2j), {})),
    "a Parameter": ("aten::mul.Tensor", lambda d: ((torch.nn.Parameter(tensor(d, 3)),
                                                    tensor(d, 3)), {})),
    "a generator": ("aten::uniform", lambda d: ((tensor(d, 3),), {
        "generator": torch.Generator().manual_seed(3)})),
    "a number is returned": ("aten::_local_scalar_dense", lambda d: ((tensor(d, 1),), {})),
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSUAL)
def test_other_types_go_the_overloads_way(what: str, handle: Callable[[str], Any]) -> None:
    name, make = UNUSUAL[what]
    operator = handle(name)
    ours = outcome(operator, *make("cpu"))
    theirs = outcome(operator.overload, *make("cpu"))
    assert facts(ours, True) == facts(theirs, True)
    assert not (isinstance(ours, tuple) and isinstance(ours[0], type))


def test_gradients_transforms_and_views(handle: Callable[[str], Any]) -> None:
    mul, transpose = handle("aten::mul.Tensor"), handle("aten::transpose.int")
    x = tensor("cpu", 2, 3).clone().requires_grad_()
    (grad,) = torch.autograd.grad(mul(x, x).sum(), x)
    torch.testing.assert_close(grad, 2 * x)
    torch.testing.assert_close(torch.func.grad(lambda x: mul(x, x).sum())(x.detach()), 2 * x)
    torch.testing.assert_close(torch.vmap(mul)(x, x), x * x)
    assert transpose(x, 0, 1)._base is x
    _, tangent = torch.func.jvp(lambda x: mul(x, x), (x.detach(),), (torch.ones(2, 3),))
    torch.testing.assert_close(tangent, 2 * x.detach())
    traced = torch.jit.trace(lambda x: mul(x, x), x.detach())
    assert "aten::mul" in str(traced.graph)


def test_many_threads_call_one_handle_while_it_is_given_back(
    handle: Callable[[str], Any],
) -> None:
    add, x = handle("aten::add.Tensor"), torch.ones(4)
    started = threading.Barrier(4)

    def call(_: int) -> str:
        started.wait()
        for _ in range(100_000):
            try:
                assert add(x, x)[0] == 2
            except ExpiredHandleError as error:
                return str(error)
        return "never given back"

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, i) for i in range(3)]
        started.wait()
        add.undefine()
        assert all("was given back by undefine()" in each.result() for each in calls)


def test_dynamo_traces_the_overload(handle: Callable[[str], Any]) -> None:
    add = handle("aten::add.Tensor")

    def twice(x: Tensor) -> Tensor:
        return add(add(x, x), x, alpha=2)

    x = torch.ones(3)
    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), twice(x))


def test_a_python_kernels_error_and_results_come_through(
    vendor: torch.library.Library, handle: Callable[[str], Any]
) -> None:
    """Nothing, an int, a float, a bool, text and optional values; a Python exception as it is."""
    kernels: dict[str, tuple[str, Callable[..., Any]]] = {
        "nothing": ("(Tensor x) -> ()", lambda x: None),
        "number": ("(Tensor x, int n, bool b=False) -> int", lambda x, n, b=False: n + b),
        "real": ("(Tensor x, float f=0.5) -> float", lambda x, f=0.5: 2 * f),
        "truth": ("(Tensor x) -> bool", lambda x: bool(x.sum() > 0)),
        "text": ("(Tensor x, str s) -> str", lambda x, s: s * 2),
        "maybe": ("(Tensor x, Tensor? y=None) -> Tensor?", lambda x, y=None: y),
        "mixed": ("(Tensor x) -> (Tensor, int, Tensor[])", lambda x: (x + 1, 3, [x * 2, x * 3])),
        "sizes": ("(Tensor x) -> int[]", lambda x: list(x.shape)),
    }
    x = torch.ones(2)
    arguments: dict[str, tuple[Any, ...]] = {"number": (x, 4, True), "text": (x, "ab\0ü")}
    for name, (signature, kernel) in kernels.items():
        vendor.define(name + signature)
        vendor.impl(name, kernel, "CPU")
        operator = handle(f"{vendor.ns}::{name}")
        given_here = arguments.get(name, (x,))
        ours, theirs = operator(*given_here), operator.overload(*given_here)
        assert facts(ours, True) == facts(theirs, True)

    def fail(x: Tensor) -> Tensor:
        raise (KeyError if x.dim() else RuntimeError)("of the vendor")

    vendor.define("fail(Tensor x) -> Tensor")
    vendor.impl("fail", fail, "CPU")
    with pytest.raises(KeyError, match="of the vendor"):
        handle(f"{vendor.ns}::fail")(x)
    failing = handle(f"{vendor.ns}::fail")
    for call in (failing, functools.partial(ops.AdoptedOperator.__call__, failing)):
        with pytest.raises(RuntimeError, match="of the vendor") as failed:
            call(torch.zeros([]))
        assert failed.type is RuntimeError


def test_an_operator_that_its_owner_removed_is_an_error_and_can_come_back() -> None:
    """The entry in the dispatcher may go, and another schema may take its place."""
    namespace = f"bringup_test_adopted_{next(_numbers)}"
    library = torch.library.Library(namespace, "DEF")
    library.define("f(Tensor x, int n) -> Tensor")
    library.impl("f", lambda x, n: x + n, "CPU")
    f = ops.adopt(f"{namespace}::f")
    assert f(torch.zeros(1), 2).item() == 2
    library._destroy()
    with pytest.raises(ExpiredHandleError, match=rf"{namespace}::f was removed by its definer"):
        f(torch.zeros(1), 2)
    again = torch.library.Library(namespace, "DEF")
    again.define("f(Tensor x) -> (Tensor, Tensor)")
    again.impl("f", lambda x: (x + 1, x + 2), "CPU")
    with pytest.raises(ExpiredHandleError, match="was removed by its definer"):
        f(torch.zeros(1), 2)
    f_again = ops.adopt(f"{namespace}::f")
    assert f_again is not f
    del f
    gc.collect()
    assert [result.item() for result in f_again(torch.zeros(1))] == [1, 2]
    f_again.undefine()
    again._destroy()


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.sampled_from(["", "tanh", torch.float64, torch.device("cpu"), torch.strided, 1 << 65, 2j]),
    st.lists(st.one_of(st.none(), st.integers(-2, 2), st.booleans()), max_size=3),
    st.sampled_from([(2, 3), (3,), (1,), ()]).map(lambda shape: tensor("cpu", *shape)),
    st.sampled_from([(2, 3), (3,)]).map(lambda shape: [tensor("cpu", *shape)] * 2),
)
_OPERATORS = (
    "aten::add.Tensor", "aten::cat", "aten::sum.dim_IntList", "aten::clamp", "aten::topk",
    "aten::index.Tensor", "aten::gelu", "aten::view", "aten::split.Tensor",
)  # fmt: skip
_KEYWORDS = ("self", "other", "dim", "dtype", "alpha", "min", "max", "k", "nonsense")


@given(
    name=st.sampled_from(_OPERATORS),
    args=st.lists(_VALUES, max_size=4),
    kwargs=st.dictionaries(st.sampled_from(_KEYWORDS), _VALUES, max_size=2),
)
@settings(max_examples=300, deadline=None)
def test_any_arguments_have_the_overloads_outcome(
    name: str, args: list[Any], kwargs: dict[str, Any]
) -> None:
    operator = ops.adopt(name)
    ours = outcome(operator, args, kwargs)
    theirs = outcome(operator.overload, args, kwargs)
    assert facts(ours, True) == facts(theirs, True)


@pytest.mark.parametrize("returns", ["SymInt", "SymInt[]"])
def test_symbolic_results_are_given(returns: str) -> None:
    name = "counts" if returns.endswith("]") else "count"
    library = torch.library.Library("adopt_symbolic", "FRAGMENT")
    try:
        library.define(f"{name}(Tensor x) -> {returns}")
        library.impl(name, lambda x: [3] if name == "counts" else 3, "CPU")

        def fake(x: torch.Tensor) -> Any:
            size = torch.library.get_ctx().new_dynamic_size()
            return [size] if name == "counts" else size

        torch.library.register_fake(f"adopt_symbolic::{name}", fake, lib=library)
        op = ops.adopt(f"adopt_symbolic::{name}")
        x = torch.ones(3)
        with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
            result = op(x)
        (size,) = result if name == "counts" else [result]
        assert isinstance(size, torch.SymInt)
    finally:
        library._destroy()
