"""What an ELF file says of itself: machine and dynamic symbols (System V ABI, chapters 4, 5)."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import NamedTuple

DEVICE_CODE = "an NVIDIA GPU"
FATBIN = b"\x50\xed\x55\xba"  # begins device code for several models

# e_machine -> the name that `uname -m` has for it.
_MACHINES = {
    3: "i686", 8: "mips", 20: "ppc", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64",
    183: "aarch64", 190: DEVICE_CODE, 243: "riscv64", 258: "loongarch64",
}  # fmt: skip


def machine_of(path: str | os.PathLike[str]) -> str:
    """Return the machine of an ELF file or a fatbin, or "" for another file. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        head = os.read(descriptor, 20)
    finally:
        os.close(descriptor)
    if head[:4] == FATBIN:
        return DEVICE_CODE
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get(number, f"machine number {number}")


def this_machine() -> str:
    """Return what `uname -m` says."""
    return os.uname().machine


class Symbols(NamedTuple):
    """The dynamic symbols of a library."""

    exported: frozenset[str]  # names that it defines
    data: frozenset[str]  # those of them that are variables, not functions
    wanted: frozenset[str]  # names that it expects others to define
    libraries: frozenset[str]  # what it is linked with

    def wants(self, prefix: str, library: str) -> bool:
        """Return whether it needs `library`, by name or for symbols that begin with `prefix`."""
        return library in self.libraries or any(name.startswith(prefix) for name in self.wanted)


_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<QQ")
_DYNAMIC_SECTION, _DYNSYM_SECTION, _NO_BITS = 6, 11, 8
_DATA_TYPES = (1, 5, 6)  # STT_OBJECT, STT_COMMON, STT_TLS
_NEEDED = 1
_UNIQUE, _WEAK = 10, 2  # bindings


def symbols_of(path: str | os.PathLike[str]) -> Symbols | None:
    """Return the dynamic symbols of a 64-bit little-endian library, or None. Raises `OSError`."""
    content = Path(path).read_bytes()
    if content[:6] != b"\x7fELF\x02\x01":
        return None
    try:
        return _read_symbols(content)
    except (struct.error, IndexError, ValueError):
        return None


def keep_symbols_apart(path: str | os.PathLike[str]) -> None:
    """Make a library's STB_GNU_UNIQUE symbols weak: with them the loader never unloads it."""
    content = bytearray(Path(path).read_bytes())
    if content[:6] != b"\x7fELF\x02\x01" or machine_of(path) == DEVICE_CODE:
        return
    changed = False
    with contextlib.suppress(struct.error, IndexError):  # a damaged table: it will not load either
        for _, kind, _, _, start, length, *_ in _sections(content):
            infos = range(start + 4, start + length, _SYMBOL.size)
            for at in infos if kind == _DYNSYM_SECTION else ():
                if content[at] >> 4 == _UNIQUE:
                    content[at], changed = _WEAK << 4 | content[at] & 15, True
    if changed:
        Path(path).write_bytes(content)


def damage_of(path: str | os.PathLike[str]) -> str:
    """Return what shows that an ELF file is cut off, or "". Raises `OSError`."""
    content = Path(path).read_bytes()
    if not content:
        return "it is empty"
    if content[:6] != b"\x7fELF\x02\x01":
        return ""
    try:
        ends = [64]
        for _, kind, _, _, start, length, *_ in _sections(content):
            ends.append(start + length if kind != _NO_BITS else start)
    except struct.error:
        return f"it has {len(content)} bytes, and ends before its table of sections does"
    whole = max(ends)
    return f"it has {len(content)} bytes instead of {whole}" if len(content) < whole else ""


def _sections(content: bytes | bytearray) -> list[tuple[int, ...]]:
    (offset,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    return [_SECTION.unpack_from(content, offset + i * size) for i in range(count)]


def _read_symbols(content: bytes) -> Symbols:
    sections = _sections(content)
    exported: set[str] = set()
    data: set[str] = set()
    wanted: set[str] = set()
    libraries: set[str] = set()
    for _, kind, _, _, start, length, link, _, _, _ in sections:
        if kind not in (_DYNAMIC_SECTION, _DYNSYM_SECTION):
            continue
        texts = sections[link][4]
        table = content[start : start + length]
        if kind == _DYNSYM_SECTION:
            for place, info, _, section, _, _ in _SYMBOL.iter_unpack(table):
                name = _text(content, texts + place)
                (exported if section else wanted).add(name)
                if section and info & 15 in _DATA_TYPES:
                    data.add(name)
        else:
            entries = _DYNAMIC.iter_unpack(table)
            libraries |= {_text(content, texts + value) for tag, value in entries if tag == _NEEDED}
    exported.discard("")
    wanted.discard("")
    return Symbols(*map(frozenset, (exported, data, wanted, libraries)))


def _text(content: bytes, start: int) -> str:
    return content[start : content.index(b"\0", start)].decode(errors="replace")
