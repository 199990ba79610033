"""`ops.custom_op`: the schema, the callable, kernels, fakes; what compilers and modes see of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, List, Optional  # noqa: UP035 - people write them

import pytest
import torch
from torch import Tensor

from bringup import ops
from bringup.errors import ExpiredHandleError, SchemaError

has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
runs_on = torch._C._dispatch_has_computed_kernel_for_dispatch_key


def two(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def with_float(x: Tensor, scale: float = 1.0) -> Tensor:
    return x * scale


def with_bool(x: Tensor, flag: bool = False) -> Tensor:
    return x.clone() if flag else -x


def with_int(x: Tensor, dim: int = 0) -> Tensor:
    return x.sum(dim)


def with_optional(x: Tensor, bias: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
    return x.clone() if bias is None else x + bias


def with_list(x: Tensor, sizes: List[int]) -> Tensor:  # noqa: UP006
    return x.reshape(sizes).clone()


def without_annotations(x, y):  # type: ignore[no-untyped-def]
    return x - y


def everything(
    x: Tensor,
    ts: list[Tensor],
    maybe: Sequence[Tensor | None],
    n: int | None,
    names: list[str],
    sizes: tuple[int, ...] = (1, 2),
    *,
    mode: str = 'a"b',
    dtype: torch.dtype = torch.float16,
    device: torch.device | None = None,
    ratios: list[float] | None = None,
) -> tuple[Tensor, Tensor | None, list[Tensor], int]:
    raise NotImplementedError


SCHEMAS: list[tuple[Callable[..., Any], Any, str]] = [
    (two, (), "(Tensor x, Tensor y) -> Tensor"),
    (with_float, (), "(Tensor x, float scale=1.0) -> Tensor"),
    (with_bool, (), "(Tensor x, bool flag=False) -> Tensor"),
    (with_int, (), "(Tensor x, int dim=0) -> Tensor"),
    (with_optional, (), "(Tensor x, Tensor? bias=None) -> Tensor"),
    (with_list, (), "(Tensor x, int[] sizes) -> Tensor"),
    (two, ("x",), "(Tensor! x, Tensor y) -> Tensor"),
    (without_annotations, (), "(Tensor x, Tensor y) -> Tensor"),
]


@pytest.mark.parametrize(("function", "mutates", "text"), SCHEMAS)
def test_the_schema_is_inferred(function: Callable[..., Any], mutates: Any, text: str) -> None:
    assert ops.infer_schema(function, mutates_args=mutates) == text


def test_every_kind_of_parameter_is_inferred() -> None:
    """PEP 604, string annotations, keyword-only, lists, list defaults."""
    assert ops.infer_schema(everything) == (
        "(Tensor x, Tensor[] ts, Tensor?[] maybe, int? n, str[] names, int[] sizes=[1, 2], *, "
        'str mode="a\\"b", ScalarType dtype=float16, Device? device=None, '
        "float[]? ratios=None) -> (Tensor, Tensor?, Tensor[], int)"
    )


def test_the_inferred_schema_is_registered(custom: Callable[..., ops.CustomOperator]) -> None:
    """Here in the dispatcher."""
    operator = custom(with_int)
    assert operator.schema.endswith("(Tensor x, SymInt dim=0) -> Tensor")
    packet = getattr(torch.ops.bringup_test_custom, operator.qualified_name.partition("::")[2])
    assert packet.default is operator.overload


def test_the_handle_is_callable_and_keeps_the_functions_name(
    custom: Callable[..., ops.CustomOperator],
) -> None:
    operator = custom(two)
    assert isinstance(operator, ops.CustomOperator)
    assert operator.__name__ == "two"
    assert repr(operator) == f"<custom operator {operator.qualified_name}>"


def test_a_call_runs_the_function(custom: Callable[..., ops.CustomOperator]) -> None:
    operator = custom(two)
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    for result in (operator(x, y), operator(x, y=y), operator.overload(x, y)):
        assert result.tolist() == [4, 6]


def test_by_default_the_function_serves_cpu_and_npu(
    custom: Callable[..., ops.CustomOperator],
) -> None:
    name = custom(two).qualified_name
    assert runs_on(name, "CPU")
    assert runs_on(name, "PrivateUse1")


def test_device_types_limit_where_the_function_runs(
    custom: Callable[..., ops.CustomOperator],
) -> None:
    name = custom(two, device_types="cpu").qualified_name
    assert has_kernel(name, "CPU")
    assert not has_kernel(name, "CompositeImplicitAutograd")
    # a driver that is loaded offers its fallback for every operator, which is no kernel of this one
    assert not has_kernel(name, "PrivateUse1")


def test_a_schema_may_be_given(custom: Callable[..., ops.CustomOperator]) -> None:
    operator = custom(without_annotations, schema="(Tensor x, int y=2) -> Tensor")
    assert operator(torch.ones(2)).tolist() == [-1, -1]


def test_register_fake_serves_meta_tensors(custom: Callable[..., ops.CustomOperator]) -> None:
    operator = custom(two)
    x = torch.empty(2, device="meta")
    with pytest.raises(RuntimeError, match=f"{operator.qualified_name} has no fake.*register_fake"):
        operator(x, x)

    @operator.register_fake
    def fake(x: Tensor, y: Tensor) -> Tensor:
        return x.new_empty(5)

    assert has_kernel(operator.qualified_name, "Meta")
    assert operator(x, x).shape == (5,)
    assert callable(fake)


def test_register_kernel_puts_a_kernel_at_the_device(
    custom: Callable[..., ops.CustomOperator],
) -> None:
    operator = custom(two)

    @operator.register_kernel("cpu")
    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    assert has_kernel(operator.qualified_name, "CPU")
    assert operator(torch.full((1,), 3.0), torch.full((1,), 4.0)).item() == 12
    operator.register_kernel(["cpu", "npu"], two)
    assert operator(torch.full((1,), 3.0), torch.full((1,), 4.0)).item() == 7


# ---------------------------------------------------------------- what a definition refuses


def positional_only(x: Tensor, /) -> Tensor:
    raise NotImplementedError


def variadic(*xs: Tensor) -> Tensor:
    raise NotImplementedError


def of_set(x: Tensor, names: set[str]) -> Tensor:
    raise NotImplementedError


def of_unknown(x: Tensor, other: Nowhere) -> Tensor:  # type: ignore[name-defined]  # noqa: F821
    raise NotImplementedError


def returns_dict(x: Tensor) -> dict[str, Tensor]:
    raise NotImplementedError


def bad_default(x: Tensor, f: float | None = float("inf")) -> Tensor:
    raise NotImplementedError


REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (positional_only, {}, "parameter 'x: .*' is positional-only; an operator takes named"),
    (variadic, {}, "is variadic positional"),
    (of_set, {}, r"parameter 'names' has type set\[str\], which no schema can carry; expected"),
    (of_unknown, {}, "annotation 'Nowhere' of 'other' cannot be evaluated: name 'Nowhere'"),
    (returns_dict, {}, r"return type dict\[str, torch.Tensor\] cannot be carried"),
    (bad_default, {}, "default inf, which no schema can write; use None"),
    (two, {"mutates_args": ("z",)}, r"mutates_args names 'z', which is no parameter \(x, y\)"),
    (with_int, {"mutates_args": ("dim",)}, "mutates_args names 'dim', which is no Tensor"),
    (two, {"mutates_args": "x"}, "mutates_args='x': expected names in a list or tuple, or 'unk"),
    (two, {"schema": "(Tensor x - Tensor"}, "is not a schema"),
    (two, {"schema": "(Tensor x, Tensor y) -> Tensor", "mutates_args": ("x",)},
     r"mutates_args=\('x',\), but the schema says that nothing is written"),
    (two, {"device_types": "gpu"}, "'gpu' is no device; did you mean 'cpu'|'gpu' is no device"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "options", "text"), REFUSED)
def test_a_wrong_definition_is_refused_by_name(
    custom: Callable[..., ops.CustomOperator],
    function: Callable[..., Any],
    options: dict[str, Any],
    text: str,
) -> None:
    with pytest.raises(SchemaError, match=text):
        custom(function, **options)


@pytest.mark.parametrize("name", ["f", "::f", "a::", "a::b.", "a::b.c.d", "a b::c"])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(SchemaError, match="is not an operator name; expected 'namespace::name'"):
        ops.custom_op(name, two)


def test_running_the_same_definition_again_replaces_it() -> None:
    def define(addend: int) -> ops.CustomOperator:
        @ops.custom_op("bringup_test_custom::again")
        def again(x: Tensor) -> Tensor:
            return x + addend

        return again

    first, second = define(1), define(2)
    assert second(torch.zeros(1)).item() == 2
    with pytest.raises(ExpiredHandleError, match=r"again was defined again"):
        first(torch.zeros(1))
    with pytest.raises(SchemaError, match=r"again is defined already, at .*test_custom_op.py:\d+"):
        ops.custom_op("bringup_test_custom::again", two)
    second.undefine()


def test_a_name_of_somebody_elses_operator_is_refused() -> None:
    with torch.library._scoped_library("bringup_test_custom_other", "FRAGMENT") as library:
        library.define("f(Tensor x) -> Tensor")
        with pytest.raises(SchemaError, match="f is defined already, by other code"):
            ops.custom_op("bringup_test_custom_other::f", two)
