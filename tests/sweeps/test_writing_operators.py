"""Operators that write, and control flow, in compiled functions: results and every written buffer
are eager's, two calls in a row, whatever defined the operator, in every mode.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.sweeps.support import FULL, part
from tests.unit.ops.support import ADD_INPLACE
from torch import Tensor

import bringup.compiler  # noqa: F401 - makes the backend known
from bringup import ops

NAMESPACE = "writing_sweep"


def add(x: Tensor, y: Tensor) -> None:
    x.add_(y)


def add_both(x: Tensor, y: Tensor, z: Tensor) -> None:
    x.add_(z)
    y.mul_(2).add_(z)


def count(x: Tensor, y: Tensor) -> Tensor:
    """Writes, and returns something new."""
    x.add_(y)
    return x * 3


def nothing(*args: Any) -> None:
    pass


OPERATORS: dict[str, Callable[..., Any]] = {"aten": add}
"""Every kind of definition of `x += y`, and siblings that write two, and return."""


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Iterator[None]:
    found = OPERATORS
    for name, library in (("ours", ops), ("torch", torch.library)):
        define: Any = library.custom_op
        for function, written in ((add, {"x"}), (add_both, {"x", "y"}), (count, {"x"})):
            op = define(f"{NAMESPACE}::{name}_{function.__name__}", mutates_args=written)(function)
            op.register_fake((lambda x, y: torch.empty_like(x)) if function is count else nothing)
            found[f"{name}_{function.__name__}"] = op
    found["kernel"] = ops.kernel_op(
        f"{NAMESPACE}::kernel(Tensor(a!) x, Tensor y) -> ()",
        source=ADD_INPLACE,
        checks=ops.same_shape("x", "y"),
        dtypes={"T": "x"},
    )
    found["kernel_returning"] = ops.kernel_op(
        f"{NAMESPACE}::kernel_returning(Tensor(a!) x, Tensor y) -> Tensor(a!)",
        source=ADD_INPLACE,
        checks=ops.same_shape("x", "y"),
        dtypes={"T": "x"},
    )
    library = ops.Library(NAMESPACE, "FRAGMENT")
    library.define("library(Tensor(a!) x, Tensor y) -> ()")
    library.impl("library", add, "CompositeExplicitAutograd")
    library.define("library_list(Tensor(a!)[] x, Tensor y) -> ()")
    library.impl("library_list", lambda x, y: [item.add_(y) for item in x] and None, "CPU")
    found["library"] = torch.ops.writing_sweep.library
    found["library_list"] = lambda x, y: torch.ops.writing_sweep.library_list([x, x * 2], y)
    yield
    del library  # which held the operators


KINDS = (
    *("ours_add", "ours_add_both", "ours_count", "torch_add", "torch_add_both", "torch_count"),
    *("kernel", "kernel_returning", "library", "library_list", "aten"),
)


def written(kind: str, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Call an operator; what it returns, or nothing of weight."""
    op = OPERATORS[kind]
    given = (x, y, z) if kind.endswith("both") else (x, z)
    result = op(*given)
    return result if isinstance(result, Tensor) else z


class Program(torch.nn.Module):
    """A Linear, and a writing operator at one kind of place."""

    def __init__(self, kind: str, shape: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.shape = kind, shape
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("k", torch.arange(32.0).reshape(4, 8))
        self.register_buffer("v", torch.ones(4, 8))

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        y = self.linear(x)
        return getattr(self, self.shape)(y, given)

    def whole_input(self, y: Tensor, given: Tensor) -> Tensor:
        return written(self.kind, given, y * 2, y) + given

    def slice_of_input(self, y: Tensor, given: Tensor) -> Tensor:
        return written(self.kind, given[1:3], given[3:5] * 1, y[:2]).sum() + given

    def row_of_input(self, y: Tensor, given: Tensor) -> Tensor:
        before = given[0] * 2
        extra = written(self.kind, given[1], y[1] * 2, y[0])
        return before + given.sum(0) + extra

    def intermediate(self, y: Tensor, given: Tensor) -> Tensor:
        z, w = given * 2, y + 1
        extra = written(self.kind, z, w, y)
        return z + w + extra

    def read_again(self, y: Tensor, given: Tensor) -> Tensor:
        z, w = given * 2, y.clone()
        former = z.t()
        kept = former * 3
        extra = written(self.kind, z, w, y)
        return former.t() + z + w + kept.t() + extra

    def slice_of_intermediate(self, y: Tensor, given: Tensor) -> Tensor:
        z = given * 2
        extra = written(self.kind, z[1:], y[1:] * 1, y[:-1] * 1)
        return z + extra.sum()

    def column_of_intermediate(self, y: Tensor, given: Tensor) -> Tensor:
        z = given.exp()
        extra = written(self.kind, z[:, 2], z[:, 3] * 1, y[:, 1])
        return z + extra.sum()

    def buffer(self, y: Tensor, given: Tensor) -> Tensor:
        extra = written(self.kind, self.k, self.v, y[:4])
        return self.k.sum(0) + self.v.sum(0) + extra.sum() + y

    def row_of_buffer(self, y: Tensor, given: Tensor) -> Tensor:
        extra = written(self.kind, self.k[1], self.v[2], y[0])
        return self.k.sum(0) + self.v.sum(0) * 2 + extra + y

    def twice(self, y: Tensor, given: Tensor) -> Tensor:
        extra = written(self.kind, self.k[1:3], self.v[1:3], y[:2])
        middle = self.k.sum()
        self.k.mul_(2)
        extra = extra + written(self.kind, self.k[0:2], self.v[0:2], y[2:4])
        return self.k + middle + self.v + extra.sum()

    def tail_of_given_view(self, y: Tensor, given: Tensor) -> Tensor:
        given.add_(1)
        extra = written(self.kind, given[:, 1], given[:, 2] * 1, y[:, 0])
        return given + extra.sum()


SHAPES = tuple(name for name, item in vars(Program).items() if callable(item) and name[0] != "_")[
    1:
]
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "serve": {"mode": "serve"},
    "max": {"mode": "max"},
    "capture": {"options": {"capture": True}},
    "no_passes": {"options": {"mode": "serve", "passes": []}},
    "inductor": {"options": {"inner": "inductor"}},
}


