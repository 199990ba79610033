"""What `torch.library.custom_op` 2.13 does and `ops.custom_op` does alike: one program for both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Tuple  # noqa: UP035 - one of the spellings

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import ops

Tag = torch.Tag
Define = Callable[..., Any]
LIBRARIES = {"torch": torch.library, "bringup": ops}
_numbers = itertools.count()


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    return LIBRARIES[request.param]


@pytest.fixture
def define(library: Any) -> Iterator[Define]:
    defined: list[Any] = []

    def one(function: Callable[..., Any], **options: Any) -> Any:
        options.setdefault("mutates_args", ())
        name = f"bringup_test_alike::f{next(_numbers)}"
        defined.append(library.custom_op(name, function, **options))
        return defined[-1]

    yield one
    for operator in defined:
        if library is ops:
            operator.undefine()
        else:
            operator._lib._destroy()


def add_(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x


def double(x: Tensor, *, out: Tensor) -> Tensor:
    out.copy_(2 * x)
    return out


def powers(x: Tensor, *, a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
    a.copy_(x**2)
    b.copy_(x**3)
    return a, b


def twice(x: Tensor) -> Tensor:
    return 2 * x


WRITING = {
    "inplace": (add_, {"x"}, Tag.inplace, (3.0, 2.0), (), [5]),
    "out": (double, {"out"}, Tag.out, (3.0,), ("out",), [6]),
    "outs": (powers, ("a", "b"), [Tag.out, Tag.pointwise], (3.0,), ("a", "b"), [9, 27]),
}


def arguments(positional: Any, keywords: Any, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    return (
        [torch.tensor([value], **options) for value in positional],
        {name: torch.zeros(1, **options) for name in keywords},
    )


def listed(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("case", WRITING)
def test_a_tag_says_that_what_is_written_is_returned(define: Define, case: str) -> None:
    function, mutates, tags, positional, keywords, expected = WRITING[case]
    operator = define(function, mutates_args=mutates, tags=tags)
    args, kwargs = arguments(positional, keywords)
    written = [kwargs[name] for name in keywords] or args[:1]
    versions = [tensor._version for tensor in written]
    results = listed(operator(*args, **kwargs))
    assert all(result is tensor for result, tensor in zip(results, written, strict=True))
    assert [result.item() for result in results] == expected
    assert all(t._version > v for t, v in zip(written, versions, strict=True))
    torch.library.opcheck(operator, tuple(args), kwargs)
    with FakeTensorMode():  # a fake comes from the schema
        args, kwargs = arguments(positional, keywords)
        fakes = listed(operator(*args, **kwargs))
        assert all(f is t for f, t in zip(fakes, [*kwargs.values()] or args[:1], strict=True))
    with pytest.raises(RuntimeError if "out" in case else ValueError, match=r"write|autograd|out="):
        raise_for_gradient(operator, *arguments(positional, keywords), is_out="out" in case)


def raise_for_gradient(operator: Any, args: Any, kwargs: Any, *, is_out: bool) -> None:
    if is_out:
        operator(*(a.requires_grad_() for a in args), **kwargs)
        return
    try:
        operator.register_autograd(lambda ctx, grad: (grad, grad))
    except RuntimeError as error:  # torch's type
        raise ValueError(str(error)) from error


def test_what_a_tag_returns_compiles(define: Define) -> None:
    function, mutates, tags, positional, keywords, expected = WRITING["outs"]
    operator = define(function, mutates_args=mutates, tags=tags)

    def program(*args: Any, **kwargs: Any) -> Any:
        results = listed(operator(*args, **kwargs))
        return [r + 1 for r in results]

    args, kwargs = arguments(positional, keywords)
    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    assert [r.item() for r in compiled(*args, **kwargs)] == [e + 1 for e in expected]
    assert [t.item() for t in kwargs.values()] == expected


@pytest.mark.parametrize("case", WRITING)
def test_the_fake_of_a_tag_may_be_given_and_warns(define: Define, case: str) -> None:
    function, mutates, tags, positional, keywords, _ = WRITING[case]
    operator = define(function, mutates_args=mutates, tags=tags)
    called = []

    def fake(*args: Any, **kwargs: Any) -> Any:
        called.append(True)
        return tuple(kwargs.values()) if case == "outs" else kwargs.get("out", args[0])

    with pytest.warns(UserWarning, match="fake .* is unnecessary"):
        operator.register_fake(fake)
    args, kwargs = arguments(positional, keywords, device="meta")
    operator(*args, **kwargs)
    assert called


def keyword_only(*, x: Tensor) -> Tensor:
    return x


def number_first(n: int, x: Tensor) -> Tensor:
    return x


def returns_nothing(x: Tensor) -> None: ...


def lists(x: Tensor, *, out: list[Tensor]) -> Tensor:
    return x


def one_of_two(x: Tensor, *, a: Tensor, b: Tensor) -> Tensor:
    return a


@pytest.mark.parametrize(
    ("function", "mutates", "tags"),
    [
        (keyword_only, {"x"}, Tag.inplace),
        (number_first, {"x"}, Tag.inplace),
        (add_, {"y"}, Tag.inplace),
        (add_, {"x", "y"}, Tag.inplace),
        (add_, "unknown", Tag.inplace),
        (add_, (), Tag.inplace),
        (returns_nothing, {"x"}, Tag.inplace),
        (add_, {"x"}, Tag.out),
        (add_, "unknown", Tag.out),
        (add_, (), Tag.out),
        (lists, {"out"}, Tag.out),
        (one_of_two, {"a", "b"}, Tag.out),
        (add_, {"x"}, [Tag.inplace, Tag.out]),
    ],
)
def test_a_function_that_is_not_what_its_tag_says(
    define: Define, library: Any, function: Any, mutates: Any, tags: Any
) -> None:
    errors = (ValueError, AssertionError)  # torch asserts where both tags are given
    with pytest.raises(errors, match=r"Tag\.(inplace|out)"):
        define(function, mutates_args=mutates, tags=tags)
    with pytest.raises(errors, match=r"Tag\.(inplace|out)"):
        library.infer_schema(function, mutates_args=mutates, tags=tags)


@pytest.mark.parametrize(
    ("schema", "mutates", "tag"),
    [
        ("(Tensor x) -> Tensor", (), Tag.inplace),
        ("(Tensor(a!) x) -> ()", {"x"}, Tag.inplace),
        ("(Tensor(a!) x) -> Tensor(a!)", {"x"}, Tag.out),
    ],
)
def test_a_schema_that_is_not_what_its_tag_says(
    define: Define, schema: str, mutates: Any, tag: Any
) -> None:
    with pytest.raises(ValueError, match=r"Tag\.(inplace|out)"):
        define(twice, schema=schema, mutates_args=mutates, tags=tag)


@pytest.mark.parametrize(
    "returned",
    [lambda a, b: (b, a), lambda a, b: a, lambda a, b: [a, b], lambda a, b: (a, b, a)],
)
def test_a_function_that_returns_something_else_than_it_writes(
    define: Define, returned: Any
) -> None:
    def function(x: Tensor, *, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = returned(a, b)
        return result

    operator = define(function, mutates_args={"a", "b"}, tags=Tag.out)
    with pytest.raises((RuntimeError, ValueError), match="return"):
        operator(torch.zeros(1), a=torch.zeros(1), b=torch.zeros(1))
    for wrong in (lambda x: x.clone(), lambda x: (x, x)):
        operator = define(
            wrong, schema="(Tensor(a!) x) -> Tensor(a!)", mutates_args={"x"}, tags=Tag.inplace
        )
        with pytest.raises((RuntimeError, ValueError), match="return"):
            operator(torch.zeros(1))


def test_the_text_of_a_schema_with_a_tag(library: Any) -> None:
    text = library.infer_schema(add_, mutates_args={"x"}, tags=Tag.inplace, op_name="add_")
    assert text == "add_(Tensor(a0!) x, Tensor y) -> Tensor(a0!)"
    text = library.infer_schema(powers, mutates_args={"a", "b"}, tags=(Tag.out,))
    assert text == "(Tensor x, *, Tensor(a1!) a, Tensor(a2!) b) -> (Tensor(a1!), Tensor(a2!))"
    assert library.infer_schema(twice, mutates_args=(), tags=None) == "(Tensor x) -> Tensor"


@pytest.mark.filterwarnings("ignore:.*has no kernel for")
def test_a_kernel_is_switched_off_in_a_block(define: Define) -> None:
    operator, x = define(twice), torch.ones(1)
    operator.register_kernel("cpu")(lambda x: 3 * x)
    with operator.set_kernel_enabled("cpu", enabled=False):
        assert operator(x).item() == 2
        with operator.set_kernel_enabled("cpu"):
            assert operator(x).item() == 3
        operator.register_kernel("cpu")(lambda x: 4 * x)
        with operator.set_kernel_enabled("cpu", enabled=False):
            assert operator(x).item() == 2
        assert operator(x).item() == 2
    assert operator(x).item() == 4
    operator = define(twice)
    with operator.set_kernel_enabled("cpu", enabled=False):
        operator.register_kernel("cpu")(lambda x: 5 * x)
        assert operator(x).item() == 2
    assert operator(x).item() == 5
    with pytest.raises(ZeroDivisionError), operator.set_kernel_enabled("cpu", enabled=False):
        _ = 1 / 0
    assert operator(x).item() == 5


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Subclass(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


def test_a_rule_for_a_mode_and_for_a_subclass(define: Define, library: Any) -> None:
    operator, x = define(twice), torch.ones(1)
    library.register_torch_dispatch(operator, Mode, lambda mode, func, *rest: rest[1][0] + 100)
    with Mode():
        assert operator(x).item() == 101

    @operator.register_torch_dispatch(Mode)
    def rule(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        assert isinstance(mode, Mode)
        assert "bringup_test_alike" in str(func)
        assert not kwargs
        return args[0] + 200

    with Mode():
        assert operator(x).item() == 201
        assert operator(torch.ones(1, requires_grad=True)).item() == 201
    operator.register_torch_dispatch(Subclass, lambda cls, *rest: torch.full((1,), 7.0))
    assert operator(x.as_subclass(Subclass)).item() == 7
    assert operator(x).item() == 2


def test_what_a_library_keeps_ends_with_it(library: Any) -> None:
    name = f"bringup_test_lib{next(_numbers)}"
    definition = torch.library.Library(name, "DEF")
    definition.define("f(Tensor x) -> Tensor")
    kept, f = torch.library.Library(name, "FRAGMENT"), f"{name}::f"
    library.register_kernel(f, "cpu", twice, lib=kept)
    library.register_fake(f, torch.empty_like, lib=kept)
    library.register_autograd(f, lambda ctx, grad: 5 * grad, lib=kept)
    library.register_vmap(f, lambda info, dims, x: (2 * x, dims[0]), lib=kept)
    library.register_autocast(f, "cpu", torch.bfloat16, lib=kept)
    library.register_torch_dispatch(f, Mode, lambda mode, func, *rest: rest[1][0], lib=kept)
    operator, x = getattr(torch.ops, name).f, torch.ones(1, requires_grad=True)

    def in_autocast() -> torch.dtype:
        with torch.autocast("cpu"):
            return operator(x.detach()).dtype

    def in_mode() -> float:
        with Mode():
            return operator(x.detach()).item()

    uses: list[tuple[Callable[[], Any], Any]] = [
        (lambda: operator(x.detach()).item(), 2),
        (lambda: operator(torch.empty(3, device="meta")).shape, (3,)),
        (lambda: torch.autograd.grad(operator(x), x)[0].item(), 5),
        (lambda: torch.vmap(operator)(torch.ones(1, 1)).item(), 2),
        (in_autocast, torch.bfloat16),
        (in_mode, 1),
    ]
    for use, expected in uses:
        assert use() == expected
    del kept
    for use, _ in uses:
        with pytest.raises(NotImplementedError, match=name):
            use()
    other = torch.library.Library(f"{name}_other", "FRAGMENT")
    with pytest.raises((RuntimeError, ValueError), match="namespace"):
        library.register_kernel(f, "cpu", twice, lib=other)


def test_torch_library_registers_for_a_handle(define: Define) -> None:
    operator, x = define(twice), torch.ones(1, requires_grad=True)
    torch.library.register_fake(operator, torch.empty_like)
    torch.library.register_kernel(operator, "cpu", lambda x: 3 * x)
    torch.library.register_autograd(operator, lambda ctx, grad: 5 * grad)
    torch.library.register_vmap(operator, lambda info, dims, x: (7 * x, dims[0]))
    assert operator(x).item() == 3
    assert torch.autograd.grad(operator(x), x)[0].item() == 5
    assert torch.vmap(operator)(torch.ones(1, 1)).item() == 7


def only(x: Tensor) -> Tuple[Tensor]:  # noqa: UP006
    return (2 * x,)


def test_a_tuple_of_one_tensor(define: Define) -> None:
    operator, x = define(only), torch.ones(1, requires_grad=True)
    operator.register_fake(lambda x: (torch.empty_like(x),))
    operator.register_autograd(
        lambda ctx, grad: 5 * (grad if isinstance(grad, Tensor) else grad[0])
    )
    result = operator(x)
    assert isinstance(result, tuple)
    assert result[0].item() == 2
    assert torch.autograd.grad(result[0], x)[0].item() == 5
    assert operator(x.to("meta"))[0].shape == (1,)


def random(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(x.shape, generator=generator)


def test_a_generator_is_an_argument(define: Define) -> None:
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    x = torch.zeros(3)
    assert torch.equal(define(random)(x, generators[0]), random(x, generators[1]))
