"""Graphs that outlive a process: what a file has of them, what it refuses, and who may read it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.forked_python import output_of
from tests.unit.graphs.test_control_flow import cond, while_loop
from tests.unit.graphs.test_npu import SHIFT
from torch.utils._pytree import register_pytree_node, tree_flatten

from bringup import devices, graphs, jit, ops
from bringup._container import Section, write
from bringup._container import read as read_sections
from bringup._native import torch_library
from bringup.devices import sim
from bringup.errors import BundleError, CaptureError
from bringup.graphs._saved_values import KIND, VERSIONS


def saved(path: Path, function: Callable[..., Any], *inputs: torch.Tensor) -> Path:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs=inputs):
        graph.outputs = function(*inputs)
    graphs.save(graph, path)
    return path


def small(x: torch.Tensor) -> dict[str, Any]:
    y = (x * 2.5 + torch.tensor([1.0, -0.0])).softmax(-1)
    return {"y": y, "all": [y.t(), (y.sum(), 7, "text", 1 + 2j, torch.float16, None)]}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.no_grad():
        return saved(tmp_path_factory.mktemp("save") / "small.bgraph", small, torch.ones(3, 2))


@pytest.fixture(scope="module")
def npu_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With branches, slots and copies, on a device."""
    devices.load_driver("sim")
    on, x = torch.tensor(True), torch.ones(3, device="npu")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = cond(on, lambda x: (x + 1,), lambda x: (x - 1,), (x,))[0]
        return cond(y[0] > 0, lambda y: (y.clone(),), lambda y: (y * 2,), (y,))[0]

    return saved(tmp_path_factory.mktemp("npu") / "npu.bgraph", program, x)


def test_a_loaded_graph_runs_as_the_saved_one(file: Path) -> None:
    graph = graphs.load(file)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in graph.inputs.values())
    x = torch.randn(3, 2)
    given, expected = graph.run(x), small(x)
    tensors, form = tree_flatten(given)
    theirs, expected_form = tree_flatten(expected)
    assert form == expected_form
    assert all(torch.equal(a, b) for a, b in zip(tensors[:3], theirs[:3], strict=True))
    assert tensors[3:] == theirs[3:]
    assert [node.op for node in graph.nodes] == [
        "aten::mul.Tensor", "constant", "aten::add.Tensor", "aten::_softmax", "aten::sum",
    ]  # fmt: skip
    assert "test_save.py" in graph.nodes[0].line


def test_a_loaded_graph_can_be_saved_again(file: Path, npu_file: Path, tmp_path: Path) -> None:
    for one in (file, npu_file):
        first = graphs.load(one)
        graphs.save(first, tmp_path / "again.bgraph")
        second = graphs.load(tmp_path / "again.bgraph")
        assert not first.diff(second)
        assert (first.to_dot(), first.memory) == (second.to_dot(), second.memory)
        tensors = [tree_flatten(graph.run(*graph.inputs.values()))[0] for graph in (first, second)]
        assert str(tensors[0]) == str(tensors[1])


def test_a_level_is_kept_unless_another_one_is_asked_for(tmp_path: Path) -> None:
    graph, x = graphs.CapturedGraph(optimize=0), torch.randn(100)
    with graphs.capture(graph, inputs=(x,)):
        graph.outputs = x * 2 + 1
    graphs.save(graph, tmp_path / "l.bgraph")
    for optimize, level in ((None, 0), (0, 0), (1, 1), (2, 2)):
        loaded = graphs.load(tmp_path / "l.bgraph", optimize=optimize)
        loaded.replay()
        assert loaded.wait_for_functions()
        loaded.replay()
        assert {node.level for node in loaded.levels()} == {level}
        assert torch.equal(loaded.outputs, x * 2 + 1)


def test_a_capture_that_is_under_way_records_neither_save_nor_load(
    file: Path, tmp_path: Path
) -> None:
    loaded, x = graphs.load(file), torch.ones(2)
    with graphs.capture(graphs.CapturedGraph(), inputs=(x,)):
        _ = x * 2
        with pytest.raises(CaptureError, match="save: a capture is under way on this thread"):
            graphs.save(loaded, tmp_path / "no.bgraph")
        with pytest.raises(CaptureError, match="load: a capture is under way on this thread"):
            graphs.load(file)


