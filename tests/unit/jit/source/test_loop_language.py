"""Generated loops: C's functions within so many units in the last place of numbers all over the
range, and what g++ makes vectors of.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bringup import _native, jit
from bringup.jit.source.c_loops import C_LOOPS
from bringup.jit.source.cpp_writer import CppWriter

_TEXT = """
void each(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = FUNCTION(x[i]);
}
"""
REFERENCES: dict[str, tuple[Callable[[Any], Any], float]] = {
    "expf": (np.exp, 1.0),
    "logf": (np.log, 1.0),
    "tanhf": (np.tanh, 1.5),
    "erff": (np.vectorize(math.erf), 1.5),
    "sinf": (np.sin, 2.0),
    "cosf": (np.cos, 2.0),
}


def _computed(name: str, x: np.ndarray) -> np.ndarray:
    text = C_LOOPS.prelude + _TEXT.replace("FUNCTION", name)
    source = jit.Source(text=text, name=f"{name}.c", entry="each", abi="function")
    library = ctypes.CDLL(str(jit.compile(source, flags=C_LOOPS.flags).path))
    out = np.empty_like(x)
    addresses = (ctypes.c_void_p(array.ctypes.data) for array in (x, out))
    library.each(*addresses, ctypes.c_int64(x.size))
    return out


@pytest.mark.parametrize("name", REFERENCES)
def test_functions_are_right_to_the_last_place(name: str) -> None:
    exact, bound = REFERENCES[name]
    bits = np.arange(0, 1 << 32, 40_009, dtype=np.uint64).astype(np.uint32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 88.7, -103.9], np.float32)
    x = np.concatenate([bits.view(np.float32), special])
    got = _computed(name, x).astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
        rounded = wanted.astype(np.float32)
        unit = np.spacing(np.abs(rounded)).astype(np.float64)
    assert (np.isnan(got) == np.isnan(wanted)).all()
    infinite = np.isinf(rounded)
    assert (got[infinite] == rounded[infinite]).all()
    whole = np.isfinite(rounded)
    errors = np.abs(got[whole] - wanted[whole]) / unit[whole]
    assert errors.max() <= bound, x[whole][errors.argmax()]


def test_a_chain_of_conditional_values_is_a_loop_of_vectors(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing: apt-get install g++")
    chain, operand, writer = "x", jit.Operand("tensor", "float"), CppWriter()
    for _ in range(4):
        chain = f"max(({chain}) * 1.01 + 0.1, 0)"
    expression = jit.ElementExpression(chain, ("x",), ("x",))
    source = writer.expression("chain", expression, (operand,), "float")
    element = jit.Element(source, "chain", (operand,), "float", ("float",))
    file = tmp_path / "chain.cpp"
    file.write_text(writer.pointwise(element, values=False).source.text or "")
    options = "-O3 -fno-trapping-math -fno-math-errno -fopt-info-vec-optimized -o /dev/null -c"
    command = ["g++", *options.split(), str(file), f"-I{_native.include_dir()}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "loop vectorized" in told.stderr
