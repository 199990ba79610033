"""Captured graphs on the simulated NPU: the same results as on cpu, errors at synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.graphs.support import captured
from torch import Tensor, nn

from bringup import devices, graphs, jit, ops
from bringup.errors import CaptureError, KernelError


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


def literals(x: Tensor) -> Tensor:
    return x[[0, 2]] + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8], device=x.device) * 2


def written_in_place(x: Tensor) -> Tensor:
    buffer = torch.zeros(4, 8, device=x.device)
    buffer[1:3] = x[1:3]
    buffer.add_(1)
    buffer[:, 0] = 0
    return buffer


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
    "views": lambda: lambda x: x.t()[1:].reshape(-1).view(2, -1).expand(3, -1, -1) + x[0, 0],
    "literals": lambda: literals,
    "in place": lambda: written_in_place,
    "masks": lambda: lambda x: torch.where(x > 0, x, -1.0).softmax(-1),
    "to cpu and back": lambda: lambda x: (x.cpu() * 2).to(x.device) + 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_replay_on_the_npu_equals_cpu(name: str) -> None:
    on_cpu = FUNCTIONS[name]()
    on_npu = FUNCTIONS[name]()
    if isinstance(on_cpu, nn.Module):
        on_npu.load_state_dict(on_cpu.state_dict())
        on_npu.to("npu")
    x = torch.randn(4, 8, device="npu")
    graph, output = captured(on_npu, x)
    for _ in range(3):
        fresh = torch.randn(4, 8)
        x.copy_(fresh)
        graph.replay()
        torch.npu.synchronize()
        assert output.device.type == x.device.type
        assert torch.allclose(output.cpu(), on_cpu(fresh), atol=1e-6)


def test_input_on_the_host_is_read_at_replay() -> None:
    x = torch.ones(3)
    graph, output = captured(lambda: x.to("npu") * 2)
    x.fill_(4)
    graph.replay()
    assert output.cpu().tolist() == [8, 8, 8]


def test_random_numbers_come_from_the_devices_generator() -> None:
    state = torch.npu.get_rng_state()
    graph, output = captured(lambda: torch.rand(3, device="npu"))
    assert torch.equal(torch.npu.get_rng_state(), state)
    expected = [torch.rand(3, device="npu").cpu() for _ in range(2)]
    torch.npu.set_rng_state(state)
    for values in expected:
        graph.replay()
        assert torch.equal(output.cpu(), values)


def test_what_the_run_changed_is_restored() -> None:
    x = torch.zeros(3, device="npu")
    graph, _ = captured(lambda: x.add_(1))
    assert x.cpu().tolist() == [0, 0, 0]
    for _ in range(5):
        graph.replay()
    assert x.cpu().tolist() == [5, 5, 5]


def test_failure_is_raised_by_the_next_synchronisation_and_the_graph_goes_on() -> None:
    index = torch.tensor([1, 2], device="npu")
    table = torch.arange(8.0).reshape(4, 2).to("npu")
    graph, output = captured(lambda: nn.functional.embedding(index, table))
    index.fill_(9)
    graph.replay()
    with pytest.raises(
        RuntimeError,
        match=r"node 0 of a captured graph, aten::embedding, called at .*test_npu.py:\d+ in",
    ):
        torch.npu.synchronize()
    index.fill_(3)
    graph.replay()
    torch.npu.synchronize()
    assert output.cpu().tolist() == [[6, 7], [6, 7]]


def test_failure_is_raised_by_the_next_event_that_is_waited_for() -> None:
    index = torch.tensor([1], device="npu")
    table = torch.arange(8.0).reshape(4, 2).to("npu")
    graph, _ = captured(lambda: nn.functional.embedding(index, table))
    index.fill_(9)
    graph.replay()
    event = torch.npu.Event()
    event.record()
    with pytest.raises(
        RuntimeError,
        match=r"node 0 of a captured graph, aten::embedding, called at .*test_npu.py:\d+ in",
    ):
        event.synchronize()
    torch.npu.synchronize()


def test_backward_in_a_capture_is_recorded_though_the_device_has_a_thread_for_it() -> None:
    x = torch.ones(3, device="npu")
    with torch.enable_grad():
        weight = torch.ones(3, device="npu", requires_grad=True)
        loss = (weight * x).sum()
    graph, (gradient,) = captured(lambda: torch.autograd.grad(loss, weight))
    with torch.no_grad():
        x.fill_(7)
    graph.replay()
    assert gradient.cpu().tolist() == [7, 7, 7]


def test_replays_in_two_streams_do_not_overlap() -> None:
    total = torch.zeros(1, device="npu")
    graph, _ = captured(lambda: total.add_(1))
    torch.npu.synchronize()
    streams = [torch.Stream(device="npu") for _ in range(2)]
    for step in range(20):
        with streams[step % 2]:
            graph.replay()
    torch.npu.synchronize()
    assert total.item() == 20


def test_graph_may_be_dropped_while_it_runs() -> None:
    x = torch.randn(256, 256, device="npu")
    graph, output = captured(lambda: x @ x @ x)
    graph.replay()
    del graph
    assert torch.allclose(output.cpu(), x.cpu() @ x.cpu() @ x.cpu(), rtol=1e-3, atol=1e-2)


def test_torch_npu_spells_it_its_own_way() -> None:
    assert torch.npu.NPUGraph is graphs.CapturedGraph
    graph = torch.npu.NPUGraph()
    x = torch.ones(2, device="npu")
    with torch.npu.graph(graph, auto_dispatch_capture=True, capture_error_mode="thread_local"):
        y = x * 3
    x.fill_(2)
    graph.replay()
    assert y.cpu().tolist() == [6, 6]


SLOW = """
#include "bringup/kernel.h"
int32_t run(void** args, int32_t n, const bringup_ctx* ctx) {
  const DLTensor* x = args[0];
  const float* from = x->data;
  float* to = ((const DLTensor*)args[n - 1])->data;
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    volatile float sum = 0;
    for (int k = 0; k < 200; ++k) sum += from[i];
    to[i] = sum / 200;
  }
  return 0;
}
"""


def test_capture_in_a_given_stream_is_ordered_with_the_stream_around_it() -> None:
    signature = "graphs_npu_test::slow(Tensor x, Tensor(a!) out) -> ()"
    source = jit.Source(text=SLOW, name="slow.c")
    slow = ops.kernel_op(signature, source=source, checks=ops.same_shape("x", "out"))
    x, out = torch.ones(100_000, device="npu"), torch.empty(100_000, device="npu")
    slow(x, out)  # compiled
    torch.npu.synchronize()
    stream, graph = torch.Stream(device="npu"), graphs.CapturedGraph()
    x.zero_()
    slow(x, out)  # still runs when the block begins
    with graphs.capture(graph, stream=stream):
        x.fill_(1)
        slow(x, out)  # still runs when the block ends
    assert x.sum().item() == 0
    assert out.sum().item() == 0
    graph.replay()
    assert out.sum().item() == 100_000
    slow.undefine()


def test_capture_in_a_given_stream() -> None:
    stream, x, graph = (
        torch.Stream(device="npu"),
        torch.ones(2, device="npu"),
        graphs.CapturedGraph(),
    )
    torch.npu.synchronize()
    with graphs.capture(graph, stream=stream):
        assert torch.npu.current_stream() == stream
        y = x + 1
    graph.replay()
    torch.npu.synchronize()
    assert y.cpu().tolist() == [2, 2]


@pytest.fixture(scope="module")
def shift(kernel_cache: object) -> Iterator[ops.KernelOperator]:
    """`shift(x, n)`: x + n, device code on two blocks; fails for n = 99."""
    source = jit.Source(text=SHIFT, name="shift.cpp")
    operator = ops.kernel_op(
        "graphs_npu_test::shift(Tensor x, int n) -> Tensor",
        source=source,
        outputs=ops.empty_like("x"),
        kind="device",
        grid=2,
    )
    yield operator
    operator.undefine()


SHIFT = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const auto* x = static_cast<DLTensor*>(args[0]);
  const int64_t n = *static_cast<int64_t*>(args[1]);
  const auto* out = static_cast<DLTensor*>(args[2]);
  if (n == 99) { ctx->set_error(ctx, "99 is too far"); return 1; }
  for (int64_t i = ctx->block_index; i < x->shape[0]; i += ctx->block_count) {
    static_cast<float*>(out->data)[i] = static_cast<float*>(x->data)[i] + n;
  }
  return 0;
}
"""