def everything(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    table = json.loads(content[-int.from_bytes(content[8:16], "little") :])
    return dict(table["made_for"])


@pytest.mark.usefixtures("handlers")
def test_slots_records_and_plans_are_kept(tmp_path: Path) -> None:
    @graphs.register_graph_handler("leaky_relu")
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS = {"leaky_relu": [("kwarg", "negative_slope", "slope")]}  # noqa: RUF012

    x = torch.tensor([-1.0, 2.0])
    graph, path = graphs.CapturedGraph(), tmp_path / "slots.bgraph"
    with graphs.capture(graph, inputs={"x": x}), graphs.scope("layer"):
        graph.outputs = torch.nn.functional.leaky_relu(x, 0.5)
    graph.update({"layer.leaky_relu.0.slope": 0.25})
    graphs.save(graph, path)
    graphs.unregister_graph_handler("leaky_relu")
    loaded = graphs.load(path)
    assert loaded.slots == graph.slots
    assert loaded.run(x=x).tolist() == [-0.25, 2]
    assert loaded.update({"**.slope": 2.0}).changed == ("layer.leaky_relu.0.slope",)
    assert loaded.run(x=x).tolist() == [-2, 2]
    loaded.update(cpu_update_input=[{"slope": float("inf")}])
    assert loaded.run(x=x).tolist() == [-float("inf"), 2]
    call = graphs.PlannedCall("aten::leaky_relu", {"slope": graphs.Input(0)})
    bound = graphs.UpdatePlan((call,)).bind(loaded)
    assert bound is not None


def test_tensor_slots_are_kept(affine: ops.KernelOperator, tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0])
    path = saved(tmp_path / "t.bgraph", lambda x: affine(x, 1, 2.0), x)
    loaded = graphs.load(path)
    assert loaded.run(x).tolist() == [3, 5]
    loaded.update({"affine.0.x": torch.tensor([5.0, 6.0]), "affine.0.shift": 0})
    loaded.replay()
    assert loaded.outputs.tolist() == [10, 12]


