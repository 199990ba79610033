"""Nodes are found by name in graphs of every source."""

import pytest
import torch
from tests.forked_python import DYNAMO, output_of
from tests.unit.passes.native_libraries import build
from tests.unit.passes.support import STAGE
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes

X = torch.randn(2, 3)


class Model(torch.nn.Module):
    def forward(self, given_name):
        return torch.tanh(torch.relu(given_name)) + torch.tanh(given_name)


def look_up(found):
    """Register a pass that notes what it finds under every name of its graph, before anybody has
    asked for a name.
    """

    @passes.register_custom_pass(name="Look", stage=STAGE)
    def look(graph, context):
        found["first"] = graph.find_node_by_name("tanh_1").op_type
        found.update(
            (node.name, graph.find_node_by_name(node.name) is node) for node in graph.nodes
        )
        with pytest.raises(KeyError, match="has no node named 'nowhere'"):
            graph.find_node_by_name("nowhere")


def compiled(model):
    torch._dynamo.reset()
    torch.compile(model, backend="bringup")(X)


def exported(model):
    compiler.apply_passes(torch.export.export(model, (X,)))


def traced(model):
    compiler.apply_passes(make_fx(model)(X))


def built_by_hand(model):
    builder = ir.GraphBuilder("graph", ir.aten_schemas())
    x = builder.create_input("x", shape=(2, 3))
    aten = builder.aten
    graph = builder.build_and_reset(aten.add(aten.tanh(aten.relu(x)), aten.tanh(x)))
    compiler.apply_passes(graph)


@pytest.mark.parametrize("source", [traced, exported, compiled, built_by_hand])
def test_nodes_of_every_source_are_found_by_name(source):
    found = {}
    look_up(found)
    source(Model())
    assert found.pop("first") == "aten::tanh"
    assert len(found) >= 6
    assert all(found.values())


def test_nodes_of_an_onnx_model_are_found_by_name():
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Tanh(a) }"""
    )
    model.graph.node[1].name = "tanh_1"
    found = {}

    @passes.register_custom_pass(name="Look", stage=STAGE)
    def look(graph, context):
        found["first"] = graph.find_node_by_name("tanh_1").op_type
        found.update(
            (node.name, graph.find_node_by_name(node.name) is node) for node in graph.nodes
        )

    compiler.apply_passes(model)
    assert found.pop("first") == "onnx::Tanh"
    assert all(found.values())


def test_new_nodes_and_erased_ones_are_told_apart_by_name():
    @passes.register_custom_pass(name="Look", stage=STAGE)
    def look(graph, context):
        relu = graph.find_node_by_name("relu")
        made = graph.inserting_before(relu).op("aten::relu", relu.inputs[0]).value.node
        assert made.name not in ("relu", "")
        assert graph.find_node_by_name(made.name) is made
        graph.replace_all_uses(relu.output, made.output)
        graph.erase(relu)
        with pytest.raises(KeyError):
            graph.find_node_by_name("relu")

    traced(Model())


SOURCE = """
#include <bringup/engine.h>
static const bringup_engine_api* engine;
static int32_t run(void* self, bringup_ir_graph graph, bringup_pass_context context) {
  bringup_ir_node node;
  const char* name;
  (void)self;
  (void)context;
  if (engine->find_node(graph, "tanh_1", &node) != BRINGUP_ENGINE_OK) return 7;
  if (engine->node_name(graph, node, &name) != BRINGUP_ENGINE_OK || name[4] != '_') return 8;
  return engine->find_node(graph, "no", &node) == BRINGUP_ENGINE_NOT_FOUND ? 0 : 9;
}
int32_t bringup_register_passes(const bringup_engine_api* api) {
  bringup_pass_definition definition = {0};
  engine = api;
  definition.struct_size = sizeof(definition);
  definition.name = "Look";
  definition.stage = BRINGUP_AFTER_INFER_SHAPE;
  definition.run = run;
  return api->register_pass(&definition);
}
"""
SCRIPT = """
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from bringup import compiler

module = make_fx(lambda x: torch.tanh(torch.tanh(x)))(torch.ones(2))
print(compiler.apply_passes(module)["Look"].status.value)
"""


def test_native_pass_finds_a_node_of_a_torch_graph_by_name(tmp_path, monkeypatch):
    """In a process of its own, in which nobody has asked for a name before."""
    source = tmp_path / "look.c"
    source.write_text(SOURCE)
    build(source, tmp_path / "look.so")
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path / "look.so"))
    assert output_of(SCRIPT, preload=DYNAMO) == "unchanged"
