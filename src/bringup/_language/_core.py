"""What is taken from the native core of how kernels are called: the language's opcodes, functions
of libraries, and the kinds that contracts, variants and gradients consist of. Importing this raises
`NativeLibraryError` when it is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup._native import core

if TYPE_CHECKING:
    from bringup._native._core import (
        DTYPE_BITS,
        FIELD_BITS,
        LAYOUT_BITS,
        CheckKind,
        Convention,
        KeyFieldKind,
        Layout,
        NativeExpression,
        NativeLaunchSize,
        NativeParameter,
        Opcode,
        SourceKind,
        ValueKind,
    )
else:
    DTYPE_BITS = core().DTYPE_BITS
    FIELD_BITS = core().FIELD_BITS
    LAYOUT_BITS = core().LAYOUT_BITS
    CheckKind = core().CheckKind
    Convention = core().Convention
    KeyFieldKind = core().KeyFieldKind
    Layout = core().Layout
    NativeExpression = core().NativeExpression
    NativeLaunchSize = core().NativeLaunchSize
    NativeParameter = core().NativeParameter
    Opcode = core().Opcode
    SourceKind = core().SourceKind
    ValueKind = core().ValueKind

__all__ = [
    "DTYPE_BITS",
    "FIELD_BITS",
    "LAYOUT_BITS",
    "CheckKind",
    "Convention",
    "KeyFieldKind",
    "Layout",
    "NativeExpression",
    "NativeLaunchSize",
    "NativeParameter",
    "Opcode",
    "SourceKind",
    "ValueKind",
]
