"""What torch has to know of the compiler, told once it is imported; nothing here imports it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bringup import passes
from bringup._after_import import after_import
from bringup._autoload import check_options_early

_BACKEND = "bringup.compiler.backend"


def announce() -> None:
    """Make the name "bringup" known to torch.compile also where the package is not installed."""
    after_import("torch", _prepare_torch)
    after_import("torch._dynamo.backends.registry", _register)


def _register() -> None:
    """Register the entry point alone: torch loads it, and refuses a name twice."""
    from importlib.metadata import EntryPoint

    entry = EntryPoint("bringup", f"{_BACKEND}:dynamo_backend", "torch_dynamo_backends")
    registry: Any = sys.modules["torch._dynamo.backends.registry"]
    registry._BACKENDS.setdefault(entry.name, entry)


def _prepare_torch() -> None:
    passes.profile_with(_profiler_range)
    check_options_early()


def _profiler_range(name: str) -> AbstractContextManager[object]:
    """Return a range, none without a profiler: `record_function` costs as much as a pass."""
    torch: Any = sys.modules["torch"]
    if not torch.autograd._profiler_enabled():
        return nullcontext()
    recorded: AbstractContextManager[object] = torch.profiler.record_function(name)
    return recorded