def test_device_code_is_launched_by_the_driver(shift: ops.KernelOperator) -> None:
    x = torch.zeros(5, device="npu")
    graph, output = captured(lambda: shift(torch.relu(shift(x, 1)), 2))
    assert [node.kind for node in graph.nodes] == ["kernel", "operator", "kernel"]
    x.fill_(10)
    graph.replay()
    assert output.cpu().tolist() == [13] * 5


def test_update_never_reaches_a_launch_in_flight(shift: ops.KernelOperator) -> None:
    total, x = torch.zeros(1, device="npu"), torch.zeros(1, device="npu")
    graph, _ = captured(lambda: total.add_(shift(x, 0)))
    for n in range(50):
        graph.update({"shift.n": n})
        graph.replay()
    assert total.item() == sum(range(50))


def test_kernel_failure_is_raised_by_the_next_synchronisation(shift: ops.KernelOperator) -> None:
    graph, output = captured(lambda: shift(torch.zeros(3, device="npu"), 1))
    graph.update({"shift.n": 99})
    graph.replay()
    with pytest.raises(KernelError, match=r"'graphs_npu_test::shift' failed .*99 is too far"):
        torch.npu.synchronize()
    graph.update({"shift.n": 2})
    graph.replay()
    assert output.cpu().tolist() == [2, 2, 2]


