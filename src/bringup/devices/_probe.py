"""The probe: a short test of a driver library in another process, before this one loads it.

A copy that does nothing is a wrong number. What passed is remembered in the cache under the content
of every file that was loaded with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bringup import settings
from bringup.devices._driver_check import check_driver, program
from bringup.errors import DriverError

CHECK_SECONDS = 10.0
_START_SECONDS = 60.0
_log = settings.logger("devices")

# What tells that a file is the same without reading it, and the SHA-256 of its content.
_Memo = dict[str, Any]


@dataclass(frozen=True)
class Probed:
    """What was probed. Settings of a driver's own may change it without another file."""

    driver_version: str  # of its first device
    host_visible_memory: bool  # whether the host reaches the memory of all its devices
    functions: str  # that its table has, separated by spaces


def require_probed(library: Path) -> Probed | None:
    """Probe a driver unless it was; return what was probed, or None. Raises `DriverError`."""
    if not settings.driver_probe():
        return None
    record = _record_file(library)
    if (known := _known(record)) is not None:
        return known
    return _probe(library, record)


def require_same(library: Path, probed: Probed | None, now: Probed) -> None:
    """Probe once more where the driver now says something else. Raises as `require_probed`."""
    if settings.driver_probe() and now != probed:
        _probe(library, _record_file(library))


def _probe(library: Path, record: Path) -> Probed:
    found = check_driver(
        library, probe=True, check_seconds=CHECK_SECONDS, start_seconds=_START_SECONDS
    )
    broken = found.failure or next((result.reason for result in found.failures), "")
    if broken:
        raise DriverError(
            f"the driver {library} cannot be used: {broken} (found in another process before it "
            f"was loaded here; `bringup driver check {library}` tests all of it, "
            "BRINGUP_DRIVER_PROBE=0 loads it all the same)"
        )
    probed = Probed(found.driver_version, found.host_visible_memory, " ".join(found.functions))
    try:
        _remember(record, probed, [library, program(), *found.libraries])
    except OSError as error:
        _log.info("the driver %s is probed each time: %s", library, error)
    return probed


def _record_file(library: Path) -> Path:
    name = hashlib.sha256(os.fsencode(library)).hexdigest()[:32]
    return settings.cache_dir() / "drivers" / f"{name}.json"


def _known(record: Path) -> Probed | None:
    """Return what was probed, if every file of the driver is what it was."""
    try:
        text = json.loads(record.read_text())
        probed = Probed(**text["probed"])
        files: dict[str, _Memo] = text["files"]
        same = all(_is_same(Path(path), memo) for path, memo in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # nothing is known, and the probe writes it anew
    return probed if same else None


def _is_same(path: Path, memo: _Memo) -> bool:
    if _stat(path) == memo["stat"]:
        return True
    return _digest(path) == str(memo["sha256"])


def _stat(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _remember(record: Path, probed: Probed, libraries: list[Path]) -> None:
    files = {str(path): {"stat": _stat(path), "sha256": _digest(path)} for path in libraries}
    record.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=record.parent, delete=False) as file:
        draft = Path(file.name)
        try:
            json.dump({"probed": asdict(probed), "files": files}, file)
            file.flush()
            draft.replace(record)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
