"""Replays draw what the captured calls would draw now, from the generators that these would use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from tests.unit.graphs.support import ReferenceRecorder, captured
from torch import Tensor
from torch.nn import functional

from bringup import devices, graphs
from bringup.errors import CaptureError


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def _drawn(call: Callable[[], Tensor], length: int) -> list[Tensor]:
    return [call().cpu().clone() for _ in range(length)]


def _replayed(graph: graphs.CapturedGraph, output: Tensor, length: int) -> list[Tensor]:
    values = []
    for _ in range(length):
        graph.replay()
        values.append(output.cpu().clone())
    return values


def _equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_dropout_on_the_device_draws_from_the_devices_generator() -> None:
    x, q = torch.ones(64, device="npu"), torch.randn(1, 2, 8, 4).to("npu")
    for call in (
        lambda: functional.dropout(x, 0.5, True),
        lambda: functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
    ):
        torch.manual_seed(0)
        host = torch.get_rng_state()
        graph, output = captured(call)
        torch.npu.manual_seed(1)
        expected = _drawn(call, 3)
        state = torch.npu.get_rng_state()
        torch.npu.manual_seed(1)
        assert _equal(_replayed(graph, output, 3), expected)
        assert torch.equal(torch.npu.get_rng_state(), state)
        assert torch.equal(torch.get_rng_state(), host)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_dispatch_mode_hides_no_random_numbers_from_the_capture(
    guard: Callable[[], AbstractContextManager[None]], device: str
) -> None:
    module = torch if device == "cpu" else torch.npu
    x = torch.linspace(0.1, 0.9, 64, device=device)
    own = torch.Generator(device).manual_seed(3)

    def model() -> Tensor:
        draws = [
            torch.rand(64, generator=own, device=device),
            torch.rand_like(x),
            torch.randn(64, device=device),
            torch.randn_like(x),
            torch.randint(9, (64,), device=device).float(),
            torch.randperm(64, device=device).float(),
            torch.bernoulli(x),
            functional.dropout(x, 0.5),
            functional.rrelu(-x, training=True),
        ]
        return torch.stack(draws)

    def under_a_mode() -> Tensor:
        with ReferenceRecorder():
            return model()

    host = torch.get_rng_state()
    with guard():
        graph, output = captured(under_a_mode)
        assert [node.op for node in graph.nodes] == [node.op for node in captured(model)[0].nodes]
        module.manual_seed(5), own.manual_seed(6)
        expected = _drawn(model, 3)
        states = module.get_rng_state(), own.get_state()
        module.manual_seed(5), own.manual_seed(6)
        assert _equal(_replayed(graph, output, 3), expected)
    assert all(map(torch.equal, states, (module.get_rng_state(), own.get_state())))
    assert device == "cpu" or torch.equal(torch.get_rng_state(), host)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_factories_in_the_first_call_of_a_compiled_function_are_captured(device: str) -> None:
    module = torch if device == "cpu" else torch.npu
    x = torch.ones(16, device=device)

    def model(x: Tensor) -> Tensor:
        mask = torch.rand(16, device=device) < 0.5  # a dropout written by hand
        return x * mask + torch.randn_like(x)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="bringup", options={"passes": []})
    graph, output = captured(compiled, x)  # AOT autograd watches a first call with a dispatch mode
    module.manual_seed(5)
    expected = _drawn(lambda: model(x), 3)
    state = module.get_rng_state()
    module.manual_seed(5)
    assert _equal(_replayed(graph, output, 3), expected)
    assert torch.equal(module.get_rng_state(), state)


def test_capture_moves_no_generator_of_any_device() -> None:
    own = torch.Generator("npu:1").manual_seed(4)
    generators = [torch.default_generator, *torch.npu.default_generators, own]
    states = [generator.get_state() for generator in generators]
    captured(lambda: (torch.rand(3, device="npu:1"), torch.rand(2), torch.rand(2)))
    captured(lambda: torch.empty(3, device="npu:1").normal_(generator=own))
    for generator, state in zip(generators, states, strict=True):
        assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_states_set_between_replays_are_honoured(device: str) -> None:
    module = torch if device == "cpu" else torch.npu
    graph, output = captured(lambda: torch.rand(3, device=device) + torch.rand(3, device=device))
    state = module.get_rng_state()
    first = _replayed(graph, output, 3)
    module.set_rng_state(state)
    assert _equal(_replayed(graph, output, 3), first)
    module.set_rng_state(state)
    module.get_rng_state()
    torch.rand(3, device=device), torch.rand(3, device=device)
    assert _equal(_replayed(graph, output, 2), first[1:])


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_own_generator_is_used_as_it_is_at_replay(device: str) -> None:
    generator = torch.Generator(device).manual_seed(3)
    default = torch.npu.get_rng_state()
    graph, output = captured(lambda: torch.rand(5, generator=generator, device=device))
    generator.manual_seed(8)
    expected = _drawn(lambda: torch.rand(5, generator=generator, device=device), 2)
    generator.manual_seed(8)
    assert _equal(_replayed(graph, output, 2), expected)
    assert torch.equal(torch.npu.get_rng_state(), default)


def test_state_that_a_generator_shares_since_the_capture_is_used() -> None:
    mine, other = torch.Generator("npu").manual_seed(3), torch.Generator("npu").manual_seed(4)
    graph, output = captured(lambda: torch.rand(5, generator=mine, device="npu"))
    mine.graphsafe_set_state(other.graphsafe_get_state())
    graph.replay()
    assert other.get_offset() == 1
    assert torch.equal(output, torch.rand(5, generator=other.manual_seed(4), device="npu"))


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_generator_that_was_freed_is_missed_by_a_replay(device: str) -> None:
    own = [torch.Generator(device).manual_seed(3)]
    graph, output = captured(lambda: torch.rand(5, generator=own[0], device=device))
    graph.replay()
    values = output.cpu().clone()
    own[0] = torch.Generator(device).manual_seed(3)
    with pytest.raises(CaptureError, match=r"that aten::uniform_ drew from was freed, or"):
        graph.replay()
    assert torch.equal(output.cpu(), values)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_generator_made_inside_a_capture_is_refused(device: str) -> None:
    def model() -> Tensor:
        return torch.rand(5, generator=torch.Generator(device).manual_seed(3), device=device)

    with pytest.raises(CaptureError, match=r"the torch.Generator of .* inside the capture"):
        captured(model)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_seeding_inside_a_capture_is_refused(device: str) -> None:
    module = torch if device == "cpu" else torch.npu
    state = module.get_rng_state()

    def seeds_before() -> Tensor:
        module.manual_seed(3)
        return torch.rand(5, device=device)

    def seeds_after() -> Tensor:
        drawn = torch.rand(5, device=device)
        module.manual_seed(3)
        return drawn

    for model in (seeds_before, seeds_after):
        with pytest.raises(CaptureError, match=rf"the torch.Generator of {device}.*seeded.*inside"):
            captured(model)
        assert torch.equal(module.get_rng_state(), state)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_seeding_an_own_generator_inside_a_capture_is_refused(device: str) -> None:
    generator = torch.Generator(device).manual_seed(2)
    torch.rand(1, generator=generator, device=device)
    state = generator.get_state()
    with (
        pytest.raises(CaptureError, match=rf"the torch.Generator of {device}.*seeded.*inside"),
        graphs.capture(graphs.CapturedGraph()),
    ):
        torch.rand(5, generator=generator.manual_seed(3), device=device)
    assert torch.equal(generator.get_state(), state)


def test_generator_that_a_module_holds_is_missed_when_it_is_replaced() -> None:
    class Noise(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator()

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand(x.shape, generator=self.generator)

    model = Noise()
    graph, _ = captured(model, torch.ones(3))
    former, model.generator = model.generator, torch.Generator()
    with pytest.raises(CaptureError, match="attribute 'generator' of Noise is another Generator"):
        graph.replay()
    model.generator = former
    graph.replay()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_state_from_before_the_capture_is_refused_inside(device: str) -> None:
    module = torch if device == "cpu" else torch.npu
    torch.rand(5, device=device)
    state = module.get_rng_state()
    torch.rand(5, device=device)

    def model() -> Tensor:
        module.set_rng_state(state)
        return torch.rand(5, device=device)

    with pytest.raises(CaptureError, match="inside the capture: a replay would not repeat that"):
        captured(model)


def test_state_forked_inside_a_capture_is_forked_by_every_replay() -> None:
    def model() -> Tensor:
        with torch.random.fork_rng(devices=[0], device_type="npu"):
            first = torch.rand(4, device="npu")
        return torch.stack([first, torch.rand(4, device="npu"), torch.rand(4, device="npu")])

    graph, output = captured(model)
    torch.npu.manual_seed(5)
    expected = _drawn(model, 3)
    torch.npu.manual_seed(5)
    replayed = _replayed(graph, output, 3)
    assert _equal(replayed, expected)
    assert torch.equal(replayed[0][0], replayed[0][1])


def test_seeding_after_a_replay_was_launched_does_not_change_it() -> None:
    go = threading.Event()

    @torch.library.custom_op("graphs_random_test::wait", mutates_args=())
    def wait(x: Tensor) -> Tensor:
        assert go.wait(60)
        return x.clone()

    x = torch.zeros(4, device="npu")
    go.set()
    graph, output = captured(lambda: wait(x) + torch.rand(4, device="npu"))
    torch.npu.manual_seed(5)
    expected = torch.rand(4, device="npu").cpu()
    go.clear()
    torch.npu.manual_seed(5)
    graph.replay()
    torch.npu.manual_seed(6)
    go.set()
    assert torch.equal(output.cpu(), expected)


def test_numbers_of_the_cpu_in_a_graph_of_a_device_are_drawn_before_replay_returns() -> None:
    def model() -> Tensor:
        return torch.rand(4).to("npu") + torch.rand(4, device="npu")

    graph, output = captured(model)
    torch.manual_seed(2)
    expected = _drawn(model, 2)
    torch.manual_seed(2)
    replayed = []
    for _ in range(2):
        graph.replay()
        state = torch.get_rng_state()
        replayed.append(output.cpu().clone())
        assert torch.equal(torch.get_rng_state(), state)
    assert _equal(replayed, expected)


def test_operator_that_draws_inside_its_kernel_replays_from_the_device() -> None:
    @torch.library.custom_op("graphs_random_test::noisy", mutates_args=(), device_types="cpu")
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand(4) * torch.bernoulli(torch.full((4,), 0.5))

    x = torch.zeros(4, device="npu")
    host = torch.get_rng_state()
    graph, output = captured(lambda: noisy(x) + torch.rand(4, device="npu"))
    torch.npu.manual_seed(2)
    expected = _drawn(lambda: noisy(x) + torch.rand(4, device="npu"), 3)
    torch.npu.manual_seed(2)
    assert _equal(_replayed(graph, output, 3), expected)
    assert torch.equal(torch.get_rng_state(), host)


def test_operator_that_draws_more_than_in_the_capture_is_told() -> None:
    @torch.library.custom_op("graphs_random_test::as_often", mutates_args=(), device_types="cpu")
    def as_often(x: Tensor) -> Tensor:
        return x + sum(torch.rand(4) for _ in range(int(x[0])))

    x = torch.ones(4, device="npu")
    graph, _ = captured(lambda: as_often(x))
    x.fill_(2)
    graph.replay()
    with pytest.raises(RuntimeError, match=r"as_often.*draws more random numbers than in the capt"):
        torch.npu.synchronize()
