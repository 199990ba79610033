"""Lists of fixed length, `int[2]`: one rule on every path, and one number for all elements."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import kernel

from bringup import ops
from bringup.errors import ContractError

PAIR = kernel(
    "for (int i = 0; i < 2; ++i) static_cast<double*>(TENSOR(2)->data)[i] ="
    " static_cast<const ELEMENT*>(LIST(1)->data)[i];"
)
ELEMENTS = {"int[2]": "int64_t", "SymInt[2]": "int64_t", "float[2]": "double", "bool[2]": "int64_t"}


def pair(define: Define, list_type: str) -> ops.KernelOperator:
    return define(
        f"pair(Tensor x, {list_type} k) -> Tensor",
        source=PAIR,
        outputs=ops.empty(2, dtype=torch.float64),
        macros={"T": "double", "ELEMENT": ELEMENTS[list_type.rstrip("?")]},
    )


def paths(operator: ops.KernelOperator) -> list[Callable[..., Any]]:
    packet = getattr(torch.ops, operator.qualified_name.split("::")[0]).pair
    return [operator, operator.overload, packet]


@pytest.mark.parametrize("list_type", ELEMENTS)
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_list_of_another_length_never_reaches_the_kernel(
    define: Define, list_type: str, length: int
) -> None:
    for path in paths(pair(define, list_type)):
        for device in ("cpu", "meta"):
            with pytest.raises(ContractError, match=f"k must have 2 elements, got {length}"):
                path(torch.ones(1, device=device), [True] * length)


@pytest.mark.parametrize("list_type", ELEMENTS)
def test_a_list_of_its_length_is_taken(define: Define, list_type: str) -> None:
    for path in paths(pair(define, list_type)):
        assert path(torch.ones(1), [True, False]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("list_type", "number"), [("int[2]", 5), ("int[2]?", 5), ("float[2]", 1.5)]
)
def test_one_number_stands_for_all_elements(define: Define, list_type: str, number: float) -> None:
    torch._dynamo.reset()  # a float that changes would be an input of the graph
    operator = pair(define, list_type)
    for path in paths(operator):
        assert path(torch.ones(1), number).tolist() == [number, number]
        assert path(torch.ones(1), k=number).tolist() == [number, number]
    compiled = torch.compile(lambda x: operator(x, number), fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(1)).tolist() == [number, number]


@pytest.mark.parametrize(
    ("list_type", "compiled_once"), [("SymInt[2]", True), ("int[]", True), ("int[2]", False)]
)
def test_a_size_in_a_list_compiles_anew_only_where_one_number_may_stand_for_it(
    define: Define, list_type: str, compiled_once: bool
) -> None:
    torch._dynamo.reset()
    operator = define(
        f"pair(Tensor x, {list_type} k) -> Tensor",
        source=PAIR,
        outputs=ops.empty(2, dtype=torch.float64),
        macros={"T": "double", "ELEMENT": "int64_t"},
    )
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(
        lambda x: operator(x, [x.shape[0], 1]), backend=backend, dynamic=True, fullgraph=True
    )
    for length in range(3, 7):
        assert compiled(torch.ones(length)).tolist() == [length, 1]
    assert len(graphs) == (1 if compiled_once else 4)


def test_a_default_of_one_number_is_a_list(define: Define) -> None:
    operator = define(
        "pair(Tensor x, int[2] k=3) -> Tensor",
        source=PAIR,
        outputs=ops.empty(2, dtype=torch.float64),
        macros={"T": "double", "ELEMENT": "int64_t"},
    )
    for path in paths(operator):
        assert path(torch.ones(1)).tolist() == [3, 3]


def test_an_optional_list_may_be_none(define: Define) -> None:
    operator = define(
        "maybe(Tensor x, int[2]? k=None) -> Tensor",
        outputs=ops.empty_like("x"),
        macros={"T": "float"},
    )
    operator(torch.ones(1)), operator.overload(torch.ones(1), None)


def test_operators_in_python_keep_the_rule(custom: Callable[..., ops.CustomOperator]) -> None:
    given: list[Any] = []

    def function(x: torch.Tensor, k: Any) -> torch.Tensor:
        given.append(k)
        return x.clone()

    operator = custom(function, schema="(Tensor x, int[2] k) -> Tensor")
    library = ops.Library("bringup_test_fixed", "FRAGMENT")
    library.define("pair(Tensor x, int[2] k) -> Tensor")
    library.impl("pair", function, "CPU")
    for path in (operator, operator.overload, torch.ops.bringup_test_fixed.pair):
        path(torch.ones(1), 5)
        path(torch.ones(1), (1, 2))
        with pytest.raises(ContractError, match="k must have 2 elements, got 1"):
            path(torch.ones(1), [7])
    assert given == [[5, 5], [1, 2]] * 3
    library._destroy()


class _Doubles:
    def method(self, x: torch.Tensor, k: Any) -> torch.Tensor:
        return x * len(k)

    __call__ = method


@pytest.mark.parametrize(
    "function",
    [
        _Doubles().method,
        _Doubles(),
        functools.partial(lambda n, x, k: x * n, 2),
        torch.ops.aten.sum.dim_IntList,
    ],
)
def test_whatever_is_called_for_an_operator_gets_lists_of_their_length(function: Any) -> None:
    library = ops.Library("bringup_test_fixed", "FRAGMENT")
    library.define("called(Tensor x, int[1] k) -> Tensor")
    library.impl("called", function, "CPU")
    torch.ops.bringup_test_fixed.called(torch.ones(1), [0])
    with pytest.raises(ContractError, match="k must have 1 elements, got 2"):
        torch.ops.bringup_test_fixed.called(torch.ones(1, 1), [0, 1])
    library._destroy()


def test_a_fallthrough_is_no_kernel() -> None:
    library = ops.Library("bringup_test_fixed", "FRAGMENT")
    library.define("through(Tensor x, int[1] k) -> Tensor")
    library.impl("through", lambda x, k: x * 2, "CPU")
    library.impl("through", torch.library.fallthrough_kernel, "AutogradCPU")
    assert torch.ops.bringup_test_fixed.through(torch.ones(1), [0]).item() == 2
    library._destroy()


def test_a_backward_operator_gets_a_mask_of_its_length(define: Define) -> None:
    backward = define(
        "backward(Tensor grad, bool[3] output_mask) -> Tensor",
        outputs=ops.empty_like("grad"),
        macros={"T": "float"},
    )
    forward = define(
        "forward(Tensor x) -> Tensor", outputs=ops.empty_like("x"), macros={"T": "float"}
    )
    forward.register_backward(backward.qualified_name)
    with pytest.raises(ContractError, match="output_mask must have 3 elements, got 1"):
        forward(torch.ones(1, requires_grad=True)).sum().backward()
