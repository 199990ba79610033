"""Every environment variable of bringup: its name, meaning, default and parser.

`bringup.settings` reads them and is what other modules ask.
"""

from __future__ import annotations

from bringup import _settings, _trace_settings
from bringup._settings import Setting

__all__ = [
    "ALL",
    "ASCEND_PASS_PATH",
    "CACHE_DIR",
    "CACHE_MAX_BYTES",
    "CACHE_MAX_ENTRIES",
    "CACHE_REMOTE",
    "CACHE_REMOTE_TIMEOUT",
    "CAPTURE",
    "DISPATCH_TRACE",
    "DOWNCAST_FLOAT64",
    "DRIVER",
    "DRIVER_PATH",
    "DRIVER_PROBE",
    "ENGINE",
    "FALLBACK",
    "FREEZE",
    "JIT_AUTOTUNE",
    "JIT_CXX",
    "JIT_DEBUG",
    "JIT_FILE_SIZE",
    "JIT_MEMORY",
    "JIT_PROGRESS",
    "JIT_TIMEOUT",
    "LAUNCH_BLOCKING",
    "LOG",
    "NATIVE",
    "OPS_DEBUG",
    "OPS_PATH",
    "OPS_POOL",
    "PASS_DUMP",
    "PASS_LIBRARY",
    "PASS_LIMIT",
    "PASS_PATH",
    "PASS_SWITCH",
    "PASS_VERIFY",
    "SIM_FAULTS",
    "SIM_ISOLATED",
    "SIM_MEMORY",
    "SIM_RECORDS",
    "WAIT_ABORT",
    "WAIT_TIMEOUT",
]

