"""Running `native/driver_check`, which tests drivers in processes of its own, and its results."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bringup import _native, settings
from bringup._processes import ending
from bringup.devices._driver_abi import DTYPES
from bringup.devices._driver_discovery import check_kernels as check_kernels
from bringup.errors import NativeLibraryError

if TYPE_CHECKING:
    from bringup.report import Page

_PROGRAM = "bringup-driver-check"
SHOWN_CALLS = 24  # of a failure, where people read it
_LEAST_ALIGNMENT = 64  # what a driver that says nothing of it promises
# The device code that the suite launches; to be built for the driver's device.
KERNELS = Path(__file__).with_name("driver_check_kernels.cpp")


@dataclass(frozen=True)
class KnownCheck:
    """A check of the suite.

    Attributes:
        name: its group and what it does, "copies.both_ways".
        function: the function of the driver whose rule it is.
        rule: what `bringup/driver.h` asks.
    """

    name: str
    function: str
    rule: str


@dataclass(frozen=True)
class CheckResult:
    """What became of one check.

    Attributes:
        name: of the check.
        function: whose rule it is; of a failure, the function that broke it.
        rule: what `bringup/driver.h` asks.
        outcome: "pass", "fail" or "skipped".
        reason: why it failed or was skipped, or "".
        expected: what should have been there.
        got: what was there.
        calls: of the driver, in order, with arguments and what they returned.
        seconds: how long it took.
    """

    name: str
    function: str
    rule: str
    outcome: str
    reason: str
    expected: str
    got: str
    calls: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class DriverCheck:
    """A driver and what the checks found.

    Attributes:
        path: its library.
        device_name: what it calls its device.
        description: what it says of itself.
        driver_version: its version, or "".
        capabilities: the BRINGUP_HAS_* groups that it announces.
        libraries: the files that were loaded with it, itself among them.
        start_seconds: what loading it took, with its init.
        failure: why no check could be made, or "".
        results: of the checks, in the order of the suite.
        functions: that its table has, of the groups that it announces.
        host_visible_memory: whether all its devices say that the host reaches their memory.
    """

    path: Path
    device_name: str
    description: str
    driver_version: str
    capabilities: tuple[str, ...]
    libraries: tuple[Path, ...]
    start_seconds: float
    failure: str
    results: tuple[CheckResult, ...]
    functions: tuple[str, ...] = ()
    host_visible_memory: bool = False

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Return the checks that failed."""
        return tuple(result for result in self.results if result.outcome == "fail")

    def _repr_html_(self) -> str:
        return page(self)._repr_html_()


def verdict(found: DriverCheck) -> str:
    """Return how many checks fail, pass and are skipped, or why none could be made."""
    if found.failure:
        return f"{found.path} cannot be used: {found.failure}"
    counts = Counter(result.outcome for result in found.results)
    return f"{counts['fail']} fail, {counts['pass']} pass, {counts['skipped']} skipped"


def page(found: DriverCheck) -> Page:
    """Return the failures with their calls, the functions with what came out, the rest."""
    from bringup.report import Bar, Page, Section, Table
    from bringup.report._columns import texts

    facts = {"driver": str(found.path), "device": found.device_name, "says": found.description}
    facts |= {"version": found.driver_version, "groups": ", ".join(found.capabilities)}
    failures = []
    for one in found.failures:
        rows = [("rule", one.rule), ("expected", one.expected), ("got", one.got)]
        rows.append(("last calls", "\n".join(one.calls[-SHOWN_CALLS:])))
        table = Table("", texts("", ""), [*rows])
        failures.append(Section(f"FAIL {one.name}", [one.reason], tables=[table]))
    by_function: dict[str, list[str]] = {}
    for one in found.results:
        by_function.setdefault(one.function, []).append(one.outcome)
    outcomes = ("pass", "skipped", "fail")
    bars = []
    for function, ones in by_function.items():
        parts = [ones.count(outcome) / len(ones) for outcome in outcomes]
        bars.append(Bar(function, parts, f"{ones.count('pass')} of {len(ones)} pass"))
    checks = Table("", texts("check", "function", "outcome", "rule"))
    for one in found.results:
        outcome = f"{one.outcome}: {one.reason}" if one.outcome == "skipped" else one.outcome
        checks.add(one.name, one.function, outcome, one.rule)
    rest = [Section("By function", key=outcomes, bars=bars), Section("All checks", tables=[checks])]
    sections = [*failures, *(rest if found.results else [])]
    return Page("bringup driver check", [verdict(found)], facts, sections)


@dataclass(frozen=True)
class DeviceDescription:
    """What a driver says of one device.

    Attributes:
        name: for people.
        arch: for compilers.
        total_memory, free_memory: in bytes.
        core_count: as the driver counts them.
        dtypes: torch's names of those that its tensors may have.
        supports_int64: whether kernels have 64-bit integers.
        host_visible_memory: whether the host reaches its memory.
        runs_host_code: whether its device code is host code.
        alignment: of its allocations, in bytes.
        uuid: of the device, or None.
        driver_version: as the driver says it, or "".
    """

    name: str
    arch: str
    total_memory: int
    free_memory: int
    core_count: int
    dtypes: tuple[str, ...]
    supports_int64: bool
    host_visible_memory: bool
    runs_host_code: bool
    alignment: int
    uuid: UUID | None
    driver_version: str


