"""Kernels at the wrong time: a miss while frozen, a compile after warm-up, and what mends them."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from bringup import settings
from bringup.errors import MissingKernelError
from bringup.jit.files.layout import StoreUnwritableError
from bringup.jit.lookup import events
from bringup.jit.lookup.difference import nearest
from bringup.jit.lookup.spec import Spec, save_specs
from bringup.jit.store.active_cache import cache
from bringup.jit.store.cache import Cache

if TYPE_CHECKING:
    from bringup.jit.builder.request import Request


# Fields of a key record: what only a build knows, and what is known without a compiler.
_READ = {"headers", "inputs", "probes", "names"}
_OF_THE_REQUEST = {"source", "language", "entry", "abi", "kind", "macros", "target", "debug"}

_log = settings.logger("jit")
_marking = threading.Lock()
_unsubscribe: Callable[[], None] | None = None  # while the warm-up has ended


def missing_kernel(request: Request, source_digest: str, store: Cache) -> MissingKernelError:
    """Return the error for a kernel that is needed and may not be compiled now."""
    spec = Spec.of(request)
    command = prebuild_command(spec, request.key(source_digest), store)
    return MissingKernelError(
        "compiling is frozen (jit.freeze or jit.frozen), and the cache at "
        f"{store.root} has no kernel for: {request}.\n"
        f"{_compared(request, source_digest, store)}\n"
        f"Build it beforehand with: {command}",
        spec=spec,
        command=command,
    )


def prebuild_command(spec: Spec, key: str, store: Cache) -> str:
    """Return a command that builds `spec` into this cache, by a file in it or by itself."""
    variables = settings.inherited("BRINGUP_CACHE_DIR", "BRINGUP_JIT_CXX")
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    python = shlex.quote(sys.executable or "python")
    try:
        path = store.layout.folder(".missing") / f"{key}.json"
        save_specs(path, [spec])
        words += [python, "-m", "bringup", "cache", "prebuild", shlex.quote(str(path))]
    except (OSError, StoreUnwritableError):
        code = f"from bringup import jit; jit.prebuild([{spec!r}]).check()"
        words += [python, "-c", shlex.quote(code)]
    return " ".join(words)


def _compared(request: Request, source_digest: str, store: Cache, *, built: str = "") -> str:
    """Return how the nearest entry differs; files are known only of built ones."""
    asked = request.record(source_digest)
    fields = _OF_THE_REQUEST if not request.toolchain.compiler else asked.keys() - _READ
    record = {field: asked[field] for field in asked if field in fields}
    found = nearest(store, request.source.name, record, but=built)
    if found is None:
        return f"The cache has no other kernel of {request.source.name}."
    key, differing = found
    how = "; ".join(map(str, differing)) or "another content of a header or library"
    return f"Nearest is {key[:12]}, from which it differs in: {how}."


def end_warmup() -> None:
    """Say that every kernel this process needs has been compiled. From here on each compile is
    logged as a warning that says what differs from the nearest kernel in the cache.

    Nothing is refused: `jit.freeze` does that.
    """
    global _unsubscribe
    with _marking:
        if _unsubscribe is None:
            _unsubscribe = events.subscribe(_report, events.CompileFinished)


def resume_warmup() -> None:
    """Take `end_warmup` back."""
    global _unsubscribe
    with _marking:
        if _unsubscribe is not None:
            _unsubscribe()
            _unsubscribe = None


def _report(event: events.Event) -> None:
    assert isinstance(event, events.CompileFinished)
    store, request = cache(), event.request
    hit = store.lookup(event.key)
    _log.warning(
        "compiled after warm-up, in %.2f s: %s. %s Have it built beforehand: record such a run "
        "with jit.record, and give the specs to jit.prebuild or `bringup cache prebuild`",
        event.seconds,
        request,
        _compared(request, request.source.digest(), store, built=hit.key if hit else ""),
    )
