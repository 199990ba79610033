"""The samples in examples/passes, each found through the pass path, on the model it is made for."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from tests.unit.passes.support import empty_registry

from bringup import passes

__all__ = ["empty_registry"]

FOLDER = Path(__file__).parents[2] / "examples" / "passes"
RUN = runpy.run_path(str(FOLDER / "_run.py"))

# Per sample: matches, and operators after the rewrite.
EXPECTED = {
    "relu_before_concat": (
        {"SampleReluBeforeConcat": 1},
        {"aten.relu.default": 3, "aten.cat.default": 1},
    ),
    "conv_layout": (
        {"SampleConvLayout": 1},
        {"aten.permute.default": 2, "aten.convolution.default": 2},
    ),
    "matmul_add_capture": (
        {"SampleMatMulAddCapture": 1},
        {"aten.addmm.default": 1, "aten.mm.default": 0, "aten.add.Tensor": 0},
    ),
    "matmul_add_config": (
        {"SampleMatMulAddConfig": 1},
        {"aten.mm.default": 1, "aten.add.Tensor": 2},
    ),
    "add_zero": (
        {"SampleAddZeroTensor": 1, "SampleAddNearlyZero": 2},
        {"aten.add.Tensor": 1},
    ),
    "custom_op": (
        {"SampleCustomOp": 2},
        {"samples.add_custom.default": 2, "aten.clone.default": 0},
    ),
    "grouped_conv": (
        {"SampleGroupedConv": 1},
        {"aten.convolution.default": 2, "aten.split.Tensor": 3, "aten.cat.default": 1},
    ),
    "batch_matmul": (
        {
            "SampleBatchMatMulTile": 1,
            "SampleBatchMatMulColumn": 1,
            "SampleBatchMatMulFlatten": 2,
        },
        {"aten.bmm.default": 0, "aten.repeat.default": 0, "aten.mm.default": 2},
    ),
    "shared_matmul": (
        {"SampleSharedInput": 1, "SampleBatchedProducts": 1},
        {"aten.mm.default": 1, "aten.bmm.default": 1},
    ),
    "onnx_gemm": (
        {"SampleOnnxGemm": 2, "SampleOnnxGemmTranspose": 1},
        {"Gemm": 2, "MatMul": 0, "Add": 0, "Transpose": 0},
    ),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", list(EXPECTED))
def test_sample_rewrites_its_model_and_the_results_stay(name, monkeypatch):
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(FOLDER / f"{name}.py"))
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    matches, operators = EXPECTED[name]
    outcome = RUN["run"](name)
    assert outcome.matches == matches
    assert {key: outcome.after[key] for key in operators} == operators
    assert outcome.after != outcome.before
    assert outcome.error < 1e-5


def test_folder_of_samples_loads_whole_and_each_is_described(monkeypatch):
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(FOLDER))
    report = passes.load_pass_plugins()
    assert not report.errors
    assert {Path(file).stem for file in report.loaded} == set(EXPECTED)
    described = set(re.findall(r"^## `(\w+)\.py`", (FOLDER / "README.md").read_text(), re.M))
    assert described == set(EXPECTED)
