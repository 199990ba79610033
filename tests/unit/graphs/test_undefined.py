"""A captured graph outlives the definition of its operators."""

from __future__ import annotations

import pytest
import torch
from tests.unit.graphs.conftest import AFFINE
from tests.unit.graphs.support import captured
from torch import Tensor

from bringup import graphs, jit, ops
from bringup.errors import UpdateError


def _affine() -> ops.KernelOperator:
    return ops.kernel_op(
        "graphs_undefined::affine(Tensor x, int shift=0, float scale=1.0, bool negate=False,"
        " int[] lengths=[], float[] extra=[]) -> Tensor",
        source=jit.Source(text=AFFINE, name="kernel.cpp"),
        outputs=ops.empty_like("x"),
    )


def test_graph_of_an_undefined_kernel_operator_replays_updates_and_shows_itself(
    kernel_cache: object,
) -> None:
    affine = _affine()
    x = torch.ones(2)
    graph, output = captured(lambda: affine(x, 3, negate=True, lengths=[1]))
    other, _ = captured(lambda: affine(x, 4))
    before = graph.to_dot()
    affine.undefine()
    assert graph.to_dot() == before
    assert graph.slots["affine.0.shift"].value == 3
    assert graph.slots["affine.0.negate"].value is True
    assert graph.diff(other)
    graph.update({"affine.0.shift": 5, "affine.0.negate": False})
    graph.replay()
    assert output.tolist() == [7, 7]
    with pytest.raises(UpdateError, match="shift"):
        graph.update({"affine.0.shift": "much"})


def test_graph_of_an_operator_whose_library_is_gone_shows_itself_and_names_it_on_replay(
    handlers: None,
) -> None:
    class Handler(graphs.GraphOpHandler):
        UPDATE_SPECS = {"shifted": [("arg", 1, "shift")]}  # noqa: RUF012

    graphs.register_graph_handler(["shifted"])(Handler)
    library = ops.Library("graphs_undefined_python", "DEF")
    library.define("shifted(Tensor x, int n) -> Tensor")
    library.impl("shifted", lambda x, n: x + n, "CPU")
    x = torch.ones(2)

    def run() -> Tensor:
        return torch.ops.graphs_undefined_python.shifted(x, 3)

    (graph, output), (other, _) = captured(run), captured(run)
    before = graph.to_dot()
    library._destroy()
    assert graph.to_dot() == before
    assert [slot.value for slot in graph.slots.values()] == [3]
    assert not graph.diff(other)
    graph.update({"shifted.0.shift": 4})
    with pytest.raises(RuntimeError, match="graphs_undefined_python::shifted"):
        graph.replay()
    assert output.tolist() == [4, 4]