@pytest.mark.parametrize("forget", ["drop", "reset", "update"])
def test_kernel_failure_outlives_its_graph(shift: ops.KernelOperator, forget: str) -> None:
    graph, _ = captured(lambda: shift(torch.zeros(3, device="npu"), 1))
    graph.update({"shift.n": 99})
    graph.replay()
    if forget == "drop":
        del graph
    elif forget == "reset":
        graph.reset()
    else:
        graph.update({"shift.n": 1})
    with pytest.raises(KernelError, match=r"'graphs_npu_test::shift' failed .*99 is too far"):
        torch.npu.synchronize()
    torch.npu.synchronize()


def test_operator_in_python_runs_on_the_drivers_thread() -> None:
    @torch.library.custom_op("graphs_npu_test::in_python", mutates_args=())
    def in_python(x: Tensor) -> Tensor:
        return x * 2

    x = torch.ones(2, device="npu")
    graph, output = captured(lambda: in_python(x) + 1)
    x.fill_(3)
    graph.replay()
    assert output.cpu().tolist() == [7, 7]


PENDING = """
import sys
import torch
from bringup import devices, graphs
from torch.profiler import ProfilerActivity, profile

@torch.library.custom_op("pending::in_python", mutates_args=())
def in_python(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def many(x):
    for _ in range(50):
        x = in_python(x)
    return x

devices.load_driver("sim")
torch.set_grad_enabled(False)
x, large = torch.zeros(4, device="npu"), torch.ones(17 << 20, device="npu")
model = torch.nn.Linear(4, 4).to("npu")
compiled = torch.compile(model, backend="bringup", options={"freeze": True})
compiled(x)
graph, frozen, other = (graphs.CapturedGraph() for _ in range(3))
with graphs.capture(graph):
    y = many(x)
with graphs.capture(frozen):
    z = compiled(x)
torch.npu.synchronize()
sys.setswitchinterval(1000)  # the GIL goes to the driver's thread only when it is given up

def profiled():
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]):
        pass

def legacy():
    with torch.autograd.profiler.profile(use_device="npu"):
        x + 1

def captured():
    with graphs.capture(other):
        many(x)

for wait in (profiled, legacy, captured, frozen.refresh, torch.npu.empty_cache):
    graph.replay()
    wait()
    print(wait.__name__, flush=True)
"""


