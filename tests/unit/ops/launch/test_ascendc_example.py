"""The example script runs as its docstring says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "examples/ascendc/add_custom.py"


def test_example_adds_and_differentiates(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{length} elements in 8 blocks: z = x + y, and both gradients are ones"
        for length in (1024, 8192)
    ]
