"""Installs torch before anything else, and only a build for the CPU.

The plain requirement may resolve to a CUDA build with several gigabytes of libraries, depending on
the package index. This script asks pip what it would install, and refuses before it is downloaded.
ACCEPT_CUDA=1 in the environment takes the CUDA build all the same.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REFUSAL = """\
'{requirement}' would bring a CUDA build ({found}): gigabytes that the demo and the tests do not
need. Say which torch 2.13.0 to take instead:
    make TORCH=/path/to/torch-2.13.0+cpu-....whl ...
    make TORCH="torch==2.13.0+cpu --index-url <the CPU index that pytorch.org names>" ...
or accept the CUDA build:
    ACCEPT_CUDA=1 make ..."""


def pip(*arguments: str) -> None:
    """Runs this interpreter's pip and stops the script when it fails."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)


def installed_version() -> str | None:
    """The version text of the torch that this interpreter would import, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    namespace: dict[str, object] = {}
    exec((Path(spec.origin).parent / "version.py").read_text(), namespace)
    return f"{namespace['__version__']} (CUDA: {namespace.get('cuda')})"


def cuda_packages(requirement: list[str]) -> list[str]:
    """The CUDA packages that installing `requirement` would bring."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        pip("install", "--quiet", "--dry-run", "--report", str(report), *requirement)
        plan = json.loads(report.read_text())["install"]
    names = [str(item["metadata"]["name"]).lower() for item in plan]
    return sorted(name for name in names if name.startswith(("nvidia-", "cuda-")))


def main() -> int:
    """Installs the requirement given on the command line; 0 when a fitting torch is there."""
    requirement = sys.argv[1].split()
    present = installed_version()
    if present is not None and present.startswith("2.13."):
        print(f"torch {present} is already installed")
        return 0
    print(f"installing {' '.join(requirement)}")
    accepted = os.environ.get("ACCEPT_CUDA") == "1"
    found = [] if accepted else cuda_packages(requirement)
    if found:
        named = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        print(REFUSAL.format(requirement=sys.argv[1], found=named), file=sys.stderr)
        return 1
    pip("install", "--quiet", *requirement)
    print(f"torch {installed_version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
