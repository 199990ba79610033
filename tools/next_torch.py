"""Builds bringup with the next minor version of torch, where the package index has one, and runs a
slice of the tests: the failures are what a move to it has to mend.

    python tools/next_torch.py [REQUIREMENT]

All of it happens in build/next-torch, on a copy of the sources that are written for that version.
Exit status 0: there is no such version, or nothing fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "next-torch"
PIN = Path("native/torch/common/torch_private.h")
SLICE = ("tests/unit/compiler/inductor", "tests/unit/devices/test_load.py")
_WRITTEN_FOR = re.compile(r"(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == )(\d+)")
_FAILURE = re.compile(r"^(FAILED|ERROR) |\berror: ", re.MULTILINE)


def written_for(header: str) -> int:
    """The minor version of torch 2 that the sources are written for."""
    found = _WRITTEN_FOR.search(header)
    assert found, f"{PIN} does not say which torch it is written for"
    return int(found[2])


def newest(listed: str, minor: int) -> str | None:
    """The newest release of torch 2.`minor` among those that `pip index versions` lists."""
    patches = [int(patch) for patch in re.findall(rf"\b2\.{minor}\.(\d+)(?![\w+.])", listed)]
    return f"2.{minor}.{max(patches)}" if patches else None


def failures(log: str) -> list[str]:
    """The lines of a build's or pytest's output that say what failed, each once."""
    return list(dict.fromkeys(line for line in log.splitlines() if _FAILURE.search(line)))


def copy_sources(source: Path, minor: int) -> None:
    """Copies what git knows or would add; the copy is written for another minor version."""
    shutil.rmtree(source, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    header, tool = source / PIN, source / "tools/install_torch.py"
    now = written_for(header.read_text())
    header.write_text(_WRITTEN_FOR.sub(rf"\g<1>{minor}", header.read_text()))
    text = tool.read_text().replace(f"2.{now}", f"2.{minor}")
    tool.write_text(text.replace("make TORCH=", "make next-torch NEXT_TORCH="))


def run(*command: str | Path, inside: Path) -> list[str] | None:
    """Runs a command, shows its output, and returns what failed; None where it ended well."""
    with subprocess.Popen(
        command, cwd=inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    log = "".join(lines)
    return (failures(log) or lines[-1:]) if process.returncode else None


def main() -> int:
    """Tries the next version; see the module."""
    minor = written_for((ROOT / PIN).read_text()) + 1
    asked = sys.argv[1:] or [""]
    if not asked[0]:
        index = [sys.executable, "-m", "pip", "index", "versions", "torch"]
        version = newest(subprocess.check_output(index, text=True), minor)
        if version is None:
            print(f"The package index has no torch 2.{minor}: there is nothing to try.")
            return 0
        asked = [f"torch=={version}"]
    source, environment = FOLDER / "source", FOLDER / "venv"
    copy_sources(source, minor)
    venv.create(environment, with_pip=True, clear=not (environment / "bin/python").exists())
    python = environment / "bin/python"
    os.environ["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    pip = (python, "-m", "pip", "install", "--quiet")
    steps: list[tuple[str, tuple[str | Path, ...]]] = [
        ("torch", (python, "tools/install_torch.py", *asked)),
        ("pip", (*pip, "--upgrade", "pip>=25.1")),
        ("tools", (*pip, "--group", "build", "--group", "demo", "--group", "test")),
        ("build", (*pip, "--no-build-isolation", "-C", "build.tool-args=-k0", ".")),
        ("tests", (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SLICE)),
    ]
    for step, command in steps:
        print(f"{' '.join(asked)}: {step}", flush=True)
        if (found := run(*command, inside=source)) is not None:
            print(f"\n{' '.join(asked)}: {step} failed:", *found, sep="\n  ")
            return 1
    print(f"{' '.join(asked)}: the build and {', '.join(SLICE)} pass.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
