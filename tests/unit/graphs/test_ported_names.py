"""Names that programs for CUDA graphs and torch_npu call, by what their tests ask of them."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bringup import devices, graphs
from bringup.compiler import captured_calls
from bringup.errors import CaptureError, DeviceError
from bringup.kernels import npu as torch_npu

NPU_OPS: Any = torch.ops.npu


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    devices.load_driver("sim")


@pytest.fixture
def host_memory() -> Any:
    """Statistics of pinned memory, from nothing cached."""
    gc.collect()
    torch.npu.host_empty_cache()
    torch.npu.reset_peak_host_memory_stats()
    torch.npu.reset_accumulated_host_memory_stats()
    return torch.npu.host_memory_stats


# --- captures where gradients are on


@torch.enable_grad()
def test_a_forward_under_grad_mode_is_captured_and_a_backward_behind_a_replay_raises() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = model(x)
    assert y.requires_grad
    torch.autograd.grad(y.sum(), model[0].weight, retain_graph=True)  # of the captured run
    x.copy_(torch.randn(3, 4))
    graph.replay()
    assert torch.equal(y, model(x))
    with torch.no_grad():
        assert torch.equal(graph.run(x), y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("cache", [True, False])
def test_graphed_callables_under_autocast_take_what_the_one_before_gives(cache: bool) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 8).to("npu"), nn.Linear(8, 2).to("npu")
    x, target = torch.randn(3, 4, device="npu"), torch.randn(3, 2, device="npu")
    hidden = torch.randn(3, 8, device="npu", requires_grad=True)  # not what the first gives

    def gradients(*modules: nn.Module) -> list[Tensor]:
        with torch.enable_grad(), torch.autocast("npu", torch.bfloat16, cache_enabled=cache):
            loss = nn.functional.mse_loss(modules[1](modules[0](x)), target)
        weights = [w for module in (first, second) for w in module.parameters()]
        return list(torch.autograd.grad(loss, weights))

    expected = gradients(first, second)
    with torch.autocast("npu", torch.bfloat16, cache_enabled=False):
        graphed = graphs.make_graphed_callables((first, second), ((x,), (hidden,)))
    for mine, its in zip(gradients(*graphed), expected, strict=True):
        assert torch.equal(mine, its)
    for module in graphed:
        module.forward.ungraph()
    assert all(map(torch.equal, gradients(first, second), expected))


def test_an_ungraphed_module_has_its_former_forward() -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    own = layer.forward = lambda x: x + 7
    graphs.make_graphed_callables(layer, (x,))
    with pytest.raises(CaptureError, match=r"graphed already.*forward\.ungraph\(\)"):
        graphs.make_graphed_callables(layer, (x,))
    layer.forward.ungraph()
    assert layer.forward is own


def test_graphed_and_compiled_calls_inside_a_capture_are_their_operators() -> None:
    layer, x = nn.Linear(2, 2), torch.ones(1, 2)
    graphs.make_graphed_callables(layer, (x,))
    double = graphs.make_graphed_callables(lambda x: x * 2, (x,))
    run: Any = lambda given: [given[0].exp() + 1]  # noqa: E731
    serve = captured_calls.captured(run, "f", frozenset(), 8)
    with torch.no_grad():
        serve([x])
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            (y,) = serve([double(layer(x))])
        x.copy_(torch.tensor([[3.0, -1.0]]))
        graph.replay()
        assert torch.equal(y, *serve([double(layer(x))]))
        assert torch.equal(y, (layer(x) * 2).exp() + 1)


# --- pools, handles, events, generators


def test_a_pool_is_known_by_the_number_that_cuda_calls_its_id() -> None:
    pool = torch.npu.MemPool()
    assert torch.npu.MemPool().id[1] > pool.id[1] > pool.id[0] == 0
    x, made = torch.ones(3, device="npu"), []
    for given in (pool.id, pool):
        graph = torch.npu.NPUGraph()
        with torch.no_grad(), torch.npu.graph(graph, pool=given):
            made.append(x + 1)
        assert graph.pool() is pool
    assert len(pool.describe().splitlines()) == 3
    with pytest.raises(CaptureError, match="is none of a graph's"):
        graphs.capture(graphs.CapturedGraph(), pool=(0, 10**9))


def test_a_graph_of_the_device_has_the_drivers_handle() -> None:
    x, graph = torch.ones(3, device="npu"), torch.npu.NPUGraph(keep_graph=True)
    with pytest.raises(CaptureError, match="nothing is captured"):
        graph.raw_cuda_graph()
    with torch.no_grad(), torch.npu.graph(graph):
        x + 1
    graph.instantiate()
    assert graph.raw_cuda_graph() != 0
    on_cpu = graphs.CapturedGraph()
    with graphs.capture(on_cpu):
        torch.ones(2) + 1
    with pytest.raises(CaptureError, match="made of 0 graphs of a driver"):
        on_cpu.raw_cuda_graph()


def test_external_events_are_asked_for_as_cudas_are() -> None:
    event, x = torch.npu.Event(external=True), torch.ones(3, device="npu")
    assert isinstance(event, graphs.ExternalEvent)
    graph = torch.npu.NPUGraph()
    with torch.no_grad(), torch.npu.graph(graph):
        y = x + 1
        event.record()
    assert not event.query()
    x.fill_(4)
    graph.replay()
    event.synchronize()
    assert not event.query()
    torch.npu.synchronize()
    assert y.tolist() == [5, 5, 5]
    plain = torch.npu.Event(enable_timing=True)
    assert type(plain) is torch.Event
    assert isinstance(plain, torch.npu.Event)
    assert isinstance(torch.npu.current_stream().record_event(), torch.npu.Event)
    with pytest.raises(TypeError, match="an order alone, got enable_timing"):
        torch.npu.Event(external=True, enable_timing=True)
    with pytest.raises(RuntimeError, match="an external event has no time"):
        event.elapsed_time(torch.npu.Event(external=True))


def test_tensors_of_a_block_are_in_memory_of_its_pool_alone() -> None:
    def pools() -> dict[int, tuple[int, int]]:
        return {row["address"]: row["segment_pool_id"] for row in torch.npu.memory_snapshot()}

    gc.collect()
    torch.npu.empty_cache()
    pool, outer = torch.npu.MemPool(), torch.npu.MemPool()
    with torch.npu.use_mem_pool(outer), torch.npu.use_mem_pool(pool, "npu:0"):
        x = torch.ones(3, device="npu")
        with ThreadPoolExecutor(1) as thread:  # the pool is this thread's
            others = [thread.submit(torch.ones, 3, device="npu").result()]
    others.append(torch.ones(3, device="npu"))
    place, number = x.data_ptr(), pool.id
    segment = max(one for one in pools() if one <= place)
    assert pools()[segment] == number
    assert not any(0 <= other.data_ptr() - segment < 2 << 20 for other in others)
    del x
    assert place not in (torch.ones(3, device="npu").data_ptr(), others[0].data_ptr())
    with torch.npu.use_mem_pool(pool):
        x = torch.ones(3, device="npu")
        assert x.data_ptr() == place
    del pool
    gc.collect()
    assert pools()[segment] == (0, 0)
    assert x.tolist() == [1, 1, 1]
    del x
    torch.npu.empty_cache()
    assert segment not in pools()
    with pytest.raises(TypeError, match="use_mem_pool takes a MemPool, got 3"):
        torch.npu.use_mem_pool(3).__enter__()


@pytest.mark.parametrize("variable", ["PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_options_of_other_allocators_are_told_once(
    variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, "expandable_segments:True")
    program = tmp_path / "program.py"
    program.write_text(
        "import warnings, torch\n"
        "from bringup import devices\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    devices.load_driver('sim')\n"
        "    devices.load_driver('sim')\n"
        "assert torch.ones(3, device='npu').sum().item() == 3\n"
        "print(*(one.message for one in told), sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, timeout=240
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{variable}=expandable_segments:True changes nothing on device 'npu'")


def test_generators_of_a_graph_share_states_and_are_cloned() -> None:
    mine, graph = torch.Generator("npu").manual_seed(3), torch.npu.NPUGraph()
    graph.register_generator_state(mine)
    with torch.no_grad(), torch.npu.graph(graph):
        drawn = torch.rand(5, generator=mine, device="npu")
    shared, apart = torch.Generator("npu"), mine.clone_state()
    shared.graphsafe_set_state(mine.graphsafe_get_state())
    for _ in range(2):
        graph.replay()
        assert torch.equal(drawn, torch.rand(5, generator=apart, device="npu"))
    assert torch.equal(
        torch.rand(5, generator=shared, device="npu"), torch.rand(5, generator=apart, device="npu")
    )


# --- pinned memory


@torch.no_grad()
def test_pinned_memory_of_a_capture_is_the_graphs_and_goes_with_it(host_memory: Any) -> None:
    before, target = host_memory(), torch.zeros(64, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        pinned = torch.full((64,), 7.0).pin_memory()
        target.copy_(pinned, non_blocking=True)
    place = pinned.data_ptr()
    del pinned
    kept = host_memory()
    assert kept["allocations.current"] > before["allocations.current"]
    torch.npu.host_empty_cache()
    assert host_memory()["allocated_bytes.current"] >= kept["active_bytes.current"] > 0
    others = [torch.full((64,), -1.0).pin_memory() for _ in range(8)]
    assert place not in {other.data_ptr() for other in others}
    graph.replay()
    assert target.cpu().eq(7).all()
    del others
    graph.reset()
    gc.collect()
    torch.npu.host_empty_cache()
    after = host_memory()
    assert after["allocations.current"] == before["allocations.current"]
    assert after["allocated_bytes.peak"] >= kept["allocated_bytes.current"]
    torch.npu.reset_peak_host_memory_stats()
    assert host_memory()["allocated_bytes.peak"] == after["allocated_bytes.current"]


@torch.no_grad()
def test_pinned_memory_that_no_operator_of_the_device_reads_is_given_back(host_memory: Any) -> None:
    before = host_memory()["allocated_bytes.current"]
    for _ in range(3):
        graph = torch.npu.NPUGraph()
        with torch.npu.graph(graph):
            unused = torch.full((1024,), 1.0).pin_memory()
        del unused
        graph.reset()
    gc.collect()
    torch.npu.host_empty_cache()
    assert host_memory()["allocated_bytes.current"] == before


# --- the device's allocator


def test_a_process_takes_no_more_than_its_part_of_a_device() -> None:
    _, total = torch.npu.mem_get_info(1)
    with pytest.raises(ValueError, match=r"from 0 to 1, got 1\.5"):
        torch.npu.set_per_process_memory_fraction(1.5)
    torch.npu.memory.set_per_process_memory_fraction((64 << 20) / total, "npu:1")
    try:
        assert torch.npu.get_per_process_memory_fraction(1) < 1
        assert torch.npu.get_per_process_memory_fraction(0) == 1
        kept = torch.empty(40 << 20, dtype=torch.uint8, device="npu:1")
        words = r"This process may take 64.00 MiB \(set_per_process_memory_fraction\)"
        with pytest.raises(torch.OutOfMemoryError, match=words):
            torch.empty(40 << 20, dtype=torch.uint8, device="npu:1")
        del kept  # cached, and given back for another size
        assert torch.empty(60 << 20, dtype=torch.uint8, device="npu:1").device.index == 1
        torch.empty(80 << 20, dtype=torch.uint8, device="npu:0")
    finally:
        torch.npu.set_per_process_memory_fraction(1.0, 1)
        torch.npu.empty_cache()
    torch.empty(80 << 20, dtype=torch.uint8, device="npu:1")
    torch.npu.empty_cache()


def test_memory_is_lent_by_address_until_it_is_given_back() -> None:
    before = torch.npu.memory_allocated(1)
    place = torch.npu.caching_allocator_alloc(1 << 20, "npu:1", torch.Stream("npu:1"))
    assert torch.npu.memory_allocated(1) == before + (1 << 20)
    torch.npu.memory.caching_allocator_delete(place)
    assert torch.npu.memory_allocated(1) == before
    with pytest.raises(DeviceError, match="gave no memory at"):
        torch.npu.caching_allocator_delete(place)


def test_what_tensors_take_and_give_back_is_recorded_while_asked_for(tmp_path: Path) -> None:
    memory = torch.npu.memory
    memory._record_memory_history(max_entries=3)
    try:
        for rows in (1 << 10, 1 << 12, 1 << 14):
            torch.empty(rows, device="npu:1")
        events = memory._snapshot()["device_traces"][1]
        freed = "free_completed"
        assert [event["action"] for event in events] == [freed, "alloc", freed]
        assert {event["size"] for event in events[1:]} == {1 << 16}
        assert events[1]["addr"] == events[2]["addr"]
        assert events[0]["time_us"] <= events[2]["time_us"]
        memory._dump_snapshot(str(tmp_path / "m.pickle"))
        kept = pickle.loads((tmp_path / "m.pickle").read_bytes())
        assert kept["device_traces"][1] == events
    finally:
        memory._record_memory_history(enabled=None)
    torch.empty(3, device="npu:1")
    assert memory._snapshot()["device_traces"] == [[], []]


# --- tensors of a replay


def _captured(call: Any) -> graphs.CapturedGraph:
    graph = torch.npu.NPUGraph()
    with torch.no_grad(), torch.npu.graph(graph):
        call()
    return graph


@pytest.mark.parametrize(
    "function", [torch_npu.print_npugraph_tensor, NPU_OPS.print_npugraph_tensor]
)
def test_tensors_are_printed_with_shape_and_dtype(function: Any, capfd: Any) -> None:
    x = torch.arange(6, dtype=torch.float32, device="npu").reshape(2, 3)
    graph = _captured(lambda: (function(x, tensor_name="x"), function(x)))
    x.mul_(2)
    graph.replay()
    torch.npu.synchronize()
    named, plain = capfd.readouterr().out.split("x=")[1].split("\ntensor(")
    assert named.startswith("tensor([[ 0.,  2.,  4.],")
    assert "shape=(2, 3), dtype=torch.float32" in named
    assert plain.startswith("[[ 0.,  2.,  4.],")


def test_tensors_are_saved_by_device_and_number_over_all_graphs(tmp_path: Path) -> None:
    x, y = torch.arange(6.0, device="npu:1"), torch.arange(4, dtype=torch.half, device="npu:1")
    path = str(tmp_path / "t.pt")
    for number in range(2):
        graph = _captured(lambda: NPU_OPS.save_npugraph_tensor(x, save_path=path))
        graph.replay()
        torch.npu.synchronize(1)
        assert torch.equal(torch.load(tmp_path / f"t_device_1_{number}.pt"), x.cpu())
        x.add_(1)
    pair = str(tmp_path / "pair.bin")
    for _ in range(2):
        x.add_(1)
        graph = _captured(
            lambda: NPU_OPS.save_npugraph_tensor.tensor_list([x, y], save_path=pair, overwrite=True)
        )
        graph.replay()
        torch.npu.synchronize(1)
        saved = torch.load(tmp_path / "pair_device_1.bin")
        assert torch.equal(saved[0], x.cpu())
        assert torch.equal(saved[1], y.cpu())
    former = Path.cwd()
    os.chdir(tmp_path)
    try:
        torch_npu.save_npugraph_tensor(y)  # in no capture: now
    finally:
        os.chdir(former)
    (found,) = tmp_path.glob("tensor_*_device_1_0.pt")
    assert torch.equal(torch.load(found), y.cpu())
    for wrong in ("t.txt", str(tmp_path / "none" / "t.pt")):
        with pytest.raises(ValueError, match=r"ends with \.pt or \.bin, in a folder that is there"):
            torch_npu.save_npugraph_tensor(x, save_path=wrong)


def test_host_functions_get_torch_npus_arguments_themselves() -> None:
    result, seen = torch.zeros(2, 2, device="npu"), []
    arguments = [torch.ones(2, 2, device="npu"), {"result": result, "number": 3}]

    def call(given: Any) -> None:
        seen.append((given is arguments, threading.get_ident()))

    stream = torch.npu.current_stream()
    torch.npu._subscribe_report(stream)
    graph = _captured(lambda: torch.npu._launch_host_func(stream, call, arguments))
    assert not seen
    for _ in range(3):
        graph.replay()
    torch.npu.synchronize()
    torch.npu._unsubscribe_report(stream)
    assert [mine for mine, _ in seen] == [True] * 3
    assert threading.get_ident() not in {thread for _, thread in seen}
    with pytest.raises(TypeError, match="a nest with tensors"):
        torch.npu._launch_host_func(stream, call, [3])
