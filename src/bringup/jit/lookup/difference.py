"""What makes two builds different, in words, and which known build is nearest to another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from bringup.jit.builder.key import Record
from bringup.jit.files.layout import META
from bringup.jit.store.cache import Cache

# Fields whose values are digests or fixed texts say nothing to people.
_WORDS = {
    "source": "another content of the source", "headers": "another content of a header",
    "inputs": "another content of a linked file", "compiler": "another compiler",
    "assembler": "another assembler", "linker": "another linker",
    "runtime": "another default runtime of the compiler", "schema": "another format of the key",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A field of two key records that differs: the values that only one of them has."""

    field: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]

    def __str__(self) -> str:
        if self.field in _WORDS:
            return _WORDS[self.field]
        if not self.ours and not self.theirs:
            return f"{self.field}: another order"
        ours, theirs = " ".join(self.ours) or "none", " ".join(self.theirs) or "none"
        return f"{self.field}: {ours} instead of {theirs}"


def differences(ours: Record, theirs: Record) -> tuple[Difference, ...]:
    """Return what `ours` has otherwise than `theirs`, field by field; empty when they are the same.
    Returns a difference for each field whose values differ, by the field's name.

    Args:
        ours: a record: by field, its values in order.
        theirs: another one.
    """
    found = []
    for field in sorted({*ours, *theirs}):
        mine, other = list(ours.get(field, ())), list(theirs.get(field, ()))
        if mine != other:
            only_mine = tuple(value for value in mine if value not in other)
            only_other = tuple(value for value in other if value not in mine)
            found.append(Difference(field, only_mine, only_other))
    return tuple(found)


def _distance(found: Sequence[Difference]) -> tuple[int, int]:
    return len(found), sum(max(len(one.ours), len(one.theirs)) for one in found)


def nearest(
    store: Cache, name: str, record: Record, *, but: str = ""
) -> tuple[str, tuple[Difference, ...]] | None:
    """Return key and differences of the entry of source `name`, but `but`, nearest to `record`."""
    best: tuple[str, tuple[Difference, ...]] | None = None
    for entry in store.entries():
        if entry.name != name or entry.key == but:
            continue
        try:
            theirs = json.loads((entry.path / META).read_bytes())["record"]
            found = differences(
                record, {field: theirs[field] for field in theirs if field in record}
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # removed or damaged
        if best is None or _distance(found) < _distance(best[1]):
            best = (entry.key, found)
    return best
