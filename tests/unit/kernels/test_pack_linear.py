"""`LibraryPackLinear` in compiled modules: what is packed, what is shared, and that it is right."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tests.unit.passes.support import empty_registry
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bringup import compiler, ir
from bringup.compiler import inference_graph
from bringup.errors import PassError
from bringup.kernels.patterns import register_patterns

__all__ = ["empty_registry"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The operators of the graphs that were compiled."""
    register_patterns()
    torch.compiler.reset()
    found: Counter[str] = Counter()
    run_eagerly = inference_graph.run_eagerly

    def run_counted(aten: Any, inputs: Any) -> Any:
        found.update(str(n.target) for n in aten.graph.nodes if n.op == "call_function")
        found["constants"] += len([n for n in aten.graph.find_nodes(op="get_attr") if n.users])
        return run_eagerly(aten, inputs)

    monkeypatch.setattr(inference_graph, "run_eagerly", run_counted)
    return found


@torch.no_grad()
def assert_same(model: nn.Module, *inputs: Tensor, **options: object) -> Any:
    """The compiled model, which computes the same."""
    model = model.eval()
    compiled = torch.compile(model, backend="bringup", options={"freeze": True, **options})
    torch.testing.assert_close(compiled(*inputs), model(*inputs))
    return compiled


PACKED = "bringup.packed_linear.default"


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer, and of one before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 24)
        self.head = nn.Linear(24, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embedding(tokens)
        return self.head(x), self.head(x + 1)


@pytest.mark.parametrize("width", [1, 15, 16, 70])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_of_any_width_is_packed(ran: Counter[str], width: int, bias: bool) -> None:
    assert_same(nn.Linear(24, width, bias=bias), torch.randn(2, 3, 24))
    assert ran[PACKED] == 1
    assert ran["aten.mm.default"] == ran["aten.addmm.default"] == 0


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")], ids=repr
)
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24)])
def test_activation_behind_a_layer_joins_it(
    ran: Counter[str], activation: nn.Module, shape: tuple[int, ...]
) -> None:
    assert_same(nn.Sequential(nn.Linear(24, 40), activation, nn.Linear(40, 3)), torch.randn(shape))
    assert ran[PACKED] == 2
    assert not [name for name in ran if "elu" in name]


def test_activation_of_a_result_that_others_read_stays(ran: Counter[str]) -> None:
    class Both(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = super().forward(x)
            return y, torch.relu(y)

    assert_same(Both(24, 40), torch.randn(5, 24))
    assert (ran[PACKED], ran["aten.relu.default"]) == (1, 1)


@pytest.mark.parametrize("passes", [None, ["LibraryPackLinear"]], ids=["library", "alone"])
def test_weight_that_layers_share_is_packed_once_and_others_read_it_as_it_was(
    ran: Counter[str], passes: list[str] | None
) -> None:
    assert_same(Tied(), torch.arange(6).view(2, 3), passes=passes)
    assert (ran[PACKED], ran["constants"]) == (2, 2)  # the embedding, and one set of panels


def test_layer_with_frozen_weight_and_a_bias_that_is_an_input_is_packed(ran: Counter[str]) -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(20, 24))

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight, bias)

    assert_same(Given(), torch.randn(5, 24), torch.randn(20))
    assert ran[PACKED] == 1


def test_layer_beside_a_write_of_other_memory_is_packed(ran: Counter[str]) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 20)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x)

    assert_same(Counting(), torch.randn(5, 24))
    assert ran[PACKED] == 1


def test_weights_that_are_not_frozen_are_left_alone_and_the_report_says_so(
    ran: Counter[str],
) -> None:
    assert_same(nn.Linear(24, 20), torch.randn(5, 24), freeze=False)
    report = compiler.last_report()
    assert report is not None
    assert ran[PACKED] == 0
    assert "the weight is no constant" in str(report["LibraryPackLinear"].near_misses[0])


@pytest.mark.parametrize("capture", [False, True])
def test_rows_may_be_dynamic(ran: Counter[str], capture: bool) -> None:
    model = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 3)).eval()
    compiled = torch.compile(
        model, backend="bringup", dynamic=True, options={"freeze": True, "capture": capture}
    )
    with torch.no_grad():
        for rows in (5, 2, 33):
            x = torch.randn(rows, 24)
            torch.testing.assert_close(compiled(x), model(x))
    assert ran[PACKED] == 2


def test_constant_that_the_graph_writes_is_not_packed() -> None:
    register_patterns()
    mode = FakeTensorMode()
    graph = ir.Graph("g", compiler.AtenDialect(mode))
    x = graph.add_input(meta=mode.from_tensor(torch.randn(4, 8)))
    weight = graph.add_constant(torch.randn(8, 8))
    op = graph.inserting_before(graph.output_node).op
    op("aten::add_.Tensor", weight, 1)
    graph.set_outputs([op("aten::mm", x, weight)])
    report = compiler.apply_passes(graph)
    assert graph.count("aten::mm") == 1
    assert "the weight is written by 'add_'" in str(report["LibraryPackLinear"].near_misses[0])


def packed_with(form: str | None, x: Tensor, **options: object) -> tuple[Tensor, list[str]]:
    """A layer over a frozen weight, packed as the options say: its result and its operators."""
    register_patterns()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(40, 24), nn.GELU()).eval()
    exported = torch.export.export(model, (x,)).run_decompositions()
    given = options if form is None else {"weights": form, **options}
    compiler.apply_passes(exported, ["LibraryPackLinear"], options=given)
    names = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    return exported.module()(x), names


@pytest.mark.parametrize(
    ("form", "operator", "tolerance"),
    [
        (None, PACKED, 1e-5),
        ("float32", PACKED, 1e-5),
        ("bfloat16", PACKED, 2e-2),
        ("int8", "bringup.packed_linear_int8.default", 2e-2),
        ("w8a8", "bringup.packed_linear_w8a8.default", 5e-2),
    ],
)
@torch.no_grad()
def test_weights_become_what_the_option_says(
    form: str | None, operator: str, tolerance: float
) -> None:
    x = torch.randn(5, 40)
    expected, _ = packed_with("float32", x)
    result, names = packed_with(form, x)
    assert operator in names
    torch.testing.assert_close(result, expected, atol=tolerance, rtol=0)
    assert torch.equal(result, expected) == (form in (None, "float32"))


@torch.no_grad()
def test_dtype_of_one_product_overrides_that_of_all() -> None:
    x = torch.randn(5, 40)
    expected, _ = packed_with("bfloat16", x)
    result, _ = packed_with("int8", x, weight_dtypes={"addmm": "bfloat16", "linear": "bfloat16"})
    assert torch.equal(result, expected)


def test_unknown_dtype_of_weights_names_those_that_there_are() -> None:
    with pytest.raises(PassError, match=r"weights cannot become 'int4'.*float32.*w8a8"):
        packed_with("int4", torch.randn(5, 40))


def test_float64_weights_do_not_become_narrow() -> None:
    register_patterns()
    layer = nn.Linear(40, 24).double().eval()
    exported = torch.export.export(layer, (torch.randn(5, 40).double(),))
    report = compiler.apply_passes(
        exported.run_decompositions(), ["LibraryPackLinear"], options={"weights": "int8"}
    )
    assert "a float64 weight does not become int8" in str(report.results[0].near_misses[0])