CACHE_DIR = Setting(
    "BRINGUP_CACHE_DIR",
    "folder of the kernel cache",
    "the user's cache folder, e.g. ~/.cache/bringup",
    _settings.default_cache_dir,
    _settings.path,
)
CACHE_MAX_BYTES = Setting(
    "BRINGUP_CACHE_MAX_BYTES",
    "what the kernel cache may hold before the kernels used longest ago are removed: bytes, or a "
    "number with K, M or G; 0: no limit",
    "2G",
    lambda: 2 * 2**30,
    _settings.size,
)
CACHE_MAX_ENTRIES = Setting(
    "BRINGUP_CACHE_MAX_ENTRIES",
    "how many kernels the cache may hold before those used longest ago are removed; 0: no limit",
    "10000",
    lambda: 10_000,
    _settings.count,
)
CACHE_REMOTE = Setting(
    "BRINGUP_CACHE_REMOTE",
    "URL of a kernel cache that machines share, for fsspec: s3://..., gs://..., file:///...",
    "none",
    lambda: "",
    str,
)
CACHE_REMOTE_TIMEOUT = Setting(
    "BRINGUP_CACHE_REMOTE_TIMEOUT",
    "seconds that one request to the shared kernel cache may take",
    "2",
    lambda: 2.0,
    _settings.seconds,
)
JIT_CXX = Setting(
    "BRINGUP_JIT_CXX",
    "C++ compiler for kernels on cpu",
    "c++, g++ or clang++ on PATH",
    lambda: "",
    str,
)
JIT_DEBUG = Setting(
    "BRINGUP_JIT_DEBUG",
    "debug builds of kernels: some of assembly, preprocessed, line_info, address, undefined, "
    "separated by commas",
    "none",
    lambda: (),
    _settings.debug_words,
)
JIT_TIMEOUT = Setting(
    "BRINGUP_JIT_TIMEOUT",
    "seconds that a compiler may run",
    "300",
    lambda: 300.0,
    _settings.seconds,
)
JIT_MEMORY = Setting(
    "BRINGUP_JIT_MEMORY",
    "address space of each process of a compiler: bytes, or a number with K, M or G; 0: no limit",
    "16G",
    lambda: 16 * 2**30,
    _settings.size,
)
JIT_FILE_SIZE = Setting(
    "BRINGUP_JIT_FILE_SIZE",
    "size of each file that a compiler writes: bytes, or a number with K, M or G; 0: no limit",
    "4G",
    lambda: 4 * 2**30,
    _settings.size,
)
JIT_PROGRESS = Setting(
    "BRINGUP_JIT_PROGRESS",
    "0: say nothing on stderr while kernels are compiled or waited for",
    "1",
    lambda: True,
    _settings.switch,
)
JIT_AUTOTUNE = Setting(
    "BRINGUP_JIT_AUTOTUNE",
    "1: what is fastest on this machine is measured and used: tile sizes of templates where that "
    "is asked for, and how frozen weights lie; 0: each template's default, and panels",
    "1, but 0 where CI is set",
    lambda: not _settings.runs_in_ci(),
    _settings.switch,
)
DRIVER = Setting(
    "BRINGUP_DRIVER",
    "driver that `devices.load_driver()` loads: a name or the path of a shared library",
    "sim",
    lambda: "sim",
    str,
)
DRIVER_PROBE = Setting(
    "BRINGUP_DRIVER_PROBE",
    "0: a driver that is not known yet is loaded without a short test of it in another process",
    "1",
    lambda: True,
    _settings.switch,
)
FALLBACK = Setting(
    "BRINGUP_FALLBACK",
    "operators without a kernel on the device: allow, warn or forbid to run them on the host, with"
    " exceptions, such as `forbid,aten::mm=allow`",
    "allow",
    lambda: ("allow", {}),
    _settings.fallback_policy,
)
DISPATCH_TRACE = Setting(
    "BRINGUP_DISPATCH_TRACE",
    "1: the operators that a process calls once it has loaded a driver, with the kernels that each"
    " call passes, as a table on stderr at its end; or a file for them as JSON, x.json, %p in it is"
    " the process's number",
    "none",
    lambda: None,
    _settings.trace_place,
)
DOWNCAST_FLOAT64 = Setting(
    "BRINGUP_DOWNCAST_FLOAT64",
    "float64 on a device without it: error, warn (it is float32 there) or cpu (it stays there)",
    "error",
    lambda: "error",
    _settings.float64_policy,
)
WAIT_TIMEOUT = Setting(
    "BRINGUP_WAIT_TIMEOUT",
    "seconds after which a wait for the device raises, and a call of its driver that has not"
    " returned is told",
    "none",
    lambda: 0.0,
    _settings.seconds,
)
WAIT_ABORT = Setting(
    "BRINGUP_WAIT_ABORT",
    "1: a call of the driver that has not returned within BRINGUP_WAIT_TIMEOUT ends the process",
    "0",
    lambda: False,
    _settings.switch,
)
PASS_PATH = Setting(
    "BRINGUP_PASS_PATH",
    "folders and files with graph passes, separated like PATH",
    "none",
    lambda: (),
    _settings.paths,
)
ASCEND_PASS_PATH = Setting(
    "ASCEND_GE_PY_PASS_PATH",
    "the same for passes written for GE; read after BRINGUP_PASS_PATH",
    "none",
    lambda: (),
    _settings.paths,
)
PASS_LIBRARY = Setting(
    "BRINGUP_PASS_LIBRARY",
    "0: only passes of your own and of installed plugins, not those that bringup ships",
    "1",
    lambda: True,
    _settings.switch,
)
FREEZE = Setting(
    "BRINGUP_FREEZE",
    "0: torch.compile freezes no weights, whatever its options say",
    "1",
    lambda: True,
    _settings.switch,
)
CAPTURE = Setting(
    "BRINGUP_CAPTURE",
    "0: torch.compile captures no graphs, whatever its options say",
    "1",
    lambda: True,
    _settings.switch,
)
PASS_SWITCH = Setting(
    "BRINGUP_PASS_SWITCH",
    "passes switched on or off by name, ALL for all others: `ALL:off,Name:on`, or the path of a "
    'JSON file such as {"ALL": "off", "Name": "on"}',
    "all on",
    dict[str, bool],
    _settings.switches,
)
PASS_VERIFY = Setting(
    "BRINGUP_PASS_VERIFY",
    "1: every rewrite of a pass is run against what it replaces, on random inputs (slow)",
    "0",
    lambda: False,
    _settings.switch,
)
PASS_DUMP = Setting(
    "BRINGUP_PASS_DUMP",
    "folder for the graph before and after every pass that changed it, as text and DOT",
    "none",
    lambda: None,
    _settings.optional_path,
)
PASS_LIMIT = Setting(
    "BRINGUP_PASS_LIMIT",
    "how many rewrites passes may make in this process, to find a wrong one",
    "no limit",
    lambda: None,
    _settings.number,
)
OPS_PATH = Setting(
    "BRINGUP_OPS_PATH",
    "folders and files that define operators, separated like PATH; read by `ops.load_op_plugins()`",
    "none",
    lambda: (),
    _settings.paths,
)
DRIVER_PATH = Setting(
    "BRINGUP_DRIVER_PATH",
    "folders in which `devices.load_driver(name)` looks for lib<name>.so, separated like PATH",
    "none",
    lambda: (),
    _settings.paths,
)
NATIVE = Setting(
    "BRINGUP_NATIVE",
    "what links libtorch: auto (found by torch version, else built once, else done without), "
    "1 (no operators without it), 0 (done without: operators run through Python)",
    "auto",
    lambda: "auto",
    _settings.native_choice,
)
ENGINE = Setting(
    "BRINGUP_ENGINE",
    "what finds patterns in graphs: native, or python for the reference that it is tested against "
    "(slow)",
    "native",
    lambda: "native",
    _settings.engine,
)
LOG = Setting(
    "BRINGUP_LOG",
    "what to log to stderr: a level (debug, info, warning, error), or package:level pairs like "
    "jit:debug,passes:info; passes:json prints what passes do as one line of JSON an event",
    "warning",
    dict[str, int],
    _settings.log_levels,
)
LAUNCH_BLOCKING = Setting(
    "BRINGUP_LAUNCH_BLOCKING",
    "1: wait for the device after every launch, so that an error is raised where it was caused",
    "0",
    lambda: False,
    _settings.switch,
)
OPS_DEBUG = Setting(
    "BRINGUP_OPS_DEBUG",
    "1: check operators written in Python for writes that their schema does not declare (slow); "
    "read when `bringup.ops` is imported",
    "0",
    lambda: False,
    _settings.switch,
)
OPS_POOL = Setting(
    "BRINGUP_OPS_POOL",
    "1: kernel operators on cpu keep the memory of freed outputs of up to 512 bytes for the next "
    "ones; read when the first operator is defined",
    "1",
    lambda: True,
    _settings.switch,
)
# The simulated NPU's library reads these itself, once, when it is loaded.
SIM_MEMORY = Setting(
    "BRINGUP_SIM_MEMORY",
    "memory of each simulated device: bytes, or a number with K, M or G (read by the driver)",
    "4G",
    lambda: "4G",
    _settings.memory,
)
SIM_ISOLATED = Setting(
    "BRINGUP_SIM_ISOLATED",
    "1: the host cannot touch simulated device memory, as on most hardware (read by the driver)",
    "0",
    lambda: False,
    _settings.switch,
)
SIM_RECORDS = Setting(
    "BRINGUP_SIM_RECORDS",
    "how many records of its work a simulated device keeps for the profiler; further ones are lost "
    "and counted (read by the driver)",
    "1048576",
    lambda: 1_048_576,
    _settings.number,
)
SIM_FAULTS = Setting(
    "BRINGUP_SIM_FAULTS",
    "what fails on the simulated NPU, KEY=VALUE separated by commas, such as "
    "oom_after=10,copy_latency_us=200; the keys are those of devices.sim.faults, and hidden_dtypes "
    "(read by the driver)",
    "none",
    lambda: "",
    str,
)

