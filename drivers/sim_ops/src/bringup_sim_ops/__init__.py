"""Operators of the simulated NPU: C++ kernels for what a training step calls most.

`load()` registers them with `devices.kernel`; until then, and for what they do not support, the
device's operators fall back. A real device's package looks like this one: kernels over
`bringup/kernel.h`, a table, no torch in C++.
"""

from __future__ import annotations

from bringup_sim_ops._load import load, unload
from bringup_sim_ops._operators import OPERATORS, Operator

__all__ = ["OPERATORS", "Operator", "load", "unload"]
