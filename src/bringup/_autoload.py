"""What `import torch` calls (entry point group `torch.backends`): loads the driver that
`BRINGUP_DRIVER` names, and does nothing without it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False


def autoload() -> None:
    """Load the driver. Whatever goes wrong becomes one warning: `import torch` has to work."""
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


@contextmanager
def paused() -> Iterator[None]:
    """Within it an import of torch loads no driver."""
    global _paused
    _paused = True
    try:
        yield
    finally:
        _paused = False
