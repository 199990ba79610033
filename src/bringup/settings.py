"""Settings: every environment variable of bringup, declared and read here and nowhere else.

A setting is called for its value, `settings.jit_timeout()`. It is read at the call, not at import,
so a test or a notebook may change it at any time; `SettingError` names the variable whose text
cannot be read. `table()` is the documentation: `bringup doctor` and the docs print it.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path

from bringup import _settings as parse
from bringup._settings import Setting, inherited, size, without
from bringup.errors import SettingError

# The settings themselves are in ALL.
__all__ = [
    "ALL", "DriverTrace", "Setting", "check", "driver_trace", "driver_trace_environment",
    "inherited", "logger", "named_driver", "ops_path", "pass_path", "prepend_pass_path", "size",
    "table", "without",
]  # fmt: skip

cache_dir = Setting(
    "BRINGUP_CACHE_DIR",
    "folder of the kernel cache",
    "the user's cache folder, e.g. ~/.cache/bringup",
    parse.path,
    parse.default_cache_dir,
)
cache_max_bytes = Setting(
    "BRINGUP_CACHE_MAX_BYTES",
    "what the kernel cache may hold before the kernels used longest ago are removed: bytes, "
    "or a number with K, M or G; 0: no limit",
    "2G",
    lambda text: parse.size(text) or math.inf,
)
cache_max_entries = Setting(
    "BRINGUP_CACHE_MAX_ENTRIES",
    "how many kernels the cache may hold before those used longest ago are removed; 0: no limit",
    "10000",
    lambda text: parse.count(text) or math.inf,
)
cache_remote = Setting(
    "BRINGUP_CACHE_REMOTE",
    "URL of a kernel cache that machines share, for fsspec: s3://..., gs://..., file:///...",
    "none",
    str,
    lambda: "",
)
cache_remote_timeout = Setting(
    "BRINGUP_CACHE_REMOTE_TIMEOUT",
    "seconds that one request to the shared kernel cache may take",
    "2",
    parse.seconds,
)
jit_cxx = Setting(
    "BRINGUP_JIT_CXX",
    "C++ compiler for kernels on cpu",
    "c++, g++ or clang++ on PATH",
    str,
    lambda: "",
)
jit_debug = Setting(
    "BRINGUP_JIT_DEBUG",
    "debug builds of kernels: some of assembly, preprocessed, line_info, address, undefined, "
    "separated by commas",
    "none",
    parse.debug_words,
    lambda: (),
)
jit_timeout = Setting(
    "BRINGUP_JIT_TIMEOUT", "seconds that a compiler may run", "300", parse.seconds
)
jit_memory = Setting(
    "BRINGUP_JIT_MEMORY",
    "address space of each process of a compiler: bytes, or a number with K, M or G; 0: no limit",
    "16G",
    parse.size,
)
jit_file_size = Setting(
    "BRINGUP_JIT_FILE_SIZE",
    "size of each file that a compiler writes: bytes, or a number with K, M or G; 0: no limit",
    "4G",
    parse.size,
)
jit_progress = Setting(
    "BRINGUP_JIT_PROGRESS",
    "0: say nothing on stderr while kernels are compiled or waited for",
    "1",
    parse.switch,
)
jit_autotune = Setting(
    "BRINGUP_JIT_AUTOTUNE",
    "1: what is fastest on this machine is measured and used: tile sizes of templates where "
    "that is asked for, and how frozen weights lie; 0: each template's default, and panels",
    "1, but 0 where CI is set",
    parse.switch,
    lambda: not parse.runs_in_ci(),
)
driver = Setting(
    "BRINGUP_DRIVER",
    "driver that `devices.load_driver()` loads: a name or the path of a shared library",
    "sim",
    str,
)
driver_probe = Setting(
    "BRINGUP_DRIVER_PROBE",
    "0: a driver that is not known yet is loaded without a short test of it in another process",
    "1",
    parse.switch,
)
fallback = Setting(
    "BRINGUP_FALLBACK",
    "operators without a kernel on the device: allow, warn or forbid to run them on the host, "
    "with exceptions, such as `forbid,aten::mm=allow`",
    "allow",
    parse.fallback_policy,
)
dispatch_trace = Setting(
    "BRINGUP_DISPATCH_TRACE",
    "1: the operators that a process calls once it has loaded a driver, with the kernels that "
    "each call passes, as a table on stderr at its end; or a file for them as JSON, x.json, "
    "%p in it is the process's number",
    "none",
    parse.trace_place,
    lambda: None,
)
downcast_float64 = Setting(
    "BRINGUP_DOWNCAST_FLOAT64",
    "float64 on a device without it: error, warn (it is float32 there) or cpu (it stays there)",
    "error",
    parse.float64_policy,
)
wait_timeout = Setting(
    "BRINGUP_WAIT_TIMEOUT",
    "seconds after which a wait for the device raises, and a call of its driver that has not "
    "returned is reported",
    "none",
    parse.seconds,
    lambda: 0.0,
)
wait_abort = Setting(
    "BRINGUP_WAIT_ABORT",
    "1: a call of the driver that has not returned within BRINGUP_WAIT_TIMEOUT ends the process",
    "0",
    parse.switch,
)
_trace_file = Setting(
    "BRINGUP_DRIVER_TRACE",
    "file for every call of the driver and what it answered; %p in it is the process's number",
    "none",
    parse.path,
    lambda: None,
)
_trace_payload = Setting(
    "BRINGUP_DRIVER_TRACE_PAYLOAD",
    "1: a trace of the driver keeps what was copied between host and device, beside the file, "
    "and not only digests of it",
    "0",
    parse.switch,
)
_trace_limit = Setting(
    "BRINGUP_DRIVER_TRACE_LIMIT",
    "what a trace of the driver may take on disk before it ends: bytes, or a number with K, M "
    "or G; 0: no limit",
    "4G",
    parse.size,
)
_pass_path = Setting(
    "BRINGUP_PASS_PATH",
    "folders and files with graph passes, separated like PATH",
    "none",
    parse.paths,
    lambda: (),
)
_ascend_pass_path = Setting(
    "ASCEND_GE_PY_PASS_PATH",
    "the same for passes written for GE; read after BRINGUP_PASS_PATH",
    "none",
    parse.paths,
    lambda: (),
)
pass_library = Setting(
    "BRINGUP_PASS_LIBRARY",
    "0: only passes of your own and of installed plugins, not those that bringup ships",
    "1",
    parse.switch,
)
freeze = Setting(
    "BRINGUP_FREEZE",
    "0: torch.compile freezes no weights, whatever its options say",
    "1",
    parse.switch,
)
capture = Setting(
    "BRINGUP_CAPTURE",
    "0: torch.compile captures no graphs, whatever its options say",
    "1",
    parse.switch,
)
capture_memory = Setting(
    "BRINGUP_CAPTURE_MEMORY",
    "what captures of compiled functions may hold on one device, copies of inputs among it: bytes, "
    "or a number with K, M or G; those used longest ago make room; "
    "0: no limit",
    "a quarter of the device's memory",
    parse.size,
    lambda: -1,
)
graph_optimize = Setting(
    "BRINGUP_GRAPH_OPTIMIZE",
    "how captured graphs replay where `CapturedGraph(optimize=...)` does not say: 0, every "
    "operator as torch calls it; 1, kernels of torch are called with what was prepared once; 2, "
    "besides, consecutive elementwise operators are compiled into functions in the background",
    "1",
    parse.level,
)
graph_verify = Setting(
    "BRINGUP_GRAPH_VERIFY",
    "every so many-th replay of a captured graph does what levels 1 and 2 run at the levels below "
    "too, and raises where the bits differ (slow; where the device runs generated kernels, it is "
    "waited for); 0: none",
    "0",
    parse.number,
)
pass_switch = Setting(
    "BRINGUP_PASS_SWITCH",
    "passes switched on or off by name, ALL for all others: `ALL:off,Name:on`, or the path of "
    'a JSON file such as {"ALL": "off", "Name": "on"}',
    "all on",
    parse.switches,
    dict[str, bool],
)
pass_verify = Setting(
    "BRINGUP_PASS_VERIFY",
    "1: every rewrite of a pass is run against what it replaces, on random inputs (slow)",
    "0",
    parse.switch,
)
pass_dump = Setting(
    "BRINGUP_PASS_DUMP",
    "folder for the graph before and after every pass that changed it, as text and DOT",
    "none",
    parse.path,
    lambda: None,
)
pass_limit = Setting(
    "BRINGUP_PASS_LIMIT",
    "how many rewrites passes may make in this process, to find a wrong one",
    "no limit",
    parse.number,
    lambda: None,
)
_ops_path = Setting(
    "BRINGUP_OPS_PATH",
    "folders and files that define operators, separated like PATH; read by `ops.load_op_plugins()`",
    "none",
    parse.paths,
    lambda: (),
)
driver_path = Setting(
    "BRINGUP_DRIVER_PATH",
    "folders in which `devices.load_driver(name)` looks for lib<name>.so, separated like PATH",
    "none",
    parse.paths,
    lambda: (),
)
native = Setting(
    "BRINGUP_NATIVE",
    "what links libtorch: auto (found by torch version, else built once, else done without), "
    "1 (an error where there is none), 0 (done without: kernel operators do not run)",
    "auto",
    parse.native_choice,
)
_log = Setting(
    "BRINGUP_LOG",
    "what to log to stderr: a level (debug, info, warning, error), or package:level pairs "
    "like jit:debug,passes:info; passes:json prints what passes do as one line of JSON an "
    "event",
    "warning",
    parse.log_levels,
    dict[str, int],
)
collectives = Setting(
    "BRINGUP_COLLECTIVES",
    "what computes those of torch.distributed: driver (its own, where it has them; gloo the rest), "
    "gloo (all, on the host); the same on every rank",
    "driver",
    parse.collectives,
)
launch_blocking = Setting(
    "BRINGUP_LAUNCH_BLOCKING",
    "1: wait for the device after every launch, so that an error is raised where it was caused",
    "0",
    parse.switch,
)
ops_debug = Setting(
    "BRINGUP_OPS_DEBUG",
    "1: check operators written in Python for writes that their schema does not declare "
    "(slow); read when `bringup.ops` is imported",
    "0",
    parse.switch,
)
ops_pool = Setting(
    "BRINGUP_OPS_POOL",
    "1: kernel operators on cpu keep the memory of freed outputs of up to 512 bytes for the "
    "next ones; read when the first operator is defined",
    "1",
    parse.switch,
)
sim_memory = Setting(
    "BRINGUP_SIM_MEMORY",
    "memory of each simulated device: bytes, or a number with K, M or G (read by the driver)",
    "4G",
    parse.memory,
)
sim_isolated = Setting(
    "BRINGUP_SIM_ISOLATED",
    "1: the host cannot touch simulated device memory, as on most hardware (read by the driver)",
    "0",
    parse.switch,
)
sim_host_code = Setting(
    "BRINGUP_SIM_HOST_CODE",
    "0: simulated devices say that they do not run the host's code, as most hardware: kernels of "
    "operators then get plain values (read by the driver)",
    "1",
    parse.switch,
)
sim_records = Setting(
    "BRINGUP_SIM_RECORDS",
    "how many records of its work a simulated device keeps for the profiler; further ones are "
    "lost and counted (read by the driver)",
    "1048576",
    parse.number,
    lambda: 1_048_576,
)
sim_archs = Setting(
    "BRINGUP_SIM_ARCHS",
    "what compilers call each simulated device, separated by commas, to try devices that need "
    "code of their own, such as sim-1,sim-2 (read by the driver)",
    "sim-1,sim-1",
    str,
    lambda: "",
)
sim_faults = Setting(
    "BRINGUP_SIM_FAULTS",
    "what fails on the simulated NPU, KEY=VALUE separated by commas, such as "
    "oom_after=10,copy_latency_us=200; the keys are those of devices.sim.faults, and "
    "hidden_dtypes (read by the driver)",
    "none",
    str,
    lambda: "",
)

ALL: tuple[Setting[object], ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Setting)
)


def named_driver() -> str | None:
    """Return the driver that `BRINGUP_DRIVER` names; None where it is left to its default."""
    return driver() if os.environ.get(driver.variable, "").strip() else None


def pass_path() -> dict[Path, str]:
    """Return the places of pass plugins with the variables that name them."""
    found = dict.fromkeys(_pass_path(), _pass_path.variable)
    for path in _ascend_pass_path():
        found.setdefault(path, _ascend_pass_path.variable)
    return found


def ops_path() -> dict[Path, str]:
    """Return where to look for operator plugins, each place with the variable that names it."""
    return dict.fromkeys(_ops_path(), _ops_path.variable)


def prepend_pass_path(folder: Path) -> None:
    """Put `folder` first on `BRINGUP_PASS_PATH`, for this process and those that it starts."""
    others = [path for path in _pass_path() if path != folder]
    os.environ[_pass_path.variable] = os.pathsep.join(map(str, (folder, *others)))


@dataclass(frozen=True)
class DriverTrace:
    """Where the calls of the driver are written.

    Attributes:
        file: the trace; "%p" in it stands for the process's number.
        payload: whether the bytes of copies are kept beside it.
        limit: bytes that it may take on disk, or None.
    """

    file: Path
    payload: bool
    limit: int | None


def driver_trace() -> DriverTrace | None:
    """Return what `BRINGUP_DRIVER_TRACE`, `..._PAYLOAD` and `..._LIMIT` ask for; None: no trace."""
    file = _trace_file()
    return None if file is None else DriverTrace(file.absolute(), _trace_payload(), _trace_limit())


def driver_trace_environment(asked: DriverTrace) -> dict[str, str]:
    """Return the variables by which a process that is started traces its driver as `asked`."""
    return {
        _trace_file.variable: str(asked.file),
        _trace_payload.variable: str(int(asked.payload)),
        _trace_limit.variable: str(asked.limit or 0),
    }


def logger(package: str) -> logging.Logger:
    """Return the logger `bringup.<package>`, its level set as `BRINGUP_LOG` says.

    Where `BRINGUP_LOG` is set, what it asks for reaches stderr; otherwise logging is left as the
    application set it up.
    """
    return parse.logger(package, _log())


def check() -> None:
    """Raise `SettingError` for the first setting whose text cannot be read."""
    for setting in ALL:
        setting()


def table() -> list[dict[str, str]]:
    """Return a row for every setting: variable, meaning, default, current text and problem."""
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


def _problem(setting: Setting[object]) -> str:
    try:
        setting()
    except SettingError as error:
        return str(error)
    return ""
