"""The executable that tests drivers in processes of its own: finding it, running it, reading it.

What is tested is in `native/driver_check`; here are its results. No torch is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup import _native, settings
from bringup.errors import NativeLibraryError

__all__ = [
    "KERNELS",
    "CheckResult",
    "DriverCheck",
    "KnownCheck",
    "check_driver",
    "list_checks",
    "program",
]

_PROGRAM = "bringup-driver-check"
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

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The checks that failed."""
        return tuple(result for result in self.results if result.outcome == "fail")


def program() -> Path:
    """The executable. Raises `NativeLibraryError` where it is missing."""
    path = _native.library_dir() / _PROGRAM
    if not os.access(path, os.X_OK):
        raise NativeLibraryError(
            f"the program that tests drivers is not at {path}: reinstall with "
            "`pip install --no-build-isolation .` (in the sources: `make build`)"
        )
    return path


def list_checks() -> list[KnownCheck]:
    """Every check of the suite, in its order."""
    return [
        KnownCheck(line["check"], line["function"], line["rule"]) for line in _lines(["--list"])
    ]


def check_driver(
    library: Path,
    *,
    only: Sequence[str] = (),
    probe: bool = False,
    kernels: Path | None = None,
    check_seconds: float = 20.0,
    start_seconds: float = 60.0,
) -> DriverCheck:
    """Tests a driver in processes of its own: it can crash and hang there.

    Args:
        library: its shared library.
        only: names of checks, of their groups, or of functions; all when empty.
        probe: the short set that precedes loading, in one process, instead.
        kernels: `KERNELS`, built for the device; without it the checks that launch are skipped.
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
    # Faults that the simulator is asked for are meant for whoever uses it.
    environment = settings.without("BRINGUP_SIM_FAULTS") if probe else None
    driver, *lines = _lines([*options, str(library)], environment)
    return DriverCheck(
        path=library,
        device_name=driver["device_name"],
        description=driver["description"],
        driver_version=driver["driver_version"],
        capabilities=tuple(driver["capabilities"]),
        libraries=tuple(Path(file) for file in driver["libraries"]),
        start_seconds=driver["start_seconds"],
        failure=driver["failure"],
        results=tuple(_result(line) for line in lines),
    )


def _result(line: dict[str, Any]) -> CheckResult:
    return CheckResult(
        name=line["check"],
        function=line["function"],
        rule=line["rule"],
        outcome=line["outcome"],
        reason=line["reason"],
        expected=line["expected"],
        got=line["got"],
        calls=tuple(line["calls"]),
        seconds=line["seconds"],
    )


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
        raise ValueError(said[-1] if said else f"{_PROGRAM} ended with {done.returncode}")
    return map(json.loads, done.stdout.decode().splitlines())
