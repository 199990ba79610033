"""torch.compile(backend="bringup") with plugins found through the pass path."""

import pytest
import torch

from bringup import compiler, passes

PLUGIN = """
from bringup import ir, passes

@passes.register_fusion_pass(name="ReluRelu", stage=passes.PassStage.AFTER_INFER_SHAPE)
class ReluRelu(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        b = inputs[0].builder
        return b.op("aten::relu", b.op("aten::relu", inputs[0]))

    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        (x,) = builder.create_inputs(1)
        return builder.op("aten::relu", x)
"""


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    passes.unload_pass_plugins()
    passes.clear_registered_passes()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_backend_runs_passes_found_through_the_pass_path(tmp_path, monkeypatch, requires_grad):
    (tmp_path / "plugin.py").write_text(PLUGIN)
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))

    def function(x):
        return (torch.relu(torch.relu(x)) * 2).sum()

    x = torch.randn(5, requires_grad=requires_grad)
    compiled = torch.compile(function, backend="bringup")
    assert torch.equal(compiled(x), function(x))
    report = compiler.last_report()
    assert report["ReluRelu"].matches == (0 if requires_grad else 1)
