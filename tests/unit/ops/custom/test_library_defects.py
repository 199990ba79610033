"""Where `torch.library` 2.13 is wrong, and that bringup is not.

Each test first shows the defect on plain torch, so that it tells when torch mends it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Optional

import pytest
import torch
from torch import Tensor

from bringup import ops
from bringup.errors import ContractError

_numbers = itertools.count()
Define = Callable[..., Any]


@pytest.fixture
def ours() -> Iterator[Define]:
    defined: list[ops.CustomOperator] = []

    def define(function: Callable[..., Any], **options: Any) -> ops.CustomOperator:
        options.setdefault("mutates_args", ())
        name = f"bringup_test_defects::ours{next(_numbers)}"
        defined.append(ops.custom_op(name, function, **options))
        return defined[-1]

    yield define
    for operator in defined:
        operator.undefine()


@pytest.fixture
def theirs() -> Iterator[Define]:
    defined: list[Any] = []

    def define(function: Callable[..., Any], **options: Any) -> Any:
        options.setdefault("mutates_args", ())
        name = f"bringup_test_defects::theirs{next(_numbers)}"
        defined.append(torch.library.custom_op(name, function, **options))
        return defined[-1]

    yield define
    for operator in defined:
        operator._lib._destroy()


def square(x: Tensor) -> Tensor:
    return x * x


def save_input(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def square_backward(ctx: Any, grad: Tensor) -> Tensor:
    return grad * 2 * ctx.saved_tensors[0]


def square_jvp(ctx: Any, tangent: Tensor) -> Tensor:
    return tangent * 2 * ctx.saved_tensors[0]


def test_forward_mode_is_not_silently_zero(ours: Define, theirs: Define) -> None:
    three = torch.tensor(3.0)
    plain = theirs(square)
    plain.register_autograd(square_backward, setup_context=save_input)
    assert torch.func.jvp(plain, (three,), (torch.tensor(1.0),))[1].item() == 0

    operator = ours(square)
    operator.register_autograd(square_backward, setup_context=save_input)
    for call in (operator, operator.overload):
        text = f"{operator.qualified_name} has no forward-mode derivative.*register_jvp"
        with pytest.raises(NotImplementedError, match=text):
            torch.func.jvp(call, (three,), (torch.tensor(1.0),))
    operator.register_jvp(square_jvp)
    for call in (operator, operator.overload):
        assert torch.func.jvp(call, (three,), (torch.tensor(1.0),))[1].item() == 6
        assert torch.func.jacfwd(call)(three).item() == 6


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev])
def test_reverse_transforms_work(ours: Define, theirs: Define, transform: Any) -> None:
    plain = theirs(square)
    plain.register_autograd(square_backward, setup_context=save_input)
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        transform(plain)(torch.tensor(3.0))

    operator = ours(square)
    operator.register_autograd(square_backward, setup_context=save_input)
    for call in (operator, operator.overload):
        assert transform(call)(torch.tensor(3.0)).item() == 6
        assert transform(transform(call))(torch.tensor(3.0)).item() == 2
        batch = torch.vmap(transform(call))(torch.tensor([1.0, 2.0]))
        assert batch.tolist() == [2, 4]


def test_a_kernel_after_a_list_of_devices_counts(ours: Define, theirs: Define) -> None:
    x = torch.tensor(3.0)
    plain = theirs(square, device_types=["cpu", "cuda"])
    plain.register_kernel("cpu", lambda x: x + 1)
    assert plain(x).item() == 9

    operator = ours(square, device_types=["cpu", "cuda"])
    operator.register_kernel("cpu", lambda x: x + 1)
    assert operator(x).item() == 4


def total(xs: list[Optional[Tensor]]) -> Tensor:  # noqa: UP045 - torch reads no string of it
    return torch.stack([x for x in xs if x is not None]).sum()


total.__annotations__ = {"xs": list[Optional[Tensor]], "return": Tensor}  # noqa: UP045


def test_a_none_in_a_list_of_tensors_detaches_nothing(ours: Define, theirs: Define) -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.present = [x is not None for x in inputs[0]]

    def backward(ctx: Any, grad: Tensor) -> Any:
        return ([grad if present else None for present in ctx.present],)

    x = torch.ones((), requires_grad=True)
    plain, operator = theirs(total), ours(total)
    for one in (plain, operator):
        one.register_autograd(backward, setup_context=setup)
    assert not plain([x, None]).requires_grad
    assert operator([x, None]).requires_grad
    assert torch.autograd.grad(operator([x, None, x]), x)[0].item() == 2


def product(x: Tensor, *, factor: float = 2.0) -> Tensor:
    return x * factor


def test_autocast_takes_keyword_arguments(ours: Define, theirs: Define) -> None:
    plain, operator = theirs(product), ours(product)
    plain.register_autocast("cpu", torch.bfloat16)
    operator.register_autocast("cpu", torch.bfloat16)
    with torch.autocast("cpu"):
        with pytest.raises(AssertionError, match="do not support kwargs"):
            plain(torch.ones(1), factor=3.0)
        assert operator(torch.ones(1), factor=3.0).dtype == torch.bfloat16
        assert operator(x=torch.ones(1)).dtype == torch.bfloat16


def test_autocast_may_be_registered_again(ours: Define, theirs: Define) -> None:
    plain, operator = theirs(square), ours(square)
    for one in (plain, operator):
        one.register_autocast("cpu", torch.bfloat16)
        one.register_autocast("cpu", torch.float16)
    with torch.autocast("cpu"):
        assert plain(torch.ones(1)).dtype == torch.bfloat16
        assert operator(torch.ones(1)).dtype == torch.float16


def test_a_compiler_keeps_operators_that_return_nothing(ours: Define, theirs: Define) -> None:
    seen: list[str] = []

    def log(who: str) -> Callable[[Tensor], None]:
        def function(x: Tensor) -> None:
            seen.append(who)

        function.__annotations__ = {"x": Tensor, "return": None}
        return function

    plain, operator, pure = theirs(log("theirs")), ours(log("ours")), ours(log("pure"))
    plain.register_fake(lambda x: None)
    pure.register_effect(None)

    def run(x: Tensor) -> Tensor:
        plain(x)
        operator(x)
        pure(x)
        operator(x)
        return x + 1

    torch.compile(run, fullgraph=True, backend="aot_eager")(torch.ones(2))
    assert seen == ["ours", "ours"]


def split(x: Tensor, sizes: tuple[int, int], names: list[str]) -> Tensor:
    assert isinstance(sizes, tuple)
    return x.reshape(sizes) * len(names)


split.__annotations__ = {
    "x": Tensor,
    "sizes": tuple[int, int],
    "names": list[str],
    "return": Tensor,
}


def test_tuples_and_lists_of_str_are_arguments(ours: Define, theirs: Define) -> None:
    with pytest.raises(ValueError, match="do not support Tuple inputs"):
        theirs(split)
    operator = ours(split)
    x = torch.ones(4)
    assert operator(x, (2, 2), ["a", "b"]).tolist() == [[2, 2], [2, 2]]
    assert operator.overload(x, [2, 2], ["a"]).tolist() == [[1, 1], [1, 1]]


def maybe(x: Tensor, present: bool) -> tuple[Tensor, Optional[Tensor]]:  # noqa: UP045
    return x + 1, x * 2 if present else None


maybe.__annotations__ = {
    "x": Tensor,
    "present": bool,
    "return": tuple[Tensor, Optional[Tensor]],  # noqa: UP045
}


def test_a_return_may_be_none(ours: Define, theirs: Define) -> None:
    with pytest.raises(ValueError, match="Return has unsupported type"):
        theirs(maybe)
    operator = ours(maybe)
    operator.register_autograd(
        lambda ctx, first, second: (first if second is None else first + 2 * second, None)
    )
    for call in (operator, operator.overload):
        x = torch.ones(1, requires_grad=True)
        first, second = call(x, False)
        assert second is None
        first.backward()
        assert x.grad is not None
        assert x.grad.item() == 1
        (both,) = torch.autograd.grad(sum(call(x, True)), x)
        assert both.item() == 3


def fill(x: Tensor) -> None:
    x.numpy().fill(1)


fill.__annotations__ = {"x": Tensor, "return": None}


def test_a_leaf_that_requires_grad_cannot_be_written(ours: Define, theirs: Define) -> None:
    def fill_detached(x: Tensor) -> None:
        x.detach().numpy().fill(1)

    fill_detached.__annotations__ = fill.__annotations__
    plain, operator = (d(fill_detached, mutates_args=("x",)) for d in (theirs, ours))
    x = torch.zeros(2, requires_grad=True)
    plain(x)
    assert x.tolist() == [1, 1]
    x = torch.zeros(2, requires_grad=True)
    text = f"{operator.qualified_name} writes its argument 'x', which is a leaf tensor that req"
    for call in (operator, operator.overload):
        with pytest.raises(RuntimeError, match=text):
            call(x)
        with pytest.raises(RuntimeError, match="which is a view of a leaf tensor"):
            call(x[:1])
        assert x.tolist() == [0, 0]
    with torch.no_grad():
        operator(x)
    assert x.tolist() == [1, 1]


def test_a_written_tensor_with_history_does_not_keep_a_wrong_one(
    ours: Define, theirs: Define
) -> None:
    def double(x: Tensor) -> None:
        x.detach().mul_(2)

    double.__annotations__ = fill.__annotations__
    plain, operator = (d(double, mutates_args=("x",)) for d in (theirs, ours))
    x = torch.ones(1, requires_grad=True)
    y = x * 3
    plain(y)
    assert torch.autograd.grad(y, x)[0].item() == 3  # wrong: it is 6
    for call in (operator, operator.overload):
        y = x * 3
        call(y)
        with pytest.raises(RuntimeError, match="it writes its arguments"):
            y.backward()


def hidden(x: Tensor) -> Tensor:
    x.numpy()[0] = 7
    return x + 1


hidden.__annotations__ = {"x": Tensor, "return": Tensor}


def test_a_hidden_write_is_found_while_debugging(ours: Define, theirs: Define) -> None:
    """Neither finds it in eager; `debugging` does."""
    plain, operator = theirs(hidden), ours(hidden)
    plain(torch.ones(2))
    operator(torch.ones(2))
    text = f"{operator.qualified_name}: the function wrote its argument 'x'.*mutates_args"
    with ops.debugging(), pytest.raises(ContractError, match=text):
        operator(torch.ones(2))
    with ops.debugging():
        ours(square)(torch.tensor([float("nan"), 1.0]))
        declared = ours(fill, mutates_args=("x",))
        declared(torch.ones(2))


def affine(x: Tensor, *, weight: Tensor) -> Tensor:
    return x * weight


affine.__annotations__ = {"x": Tensor, "weight": Tensor, "return": Tensor}


def test_keyword_only_tensors_are_taken(ours: Define, theirs: Define) -> None:
    with pytest.raises(NotImplementedError, match="kwarg-only Tensor args"):
        theirs(affine)
    assert ours(affine)(torch.ones(1), weight=torch.full((1,), 3.0)).item() == 3
