"""Calls of operators, observed in every thread, and the kernels that are computed for them."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import run_forked
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import devices, graphs
from bringup.devices import KernelKind
from bringup.errors import DeviceError


def names(trace: devices.DispatchTrace, depth: int = 0) -> list[str]:
    return [call.operator for call in trace.calls if call.depth == depth]


def test_calls_are_there_in_order_with_those_that_kernels_make() -> None:
    x = torch.ones(2, 2, device="npu")
    with devices.dispatch_trace() as trace:
        torch.nn.functional.linear(x, x, x[0])
        x.relu_()
    assert names(trace) == ["aten::select.int", "aten::linear", "aten::relu_"]
    linear = next(i for i, call in enumerate(trace.calls) if call.operator == "aten::linear")
    below = [call.operator for call in trace.calls[linear:] if call.depth == 1]
    assert below[:2] == ["aten::t", "aten::addmm"]  # from C++
    assert trace.lost == 0


def test_nothing_is_observed_before_and_after() -> None:
    x = torch.ones(2, device="npu")
    with devices.dispatch_trace() as trace:
        x + x
    x.exp()
    assert names(trace) == ["aten::add.Tensor"]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (torch.ops.aten.add.Tensor, lambda x: (x, 2)),
        (torch.ops.aten.cat.default, lambda x: ([x, x],)),
        (torch.ops.aten.index.Tensor, lambda x: (x, [None, x[0].long()])),
        (torch.ops.aten.linear.default, lambda x: (x, x)),
        (torch.ops.aten.uniform_.default, lambda x: (x,)),
        (torch.ops.aten.view_as_real.default, lambda x: (x + 1j,)),
    ],
    ids=lambda value: getattr(value, "name", str)() if hasattr(value, "overloadpacket") else "",
)
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_trace_and_an_explanation_agree(
    mode: Any, operator: Any, arguments: Any, device: str
) -> None:
    with mode():
        given = arguments(torch.ones(2, 2, device=device))
        explained = devices.explain(operator, *given)
        with devices.dispatch_trace() as trace:
            operator(*given)
    call = trace.calls[0]
    assert (call.operator, call.keys, call.chain) == (
        operator.name(),
        explained.keys,
        explained.chain,
    )


def test_a_factory_of_what_there_is_not_is_seen_before_it_raises() -> None:
    with devices.dispatch_trace() as trace, pytest.raises(NotImplementedError):
        torch.ops.aten.empty.memory_format([2], device="npu", layout=torch._mkldnn)
    assert names(trace) == ["aten::empty.memory_format"]


def test_a_quantized_factory_has_the_key_of_its_dtype() -> None:
    quantized = torch.ops.aten._empty_affine_quantized.default
    given: Any = {"dtype": torch.qint8, "device": "cpu"}
    with devices.dispatch_trace() as trace:
        quantized([2], **given)
    assert trace.calls[0].chain == devices.explain(quantized, [2], **given).chain
    assert trace.calls[0].chain[-1].key == "QuantizedCPU"


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_factories_and_generators_agree_too(device: str, layout: torch.layout) -> None:
    generator = torch.Generator(device)
    with devices.dispatch_trace() as trace:
        torch.ops.aten.empty.memory_format([2], device=device, layout=layout)
        torch.ops.aten.randperm.generator(3, generator=generator, device=device)
    empty, shuffled = [call for call in trace.calls if call.depth == 0]
    told = devices.explain("aten::empty.memory_format", [2], device=device, layout=layout)
    assert (empty.keys, empty.chain) == (told.keys, told.chain)
    told = devices.explain("aten::randperm.generator", 3, generator=generator, device=device)
    assert (shuffled.keys, shuffled.chain) == (told.keys, told.chain)


def test_a_backward_is_seen_in_its_own_thread_with_its_nodes() -> None:
    x = torch.ones(2, 2, device="npu", requires_grad=True)
    with devices.dispatch_trace() as trace:
        torch.nn.functional.gelu(x @ x).sum().backward()
    back = [call for call in trace.calls if call.operator == "aten::gelu_backward"]
    assert [call.backward for call in back] == ["GeluBackward0"]
    forward = [call for call in trace.calls if call.operator == "aten::gelu"]
    assert [call.backward for call in forward] == [""]
    assert back[0].thread != forward[0].thread


def test_calls_of_other_threads_are_seen() -> None:
    x = torch.ones(2, device="npu")
    with devices.dispatch_trace() as trace:
        thread = threading.Thread(target=x.exp)
        thread.start()
        thread.join()
        x.exp()
    other, own = [call.thread for call in trace.calls if call.operator == "aten::exp"]
    assert other != own


def test_two_traces_at_a_time_have_their_calls() -> None:
    x = torch.ones(2, device="npu")
    with devices.dispatch_trace() as outer:
        x.exp()
        with devices.dispatch_trace() as inner:
            x.abs()
        x.log()
    assert names(inner) == ["aten::abs"]
    assert names(outer) == ["aten::exp", "aten::abs", "aten::log"]


def test_calls_beyond_the_limit_are_counted_and_told() -> None:
    x = torch.ones(2)
    with devices.dispatch_trace(limit=2) as trace:
        for _ in range(5):
            x.exp()
    assert (len(trace.calls), trace.lost) == (2, 3)
    assert "3 more calls were not kept" in str(trace)
    with (
        pytest.raises(DeviceError, match=r"limit=0\): expected at least 1"),
        devices.dispatch_trace(limit=0),
    ):
        pass


def test_a_program_that_fails_leaves_the_calls_that_it_made() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError), devices.dispatch_trace() as trace:
        x.exp() @ torch.ones(3)
    assert names(trace)[0] == "aten::exp"
    with devices.dispatch_trace() as after:
        x.exp()
    assert [call.depth for call in after.calls if call.operator == "aten::exp"] == [0]


def test_a_dispatch_mode_ends_a_chain() -> None:
    class Quiet(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return op(*args, **(kwargs or {}))

    x = torch.ones(2, device="npu")
    with devices.dispatch_trace() as trace, Quiet():
        x.exp()
    outer, inner = [call for call in trace.calls if call.operator == "aten::exp"]
    keys = [entry.key for entry in outer.chain]
    assert keys == ["PythonTLSSnapshot", "AutogradPrivateUse1", "Python"]
    assert inner.chain[0].key == "PrivateUse1"


def test_what_is_captured_is_seen_and_a_replay_is_not() -> None:
    x = torch.ones(2, device="npu")
    graph = graphs.CapturedGraph()
    with devices.dispatch_trace() as captured, graphs.capture(graph):
        y = x.exp()
    with devices.dispatch_trace() as replayed:
        graph.replay()
    assert "aten::exp" in names(captured)
    recorded, *_ = [call for call in captured.calls if call.operator == "aten::exp"]
    assert "native/torch/graphs/recorder_entry.cpp" in recorded.chain[0].where
    assert "aten::exp" not in [call.operator for call in replayed.calls]
    assert torch.equal(y.cpu(), torch.ones(2).exp())


def test_a_kernel_operator_is_seen_although_its_calls_are_fast() -> None:
    from bringup import kernels

    x, weight = torch.ones(4, 8), torch.ones(8)
    kernels.rms_norm(x, weight)
    with devices.dispatch_trace() as trace:
        kernels.rms_norm(x, weight)
    assert "bringup::rms_norm" in names(trace)


def test_an_operator_that_is_gone_at_the_end_has_no_kernels() -> None:
    library = torch.library.Library("dispatch_gone", "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CompositeExplicitAutograd")
    with devices.dispatch_trace() as trace:
        torch.ops.dispatch_gone.f.default(torch.ones(1))
        library._destroy()
    (call,) = [call for call in trace.calls if call.operator == "dispatch_gone::f"]
    assert [entry.kind for entry in call.chain] == [KernelKind.MISSING]


def test_table_and_json_say_what_is_computed() -> None:
    x = torch.ones(2, device="npu")
    with devices.dispatch_trace() as trace:
        x.exp(), x.exp(), x.abs_()
    first = str(trace).splitlines()[1].split()
    assert first[:2] == ["2", "aten::exp"]
    assert str(trace).splitlines()[-1].endswith("computed from the dispatch table, not observed")
    told = json.loads(json.dumps(trace.to_dict()))
    assert told["computed"] == ["chains"]
    exp, again = [call for call in told["calls"] if call["operator"] == "aten::exp"]
    assert exp["chain"] == again["chain"]
    rows = told["chains"][exp["chain"]]
    assert [row["key"] for row in rows] == ["AutogradPrivateUse1", "PrivateUse1", "CPU"]
    assert rows[1]["kind"] == "host fallback"
    assert told["lost"] == 0
    assert exp["depth"] == 0
    assert exp["backward"] == ""


PROGRAM = """
import torch
from bringup import devices
torch.ones(1).cos()
devices.load_driver("sim")
torch.ones(2, device="npu").exp()
"""


def run(value: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    from bringup import settings

    environment = settings.without("BRINGUP_DISPATCH_TRACE")
    environment |= {"BRINGUP_DISPATCH_TRACE": value}
    done = run_forked(PROGRAM, environment=environment, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return done


def test_the_setting_lists_calls_at_the_end_from_the_driver_on(tmp_path: Path) -> None:
    said = run("1", tmp_path).stderr
    assert "BRINGUP_DISPATCH_TRACE" in said.splitlines()[0]
    assert "aten::exp" in said
    assert "aten::cos" not in said  # before the driver was there
    assert run("0", tmp_path).stderr == ""


def test_the_setting_writes_json_and_says_where_it_cannot(tmp_path: Path) -> None:
    assert run("trace-%p.json", tmp_path).stderr == ""
    (file,) = tmp_path.glob("trace-*.json")
    assert file.stem.removeprefix("trace-").isdigit()
    assert "aten::exp" in {call["operator"] for call in json.loads(file.read_text())["calls"]}
    said = run("nowhere/trace.json", tmp_path).stderr
    assert said.startswith("bringup: BRINGUP_DISPATCH_TRACE=nowhere/trace.json: ")
