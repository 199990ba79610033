"""`CapturedGraph.run`: inputs in, results out, as one unit; what it takes and gives, what it
refuses, and that no result is the graph's own memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import Tensor, nn

from bringup import devices, graphs
from bringup.errors import CaptureError, ContractError, UpdateError


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "npu":
        devices.load_driver("sim")
    return str(request.param)


class Difference(nn.Module):
    def forward(self, a: Tensor, b: Tensor, *, scale: float = 1.0, halve: bool = False) -> Tensor:
        return (b - a) * scale / (2 if halve else 1)


def captured_call(model: nn.Module, *args: Any, **kwargs: Any) -> graphs.CapturedGraph:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        model(*args, **kwargs)
    return graph


def test_run_takes_and_gives_what_the_captured_module_did(device: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).to(device), torch.randn(2, 4).to(device)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = model(x)
    results = []
    for _ in range(3):
        fresh = torch.randn(2, 4).to(device)
        result = graph.run(fresh)
        results.append((result, model(fresh)))
        assert result.device == y.device
    for result, expected in results:
        assert torch.equal(result.cpu(), expected.cpu())
    assert list(graph.inputs) == ["input"]
    assert graph.outputs is y


def test_arguments_are_told_apart_by_name_not_by_the_order_in_which_they_are_read() -> None:
    graph = captured_call(Difference(), torch.zeros(2), torch.zeros(2), scale=2.0)
    one, five = torch.ones(2), torch.full((2,), 5.0)
    assert graph.run(one, five).tolist() == [8, 8]
    assert graph.run(b=one, a=five, scale=2.0).tolist() == [-8, -8]


def test_inputs_that_are_parts_of_one_another_are_read_before_they_are_written() -> None:
    a, b = torch.zeros(2), torch.full((2,), 3.0)
    graph = captured_call(Difference(), a, b)
    assert graph.run(b, a).tolist() == [-3, -3]
    square = torch.arange(4.0).reshape(2, 2)
    graph = captured_call(nn.ReLU(), square)
    assert graph.run(square.t()).tolist() == [[0, 2], [1, 3]]


def test_result_of_a_run_may_be_the_input_of_the_next() -> None:
    graph = graphs.CapturedGraph()
    x = torch.zeros(3)
    with graphs.capture(graph, inputs=x):
        graph.outputs = x + 1
    y = torch.zeros(3)
    for _ in range(4):
        y = graph.run(y)
    assert y.tolist() == [4, 4, 4]
    assert graph.run(graph.outputs).tolist() == [5, 5, 5]


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Record:
    value: Tensor
    more: dict[str, Any]
    count: int = 2


class Nested(nn.Module):
    def forward(self, batch: dict[str, Any]) -> Any:
        x, (y, z) = batch["x"], batch["rest"]
        return {"pair": Pair(x + y, z), "record": Record(x * 2, {"none": None, "t": [y.t()]})}


def test_nests_of_inputs_and_results() -> None:
    def batch(value: float) -> dict[str, Any]:
        return {"x": torch.full((2, 2), value), "rest": (torch.ones(2, 2), torch.zeros(1))}

    model = Nested()
    graph = captured_call(model, batch(1.0))
    assert list(graph.inputs) == ["batch['x']", "batch['rest'][0]", "batch['rest'][1]"]
    result, expected = graph.run(batch(7.0)), model(batch(7.0))
    assert torch.equal(result["pair"].first, expected["pair"].first)
    assert type(result["pair"]) is Pair
    assert type(result["record"]) is Record
    assert torch.equal(result["record"].value, expected["record"].value)
    assert result["record"].count == 2
    assert result["record"].more["none"] is None
    assert torch.equal(result["record"].more["t"][0], torch.ones(2, 2))
    assert result["record"].value.data_ptr() != graph.outputs["record"].value.data_ptr()
    assert result["pair"].second.data_ptr() != graph.outputs["pair"].second.data_ptr()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x.expand(3, 4, 4),
        lambda x: x.unfold(0, 3, 1),
        lambda x: x[:0],
    ],
)
def test_results_have_the_captured_strides_and_memory_of_their_own(
    make: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(4, 4)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs=(x,)):
        graph.outputs = make(torch.relu(x))
    fresh = torch.randn(4, 4)
    first = graph.run(fresh)
    assert torch.equal(first, make(torch.relu(fresh)))
    assert first.stride() == graph.outputs.stride()
    before = first.clone()
    graph.run(torch.randn(4, 4))
    assert torch.equal(first, before)


def test_declared_inputs_by_position_and_by_keyword() -> None:
    a, b = torch.zeros(2), torch.zeros(2)
    by_position, by_keyword = graphs.CapturedGraph(), graphs.CapturedGraph()
    with graphs.capture(by_position, inputs=(a, [b])):
        result = b - a
    by_position.outputs = {"difference": result}
    with graphs.capture(by_keyword, inputs={"a": a, "b": b}):
        by_keyword.outputs = b - a
    one, five = torch.ones(2), torch.full((2,), 5.0)
    assert by_position.run(one, [five])["difference"].tolist() == [4, 4]
    assert by_keyword.run(b=five, a=one).tolist() == [4, 4]
    with pytest.raises(TypeError, match=r"takes a=, b=, as declared, got 2 by position"):
        by_keyword.run(one, five)
    with pytest.raises(TypeError, match=r"takes 2 inputs, as declared, got 1 by position"):
        by_position.run(one)
    with pytest.raises(TypeError, match=r"input 'b' is missing. It takes a, b"):
        by_keyword.run(a=one)


def test_slots_are_written_within_the_unit(affine: Any) -> None:
    x = torch.ones(3)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs=x):
        graph.outputs = affine(x, 1, 2.0)
    assert graph.run(x, slots={"affine.shift": 10}).tolist() == [12, 12, 12]
    assert graph.run(torch.zeros(3)).tolist() == [10, 10, 10]
    with pytest.raises(UpdateError, match="takes an int"):
        graph.run(torch.full((3,), 9.0), slots={"affine.shift": 1.5})
    assert x.tolist() == [0, 0, 0]
    assert graph.run(x).tolist() == [10, 10, 10]


def slot_values(graph: graphs.CapturedGraph) -> dict[str, Any]:
    slots = graph.slots.items()
    return {name: slot.value for name, slot in slots if slot.type != "Tensor"}


@pytest.fixture
def without_generator(affine: Any) -> graphs.CapturedGraph:
    """A graph of a slot, which draws from a generator that is gone: a replay raises."""
    own, x, graph = [torch.Generator()], torch.ones(3), graphs.CapturedGraph()
    with graphs.capture(graph, inputs=x):
        graph.outputs = affine(x, 1, 2.0) + torch.rand(3, generator=own[0])
    own.clear()
    return graph


def test_slots_are_as_before_when_the_run_fails_before_its_replay(
    without_generator: graphs.CapturedGraph,
) -> None:
    before = slot_values(without_generator)
    with pytest.raises(CaptureError, match="drew from was freed"):
        without_generator.run(torch.zeros(3), slots={"affine.shift": 10, "affine.scale": 3.0})
    assert slot_values(without_generator) == before


def test_an_update_by_another_thread_stays_when_the_run_around_it_fails(
    without_generator: graphs.CapturedGraph,
) -> None:
    unit, content = without_generator._unit, without_generator._content
    assert unit is not None
    assert content is not None
    before = slot_values(without_generator)

    def update() -> None:
        content.table.update({"affine.shift": 10, "affine.scale": 3.0})
        pool.submit(without_generator.update, {"affine.shift": 20}).result()

    with ThreadPoolExecutor(1) as pool, pytest.raises(CaptureError, match="was freed"):
        unit.run(content.native, (torch.zeros(3),), {}, update)
    after = slot_values(without_generator)
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert list(changed.values()) == [20]


def test_slots_are_written_when_an_operator_of_the_run_failed(affine: Any) -> None:
    x, graph = torch.ones(3), graphs.CapturedGraph()
    with graphs.capture(graph, inputs=x):
        graph.outputs = affine(x, 1, 2.0)
        torch.ops.aten._assert_async.msg(x.sum() < 5, "too much")
    with pytest.raises(RuntimeError, match="too much"):
        graph.run(torch.full((3,), 9.0), slots={"affine.shift": 10})
    assert graph.run(torch.zeros(3)).tolist() == [10, 10, 10]


REFUSED_INPUTS: dict[str, tuple[Any, str]] = {
    "shape": (torch.zeros(3), r"input 'a' has shape \[3\], and the captured one \[2\]"),
    "broadcast": (torch.zeros(1), r"input 'a' has shape \[1\], and the captured one \[2\]"),
    "rank": (torch.zeros(1, 2), r"input 'a' has shape \[1, 2\]"),
    "dtype": (torch.zeros(2, dtype=torch.float64), r"input 'a' has dtype torch.float64, and the"),
    "device": (torch.zeros(2, device="meta"), r"input 'a' has device meta, and the captured"),
    "layout": (torch.zeros(2).to_sparse(), r"input 'a' has layout torch.sparse_coo"),
    "list": ([0.0, 0.0], r"the captured call was not given 'a\[0\]'|input 'a' takes float32\[2\]"),
    "number": (1.0, r"input 'a' takes float32\[2\] on cpu, got 1.0 \(float\)"),
    "none": (None, r"input 'a' takes float32\[2\] on cpu, got None"),
}


@pytest.mark.parametrize("name", REFUSED_INPUTS)
def test_wrong_input_is_refused_by_name_and_nothing_is_written(name: str) -> None:
    value, message = REFUSED_INPUTS[name]
    a, b = torch.zeros(2), torch.full((2,), 4.0)
    graph = captured_call(Difference(), a, b)
    with pytest.raises((ContractError, TypeError), match=message):
        graph.run(value, torch.ones(2))
    assert b.tolist() == [4, 4]
    assert graph.run(torch.ones(2), b).tolist() == [3, 3]


def test_another_value_of_what_is_no_tensor_is_refused() -> None:
    a, b = torch.zeros(2), torch.ones(2)
    graph = captured_call(Difference(), a, b, halve=True)
    with pytest.raises(ContractError, match=r"'halve' was True \(bool\) when .* got 1 \(int\)"):
        graph.run(a, b, halve=1)
    with pytest.raises(TypeError, match=r"the captured call was not given 'scale'\. It takes a, b"):
        graph.run(a, b, scale=2.0)
    with pytest.raises(TypeError, match="too many positional arguments; run takes what Difference"):
        graph.run(a, b, a)
    with pytest.raises(TypeError, match="input 'b' is missing"):
        graph.run(a)
    assert graph.run(a, b).tolist() == [0.5, 0.5]


def test_input_that_requires_a_gradient_is_refused_while_gradients_are_on() -> None:
    graph = captured_call(nn.ReLU(), torch.zeros(2))
    with torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(ContractError, match="'input' requires a gradient, and a captured gr"):
            graph.run(x)
    assert graph.run(x).tolist() == [1, 1]


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(2))

    def forward(self, x: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
        return (x @ weight) * mask


def test_weights_given_as_arguments_are_never_overwritten() -> None:
    head, weight = Head(), nn.Parameter(torch.eye(2))
    x = torch.ones(1, 2)
    graph = captured_call(head, x, weight, head.mask)
    assert graph.run(x * 3, weight, head.mask).tolist() == [[3, 3]]
    for arguments in ((weight * 2, head.mask), (weight, torch.zeros(2))):
        with pytest.raises(ContractError, match="is a weight: run can take the captured tensor"):
            graph.run(x, *arguments)
    assert weight.tolist() == [[1, 0], [0, 1]]
    assert head.mask.tolist() == [1, 1]


class Cached(nn.Module):
    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        cache.add_(x)
        return cache.sum()


def test_input_that_the_graph_writes_must_be_the_captured_tensor() -> None:
    cache = torch.zeros(2)
    graph = captured_call(Cached(), torch.zeros(2), cache)
    assert graph.run(torch.ones(2), cache).item() == 2
    assert graph.run(torch.ones(2), cache[:]).item() == 4
    with pytest.raises(ContractError, match="'cache' is written by the graph"):
        graph.run(torch.ones(2), torch.zeros(2))
    assert cache.tolist() == [2, 2]


class Norm(nn.Module):
    def forward(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return torch.native_batch_norm(x, None, None, mean, var, self.training, 0.5, 0.0)[0]


def test_running_statistics_are_written_in_training_alone(handlers: None) -> None:
    @graphs.register_graph_handler("native_batch_norm")
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS = {  # noqa: RUF012
            "native_batch_norm": [("arg", 3, "mean"), ("arg", 5, "training"), ("arg", 7, "eps")]
        }

    given = torch.tensor([[1.0], [3.0]]), torch.ones(1), torch.ones(1)
    graph = captured_call(Norm().eval(), *given)
    assert [name.rpartition(".")[2] for name in graph.slots] == ["mean", "training", "eps"]
    with pytest.raises(UpdateError, match="whether it writes running statistics stays"):
        graph.update({"**.training": True})
    assert graph.run(given[0], torch.full((1,), 3.0), torch.full((1,), 4.0)).tolist() == [[-1], [0]]
    given[1].fill_(1)
    graph = captured_call(Norm(), *given)
    with pytest.raises(ContractError, match="'mean' is written by the graph"):
        graph.run(*map(torch.clone, given))
    graph.run(*given)
    assert given[1].item() == 1.5


def test_one_tensor_given_twice_stays_one() -> None:
    x = torch.ones(2)
    graph = captured_call(Difference(), x, x)
    with pytest.raises(ContractError, match="'a' shares memory with another input"):
        graph.run(torch.zeros(2), torch.ones(2))
    assert graph.run(x, x).tolist() == [0, 0]


def test_expanded_input_takes_what_repeats_the_same_way_only() -> None:
    graph = captured_call(nn.ReLU(), torch.zeros(3, 1).expand(3, 4))
    assert graph.run(torch.ones(3, 1).expand(3, 4)).sum().item() == 12
    with pytest.raises(ContractError, match="'input' cannot be written: it has one element in"):
        graph.run(torch.ones(3, 4))


def outside_of_modules(x: Tensor) -> Tensor:
    return torch.relu(x)


UNCLEAR: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "function": (outside_of_modules, "no module was called in the captured block"),
    "two modules": (lambda x: nn.ReLU()(nn.Tanh()(x)), "called 2 modules one after the other"),
    "work before": (lambda x: nn.ReLU()(x + 1), "operators outside the call of ReLU"),
    "work after": (lambda x: nn.ReLU()(x) + 1, "operators outside the call of ReLU"),
    "view after": (lambda x: nn.ReLU()(x)[0], "operators outside the call of ReLU"),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_block_that_is_no_single_module_call_must_declare(name: str) -> None:
    function, reason = UNCLEAR[name]
    x, graph = torch.ones(2), graphs.CapturedGraph()
    with graphs.capture(graph):
        y = function(x)
    with pytest.raises(CaptureError) as refused:
        graph.run(x)
    assert reason in str(refused.value)
    assert "with graphs.capture(g, inputs=(x,)): g.outputs = model(x)" in str(refused.value)
    graph.outputs = y
    with pytest.raises(CaptureError, match="cannot tell this graph's inputs and results"):
        graph.run(x)  # the inputs are still unknown
    graph.replay()
    assert torch.equal(y, function(x))


def test_module_with_hooks_must_declare() -> None:
    model = nn.ReLU()
    model.register_forward_hook(lambda module, args, result: (result,))
    graph = captured_call(model, torch.ones(2))
    with pytest.raises(CaptureError, match="ReLU has forward hooks, which may change what it"):
        graph.run(torch.ones(2))


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Any:
        holder = threading.local()
        holder.value = x * 2
        return x + 1, holder


def test_result_that_cannot_be_copied_must_be_declared() -> None:
    graph, x = graphs.CapturedGraph(), torch.ones(2)
    with graphs.capture(graph):
        y, holder = Opaque()(x)
    with pytest.raises(CaptureError, match=r"has a \w*local, which may hold tensors of the"):
        graph.run(x)
    with pytest.raises(CaptureError, match=r"run cannot copy a .*local"):
        graph.outputs = y, holder
    graph.outputs = y, holder.value
    assert [t.tolist() for t in graph.run(torch.zeros(2))] == [[1, 1], [0, 0]]


def test_outputs_must_be_tensors_of_the_graph() -> None:
    graph = captured_call(nn.ReLU(), torch.ones(2))
    with pytest.raises(CaptureError, match=r"float32\[3\] on cpu is no tensor that the graph"):
        graph.outputs = torch.zeros(3)
    with pytest.raises(CaptureError, match="there is no tensor in it"):
        graph.outputs = 3
    assert graph.run(torch.ones(2)).tolist() == [1, 1]
    empty = graphs.CapturedGraph()
    with pytest.raises(CaptureError, match=r"CapturedGraph\.outputs: nothing is captured"):
        empty.outputs = torch.zeros(3)
    for name in ("run", "inputs", "outputs"):
        with pytest.raises(CaptureError, match=rf"CapturedGraph\.{name}: nothing is captured"):
            empty.run() if name == "run" else getattr(empty, name)


def test_declared_inputs_are_tensors() -> None:
    graph = graphs.CapturedGraph()
    with pytest.raises(TypeError, match=r"inputs\[1\] is no strided tensor, got 2 \(int\)"):
        graphs.capture(graph, inputs=(torch.ones(2), 2))
    with pytest.raises(TypeError, match="takes a tensor, a sequence or a mapping, got 'x'"):
        graphs.capture(graph, inputs="x")


def test_failed_run_leaves_the_graph_usable() -> None:
    index = torch.tensor([1])
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs=index):
        graph.outputs = nn.functional.embedding(index, torch.ones(3, 2))
    with pytest.raises(IndexError, match="out of range"):
        graph.run(torch.tensor([7]))
    assert graph.run(torch.tensor([2])).tolist() == [[1, 1]]
    graph.replay()


def test_reset_graph_forgets_inputs_and_outputs() -> None:
    graph = captured_call(nn.ReLU(), torch.ones(2))
    graph.reset()
    with graphs.capture(graph):
        torch.ones(2) + 1
    with pytest.raises(CaptureError, match="cannot tell this graph's inputs"):
        graph.run(torch.ones(2))


def test_inference_tensors_may_be_captured_inputs() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
        graph = captured_call(nn.ReLU(), x)
    y = graph.run(torch.full((2,), 3.0))
    assert y.tolist() == [3, 3]
    assert not y.is_inference()
    with torch.inference_mode():
        assert graph.run(torch.zeros(2)).tolist() == [0, 0]


def test_every_thread_gets_its_own_results(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).to(device)
    graph = captured_call(model, torch.zeros(16, 32, device=device))

    def work(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        stream = torch.Stream(device=device) if device == "npu" else torch.no_grad()
        right = True
        with torch.no_grad(), stream:
            for _ in range(30):
                x = torch.randn(16, 32, generator=generator).to(device)
                result = graph.run(x).cpu()
                right &= torch.equal(result, model(x).cpu())
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_runs_in_two_streams_of_one_thread_are_in_order() -> None:
    devices.load_driver("sim")
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]).to("npu")
    graph = captured_call(model, torch.zeros(64, 64, device="npu"))
    streams = [torch.Stream(device="npu") for _ in range(2)]
    inputs = [torch.randn(64, 64, device="npu") for _ in range(8)]
    expected = [model(x).cpu() for x in inputs]
    torch.npu.synchronize()
    results = []
    for step, x in enumerate(inputs):
        with streams[step % 2]:
            results.append(graph.run(x))
    torch.npu.synchronize()
    for result, right in zip(results, expected, strict=True):
        assert torch.equal(result.cpu(), right)


def test_empty_inputs_and_results() -> None:
    graph = captured_call(Difference(), torch.zeros(0, 3), torch.ones(3))
    assert graph.run(torch.zeros(0, 3), torch.zeros(3)).shape == (0, 3)
    with pytest.raises(ContractError, match=r"'a' has shape \[0, 2\]"):
        graph.run(torch.zeros(0, 2), torch.zeros(3))


def test_call_inside_vmap_must_declare() -> None:
    linear, x, graph = nn.Linear(2, 2), torch.ones(3, 2), graphs.CapturedGraph()
    with graphs.capture(graph):
        torch.vmap(linear)(x)
    with pytest.raises(CaptureError, match="Linear took or gave a tensor that has no memory"):
        graph.run(x)


@dataclass(slots=True)
class _Slotted:
    value: torch.Tensor
    name: str = "twice"


@dataclass(slots=True)
class _Unset:
    value: torch.Tensor
    later: torch.Tensor = field(init=False)


class _Giving(nn.Module):
    def __init__(self, record: type) -> None:
        super().__init__()
        self.record = record

    def forward(self, x: torch.Tensor) -> Any:
        return self.record(x * 2)


def test_dataclass_with_slots_is_copied() -> None:
    graph, _ = captured(_Giving(_Slotted), torch.ones(3))
    first, second = graph.run(torch.zeros(3)), graph.run(torch.full((3,), 4.0))
    assert type(first) is _Slotted
    assert (first.value.tolist(), first.name) == ([0, 0, 0], "twice")
    assert second.value.tolist() == [8, 8, 8]


def test_result_that_cannot_be_looked_at_is_a_reason_of_run_and_no_error_of_the_capture() -> None:
    x = torch.ones(3)
    graph, output = captured(_Giving(_Unset), x)
    x.fill_(5)
    graph.replay()
    assert output.value.tolist() == [10, 10, 10]
    with pytest.raises(CaptureError, match=r"cannot tell .* raised AttributeError: .*later"):
        graph.run(x)


def test_declared_output_that_the_graph_does_not_know_is_refused_by_the_capture() -> None:
    x, other, graph = torch.ones(2), torch.zeros(2), graphs.CapturedGraph()

    def run() -> None:
        with graphs.capture(graph, inputs=(x,)):
            x * 2
            graph.outputs = {"other": other}

    with pytest.raises(
        CaptureError, match=r"outputs: float32\[2\] on cpu is no tensor that the gra"
    ):
        run()


def test_declared_input_that_the_graph_does_not_know_is_refused_by_the_capture() -> None:
    x, other, graph = torch.ones(2), torch.zeros(2), graphs.CapturedGraph()

    def run() -> None:
        with graphs.capture(graph, inputs=(x, other)):
            graph.outputs = x * 2

    with pytest.raises(
        CaptureError, match=r"inputs\[1\] \(float32\[2\] on cpu\) is no tensor that"
    ):
        run()
