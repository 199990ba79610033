"""What captures install for their time: nothing that Dynamo sees in this thread or another, and
nothing that stays.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
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


def seen_by_dynamo() -> tuple[Any, ...]:
    return (
        *map(len, filter(_is_hooks, vars(torch_module).values())),
        *map(len, filter(_is_hooks, vars(sys.modules["torch.optim.optimizer"]).values())),
        torch.nn.Module.__call__,
        sys.getprofile(),
    )


def _is_hooks(value: Any) -> bool:
    return isinstance(value, OrderedDict)


def test_a_capture_installs_no_hook_and_leaves_the_profiler_alone() -> None:
    before = seen_by_dynamo()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        torch.ones(2) + torch.ones(2)
        assert seen_by_dynamo()[:-1] == before[:-1]
    assert seen_by_dynamo() == before
    with pytest.raises(KeyError), graphs.capture(graphs.CapturedGraph()):
        raise KeyError
    assert seen_by_dynamo() == before


def test_a_profiler_around_a_capture_goes_on() -> None:
    calls: list[str] = []

    def profile(frame: Any, event: str, _argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    model, graph = torch.nn.Sequential(torch.nn.Linear(2, 2)), graphs.CapturedGraph()
    sys.setprofile(profile)
    try:
        with torch.no_grad(), graphs.capture(graph), graphs.scope("outer"):
            kernels.mean_pool(model(torch.ones(1, 2)).unsqueeze(0), [1])
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert "forward" in calls
    assert {node.scope for node in graph.nodes} == {"outer.0", "outer"}


@pytest.mark.slow
def test_sixteen_threads_compile_models_while_captures_come_and_go() -> None:
    torch._dynamo.reset()
    over, wrong, compiles = threading.Event(), [], []

    def backend(graph: Any, _inputs: Any) -> Any:
        compiles.append(graph)
        return graph.forward

    def work(width: int) -> None:
        try:
            model = torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.GELU()).eval()
            compiled = torch.compile(model, backend=backend)
            with torch.no_grad(), warnings.catch_warnings():
                for rows in (3, 3, 3, 3):
                    x = torch.randn(rows, width)
                    torch.testing.assert_close(compiled(x), model(x))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(width,)) for width in range(2, 18)]

    def capture() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        while not over.is_set():
            with torch.no_grad(), graphs.capture(graphs.CapturedGraph()):
                model(torch.ones(1, 2))

    capturing = threading.Thread(target=capture)
    capturing.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    capturing.join()
    assert not wrong, wrong[0]
    assert len(compiles) <= len(threads) + 1  # no call was compiled for a capture


def test_a_compile_that_outlives_another_threads_capture_works() -> None:
    torch._dynamo.reset()
    inside, captured, seen = threading.Event(), threading.Event(), []

    def backend(graph: Any, _inputs: Any) -> Any:
        inside.set()
        assert captured.wait(60)
        return graph.forward

    def compile_() -> None:
        with torch.no_grad():
            seen.append(torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.ones(1, 2)))

    thread = threading.Thread(target=compile_)
    with torch.no_grad(), graphs.capture(graphs.CapturedGraph()):
        thread.start()
        assert inside.wait(60)
        torch.nn.ReLU()(torch.ones(2))
    captured.set()
    thread.join()
    assert len(seen) == 1  # else: KeyError in making its guards


def test_modules_called_on_another_thread_give_no_scope() -> None:
    layer, other = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))
    x = torch.ones(1, 2)
    entered, leave = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        entered.set()
        leave.wait(240)

    other[0].register_forward_hook(wait)
    thread = threading.Thread(target=lambda: other(torch.ones(1, 2)))
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        thread.start()
        assert entered.wait(240)
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
    return output_of(COMPILE_IN_A_CAPTURE, backend)


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
