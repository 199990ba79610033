"""Compiling where no C++ compiler is: what cannot be built is left out, what is built is used."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from tests.forked_python import DYNAMO, run_forked

from bringup import jit

PROGRAM = """
import sys
from pathlib import Path
import torch
from bringup import compiler

if "prebuilt" in sys.argv:
    from bringup.kernels import _sources
    _sources.PREBUILT = Path(sys.argv[-1])
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8), torch.nn.LayerNorm(8)
).eval()
served = torch.compile(model, backend="bringup", mode=sys.argv[1], dynamic=True)
with torch.inference_mode():
    for rows in (2, 2, 5):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(served(x), model(x), rtol=1e-4, atol=1e-4)
if "training" in sys.argv:
    gated = torch.compile(
        lambda a, b: (torch.nn.functional.silu(a) * b).sum(), backend="bringup"
    )
    a, b = (torch.randn(4, 8, requires_grad=True) for _ in range(2))
    gated(a, b).backward()
    expected = a.detach().clone().requires_grad_()
    (torch.nn.functional.silu(expected) * b).sum().backward()
    torch.testing.assert_close(a.grad, expected.grad)
print(sum(compiler.last_report().matches.values()))
"""


def run(cache: Path, *arguments: str, has_compiler: bool = False) -> tuple[int, str]:
    """Return how many matches the last graph had, and what was said on stderr."""
    variables = {"BRINGUP_CACHE_DIR": str(cache), "BRINGUP_PASS_LIBRARY": "1"}
    variables |= {} if has_compiler else {"PATH": "/nowhere"}
    done = run_forked(PROGRAM, *arguments, environment=os.environ | variables, preload=DYNAMO)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1]), done.stderr


def test_shipped_passes_are_left_out_with_one_warning(tmp_path: Path) -> None:
    matches, said = run(tmp_path, "serve", "training")
    assert matches == 0
    assert said.count("the shipped passes are left out where their kernels are not in the") == 1
    assert "no compiler for target 'cpu'" in said
    assert "apt-get install g++" in said
    assert "packed weights" not in run(tmp_path, "max")[1]


def test_kernels_that_the_cache_has_or_the_wheel_brings_are_used(tmp_path: Path) -> None:
    built, _ = run(tmp_path / "cache", "serve", has_compiler=True)
    found, said = run(tmp_path / "cache", "serve")
    assert built == found > 0
    assert "left out" not in said
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
        jit.cache().export_bundle(tmp_path / f"{platform.machine()}.bundle")
    found, said = run(tmp_path / "other", "serve", "prebuilt", str(tmp_path))
    assert (found, "left out" in said) == (built, False)