def test_branches_and_loops_are_kept(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> Any:
        (y,) = cond(x.sum() > 0, lambda x: (x.sqrt(),), lambda x: (x * 3,), (x,))
        return while_loop(lambda n, y: n < 5, lambda n, y: (n + 1, y + 1), torch.tensor(0), y)

    loaded = graphs.load(saved(tmp_path / "c.bgraph", program, torch.ones(2)))
    for x, expected in ((4.0, 7.0), (-1.0, 2.0)):
        trips, y = loaded.run(torch.full((2,), x))
        assert (trips.item(), y.tolist()) == (5, [expected] * 2)


@pytest.fixture
def shift(kernel_cache: object) -> Iterator[ops.KernelOperator]:
    """`shift(x, n)`: x + n, device code."""
    devices.load_driver("sim")
    operator = ops.kernel_op(
        "save_test::shift(Tensor x, int n) -> Tensor",
        source=jit.Source(text=SHIFT, name="shift.cpp"),
        outputs=ops.empty_like("x"),
        kind="device",
    )
    yield operator
    operator.undefine()


@pytest.mark.parametrize("index", [0, 1])
def test_a_device_follows_the_branches_of_a_loaded_graph(
    index: int, shift: ops.KernelOperator, tmp_path: Path
) -> None:
    """Device code, operators of the host, copies, and a loop whose predicate the device reads."""
    device = f"npu:{index}"

    def program(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        (y,) = cond(x[0] > 0, lambda x: (shift(x, 1) * 2,), lambda x: (shift(x, 5),), (x,))
        _, y = while_loop(
            lambda i, _: i < n, lambda i, y: (i + 1, shift(y, 3)), torch.zeros_like(n), y
        )
        return shift(torch.abs(y), 1).clone()

    x, n = torch.ones(2, device=device), torch.tensor(2, device=device)
    loaded = graphs.load(saved(tmp_path / "f.bgraph", program, x, n))
    for value, trips in ((1.0, 3), (-2.0, 1), (3.0, 0)):
        given = torch.full((2,), value, device=device), torch.tensor(trips, device=device)
        expected = program(*given)
        with sim.faults() as seen:
            y = loaded.run(*given)
        assert seen.functions["graph_launch"].calls == 1
        assert (y.device, y.tolist()) == (expected.device, expected.tolist())
    loaded.update({"cond.false.shift.0.n": 7})
    assert loaded.run(torch.full((2,), -9.0, device=device), n * 0).tolist() == [3, 3]


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_a_predicate_of_the_host_is_a_slot_of_a_loaded_graph(device: str, tmp_path: Path) -> None:
    devices.load_driver("sim")
    on, x = torch.tensor(True), torch.ones(2, device=device)

    def program(x: torch.Tensor) -> torch.Tensor:
        return cond(on, lambda x: (x + 1,), lambda x: (x - 1,), (x,))[0]

    loaded = graphs.load(saved(tmp_path / "p.bgraph", program, x))
    assert loaded.run(x).tolist() == [2, 2]
    for value in (False, True, torch.tensor(False)):
        assert loaded.update({"cond.0.pred": value}).changed == ("cond.0.pred",)
        assert loaded.run(x).tolist() == [2 * bool(value)] * 2
    graphs.save(loaded, tmp_path / "again.bgraph")
    assert graphs.load(tmp_path / "again.bgraph").run(x).tolist() == [0, 0]


@dataclass
class Pair:
    tensor: torch.Tensor
    number: float


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """As transformers' results are: a mapping of the fields that are not None."""

    tensor: torch.Tensor
    nothing: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self["tensor"] = self.tensor


register_pytree_node(
    Output,
    lambda output: (list(output.values()), list(output)),
    lambda values, names: Output(**dict(zip(names, values, strict=True))),
)


@dataclass
class Unregistered(Output):
    """Which torch's pytree does not know."""


def test_results_of_other_classes_are_dicts_of_their_fields(tmp_path: Path) -> None:
    x = torch.ones(2)
    pair = graphs.load(saved(tmp_path / "p.bgraph", lambda x: [Pair(x * 2, -0.0)], x)).run(x)[0]
    assert str(pair) == "{'tensor': tensor([2., 2.]), 'number': -0.0}"
    output = graphs.load(saved(tmp_path / "o.bgraph", lambda x: Output(x * 2), x)).run(x)
    assert str(output) == "{'tensor': tensor([2., 2.])}"
    with pytest.raises(CaptureError, match="run cannot copy a Unregistered, which may hold tensor"):
        saved(tmp_path / "u.bgraph", lambda x: Unregistered(x * 2), x)
    message = "save: what run takes or gives has a dict, which a file cannot hold"
    refused(tmp_path / "no", message, lambda x: {1: x * 2}, x)


def test_tensors_without_elements_stay_where_they_are(tmp_path: Path) -> None:
    devices.load_driver("sim")

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, x[:0] + 1, x[:0].cpu() + 1, torch.empty(0)]

    x = torch.ones(2, device="npu")
    loaded = graphs.load(saved(tmp_path / "e.bgraph", program, x))
    assert str(loaded.run(x)) == str(program(x))
    pool, x = torch.nn.AdaptiveAvgPool3d(2), torch.ones(0, 1, 4, 4, 4)  # all of the graph has none
    assert graphs.load(saved(tmp_path / "e.bgraph", pool, x)).run(x).shape == (0, 1, 2, 2, 2)


def test_attention_without_dropout_draws_nothing_on_a_device(tmp_path: Path) -> None:
    devices.load_driver("sim")
    x = torch.randn(1, 2, 8, 8, device="npu")
    attention = torch.nn.functional.scaled_dot_product_attention
    loaded = graphs.load(saved(tmp_path / "a.bgraph", lambda x: attention(x, x, x), x))
    assert torch.equal(loaded.run(x).cpu(), attention(x, x, x).cpu())
    drawing = r"node \d, .* draws random numbers"
    refused(tmp_path / "no", drawing, lambda x: attention(x, x, x, dropout_p=0.5), x)
    refused(tmp_path / "no", drawing, lambda x: torch.rand_like(x) + x, x)


def test_a_graph_of_several_devices_is_refused(shift: ops.KernelOperator, tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return shift(shift(x, 1).to("npu:1"), 1)

    several = "works on several devices, and a file is for one$"
    refused(tmp_path / "no", several, program, torch.ones(2, device="npu:0"))


def test_integers_that_a_loop_carries_are_kept(tmp_path: Path) -> None:
    def program(n: torch.Tensor, x: torch.Tensor) -> list[Any]:
        def body(i: Any, step: Any, x: torch.Tensor) -> tuple[Any, ...]:
            i += step
            return i, 2, x * 0.3 + i

        return list(while_loop(lambda i, *_: i < n, body, 0, 1, x))

    loaded = graphs.load(saved(tmp_path / "i.bgraph", program, torch.tensor(3), torch.ones(2)))
    for trips in (3, 0, 7):
        i, step, x = program(torch.tensor(trips), torch.ones(2))
        given = loaded.run(torch.tensor(trips), torch.ones(2))
        assert [given[0].item(), given[1].item(), given[2].tolist()] == [i, step, x.tolist()]


def test_a_graph_whose_results_have_no_owner_is_saved(tmp_path: Path) -> None:
    """As those of compiled functions, which share a pool and copy results out."""
    native = torch_library("graphs").graphs
    pool = graphs.GraphPool(native.MemoryPool(reuses_results=True))
    kept, x = [], torch.ones(64)
    for factor in (2, 3):
        graph = graphs.CapturedGraph()
        with graphs.capture(graph, pool, inputs=(x,)):
            graph.outputs = x * factor + 1
        graph.outputs = graph._captured("run").native.unowned(graph.outputs)
        kept.append(graph)
    for graph, factor in zip(kept, (2, 3), strict=True):
        graphs.save(graph, tmp_path / "unowned.bgraph")
        loaded = graphs.load(tmp_path / "unowned.bgraph")
        assert torch.equal(loaded.run(x * 5), x * 5 * factor + 1)


def test_one_file_is_loaded_by_several_threads(file: Path) -> None:
    def answers(number: int) -> bool:
        graph, x = graphs.load(file), torch.full((3, 2), float(number))
        return torch.equal(graph.run(x)["y"], small(x)["y"])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(answers, range(24)))


began, opened = threading.Event(), threading.Event()


@torch.library.custom_op("save_test::held", mutates_args=())
def held(x: torch.Tensor) -> torch.Tensor:
    """x, when the test lets go."""
    began.set()
    assert opened.wait(timeout=240)
    return x.clone()


def test_a_graph_is_saved_between_runs_of_other_threads(tmp_path: Path) -> None:
    state, x = torch.zeros(2), torch.ones(2)
    opened.set()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph, inputs=(x,)):
        state.add_(held(x))
        graph.outputs = state.add_(x).clone()
    began.clear()
    opened.clear()
    with ThreadPoolExecutor(2) as threads:
        run = threads.submit(graph.run, x)
        assert began.wait(timeout=240)
        saving = threads.submit(graphs.save, graph, tmp_path / "s.bgraph")
        opened.set()
        run.result()
        saving.result()
    assert graphs.load(tmp_path / "s.bgraph").run(x).tolist() == [4, 4]