@dataclass(frozen=True)
class DriverDescription:
    """What a driver says of itself and its devices.

    Attributes:
        path: its library.
        device_name: what torch calls its device unless told otherwise.
        description: for people.
        capabilities: groups of functions that it has, as `bringup/driver.h` names their bits.
        device_count: how many devices there are.
        devices: the first 16 of them.
        failure: why it could not be described, or not whole; "" otherwise.
    """

    path: Path
    device_name: str
    description: str
    capabilities: tuple[str, ...]
    device_count: int
    devices: tuple[DeviceDescription, ...]
    failure: str


def program() -> Path:
    """Return the executable. Raises `NativeLibraryError` where it is missing."""
    path = _native.library_dir() / _PROGRAM
    if not os.access(path, os.X_OK):
        raise NativeLibraryError(
            f"the program that tests drivers is not at {path}: reinstall with "
            "`pip install --no-build-isolation .` (in the sources: `make build`)"
        )
    return path


def list_checks() -> list[KnownCheck]:
    """Return every check of the suite, in its order."""
    return [
        KnownCheck(line["check"], line["function"], line["rule"]) for line in _lines(["--list"])
    ]


def check_driver(
    library: Path,
    *,
    only: Sequence[str] = (),
    probe: bool = False,
    kernels: Path | None = None,
    device_kernels: Path | None = None,
    check_seconds: float = 20.0,
    start_seconds: float = 60.0,
) -> DriverCheck:
    """Test a driver in processes of its own, where it can crash and hang; returns each result.

    Args:
        library: its shared library.
        only: names of checks, of their groups, or of functions; all when empty.
        probe: the short set that precedes loading, in one process up to its first failure, instead.
        kernels: `KERNELS`, built for the host: for devices that run host code.
        device_kernels: a file with the kernels check_values and check_shared of `KERNELS` in the
            device's own code, as its module_load takes it; check_accumulate too where the driver
            has `launch`, and check_fail where kernels can fail. Without either the checks that
            launch are skipped.
        check_seconds: what each check may take.
        start_seconds: what loading the driver may take.

    Raises:
        ValueError: `only` names what there is not.
        NativeLibraryError: the program is missing.
    """
    options = [f"--check-limit={check_seconds}", f"--start-limit={start_seconds}"]
    if probe:
        options.append("--probe")
    elif only:
        options.append(f"--only={','.join(only)}")
    if kernels is not None:
        options.append(f"--kernels={kernels}")
    if device_kernels is not None:
        options.append(f"--device-kernels={device_kernels}")
    # Faults that the simulator is asked for are meant for its user.
    environment = settings.without("BRINGUP_SIM_FAULTS") if probe else None
    driver, *lines = _lines([*options, str(library)], environment)
    return DriverCheck(
        path=library,
        device_name=driver["device_name"],
        description=driver["description"],
        driver_version=driver["driver_version"],
        capabilities=tuple(driver["capabilities"]),
        functions=tuple(driver["functions"]),
        host_visible_memory=driver["host_visible_memory"],
        libraries=tuple(Path(file) for file in driver["libraries"]),
        start_seconds=driver["start_seconds"],
        failure=driver["failure"],
        results=tuple(_result(line) for line in lines),
    )


def describe_driver(library: Path, *, seconds: float = 20.0) -> DriverDescription:
    """Return what a driver says it is, asked in a process of its own: it can crash and hang there.

    Args:
        library: its shared library.
        seconds: what loading it may take, and then what asking may.

    Raises:
        NativeLibraryError: the program is missing.
    """
    limits = [f"--start-limit={seconds}", f"--check-limit={seconds}"]
    driver, *devices = _lines(["--describe", *limits, str(library)])
    return DriverDescription(
        path=library,
        device_name=driver["device_name"],
        description=driver["description"],
        capabilities=tuple(driver["capabilities"]),
        device_count=int(driver["devices"]),
        devices=tuple(_device(line) for line in devices),
        failure=driver["failure"],
    )


def _device(line: dict[str, Any]) -> DeviceDescription:
    return DeviceDescription(
        name=line["name"],
        arch=line["arch"],
        total_memory=line["total_memory"],
        free_memory=line["free_memory"],
        core_count=line["core_count"],
        dtypes=_dtypes(line["dtypes"], float64=bool(line["supports_float64"])),
        supports_int64=bool(line["supports_int64"]),
        host_visible_memory=bool(line["host_visible_memory"]),
        runs_host_code=bool(line["runs_host_code"]),
        alignment=line["alignment"] or _LEAST_ALIGNMENT,
        uuid=UUID(hex=line["uuid"]) if line["uuid"].strip("0") else None,
        driver_version=line["driver_version"],
    )


def _dtypes(bits: int, *, float64: bool) -> tuple[str, ...]:
    """Return the names behind `bringup_device_props.dtypes`, of which 0 means all."""
    named = [name for bit, name in enumerate(DTYPES) if not bits or bits >> bit & 1]
    absent = () if float64 else ("float64", "complex128")
    return tuple(name for name in named if name not in absent)


def _result(line: dict[str, Any]) -> CheckResult:
    return CheckResult(name=line.pop("check"), calls=tuple(line.pop("calls")), **line)


def _lines(
    options: list[str], environment: dict[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    done = subprocess.run(
        [str(program()), *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(said[-1] if said else f"{_PROGRAM} ended with {ending(done.returncode)}")
    for line in done.stdout.splitlines():
        yield {name: _decoded(value) for name, value in json.loads(line).items()}


def _decoded(value: Any) -> Any:
    """Texts, which the program writes byte by byte: what a driver says need not be UTF-8."""
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    return value.encode("latin-1").decode(errors="replace") if isinstance(value, str) else value
