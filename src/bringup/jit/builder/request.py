"""What a caller asked for, in canonical form, and what makes two builds of it the same.

The request key covers what is known before the compiler has run; directories enter only there, for
they decide which header is found. The build key, over the record, covers all that decides what is
built, the headers that the compiler read among it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bringup.jit.builder.key import KERNEL_ABI, SCHEMA, Record
from bringup.jit.source.source import Source
from bringup.jit.target.debug import NO_DEBUG, Debug
from bringup.jit.target.flags import without_folders
from bringup.jit.target.target import Target, find_target
from bringup.jit.target.toolchain import Toolchain


class SourceChangedError(Exception):
    """Internal: the source was changed while it was compiled."""


@dataclass(frozen=True)
class Request:
    """One build that a caller asked for."""

    source: Source  # what is compiled; for the build key only its content, language and entry count
    macros: tuple[str, ...]  # `NAME=value`, sorted
    target: str  # the target's full name
    flags: tuple[str, ...]  # the caller's, in order
    toolchain: Toolchain  # what runs
    debug: Debug = NO_DEBUG  # what is added for debugging
    _keys: dict[tuple[str, str], str] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def platform(self) -> Target:
        return find_target(self.target)

    @property
    def options(self) -> tuple[str, ...]:
        """Return the target's own options, which come before the caller's flags."""
        return self.platform.flags(self.toolchain, self.source.language, self.debug)

    def key(self, source_digest: str) -> str:
        return self.key_once("request", source_digest, self._key)

    def key_once(self, name: str, source_digest: str, compute: Callable[[str], str]) -> str:
        """Return the key of this name and source: `compute(source_digest)`, called once."""
        known = self._keys.get((name, source_digest))
        if known is None:
            known = self._keys[name, source_digest] = compute(source_digest)
        return known

    def _key(self, source_digest: str) -> str:
        source, compiler = self.source, self.toolchain
        asked = (
            (SCHEMA, KERNEL_ABI, source_digest, source.language, source.symbol, source.abi),
            (source.kind, source.directory, self.macros, self.target, self.flags),
            (self.options, self.debug.words),
            (compiler.fingerprint, compiler.include_directories),
        )
        return hashlib.sha256(repr(asked).encode(errors="surrogateescape")).hexdigest()

    def record(
        self,
        source_digest: str,
        headers: Sequence[str] = (),
        inputs: Sequence[str] = (),
        answers: Sequence[str] = (),
        names: Sequence[str] = (),
    ) -> Record:
        """Return what decides the binary: digests of the source, of the headers in the order of
        their inclusion and of other `inputs` (what flags link or name, data that it assembled,
        programs that flags chose), the `answers` of `__has_include`, and the `names` of source
        and headers in the binary.
        """
        source, compiler = self.source, self.toolchain
        return {
            "schema": (SCHEMA,), "source": (source_digest,), "headers": headers, "inputs": inputs,
            "probes": answers, "names": names, "language": (source.language,),
            "entry": (source.symbol,), "abi": (source.abi, str(KERNEL_ABI)), "kind": (source.kind,),
            "macros": self.macros, "target": (self.target,),
            "flags": (*self.options, *map(without_folders, self.flags)), "debug": self.debug.words,
            "compiler": (compiler.identity,), "assembler": (compiler.assembler,),
            "linker": (compiler.linker,), "runtime": (compiler.runtime,),
            "isa": (compiler.machine, *compiler.isa), "environment": compiler.environment,
        }  # fmt: skip

    def __str__(self) -> str:
        parts = [str(self.source), f"entry {self.source.symbol!r}", f"target {self.target!r}"]
        if self.macros:
            parts.append(f"macros {' '.join(self.macros)}")
        if self.flags:
            parts.append(f"flags {' '.join(self.flags)}")
        if self.debug:
            parts.append(f"debug {','.join(self.debug.words)}")
        return ", ".join(parts)
