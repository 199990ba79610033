"""Definitions: by several threads, in a forked child, by mindtorch_v2's class, and their ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import each
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import ops
from bringup.errors import ContractError, ExpiredHandleError, SchemaError

SPACE = "bringup_test_definitions"
ONE = each("DATA(1)[i] = DATA(0)[i] + 1;")


def in_threads(count: int, run: Callable[[], Any]) -> list[Any]:
    """What `run` gave or raised in each of `count` threads that begin at once."""
    barrier, results = threading.Barrier(count), []

    def work() -> None:
        barrier.wait()
        try:
            results.append(run())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def plus_one(x: Tensor) -> Tensor:
    return x + 1


@pytest.mark.parametrize("count", [8, 16])
def test_threads_that_run_one_definition_all_have_the_working_operator(count: int) -> None:
    def define() -> Any:
        def function(x: Tensor) -> Tensor:
            return x + 1

        operator = ops.custom_op(f"{SPACE}::shared", function)
        operator.register_fake(torch.empty_like)
        return operator

    results = in_threads(count, define)
    assert len({id(result) for result in results}) == 1
    assert results[0](torch.zeros(1)).item() == 1
    results[0].undefine()


def test_threads_that_define_one_kernel_operator_all_have_a_working_one(define: Define) -> None:
    def run() -> float:
        operator = define(
            "f(Tensor x) -> Tensor", source=ONE, outputs=ops.empty_like("x"), dtypes={"T": "x"}
        )
        operators.append(operator)
        return operator(torch.zeros(1)).item()

    operators: list[Any] = []
    assert in_threads(8, run) == [1] * 8
    assert [operator(torch.zeros(1)).item() for operator in operators] == [1] * 8


def test_threads_that_define_different_functions_do_not_share() -> None:
    """One of them is the operator; the handles of the others say what has become of them."""

    def define(amount: Tensor) -> Any:
        def function(x: Tensor) -> Tensor:
            return x + amount

        return ops.custom_op(f"{SPACE}::differs", function)

    amounts = [torch.tensor(float(n)) for n in range(4)]
    pairs = in_threads(4, lambda: (amounts[(n := next(numbers))], define(amounts[n])))
    outcomes = [_outcome(operator) for _, operator in pairs]
    expected = [amount.item() for amount, _ in pairs]
    kept = next(i for i, outcome in enumerate(outcomes) if isinstance(outcome, float))
    assert outcomes[kept] == expected[kept]
    assert all("was defined again" in str(o) for i, o in enumerate(outcomes) if i != kept)
    pairs[kept][1].undefine()


def _outcome(operator: Any) -> float | Exception:
    try:
        return float(operator(torch.zeros(1)).item())
    except ExpiredHandleError as error:
        return error


numbers = iter(range(4))


def test_a_child_that_is_forked_while_a_thread_defines_can_define() -> None:
    from bringup.ops.registration.definition_rollback import defining

    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with defining(f"{SPACE}::forked"):
            held.set()
            done.wait()

    before = ops.custom_op(f"{SPACE}::before", plus_one)
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        operator = ops.custom_op(f"{SPACE}::forked", plus_one)
        right = operator(torch.zeros(1)).item() == before(torch.zeros(1)).item() == 1
        os._exit(0 if right else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    before.undefine()


# ---------------------------------------------------------------- removed and defined again


def test_a_packet_and_compiled_code_of_a_removed_operator_say_what_has_become_of_it() -> None:
    operator = ops.custom_op(f"{SPACE}::gone", plus_one)
    operator.register_fake(torch.empty_like)
    packet = getattr(torch.ops, SPACE).gone
    compiled = torch.compile(lambda x: operator(x) * 2, backend="aot_eager")
    assert compiled(torch.zeros(1)).item() == 2
    operator.undefine()
    for call in (packet, packet.default, compiled):
        with pytest.raises(ExpiredHandleError, match=f"{SPACE}::gone was removed by undefine"):
            call(torch.zeros(1))


def test_the_handle_of_an_earlier_definition_says_that_it_was_defined_again(
    define: Define,
) -> None:
    def kernel() -> Any:
        return define(
            "f(Tensor x) -> Tensor", source=ONE, outputs=ops.empty_like("x"), dtypes={"T": "x"}
        )

    def function() -> Any:
        return ops.custom_op(f"{SPACE}::again", plus_one)

    for make in (kernel, function):
        earlier, given_out = (first := make()), first.overload
        make()
        with pytest.raises(ExpiredHandleError, match="was defined again; call what the last"):
            earlier(torch.zeros(1))
        assert given_out is earlier.overload or given_out(torch.zeros(1)).item() == 1
    function().undefine()


@pytest.mark.parametrize("kind", ["kernel", "function", "library"])
def test_modes_see_the_operator_of_now_where_an_earlier_one_is_kept(
    kind: str, define: Define
) -> None:
    """The dispatcher gives modes what torch.ops gave out first for an entry that is held."""

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    kept = []
    for round_ in range(3):
        if kind == "kernel":
            made = define(
                "m(Tensor x) -> Tensor", source=ONE, outputs=ops.empty_like("x"), dtypes={"T": "x"}
            )
            overload, end = made.overload, lambda: None
        elif kind == "function":
            made = ops.custom_op(f"{SPACE}::modes", plus_one)
            made.register_fake(torch.empty_like)
            overload, end = made.overload, (made.undefine if round_ == 2 else lambda: None)
        else:
            library = ops.Library(SPACE, "FRAGMENT")
            library.define("modes(Tensor x) -> Tensor")
            library.impl("modes", lambda x: x + 1, "CompositeExplicitAutograd")
            overload, end = getattr(torch.ops, SPACE).modes.default, library._destroy
        kept.append(overload)
        with Noting():
            assert overload(torch.zeros(1)).item() == 1
        compiled = torch.compile(lambda x, f=overload: f(x), backend="aot_eager")
        assert compiled(torch.zeros(1)).item() == 1
        end()


# ---------------------------------------------------------------- names of other systems


def test_mindtorch_s_class_constructs_a_working_operator() -> None:
    def scaled(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return x + scale * y

    handle = ops.CustomOpHandle(
        f"{SPACE}::handle", "handle(Tensor x, Tensor y, float scale=1.0) -> Tensor", scaled, ()
    )
    assert isinstance(handle, ops.CustomOpHandle)
    assert handle.__name__ == "scaled"
    handle.register_fake(lambda x, y, scale=1.0: torch.empty_like(x))
    handle.register_kernel("cpu")(lambda x, y, scale=1.0: x + 2 * scale * y)
    handle.register_autograd(
        lambda ctx, grad: (grad, 2 * ctx.scale * grad, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "scale", inputs[2]),
    )
    x, y = torch.ones(2), torch.ones(2, requires_grad=True)
    for call in (handle, torch.compile(handle, fullgraph=True, backend="aot_eager")):
        assert torch.autograd.grad(call(x, y, 3.0).sum(), y)[0].tolist() == [6, 6]
    assert getattr(torch.ops, SPACE).handle(x, y).tolist() == [3, 3]
    handle.undefine()


def test_mindtorch_s_class_takes_its_arguments_by_keyword_and_its_way_to_write_mutation() -> None:
    handle = ops.CustomOpHandle(
        qualname=f"{SPACE}::writes",
        schema="(Tensor! x) -> ()",
        impl_fn=lambda x: x.add_(1) and None,
        mutates_args=("x",),
    )
    x = torch.zeros(1)
    handle(x)
    assert x.item() == x._version == 1 or x._version == 2
    handle.undefine()


@pytest.mark.parametrize("by_name", [False, True])
def test_a_kernel_for_none_serves_the_devices_that_have_none_of_their_own(by_name: bool) -> None:
    operator = ops.custom_op(f"{SPACE}::default", plus_one, device_types="meta")
    register: Any = operator.register_kernel
    if by_name:
        register = lambda *a: ops.register_kernel(f"{SPACE}::default", *a)  # noqa: E731
    with pytest.raises(NotImplementedError):
        operator(torch.zeros(1))
    register(None, lambda x: x + 2)
    assert operator(torch.zeros(1)).item() == 2

    @register(None)
    def _(x: Tensor) -> Tensor:
        return x + 3

    assert operator(torch.zeros(1)).item() == 3
    register("cpu", lambda x: x + 4)
    assert operator(torch.zeros(1)).item() == 4
    operator.undefine()


def test_a_kernel_for_none_of_an_operator_of_a_library() -> None:
    library = ops.Library(f"{SPACE}_library", "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.define("constant(int n) -> int")
    ops.register_kernel(f"{SPACE}_library::f", None, plus_one)
    ops.register_kernel(f"{SPACE}_library::constant", None, lambda n: n + 1)
    assert getattr(torch.ops, f"{SPACE}_library").f(torch.zeros(1)).item() == 1
    assert getattr(torch.ops, f"{SPACE}_library").constant(1) == 2
    library._destroy()


def test_an_operator_may_be_an_overload() -> None:
    operators = [
        ops.custom_op(f"{SPACE}::over.{name}", function, tags=None)
        for name, function in (("one", plus_one), ("two", lambda x, y: x + y))
    ]
    for operator in operators:
        operator.register_fake(lambda *args: torch.empty_like(args[0]))
        operator.register_autograd(lambda ctx, grad: (grad,) * 2)
    operators[0].register_autograd(lambda ctx, grad: 5 * grad)
    packet = getattr(torch.ops, SPACE).over
    x = torch.zeros(1, requires_grad=True)
    for call in (operators[0], packet.one, packet, torch.compile(packet.one, backend="aot_eager")):
        assert torch.autograd.grad(call(x), x)[0].item() == 5
    assert packet(x, x + 2).item() == 2
    operators[0].undefine()
    assert packet(x, x + 2).item() == operators[1](x, x + 2).item() == 2
    operators[1].undefine()


def test_a_schema_that_writes_and_no_names_to_write_do_not_fit() -> None:
    with pytest.raises(ValueError, match="the schema says that x is written"):
        ops.custom_op(
            f"{SPACE}::no", lambda x: None, schema="(Tensor(a!) x) -> ()", mutates_args=()
        )
    with pytest.raises(SchemaError, match=r"not an operator name; .*namespace::name.overload"):
        ops.custom_op(f"{SPACE}::f.", plus_one)


def test_a_tag_that_is_there_anyway_is_there_once() -> None:
    tag = torch.Tag.pt2_compliant_tag
    operator = ops.custom_op(f"{SPACE}::tagged", plus_one, tags=(tag, torch.Tag.pointwise, tag))
    assert operator.overload.tags.count(tag) == 1
    assert torch.Tag.pointwise in operator.overload.tags
    operator.undefine()


def test_the_schema_of_a_function_may_begin_with_a_name() -> None:
    assert ops.infer_schema(plus_one, op_name="f") == "f(Tensor x) -> Tensor"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: (x + 1,), "the function returned a tuple of one Tensor; its schema says Tensor"),
        (lambda x: (), "the function returned an empty tuple; its schema says Tensor"),
        (lambda x: [x + 1], "the function returned list; its schema says Tensor"),
    ],
)
def test_what_is_returned_instead_of_a_tensor_is_told(
    returned: Callable[[Tensor], Any], words: str
) -> None:
    operator = ops.custom_op(f"{SPACE}::wrong", returned)
    with pytest.raises(ContractError, match=words):
        operator(torch.zeros(1))
    operator.undefine()


# ---------------------------------------------------------------- gradients of what was passed


def _scaled(x: Tensor, scale: float = 2.0, *, shift: int = 0) -> Tensor:
    return x * scale + shift


def _short(x: Tensor, scale: float = 2.0, bias: Tensor | None = None) -> Tensor:
    return x * scale if bias is None else x * scale + bias


def _listed(xs: list[Tensor], scale: float = 2.0) -> Tensor:
    return xs[0] * scale


CALLS: list[tuple[Callable[..., Tensor], tuple[Any, ...], dict[str, Any], int]] = [
    (_short, (), {}, 1),
    (_short, (2.0,), {}, 1),  # as its default, which the dispatcher leaves out
    (_short, (3.0,), {}, 2),
    (_short, (), {"scale": 3.0}, 2),
    (_scaled, (), {}, 1),
    (_scaled, (), {"shift": 1}, 1),
    (_scaled, (3.0,), {"shift": 1}, 2),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "count"), CALLS)
def test_a_backward_may_give_gradients_for_what_was_passed_only(
    function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> None:
    """The numbers that torch.library accepts, by its own operator."""
    theirs = torch.library.custom_op(f"{SPACE}_torch::passed", function, mutates_args=())
    ours = ops.custom_op(f"{SPACE}::passed", function)
    x = torch.ones(2, requires_grad=True)
    for given in range(1, 5):
        backward = lambda ctx, grad: (7 * grad,) + (None,) * (given - 1)  # noqa: B023, E731
        for operator in (theirs, ours):
            operator.register_autograd(backward)
        calls = [theirs, ours, ours.overload]
        outcomes = [_gradient(call, x, args, kwargs) for call in calls]
        everything = given in (len(ours.facts.names), ours.facts.positional)
        expected = [7.0, 7.0] if given == count or everything else "refused"
        assert outcomes[1:] == [expected] * 2
        if given == count:
            assert outcomes[0] == expected
    ours.undefine()


def _gradient(call: Any, x: Tensor, args: Any, kwargs: Any) -> Any:
    try:
        return torch.autograd.grad(call(x, *args, **kwargs).sum(), x)[0].tolist()
    except RuntimeError as error:
        return "refused" if "gradients" in str(error) else error


def test_a_backward_over_a_list_may_leave_out_what_was_not_passed() -> None:
    operator = ops.custom_op(f"{SPACE}::listed", _listed)
    operator.register_autograd(lambda ctx, grad: ([grad],))
    x = torch.ones(2, requires_grad=True)
    assert torch.autograd.grad(operator([x]).sum(), x)[0].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="returned 1 gradients; expected one for each"):
        operator([x], 3.0).sum().backward()
    operator.undefine()
