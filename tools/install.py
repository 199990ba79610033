"""Install bringup into the environment of the Python that runs this: `make install`.

A wheel in `dist/` for this Python that is newer than the sources is taken; else one is built there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_DIST = _ROOT / "dist"
_SOURCES = ("src", "native", "include", "drivers", "cmake", "CMakeLists.txt", "pyproject.toml")
_STEP = re.compile(r"\[(\d+)/(\d+)\]")


def pip(*arguments: object) -> list[str]:
    """Return the command line of this environment's pip."""
    return [sys.executable, "-m", "pip", *map(str, arguments)]


def newest_wheel() -> Path | None:
    """Return the wheel for this Python that is newer than all sources."""
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    machine = sysconfig.get_platform().rpartition("-")[2]
    wheels = _DIST.glob(f"bringup-*-{tag}-{tag}-*{machine}.whl")
    newest = max(wheels, key=lambda wheel: wheel.stat().st_mtime, default=None)
    files = [file for name in _SOURCES for file in [_ROOT / name, *(_ROOT / name).rglob("*")]]
    written = max(f.stat().st_mtime for f in files if f.is_file() and f.suffix != ".pyc")
    return newest if newest and newest.stat().st_mtime > written else None


def build() -> None:
    """Build a wheel into `dist/` and show which step of how many the build is at."""
    print("building a wheel: about 4 minutes on two quiet cores", flush=True)
    subprocess.run(
        pip("install", "--quiet", "--group", f"{_ROOT}/pyproject.toml:build"), check=True
    )
    options = ["-v", "--no-deps", "--no-build-isolation", "--wheel-dir", _DIST]
    argv = pip("wheel", *options, _ROOT)
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said: list[str] = []
    with subprocess.Popen(
        argv,
        env={**os.environ, **path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            step = _STEP.search(line)
            if step and (sys.stdout.isatty() or int(step[1]) % 20 == 0):
                ends = "\r" if sys.stdout.isatty() else "\n"
                print(f"  {step[1]:>4} of {step[2]}", end=ends, flush=True)
    if process.returncode:
        sys.exit(f"{''.join(said)}\nthe build failed: its output is above")


def main() -> None:
    """Install, and say what to type next."""
    if not newest_wheel():
        build()
    wheel = newest_wheel()
    if wheel is None:
        sys.exit(f"pip built no wheel for {sysconfig.get_platform()} in {_DIST}")
    subprocess.run(pip("install", "--quiet", "--force-reinstall", "--no-deps", wheel), check=True)
    subprocess.run(pip("install", "--quiet", wheel), check=True)  # what it needs
    bin_folder = Path(sys.executable).parent
    print(f"{wheel.name} is installed. Next: {bin_folder}/bringup doctor")


if __name__ == "__main__":
    main()
