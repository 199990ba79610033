"""Run tests with the native core that sanitizers watch: `make asan-python`.

    python tools/sanitized_tests.py build/asan-python/libraries tests/unit/ir tests/unit/passes

The folder is where the preset `asan-python` puts its libraries; the rest are arguments of pytest.
The sanitizer's library must be in the process before Python allocates anything, so the script
starts itself again with it. Leaks are not looked for: Python keeps memory until the process ends.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

_STARTED = "BRINGUP_SANITIZED"
_ROOT = Path(__file__).parents[1]


def main() -> int:
    """The exit status of pytest."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    folder, *arguments = sys.argv[1:]
    libraries = Path(folder).resolve()
    if not any(libraries.glob("_core*.so")):
        sys.exit(f"{libraries} has no native core: cmake --build --preset asan-python")
    if _STARTED not in os.environ:
        _start_again()
    import pytest

    _take_core(libraries)
    from bringup import _native

    if _native.library_dir() != libraries:
        sys.exit(f"the native core came from {_native.library_dir()}, not from {libraries}")
    return int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments]))


def _take_core(libraries: Path) -> None:
    """Imports the native core of this folder first: an editable install would find its own."""
    (file,) = libraries.glob("_core*.so")
    spec = importlib.util.spec_from_file_location("bringup._native._core", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def _start_again() -> None:
    # libstdc++ too: the sanitizer looks for the function that throws when it starts.
    preloaded = [_library(name) for name in ("libasan.so", "libstdc++.so.6")]
    environment = {
        **os.environ,
        _STARTED: "1",
        "PYTHONPATH": os.pathsep.join(map(str, (_ROOT / "src", _ROOT))),
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def _library(name: str) -> str:
    """Where the compiler has a library of its own."""
    command = ["g++", f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"g++ has no {name}: install the sanitizers of the compiler")
    return found


if __name__ == "__main__":
    sys.exit(main())
