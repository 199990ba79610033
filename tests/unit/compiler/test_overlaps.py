"""Arguments that overlap, one of them written: what eager gives, however they overlap."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

import bringup.compiler  # noqa: F401 - makes the backend known
from bringup._native import torch_library

MODES = pytest.mark.parametrize("mode", [{}, {"mode": "serve"}, {"options": {"capture": True}}])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


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


@MODES
@pytest.mark.parametrize("function", [write_and_read, read_the_other, write_both])
def test_a_call_whose_arguments_overlap_gives_what_eager_gives(
    function: Any, mode: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    compiled = torch.compile(function, backend="bringup", **mode)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="bringup.compiler"):
        compiled(torch.ones(4), torch.ones(4))
        assert "overlaps" not in caplog.text
        for begin in (2, 1, 2):
            base, wanted = torch.arange(8.0), torch.arange(8.0)
            result = compiled(base[:4], base[begin : begin + 4])
            assert torch.equal(result, function(wanted[:4], wanted[begin : begin + 4]))
            assert torch.equal(base, wanted)
    assert caplog.text.count("overlaps another one in memory") == 1


@MODES
def test_the_calls_behind_one_that_overlapped_give_what_eager_gives(mode: dict[str, Any]) -> None:
    compiled = torch.compile(write_both, backend="bringup", dynamic=False, **mode)
    with torch.no_grad():
        for begin in (2, 1, 4, 2):
            base, wanted = torch.arange(8.0), torch.arange(8.0)
            result = compiled(base[:4], base[begin : begin + 4])
            assert torch.equal(result, write_both(wanted[:4], wanted[begin : begin + 4]))
            assert torch.equal(base, wanted)


@MODES
def test_an_argument_may_be_a_view_of_a_buffer_that_the_model_writes(mode: dict[str, Any]) -> None:
    class Cache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("k", torch.arange(6.0))

        def forward(self, x: Tensor) -> Tensor:
            self.k[:2].copy_(x[:2] * 2)
            return x + self.k.sum()

    model, oracle = Cache().eval(), Cache().eval()
    compiled = torch.compile(model, backend="bringup", **mode)
    with torch.no_grad():
        for given in (lambda of: torch.ones(3), lambda of: of.k[1:4], lambda of: of.k[:3]):
            assert torch.equal(compiled(given(model)), oracle(given(oracle)))
            assert torch.equal(model.k, oracle.k)


def test_parts_of_one_memory_that_do_not_overlap_stay_compiled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiled = torch.compile(write_and_read, backend="bringup", mode="serve")
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="bringup.compiler"):
        compiled(torch.ones(4), torch.ones(4))
        base = torch.arange(8.0)
        compiled(base[:4], base[4:])
    assert "overlaps" not in caplog.text


def test_pairs_are_told_by_their_positions_and_offsets() -> None:
    overlaps = torch_library("a test").graphs.overlaps
    base = torch.arange(10.0)
    given = (base[4:6], 3, base[:5], base[8:], base[:0], base.view(2, 5)[:, 1])
    assert overlaps(given, b"\1\0\0\0\0\0") == [(0, 4, 2, 0), (0, 4, 5, 1)]
    assert overlaps(given, b"\0\0\0\1\0\1") == [(0, 4, 5, 1), (2, 0, 5, 1)]
    assert overlaps(given, b"\0\0\0\0\0\0") == []
