"""Everything that a function is given for an argument left out is what its signature says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bringup import ops
from bringup.errors import SchemaError

Custom = Callable[..., ops.CustomOperator]
CPU = torch.device("cpu")
seen: dict[str, Any] = {}


def plain(
    x: torch.Tensor,
    dtype: torch.dtype = torch.uint8,
    layout: torch.layout = torch.strided,
    device: torch.device = CPU,
    optional: float | None = None,
) -> torch.Tensor:
    seen["body"] = (dtype, layout, device, optional)
    return x.clone()


def rebuilt(
    x: torch.Tensor,
    dtype: torch.dtype = torch.uint8,
    form: torch.memory_format = torch.channels_last,
    eps: float = float("inf"),
    pad: tuple[int, int] = (0, 0),
    optional: torch.dtype | None = None,
) -> torch.Tensor:
    seen["body"] = (dtype, form, eps, pad, optional)
    return x.clone()


DEFAULTS = {
    plain: (torch.uint8, torch.strided, torch.device("cpu"), None),
    rebuilt: (torch.uint8, torch.channels_last, float("inf"), (0, 0), None),
}


def watch(operator: ops.CustomOperator) -> None:
    """Notes what the fake, `setup_context` and the batching rule are given."""

    def fake(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen["fake"] = rest
        return torch.empty_like(x)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        seen["setup_context"] = inputs[1:]

    def rule(info: Any, in_dims: Any, x: torch.Tensor, *rest: Any) -> Any:
        seen["rule"] = rest
        assert len(in_dims) == 1 + len(rest)
        return x.clone(), in_dims[0]

    operator.register_fake(fake)
    operator.register_autograd(lambda ctx, grad: grad, setup_context=setup_context)
    operator.register_vmap(rule)


@pytest.mark.parametrize("function", [plain, rebuilt])
@pytest.mark.parametrize("path", ["callable", "torch.ops"])
def test_everybody_gets_the_defaults_of_the_signature(
    custom: Custom, function: Callable[..., torch.Tensor], path: str
) -> None:
    operator = custom(function)
    watch(operator)
    call = operator if path == "callable" else operator.overload
    seen.clear()
    call(torch.ones(2, requires_grad=True))
    call(torch.ones(2, device="meta"))
    torch.vmap(call)(torch.ones(2, 2))
    assert set(seen) == {"body", "setup_context", "fake", "rule"}
    for who, given in seen.items():
        assert given == DEFAULTS[function], who
        assert [type(value) for value in given] == [type(v) for v in DEFAULTS[function]], who


def test_a_dtype_beside_a_tuple_casts(custom: Custom) -> None:
    def cast(
        x: torch.Tensor, dt: torch.dtype = torch.uint8, pad: tuple[int, int] = (0, 0)
    ) -> torch.Tensor:
        return x.to(dt).clone()

    operator = custom(cast)
    for call in (operator, operator.overload):
        assert call(torch.ones(1)).dtype is torch.uint8
        assert call(torch.ones(1), torch.uint8).dtype is torch.uint8
        assert call(torch.ones(1), torch.int64).dtype is torch.int64


def test_an_optional_argument_with_a_default_that_no_schema_can_write_is_refused(
    custom: Custom,
) -> None:
    def function(
        x: torch.Tensor, form: torch.memory_format | None = torch.channels_last
    ) -> torch.Tensor:
        return x.clone()

    with pytest.raises(
        SchemaError, match=r"default torch.channels_last, which no schema can write"
    ):
        custom(function)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(SchemaError, match="3 is not an operator name"):
        ops.custom_op(3)  # type: ignore[call-overload]
    with pytest.raises(SchemaError, match="is not an operator name"):
        ops.custom_op("bringup_test::größe")
    with pytest.raises(SchemaError, match="expected a function to make an operator of, got 3"):
        ops.custom_op("bringup_test::three", 3)  # type: ignore[call-overload]