def test_waiting_with_an_operator_in_python_pending_lets_it_run() -> None:
    said = output_of(PENDING)
    assert said.split() == ["profiled", "legacy", "captured", "refresh", "empty_cache"]


ISOLATED = """
import torch
from bringup import devices, graphs, jit, ops
from bringup.errors import CaptureError, KernelError
from bringup.errors import CaptureError
devices.load_driver("sim")
x = torch.ones(3, device="npu")
try:
    with torch.no_grad(), graphs.capture(graphs.CapturedGraph()):
        torch.relu(x)
except CaptureError as error:
    print(error)
print(torch.relu(x).cpu().tolist())
"""


def test_without_host_visible_memory_fallback_operators_are_refused_by_name() -> None:
    said = output_of(ISOLATED, BRINGUP_SIM_ISOLATED="1")
    assert said.startswith("aten::relu has no kernel on the device and cannot run on the host")
    assert said.endswith("[1.0, 1.0, 1.0]")


def test_side_stream_that_is_joined_is_captured() -> None:
    side, x = torch.Stream(device="npu"), torch.ones(3, device="npu")

    def forked(x: Tensor) -> Tensor:
        side.wait_stream(torch.npu.current_stream())
        with side:
            y = x * 2
        z = x + 1
        torch.npu.current_stream().wait_stream(side)
        return y + z

    graph, output = captured(forked, x)
    x.fill_(3)
    graph.replay()
    assert output.cpu().tolist() == [10, 10, 10]


@pytest.mark.parametrize("join", ["never", "too early", "through another stream"])
def test_side_stream_that_is_not_joined_is_refused_with_its_last_operator(join: str) -> None:
    side, third = (torch.Stream(device="npu") for _ in range(2))
    x = torch.ones(3, device="npu")

    def forked() -> Tensor:
        side.wait_stream(torch.npu.current_stream())
        with side:
            y = x * 2
        if join == "too early":
            torch.npu.current_stream().wait_stream(side)
        with side:
            y = torch.relu(y)
        if join == "through another stream":
            third.wait_stream(side)
            torch.npu.current_stream().wait_stream(third)
        return y

    if join == "through another stream":
        graph, output = captured(forked)
        x.fill_(4)
        graph.replay()
        assert output.cpu().tolist() == [8, 8, 8]
        return
    with pytest.raises(
        CaptureError,
        match=r"operators \(the last is aten::relu\) ran in a side stream .* join it",
    ):
        captured(forked)
    torch.npu.synchronize()


HOST_WAITS: dict[str, Callable[[], Any]] = {
    "synchronize()": lambda: torch.npu.synchronize(),
    "Stream.synchronize()": lambda: torch.npu.current_stream().synchronize(),
    "Stream.query()": lambda: torch.npu.current_stream().query(),
    "Event.synchronize()": lambda: torch.npu.current_stream().record_event().synchronize(),
    "Event.query()": lambda: torch.npu.current_stream().record_event().query(),
}


@pytest.mark.parametrize("what", HOST_WAITS)
def test_waiting_on_the_host_inside_a_capture_is_refused(what: str) -> None:
    x = torch.ones(3, device="npu")

    def waits() -> Tensor:
        y = x * 2
        HOST_WAITS[what]()
        return y

    with pytest.raises(CaptureError) as refused:
        captured(waits)
    assert str(refused.value).startswith(f"{what} waits on the host inside a capture")
    assert "test_npu.py:" in str(refused.value)
    HOST_WAITS[what]()  # outside it works
    graph, output = captured(lambda: x * 3)
    graph.replay()
    assert output.cpu().tolist() == [3, 3, 3]


def test_the_device_module_says_whether_a_capture_is_under_way() -> None:
    assert not torch.npu.is_current_stream_capturing()
    former = torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing
    with graphs.capture(graphs.CapturedGraph()):
        torch.ones(2, device="npu").add_(1)
        assert torch.npu.is_current_stream_capturing()
        assert torch.cuda.is_current_stream_capturing()
        assert torch.xpu.is_current_stream_capturing()
    assert not torch.npu.is_current_stream_capturing()
    assert (torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing) == former