class Case(NamedTuple):
    kind: str
    shape: str
    mode: str
    dynamic: bool
    offset: int
    """Where the written argument begins in its storage, from the second call on."""


ALL = [
    Case(*case)
    for case in itertools.product(KINDS, SHAPES, MODES, (False, True), (0, 8))
    # a kernel's written argument is contiguous
    if not (
        case[0].startswith("kernel") and case[1] in ("column_of_intermediate", "tail_of_given_view")
    )
]
random.Random(0).shuffle(ALL)
# a compile costs a fifth of a second, one by Inductor many
CASES = ALL if FULL else [case for case in ALL if case.mode != "inductor"][:120]
LISTED = [
    Case("ours_add", "row_of_buffer", "default", False, 0),
    Case("torch_add", "buffer", "capture", False, 0),
    Case("ours_add_both", "read_again", "serve", False, 0),
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def arguments(rows: int, offset: int, turn: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(turn)
    x = torch.randn(rows, 8, generator=generator)
    memory = torch.randn(rows * 8 + 16, generator=generator)
    begin = offset if turn else 0
    return x, memory[begin : begin + rows * 8].reshape(rows, 8)


def run(model: Program, call: Any, case: Case) -> list[Tensor]:
    found = []
    for turn, rows in enumerate((5, 5, 6) if case.dynamic else (5, 5)):
        x, given = arguments(rows, case.offset, turn)
        result = call(x, given)
        found += [item.clone() for item in (result, given, model.k, model.v)]
    return found


@pytest.mark.parametrize("case", part(CASES, LISTED), ids=lambda case: "-".join(map(str, case)))
def test_results_and_written_memory_are_those_of_eager(
    case: Case, sweep_counts: Counter[str]
) -> None:
    model, oracle = Program(case.kind, case.shape).eval(), Program(case.kind, case.shape).eval()
    options = MODES[case.mode]
    with torch.no_grad():
        want = run(oracle, oracle, case)
        dynamic = case.dynamic or None
        got = run(model, torch.compile(model, backend="bringup", dynamic=dynamic, **options), case)
    sweep_counts["programs"] += 1
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **tolerance(case.mode))


def tolerance(mode: str) -> dict[str, float]:
    return {"rtol": 0.1, "atol": 0.1} if mode == "max" else {}  # packed in bfloat16


class Branch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (y,)) + y


class Loop(Branch):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        y = self.linear(x)
        _, z = while_loop(
            lambda i, z: i < 3, lambda i, z: (i + 1, torch.sin(z)), (torch.tensor(0), y)
        )
        return y + z


FLOWS = [
    (model, mode) for model in (Branch, Loop) for mode in ("default", "serve", "max", "no_passes")
]


@pytest.mark.parametrize(("kind", "mode"), part(FLOWS, [(Branch, "serve")]))
def test_control_flow_beside_a_layer_is_that_of_eager(kind: Any, mode: str) -> None:
    model = kind().eval()
    options = MODES[mode]
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", **options)
        for turn in range(3):
            x = torch.randn(2, 8) + (-1) ** turn
            torch.testing.assert_close(compiled(x), model(x), **tolerance(mode))
