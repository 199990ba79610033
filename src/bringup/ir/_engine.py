"""What ir uses of the native engine. Importing this raises `NativeLibraryError` when it is missing.

There is no graph without it: a second one in Python would be a second truth about edits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup._native import core

if TYPE_CHECKING:
    from bringup._native._core import (
        AliasAnalysisCore,
        EditKind,
        EditList,
        GraphCore,
        NodeBase,
        ValueBase,
        use_ir_types,
        use_symbolic_type,
    )
else:
    EditKind = core().EditKind
    EditList = core().EditList
    GraphCore = core().GraphCore
    NodeBase = core().NodeBase
    AliasAnalysisCore = core().AliasAnalysisCore
    ValueBase = core().ValueBase
    use_ir_types = core().use_ir_types
    use_symbolic_type = core().use_symbolic_type

__all__ = [
    "AliasAnalysisCore",
    "EditKind",
    "EditList",
    "GraphCore",
    "NodeBase",
    "ValueBase",
    "use_ir_types",
    "use_symbolic_type",
]
