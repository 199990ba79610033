"""What importing a package leaves out: a start-up must not pay for what it may never use.

Modules and not times are checked, so these tests do not depend on the load of the machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_METADATA = ("importlib.metadata", "email", "zipfile")  # what packages are installed
_PROGRAMS = ("subprocess", "bringup._native._build")  # starting them
_NEVER = ("numpy", "rich", "typer", "triton", "tvm_ffi", "transformers", "onnx", "fsspec")
_COMPILER = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")

# What only a kernel that is not on disk needs, or a template.
_ON_A_MISS = tuple(
    f"bringup.jit.{name}"
    for name in ("builder.build", "lookup.building", "store.prune", "store.bundle", "template.glue")
)

_WITHOUT_TORCH = {
    "bringup": ("dataclasses", "logging", "hashlib", "json", *_METADATA, *_PROGRAMS),
    "bringup.settings": ("hashlib", "json", "platformdirs", "tempfile", *_METADATA, *_PROGRAMS),
    "bringup.ir": ("hashlib", "platformdirs", "tempfile", "difflib", *_METADATA, *_PROGRAMS),
    "bringup.passes": (
        "bringup.passes.mining.mining",
        "platformdirs",
        "tempfile",
        "difflib",
        *_METADATA,
        *_PROGRAMS,
    ),
    "bringup.jit": (
        "importlib.metadata",
        "email",
        "statistics",
        "uuid",
        "platform",
        "socket",
        *_ON_A_MISS,
    ),
}
_BESIDE_TORCH = ("bringup.ops", "bringup.devices", "bringup.graphs", "bringup.kernels")


def _imported_by(statements: str) -> set[str]:
    """The modules of a fresh interpreter after these statements that were not there before."""
    program = (
        f"import sys\nbefore = set(sys.modules)\n{statements}\n"
        "print(*(name for name in sys.modules if name not in before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stdout.split())


def test_rewriting_an_onnx_model_imports_neither_mining_nor_the_library_nor_the_evaluator() -> None:
    imported = _imported_by(
        "import onnx\nfrom bringup import compiler\n"
        'model = onnx.parser.parse_model(\'<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[2] x) => (float[2] y) { y = Relu(x) }')\n"
        "compiler.apply_passes(compiler.onnx.from_proto(model))"
    )
    unwanted = {
        "torch",
        "bringup.compiler.onnx.library",
        "bringup.passes.mining.mining",
        "onnx.reference",
    }
    assert "bringup.compiler.onnx.model" in imported
    assert sorted(unwanted & imported) == []


@pytest.mark.parametrize("package", _WITHOUT_TORCH)
def test_import_of_a_package_without_torch_leaves_out_what_it_may_not_need(package: str) -> None:
    imported = _imported_by(f"import {package}")
    assert package in imported
    unwanted = {"torch", *_NEVER, *_WITHOUT_TORCH[package]}
    assert sorted(unwanted & imported) == []


def test_a_kernel_that_is_on_disk_is_found_without_what_builds_one(kernel_cache: Path) -> None:
    kernel = "jit.compile(jit.Source(text='int run(void) { return 0; }', name='k.c')).kernel_id"
    subprocess.run(
        [sys.executable, "-c", f"from bringup import jit; {kernel}"], check=True, timeout=300
    )
    imported = _imported_by(f"from bringup import jit; {kernel}")
    assert sorted({*_ON_A_MISS, "platformdirs"} & imported) == []


def test_rooms_beside_torch_add_no_compiler_and_no_program_to_its_import() -> None:
    imported = _imported_by(
        f"import torch\nbefore = set(sys.modules)\nimport {', '.join(_BESIDE_TORCH)}"
    )
    assert set(_BESIDE_TORCH) <= imported
    unwanted = {*_NEVER, *_COMPILER, "bringup._native._build", "statistics", "importlib.metadata"}
    assert sorted(unwanted & imported) == []


def test_a_first_operator_of_the_cpu_needs_neither_devices_nor_operators_in_python() -> None:
    imported = _imported_by(
        "import torch\nfrom bringup import jit, ops\n"
        "f = ops.kernel_op('t::f(Tensor x) -> Tensor', outputs=ops.empty_like('x'), source="
        "jit.Source(name='f.c', text='void f(float* out) {}'), entry='f', args='ptr(out)')\n"
        "f(torch.ones(1))"
    )
    unwanted = ("bringup.devices", "bringup.ops.custom.", "bringup.ops.schema.infer")
    assert "bringup.ops.kernel.kernel_op" in imported
    assert [name for name in sorted(imported) if name.startswith(unwanted)] == []
