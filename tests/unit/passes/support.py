"""What tests of passes and of the compiler share: fixtures, and a pass that swaps one operator."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import ir, passes

STAGE = passes.PassStage.AFTER_INFER_SHAPE


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    """Every test starts and ends with an empty registry, whatever the environment names and
    bringup ships.
    """
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    monkeypatch.delenv("BRINGUP_PASS_PATH", raising=False)
    monkeypatch.delenv("ASCEND_GE_PY_PASS_PATH", raising=False)
    passes.clear_registered_passes()
    yield
    passes.unload_pass_plugins()
    passes.clear_registered_passes()


@pytest.fixture
def traced():
    """`traced(function, *examples)`: the function as an FX graph of ATen operators."""

    def trace(function, *examples):
        with torch.no_grad():
            return make_fx(function, tracing_mode="fake")(*examples)

    return trace


def registered_names():
    return [item.pass_name for item in passes.get_registered_passes()]


def register_swap(old, new):
    """Register pass "P", which puts the operator `new` in the place of `old`, both unary."""

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Swap(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            return inputs[0].builder.op(old, inputs[0])

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            return builder.op(new, *builder.create_inputs(1))
