"""`manifest.json`: what native libraries were built for; run by builds, by stdlib only."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

MANIFEST = "manifest.json"
_FORMAT = 1
_LIMIT = 1_000_000  # bytes; an entry has 300
_SOURCES = ("CMakeLists.txt", "cmake", "include", "native")
_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Interpreter:
    """What a library for Python has to be built for."""

    python: str  # the Python tag of wheels, "cp311"
    # Its ABI, "cp311"; another one without the GIL ("cp313t") or in debug builds ("cp311d").
    abi: str
    platform: str  # "linux_x86_64"


def interpreter() -> Interpreter:
    """Return the one that runs this."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    abi = python + str(getattr(sys, "abiflags", ""))
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return Interpreter(python, abi, platform)


def minor(version: str) -> str:
    """ "2.13" of "2.13.0+cpu"."""
    return ".".join(version.split(".")[:2])


@dataclass(frozen=True)
class Artifact:
    """One native file and what it was built for."""

    file: str  # its name, in the folder of the manifest
    python: str  # the Python tag, or "" where any may load it
    abi: str  # the ABI of that Python, or "none"
    platform: str  # the platform, with the words of `Interpreter`
    torch: str  # the version of torch that it was built with, or ""
    sha256: str  # the digest of its bytes, in hexadecimal
    build_key: str  # the digest of the sources; libraries that share one process share it

    def incompatibility_reason(self, runs: Interpreter, torch: str, build_key: str) -> str:
        """Return why a process with this interpreter, `torch` version ("" for none needed) and
        core's `build_key` ("" for not known) cannot load it, or "".
        """
        if self.platform != runs.platform:
            return f"was built for {self.platform}, this is {runs.platform}"
        if self.python and (self.python, self.abi) != (runs.python, runs.abi):
            return f"was built for Python {self.abi}, this is {runs.abi}"
        if self.torch and minor(self.torch) != minor(torch):
            return f"was built for torch {minor(self.torch)}, this is torch {minor(torch)}"
        if build_key and self.build_key != build_key:
            return (
                f"was built from other sources ({self.build_key[:12]}) than the native core "
                f"({build_key[:12]})"
            )
        return ""

    def damage(self, folder: Path) -> str:
        """Return why the file is not the one that was built, or ""."""
        try:
            found = _digest(folder / self.file)
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if found == self.sha256:
            return ""
        return f"is damaged: its SHA-256 is {found[:12]}..., {MANIFEST} says {self.sha256[:12]}..."


def read(folder: Path) -> list[Artifact]:
    """Return what a folder's manifest, if any, lists. Raises `ValueError` with path and fault."""
    path = folder / MANIFEST
    try:
        if (size := path.stat().st_size) > _LIMIT:
            raise ValueError(f"{path} has {size} bytes, expected at most {_LIMIT}")
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}: reinstall bringup") from error
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"{path} has format {found}, expected {_FORMAT}: reinstall bringup")
    entries = record.get("artifacts")
    if not isinstance(entries, list):
        raise ValueError(f"{path} has no list of artifacts: reinstall bringup")
    return [_artifact(entry, path) for entry in entries]


def _artifact(entry: object, path: Path) -> Artifact:
    names = {field.name for field in fields(Artifact)}
    if not isinstance(entry, dict) or not names <= entry.keys():
        raise ValueError(f"{path} has an artifact without {', '.join(sorted(names))}: {entry}")
    found = Artifact(**{name: str(entry[name]) for name in names})
    if found.file in ("", "..") or "\0" in found.file or Path(found.file).name != found.file:
        raise ValueError(f"{path} lists {found.file!r}, which is not in its folder")
    return found


def write(folder: Path, build_key: str, torch: str = "") -> Path:
    """Write the manifest of a folder's own native files, which link `torch`; return its path."""
    built_by = interpreter()
    files = sorted(path for path in folder.iterdir() if path.is_file() and _is_elf(path))
    artifacts = [_describe(path, built_by, build_key, torch) for path in files]
    record = {"format": _FORMAT, "artifacts": [asdict(artifact) for artifact in artifacts]}
    path = folder / MANIFEST
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def _describe(path: Path, built_by: Interpreter, build_key: str, torch: str) -> Artifact:
    # Modules of Python begin with an underscore; what any process can load does not.
    of_python = path.name.startswith("_")
    return Artifact(
        file=path.name,
        python=built_by.python if of_python else "",
        abi=built_by.abi if of_python else "none",
        platform=built_by.platform,
        torch=torch,
        sha256=_digest(path),
        build_key=build_key,
    )


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_ELF)) == _ELF


def _digest(path: Path) -> str:
    import hashlib  # it loads OpenSSL

    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def source_digest(sources: Path) -> str:
    """Return SHA-256 over names and contents of everything that a library is built from."""
    import hashlib

    digest = hashlib.sha256()
    for name in _SOURCES:
        place = sources / name
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            # An installer compiles Python files, and what it made is no source.
            if file.is_file() and file.parent.name != "__pycache__":
                digest.update(f"{file.relative_to(sources)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def is_source_folder(folder: Path) -> bool:
    """Return whether everything that a library is built from is here."""
    return all((folder / name).exists() for name in _SOURCES)


def main(arguments: Iterable[str]) -> None:
    """`python _manifest.py FOLDER SOURCES [TORCH_VERSION]`: what the build runs."""
    folder, sources, *torch = arguments
    write(Path(folder), source_digest(Path(sources)), *torch)


if __name__ == "__main__":
    main(sys.argv[1:])
