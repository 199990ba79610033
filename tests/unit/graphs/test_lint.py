"""What stands in the way of a capture, all at once; and what two captures differ in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bringup import devices, graphs, ops
from bringup.errors import CaptureError


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def several(x: Tensor) -> Tensor:
    if x.sum() > 0:  # a comment
        x = x + 1
    rows = x.nonzero()
    y = torch.relu(rows.float())
    for value in x[0].tolist():
        y = y + value
    x.mul_(2)
    return y * x.max().item()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_all_refusals_of_one_run_with_their_lines(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    state = torch.get_rng_state()
    found = graphs.lint(several, x)
    texts = [str(refusal) for refusal in found]
    assert [text.split("\n")[0][:40] for text in texts] == [
        text[:40]
        for text in (
            "`bool(x.sum() > 0)` reads the value of a tensor",
            "aten::nonzero gives a result whose shape depends",
            "`x[0].tolist()` reads the value of a tensor",
            "`x.max().item()` reads the value of a tensor",
        )
    ]
    assert all("test_lint.py:" in text and text.endswith("in several") for text in texts)
    assert x.tolist() == [[1] * 3] * 2
    assert torch.equal(torch.get_rng_state(), state)
    assert not graphs.is_current_stream_capturing()
    with pytest.raises(CaptureError) as error, graphs.capture(graphs.CapturedGraph()):
        several(x)
    assert str(error.value) == found[0].message


def test_the_same_refusal_is_counted() -> None:
    def run(x: Tensor) -> float:
        return sum(value.item() for value in x)

    (found,) = graphs.lint(run, torch.ones(5))
    assert found.count == 5
    assert str(found).endswith("\n  5 times")


def test_nothing_stands_in_the_way() -> None:
    assert graphs.lint(lambda x, by: x * by, torch.ones(2), by=2) == ()


def test_what_only_the_end_of_a_capture_finds() -> None:
    kept: list[Tensor] = [torch.zeros(2)]

    def run(x: Tensor) -> None:
        kept[0] = kept[0] + x

    (found,) = graphs.lint(run, torch.ones(2))
    assert "puts another tensor in its place" in found.message


def test_exceptions_of_the_function() -> None:
    def fails(x: Tensor, read: bool) -> None:
        if read:
            x.sum().item()
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        graphs.lint(fails, torch.ones(1), read=False)
    found = graphs.lint(fails, torch.ones(1), read=True)
    assert [text.message.split(" ")[0] for text in found] == ["`x.sum().item()`", "after"]
    assert "KeyError: 'here'" in found[1].message
    assert not graphs.is_current_stream_capturing()


def test_waiting_for_the_device_ends_the_search() -> None:
    def waits(x: Tensor) -> Tensor:
        x.sum().item()
        torch.npu.synchronize()
        return x.max().item()

    found = graphs.lint(waits, torch.ones(2, device="npu"))
    assert len(found) >= 2
    assert "synchron" in found[1].message


def test_within_a_capture_it_is_refused() -> None:
    x = torch.ones(2)
    words = "lint: a capture is under way"
    with pytest.raises(CaptureError, match=words), graphs.capture(graphs.CapturedGraph()):
        graphs.lint(lambda: x + 1)
    assert not graphs.is_current_stream_capturing()


def pooled(x: Tensor, length: int, scale: float) -> Tensor:
    y = torch.cumsum(x, length % 2) * torch.tensor([1.0, 2.0])
    return torch.add(y, x, alpha=length).clamp(max=scale)


def test_detected_updates_say_what_to_declare(handlers: None) -> None:
    x = torch.ones(2, 2)
    found = graphs.detect_updates(pooled, (x, 2, 5.0), (x, 3, 7.5))
    assert found.missing_specs == {
        "aten::cumsum": [("arg", 1, "dim")],
        "aten::add.Tensor": [("kwarg", "alpha", "alpha")],
        "aten::clamp": [("arg", 2, "max")],
    }
    assert not found.constants
    namespace: dict[str, Any] = {"graphs": graphs}
    code = str(found).split("\n", 1)[1]
    exec("\n".join(line[4:] for line in code.split("\n")), namespace)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = pooled(x, 2, 5.0)
    again = graphs.detect_updates(pooled, (x, 2, 5.0), (x, 3, 7.5))
    assert not again.missing_specs
    graph.update({found.slot: found.second for found in again.arguments if found.slot})
    graph.replay()
    assert torch.equal(y, pooled(x, 3, 7.5))
    assert "graph.update({'cumsum.0.dim': 1, 'add.0.alpha': 3, 'clamp.0.max': 7.5})" in str(again)


def test_detected_constants_and_slots_of_kernels(affine: ops.KernelOperator) -> None:
    def run(x: Tensor, n: int) -> Tensor:
        return affine(x * torch.tensor([1.0, n]), n)

    x = torch.ones(2)
    found = graphs.detect_updates(run, (x, 1), (x, 4))
    assert [(one.slot, one.first, one.second) for one in found.arguments] == [
        ("affine.0.shift", 1, 4)
    ]
    assert len(found.constants) == 1
    assert "make it a tensor outside of the function" in str(found)


def test_equal_calls_need_nothing() -> None:
    found = graphs.detect_updates(pooled, (torch.ones(2, 2), 2, 5.0), (torch.zeros(2, 2), 2, 5.0))
    assert (found.arguments, found.constants) == ((), ())
    assert "nothing to update" in str(found)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (lambda x: (x + 1).relu(), "node 1 is aten::mul.Tensor .* and aten::relu with the second"),
        (lambda x: x + 1, "node 1 is aten::mul.Tensor .* and nothing with the second"),
    ],
)
def test_calls_that_run_other_operators(second: Callable[[Tensor], Tensor], words: str) -> None:
    run: list[Callable[[Tensor], Tensor]] = [lambda x: (x + 1) * 2, second]
    with pytest.raises(CaptureError, match=words):
        graphs.detect_updates(lambda x, n: run[n](x), (torch.ones(2), 0), (torch.ones(2), 1))
