"""What `make test-wheels` runs in an environment that has nothing but a wheel and what it needs.

python try_wheel.py none|TORCH_VERSION FOLDER

FOLDER has the sources of a program that runs passes of Python through libbringup_engine.so.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
tiny (float[2, 4] x, float[4, 3] w, float[3] b) => (float[2, 3] y)
{ t = MatMul(x, w)  y = Add(t, b) }
"""
_KERNEL = """#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]), out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = 2 * x(i);
  return 0;
}"""


_PASS = """
import sys
from bringup import ir, passes

print("runs in", sys.prefix)

@passes.register_fusion_pass(name="OnnxGemm", stage=passes.PassStage.AFTER_INFER_SHAPE)
class OnnxGemm(passes.PatternFusionPass):
    @passes.pattern
    def linear(self, inputs):
        op = inputs[0].builder.onnx
        return op.Add(op.MatMul(inputs[0], inputs[1]), inputs[2])

    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        return builder.onnx.Gemm(*builder.create_inputs(3))
"""
_HOST_PASS = """
import sys
from bringup import ir, passes

print("runs in", sys.prefix)

@passes.register_fusion_pass(name="Twice", stage=passes.PassStage.AFTER_INFER_SHAPE)
class Twice(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        once = inputs[0].builder.op("demo::relu", inputs[0])
        return inputs[0].builder.op("demo::relu", once)

    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        return builder.op("demo::once", builder.create_input())
"""


def check(holds: bool, text: str) -> None:
    """Ends the program where something does not hold."""
    if not holds:
        sys.exit(f"{sys.executable}: {text}")


def run_a_pass() -> None:
    """Reads an ONNX model, fuses two nodes, writes it, and compares the results."""
    import numpy as np
    import onnx
    from onnx import parser

    from bringup import compiler, passes

    Path("gemm.py").write_text(_PASS)
    passes.load_pass_plugins("gemm.py", library=False)
    before = parser.parse_model(_MODEL)
    onnx.save(before, "tiny.onnx")
    model = compiler.onnx.load("tiny.onnx")
    check(model.to_proto() == before, "a model that no pass touched comes back different")
    report = compiler.apply_passes(model, options={"verify": True})
    check(report.matches == {"OnnxGemm": 1}, f"the pass matched {report.matches}")
    model.save("fused.onnx")
    after = onnx.load("fused.onnx")
    check([node.op_type for node in after.graph.node] == ["Gemm"], "the file has no Gemm")
    random = np.random.default_rng(0)
    shapes = {"x": (2, 4), "w": (4, 3), "b": (3,)}
    feeds = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    (expected,), (got,) = (compiler.onnx.run(proto, feeds) for proto in (before, after))
    check(np.allclose(expected, got, atol=1e-6), "the fused model computes something else")


def run_outside_python(host: str) -> None:
    """Runs passes in programs that are not Python: `bringupc`, and a C++ program of one's own. Both
    have to find this environment by themselves.
    """
    import onnx

    from bringup import _native

    native = Path(str(_native.core().__file__)).parent
    options = ["tiny.onnx", "-o", "compiled.onnx", "--pass-path", "gemm.py", "--verify"]
    said = _program(native / "bringupc", *options)
    check(f"runs in {sys.prefix}" in said, f"bringupc took another Python:\n{said}")
    types = [node.op_type for node in onnx.load("compiled.onnx").graph.node]
    check(types == ["Gemm"], f"bringupc made {types}")
    Path("twice.py").write_text(_HOST_PASS)
    engine = native / "libbringup_engine.so"
    compiler = [shutil.which("c++") or "c++", "-std=c++20", f"-I{_native.include_dir()}"]
    compiler += map(str, Path(host).glob("*.cpp"))
    _program(*compiler, "-o", "host", engine, f"-Wl,-rpath,{native}", "-pthread", "-ldl")
    said = _program(Path("host").absolute(), "once", BRINGUP_PASS_PATH="twice.py")
    check(f"runs in {sys.prefix}" in said, f"the C++ program took another Python:\n{said}")
    check("pass Twice outcome=1 matches=3" in said, f"the C++ program said:\n{said}")


