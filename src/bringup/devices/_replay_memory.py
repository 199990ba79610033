"""Where a replay's memory lies, and what is known of what it holds."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Allocation", "Content", "Memory"]


class Content(enum.Enum):
    """What a replay knows of a byte of device memory."""

    UNWRITTEN = "never written"
    UNKNOWN = "not what was recorded"  # the bytes that were copied here are not in the trace
    KNOWN = "as recorded"


@dataclass
class Allocation:
    """One allocation: where it was, where it is, and what is in it.

    Attributes:
        is_shared: the host reached it without a call of the driver, so nothing is known of it.
        segments: (begin, end, content) of the bytes that were written, in order, apart.
    """

    recorded: int
    replayed: int
    size: int
    is_shared: bool = False
    segments: list[tuple[int, int, Content]] = field(default_factory=list)

    def write(self, begin: int, end: int, content: Content) -> None:
        """Bytes [begin, end) now hold something else."""
        kept = []
        for first, last, there in self.segments:
            if first < begin:
                kept.append((first, min(last, begin), there))
            if last > end:
                kept.append((max(first, end), last, there))
        kept.append((begin, end, content))
        self.segments = _joined(sorted(kept))

    def parts(self, begin: int, end: int) -> Iterator[tuple[int, int, Content]]:
        """[begin, end) as parts of one content each."""
        at = begin
        for first, last, there in self.segments:
            if last <= at or first >= end:
                continue
            if first > at:
                yield at, first, Content.UNWRITTEN
            yield max(first, at), min(last, end), there
            at = min(last, end)
        if at < end:
            yield at, end, Content.UNWRITTEN

    def content(self, begin: int, end: int) -> Content:
        """Unknown if any byte is; unwritten if the first byte is."""
        found = [content for _, _, content in self.parts(begin, end)]
        if self.is_shared or Content.UNKNOWN in found:
            return Content.UNKNOWN
        return found[0] if found else Content.KNOWN


def _joined(
    segments: list[tuple[int, int, Content]],
) -> list[tuple[int, int, Content]]:
    joined: list[tuple[int, int, Content]] = []
    for first, last, content in segments:
        if joined and joined[-1][1] == first and joined[-1][2] is content:
            joined[-1] = (joined[-1][0], last, content)
        elif first < last:
            joined.append((first, last, content))
    return joined


class Memory:
    """Live allocations by the address that they had when the trace was made."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._live: dict[int, Allocation] = {}

    def add(self, recorded: int, replayed: int, size: int) -> None:
        """New memory. One that was at its address is gone, whether or not that was recorded."""
        if recorded not in self._live:
            bisect.insort(self._bases, recorded)
        self._live[recorded] = Allocation(recorded, replayed, size)

    def remove(self, recorded: int) -> None:
        """The memory is freed."""
        if self._live.pop(recorded, None) is not None:
            self._bases.remove(recorded)

    def find(self, address: int, size: int = 1) -> Allocation | None:
        """The allocation in which these bytes lie whole."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at < 0:
            return None
        found = self._live[self._bases[at]]
        return found if address + size <= found.recorded + found.size else None

    def rest(self, address: int) -> int:
        """How many bytes there are from an address to the end of its allocation."""
        found = self.find(address)
        return 0 if found is None else found.recorded + found.size - address

    def place(self, address: int, size: int = 1) -> int | None:
        """Where an address is now, or None: it lies in no live allocation."""
        found = self.find(address, size)
        return None if found is None else found.replayed + (address - found.recorded)

    def write(self, address: int, size: int, content: Content) -> None:
        """Bytes of an allocation now hold something else."""
        if size > 0 and (found := self.find(address, size)) is not None:
            begin = address - found.recorded
            found.write(begin, begin + size, content)

    def content(self, address: int, size: int) -> Content:
        """What is known of bytes; of memory that is nobody's, nothing."""
        found = self.find(address, size)
        if found is None:
            return Content.UNKNOWN
        begin = address - found.recorded
        return found.content(begin, begin + size)

    def copy(self, target: int, source: int, size: int) -> None:
        """What is known of `source` is known of `target` now."""
        found = self.find(source, size)
        if found is None or found.is_shared:
            self.write(target, size, Content.UNKNOWN)
            return
        begin = source - found.recorded
        for first, last, content in list(found.parts(begin, begin + size)):
            self.write(target + first - begin, last - first, content)
