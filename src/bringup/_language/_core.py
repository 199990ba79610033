"""What the language uses of the native core: its opcodes, and functions of libraries. Importing
this raises `NativeLibraryError` when it is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup._native import core

if TYPE_CHECKING:
    from bringup._native._core import (
        Convention,
        NativeExpression,
        NativeParameter,
        Opcode,
        ValueKind,
    )
else:
    Convention = core().Convention
    NativeExpression = core().NativeExpression
    NativeParameter = core().NativeParameter
    Opcode = core().Opcode
    ValueKind = core().ValueKind

__all__ = ["Convention", "NativeExpression", "NativeParameter", "Opcode", "ValueKind"]
