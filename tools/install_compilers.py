"""Gets what some tests need beyond g++: clang++, compiler and emulator for aarch64, a browser, and
OpenCL on the processor with CLBlast.

Where it may (as root, on Debian and its like) it installs their packages. Where it may not, or that
fails, it says so in one line and succeeds: the tests that need them are skipped and name the same
command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

WANTED = {
    "clang++": "clang",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    "chromium": "chromium",
    "qemu-aarch64-static": "qemu-user-static",
}
# What is no program, by a file of it.
LIBRARIES = {
    "/etc/OpenCL/vendors/*.icd": "pocl-opencl-icd",
    "/usr/lib/*/libOpenCL.so": "ocl-icd-opencl-dev",
    "/usr/include/CL/cl.h": "opencl-headers",
    "/usr/lib/*/libclblast.so.1": "libclblast1",
}
SECONDS = 900


def missing() -> list[str]:
    """The packages of the compilers that are not on PATH, and of the libraries."""
    programs = [package for program, package in WANTED.items() if shutil.which(program) is None]
    return programs + missing_libraries()


def missing_libraries() -> list[str]:
    """The packages of the libraries that are not where Debian has them."""
    return [package for file, package in LIBRARIES.items() if not any(Path("/").glob(file[1:]))]


def can_install() -> bool:
    """Whether what is missing would have been installed."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def runtime_of_clang() -> list[str]:
    """The package with the sanitizers of the clang++ that is there, if they are not."""
    if shutil.which("clang++") is None:
        return []
    asked = ["clang++", f"-print-file-name=libclang_rt.asan-{os.uname().machine}.so"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    said = subprocess.run(
        ["clang++", "-dumpversion"], capture_output=True, text=True, check=False
    ).stdout
    return [] if found.startswith("/") else [f"libclang-rt-{said.partition('.')[0]}-dev"]


def apt_get(*arguments: str) -> str:
    """Runs apt-get. Returns what went wrong, or ""."""
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (said[-1] if said else f"status {done.returncode}")


def install(packages: list[str]) -> str:
    """Installs the packages. Returns what went wrong, or ""."""
    if os.geteuid() != 0:
        return "this is not root"
    if shutil.which("apt-get") is None:
        return "there is no apt-get"
    return apt_get("update", "--quiet") or apt_get(
        "install", "--yes", "--quiet", "--no-install-recommends", *packages
    )


def main() -> None:
    """Installs what is missing; one loud line for what stays missing."""
    for look in (missing, runtime_of_clang):
        packages = look()
        if packages and (problem := install(packages)):
            print(
                f"*** NOT ALL TARGETS ARE TESTED: {' '.join(packages)} could not be installed "
                f"({problem}). Get them with: apt-get install {' '.join(packages)} ***",
                file=sys.stderr,
            )
            return


if __name__ == "__main__":
    main()
