"""The stubs that `REGISTER_PRIVATEUSE1_DISPATCH` can register, read from the installed torch."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bringup.errors import DeviceError

_FOLDER = Path("ATen", "native")
_MACRO = "REGISTER_PRIVATEUSE1_DISPATCH"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define(?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)
_DECLARATION = re.compile(r"\bDECLARE_DISPATCH\s*\(")
_BRACE = re.compile(r"(?:\b(?:inline\s+)?namespace\s+(?P<namespace>[\w:]*)\s*)?(?P<brace>[{}])")
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([^;{}]+);")


@dataclass(frozen=True)
class DispatchStub:
    """One stub.

    Attributes:
        name: with its namespace below `at::native`, where it has one: "abs_stub",
            "cpublas::gemm_stub".
        signature: the type of the function to register, "void (*)(TensorIteratorBase&)".
        header: what declares it, as it is included: "ATen/native/UnaryOps.h".
        registrable: whether a kernel for PrivateUse1 can be registered: the installed library
            exports it, and the headers have the macro.
    """

    name: str
    signature: str
    header: str
    registrable: bool


def dispatch_stubs(include: Path | None = None) -> list[DispatchStub]:
    """Return every dispatch stub that torch's headers declare, by name.

    Args:
        include: the folder of headers; None for the installed torch's. `registrable` is about the
            installed library in any case.

    Raises:
        DeviceError: torch or its headers are not installed, or a declaration cannot be read.
    """
    root = _torch_folder()
    headers = root / "include" if include is None else include
    texts = _texts(headers)
    exported = ctypes.CDLL(str(_library(root)))
    has_macro = f"define {_MACRO}(" in _read(headers / _FOLDER / "DispatchStub.h")
    shared: dict[str, str] = {}
    for text in texts.values():
        shared |= dict(_ALIAS.findall(text))
    found = {}
    for header, text in texts.items():
        aliases = {**shared, **dict(_ALIAS.findall(text))}
        for function, name in _declarations(header, text):
            found[name] = DispatchStub(
                name,
                _resolved(function, aliases),
                header.as_posix(),
                has_macro and hasattr(exported, _mangled(name)),
            )
    return [found[name] for name in sorted(found)]


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise DeviceError(
            "dispatch stubs: torch is not installed, so there are no headers to read: "
            "pip install torch==2.13.0"
        )
    return Path(spec.origin).parent


def _library(root: Path) -> Path:
    library = root / "lib" / "libtorch_cpu.so"
    if not library.is_file():
        raise DeviceError(
            f"dispatch stubs: expected torch's library at {library}: reinstall torch from its wheel"
        )
    importlib.import_module("torch")  # which loads what the library needs
    return library


def _texts(headers: Path) -> dict[Path, str]:
    """Return each header with stubs or type names, without comments and macros."""
    folder = headers / _FOLDER
    files = sorted(folder.rglob("*.h"))
    if not files:
        raise DeviceError(
            f"dispatch stubs: there are no headers in {folder}: a wheel of torch has them, some "
            "distributions' packages leave them out. Install torch from its wheel"
        )
    return {
        file.relative_to(headers): _DEFINE.sub("", _COMMENT.sub("", _read(file))) for file in files
    }


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DeviceError(
            f"dispatch stubs: {file} cannot be read: {error.strerror}. Install torch from its wheel"
        ) from None


def _mangled(name: str) -> str:
    """Return the symbol of a variable in `at::native`, by the Itanium C++ ABI."""
    parts = ["at", "native", *name.split("::")]
    return f"_ZN{''.join(f'{len(part)}{part}' for part in parts)}E"


def _namespace_at(text: str, place: int) -> str:
    """Return the namespace below `at::native` of `place`, followed by "::"; or ."""
    stack: list[str] = []
    for found in _BRACE.finditer(text, 0, place):
        if found["brace"] == "{":
            stack.append(found["namespace"] or "")
        elif stack:
            stack.pop()
    inside = "::".join(name for name in stack if name).removeprefix("at::native")
    return f"{inside.removeprefix('::')}::" if inside else ""


def _declarations(header: Path, text: str) -> Iterator[tuple[str, str]]:
    """Type and name in each `DECLARE_DISPATCH(type, name)`."""
    for found in _DECLARATION.finditer(text):
        inside = _until_closed(text, found.end())
        function, comma, name = ("", "", "") if inside is None else inside.rpartition(",")
        if not comma or not re.fullmatch(r"\w+", name.strip()):
            raise DeviceError(
                f"dispatch stubs: {header}: expected DECLARE_DISPATCH(type, name), got "
                f"{text[found.start() :][:80]!r}: this torch is newer than bringup knows"
            )
        namespace = _namespace_at(text, found.start())
        yield _tidy(function), f"{namespace}{name.strip()}"


def _tidy(function: str) -> str:
    return re.sub(r"(?<=\() | (?=[,)])", "", " ".join(function.split()))


def _until_closed(text: str, start: int) -> str | None:
    """Return the text up to the parenthesis that closes one before `start`, or None."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[start:at]
    return None


def _resolved(function: str, aliases: Mapping[str, str]) -> str:
    """Return the function type behind an alias, which may be one of another."""
    for _ in range(len(aliases)):
        known = aliases.get(function.rpartition("::")[2])
        if known is None:
            break
        function = _tidy(known)
    return function