def _program(*argv: object, **variables: str) -> str:
    """What it prints, run with nothing of this environment but the cache."""
    kept = {name: os.environ[name] for name in ("PATH", "BRINGUP_CACHE_DIR")}
    command = [str(part) for part in argv]
    done = subprocess.run(
        command, env=kept | variables, capture_output=True, text=True, check=False
    )
    check(done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def call_an_operator() -> None:
    """Compiles a kernel and calls it as an operator of torch, natively and on the device."""
    import torch

    from bringup import devices, jit, ops

    double = ops.kernel_op(
        "try_wheel::double(Tensor x) -> Tensor",
        source=jit.Source(name="double.cpp", text=_KERNEL),
        outputs=ops.empty_like("x"),
    )
    check(double(torch.arange(3.0)).tolist() == [0.0, 2.0, 4.0], "the operator is wrong")
    devices.load_driver("sim")
    check((torch.ones(2, device="npu") + 1).cpu().tolist() == [2.0, 2.0], "the device is wrong")


def serve_without_a_compiler() -> None:
    """Run README's model in a process that finds no program at all: no kernel is left out."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", readme, re.S) if "Bert" in text)
    Path("serve.py").write_text(block)
    environment = {"PATH": "/nowhere", "BRINGUP_CACHE_DIR": "cache-without-compiler"}
    argv = [sys.executable, "serve.py"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    check(done.returncode == 0 and "left out" not in said, f"without a compiler:\n{said}")
    check(done.stdout.count(" ms") == 2, f"README's model printed:\n{said}")
    print(done.stdout.strip())


def doctor(torch_version: str) -> list[str]:
    """What `bringup doctor` finds missing: nothing but a torch that is not there."""
    program = Path(sys.executable).parent / "bringup"
    argv = [program, "doctor", "--json", "doctor.json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    check(Path("doctor.json").is_file(), f"bringup doctor failed:\n{done.stdout}{done.stderr}")
    findings = json.loads(Path("doctor.json").read_text())["findings"]
    missing = [finding["subject"] for finding in findings if finding["health"] == "missing"]
    expected = ["torch", "native torch library"] if torch_version == "none" else []
    check(missing == expected, f"bringup doctor misses {missing}, expected {expected}")
    check(done.returncode == bool(expected), f"bringup doctor ended with {done.returncode}")
    return missing


def package_files() -> set[tuple[str, int]]:
    """The installed files and when they were written; folders of packages may be read-only."""
    import bringup

    files = Path(str(bringup.__file__)).parent.rglob("*")
    return {
        (str(file), file.stat().st_mtime_ns) for file in files if "__pycache__" not in file.parts
    }


def main() -> None:
    """Tries everything; the last line says what was tried."""
    torch_version = sys.argv[1]
    os.environ["BRINGUP_NATIVE"] = "auto"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BRINGUP_CACHE_DIR"] = str(Path(folder) / "cache")
        os.chdir(folder)
        import bringup
        from bringup import _native

        check(str(bringup.__file__).startswith(sys.prefix), f"bringup is at {bringup.__file__}")
        before = package_files()
        run_a_pass()
        run_outside_python(sys.argv[2])
        missing = doctor(torch_version)
        tried = ["import", "pass", "ONNX", "bringupc", "a C++ program", "doctor"]
        if torch_version != "none":
            path = str(_native.torch_library().__file__)
            check(path.startswith(sys.prefix), f"the torch library was built: {path}")
            call_an_operator()
            serve_without_a_compiler()
            tried += ["operator", "device", "a model where no compiler is"]
        check(package_files() == before, "the package wrote into its own folder")
    without = f"; not tried, as there is no torch: operators, devices ({missing})"
    print(f"Python {platform.python_version()}: {', '.join(tried)} work{without * bool(missing)}")


if __name__ == "__main__":
    main()
