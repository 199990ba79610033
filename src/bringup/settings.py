"""Settings: every environment variable of bringup, read here and nowhere else.

Values are read when asked for, not at import, so a test or a notebook may change them at any time.
`table()` is the documentation: `bringup doctor` and the docs print it.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

from bringup import _settings, _trace_settings
from bringup._settings import NativeChoice, Setting, inherited, size, without
from bringup._trace_settings import DriverTrace, driver_trace, driver_trace_environment
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


_CACHE_DIR = Setting(
    "BRINGUP_CACHE_DIR",
    "folder of the kernel cache",
    "the user's cache folder, e.g. ~/.cache/bringup",
    _settings.default_cache_dir,
    _settings.path,
)
_CACHE_MAX_BYTES = Setting(
    "BRINGUP_CACHE_MAX_BYTES",
    "what the kernel cache may hold before the kernels used longest ago are removed: bytes, or a "
    "number with K, M or G; 0: no limit",
    "2G",
    lambda: 2 * 2**30,
    _settings.size,
)
_CACHE_MAX_ENTRIES = Setting(
    "BRINGUP_CACHE_MAX_ENTRIES",
    "how many kernels the cache may hold before those used longest ago are removed; 0: no limit",
    "10000",
    lambda: 10_000,
    _settings.count,
)
_CACHE_REMOTE = Setting(
    "BRINGUP_CACHE_REMOTE",
    "URL of a kernel cache that machines share, for fsspec: s3://..., gs://..., file:///...",
    "none",
    lambda: "",
    str,
)
_CACHE_REMOTE_TIMEOUT = Setting(
    "BRINGUP_CACHE_REMOTE_TIMEOUT",
    "seconds that one request to the shared kernel cache may take",
    "2",
    lambda: 2.0,
    _settings.seconds,
)
_JIT_CXX = Setting(
    "BRINGUP_JIT_CXX",
    "C++ compiler for kernels on cpu",
    "c++, g++ or clang++ on PATH",
    lambda: "",
    str,
)
_JIT_DEBUG = Setting(
    "BRINGUP_JIT_DEBUG",
    "debug builds of kernels: some of assembly, preprocessed, line_info, address, undefined, "
    "separated by commas",
    "none",
    lambda: (),
    _settings.debug_words,
)
_JIT_TIMEOUT = Setting(
    "BRINGUP_JIT_TIMEOUT",
    "seconds that a compiler may run",
    "300",
    lambda: 300.0,
    _settings.seconds,
)
_JIT_MEMORY = Setting(
    "BRINGUP_JIT_MEMORY",
    "address space of each process of a compiler: bytes, or a number with K, M or G; 0: no limit",
    "16G",
    lambda: 16 * 2**30,
    _settings.size,
)
_JIT_FILE_SIZE = Setting(
    "BRINGUP_JIT_FILE_SIZE",
    "size of each file that a compiler writes: bytes, or a number with K, M or G; 0: no limit",
    "4G",
    lambda: 4 * 2**30,
    _settings.size,
)
_JIT_PROGRESS = Setting(
    "BRINGUP_JIT_PROGRESS",
    "0: say nothing on stderr while kernels are compiled or waited for",
    "1",
    lambda: True,
    _settings.switch,
)
_JIT_AUTOTUNE = Setting(
    "BRINGUP_JIT_AUTOTUNE",
    "1: what is fastest on this machine is measured and used: tile sizes of templates where that "
    "is asked for, and how frozen weights lie; 0: each template's default, and panels",
    "1, but 0 where CI is set",
    lambda: os.environ.get("CI", "").strip().lower() in {"", "0", "false"},
    _settings.switch,
)
_DRIVER = Setting(
    "BRINGUP_DRIVER",
    "driver that `devices.load_driver()` loads: a name or the path of a shared library",
    "sim",
    lambda: "sim",
    str,
)
_DRIVER_PROBE = Setting(
    "BRINGUP_DRIVER_PROBE",
    "0: a driver that is not known yet is loaded without a short test of it in another process",
    "1",
    lambda: True,
    _settings.switch,
)
_FALLBACK = Setting(
    "BRINGUP_FALLBACK",
    "operators without a kernel on the device: allow, warn or forbid to run them on the host, with"
    " exceptions, such as `forbid,aten::mm=allow`",
    "allow",
    lambda: ("allow", {}),
    _settings.fallback_policy,
)
_DOWNCAST_FLOAT64 = Setting(
    "BRINGUP_DOWNCAST_FLOAT64",
    "float64 on a device without it: error, warn (it is float32 there) or cpu (it stays there)",
    "error",
    lambda: "error",
    _settings.float64_policy,
)
_WAIT_TIMEOUT = Setting(
    "BRINGUP_WAIT_TIMEOUT",
    "seconds after which a wait for the device raises, and a call of its driver that has not"
    " returned is told",
    "none",
    lambda: 0.0,
    _settings.seconds,
)
_WAIT_ABORT = Setting(
    "BRINGUP_WAIT_ABORT",
    "1: a call of the driver that has not returned within BRINGUP_WAIT_TIMEOUT ends the process",
    "0",
    lambda: False,
    _settings.switch,
)
_PASS_PATH = Setting(
    "BRINGUP_PASS_PATH",
    "folders and files with graph passes, separated like PATH",
    "none",
    lambda: (),
    _settings.paths,
)
_ASCEND_PASS_PATH = Setting(
    "ASCEND_GE_PY_PASS_PATH",
    "the same for passes written for GE; read after BRINGUP_PASS_PATH",
    "none",
    lambda: (),
    _settings.paths,
)
_PASS_LIBRARY = Setting(
    "BRINGUP_PASS_LIBRARY",
    "0: only passes of your own and of installed plugins, not those that bringup ships",
    "1",
    lambda: True,
    _settings.switch,
)
_FREEZE = Setting(
    "BRINGUP_FREEZE",
    "0: torch.compile freezes no weights, whatever its options say",
    "1",
    lambda: True,
    _settings.switch,
)
_CAPTURE = Setting(
    "BRINGUP_CAPTURE",
    "0: torch.compile captures no graphs, whatever its options say",
    "1",
    lambda: True,
    _settings.switch,
)
_PASS_SWITCH = Setting(
    "BRINGUP_PASS_SWITCH",
    "passes switched on or off by name, ALL for all others: `ALL:off,Name:on`, or the path of a "
    'JSON file such as {"ALL": "off", "Name": "on"}',
    "all on",
    dict[str, bool],
    _settings.switches,
)
_PASS_VERIFY = Setting(
    "BRINGUP_PASS_VERIFY",
    "1: every rewrite of a pass is run against what it replaces, on random inputs (slow)",
    "0",
    lambda: False,
    _settings.switch,
)
_PASS_DUMP = Setting(
    "BRINGUP_PASS_DUMP",
    "folder for the graph before and after every pass that changed it, as text and DOT",
    "none",
    lambda: None,
    _settings.optional_path,
)
_PASS_LIMIT = Setting(
    "BRINGUP_PASS_LIMIT",
    "how many rewrites passes may make in this process, to find a wrong one",
    "no limit",
    lambda: None,
    _settings.number,
)
_OPS_PATH = Setting(
    "BRINGUP_OPS_PATH",
    "folders and files that define operators, separated like PATH; read by `ops.load_op_plugins()`",
    "none",
    lambda: (),
    _settings.paths,
)
_DRIVER_PATH = Setting(
    "BRINGUP_DRIVER_PATH",
    "folders in which `devices.load_driver(name)` looks for lib<name>.so, separated like PATH",
    "none",
    lambda: (),
    _settings.paths,
)
_NATIVE = Setting(
    "BRINGUP_NATIVE",
    "what links libtorch: auto (found by torch version, else built once, else done without), "
    "1 (no operators without it), 0 (done without: operators run through Python)",
    "auto",
    lambda: "auto",
    _settings.native_choice,
)
_ENGINE = Setting(
    "BRINGUP_ENGINE",
    "what finds patterns in graphs: native, or python for the reference that it is tested against "
    "(slow)",
    "native",
    lambda: "native",
    _settings.engine,
)
_LOG = Setting(
    "BRINGUP_LOG",
    "what to log to stderr: a level (debug, info, warning, error), or package:level pairs like "
    "jit:debug,passes:info; passes:json prints what passes do as one line of JSON an event",
    "warning",
    dict[str, int],
    _settings.log_levels,
)
_LAUNCH_BLOCKING = Setting(
    "BRINGUP_LAUNCH_BLOCKING",
    "1: wait for the device after every launch, so that an error is raised where it was caused",
    "0",
    lambda: False,
    _settings.switch,
)
_OPS_DEBUG = Setting(
    "BRINGUP_OPS_DEBUG",
    "1: check operators written in Python for writes that their schema does not declare (slow); "
    "read when `bringup.ops` is imported",
    "0",
    lambda: False,
    _settings.switch,
)
_OPS_POOL = Setting(
    "BRINGUP_OPS_POOL",
    "1: kernel operators on cpu keep the memory of freed outputs of up to 512 bytes for the next "
    "ones; read when the first operator is defined",
    "1",
    lambda: True,
    _settings.switch,
)
# The simulated NPU's library reads these itself, once, when it is loaded.
_SIM_MEMORY = Setting(
    "BRINGUP_SIM_MEMORY",
    "memory of each simulated device: bytes, or a number with K, M or G (read by the driver)",
    "4G",
    lambda: "4G",
    _settings.memory,
)
_SIM_ISOLATED = Setting(
    "BRINGUP_SIM_ISOLATED",
    "1: the host cannot touch simulated device memory, as on most hardware (read by the driver)",
    "0",
    lambda: False,
    _settings.switch,
)
_SIM_RECORDS = Setting(
    "BRINGUP_SIM_RECORDS",
    "how many records of its work a simulated device keeps for the profiler; further ones are lost "
    "and counted (read by the driver)",
    "1048576",
    lambda: 1_048_576,
    _settings.number,
)
_SIM_FAULTS = Setting(
    "BRINGUP_SIM_FAULTS",
    "what fails on the simulated NPU, KEY=VALUE separated by commas, such as "
    "oom_after=10,copy_latency_us=200; the keys are those of devices.sim.faults, and hidden_dtypes "
    "(read by the driver)",
    "none",
    lambda: "",
    str,
)

ALL: tuple[Setting[object], ...] = (
    _CACHE_DIR,
    _CACHE_MAX_BYTES,
    _CACHE_MAX_ENTRIES,
    _CACHE_REMOTE,
    _CACHE_REMOTE_TIMEOUT,
    _JIT_CXX,
    _JIT_DEBUG,
    _JIT_TIMEOUT,
    _JIT_MEMORY,
    _JIT_FILE_SIZE,
    _JIT_PROGRESS,
    _JIT_AUTOTUNE,
    _DRIVER,
    _DRIVER_PROBE,
    _FALLBACK,
    _DOWNCAST_FLOAT64,
    _WAIT_TIMEOUT,
    _WAIT_ABORT,
    _trace_settings.FILE,
    _trace_settings.PAYLOAD,
    _trace_settings.LIMIT,
    _PASS_PATH,
    _ASCEND_PASS_PATH,
    _PASS_LIBRARY,
    _FREEZE,
    _CAPTURE,
    _PASS_SWITCH,
    _PASS_VERIFY,
    _PASS_DUMP,
    _PASS_LIMIT,
    _OPS_PATH,
    _DRIVER_PATH,
    _NATIVE,
    _ENGINE,
    _LOG,
    _LAUNCH_BLOCKING,
    _OPS_DEBUG,
    _OPS_POOL,
    _SIM_MEMORY,
    _SIM_ISOLATED,
    _SIM_RECORDS,
    _SIM_FAULTS,
)  # type: ignore[assignment]


def cache_dir() -> Path:
    """Folder of the kernel cache (`BRINGUP_CACHE_DIR`). It need not exist yet."""
    return _CACHE_DIR.get()


def cache_max_bytes() -> float:
    """What the kernel cache may hold, in bytes (`BRINGUP_CACHE_MAX_BYTES`); infinite for no
    limit.
    """
    return _CACHE_MAX_BYTES.get() or math.inf


def cache_max_entries() -> float:
    """How many kernels the cache may hold (`BRINGUP_CACHE_MAX_ENTRIES`); infinite for no limit."""
    return _CACHE_MAX_ENTRIES.get() or math.inf


def cache_remote() -> str:
    """Where machines share kernels (`BRINGUP_CACHE_REMOTE`), or ""."""
    return _CACHE_REMOTE.get()


def cache_remote_timeout() -> float:
    """Seconds that one request to the shared cache may take (`BRINGUP_CACHE_REMOTE_TIMEOUT`)."""
    return _CACHE_REMOTE_TIMEOUT.get()


def jit_cxx() -> str:
    """The C++ compiler for kernels (`BRINGUP_JIT_CXX`), or "" when jit shall look for one."""
    return _JIT_CXX.get()


def jit_debug() -> tuple[str, ...]:
    """The debug builds that are asked for (`BRINGUP_JIT_DEBUG`), word by word."""
    return _JIT_DEBUG.get()


def jit_timeout() -> float:
    """Seconds that a compiler may run (`BRINGUP_JIT_TIMEOUT`)."""
    return _JIT_TIMEOUT.get()


def jit_memory() -> int | None:
    """Bytes of address space for each process of a compiler (`BRINGUP_JIT_MEMORY`), or None."""
    return _JIT_MEMORY.get()


def jit_file_size() -> int | None:
    """Bytes that each file of a compiler may have (`BRINGUP_JIT_FILE_SIZE`), or None."""
    return _JIT_FILE_SIZE.get()


def jit_progress() -> bool:
    """Whether compiles that take long are shown on stderr (`BRINGUP_JIT_PROGRESS`)."""
    return _JIT_PROGRESS.get()


def jit_autotune() -> bool:
    """Whether tile sizes are measured and measured ones are used (`BRINGUP_JIT_AUTOTUNE`)."""
    return _JIT_AUTOTUNE.get()


def driver() -> str:
    """The driver to load by default (`BRINGUP_DRIVER`): a name or a path."""
    return _DRIVER.get()


def driver_probe() -> bool:
    """Whether unknown drivers are tested before they are loaded (`BRINGUP_DRIVER_PROBE`)."""
    return _DRIVER_PROBE.get()


def fallback() -> tuple[str, dict[str, str]]:
    """What may run on the host (`BRINGUP_FALLBACK`): for all operators, and exceptions."""
    return _FALLBACK.get()


def downcast_float64() -> str:
    """What becomes of float64 on a device without it (`BRINGUP_DOWNCAST_FLOAT64`)."""
    return _DOWNCAST_FLOAT64.get()


def wait_timeout() -> float:
    """Seconds after which a wait for the device raises (`BRINGUP_WAIT_TIMEOUT`); 0 for never."""
    return _WAIT_TIMEOUT.get()


def wait_abort() -> bool:
    """Whether a call of the driver that takes too long ends the process (`BRINGUP_WAIT_ABORT`)."""
    return _WAIT_ABORT.get()


def pass_path() -> dict[Path, str]:
    """Where to look for pass plugins, each place with the variable that names it:
    `BRINGUP_PASS_PATH`, then `ASCEND_GE_PY_PASS_PATH`.
    """
    found = dict.fromkeys(_PASS_PATH.get(), _PASS_PATH.variable)
    for path in _ASCEND_PASS_PATH.get():
        found.setdefault(path, _ASCEND_PASS_PATH.variable)
    return found


def pass_library() -> bool:
    """Whether the passes that bringup ships are loaded as plugins (`BRINGUP_PASS_LIBRARY`)."""
    return _PASS_LIBRARY.get()


def freeze() -> bool:
    """Whether `torch.compile` may freeze weights (`BRINGUP_FREEZE`)."""
    return _FREEZE.get()


def capture() -> bool:
    """Whether `torch.compile` may capture graphs (`BRINGUP_CAPTURE`)."""
    return _CAPTURE.get()


def ops_path() -> dict[Path, str]:
    """Where to look for operator plugins, each place with the variable that names it:
    `BRINGUP_OPS_PATH`.
    """
    return dict.fromkeys(_OPS_PATH.get(), _OPS_PATH.variable)


def driver_path() -> tuple[Path, ...]:
    """The folders that may hold drivers' libraries (`BRINGUP_DRIVER_PATH`)."""
    return _DRIVER_PATH.get()


