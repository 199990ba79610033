"""The compiler options of the shipped kernels, beyond those of every kernel."""

from __future__ import annotations

__all__ = ["CONTRACTED"]

# A shipped kernel is held to a tolerance (docs/numerics.md): `a * b + c` may be rounded once.
CONTRACTED = ("-ffp-contract=fast",)
