"""Code that no operator shows: what of it a capture finds, and what it cannot."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import nn

from bringup import graphs
from bringup.errors import CaptureError

_GLOBAL = torch.zeros(3)


def _zero_out(tensor: torch.Tensor) -> None:
    ctypes.memset(tensor.data_ptr(), 0, tensor.nbytes)


@pytest.mark.slow
def test_inductors_code_is_refused_where_it_is_entered_and_writes_nothing() -> None:
    torch._dynamo.reset()
    cache, x, weight = torch.zeros(4, 3), torch.ones(1, 3), torch.randn(3, 3)

    def step(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1] = x[0]
        return torch.mm(x, weight)

    compiled = torch.compile(step)
    with pytest.raises(CaptureError, match="calls code that Inductor generated"):
        captured(compiled, cache, x)  # compiled within the capture
    with pytest.raises(CaptureError, match='Compile with backend="bringup" or "eager"'):
        captured(compiled, cache, x)
    assert cache.sum() == 0
    compiled(cache, x)
    assert cache.sum() == 3


def test_another_tool_that_wraps_generated_code_inside_a_capture_keeps_its_wrapper() -> None:
    from torch._inductor.output_code import CompiledFxGraph

    former, x = CompiledFxGraph.__call__, torch.ones(3)

    def wrapper(*args: Any) -> Any:
        return former(*args)

    def run() -> torch.Tensor:
        CompiledFxGraph.__call__ = wrapper
        return x * 2

    try:
        captured(run)
        assert CompiledFxGraph.__call__ is wrapper
    finally:
        CompiledFxGraph.__call__ = former


def test_methods_of_generated_code_are_what_they_were_after_a_capture() -> None:
    from torch._inductor.output_code import CompiledAOTI, CompiledFxGraph

    owned = [dict(vars(owner)) for owner in (CompiledFxGraph, CompiledAOTI)]
    x = torch.ones(3)
    captured(lambda: x * 2)
    assert [dict(vars(owner)) for owner in (CompiledFxGraph, CompiledAOTI)] == owned


def test_write_through_numpy_is_found_and_put_back() -> None:
    x = torch.ones(3)
    alias = x.numpy()

    def run() -> torch.Tensor:
        y = x * 2
        alias[0] = 7
        return y

    with pytest.raises(CaptureError) as refused:
        captured(run)
    assert str(refused.value).startswith(
        "the tensor 'x' (float32[3]) was written inside the capture by code that the recorder "
        "cannot see"
    )
    assert x.tolist() == [1, 1, 1]


@dataclass
class _Holder:
    layers: list[dict[str, torch.Tensor]] = field(default_factory=list)


class _WithCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _zero_out(self.keys)
        return x + 1


def _in_argument() -> Callable[[], Any]:
    cache = torch.ones(3)
    return lambda: _zero_out(cache)


def _in_object() -> Callable[[], Any]:
    holder = _Holder([{"keys": torch.ones(3)}])
    return lambda: _zero_out(holder.layers[0]["keys"])


def _in_module() -> Callable[[], Any]:
    model = _WithCache()
    return lambda: model(torch.ones(3))


def _in_global() -> Callable[[], Any]:
    _GLOBAL.fill_(1)
    return lambda: _zero_out(_GLOBAL)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (_in_argument, "cache"),
        (_in_object, r"holder\.layers\[0\]\['keys'\]"),
        (_in_module, r"model\.keys"),
        (_in_global, "_GLOBAL"),
    ],
)
def test_unseen_write_is_found_wherever_the_code_reaches(
    make: Callable[[], Callable[[], Any]], name: str
) -> None:
    write, x = make(), torch.ones(3)
    with pytest.raises(CaptureError, match=rf"the tensor '{name}' \(float32\[3\]\) was written"):
        captured(lambda: (write(), x * 2))


def test_module_that_only_its_call_shows_is_looked_at_when_it_is_called() -> None:
    models = iter([_WithCache()])
    with pytest.raises(CaptureError, match=r"'_WithCache\.keys' \(float32\[3\]\) was written"):
        captured(lambda: next(models)(torch.ones(3)))


class _Writing(nn.Module):
    def forward(self, x: torch.Tensor, *, cache: torch.Tensor) -> torch.Tensor:
        _zero_out(cache)
        return x * 2


def test_keyword_argument_that_only_the_call_shows_is_looked_at() -> None:
    caches, model, x = iter([torch.ones(3)]), _Writing(), torch.ones(3)
    with pytest.raises(
        CaptureError, match=r"'its keyword arguments\['cache'\]' \(float32\[3\]\) was written"
    ):
        captured(lambda: model(x, cache=next(caches)))


def test_large_tensors_are_compared_too() -> None:
    filler, large = torch.ones(5 << 20), torch.ones(13 << 20)

    def run() -> torch.Tensor:
        ctypes.memset(large.data_ptr() + large.nbytes - 4, 1, 1)
        return filler[:3] * 2

    with pytest.raises(CaptureError, match=r"the tensor 'large' \(float32\[13631488\]\) was writ"):
        captured(run)


def test_what_operators_write_is_no_unseen_write() -> None:
    cache, x = torch.zeros(4), torch.ones(2)
    graph, _ = captured(lambda: (cache[1:3].copy_(x), cache.sum()))
    graph.replay()
    assert cache.tolist() == [0, 1, 1, 0]


def test_variables_of_the_capturing_function_are_not_kept() -> None:
    import gc
    import weakref

    x = torch.ones(3)
    alive, graph = weakref.ref(x), graphs.CapturedGraph()
    with graphs.capture(graph):
        y = x * 2
    del x
    gc.collect()
    assert alive() is None
    graph.replay()
    assert y.tolist() == [2, 2, 2]


def test_limit_a_write_that_no_operator_makes_to_memory_that_nothing_leads_to_is_lost() -> None:
    """The limit that docs/graphs/capture.md states: an iterator hides what it holds."""
    hidden = torch.ones(3)
    address, holder, x = hidden.data_ptr(), iter([hidden]), torch.ones(3)
    size = hidden.nbytes
    del hidden

    def run() -> torch.Tensor:
        ctypes.memset(address, 0, size)
        return x * 2

    graph, _ = captured(run)
    hidden = next(holder)
    hidden.fill_(5)
    graph.replay()
    assert hidden.tolist() == [5, 5, 5]  # the function would write zeros


def test_limit_a_value_read_through_its_address_becomes_a_constant() -> None:
    """The limit that docs/graphs/capture.md states: no operator shows the read."""
    factor, x = torch.full((1,), 3.0), torch.ones(3)

    def run() -> torch.Tensor:
        return x * ctypes.c_float.from_address(factor.data_ptr()).value

    graph, output = captured(run)
    factor.fill_(100)
    graph.replay()
    assert output.tolist() == [3, 3, 3]
