"""Settings: every environment variable of bringup, read here and nowhere else.

Values are read when asked for, not at import, so a test or a notebook may change them at any time.
`table()` is the documentation: `bringup doctor` and the docs print it.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

from bringup import _settings, _variables
from bringup._settings import NativeChoice, Setting, inherited, size, without
from bringup._trace_settings import DriverTrace, driver_trace, driver_trace_environment
from bringup._variables import ALL
from bringup.errors import SettingError

__all__ = [
    "ALL",
    "DriverTrace",
    "NativeChoice",
    "Setting",
    "cache_dir",
    "cache_max_bytes",
    "cache_max_entries",
    "cache_remote",
    "cache_remote_timeout",
    "capture",
    "check",
    "dispatch_trace",
    "downcast_float64",
    "driver",
    "driver_path",
    "driver_probe",
    "driver_trace",
    "driver_trace_environment",
    "engine",
    "freeze",
    "inherited",
    "jit_autotune",
    "jit_cxx",
    "jit_debug",
    "jit_file_size",
    "jit_memory",
    "jit_progress",
    "jit_timeout",
    "launch_blocking",
    "logger",
    "named_driver",
    "native",
    "ops_debug",
    "ops_path",
    "ops_pool",
    "pass_dump",
    "pass_library",
    "pass_limit",
    "pass_path",
    "pass_switch",
    "pass_verify",
    "prepend_pass_path",
    "size",
    "table",
    "without",
]


def cache_dir() -> Path:
    """Folder of the kernel cache (`BRINGUP_CACHE_DIR`). It need not exist yet."""
    return _variables.CACHE_DIR.get()


def cache_max_bytes() -> float:
    """What the kernel cache may hold, in bytes (`BRINGUP_CACHE_MAX_BYTES`); infinite for no
    limit.
    """
    return _variables.CACHE_MAX_BYTES.get() or math.inf


def cache_max_entries() -> float:
    """How many kernels the cache may hold (`BRINGUP_CACHE_MAX_ENTRIES`); infinite for no limit."""
    return _variables.CACHE_MAX_ENTRIES.get() or math.inf


def cache_remote() -> str:
    """Where machines share kernels (`BRINGUP_CACHE_REMOTE`), or ""."""
    return _variables.CACHE_REMOTE.get()


def cache_remote_timeout() -> float:
    """Seconds that one request to the shared cache may take (`BRINGUP_CACHE_REMOTE_TIMEOUT`)."""
    return _variables.CACHE_REMOTE_TIMEOUT.get()


def jit_cxx() -> str:
    """The C++ compiler for kernels (`BRINGUP_JIT_CXX`), or "" when jit shall look for one."""
    return _variables.JIT_CXX.get()


def jit_debug() -> tuple[str, ...]:
    """The debug builds that are asked for (`BRINGUP_JIT_DEBUG`), word by word."""
    return _variables.JIT_DEBUG.get()


def jit_timeout() -> float:
    """Seconds that a compiler may run (`BRINGUP_JIT_TIMEOUT`)."""
    return _variables.JIT_TIMEOUT.get()


def jit_memory() -> int | None:
    """Bytes of address space for each process of a compiler (`BRINGUP_JIT_MEMORY`), or None."""
    return _variables.JIT_MEMORY.get()


def jit_file_size() -> int | None:
    """Bytes that each file of a compiler may have (`BRINGUP_JIT_FILE_SIZE`), or None."""
    return _variables.JIT_FILE_SIZE.get()


def jit_progress() -> bool:
    """Whether compiles that take long are shown on stderr (`BRINGUP_JIT_PROGRESS`)."""
    return _variables.JIT_PROGRESS.get()


def jit_autotune() -> bool:
    """Whether tile sizes are measured and measured ones are used (`BRINGUP_JIT_AUTOTUNE`)."""
    return _variables.JIT_AUTOTUNE.get()


def driver() -> str:
    """The driver to load by default (`BRINGUP_DRIVER`): a name or a path."""
    return _variables.DRIVER.get()


def named_driver() -> str | None:
    """The driver that `BRINGUP_DRIVER` names; None where it is left to its default."""
    named = bool(inherited(_variables.DRIVER.variable).get(_variables.DRIVER.variable, "").strip())
    return driver() if named else None


def driver_probe() -> bool:
    """Whether unknown drivers are tested before they are loaded (`BRINGUP_DRIVER_PROBE`)."""
    return _variables.DRIVER_PROBE.get()


def fallback() -> tuple[str, dict[str, str]]:
    """What may run on the host (`BRINGUP_FALLBACK`): for all operators, and exceptions."""
    return _variables.FALLBACK.get()


def dispatch_trace() -> Path | None:
    """Where calls of operators are listed at the end of the process (`BRINGUP_DISPATCH_TRACE`): a
    JSON file, "-" for stderr, or None: nowhere.
    """
    return _variables.DISPATCH_TRACE.get()


def downcast_float64() -> str:
    """What becomes of float64 on a device without it (`BRINGUP_DOWNCAST_FLOAT64`)."""
    return _variables.DOWNCAST_FLOAT64.get()


def wait_timeout() -> float:
    """Seconds after which a wait for the device raises (`BRINGUP_WAIT_TIMEOUT`); 0 for never."""
    return _variables.WAIT_TIMEOUT.get()


def wait_abort() -> bool:
    """Whether a call of the driver that takes too long ends the process (`BRINGUP_WAIT_ABORT`)."""
    return _variables.WAIT_ABORT.get()


def pass_path() -> dict[Path, str]:
    """Where to look for pass plugins, each place with the variable that names it:
    `BRINGUP_PASS_PATH`, then `ASCEND_GE_PY_PASS_PATH`.
    """
    found = dict.fromkeys(_variables.PASS_PATH.get(), _variables.PASS_PATH.variable)
    for path in _variables.ASCEND_PASS_PATH.get():
        found.setdefault(path, _variables.ASCEND_PASS_PATH.variable)
    return found


def pass_library() -> bool:
    """Whether the passes that bringup ships are loaded as plugins (`BRINGUP_PASS_LIBRARY`)."""
    return _variables.PASS_LIBRARY.get()


def freeze() -> bool:
    """Whether `torch.compile` may freeze weights (`BRINGUP_FREEZE`)."""
    return _variables.FREEZE.get()


def capture() -> bool:
    """Whether `torch.compile` may capture graphs (`BRINGUP_CAPTURE`)."""
    return _variables.CAPTURE.get()


def ops_path() -> dict[Path, str]:
    """Where to look for operator plugins, each place with the variable that names it:
    `BRINGUP_OPS_PATH`.
    """
    return dict.fromkeys(_variables.OPS_PATH.get(), _variables.OPS_PATH.variable)


def driver_path() -> tuple[Path, ...]:
    """The folders that may hold drivers' libraries (`BRINGUP_DRIVER_PATH`)."""
    return _variables.DRIVER_PATH.get()


