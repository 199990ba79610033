"""Building the library that links libtorch, once for all processes, into the cache. One that failed
is not tried again until something changes that it depends on.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import json
import math
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bringup import settings
from bringup._locks import Owner, exclusive
from bringup._native import _manifest
from bringup._processes import end, started
from bringup.errors import NativeLibraryError

_REPORT_S = 10.0
_LIMIT_S = 3600.0
_LOG_LINES = 20
_END_S = 10.0
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_STEP = re.compile(r"\[(\d+)/(\d+)\]")


@dataclass(frozen=True)
class Recipe:
    """One library that CMake builds."""

    name: str  # what it is called in messages
    source: Path  # the folder of its CMakeLists.txt
    target: str  # what CMake builds
    product: str  # a glob of the file that is published
    folder: Path  # where that is published; made by this
    definitions: Mapping[str, str] = field(default_factory=dict)  # CMake variables
    # What else a build depends on: a failure is remembered while all of it is the same.
    basis: Mapping[str, str] = field(default_factory=dict)
    build_key: str = ""  # the digest of the sources, for the manifest beside the product
    torch: str = ""  # the version of torch that it links, for the manifest

    @property
    def failure_file(self) -> Path:
        """Remember that the build failed, and why."""
        return self.folder.with_name(f"{self.folder.name}.failed.json")

    @property
    def log_file(self) -> Path:
        """Return what CMake and the compiler printed when the build failed."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def published(self) -> Path | None:
        """Return the library, if it is there whole."""
        with contextlib.suppress(ValueError):  # a damaged manifest: it is built again
            for artifact in _manifest.read(self.folder):
                if fnmatch(artifact.file, self.product) and not artifact.damage(self.folder):
                    return self.folder / artifact.file
        return None


def torch_recipe(
    name: str, sources: Path, folder: Path, build_key: str, torch_version: str
) -> Recipe:
    """Return the library that links libtorch, from bringup's own sources."""
    return Recipe(
        name=name,
        source=sources,
        target="_torch",
        product="_torch*.so",
        folder=folder,
        definitions={"Python_EXECUTABLE": sys.executable, "BRINGUP_TORCH": "ON"},
        basis={"torch": torch_version, "nanobind": _version("nanobind")},
        build_key=build_key,
        torch=torch_version,
    )


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""


def _tool(*names: str) -> str:
    """Return the first of these programs, of this Python's environment or on PATH; or ""."""
    own = Path(sys.executable).parent
    for name in names:
        if found := shutil.which(name, path=os.pathsep.join([str(own), *os.get_exec_path()])):
            return found
    return ""


def _tools() -> dict[str, str]:
    return {
        "cmake": _tool("cmake"),
        "ninja": _tool("ninja", "ninja-build"),
        "a C++ compiler": settings.jit_cxx() or _tool("c++", "g++", "clang++"),
    }


