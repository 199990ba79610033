"""What ir uses of the native engine. Importing it raises `NativeLibraryError` without it."""

from __future__ import annotations

from bringup._native import core

core()  # says what is wrong with it, where something is

from bringup._native._core import AliasAnalysisCore as AliasAnalysisCore  # noqa: E402
from bringup._native._core import EditKind as EditKind  # noqa: E402
from bringup._native._core import EditList as EditList  # noqa: E402
from bringup._native._core import GraphCore as GraphCore  # noqa: E402
from bringup._native._core import NodeBase as NodeBase  # noqa: E402
from bringup._native._core import ValueBase as ValueBase  # noqa: E402
from bringup._native._core import use_ir_types as use_ir_types  # noqa: E402
from bringup._native._core import use_symbolic_type as use_symbolic_type  # noqa: E402