def native() -> NativeChoice:
    """Whether the library that links libtorch is used (`BRINGUP_NATIVE`)."""
    return _variables.NATIVE.get()


def pass_switch() -> dict[str, bool]:
    """Which passes are switched on or off (`BRINGUP_PASS_SWITCH`); `ALL` means all others."""
    return _variables.PASS_SWITCH.get()


def pass_verify() -> bool:
    """Whether rewrites are run against what they replace (`BRINGUP_PASS_VERIFY`)."""
    return _variables.PASS_VERIFY.get()


def pass_dump() -> Path | None:
    """The folder for graphs before and after passes (`BRINGUP_PASS_DUMP`), or None."""
    return _variables.PASS_DUMP.get()


def pass_limit() -> int | None:
    """How many rewrites may happen in this process (`BRINGUP_PASS_LIMIT`), or None."""
    return _variables.PASS_LIMIT.get()


def engine() -> str:
    """What finds patterns in graphs (`BRINGUP_ENGINE`): "native" or "python"."""
    return _variables.ENGINE.get()


def prepend_pass_path(folder: Path) -> None:
    """Puts `folder` first on `BRINGUP_PASS_PATH`, for this process and those that it starts."""
    others = [path for path in _variables.PASS_PATH.get() if path != folder]
    os.environ[_variables.PASS_PATH.variable] = os.pathsep.join(map(str, (folder, *others)))


def logger(package: str) -> logging.Logger:
    """The logger `bringup.<package>`, its level set as `BRINGUP_LOG` says.

    Where `BRINGUP_LOG` is set, what it asks for reaches stderr; otherwise logging is left as the
    application set it up. Raises `SettingError` for a level that does not exist.
    """
    return _settings.logger(package, _variables.LOG.get())


def launch_blocking() -> bool:
    """Whether every launch is followed by a synchronisation (`BRINGUP_LAUNCH_BLOCKING`)."""
    return _variables.LAUNCH_BLOCKING.get()


def ops_debug() -> bool:
    """Whether operators written in Python are checked for hidden writes (`BRINGUP_OPS_DEBUG`)."""
    return _variables.OPS_DEBUG.get()


def ops_pool() -> bool:
    """Whether kernel operators reuse the memory of small outputs (`BRINGUP_OPS_POOL`)."""
    return _variables.OPS_POOL.get()


def _problem(setting: Setting[object]) -> str:
    try:
        setting.get()
    except SettingError as error:
        return str(error)
    return ""


def check() -> None:
    """Raises `SettingError` for the first setting whose text cannot be read."""
    for setting in ALL:
        setting.get()


def table() -> list[dict[str, str]]:
    """Every setting: variable, meaning, default, current text, and the problem if it is wrong."""
    return [
        {
            "variable": setting.variable,
            "meaning": setting.meaning,
            "default": setting.default_text,
            "now": os.environ.get(setting.variable, ""),
            "problem": _problem(setting),
        }
        for setting in ALL
    ]
