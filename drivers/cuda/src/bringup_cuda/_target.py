"""The jit target `nv`: device code in CUDA C++ for the driver's devices, a cubin built by NVRTC.

Importing this registers the target. A host entry in CUDA C++ is target `cuda`'s.
"""

from __future__ import annotations

from pathlib import Path

from bringup import jit

__all__ = ["NvTarget"]


class NvTarget(jit.CudaTarget):
    """`nv`, for other architectures than `sm_90` `nv:sm_80`, as the `arch` of a device says."""

    host_library = False
    models = True

    def __init__(self, name: str = "nv", architectures: tuple[str, ...] = ("sm_90",)) -> None:
        """`architectures`: one, as nvcc calls it."""
        super().__init__(name, architectures)

    def check_loadable(self, path: Path, debug: jit.Debug) -> None:
        """Do nothing: the driver says what it cannot load."""


jit.register_target(NvTarget())