def test_the_cpus_own_random_numbers_are_drawn_as_eager_draws_them(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        drawn = torch.dropout(x, 0.5, True), torch.rand_like(x), x.clone().bernoulli_(0.5)
        return [*drawn, torch.randn(8), torch.multinomial(x.abs(), 3)]

    x = torch.randn(64)
    loaded = graphs.load(saved(tmp_path / "random.bgraph", program, x))
    for seed in (1, 2, 2):
        torch.manual_seed(seed)
        expected, after = program(x), torch.rand(1)
        torch.manual_seed(seed)
        given = loaded.run(x)
        assert all(map(torch.equal, given, expected))
        assert torch.equal(torch.rand(1), after)


def refused(tmp_path: Path, message: str, function: Callable[..., Any], *inputs: Any) -> None:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "refused.bgraph"
    with pytest.raises(CaptureError, match=message):
        saved(path, function, *inputs)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_belongs_to_this_process_is_refused_by_name(tmp_path: Path) -> None:
    x = torch.ones(2)
    generator = torch.Generator()
    drawing = r"node 1, aten::bernoulli_.float, called at .*test_save.py.* draws random numbers"
    refused(tmp_path, drawing, lambda x: x.clone().bernoulli_(0.5, generator=generator), x)

    def printed(x: torch.Tensor) -> torch.Tensor:
        graphs.host_function(print, x)
        return x + 1

    refused(tmp_path, r"node 0, bringup_graphs::host_function, .* a function of Python", printed, x)
    weight = torch.nn.Parameter(torch.ones(2))

    @torch.enable_grad()
    def learns(x: torch.Tensor) -> torch.Tensor:
        (x * weight).sum().backward()
        return (x + 1).detach()

    refused(tmp_path, "holds a step of training, whose gradients and optimizers belong", learns, x)
    quantized = torch.quantize_per_tensor(x, 0.5, 0, torch.qint8)
    no_strides = (
        r"node 0, aten::dequantize.self, .* an argument that is a tensor that is not strided"
    )
    refused(tmp_path, no_strides, lambda x: quantized.dequantize() + x, x)
    event = graphs.ExternalEvent()

    def waits(x: torch.Tensor) -> torch.Tensor:
        event.wait()
        return x + 1

    event.record()
    refused(tmp_path, r"node 0, .* is an event, which other code", waits, x)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        _ = x + 1
    with pytest.raises(CaptureError, match="cannot tell this graph's inputs and results"):
        graphs.save(graph, tmp_path / "unknown.bgraph")
    with pytest.raises(CaptureError, match=r"CapturedGraph\.save: nothing is captured"):
        graphs.save(graphs.CapturedGraph(), tmp_path / "empty.bgraph")
    with pytest.raises(TypeError, match="save takes a CapturedGraph"):
        graphs.save(x, tmp_path / "none.bgraph")  # type: ignore[arg-type]


@given(st.data())
def test_a_damaged_file_is_refused_in_one_sentence(file: Path, data: st.DataObject) -> None:
    whole = file.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))])
    path = file.with_name("damaged.bgraph")
    for content in (whole[:place], flipped + whole[place + 1 :]):
        path.write_bytes(content)
        with pytest.raises(BundleError, match=r"damaged\.bgraph[^\n]*$"):
            graphs.load(path)


