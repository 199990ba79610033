"""Kernel operators without the library that links libtorch: the tests of operators that are about
them, run again in a process with BRINGUP_NATIVE=0.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bringup._native import torch_library
from bringup.ops.schema.dtypes import DTYPES, dtype_number, dtype_of_number

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[1]
FILES = (
    "test_autograd",
    "test_autotune",
    "test_backward_operator",
    "test_calls",
    "test_compile",
    "test_definition",
    "test_hazards",
    "test_kept_overloads",
    "test_missing_backward",
    "test_outputs",
    "test_parallel",
    "test_paths",
    "test_prebuild",
    "test_rules",
    "test_template_launch",
    "test_templates",
    "test_torch_backward",
)
NATIVE_REASONS = {
    "a device",
    "captured graphs",
    "kernels run on one thread without it",
    "the GIL is held without it",
}


def without_library(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"BRINGUP_NATIVE": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=FOLDER.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.native("it starts the others")
def test_the_operator_tests_pass_and_what_is_left_out_says_why() -> None:
    """All that a kernel operator does: same results and errors."""
    files = [str(next(FOLDER.rglob(f"{name}.py"))) for name in FILES]
    plain = ["-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore"]
    done = without_library("-m", "pytest", "-q", "-rs", *plain, *files)
    assert done.returncode == 0, done.stdout[-6000:]
    summary = done.stdout.strip().splitlines()[-1]
    reasons = set(re.findall(r"needs the native torch library: (.*)", done.stdout))
    print(summary, *sorted(reasons), sep="\n")
    assert reasons == NATIVE_REASONS
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|skipped)", summary)}
    assert counts["passed"] > 230
    assert counts["skipped"] < 70


@pytest.mark.native("it is compared with it")
def test_dtypes_are_those_of_the_library() -> None:
    native = torch_library().ops
    assert {n: native.dtype_of_number(n) for n in DTYPES} == DTYPES
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert every == set(DTYPES.values())
    assert all(dtype_of_number(dtype_number(dtype)) is dtype for dtype in every)


MODEL = """
import torch
from bringup import jit, ops
KERNEL = '''
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const float, 1> x(args[0]);
  const bringup::View<float, 1> out(args[1]);
  for (int64_t i = 0; i < x.size(0); ++i) out(i) = 2 * x(i);
  return 0;
}
'''
for name in ("once", "twice"):
    op = ops.kernel_op(f"mode::{name}(Tensor x) -> Tensor", outputs=ops.empty_like("x"),
                       source=jit.Source(text=KERNEL, name="k.cpp"))
x = torch.ones(3)
print(op(x).tolist(), torch.compile(lambda x: op(x) + 1, fullgraph=True)(x).tolist())
print(torch.func.vmap(op)(torch.ones(2, 3)).tolist())
"""


def test_the_mode_is_announced_once_and_a_compiled_model_gives_the_same() -> None:
    done = without_library("-W", "ignore", "-c", MODEL)
    assert done.stdout.splitlines() == [
        "[2.0, 2.0, 2.0] [3.0, 3.0, 3.0]",
        "[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]",
    ], done.stderr
    assert done.stderr.count("bringup runs without its native torch library") == 1
