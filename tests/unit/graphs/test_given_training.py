"""What a captured step of training takes as given: gradients and the state of optimizers."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bringup import devices, graphs
from bringup.errors import CaptureError

DEVICES = ["cpu", "npu"]


@pytest.fixture(autouse=True)
def _with_gradients(_without_gradients: None) -> Iterator[None]:
    devices.load_driver("sim")
    with torch.enable_grad():
        yield


class Training:
    """One weight, x = 2: its gradient is 2 for each backward."""

    def __init__(self, device: str = "cpu", **options: Any) -> None:
        self.layer = nn.Linear(1, 1, bias=False).to(device)
        nn.init.zeros_(self.layer.weight)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=1.0, **options)
        self.x = torch.full((1, 1), 2.0, device=device)
        self.graph = graphs.CapturedGraph()

    @property
    def weight(self) -> nn.Parameter:
        return self.layer.weight

    def backward(self, scale: float = 1.0) -> None:
        (self.layer(self.x) * scale).sum().backward()

    def capture(self, *parts: Callable[[], object]) -> None:
        with graphs.capture(self.graph):
            for run in parts:
                run()


@pytest.mark.parametrize("device", DEVICES)
def test_a_captured_backward_makes_gradients_anew_after_zero_grad(device: str) -> None:
    training = Training(device)
    training.capture(training.backward)
    for number in range(1, 4):
        training.optimizer.zero_grad()
        training.graph.replay()
        assert training.weight.grad is not None
        training.optimizer.step()
        assert training.weight.item() == -2 * number


@pytest.mark.parametrize("device", DEVICES)
def test_a_captured_step_takes_the_gradient_of_an_eager_backward(device: str) -> None:
    training = Training(device)
    training.backward()
    training.capture(training.optimizer.step)
    for scale, expected in ((1, -2), (3, -8), (5, -18)):
        training.optimizer.zero_grad()
        training.backward(scale)
        training.graph.replay()
        assert training.weight.item() == expected
        assert training.weight.grad.item() == 2 * scale


def test_a_captured_step_without_a_gradient_names_the_parameter_and_writes_nothing() -> None:
    training = Training()
    training.backward()
    training.capture(training.optimizer.step)
    del training.weight.grad
    words = r"gradient of parameter '[\w.]*weight' is None now"
    with pytest.raises(CaptureError, match=words):
        training.graph.replay()
    assert training.weight.item() == 0


def test_a_backward_adds_to_whatever_the_gradient_is() -> None:
    training = Training()
    training.backward()
    training.capture(training.backward)
    flat = torch.tensor([7.0, 10.0])
    training.weight.grad = flat[1:].view(1, 1)
    training.graph.replay()
    assert flat.tolist() == [7, 12]
    training.weight.grad = None
    training.graph.replay()
    assert training.weight.grad.tolist() == [[2]]
    training.graph.replay()
    assert training.weight.grad.tolist() == [[4]]
    assert flat.tolist() == [7, 12]


def test_a_gradient_where_there_was_none_names_the_parameter() -> None:
    training = Training()
    training.capture(training.backward)
    training.weight.grad = torch.ones(1, 1)
    words = r"gradient of parameter '[\w.]*weight' was None when the graph was captured"
    with pytest.raises(CaptureError, match=words):
        training.graph.replay()
    assert training.weight.grad.item() == 1


def test_a_whole_step_leaves_the_gradients_that_eager_leaves() -> None:
    training = Training()
    optimizer = training.optimizer
    training.capture(optimizer.zero_grad, training.backward, optimizer.step)
    training.weight.grad = None
    training.graph.replay()
    assert training.weight.grad.item() == 2
    other = Training()
    other.backward()
    other.capture(other.backward, other.optimizer.step, other.optimizer.zero_grad)
    other.weight.grad = torch.full((1, 1), 5.0)
    other.graph.replay()
    assert other.weight.item() == -7
    assert other.weight.grad is None


def test_a_gradient_in_memory_that_the_graph_reads_is_refused() -> None:
    training = Training()
    training.backward()
    training.capture(training.backward)
    training.weight.grad = training.x
    with pytest.raises(CaptureError, match="weight' lies in memory that the graph itself works in"):
        training.graph.replay()


def test_gradients_of_two_parameters_in_one_place_are_refused() -> None:
    one, two = (nn.Parameter(torch.ones(2)) for _ in range(2))
    (one * two).sum().backward()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        (one * two).sum().backward()
    one.grad = two.grad = torch.zeros(2)
    with pytest.raises(CaptureError, match=r"gradient of \w+ '\w+' shares memory with that of"):
        graph.replay()


def test_requires_grad_that_changed_names_the_parameter() -> None:
    training = Training()
    training.capture(training.backward)
    training.weight.requires_grad_(False)
    with pytest.raises(CaptureError, match=r"weight' requires no gradient now, and did"):
        training.graph.replay()


@pytest.mark.parametrize("device", DEVICES)
def test_loaded_state_of_an_optimizer_is_refused_and_refresh_takes_it(device: str) -> None:
    training = Training(device, momentum=0.5)
    training.backward()
    training.optimizer.step()
    saved = copy.deepcopy(training.optimizer.state_dict())
    training.capture(training.optimizer.step)
    training.graph.replay()
    weight, gradient = training.weight.item(), training.weight.grad.item()
    training.optimizer.load_state_dict(saved)
    with pytest.raises(CaptureError, match=r"'state' of SGD is another .* refresh"):
        training.graph.replay()
    assert training.weight.item() == weight
    training.graph.refresh()
    training.graph.replay()
    assert training.weight.item() == weight - (0.5 * 2 + gradient)
    training.optimizer.step()  # eager goes on with the same state
    buffer = training.optimizer.state[training.weight]["momentum_buffer"].item()
    assert buffer == 0.5 * (0.5 * 2 + gradient) + gradient


def test_other_options_groups_and_parameters_are_no_matter_of_refresh() -> None:
    training = Training(momentum=0.5)
    training.backward()
    training.optimizer.step()
    saved = training.optimizer.state_dict()
    training.capture(training.optimizer.step)
    saved["param_groups"][0]["lr"] = 0.5
    training.optimizer.load_state_dict(saved)
    with pytest.raises(CaptureError, match=r"SGD has 0\.5 for 'lr' in group 0, and had 1\.0"):
        training.graph.refresh()
    with pytest.raises(CaptureError, match="'state' of SGD"):
        training.graph.replay()
    training.optimizer.param_groups[0]["lr"] = 1.0
    training.graph.refresh()
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(CaptureError, match="'param_groups' of SGD has other items now"):
        training.graph.replay()
    with pytest.raises(CaptureError, match="SGD has 2 groups, and had 1"):
        training.graph.refresh()


def test_a_replaced_entry_of_the_state_is_named_and_taken() -> None:
    training = Training(momentum=0.5)
    training.backward()
    training.optimizer.step()
    training.capture(training.optimizer.step)
    state = training.optimizer.state[training.weight]
    state["momentum_buffer"] = torch.full((1, 1), 40.0)
    with pytest.raises(CaptureError, match="state 'momentum_buffer' of parameter '0' of group 0"):
        training.graph.replay()
    training.graph.refresh()
    training.graph.replay()
    assert state["momentum_buffer"].item() == 22


def test_a_capture_that_fails_leaves_gradients_as_they_were() -> None:
    training = Training()
    training.backward()
    former = training.weight.grad
    with pytest.raises(CaptureError, match="reads the value of a tensor"):
        training.capture(training.optimizer.zero_grad, training.backward, training.weight.item)
    assert training.weight.grad is former


def test_captured_steps_leave_nothing_behind() -> None:
    def cycle() -> int:
        training = Training(momentum=0.5)
        training.backward()
        training.optimizer.step()
        training.capture(training.backward, training.optimizer.step)
        training.optimizer.zero_grad()
        training.graph.replay()
        del training
        gc.collect()
        return sum(issubclass(type(one), Tensor) for one in gc.get_objects())

    cycle()
    assert cycle() == cycle()
