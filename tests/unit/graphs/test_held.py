"""State that the captured run itself keeps in Python: refused, wherever it is kept."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import nn

from bringup.errors import CaptureError


class PingPong(nn.Module):
    """Two buffers that change places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.ones(2))
        self.register_buffer("b", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.a
        self.b.copy_(y * 2)
        self.a, self.b = self.b, self.a
        return y


class Slots:
    """What holds tensors in a list, a dictionary, a tuple and an attribute."""

    def __init__(self) -> None:
        self.older = torch.full((2,), 5.0)
        self.state = torch.ones(2)
        self.layers = [torch.ones(2), torch.zeros(2)]
        self.named = OrderedDict(keys=torch.ones(2))
        self.pair = (torch.ones(2), torch.zeros(2))
        self.namespace = SimpleNamespace(keys=torch.ones(2))
        self.inner: Any = None


def _to_an_older_tensor(held: Slots, x: torch.Tensor) -> torch.Tensor:
    y = x * held.state
    held.state = held.older
    return y


def _to_a_result(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.state = held.state + x
    return held.state * 2


def _to_what_no_operator_made(held: Slots, x: torch.Tensor) -> torch.Tensor:
    y = x * held.state
    held.state = x
    return y


def _in_a_list(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.layers[0] = torch.cat([held.layers[0], x])
    return held.layers[0].sum()


def _in_a_dictionary(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.named["keys"] = torch.cat([held.named["keys"], x])
    return held.named["keys"].sum()


def _in_a_namespace(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.namespace.keys = held.namespace.keys + x
    return held.namespace.keys.sum()


def _another_list(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.layers = [layer + x for layer in held.layers]
    return held.layers[0].sum()


def _another_tuple(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.pair = (held.pair[0] + x, held.pair[1])
    return held.pair[0].sum()


REBOUND: dict[str, tuple[Callable[[Slots, torch.Tensor], torch.Tensor], str]] = {
    "older": (_to_an_older_tensor, r"held\.state"),
    "result": (_to_a_result, r"held\.state"),
    "input": (_to_what_no_operator_made, r"held\.state"),
    "list": (_in_a_list, r"held\.layers\[0\]"),
    "dictionary": (_in_a_dictionary, r"held\.named\['keys'\]"),
    "namespace": (_in_a_namespace, r"held\.namespace\.keys"),
    "another list": (_another_list, r"held\.layers\[0\]"),
    "another tuple": (_another_tuple, r"held\.pair\[0\]"),
}


@pytest.mark.parametrize("name", REBOUND)
def test_tensor_that_the_run_reads_and_replaces_is_refused_by_its_path(name: str) -> None:
    step, path = REBOUND[name]
    held, x = Slots(), torch.ones(2)
    with pytest.raises(
        CaptureError,
        match=rf"the run reads '{path}' and puts another tensor in its place: .* with copy_",
    ):
        captured(lambda: step(held, x))


def test_buffers_that_change_places_are_refused() -> None:
    model, x = PingPong(), torch.ones(2)
    with pytest.raises(CaptureError, match=r"the run reads 'model\.a' and puts another tensor"):
        captured(lambda: model(x))
    assert x.tolist() == [1, 1]


class Whole(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self._inner = nn.Linear(2, 2)
        nn.init.constant_(self._inner.weight, gain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._inner(x)
        self._inner = nn.Linear(2, 2)
        return y


def test_submodule_that_the_run_replaces_is_refused() -> None:
    model = Whole(2)
    with pytest.raises(CaptureError, match=r"reads 'function\._inner\.weight' and puts another"):
        captured(model, torch.ones(1, 2))


def _unread(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.state = x * 2
    return held.state


def _same_memory(held: Slots, x: torch.Tensor) -> torch.Tensor:
    y = x * held.state
    held.state = held.state.detach()
    return y


def _same_tensors_in_another_list(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.layers = list(held.layers)
    return held.layers[0] + held.layers[1] + x


def _in_place(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.state.add_(x)
    return held.state * 2


def _around_itself(held: Slots, x: torch.Tensor) -> torch.Tensor:
    held.inner = copy.copy(held)
    return held.state + x


@pytest.mark.parametrize(
    "step", [_unread, _same_memory, _same_tensors_in_another_list, _in_place, _around_itself]
)
def test_what_replay_computes_as_the_run_does_is_captured(
    step: Callable[[Slots, torch.Tensor], torch.Tensor],
) -> None:
    held, eager, x = Slots(), Slots(), torch.ones(2)
    held.inner, eager.inner = held, eager
    graph, output = captured(lambda: step(held, x))
    for value in (3.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert torch.equal(output, step(eager, x))


@dataclass
class _Trail:
    kept: list[torch.Tensor]


class _Passing(nn.Module):
    """Gives another module a list with a result."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        trail = _Trail([x * 2])
        there = weakref.ref(trail)
        nn.Identity()(trail)
        del trail
        self.alive.append(there() is not None)
        return x + 1


def test_results_of_the_run_that_a_call_is_given_are_not_kept_alive() -> None:
    model = _Passing()
    captured(model, torch.ones(2))
    assert model.alive == [False]


@pytest.mark.slow
def test_cache_of_transformers_that_grows_is_refused_and_the_static_one_goes_on() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    growing = transformers.DynamicCache(config=config)
    model(torch.tensor([[1, 2, 3]]), past_key_values=growing)
    token = torch.tensor([[4]])
    with pytest.raises(CaptureError, match=r"reads 'growing\.layers\[0\]\.keys' .* StaticCache"):
        captured(lambda: model(token, past_key_values=growing))

    def prompted() -> Any:
        cache = transformers.StaticCache(config=config, max_cache_len=8)
        model(torch.tensor([[1, 2, 3]]), past_key_values=cache)
        return cache

    static, eager = prompted(), prompted()
    graph, output = captured(lambda: model(token, past_key_values=static).logits)
    for value in (5, 6):
        token.fill_(value)
        graph.replay()
        assert torch.equal(output, model(token, past_key_values=eager).logits)
