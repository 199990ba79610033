"""What of the code of a loop may stand before or behind it: it is read as text, line by line."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"(\w+)(?:\[[^]]*\])? [-+*/|^]?= ")
_MOVABLE = re.compile(r"\w+ tmp\d+ = |if \(.*report_fault\(.*\}$")  # a value, a check of an index
_NUMBER = re.compile(r"int64_t (\w+) = INT64_C\((-?\d+)\);")
_INDEX = re.compile(r"int64_t (\w+) = \(\(?int64_t\)\(?(?:\(?(-?\d+)\)? \+ )?(\w+)\)?;")
_COMPARED = re.compile(r"bool \w+ = (\w+) (<|<=|>|>=) (\w+);")
_ADDED = re.compile(r"atomic_add_\w+\(.*\);")
_ONE_BY_ONE = re.compile(r"\breport_fault\(|\batomic_add_")


def runs_at_once(code: Sequence[str]) -> bool:
    """Return whether the turns of a loop may run at once."""
    return not any(map(_ONE_BY_ONE.search, code))


def hoisted(indices: Sequence[str], code: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return what of the code of a loop is the same for all lanes and turns, and what is not."""
    varying = {"lane", "r0_at"}.union(*map(_ASSIGNED.findall, indices))
    while True:
        once, rest, depth, moved = [], [], 0, set[str]()
        for line in code:
            names = set(_NAME.findall(line))
            assigned = set(_ASSIGNED.findall(line))
            is_written = any("out_ptr" in name or "_lanes" in name for name in names)
            if depth == 0 and not is_written and not names & varying and _MOVABLE.match(line):
                once.append(line)
                moved |= assigned
            else:
                rest.append(line)
                varying |= assigned
            depth += line.count("{") - line.count("}")
        if not moved & varying:
            return once, rest


def cut(index: str, code: Sequence[str]) -> tuple[list[int], list[str], list[str]]:
    """Return the values of an index between which comparisons of it with numbers do not change,
    lines that compute these comparisons for one value, and the code without them.
    """
    numbers: dict[str, int] = {}
    offsets = {index: 0}
    places, before, rest, depth = set[int](), [], [], 0
    for line in code:
        flat, depth = depth == 0, depth + line.count("{") - line.count("}")
        number, same, compared = (
            pattern.fullmatch(line) if flat else None for pattern in (_NUMBER, _INDEX, _COMPARED)
        )
        if number:
            numbers[number[1]] = int(number[2])
            before.append(line)
        elif compared and compared[1] in offsets and compared[3] in numbers:
            place = numbers[compared[3]] - offsets[compared[1]]
            places.add(place + (compared[2] in ("<=", ">")))
            before.append(line)
        else:
            if same and same[3] in offsets:
                offsets[same[1]] = offsets[same[3]] + int(same[2] or 0)
                before.append(line)
            rest.append(line)
    return sorted(place for place in places if place > 0), before, rest


def added_apart(code: Sequence[str], lanes: int) -> tuple[list[str], list[str], list[str]] | None:
    """Return where each lane keeps what is added to shared places, code that may run at once and
    keeps it, and code that adds it; None where the code cannot be divided so.
    """
    added = [line for line in code if _ADDED.fullmatch(line)]
    rest = [line for line in code if not _ADDED.fullmatch(line)]
    if not added or not runs_at_once(rest):
        return None
    names = set(_NAME.findall(" ".join(added)))
    declared = [found for line in rest if (found := re.match(r"(\w+) (tmp\d+) = ", line))]
    kept = [(found[1], found[2]) for found in declared if found[2] in names]
    return (
        [f"{c_type} {name}_lanes[{lanes}];" for c_type, name in kept],
        [*rest, *(f"{name}_lanes[lane] = {name};" for _, name in kept)],
        [*(f"const {c_type} {name} = {name}_lanes[lane];" for c_type, name in kept), *added],
    )
