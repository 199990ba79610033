"""Kernel operators without the library that links libtorch: defined, traced, exported and compiled
as always; the first call that would run a kernel raises what is missing, why, and what to do.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from bringup._native import torch_library
from bringup.ops.schema.schema import Schema


class UnavailableOperator:
    """The callable of such an operator; a type of its own, so that it is pickled by name."""

    def __init__(self, schema: Schema, overload: Any, library: torch.library.Library) -> None:
        self._overload = overload
        self._feature = schema.qualified_name
        self.__name__ = self.__qualname__ = schema.name.partition("::")[2]
        self.__text_signature__ = schema.signature()
        bare = schema.qualified_name.partition("::")[2]
        library.impl(bare, self._refuse, "CompositeExplicitAutograd")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator: fake and meta tensors have results, others raise."""
        return self._overload(*args, **kwargs)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        torch_library(self._feature)
        raise AssertionError("the library is there after all")  # decided once a process
