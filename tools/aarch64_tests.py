"""Runs the tests of driver.h, the simulator and drivers on aarch64, under qemu's user emulation.

Cross compiles with Debian's compiler, runs native tests, and checks a generated driver and the
simulator with `bringup-driver-check`; builds the bundle of shipped kernels that an aarch64 wheel
brings, and calls one from a C++ program without torch. Where compiler or emulator are missing and
cannot be installed it says so in one line and succeeds. Usage: python tools/aarch64_tests.py
[NAME...], the names of native tests; without one, those that concern drivers, and the kernels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import install_compilers

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "aarch64"
EMULATOR = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")
COMPILER = "aarch64-linux-gnu-gcc"
TESTS = (
    "test_sim",
    "test_sim_faults",
    "test_sim_fills_and_rows",
    "test_sim_groups",
    "test_sim_isolated",
    "test_sim_profiler",
    "test_driver_table",
    "test_checked_driver",
    "test_device_memory",
    "test_host_event",
)
CHECK_SECONDS = 120  # emulated code is slow, and checks have limits


def missing() -> list[str]:
    """The programs that are not on PATH."""
    return [program for program in (COMPILER, EMULATOR[0]) if shutil.which(program) is None]


def run(*command: str | Path) -> None:
    """Runs a command that must succeed. Programs that start themselves do so under the emulator."""
    print("+", *command, flush=True)
    environment = {**os.environ, "TEST_EMULATOR": " ".join(EMULATOR)}
    subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, check=True)


def build(tests: tuple[str, ...]) -> None:
    """Configures and builds the tests, the simulator and the driver check."""
    generator = [] if shutil.which("ninja") else ["-G", "Unix Makefiles"]
    run("cmake", "--preset", "aarch64", *generator)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")
    targets = ("bringup_sim", "bringup_driver_check", *tests)
    run("cmake", "--build", BUILD, "--parallel", jobs, "--target", *targets)


def generated_driver() -> Path:
    """The driver that `bringup new driver` gives, as a C program with every warning an error."""
    folder = BUILD / "generated"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = [sys.executable, "-m", "bringup", "new", "driver", "minimal"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    library = BUILD / "libminimal.so"
    strict = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror")
    source = folder / "minimal" / "driver.c"
    run(COMPILER, *strict, "-shared", "-fPIC", "-Iinclude", source, "-o", library, "-lpthread")
    return library


def check(library: Path) -> list[str]:
    """Checks a driver; what failed, a line each."""
    program = BUILD / "native" / "driver_check" / "bringup-driver-check"
    limits = (f"--check-limit={CHECK_SECONDS}", f"--start-limit={CHECK_SECONDS}")
    command = [*EMULATOR, str(program), *limits, f"--emulator={','.join(EMULATOR)}", str(library)]
    print("+", *command, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    driver, *results = map(json.loads, done.stdout.splitlines())
    outcomes = [result["outcome"] for result in results]
    passed, skipped = outcomes.count("pass"), outcomes.count("skipped")
    print(f"{library.name}: {passed} pass, {outcomes.count('fail')} fail, {skipped} skipped")
    problems = [f"{driver['failure']}"] if driver["failure"] else []
    if passed == 0:
        problems.append("no check passed")
    problems += [
        f"{result['check']}: {result['reason']}"
        for result in results
        if result["outcome"] == "fail"
    ]
    return [f"{library.name}: {problem}" for problem in problems]


def kernels() -> None:
    """Calls a kernel of the bundle that tools/prebuild_kernels.py makes."""
    run(sys.executable, "tools/prebuild_kernels.py", BUILD, "aarch64")
    with zipfile.ZipFile(BUILD / "aarch64.bundle") as bundle:
        found = [json.loads(bundle.read(name)) for name in bundle.namelist() if "meta" in name]
        (key,) = (meta["key"] for meta in found if meta["name"] == "bias_gelu.cpp")
        library = bundle.extract(f"{key}/kernel.so", BUILD)
    caller = BUILD / "kernel_caller"
    source = "tests/aarch64/kernel_caller.cpp"
    strict = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-Iinclude")
    run(COMPILER.replace("gcc", "g++"), *strict, source, "-o", caller, "-ldl")
    run(*EMULATOR, caller, library, "run")


def main(names: list[str]) -> int:
    """Builds and runs all of it; the exit code."""
    if missing():
        install_compilers.main()
    if absent := missing():
        print(f"*** AARCH64 IS NOT TESTED: {', '.join(absent)} missing ***", file=sys.stderr)
        return 0
    tests = tuple(names) or TESTS
    build(tests)
    run("ctest", "--test-dir", BUILD, "--output-on-failure", "--no-tests=error", "-R",
        f"^({'|'.join(tests)})$")  # fmt: skip
    (simulator,) = BUILD.rglob("libbringup_sim.so")
    if not names:
        kernels()
    problems = [line for library in (generated_driver(), simulator) for line in check(library)]
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