def missing_tools() -> str:
    """Return what a build of the library of libtorch lacks here and how to get it, or ""."""
    lacking = [name for name, path in _tools().items() if not path or not shutil.which(path)]
    advice: list[str] = []
    if "a C++ compiler" in lacking:
        advice.append("apt-get install g++")
    wheels: list[str] = [name for name in ("cmake", "ninja") if name in lacking]
    if not _version("nanobind"):
        lacking.append("nanobind")
        wheels.append("nanobind")
    if wheels:
        advice.append(f"pip install {' '.join(wheels)}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        lacking.append("Python.h")
        advice.append(f"apt-get install python{sysconfig.get_python_version()}-dev")
    return f"{', '.join(lacking)} missing ({'; '.join(advice)})" if lacking else ""


def _basis(recipe: Recipe) -> dict[str, Any]:
    """Return what a failed build has to share with the next one to be its repetition."""
    tools = {}
    for name, path in _tools().items():
        with contextlib.suppress(OSError):
            status = Path(path).stat()
            tools[name] = [path, status.st_size, status.st_mtime_ns]
    return {"tools": tools, "definitions": dict(recipe.definitions), **recipe.basis}


def remembered_failure(recipe: Recipe) -> str:
    """Return what the last build of the same died of, or ""."""
    try:
        record = json.loads(recipe.failure_file.read_text())
        same = record["basis"] == json.loads(json.dumps(_basis(recipe)))
        return str(record["reason"]) if same else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def obtain(recipe: Recipe) -> Path:
    """Return a recipe's library, from the cache or built now. Raises `NativeLibraryError` when it
    failed, now or before, or the cache cannot be written.
    """
    if (found := recipe.published()) is not None:
        return found
    _refuse_repetition(recipe)

    def waiting(_seconds: float, owner: Owner) -> None:
        pid, _ = owner
        who = "another process" if pid is None else f"process {pid}"
        _report(f"waiting for {who}, which builds {recipe.name}")

    try:
        _make_private(recipe.folder.parent)
        lock = recipe.folder.with_name(f"{recipe.folder.name}.lock")
        with exclusive(lock, math.inf, waiting, _REPORT_S):
            if (found := recipe.published()) is not None:
                return found
            _refuse_repetition(recipe)
            return _build(recipe)
    except OSError as error:
        raise NativeLibraryError(
            f"{recipe.name} cannot be kept in {recipe.folder.parent}: {error}; set "
            "BRINGUP_CACHE_DIR to a folder of your own"
        ) from error


def _make_private(folder: Path) -> None:
    """Make it and missing parents for this user alone: others' writable folders are not loaded."""
    for place in reversed((folder, *folder.parents)):
        if not place.exists():
            place.mkdir(mode=0o700, exist_ok=True)


def _refuse_repetition(recipe: Recipe) -> None:
    if reason := remembered_failure(recipe):
        raise NativeLibraryError(
            f"{reason} It is not tried again until compiler, torch or sources change, or "
            f"{recipe.failure_file} is removed"
        )


def _remove_left_over(recipe: Recipe) -> None:
    """Remove drafts of killed builds; without file locks several builds may go on at once."""
    prefix = f".{recipe.folder.name}."
    for left in recipe.folder.parent.glob(f"{prefix}*"):
        builder, _, host = left.name.removeprefix(prefix).rpartition(".")[0].partition("@")
        here = host == os.uname().nodename
        if (here and not _is_running(builder)) or _age(left) > _LIMIT_S:
            shutil.rmtree(left, ignore_errors=True)


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def _age(path: Path) -> float:
    """Return seconds since it was made; 0 where it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime
    return 0.0


def _build(recipe: Recipe) -> Path:
    _remove_left_over(recipe)
    prefix = f".{recipe.folder.name}.{os.getpid()}@{os.uname().nodename}."
    draft = Path(tempfile.mkdtemp(prefix=prefix, dir=recipe.folder.parent))
    try:
        reason = _compile(recipe, draft)
        made = next(iter(sorted((draft / "lib").glob(recipe.product))), None)
        if not reason and made is None:
            reason = f"the build made no {recipe.product}"
        if reason:
            raise _failure(recipe, draft, reason)
        assert made is not None
        whole = draft / "published"
        whole.mkdir(mode=0o700)
        made.rename(whole / made.name)
        _manifest.write(whole, recipe.build_key, recipe.torch)
        recipe.failure_file.unlink(missing_ok=True)
        shutil.rmtree(recipe.folder, ignore_errors=True)  # what is there now is damaged
        whole.rename(recipe.folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return recipe.folder / made.name


def _compile(recipe: Recipe, draft: Path) -> str:
    """Configure and build in `draft`; return why that failed, or ""."""
    tools = _tools()
    definitions = {
        **recipe.definitions,
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": tools["a C++ compiler"],
        "CMAKE_MAKE_PROGRAM": tools["ninja"],
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(draft / "lib"),
    }
    configure = [tools["cmake"], "-S", str(recipe.source), "-B", str(draft / "build"), "-G"]
    configure += ["Ninja", *(f"-D{name}={value}" for name, value in definitions.items())]
    level = settings.inherited("CMAKE_BUILD_PARALLEL_LEVEL")
    jobs = next(iter(level.values()), str(os.cpu_count() or 1))
    build = [tools["cmake"], "--build", str(draft / "build"), "--target", recipe.target, "-j", jobs]
    _report(
        f"building {recipe.name}, once: this takes minutes; BRINGUP_NATIVE=0 does without it "
        "(slower operators, no devices, no graphs)"
    )
    began = time.monotonic()
    with (draft / "build.log").open("w", buffering=1, encoding="utf-8") as log:
        for argv, what in ((configure, "cmake failed"), (build, "the compiler failed")):
            if reason := run_build(argv, log, recipe.name, began):
                return f"{what} ({reason})"
    _report(f"built {recipe.name} in {time.monotonic() - began:.0f} s")
    return ""


def run_build(argv: list[str], log: Any, name: str, began: float) -> str:
    """Run a program, its output in the log and its progress on stderr; why it failed, or ""."""
    log.write(f"$ {' '.join(argv)}\n")
    log.flush()
    reported_at = began
    with started(argv) as process:
        assert process.stdout is not None
        try:
            for raw in process.stdout:
                line = raw.decode(errors="replace")
                log.write(line)
                now = time.monotonic()
                if now - began > _LIMIT_S:
                    return f"it took more than {_LIMIT_S:.0f} s"
                if now - reported_at > _REPORT_S and (step := _STEP.match(line)):
                    reported_at = now
                    _report(
                        f"building {name}: step {step[1]} of {step[2]}, {now - began:.0f} s so far"
                    )
            status = process.wait()
        finally:
            # ninja has a process group for each compiler, which SIGTERM makes it end
            end(process, _END_S)
    return f"exit status {status}" if status else ""


def _failure(recipe: Recipe, draft: Path, reason: str) -> Exception:
    """Return what to raise for a failed build, recorded unless the disk was full."""
    log = (draft / "build.log").read_text(encoding="utf-8") if draft.exists() else ""
    if full := _FULL.search(log):
        return OSError(errno.ENOSPC, f"{full[0]} while it was built, for it or temporary files")
    return NativeLibraryError(_remember(recipe, draft, reason, log))


def _remember(recipe: Recipe, draft: Path, reason: str, log: str) -> str:
    """Record why the build failed; return the error's text."""
    recipe.log_file.write_text(log, encoding="utf-8")
    lines = log.splitlines()
    at = next((i for i, line in enumerate(lines) if re.search(r"\berror\b", line, re.I)), None)
    shown = lines[at : at + _LOG_LINES] if at is not None else lines[-_LOG_LINES:]
    text = f"{recipe.name} could not be built: {reason}; all of it is in {recipe.log_file}:\n"
    text += "\n".join(f"  {line}" for line in shown) + "\n"
    record = {"basis": _basis(recipe), "reason": text}
    temporary = draft / "failed.json"
    temporary.write_text(json.dumps(record, indent=1))
    temporary.replace(recipe.failure_file)
    return text


def _report(text: str) -> None:
    if sys.stderr is not None and settings.jit_progress():
        print(f"bringup: {text}", file=sys.stderr, flush=True)
