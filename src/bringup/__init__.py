"""bringup: from a bare C driver or a kernel file to a compiled, captured, fast PyTorch model.

Importing this package is cheap: no torch, no native library, nothing of the PrivateUse1 slot is
touched until a system is used. In reading order: `jit`, `ops`, `devices`, `graphs`, `ir`,
`passes`, `kernels`, `compiler`, `conformance`.
"""

from __future__ import annotations

from bringup._device_attributes import GRAPHS, register_module_attribute, use_code_generator
from bringup._version import __version__

TYPE_CHECKING = False  # importing `typing` for it takes most of the time of this import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bringup import (
        cli,
        compiler,
        conformance,
        devices,
        errors,
        graphs,
        ir,
        jit,
        kernels,
        ops,
        passes,
        plugins,
        settings,
    )

__all__ = [
    "__version__", "cli", "compiler", "conformance", "devices", "errors", "graphs", "ir", "jit",
    "kernels", "ops", "passes", "plugins", "settings",
]  # fmt: skip


def _imported(name: str) -> ModuleType:
    import importlib

    return importlib.import_module(f"bringup.{name}")


if not TYPE_CHECKING:

    def __getattr__(name):
        if name in __all__:
            return _imported(name)
        raise AttributeError(f"module 'bringup' has no attribute {name!r}")


def _of_graphs(name: str) -> Callable[[], object]:
    return lambda: getattr(_imported("graphs"), name)


for _attribute, _name in GRAPHS.items():
    register_module_attribute(_attribute, _of_graphs(_name))
use_code_generator(lambda name: _imported("compiler.inductor.registration").register(name))


def __dir__() -> list[str]:
    return sorted(__all__)
