"""What captures install for their time, module hooks and callbacks of Dynamo: the same every time,
and gone afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import torch
from torch.nn.modules import module as torch_module

from bringup import graphs, kernels
from bringup.errors import CaptureError


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


def hook_counts() -> tuple[int, ...]:
    return (
        len(torch_module._global_forward_pre_hooks),
        len(torch_module._global_forward_hooks),
        len(torch_module._global_forward_hooks_always_called),
        len(torch_module._global_forward_hooks_with_kwargs),
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


def test_compiled_module_warns_of_no_hook_after_a_capture() -> None:
    with graphs.capture(graphs.CapturedGraph()):
        torch.ones(2) + 1
    compiled = torch.compile(torch.nn.ReLU(), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.ones(2)).tolist() == [1, 1]


COMPILE_IN_A_CAPTURE = """
import sys
import torch
from bringup import graphs
from bringup.errors import CaptureError

cache, x = torch.zeros(4), torch.ones(4)


def step(x):
    cache.copy_(x * 3)
    return x + cache.sum()


graph = graphs.CapturedGraph()
with torch.no_grad():
    try:
        assert "torch._dynamo" not in sys.modules
        with graphs.capture(graph):
            y = torch.compile(step, backend=sys.argv[1])(x)
    except CaptureError as error:
        print("refused:", error)
    else:
        x.fill_(2)
        cache.zero_()
        graph.replay()
        print(y.tolist(), cache.tolist(), [node.op for node in graph.nodes])
"""


def compile_in_a_capture(backend: str) -> str:
    command = [sys.executable, "-c", COMPILE_IN_A_CAPTURE, backend]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_dynamo_that_is_imported_in_the_capture_compiles_outside_of_it() -> None:
    told = compile_in_a_capture("bringup")
    assert told.startswith("[26.0, 26.0, 26.0, 26.0] [6.0, 6.0, 6.0, 6.0]"), told
    made = [name for name in ("aten::empty", "aten::zeros", "aten::detach") if name in told]
    assert made == [], told  # what compilers run


def test_inductor_that_is_imported_in_the_capture_is_refused() -> None:
    told = compile_in_a_capture("inductor")
    assert told.startswith("refused: this calls code that Inductor generated")


def test_reset_of_the_compiler_in_a_capture_is_refused() -> None:
    compiled = torch.compile(torch.relu, backend="eager")
    compiled(torch.ones(2))
    x, graph = torch.ones(2), graphs.CapturedGraph()
    with (
        pytest.raises(CaptureError, match=r"reset\(\) was called inside the capture"),
        graphs.capture(graph),
    ):
        torch.compiler.reset()
    with graphs.capture(graph):
        y = compiled(x)
    x.fill_(-1)
    graph.replay()
    assert y.tolist() == [0, 0]
