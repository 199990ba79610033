"""What `import torch` calls (`torch.backends`): watch torch.compile's options, load the driver."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_paused = False
_checks_options = False


def autoload() -> None:
    """Do both. A driver's error becomes one warning: `import torch` has to work."""
    check_options_early()
    if _paused or not os.environ.get("BRINGUP_DRIVER"):  # bringup.settings would be imported else
        return
    try:
        importlib.import_module("bringup.devices").load_driver()
    except Exception as error:
        import warnings

        warnings.warn(
            f"bringup did not load the driver that BRINGUP_DRIVER names: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


def check_options_early() -> None:
    """Raise for wrong options in `torch.compile`; torch passes them on at the first graph."""
    global _checks_options
    if _checks_options:
        return
    _checks_options = True
    wrapper: Any = sys.modules["torch"]._TorchCompileWrapper
    begin = wrapper.__init__

    @functools.wraps(begin)
    def begin_checked(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin(self, *arguments, **keywords)  # imports the backend that it names
        backend = sys.modules.get("bringup.compiler.backend")
        if backend is not None and self.compiler_fn is backend.dynamo_backend:
            backend.CompileOptions.parse(self.kwargs.get("options"), self.kwargs.get("mode"))

    wrapper.__init__ = begin_checked


@contextmanager
def paused() -> Iterator[None]:
    """Within it an import of torch loads no driver."""
    global _paused
    _paused = True
    try:
        yield
    finally:
        _paused = False
