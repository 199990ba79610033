"""ONNX models are read, rewritten and written where torch is not installed."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.unit.compiler.onnx.support import model_of, op_types, results_of

PROGRAM = """
import site, sys
site.addsitedir(sys.argv[1])
from bringup import compiler, ir, passes

@passes.register_fusion_pass(name="TwiceReluIsOne", stage=passes.PassStage.AFTER_INFER_SHAPE)
class TwiceReluIsOne(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        op = inputs[0].builder.onnx
        return op.Relu(op.Relu(inputs[0]))

    def replacement(self, match):
        builder = ir.GraphBuilder()
        (x,) = builder.create_inputs(1)
        return builder.build_and_reset([builder.onnx.Relu(x)])

model = compiler.onnx.load(sys.argv[2])
report = compiler.apply_passes(model, **eval(sys.argv[4]))
model.save(sys.argv[3])
print(report.plugin_errors, compiler.last_report() is report, "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that has all that this environment has, but torch."""
    folder = tmp_path_factory.mktemp("site")
    for found in Path(sysconfig.get_path("purelib")).iterdir():
        if not found.name.startswith(("torch", "functorch")):
            (folder / found.name).symlink_to(found)
    return folder


def rewritten(packages: Path, folder: Path, keywords: str) -> tuple[str, onnx.ModelProto]:
    before = model_of("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = Abs(b) }")
    onnx.save(before, folder / "before.onnx")
    paths = [str(folder / name) for name in ("before.onnx", "after.onnx")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM, str(packages), *paths, keywords],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip(), onnx.load(folder / "after.onnx")


@pytest.mark.parametrize("keywords", ["{}", "{'passes': ['TwiceReluIsOne']}"])
def test_a_model_is_rewritten(keywords: str, without_torch: Path, tmp_path: Path) -> None:
    said, after = rewritten(without_torch, tmp_path, keywords)
    assert said == "[] True False"
    assert op_types(after) == ["Relu", "Abs"]
    (result,) = results_of(after, {"x": np.array([-1, 2], np.float32)})
    assert list(result) == [0.0, 2.0]


def test_torch_that_is_installed_is_not_imported(tmp_path: Path) -> None:
    said, _ = rewritten(Path(sysconfig.get_path("purelib")), tmp_path, "{}")
    assert said == "[] True False"