ALL: tuple[Setting[object], ...] = (
    CACHE_DIR,
    CACHE_MAX_BYTES,
    CACHE_MAX_ENTRIES,
    CACHE_REMOTE,
    CACHE_REMOTE_TIMEOUT,
    JIT_CXX,
    JIT_DEBUG,
    JIT_TIMEOUT,
    JIT_MEMORY,
    JIT_FILE_SIZE,
    JIT_PROGRESS,
    JIT_AUTOTUNE,
    DRIVER,
    DRIVER_PROBE,
    FALLBACK,
    DISPATCH_TRACE,
    DOWNCAST_FLOAT64,
    WAIT_TIMEOUT,
    WAIT_ABORT,
    _trace_settings.FILE,
    _trace_settings.PAYLOAD,
    _trace_settings.LIMIT,
    PASS_PATH,
    ASCEND_PASS_PATH,
    PASS_LIBRARY,
    FREEZE,
    CAPTURE,
    PASS_SWITCH,
    PASS_VERIFY,
    PASS_DUMP,
    PASS_LIMIT,
    OPS_PATH,
    DRIVER_PATH,
    NATIVE,
    ENGINE,
    LOG,
    LAUNCH_BLOCKING,
    OPS_DEBUG,
    OPS_POOL,
    SIM_MEMORY,
    SIM_ISOLATED,
    SIM_RECORDS,
    SIM_FAULTS,
)  # type: ignore[assignment]
