"""What makes two builds the same: the key record and the request key.

The build key covers everything that decides what is built, the headers that the compiler read among
it. The request key covers what is known before the compiler has run; directories enter only there:
they decide which header is found, not what is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from bringup.jit.source.source import Source
from bringup.jit.target.debug import Debug
from bringup.jit.target.flags import without_folders
from bringup.jit.target.toolchain import Toolchain

__all__ = [
    "KERNEL_ABI",
    "SCHEMA",
    "Record",
    "build_record",
    "key_of",
    "request_key",
]

KERNEL_ABI = 1  # BRINGUP_KERNEL_ABI of kernel.h
SCHEMA = "3"

Record: TypeAlias = Mapping[str, Sequence[str]]


def request_key(
    source: Source,
    source_digest: str,
    macros: Sequence[str],
    target: str,
    toolchain: Toolchain,
    options: Sequence[str],
    flags: Sequence[str],
    debug: Debug,
) -> str:
    """Names what was asked for. Computed on every warm start, so in one go."""
    asked = (
        (SCHEMA, KERNEL_ABI, source_digest, source.language, source.symbol, source.abi),
        (source.kind, source.directory, macros, target, flags, options, debug.words),
        (toolchain.fingerprint, toolchain.include_directories),
    )
    return hashlib.sha256(repr(asked).encode(errors="surrogateescape")).hexdigest()


def build_record(
    source: Source,
    source_digest: str,
    macros: Sequence[str],
    target: str,
    toolchain: Toolchain,
    options: Sequence[str],
    flags: Sequence[str],
    debug: Debug,
    header_digests: Sequence[str],
    input_digests: Sequence[str],
    answers: Sequence[str] = (),
    names: Sequence[str] = (),
) -> dict[str, Sequence[str]]:
    """What decides the binary.

    Args:
        source: what was compiled; only its content, language and entry count.
        source_digest: its content.
        macros: `NAME=value`, sorted.
        target: the target's full name.
        toolchain: what ran.
        options: the target's options.
        flags: the caller's, in order.
        debug: what was added for debugging.
        header_digests: the headers in the order of their inclusion.
        input_digests: the other files that this build read beyond every build's: libraries and
            scripts that flags link or name, data that it assembled, and programs that flags chose.
        answers: what `__has_include` was answered, in the order of the text.
        names: the names of source and headers as the binary has them, where it can have any.
    """
    return {
        "schema": (SCHEMA,),
        "source": (source_digest,),
        "headers": header_digests,
        "inputs": input_digests,
        "probes": answers,
        "names": names,
        "language": (source.language,),
        "entry": (source.symbol,),
        "abi": (source.abi, str(KERNEL_ABI)),
        "kind": (source.kind,),
        "macros": macros,
        "target": (target,),
        "flags": (*options, *map(without_folders, flags)),
        "debug": debug.words,
        "compiler": (toolchain.identity,),
        "assembler": (toolchain.assembler,),
        "linker": (toolchain.linker,),
        "runtime": (toolchain.runtime,),
        "isa": (toolchain.machine, *toolchain.isa),
        "environment": toolchain.environment,
    }


def key_of(record: Record) -> str:
    """SHA-256 over the record, every name and value prefixed with its length, in hex."""
    parts: list[bytes] = []
    for field in sorted(record):
        values = record[field]
        parts.append(b"%d:%s%d;" % (len(field), field.encode(), len(values)))
        for value in values:
            encoded = value.encode(errors="surrogateescape")
            parts.append(b"%d:%s" % (len(encoded), encoded))
    return hashlib.sha256(b"".join(parts)).hexdigest()
