"""The C++ program of tests/host: building it, running one of its scenarios, passes for it.

`make asan-host` names other libraries: BRINGUP_TEST_HOST is a folder that tools/host_sanitized.py
makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup._native import core

ROOT = Path(__file__).parents[2]
STAGE = Path(os.environ["BRINGUP_TEST_HOST"]) if "BRINGUP_TEST_HOST" in os.environ else None
NATIVE = Path(core().__file__).parent if STAGE is None else STAGE / "bringup/_native"
ENGINE, BRIDGE = NATIVE / "libbringup_engine.so", NATIVE / "libbringup_bridge.so"
LIBPYTHON = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME") or "")

needs_shared_python = pytest.mark.skipif(
    not (sysconfig.get_config_var("Py_ENABLE_SHARED") and LIBPYTHON.is_file()),
    reason="this Python has only a static library",
)

TWICE = """
from bringup import ir, passes

@passes.register_fusion_pass(name="{name}", stage=passes.PassStage.AFTER_INFER_SHAPE)
class Twice(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        once = inputs[0].builder.op("demo::relu", inputs[0])
        return inputs[0].builder.op("demo::relu", once)

    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        return builder.op("{made}", builder.create_input())
"""

GRAPH_PASS = """
from bringup import passes

@passes.register_fusion_pass(name="Whole", stage=passes.PassStage.AFTER_INFER_SHAPE)
class Whole(passes.FusionBasePass):
    def run(self, graph, context):
{body}
"""

Passes = Callable[[str, str], str]


def built(folder: Path, *options: str) -> Path:
    """The program, built by CMake against the header and the library alone."""
    for command in (
        [
            *("cmake", "-S", str(ROOT / "tests/host"), "-B", str(folder)),
            f"-DENGINE={ENGINE}",
            f"-DINCLUDE={ROOT / 'include'}",
            *options,
        ],
        ["cmake", "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "host"


def environment(**more: str) -> dict[str, str]:
    """That of the program: nothing of this process says where passes and Python are."""
    left = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("BRINGUP_", "ASCEND_GE_", "PYTHON"))
    }
    paths = {"TEST_LIBPYTHON": str(LIBPYTHON), "TEST_PROGRAM": sys.executable}
    if STAGE is not None:
        bare = str(STAGE / "venv/bin/python")  # the package is found beside the bridge alone
        paths |= {"TEST_PROGRAM": bare, "TEST_PYTHON_PROGRAM": bare, "PYTHONMALLOC": "malloc"}
    return {**left, **paths, **more}


def output(program: Path, does: str, code: int = 0, **more: str) -> str:
    """What one scenario prints."""
    done = subprocess.run(
        [program, does],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def twice(name: str = "Twice", made: str = "demo::once") -> str:
    """A pass that turns relu(relu(x)) into one operator."""
    return TWICE.format(name=name, made=made)


def whole(*lines: str) -> str:
    """A pass over the whole graph, with these lines as its `run`."""
    return GRAPH_PASS.format(body="\n".join(f"        {line}" for line in lines))
