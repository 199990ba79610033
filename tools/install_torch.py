"""Installs torch before anything else, and only a build for the CPU.

The plain requirement may resolve to a GPU build with several gigabytes of libraries, depending on
the package index. This script asks pip what it would install, and refuses before it is downloaded.
ACCEPT_CUDA=1 in the environment takes the GPU build all the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

_GPU_PREFIXES = ("nvidia-", "cuda-", "pytorch-triton", "intel-")
REFUSAL = """\
'{requirement}' would bring a GPU build ({found}): gigabytes that the demo and the tests do not
need. Say which torch 2.13.0 to take instead:
    make TORCH=/path/to/torch-2.13.0+cpu-....whl ...
    make TORCH="torch==2.13.0+cpu --index-url <the CPU index that pytorch.org names>" ...
or accept the GPU build:
    ACCEPT_CUDA=1 make ..."""


def pip(*arguments: str) -> None:
    """Runs this interpreter's pip and stops the script when it fails."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


def installed() -> tuple[str, str | None] | None:
    """Version of the torch that this interpreter would import, and its GPU platform if it has one.

    Reads torch's version file; importing torch would cost a second.
    """
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    facts = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    platforms = [f"{name} {facts[name]}" for name in ("cuda", "hip", "xpu") if facts.get(name)]
    return str(facts["__version__"]), ", ".join(platforms) or None


def gpu_packages(requirement: list[str]) -> list[str]:
    """The GPU packages that installing `requirement` would bring."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip("install", "--quiet", "--dry-run", "--report", str(report), *requirement)
        plan = json.loads(report.read_text())["install"]
    names = [str(item["metadata"]["name"]).lower() for item in plan]
    return sorted(name for name in names if name.startswith(_GPU_PREFIXES))


def verdict(found: tuple[str, str | None] | None, *, accepted: bool) -> str | None:
    """What is wrong with the torch that was found, or None. `accepted`: a GPU build is fine."""
    if found is None:
        return "torch cannot be found after installing it: is TORCH= a requirement for torch?"
    version, platform = found
    if not version.startswith("2.13."):
        return f"bringup needs torch 2.13, this is {version}: make TORCH=torch==2.13.0 ..."
    if platform is not None and not accepted:
        return f"torch {version} is a build for {platform}: take a CPU build, or ACCEPT_CUDA=1"
    return None


def main() -> int:
    """Installs the requirement given on the command line; 0 when a fitting torch is there."""
    requirement = sys.argv[1].split()
    accepted = os.environ.get("ACCEPT_CUDA") == "1"
    print(f"installing {' '.join(requirement)}")
    found = [] if accepted else gpu_packages(requirement)
    if found:
        named = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        print(REFUSAL.format(requirement=sys.argv[1], found=named), file=sys.stderr)
        return 1
    pip("install", "--quiet", *requirement)
    problem = verdict(installed(), accepted=accepted)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"torch {installed()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
