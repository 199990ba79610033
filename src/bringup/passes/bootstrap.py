"""The names of GE's `ge.passes.bootstrap`, for ports: loading plugins, and passes as dicts."""

from __future__ import annotations

from bringup.passes.registry.loader import load_pass_plugins
from bringup.passes.registry.registry import get_registered_pass_dicts as get_registered_passes

__all__ = ["ENV_PY_PASS_PATH", "get_registered_passes", "load_pass_plugins"]

ENV_PY_PASS_PATH = "ASCEND_GE_PY_PASS_PATH"
"""The environment variable with GE's plugin path; `BRINGUP_PASS_PATH` is read before it."""
