"""Where a replay's memory lies, and what is known of what it holds."""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass, field


class Content(enum.Enum):
    """What a replay knows of a byte of device memory."""

    UNWRITTEN = "never written"
    UNKNOWN = "not what was recorded"  # the bytes that were copied here are not in the trace
    KNOWN = "as recorded"


@dataclass
class Allocation:
    """One allocation: where it was, where it is, and what is in it."""

    recorded: int
    replayed: int
    size: int
    # The host reached it without a call of the driver, so nothing is known of it.
    is_shared: bool = False
    # (place, content): what the bytes hold from there to the next place; in order, neighbours
    # differ.
    steps: list[tuple[int, Content]] = field(default_factory=lambda: [(0, Content.UNWRITTEN)])

    def write(self, begin: int, end: int, content: Content) -> None:
        """Note that bytes [begin, end) hold something else now."""
        after = self.parts(end, end + 1)[0][2]
        steps = [step for step in self.steps if step[0] < begin]
        if not steps or steps[-1][1] is not content:
            steps.append((begin, content))
        if after is not content:
            steps.append((end, after))
        self.steps = steps + [step for step in self.steps if step[0] > end]

    def parts(self, begin: int, end: int) -> list[tuple[int, int, Content]]:
        """Return [begin, end) as parts of one content each."""
        ends = [place for place, _ in self.steps[1:]] + [max(end, self.size)]
        return [
            (max(first, begin), min(last, end), content)
            for (first, content), last in zip(self.steps, ends, strict=True)
            if first < end and last > begin
        ]

    def content(self, begin: int, end: int) -> Content:
        """Return UNKNOWN if any byte is; UNWRITTEN if the first byte is."""
        found = [content for _, _, content in self.parts(begin, end)]
        if self.is_shared or Content.UNKNOWN in found:
            return Content.UNKNOWN
        return found[0] if found else Content.KNOWN


class Memory:
    """Live allocations by the address that they had when the trace was made."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._live: dict[int, Allocation] = {}

    def add(self, recorded: int, replayed: int, size: int) -> None:
        if recorded not in self._live:
            bisect.insort(self._bases, recorded)
        self._live[recorded] = Allocation(recorded, replayed, size)

    def remove(self, recorded: int) -> None:
        if self._live.pop(recorded, None) is not None:
            self._bases.remove(recorded)

    def find(self, address: int, size: int = 1) -> Allocation | None:
        """Return the allocation in which these bytes lie whole."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at < 0:
            return None
        found = self._live[self._bases[at]]
        return found if address + size <= found.recorded + found.size else None

    def rest(self, address: int) -> int:
        """Return how many bytes there are from an address to the end of its allocation."""
        found = self.find(address)
        return 0 if found is None else found.recorded + found.size - address

    def place(self, address: int, size: int = 1) -> int | None:
        """Return where an address is now, or None: it lies in no live allocation."""
        found = self.find(address, size)
        return None if found is None else found.replayed + (address - found.recorded)

    def write(self, address: int, size: int, content: Content) -> None:
        if size > 0 and (found := self.find(address, size)) is not None:
            begin = address - found.recorded
            found.write(begin, begin + size, content)

    def content(self, address: int, size: int) -> Content:
        """Return what is known of bytes; of memory in no allocation, nothing."""
        found = self.find(address, size)
        if found is None:
            return Content.UNKNOWN
        begin = address - found.recorded
        return found.content(begin, begin + size)

    def copy(self, target: int, source: int, size: int) -> None:
        """Know of `target` what is known of `source`."""
        found = self.find(source, size)
        if found is None or found.is_shared:
            self.write(target, size, Content.UNKNOWN)
            return
        begin = source - found.recorded
        for first, last, content in found.parts(begin, begin + size):
            self.write(target + first - begin, last - first, content)