def rewritten(path: Path, target: Path, document: Any, **changed: str) -> None:
    """The same file with another section `graph`, for something else, and all digests right."""
    sections = read_sections(path, KIND, everything(path), VERSIONS)
    content = {name: bytes(one) for name, one in sections.items()}
    content["graph"] = json.dumps(document).encode()
    made = {
        name: Section(VERSIONS[name], [one], large=name == "weights")
        for name, one in content.items()
    }
    write(target, KIND, everything(path) | changed, made)


def document_of(path: Path) -> Any:
    return json.loads(bytes(read_sections(path, KIND, everything(path), VERSIONS)["graph"]))


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    rows = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in rows:
        found.append((*at, key))
        if isinstance(item, (dict, list)):
            found += places(item, (*at, key))
    return found


@settings(max_examples=150)
@given(st.data())
def test_a_file_with_right_digests_and_wrong_values_never_crashes(
    file: Path, npu_file: Path, data: st.DataObject
) -> None:
    file = data.draw(st.sampled_from([file, npu_file]))
    document = document_of(file)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places(document)))
        inner = document
        for key in path:
            inner = inner[key]
        inner[last] = data.draw(
            st.sampled_from(
                [None, -1, 0, 1, 2**40, 2**63, True, 0.5, "", "x", "aten::relu", [], {}, [[]]]
            )
        )
    path = file.with_name("hostile.bgraph")
    rewritten(file, path, document)
    with contextlib.suppress(BundleError):
        repr(graphs.load(path))


