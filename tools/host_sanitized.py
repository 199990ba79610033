"""Run the C++ program of tests/host, and all that it loads, with sanitizers: `make asan-host`.

    python tools/host_sanitized.py build/asan-python/libraries tests/host/test_host.py

The folder is where the preset `asan-python` puts its libraries; the rest are arguments of pytest.
The program, engine, bridge and native core are instrumented; Python is not, but allocates through
the sanitizer (`PYTHONMALLOC=malloc`), so that objects of Python are seen too, freed or lost. Any
report fails the test: nothing is suppressed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_LIBRARIES = ("_core*.so", "libbringup_engine.so", "libbringup_bridge.so", "libbringup_runtime.so")


def main() -> int:
    """The exit status of pytest."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, *arguments = sys.argv[1:]
    stage = staged(Path(folder).resolve())
    environment = {
        **os.environ,
        "BRINGUP_TEST_HOST": str(stage),
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def staged(libraries: Path) -> Path:
    """A folder with the package and these libraries in it, and a Python that has no other one."""
    stage = libraries.parent / "host"
    shutil.rmtree(stage, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(_ROOT / "src/bringup", stage / "bringup", ignore=ignored)
    for pattern in _LIBRARIES:
        found = [*libraries.glob(pattern)]
        if not found:
            sys.exit(f"{libraries} has no {pattern}: cmake --build --preset asan-python")
        for file in found:
            shutil.copy(file, stage / "bringup/_native")
    venv.create(stage / "venv", symlinks=True)
    return stage


if __name__ == "__main__":
    sys.exit(main())
