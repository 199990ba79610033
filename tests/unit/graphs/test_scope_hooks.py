"""The module hooks of captures: the same ones every time, and gone afterwards."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from bringup import graphs, kernels


def test_capturing_a_compiled_module_again_does_not_compile_it_again() -> None:
    compiles = []

    def backend(graph: Any, _inputs: Any) -> Any:
        compiles.append(graph)
        return graph.forward

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
        captures = []
        for rows in (5, 7, 9, 11):
            x = torch.ones(rows, 4)
            graph = graphs.CapturedGraph()
            with graphs.capture(graph):
                captures.append((graph, compiled(x)))
    assert len(compiles) <= 2  # without a capture, and in one
    for graph, result in captures:
        graph.replay()
        torch.testing.assert_close(result, model(torch.ones(len(result), 4)))


def hook_counts() -> tuple[int, int, int]:
    return (
        len(torch_module._global_forward_pre_hooks),
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_hooks_always_called),
    )


def test_no_hook_is_left_when_a_capture_ends_or_fails() -> None:
    before = hook_counts()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        torch.ones(2) + torch.ones(2)
        assert hook_counts() != before
    assert hook_counts() == before
    try:
        with graphs.capture(graphs.CapturedGraph()):
            raise KeyError
    except KeyError:
        assert hook_counts() == before


def test_modules_called_on_another_thread_give_no_scope() -> None:
    layer, other = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))
    x = torch.ones(1, 2)
    entered, leave = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        entered.set()
        leave.wait(10)

    other[0].register_forward_hook(wait)
    thread = threading.Thread(target=lambda: other(torch.ones(1, 2)))
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        thread.start()
        assert entered.wait(10)
        with graphs.scope("mine"):
            y = kernels.mean_pool(layer(x).unsqueeze(0), [1])
        leave.set()
        thread.join()
    assert y.shape == (1, 2)
    assert graph.slots
    assert all(str(slot).startswith("mine") for slot in graph.slots)