def test_a_file_for_something_else_is_refused(file: Path, npu_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.bgraph"
    for one, fact in (*((file, fact) for fact in everything(file)), (npu_file, "driver")):
        rewritten(one, path, document_of(one), **{fact: "another"})
        with pytest.raises(BundleError, match=f"was made for {fact} another, and here is "):
            graphs.load(path)
    program = """
import sys
from bringup import graphs
try:
    graphs.load(sys.argv[1])
except Exception as error:
    print(error)
"""
    assert "was made for device npu, and here is none" in output_of(program, str(npu_file))
    document = document_of(npu_file)
    document["device"] = 99
    rewritten(npu_file, path, document)
    with pytest.raises(BundleError, match=r"cannot be loaded: [^\n]*$"):
        graphs.load(path)


def test_a_loaded_graph_knows_what_its_operators_allocate(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (2,)).roll(1, 0)

    graph = graphs.load(saved(tmp_path / "a.bgraph", program, torch.ones(3, 2)), optimize=0)
    assert {row.reason for row in graph.levels()} == {"it has not run yet"}
    graph.replay()
    assert [node.method for node in graph.nodes] == ["allocations", "allocations"]


def test_lazily_conjugated_tensors_are_kept(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.conj() @ x + x.conj().imag

    x = torch.randn(2, 2, dtype=torch.complex64)
    loaded = graphs.load(saved(tmp_path / "c.bgraph", program, x))
    assert torch.equal(loaded.run(x + 1), program(x + 1))


def test_a_kernel_gets_no_smaller_result_than_it_writes(
    shift: ops.KernelOperator, tmp_path: Path
) -> None:
    x = torch.ones(3, device="npu:1")
    path = saved(tmp_path / "k.bgraph", lambda x: shift(x, 1) * 2, x)
    assert graphs.load(path).run(x).tolist() == [4] * 3
    document = document_of(path)
    _sizes(document["nodes"][0], document["tensors"], 2)
    rewritten(path, path, document)
    with pytest.raises(BundleError, match="node 0, save_test::shift: "):
        graphs.load(path)


Edit = Callable[[dict[str, Any], list[Any]], object]
WRONG: dict[str, tuple[str, Edit]] = {
    "the operator is defined otherwise here": (
        "operator", lambda node, _: node["operator"].__setitem__(2, "aten::mul(Tensor x) -> Tensor")
    ),
    "a slot of no argument": ("operator", lambda node, _: node["slots"].append([99, None])),
    "bytes beyond the memory": (
        "operator", lambda node, _: node["allocations"][0].__setitem__(2, 2**40)
    ),
    "a negative size": ("operator", lambda node, tensors: _sizes(node, tensors, -1)),
    "a constant of another size": ("constant", lambda node, tensors: _sizes(node, tensors, 4)),
    "a predicate that is no bool": (
        "control", lambda node, tensors: node.update(arguments=[{"tensor": _float(tensors)}])
    ),
    "control that leads nowhere": ("control", lambda node, _: node.update(target=99)),
    "a copy of other bytes than it has": ("copy", lambda node, tensors: _sizes(node, tensors, 2)),
}  # fmt: skip


def _float(tensors: list[Any]) -> int:
    return next(number for number, row in enumerate(tensors) if row[2] == "float32")


def _sizes(node: dict[str, Any], tensors: list[Any], size: int) -> None:
    tensors[node["outputs"][0][0]][3:5] = [[size], [1]]


@pytest.mark.parametrize("said", WRONG)
def test_what_a_node_cannot_be_is_said(
    said: str, file: Path, npu_file: Path, tmp_path: Path
) -> None:
    kind, edit = WRONG[said]
    one = npu_file if kind == "control" else file
    if kind == "copy":
        one = saved(tmp_path / "copy.bgraph", torch.clone, torch.ones(3, device="npu"))
    document = document_of(one)
    node = next(node for node in document["nodes"] if node["kind"] == kind)
    edit(node, document["tensors"])
    rewritten(one, tmp_path / "wrong.bgraph", document)
    with pytest.raises(BundleError, match=said):
        graphs.load(tmp_path / "wrong.bgraph")
