"""Compiled functions that write an argument, called with arguments that overlap in memory, in one
way and then in another: results and memory are eager's.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tests.sweeps.support import FULL, part
from torch import Tensor

import bringup.compiler  # noqa: F401 - makes the backend known


def write_and_read(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


def read_the_other(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 3


def write_both(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(2)
    return x.sum() + y.sum()


def read_before_and_behind(x: Tensor, y: Tensor) -> Tensor:
    before = y.clone()
    x.fill_(3)
    return before + y


def write_a_part(x: Tensor, y: Tensor) -> Tensor:
    x[1:].add_(y[:-1].sum())
    return y + 1


def write_rows(x: Tensor, y: Tensor) -> Tensor:
    x.index_copy_(0, torch.tensor([2]), y[:1] + 5)
    return x - y


def write_twice(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    z = y.exp()
    x.copy_(z)
    return y * x


def give_back(x: Tensor, y: Tensor) -> Tensor:
    x.neg_()
    return x[1:]


class Cache(torch.nn.Module):
    """Writes a buffer, and is given a view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("k", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        self.k[:3].add_(x[:3])
        return self.k.sum() + x


FUNCTIONS = (
    *(write_and_read, read_the_other, write_both, read_before_and_behind),
    *(write_a_part, write_rows, write_twice, give_back),
)


def shared_memory() -> tuple[Tensor, Tensor, Tensor]:
    """Two storages over one memory, as NumPy's users make them."""
    memory = torch.arange(16.0)
    array = memory.numpy()
    return memory, torch.from_numpy(array[:4]), torch.from_numpy(array[2:6])


def views(first: int, second: int) -> Callable[[], tuple[Tensor, ...]]:
    def made() -> tuple[Tensor, ...]:
        base = torch.arange(16.0)
        return base, base[first : first + 4], base[second : second + 4]

    return made


FORMS: dict[str, Callable[[], tuple[Tensor, ...]]] = {
    "apart": lambda: (torch.zeros(1), torch.arange(4.0), torch.arange(4.0) * 2 + 1),
    "adjacent": views(0, 4),
    "shifted": views(0, 2),
    "shifted_otherwise": views(0, 1),
    "behind": views(3, 0),
    "alike": views(2, 2),
    "two_storages": shared_memory,
}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "serve": {"mode": "serve"},
    "capture": {"options": {"capture": True}},
    "inductor": {"options": {"inner": "inductor"}},
}


class Case(NamedTuple):
    function: Any
    first: str
    second: str
    mode: str

    @property
    def name(self) -> str:
        return "-".join([self.function.__name__, *self[1:]])


ALL = [
    Case(*case)
    for case in itertools.product(FUNCTIONS, FORMS, FORMS, MODES)
    if case[1] != case[2] and (FULL or case[3] != "inductor")
]
random.Random(0).shuffle(ALL)
CASES = ALL if FULL else ALL[:300]
LISTED = [
    Case(write_and_read, "apart", "shifted", "serve"),
    Case(write_both, "apart", "shifted", "capture"),
]


def eager(function: Any, given: tuple[Tensor, ...]) -> Tensor | None:
    """What eager gives; None where an operator refuses the overlap."""
    try:
        return function(*given[1:])
    except RuntimeError as refusal:
        if "single memory location" not in str(refusal):
            raise
        return None


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("case", part(CASES, LISTED), ids=lambda case: case.name)
def test_every_overlap_gives_what_eager_gives(case: Case, sweep_counts: Counter[str]) -> None:
    compiled = torch.compile(case.function, backend="bringup", dynamic=False, **MODES[case.mode])
    with torch.no_grad():
        for form in (case.first, case.second, case.second, case.first):
            given, wanted = FORMS[form](), FORMS[form]()
            if (want := eager(case.function, wanted)) is None:
                continue
            result = compiled(*given[1:])
            torch.testing.assert_close(result, want, msg=lambda text, form=form: f"{form}: {text}")
            for one, other in zip(given, wanted, strict=True):
                torch.testing.assert_close(one, other)
            sweep_counts["calls"] += 1


ORDERS = [*itertools.product(("apart", "first", "later"), repeat=2)]


@pytest.mark.parametrize(
    ("order", "mode"),
    part([*itertools.product(ORDERS, MODES if FULL else ("default", "serve", "capture"))]),
)
def test_a_view_of_the_written_buffer_is_what_it_is_in_eager(
    order: tuple[str, str], mode: str
) -> None:
    model, oracle = Cache().eval(), Cache().eval()
    compiled = torch.compile(model, backend="bringup", dynamic=False, **MODES[mode])

    def given(of: Cache, form: str) -> Tensor:
        return {"apart": torch.ones(4), "first": of.k[:4], "later": of.k[1:5]}[form]

    with torch.no_grad():
        for form in (*order, *order):
            want = eager(oracle, (oracle.k, given(oracle, form)))
            if want is None:
                continue
            torch.testing.assert_close(compiled(given(model, form)), want)
            torch.testing.assert_close(model.k, oracle.k)
