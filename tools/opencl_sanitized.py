"""Run `bringup driver check` on the driver of drivers/opencl, both with sanitizers.

    python tools/opencl_sanitized.py build/asan address,undefined

The folder is where a preset of that sanitizer has built `bringup-driver-check`: an uninstrumented
program would hide the driver's races. `make asan-opencl` does both presets. Suppressed is what the
OpenCL loader, PoCL and its compiler do among themselves. Left out are the checks that take all
memory, which the sanitizer poisons byte by byte, and `errors.copy_kinds`, in which the program
itself makes an enumerator that there is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from install_compilers import missing_libraries

_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = _ROOT / "drivers" / "opencl" / "src"
_FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-fvisibility=hidden", "-fPIC", "-shared", "-O1")
_CHECKS = (
    "device", "errors.detail", "errors.device_numbers", "errors.words", "errors.words_of_threads",
    "memory.pointers", "memory.every_byte", "copies", "fills", "streams", "events", "ordering",
    "threads", "host", "modules", "values", "graphs", "profiler", "native", "lifecycle",
)  # fmt: skip
_FOREIGN = ("libpocl", "libLLVM", "libclang-cpp", "libOpenCL")
_KINDS = ("race", "mutex", "thread", "signal", "deadlock")


def main() -> int:
    """The number of checks that fail; 1 where none passes or the program ends early."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if packages := missing_libraries():
        sys.exit(f"OpenCL is missing: apt-get install {' '.join(packages)}")
    folder, sanitizers = Path(sys.argv[1]), sys.argv[2]
    program = next((p for p in folder.rglob("bringup-driver-check") if p.is_file()), None)
    if program is None:
        sys.exit(f"{folder} has no bringup-driver-check: make asan-opencl builds it")
    with tempfile.TemporaryDirectory() as temporary:
        about, *results = _checked(program, sanitizers, Path(temporary))
    failed = [one for one in results if one["outcome"] == "fail"]
    for one in failed:
        print(f"{one['check']}: {one['reason']}")
    passed = sum(one["outcome"] == "pass" for one in results)
    print(f"{sanitizers}: {len(failed)} failed, {passed} passed {about['failure'] or ''}")
    return len(failed) or int(bool(about["failure"]) or not passed)


def _checked(program: Path, sanitizers: str, folder: Path) -> list[dict[str, str]]:
    driver, suppressions = folder / "libocl.so", folder / "suppressions"
    command = ["cc", *_FLAGS, "-g", f"-fsanitize={sanitizers}", f"-I{_ROOT / 'include'}"]
    command += [*map(str, sorted(_SOURCES.glob("*.c"))), "-o", str(driver)]
    subprocess.run([*command, "-lOpenCL", "-lpthread"], check=True)
    lines = [f"{kind}:{library}" for library in _FOREIGN for kind in _KINDS]
    suppressions.write_text("\n".join(lines) + "\n")
    environment = {
        **os.environ,
        "BRINGUP_OPENCL_MEMORY": "coarse",
        "ASAN_OPTIONS": "detect_leaks=0",  # OpenCL's own objects end with the process
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": f"suppressions={suppressions}:report_signal_unsafe=0",
    }
    kernels = _SOURCES / "bringup_opencl" / "check_kernels.cl"
    options = [f"--only={','.join(_CHECKS)}", f"--device-kernels={kernels}", "--check-limit=120"]
    done = subprocess.run(
        [str(program), *options, str(driver)], env=environment, stdout=subprocess.PIPE, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
