"""Functions of Python between the operators of a replay."""

from __future__ import annotations

import gc
import io
import weakref
from pathlib import Path

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import CaptureError

DEVICES = ["cpu", "npu"]


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_called_in_order_in_every_replay_and_not_by_the_capture(device: str) -> None:
    seen: list[tuple[str, list[float]]] = []

    def run(x: Tensor) -> Tensor:
        y = x + 1
        graphs.host_function(lambda *values: seen.append(("y", values[0].tolist())), y)
        y = y * 2
        graphs.host_function(lambda a, b: seen.append(("both", [*a.tolist(), *b.tolist()])), x, y)
        return y

    x = torch.zeros(1, device=device)
    graph, y = captured(run, x)
    assert seen == []
    for n in (1, 2):
        x.fill_(n)
        graph.replay()
        torch.npu.synchronize()
        assert seen == [("y", [n + 1]), ("both", [n, 2 * n + 2])]
        seen.clear()
    assert y.cpu().item() == 6


@pytest.mark.parametrize("device", DEVICES)
def test_outside_of_a_capture_it_is_called_now(device: str) -> None:
    seen: list[Tensor] = []
    x = torch.ones(2, device=device, requires_grad=True)
    with torch.enable_grad():
        graphs.host_function(seen.append, x * 3)
    assert (seen[0].device.type, seen[0].tolist(), seen[0].requires_grad) == ("cpu", [3, 3], False)


def test_what_it_is_given_is_its_own() -> None:
    seen: list[Tensor] = []
    x = torch.zeros(1)
    graph, y = captured(lambda: (graphs.host_function(seen.append, x), x + 1)[1])
    graph.replay()
    x.fill_(9)
    seen[0].add_(100)
    graph.replay()
    assert (y.item(), seen[0].item(), seen[1].item()) == (10, 100, 9)


@pytest.mark.parametrize("device", DEVICES)
def test_what_it_raises_is_the_error_of_the_replay_and_the_graph_goes_on(device: str) -> None:
    def check(value: Tensor) -> None:
        if value.item() < 0:
            raise ValueError("it is negative")

    x = torch.zeros(1, device=device)
    graph, y = captured(lambda: (graphs.host_function(check, x), x + 1)[1])

    def replay() -> None:
        graph.replay()
        torch.npu.synchronize()

    x.fill_(-1)
    with pytest.raises((ValueError, RuntimeError), match="it is negative"):
        replay()
    x.fill_(1)
    replay()
    assert y.cpu().item() == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_capture_inside_of_it_is_refused(device: str) -> None:
    """There the recorder sees no operator: what was captured would be a constant."""
    seen: list[str] = []

    def call(x: Tensor) -> None:
        with pytest.raises(CaptureError) as refused, graphs.capture(graphs.CapturedGraph()):
            x + 1
        seen.append(str(refused.value))

    x = torch.ones(3, device=device)
    graph, _ = captured(lambda: graphs.host_function(call, x + 0))
    graph.replay()
    torch.npu.synchronize()
    (words,) = seen
    assert "a capture cannot begin inside an operator" in words


def test_it_lives_as_long_as_the_graph() -> None:
    class Function:
        def __call__(self, value: Tensor) -> None:
            self.value = value

    function = Function()
    reference, x = weakref.ref(function), torch.zeros(1)
    graph, _ = captured(lambda: (graphs.host_function(reference(), x), x + 1)[1])
    del function
    gc.collect()
    graph.replay()
    assert reference() is not None
    graph.reset()
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_are_printed_and_saved(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, x = io.StringIO(), torch.zeros(2, device=device)

    def run() -> Tensor:
        y = x + 1
        graphs.print_tensor(y, "y")
        graphs.print_tensor(y, file=out)
        graphs.save_tensor(y, tmp_path / "y.pt")
        graphs.save_tensor([x, y], tmp_path / "both.pt", overwrite=True)
        return y

    graph, _ = captured(run)
    assert list(tmp_path.iterdir()) == []
    for n in (1, 2):
        x.fill_(n)
        graph.replay()
        torch.npu.synchronize()
    assert capsys.readouterr().out == "y: tensor([2., 2.])\ny: tensor([3., 3.])\n"
    assert out.getvalue() == "tensor([2., 2.])\ntensor([3., 3.])\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.pt", "y.0.pt", "y.1.pt"]
    assert torch.load(tmp_path / "y.1.pt").tolist() == [3, 3]
    assert [value.tolist() for value in torch.load(tmp_path / "both.pt")] == [[2, 2], [3, 3]]


@pytest.mark.parametrize(("function", "given"), [(3, (torch.ones(1),)), (print, ()), (print, (3,))])
def test_wrong_arguments(function: object, given: tuple[object, ...]) -> None:
    with pytest.raises(TypeError, match="host_function takes"):
        graphs.host_function(function, *given)  # type: ignore[arg-type]
