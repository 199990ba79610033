"""Named slots: names, patterns, updates, and every way in which an update is refused."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from tests.unit.graphs.support import captured
from tests.unit.ops.support import each
from torch import Tensor, nn

from bringup import graphs, ops
from bringup.errors import CaptureError, KernelError, UpdateError

Operator = ops.KernelOperator


class Block(nn.Module):
    def __init__(self, affine: Operator) -> None:
        super().__init__()
        self.affine = affine

    def forward(self, x: Tensor) -> Tensor:
        return self.affine(x, 1, 2.0, False, [3, 4], [0.5])


class Model(nn.Module):
    def __init__(self, affine: Operator) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(affine), Block(affine)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def model_graph(affine: Operator) -> tuple[graphs.CapturedGraph, Tensor, Tensor]:
    x = torch.ones(3)
    graph, output = captured(Model(affine), x)
    return graph, x, output


ModelGraph = tuple[graphs.CapturedGraph, Tensor, Tensor]


def test_kernel_operators_become_kernel_nodes(model_graph: ModelGraph) -> None:
    graph, x, output = model_graph
    assert [(node.kind, node.op) for node in graph.nodes] == [("kernel", "graphs_test::affine")] * 2
    x.fill_(2)
    graph.replay()
    assert output.tolist() == [(2 * 2 + 8.5) * 2 + 8.5] * 3


def test_slots_are_named_by_module_path_and_show_values(model_graph: ModelGraph) -> None:
    graph, _, _ = model_graph
    assert list(graph.slots)[:6] == [
        "layers.0.affine.0.x",
        "layers.0.affine.0.shift",
        "layers.0.affine.0.scale",
        "layers.0.affine.0.negate",
        "layers.0.affine.0.lengths",
        "layers.0.affine.0.extra",
    ]
    slot = graph.slots["layers.1.affine.0.lengths"]
    assert (slot.type, slot.value, slot.op) == ("int[]", [3, 4], "graphs_test::affine")
    types = [slot.type for slot in list(graph.slots.values())[:6]]
    assert types == ["Tensor", "int", "float", "bool", "int[]", "float[]"]
    assert repr(graph).startswith("CapturedGraph(2 nodes, 11 slots, ")


def test_update_reports_what_changed_and_values_stay(model_graph: ModelGraph) -> None:
    graph, _, output = model_graph
    report = graph.update({"layers.0.affine.0.shift": 5, "layers.1.affine.scale": 2.0})
    assert report.changed == ("layers.0.affine.0.shift",)
    assert report.unchanged == ("layers.1.affine.0.scale",)
    for _ in range(2):
        graph.replay()
        assert output.tolist() == [(2 + 12.5) * 2 + 8.5] * 3
    assert graph.slots["layers.0.affine.0.shift"].value == 5


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("layers.*.affine.shift", 2),
        ("**.shift", 2),
        ("layers.**", 11),
        ("**", 11),
        ("*.0.affine.0.shift", 1),
    ],
)
def test_patterns(model_graph: ModelGraph, pattern: str, count: int) -> None:
    graph, _, _ = model_graph
    matching = [name for name in graph.slots if name.endswith("shift")]
    if count <= 2:
        assert graph.update({pattern: 7}).changed == tuple(matching[:count])
    else:
        with pytest.raises(UpdateError, match="takes a tensor, got 7"):
            graph.update({pattern: 7})


def test_all_types_are_updated(model_graph: ModelGraph) -> None:
    graph, _, output = model_graph
    everywhere: dict[str, Any] = {
        "**.shift": 0,
        "**.scale": 3,
        "**.negate": True,
        "**.lengths": (1, 1),
        "**.extra": [1],
    }
    assert len(graph.update(everywhere).changed) == 10
    graph.replay()
    assert output.tolist() == [-(-(1 * 3 + 3.0) * 3 + 3.0)] * 3


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"layers.0.affine.shifd": 1}, r"no slot 'layers.0.affine.shifd'. Nearest: layers"),
    "argument only": ({"shift": 1}, r"no slot 'shift'. Nearest: layers.0.affine.0.shift, layers.1"),
    "float for int": (
        {"**.shift": 1.5},
        r"'layers.0.affine.0.shift' takes an int, got 1.5 \(float\)",
    ),
    "bool for int": ({"**.shift": True}, r"takes an int, got True \(bool\)"),
    "too large": ({"**.shift": 1 << 80}, r"takes an int, got 1208925819614629174706176 \(int\)"),
    "int for bool": ({"**.negate": 1}, r"takes a bool, got 1 \(int\)"),
    "text for float": ({"**.scale": "2"}, r"takes a float, got '2' \(str\)"),
    "int for list": ({"**.lengths": 3}, r"takes a list of int, got 3 \(int\)"),
    "wrong item": ({"**.lengths": [1, 2.5]}, r"takes a list of int, got \[1, 2.5\] \(list\)"),
    "length": ({"**.lengths": [1]}, r"takes 2 values, as captured, got 1: \[1\]"),
    "twice": ({"**.shift": 3, "layers.1.affine.shift": 4}, r"is given two values by one update"),
    "no name": ({3: 4}, r"a slot's name is a str, got 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_update_says_why_and_changes_nothing(model_graph: ModelGraph, name: str) -> None:
    graph, _, _ = model_graph
    values, text = WRONG[name]
    before = graph.slots
    with pytest.raises(UpdateError, match=text) as caught:
        graph.update({"layers.0.affine.scale": 9.0, **values})
    assert str(caught.value).endswith("Nothing was changed")
    assert graph.slots == before


def test_two_values_of_one_of_many_slots_are_refused(affine: Operator) -> None:
    def chain() -> torch.Tensor:
        x = torch.ones(2)
        for _ in range(40):
            x = affine(x)
        return x

    graph, _ = captured(chain)
    for last in (3, 39):
        with pytest.raises(UpdateError, match=rf"'affine.{last}.shift' is given two values"):
            graph.update({"affine.*.shift": 5, f"affine.{last}.shift": 6})
        report = graph.update({"affine.*.shift": last, f"affine.{last}.shift": last})
        assert len(report.changed) == 40


def test_several_slots_without_a_wildcard_are_ambiguous(affine: Operator) -> None:
    x = torch.ones(2)
    graph, _ = captured(lambda: affine(affine(x)))
    with pytest.raises(
        UpdateError, match=r"'affine.shift' means several: affine.0.shift, affine.1.shift"
    ):
        graph.update({"affine.shift": 1})
    assert graph.update({"affine.1.shift": 1}).changed == ("affine.1.shift",)


def test_graph_without_slots_says_so() -> None:
    graph, _ = captured(lambda: torch.ones(2) + 1)
    assert graph.slots == {}
    with pytest.raises(UpdateError, match=r"no slot 'x'. The graph has no slots"):
        graph.update({"x": 1})


def test_scope_names_code_outside_and_inside_modules(affine: Operator) -> None:
    x = torch.ones(2)

    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with graphs.scope("core"):
                return affine(x)

    attention = Attention()

    def run() -> Tensor:
        with graphs.scope("decoder.first"):
            return attention(affine(x))

    graph, _ = captured(run)
    scopes = {name.rpartition(".affine.")[0] for name in graph.slots}
    assert scopes == {"decoder.first", "decoder.first.core"}
    with graphs.scope("outside a capture"):
        assert torch.equal(attention(x), x)


def test_update_that_breaks_a_result_shape_is_refused(fill: Operator) -> None:
    x = torch.ones(1)
    graph, output = captured(lambda: fill(x, 3))
    assert graph.update({"fill.n": 3}).unchanged == ("fill.0.n",)
    with pytest.raises(UpdateError, match=r"its output would have shape \[4\], and has \[3\]"):
        graph.update({"fill.n": 4})
    graph.replay()
    assert output.tolist() == [3, 3, 3]


def test_kernel_failure_at_replay_carries_the_kernels_words(affine: Operator) -> None:
    x = torch.ones(2)
    graph, _ = captured(lambda: affine(x))
    graph.update({"**.shift": 99})
    with pytest.raises(KernelError, match=r"graphs_test::affine: .*99 is too far"):
        graph.replay()


def test_kernel_that_throws_at_replay_raises_kernel_error(affine: Operator) -> None:
    x = torch.ones(2)
    graph, output = captured(lambda: affine(x))
    graph.update({"**.shift": 98})
    with pytest.raises(KernelError, match="graphs_test::affine: the kernel threw: something that"):
        graph.replay()
    graph.update({"**.shift": 1})
    graph.replay()
    assert output.tolist() == [2, 2]


def test_strided_input_of_a_kernel_is_copied_by_a_node(affine: Operator) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    graph, output = captured(lambda: affine(x.t()))
    assert [node.kind for node in graph.nodes] == ["operator", "kernel"]
    x.mul_(2)
    graph.replay()
    assert torch.equal(output, x.t())


def cumsum_handler(*specs: Any, **attributes: Any) -> type[graphs.GraphOpHandler]:
    body = {"UPDATE_SPECS": {"cumsum": list(specs)}, **attributes}
    return type("Cumsum", (graphs.GraphOpHandler,), body)


@pytest.mark.usefixtures("handlers")
def test_handler_makes_arguments_of_any_operator_updatable() -> None:
    graphs.register_graph_handler("cumsum")(cumsum_handler(("arg", 1, "axis")))
    x = torch.ones(2, 2)
    graph, output = captured(lambda: torch.cumsum(x, 0))
    assert list(graph.slots) == ["cumsum.0.axis", "cumsum.0.dtype"]
    assert graph.update({"cumsum.axis": 1}).changed == ("cumsum.0.axis",)
    graph.replay()
    assert torch.equal(output, torch.cumsum(x, 1))


def test_operator_without_a_handler_has_slots_only_where_it_is_adopted() -> None:
    library = torch.library.Library("graphs_slots", "DEF")
    for name in ("adopted", "stranger"):
        library.define(f"{name}(Tensor x, int n) -> Tensor")
        library.impl(name, lambda x, n: x * n, "CPU")
    scale, strange = ops.adopt("graphs_slots::adopted"), torch.ops.graphs_slots.stranger
    x = torch.ones(2)
    graph, _ = captured(lambda: scale(strange(x, 2), 3))
    assert list(graph.slots) == ["adopted.0.n"]
    library._destroy()


@pytest.mark.usefixtures("handlers")
def test_update_that_changes_the_shape_of_a_result_is_refused() -> None:
    class Sum(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {"sum": [("kwarg", "dim", "dim")]}
        VARIABLE_LENGTH: ClassVar = frozenset({"dim"})

    graphs.register_graph_handler(["sum"])(Sum)
    x = torch.ones(2, 3)
    graph, _ = captured(lambda: x.sum(dim=[0]))
    with pytest.raises(UpdateError, match=r"aten::sum.dim_IntList gives float32\[\] and, when"):
        graph.update({"sum.dim": [0, 1]})
    assert graph.slots["sum.0.dim"].value == [0]


@pytest.mark.usefixtures("handlers")
def test_most_exact_handler_name_wins() -> None:
    graphs.register_graph_handler("cumsum")(cumsum_handler(("arg", 1, "bare")))
    exact = type(
        "Exact",
        (graphs.GraphOpHandler,),
        {"UPDATE_SPECS": {"aten::cumsum.default": [("arg", 1, "exact")]}},
    )
    graphs.register_graph_handler("aten::cumsum.default")(exact)
    x = torch.ones(2)
    graph, _ = captured(lambda: torch.cumsum(x, 0))
    assert list(graph.slots) == ["cumsum.0.exact", "cumsum.0.dtype"]


@pytest.mark.usefixtures("handlers")
def test_handler_that_names_no_host_argument_fails_the_capture() -> None:
    graphs.register_graph_handler("cumsum")(cumsum_handler(("kwarg", "axes", "axis")))
    x = torch.ones(2)
    with pytest.raises(
        CaptureError,
        match=r"declares kwarg 'axes' of aten::cumsum as 'axis', .* are: 0 'self' Tensor, 1 'dim'",
    ):
        captured(lambda: torch.cumsum(x, 0))


def test_wrong_handlers_are_refused() -> None:
    with pytest.raises(TypeError, match="a graph handler is a class, got 3"):
        graphs.register_graph_handler("x")(3)
    with pytest.raises(TypeError, match="takes operator names, got 4"):
        graphs.register_graph_handler(["x", 4])
    with pytest.raises(TypeError, match=r"a spec is \('arg', index, key\) or .* got \('arg', 'n'"):
        graphs.register_graph_handler("x")(cumsum_handler(("arg", "n", "k")))


@pytest.fixture
def two_records(handlers: None, affine: Operator) -> tuple[graphs.CapturedGraph, Tensor]:
    class Affine(graphs.GraphOpHandler):
        UPDATE_SPECS: ClassVar = {
            "affine": [("arg", 1, "shift"), ("kwarg", "lengths", "actual_lengths")]
        }
        VARIABLE_LENGTH: ClassVar = frozenset({"actual_lengths"})

    graphs.register_graph_handler(["affine", "affine.default"])(Affine)
    x = torch.zeros(1)
    return captured(lambda: affine(affine(x, 1, 1.0, False, [1]), 2, 1.0, False, [1]))


TwoRecords = tuple[graphs.CapturedGraph, Tensor]


def test_shared_dict_updates_every_record(two_records: TwoRecords) -> None:
    graph, output = two_records
    report = graph.update(cpu_update_input=[{"actual_lengths": [10, 20]}])
    assert report.changed == ("affine.0.actual_lengths", "affine.1.actual_lengths")
    graph.replay()
    assert output.item() == 63
    graph.update(cpu_update_input=[{"shift": 0}])
    graph.replay()
    assert output.item() == 60


def test_one_dict_for_each_record_in_capture_order(two_records: TwoRecords) -> None:
    graph, output = two_records
    assert graph.update([{"shift": 100}, {}]).changed == ("affine.0.shift",)
    graph.replay()
    assert output.item() == 104


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([{"shift": 1}] * 3, r"has 3 dicts for 2 records: graphs_test::affine \(shift, actual_len"),
        ([{"shifts": 1}], r"no record takes 'shifts'; records: graphs_test::affine"),
        (
            [{"shift": 1}, {"scale": 1}],
            r"record 1, graphs_test::affine, takes shift, actual_lengths",
        ),
        ([{"shift": 1}, {"shift": "1"}], r"slot 'affine.1.shift' takes an int, got '1'"),
        ([3], r"cpu_update_input is a list of dicts, got \[3\]"),
        ({"shift": 1}, r"cpu_update_input is a list of dicts, got \{'shift': 1\}"),
    ],
)
def test_refused_list_updates_change_nothing(
    two_records: TwoRecords, inputs: Any, text: str
) -> None:
    graph, _ = two_records
    before = graph.slots
    with pytest.raises(UpdateError, match=text):
        graph.update(cpu_update_input=inputs)
    assert graph.slots == before


def test_list_form_needs_a_handler(affine: Operator) -> None:
    x = torch.ones(1)
    graph, _ = captured(lambda: affine(x))
    with pytest.raises(UpdateError, match="no captured operator has a handler"):
        graph.update(cpu_update_input=[{"shift": 1}])


def test_update_takes_one_form(affine: Operator) -> None:
    x = torch.ones(1)
    graph, _ = captured(lambda: affine(x))
    for arguments in ({}, {"values": {}, "cpu_update_input": [{}]}):
        with pytest.raises(UpdateError, match="either named slots or cpu_update_input"):
            graph.update(**arguments)
    with pytest.raises(UpdateError, match="takes a dict of slot names and values, got 5"):
        graph.update(5)


@pytest.mark.parametrize(
    ("slot", "value", "says"),
    [
        ("shift", torch.tensor(1.5), "takes an int, got a tensor float32[]"),
        ("shift", torch.tensor([1, 2]), "takes an int, got a tensor int64[2]"),
        ("scale", torch.tensor(1.5), "takes a float, got a tensor float32[]"),
        ("lengths", [torch.tensor(1.5), 2], "takes a list of int, got [tensor(1.5000), 2] (list)"),
    ],
)
def test_tensor_that_is_no_int_is_refused_as_an_update(
    model_graph: ModelGraph, slot: str, value: Any, says: str
) -> None:
    graph, _, _ = model_graph
    with pytest.raises(UpdateError) as refused:
        graph.update({"layers.0.affine.negate": True, f"layers.0.affine.{slot}": value})
    name = f"layers.0.affine.0.{slot}"
    assert str(refused.value) == f"slot '{name}' {says}. Nothing was changed"
    assert graph.slots["layers.0.affine.0.negate"].value is False


def test_tensor_of_one_integer_is_an_int(model_graph: ModelGraph) -> None:
    graph, _, _ = model_graph
    graph.update({"layers.0.affine.shift": torch.tensor([7])})
    assert graph.slots["layers.0.affine.0.shift"].value == 7


class Meddling:
    """An int whose conversion runs the code it was given."""

    def __init__(self, value: int, meddle: Any) -> None:
        self.value, self.meddle = value, meddle

    def __index__(self) -> int:
        self.meddle()
        return self.value


def test_conversion_that_updates_other_slots_leaves_this_update_whole(
    model_graph: ModelGraph,
) -> None:
    graph, _, _ = model_graph
    names = iter(["layers.1.affine.scale", "layers.1.affine.0.scale", "**.1.affine.scale"])
    meddling = Meddling(5, lambda: graph.update({next(names): 4.0}))
    graph.update({"**.shift": meddling})
    assert [graph.slots[f"layers.{layer}.affine.0.shift"].value for layer in (0, 1)] == [5, 5]
    assert graph.slots["layers.1.affine.0.scale"].value == 4.0


def test_conversion_that_shortens_its_list_is_refused_by_length(model_graph: ModelGraph) -> None:
    graph, _, _ = model_graph
    values: list[Any] = []
    values += [Meddling(1, values.clear), Meddling(2, lambda: None)]
    with pytest.raises(UpdateError, match=r"takes 2 values, as captured, got 1: \[\] \(list\)"):
        graph.update({"layers.0.affine.lengths": values})


def test_conversion_that_raises_is_raised_as_it_is(model_graph: ModelGraph) -> None:
    graph, _, _ = model_graph

    def fail() -> None:
        raise OSError("no number today")

    with pytest.raises(OSError, match="no number today"):
        graph.update({"layers.0.affine.shift": Meddling(1, fail)})


def test_values_that_fit_only_together_are_written_together() -> None:
    shifted = ops.kernel_op(
        "graphs_test::shifted(Tensor x, int n, int m) -> Tensor",
        source=each("DATA(3)[i] = DATA(0)[i] * INT(1) + INT(2);"),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
        kind="device",
        grid="n - m",
    )
    graph, y = captured(lambda x: shifted(x, 12, 11), torch.ones(3))
    n, m = (next(slot for slot in graph.slots if slot.endswith(f".{name}")) for name in "nm")
    for values in ((2, 1), (31, 30)):
        graph.update(dict(zip((n, m), values, strict=True)))
        graph.replay()
        assert y.tolist() == [sum(values)] * 3


def test_a_capture_runs_what_replaced_our_kernel() -> None:
    doubled = ops.kernel_op(
        "graphs_test::doubled(Tensor x) -> Tensor",
        source=each("DATA(1)[i] = DATA(0)[i] * 2;"),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )
    library = torch.library.Library("graphs_test", "IMPL")
    try:
        library.impl("doubled", lambda x: x * 3, "CPU", allow_override=True)
        x = torch.zeros(3)
        graph, y = captured(doubled, x)
        x.fill_(1)
        graph.replay()
        assert y.tolist() == doubled(x).tolist() == [3, 3, 3]
    finally:
        library._destroy()
