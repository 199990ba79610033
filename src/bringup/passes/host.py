"""What `libbringup_bridge.so` calls: rounds of passes for programs that are not Python.

A round begins with what the environment says now, and ends with its passes forgotten; the
interpreter stays. Arguments are bytes, as the program has them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import threading
import traceback
from types import TracebackType

from bringup import settings
from bringup.passes.engine import PassRegistration, native
from bringup.passes.registry import loader, registry
from bringup.passes.run import host_session

__all__ = ["begin_round", "describe_error", "end_round", "name_threads", "prepare_environment"]

_LOG = settings.logger("passes")
_ROUND = threading.RLock()
_added_paths: list[str] = []
_module_passes: list[str] = []


def begin_round(
    environment: bytes,
    sys_path: bytes,
    pass_path: bytes,
    modules: bytes,
    build_key: bytes,
    time_limit: float,
) -> int:
    r"""Find and register passes; return how many are written in Python.

    Args:
        environment: `NAME=value`, separated by NUL: the process's own, now.
        sys_path, pass_path: folders and files, separated by `:`.
        modules: separated by `,`.
        build_key: of the bridge.
        time_limit: seconds for one pass on one graph; 0 for none.

    Raises `PluginError` when a pass cannot be loaded, and `ImportError` when bridge and package are
    not of one build; nothing is registered then.
    """
    if native.build_key() != build_key.decode():
        raise ImportError(
            f"the bridge was built with the key {build_key.decode()}, {native.__file__} with "
            f"{native.build_key()}: take both from one package"
        )
    with _ROUND:
        end_round()
        prepare_environment(environment, sys_path)
        host_session.use_time_limit(time_limit)
        try:
            _import_modules([name for name in os.fsdecode(modules).split(",") if name])
            places = [place for place in os.fsdecode(pass_path).split(os.pathsep) if place]
            found = loader.load_pass_plugins(*places, library=False)
            if found.errors:
                raise found.errors[0]
        except BaseException:
            end_round()
            raise
        native.serve_programs(host_session)
        return sum(item.of_python for item in native.registered_passes())


def end_round() -> int:
    """Forget the passes of the round and their modules; libraries in C and C++ stay. Returns 0."""
    with _ROUND:
        native.leave_programs()
        loader.unload_pass_plugins(keep_libraries=True)
        _forget_modules()
        _remove_paths()
        gc.collect()
        return 0


atexit.register(end_round)  # the program may end its interpreter without telling the engine


def name_threads() -> int:
    """Return how many threads an interpreter that is about to end will wait for; warn of them."""
    waits_for = [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread not in (threading.current_thread(), threading.main_thread())
    ]
    if waits_for:
        _LOG.warning(
            "python_shutdown waits for threads that passes have started: %s; end them when passes "
            "are unloaded, or make them daemons",
            ", ".join(waits_for),
        )
    return len(waits_for)


def prepare_environment(environment: bytes, sys_path: bytes) -> None:
    r"""Let `os.environ` and `sys.path` be what the program has and asks for now.

    Args:
        environment: `NAME=value`, separated by NUL: the process's own, now.
        sys_path: folders, separated by `:`; those of an earlier call leave `sys.path`.
    """
    _remove_paths()
    current = dict(entry.partition(b"=")[::2] for entry in environment.split(b"\0") if entry)
    for name in [name for name in os.environb if name not in current]:
        del os.environb[name]
    for name, value in current.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
    python_path = os.fsdecode(current.get(b"PYTHONPATH", b""))
    wanted = [*os.fsdecode(sys_path).split(os.pathsep), *python_path.split(os.pathsep)]
    for folder in dict.fromkeys(filter(None, wanted)):
        if folder not in sys.path:
            sys.path.insert(len(_added_paths), folder)
            _added_paths.append(folder)
    importlib.invalidate_caches()


def describe_error(error: BaseException, trace: TracebackType | None = None) -> str:
    r"""Return an exception for a program that is not Python: what it says, then its traceback.

    Args:
        error: what was raised.
        trace: where; that of the error by default.
    """
    lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    return f"{type(error).__name__}: {error}\n{''.join(lines)}".rstrip()


def _import_modules(names: list[str]) -> None:
    for name in names:
        with registry.collecting() as registered:
            if name not in sys.modules:
                _module_passes.append(name)
            loader.import_pass_module(name)
        _REGISTERED.extend(registered)


_REGISTERED: list[PassRegistration] = []


def _forget_modules() -> None:
    if _REGISTERED:
        native.forget_passes(list(_REGISTERED))
    _REGISTERED.clear()
    while _module_passes:
        sys.modules.pop(_module_passes.pop(), None)


def _remove_paths() -> None:
    for folder in _added_paths:
        if folder in sys.path:
            sys.path.remove(folder)
    _added_paths.clear()
