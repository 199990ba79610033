"""What is taken from the native core of how kernels are called; raises `NativeLibraryError`."""

from __future__ import annotations

from bringup._native import core

core()  # says what is wrong with it, where something is

from bringup._native._core import DTYPE_BITS as DTYPE_BITS  # noqa: E402
from bringup._native._core import FIELD_BITS as FIELD_BITS  # noqa: E402
from bringup._native._core import LAYOUT_BITS as LAYOUT_BITS  # noqa: E402
from bringup._native._core import CheckKind as CheckKind  # noqa: E402
from bringup._native._core import Convention as Convention  # noqa: E402
from bringup._native._core import KeyFieldKind as KeyFieldKind  # noqa: E402
from bringup._native._core import Layout as Layout  # noqa: E402
from bringup._native._core import NativeExpression as NativeExpression  # noqa: E402
from bringup._native._core import NativeLaunchSize as NativeLaunchSize  # noqa: E402
from bringup._native._core import NativeParameter as NativeParameter  # noqa: E402
from bringup._native._core import Opcode as Opcode  # noqa: E402
from bringup._native._core import SourceKind as SourceKind  # noqa: E402
from bringup._native._core import ValueKind as ValueKind  # noqa: E402
