"""The node tests of onnx: over 1,800 models, every operator, attributes of every type."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx

__all__ = ["node_tests"]

COLLECT = """
import pickle, sys, warnings
import numpy
from onnx.backend.test.case.node import collect_testcases
warnings.simplefilter("ignore")
def shapes(data):
    return [numpy.shape(item) if isinstance(item, numpy.ndarray) else None for item in data]
cases = {
    case.name: (
        case.model.SerializeToString(),
        [shapes(data) for data in case.data_sets[0]] if case.data_sets else None,
    )
    for case in collect_testcases(None)
}
pickle.dump(cases, open(sys.argv[1], "wb"))
"""


def node_tests(folder: Path) -> dict[str, tuple[bytes, Any]]:
    """Return each test's model, and the shapes of its inputs and of what it expects or None.

    Making them takes six seconds: they are kept in a folder, for this onnx and numpy.
    """
    collected = zlib.crc32(COLLECT.encode())
    kept = folder / f"onnx-{onnx.__version__}-numpy-{np.__version__}-{collected:08x}.pickle"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            made = Path(draft, "cases")
            subprocess.run([sys.executable, "-c", COLLECT, str(made)], check=True)
            made.replace(kept)
    cases: dict[str, tuple[bytes, Any]] = pickle.loads(kept.read_bytes())
    return cases
