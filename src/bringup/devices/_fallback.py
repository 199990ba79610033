"""What may run on the host instead of on the device, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from bringup import _native, settings
from bringup._settings import FALLBACK_ACTIONS, OPERATOR_NAME
from bringup.errors import DeviceError

FallbackAction = Literal["allow", "warn", "forbid"]

_policy: tuple[FallbackAction, dict[str, FallbackAction]] = ("allow", {})


@dataclass(frozen=True)
class FallbackRow:
    """One operator that ran on the host.

    Attributes:
        operator: with its overload, "aten::add.Tensor".
        calls: how often.
        seconds: of all calls together, waits for the stream included.
        bytes_to_host: copied from the device for it; 0 where the host sees device memory.
        bytes_to_device: copied back.
    """

    operator: str
    calls: int
    seconds: float
    bytes_to_host: int
    bytes_to_device: int


@dataclass(frozen=True)
class NativeRow:
    """One operator that a kernel of `devices.kernel` ran on the device.

    Attributes:
        operator: with its overload, "aten::add.Tensor".
        calls: how often.
    """

    operator: str
    calls: int


@dataclass(frozen=True)
class FallbackReport:
    """What ran on the host, the operator that cost most first: which kernel to write next.

    Attributes:
        rows: one for each operator.
        native: what kernels of `devices.kernel` ran on the device, most calls first.
    """

    rows: tuple[FallbackRow, ...]
    native: tuple[NativeRow, ...] = ()

    @property
    def calls(self) -> int:
        """Of all operators."""
        return sum(row.calls for row in self.rows)

    @property
    def seconds(self) -> float:
        """Of all operators."""
        return sum(row.seconds for row in self.rows)

    @property
    def native_calls(self) -> int:
        """Of all operators with a kernel of `devices.kernel`, where it did not fall back."""
        return sum(row.calls for row in self.native)

    def __str__(self) -> str:
        if not self.rows:
            return "no operator ran on the host" + self._native_line("; ")
        lines = [f"{'operator':48}{'calls':>10}{'ms':>12}{'share':>8}{'MiB down':>11}{'MiB up':>9}"]
        for row in self.rows:
            share = row.seconds / self.seconds if self.seconds else 0.0
            down, up = row.bytes_to_host / 2**20, row.bytes_to_device / 2**20
            lines.append(
                f"{row.operator:48}{row.calls:>10,}{row.seconds * 1e3:>12.3f}{share:>8.1%}"
                f"{down:>11.1f}{up:>9.1f}"
            )
        lines.append(f"{'total':48}{self.calls:>10,}{self.seconds * 1e3:>12.3f}")
        return "\n".join(lines) + self._native_line("\n")

    def _native_line(self, before: str) -> str:
        if not self.native:
            return ""
        return f"{before}{self.native_calls:,} calls of {len(self.native)} operators ran natively"


def fallback_report(*, reset: bool = False) -> FallbackReport:
    """Return what ran on the host in this process since the last reset.

    Args:
        reset: begin to count anew.

    Raises:
        NativeLibraryError: the process runs without the library that links torch.
    """
    rows = [
        FallbackRow(name, calls, nanoseconds / 1e9, down, up)
        for name, calls, nanoseconds, down, up in _devices().fallback_counts(reset)
    ]
    native = [NativeRow(name, calls) for name, calls in _devices().native_counts(reset)]
    return FallbackReport(
        tuple(sorted(rows, key=lambda row: (-row.seconds, row.operator))),
        tuple(sorted(native, key=lambda row: (-row.calls, row.operator))),
    )


def set_fallback_policy(
    default: FallbackAction = "allow", operators: Mapping[str, FallbackAction] | None = None
) -> None:
    """Say which operators without a kernel of their own may run on the host, before or after the
    driver is loaded. Kernels that the device has are not affected.

    Args:
        default: "allow", "warn" (once an operator) or "forbid" (NotImplementedError that names the
            operator and the device).
        operators: exceptions, "aten::mm" for all overloads or "aten::add.Tensor" for one ("default"
            for the one without a name).

    Raises:
        DeviceError: no such action, or no name of an operator; the policy stays as it was.
    """
    global _policy
    exceptions = dict(operators or {})
    for name, action in [("default", default), *exceptions.items()]:
        if action not in FALLBACK_ACTIONS:
            raise DeviceError(
                f"fallback policy: {name}: {action!r}, expected allow, warn or forbid"
            )
    for name in exceptions:
        if OPERATOR_NAME.fullmatch(name) is None:
            raise DeviceError(
                f"fallback policy: {name!r} is no operator, expected 'aten::mm' or "
                "'aten::add.Tensor'"
            )
    actions = _devices().FallbackAction
    _devices().set_fallback_policy(
        getattr(actions, default), [(n, getattr(actions, a)) for n, a in exceptions.items()]
    )
    _policy = default, exceptions


@contextmanager
def fallback_policy(
    default: FallbackAction = "allow", operators: Mapping[str, FallbackAction] | None = None
) -> Iterator[None]:
    """Set the policy for the time of a `with` block, in all threads. Raises what
    `set_fallback_policy` raises.

    Args:
        default: as there.
        operators: as there.
    """
    former = _policy
    set_fallback_policy(default, operators)
    try:
        yield
    finally:
        set_fallback_policy(*former)


def apply_setting() -> None:
    """Take `BRINGUP_FALLBACK` where nothing was set yet."""
    if _policy == ("allow", {}):
        default, operators = settings.fallback()
        set_fallback_policy(default, operators)  # type: ignore[arg-type]


def _devices() -> Any:
    return _native.torch_library("devices.fallback_report").devices
