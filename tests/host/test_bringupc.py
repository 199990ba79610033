"""`bringupc`: `bringup compile` as an executable."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bringup._native import core

onnx = pytest.importorskip("onnx")

BRINGUPC = Path(core().__file__).parent / "bringupc"
PASS = """
from bringup import ir, passes

@passes.register_fusion_pass(name="TwiceReluIsOne", stage=passes.PassStage.AFTER_INFER_SHAPE)
class TwiceReluIsOne(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        op = inputs[0].builder.onnx
        return op.Relu(op.Relu(inputs[0]))

    def replacement(self, match_result):
        {body}
"""
REPLACE = "builder = ir.GraphBuilder(); return builder.onnx.Relu(builder.create_input())"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    made = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        tiny (float[N, 4] x) => (float[N, 4] y) { a = Relu(x)  b = Relu(a)  y = Abs(b) }
    """)
    onnx.save(made, tmp_path / "tiny.onnx")
    return tmp_path / "tiny.onnx"


def bringupc(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BRINGUPC, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False
    )


def passes_in(folder: Path, body: str = REPLACE) -> Path:
    (folder / "twice.py").write_text(PASS.format(body=body))
    return folder / "twice.py"


def test_it_runs_passes_over_a_model_and_writes_model_and_report(model, tmp_path):
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    options = ("--stage", "AfterInferShape", "--report", report, "--verify")
    done = bringupc(model, "-o", out, "--pass-path", passes_in(tmp_path), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [node.op_type for node in onnx.load(out).graph.node] == ["Relu", "Abs"]
    passes = json.loads(report.read_text())["graphs"][0]["passes"]
    (ran,) = [found for found in passes if found["name"] == "TwiceReluIsOne"]
    assert (ran["matches"], ran["verified"]) == (1, 1)


def test_passes_of_a_module_are_taken_from_the_python_path(model, tmp_path, monkeypatch):
    passes_in(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = bringupc(model, "-o", tmp_path / "out.onnx", "--pass-module", "twice")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TwiceReluIsOne" in done.stdout


def test_a_failed_pass_ends_with_4_and_leaves_no_file(model, tmp_path):
    file = passes_in(tmp_path, "raise ValueError('no')")
    done = bringupc(model, "-o", tmp_path / "out.onnx", "--pass-path", file)
    assert done.returncode == 4
    assert "ValueError: no" in done.stdout + done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_what_is_no_model_ends_with_1_and_says_so(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    done = bringupc(tmp_path / "bad.onnx", "-o", tmp_path / "out.onnx")
    assert done.returncode == 1
    assert "ModelError" in done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_an_unknown_option_ends_with_2_as_everywhere(model):
    done = bringupc(model, "--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


def test_a_bridge_that_is_not_there_ends_with_1(model, tmp_path):
    done = bringupc(model, "-o", tmp_path / "out.onnx", "--bridge", tmp_path / "none.so")
    assert done.returncode == 1
    assert "the bridge to Python cannot be loaded" in done.stderr


def test_the_python_and_its_library_may_be_named(model, tmp_path):
    names = ("LIBDIR", "INSTSONAME")
    library = Path(*(sysconfig.get_config_var(name) for name in names))
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python has only a static library")
    named = ("--python", sys.executable, "--python-library", library)
    done = bringupc(model, "-o", tmp_path / "out.onnx", *named)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_python_library_that_is_not_there_ends_with_1_and_is_named(model, tmp_path):
    missing = tmp_path / "libpython3.11.so"
    done = bringupc(model, "-o", tmp_path / "out.onnx", "--python-library", missing)
    assert done.returncode == 1
    assert str(missing) in done.stderr
