"""ir and passes work where torch cannot be imported."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # importing torch raises ImportError from here on
from bringup import ir, passes

builder = ir.GraphBuilder()
(x,) = builder.create_inputs(1)
graph = builder.build_and_reset(builder.op("demo::twice", builder.op("demo::once", x)))

@passes.register_fusion_pass(name="Twice", stage=passes.PassStage.AFTER_INFER_SHAPE)
class Twice(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        b = inputs[0].builder
        return b.op("demo::twice", b.op("demo::once", inputs[0]))

    def replacement(self, match_result):
        b = ir.GraphBuilder()
        return b.op("demo::fused", *b.create_inputs(1))

report = passes.run_passes(graph, passes.get_registered_passes())
print(report["Twice"].matches, [node.op_type for node in graph.nodes])
"""


def test_graph_is_built_and_rewritten_where_torch_cannot_be_imported():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == "1 ['ir::input', 'demo::fused', 'ir::output']\n"
