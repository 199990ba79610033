"""The errors of bringup: one small hierarchy.

Every message says what went wrong, where, what was expected, what came, and what to do next. Each
class also is the built-in exception that people already catch for its kind (`ValueError`, ...).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "BringupError", "BundleError", "CaptureError", "CompileError", "ContractError", "DeviceError",
    "DriverError", "ExpiredHandleError", "KernelError", "MissingCompilerError",
    "MissingKernelError", "ModelError", "NativeLibraryError", "PassError", "PassFatalError",
    "PassSkipException", "PluginError", "SchemaError", "SettingError", "TargetError", "UpdateError",
    "WrongRewriteError",
]  # fmt: skip


class BringupError(Exception):
    """The root: whatever bringup raises on its own account is one of these."""


class SettingError(BringupError, ValueError):
    """An environment variable has a value that its setting cannot take."""


class NativeLibraryError(BringupError, ImportError):
    """A native library of bringup is missing or does not fit this torch or Python."""


class PluginError(BringupError):
    """A plugin (driver, operators or passes) could not be loaded. The others are."""


class SchemaError(BringupError, ValueError):
    """An operator's definition is wrong: its schema, output rule or input contract."""


class ContractError(BringupError, ValueError):
    """A call broke an operator's input contract: shapes, dtypes, devices or layout."""


class KernelError(BringupError, RuntimeError):
    """A kernel returned a failure or threw an exception. Carries the kernel's own message."""


class CompileError(BringupError, RuntimeError):
    """A kernel source did not compile.

    Attributes:
        command: the compiler's command line, as a list.
        diagnostic: the compiler's first error, with its source line.
        log: everything the compiler printed.
        status: the compiler's exit status, negative for a signal; None when it did not run.

    `str(error)` is `message`.
    """

    def __init__(
        self,
        message: str,
        *,
        command: list[str] | None = None,
        diagnostic: str = "",
        log: str = "",
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.command = command or []
        self.diagnostic = diagnostic
        self.log = log
        self.status = status


class MissingCompilerError(CompileError):
    """No compiler was found for a target; the message says how to get one."""


class TargetError(BringupError, RuntimeError):
    """A kernel's binary cannot be loaded into this process: it was built for another machine."""


class MissingKernelError(BringupError, RuntimeError):
    """A kernel that is not in the cache was asked for while compiling is frozen.

    Attributes:
        spec: the `jit.Spec` of the kernel.
        command: a command line that builds it into the cache.

    `str(error)` is `message`.
    """

    def __init__(self, message: str, *, spec: object = None, command: str = "") -> None:
        super().__init__(message)
        self.spec = spec
        self.command = command


class BundleError(BringupError, ValueError):
    """A bundle of kernels or a saved graph is damaged, or for other machines than this one. Nothing
    of it was imported.
    """


class ModelError(BringupError, ValueError):
    """A model cannot be read or written: it is broken, or of another kind than its name says."""


class DeviceError(BringupError, RuntimeError):
    """The device cannot do what was asked: no such index, no memory left, a lost device."""


class DriverError(BringupError, RuntimeError):
    """A driver could not be loaded, or broke its contract."""


class CaptureError(BringupError, RuntimeError):
    """A run could not be captured as a graph, and nothing was changed by the attempt; or what a
    captured graph took as given is different now, and nothing was replayed.
    """


class UpdateError(BringupError, ValueError):
    """An update of a captured graph was refused. Nothing was changed."""


class ExpiredHandleError(BringupError, RuntimeError):
    """A handle outlived what it pointed to."""


class PassError(BringupError, RuntimeError):
    """A graph pass failed; its edits were undone.

    Attributes:
        status: the status that the pass returned, or the code of the engine's error; 1 otherwise.
        report: the `bringup.passes.PassReport` of the run that it ended; None outside of one.

    Args:
        message: the text of the error.
    """

    report: Any = None

    def __init__(self, message: str, *, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class WrongRewriteError(PassError):
    """A rewrite was run against what it replaces, and the results differ."""


class PassSkipException(BringupError):
    """Raised by a pass's hook to skip this match (in `run`: succeed, edits discarded)."""


class PassFatalError(PassError):
    """Raised by a pass to fail and stop its whole stage."""


def first_line(message: object) -> str:
    """Return the first line of an error's text: torch's go on with hints and frames of C++."""
    return str(message).strip().partition("\n")[0]


def did_you_mean(name: object, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return "; did you mean 'x'?" with the known names that are nearest to a wrong one, or ""."""
    import difflib  # for a wrong name only

    near = difflib.get_close_matches(str(name), list(known), most, cutoff)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