def native() -> NativeChoice:
    """Whether the library that links libtorch is used (`BRINGUP_NATIVE`)."""
    return _NATIVE.get()


def pass_switch() -> dict[str, bool]:
    """Which passes are switched on or off (`BRINGUP_PASS_SWITCH`); `ALL` means all others."""
    return _PASS_SWITCH.get()


def pass_verify() -> bool:
    """Whether rewrites are run against what they replace (`BRINGUP_PASS_VERIFY`)."""
    return _PASS_VERIFY.get()


def pass_dump() -> Path | None:
    """The folder for graphs before and after passes (`BRINGUP_PASS_DUMP`), or None."""
    return _PASS_DUMP.get()


def pass_limit() -> int | None:
    """How many rewrites may happen in this process (`BRINGUP_PASS_LIMIT`), or None."""
    return _PASS_LIMIT.get()


def engine() -> str:
    """What finds patterns in graphs (`BRINGUP_ENGINE`): "native" or "python"."""
    return _ENGINE.get()


def prepend_pass_path(folder: Path) -> None:
    """Puts `folder` first on `BRINGUP_PASS_PATH`, for this process and those that it starts."""
    others = [path for path in _PASS_PATH.get() if path != folder]
    os.environ[_PASS_PATH.variable] = os.pathsep.join(map(str, (folder, *others)))


def logger(package: str) -> logging.Logger:
    """The logger `bringup.<package>`, its level set as `BRINGUP_LOG` says.

    Where `BRINGUP_LOG` is set, what it asks for reaches stderr; otherwise logging is left as the
    application set it up. Raises `SettingError` for a level that does not exist.
    """
    return _settings.logger(package, _LOG.get())


def launch_blocking() -> bool:
    """Whether every launch is followed by a synchronisation (`BRINGUP_LAUNCH_BLOCKING`)."""
    return _LAUNCH_BLOCKING.get()


def ops_debug() -> bool:
    """Whether operators written in Python are checked for hidden writes (`BRINGUP_OPS_DEBUG`)."""
    return _OPS_DEBUG.get()


def ops_pool() -> bool:
    """Whether kernel operators reuse the memory of small outputs (`BRINGUP_OPS_POOL`)."""
    return _OPS_POOL.get()


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
