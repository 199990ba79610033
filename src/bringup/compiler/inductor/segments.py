"""The loops of a kernel: pieces of code between which its reductions are finished, and the three
ways in which they are put together.

In the code of a segment an accumulator is spelled `acc0@`: each way says what stands for the `@`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bringup.compiler.inductor.functions import TYPES, literal
from bringup.compiler.inductor.loop_code import added_apart, cut, hoisted, runs_at_once

LANE = "_lanes[lane]"
_MOST_ENDS = 8  # of parts of a row, in each of which no comparison of its index changes


@dataclass(frozen=True)
class Accumulator:
    """One variable that a reduction keeps."""

    name: str
    c_type: str
    start: str


@dataclass(frozen=True)
class Reduction:
    """What is kept while a loop runs, and how the lanes of it become one.

    Attributes:
        parts: the variables.
        combine: lines that add lane `lane` of the variables, `acc0_lanes[lane]`, to `acc0`.
    """

    parts: tuple[Accumulator, ...]
    combine: tuple[str, ...]


@dataclass
class Segment:
    """A loop over what is reduced, or code between two such loops.

    Attributes:
        loops: whether it is a loop.
        indices: lines that name parts of the reduced index.
        code: for each element.
        after: what is stored when the loop is over, or by code between loops.
        reductions: what the loop keeps.
        welford: the C types for which the loop needs the inverse of the count.
    """

    loops: bool
    indices: list[str]
    code: Any
    after: Any
    reductions: tuple[Reduction, ...] = ()
    welford: tuple[str, ...] = ()


def extreme(kind: str, dtype: torch.dtype) -> str:
    """Return what any number is greater (`max`) or less (`min`) than, or equal to."""
    if dtype.is_floating_point:
        return literal(-torch.inf if kind == "max" else torch.inf, dtype)
    if dtype is torch.bool:
        return literal(kind == "min", dtype)
    info = torch.iinfo(dtype)
    return literal(info.min if kind == "max" else info.max, dtype)


def folding(name: str, kind: str, dtype: torch.dtype, value: Any) -> tuple[Reduction, str]:
    """Return a reduction to one variable of `dtype`, and the line that takes in `value`."""
    # A loop with a variable of type bool in it is not made one of vectors.
    c_type = "int32_t" if dtype is torch.bool else TYPES[dtype]
    start, step = _FOLDS[kind]
    if kind in ("max", "min"):
        start = extreme(kind, dtype)
        step = f"{kind}_{c_type}({{0}}, {{1}})"
    elif kind in ("sum", "prod"):
        start = literal(int(start), dtype)

    def line(variable: str, other: Any) -> str:
        return f"{variable} = ({c_type})({step.format(variable, other)});"

    made = Reduction((Accumulator(name, c_type, start),), (line(name, f"{name}{LANE}"),))
    return made, line(f"{name}@", value)


_FOLDS = {
    "sum": ("0", "{0} + {1}"),
    "prod": ("1", "{0} * {1}"),
    "max": ("", ""),
    "min": ("", ""),
    "any": ("false", "{0} | {1}"),
    "xor_sum": ("0", "{0} ^ {1}"),
}


def finding(
    best: str, where: str, kind: str, dtype: torch.dtype, value: Any, index: str
) -> tuple[Reduction, str]:
    """Return a reduction to the first place of the greatest or least value, NaN before all."""
    c_type, sign = TYPES[dtype], ">" if kind == "argmax" else "<"
    parts = (
        Accumulator(best, c_type, extreme(kind[3:], dtype)),
        Accumulator(where, "int64_t", "-1"),
    )

    def better(value: str, kept: str) -> str:
        return f"({value} {sign} {kept} || ({value} != {value} && {kept} == {kept}))"

    def same(value: str, kept: str) -> str:
        return f"({value} == {kept} || ({value} != {value} && {kept} != {kept}))"

    line = (
        f"if ({where}@ < 0 || {better(str(value), f'{best}@')}) "
        f"{{ {best}@ = {value}; {where}@ = {index}; }}"
    )
    other, place = f"{best}{LANE}", f"{where}{LANE}"
    combine = (
        f"if ({place} >= 0 && ({where} < 0 || {better(other, best)} || "
        f"({same(other, best)} && {place} < {where}))) {{ {best} = {other}; {where} = {place}; }}",
    )
    return Reduction(parts, combine), line


def welford(names: Sequence[str], c_type: str, value: Any) -> tuple[Reduction, str]:
    """Return a reduction to mean, sum of squared differences and count, and the line that takes in
    `value`: Welford, Note on a method for calculating corrected sums of squares (1962).
    """
    mean, squares, count = names
    parts = tuple(Accumulator(name, c_type, "0") for name in names)
    line = (
        f"{{ const {c_type} difference = {value} - {mean}@; {mean}@ += difference * "
        f"inverse_{c_type}; {squares}@ += difference * ({value} - {mean}@); {count}@ += 1; }}"
    )
    lanes = [f"{name}{LANE}" for name in names]
    return Reduction(parts, (welford_step(names, lanes, c_type),)), line


def welford_step(kept: Sequence[str], other: Sequence[Any], c_type: str) -> str:
    """Return a line that adds the three numbers `other` to those `kept`: Chan, Golub and LeVeque,
    Updating formulae and a pairwise algorithm for computing sample variances (1979).
    """
    mean, squares, count = kept
    other_mean, other_squares, other_count = other
    return (
        f"{{ const {c_type} total = {count} + {other_count}, "
        f"share = total == 0 ? 0 : {other_count} / total, "
        f"difference = {other_mean} - {mean}; {mean} += difference * share; "
        f"{squares} += {other_squares} + difference * difference * {count} * share; "
        f"{count} = total; }}"
    )


@dataclass(frozen=True)
class Row:
    """The innermost dimension of what a kernel computes.

    Attributes:
        length: as text.
        name: of its index.
        constant: the names of indices that are the same in all of a row.
    """

    length: str
    name: str
    constant: frozenset[str]


@dataclass(frozen=True)
class Across:
    """What is read along the rows of a square while the others go across them.

    Attributes:
        text: the expression that reads an element.
        c_type: of its value.
        source: of a square whose rows lie side by side in memory, in 4 bytes an element: the
            address of an element, as text, and how far the next one of a row is; empty otherwise.
    """

    text: str
    c_type: str
    source: tuple[str, int] | tuple[()]


@dataclass
class Nest:
    """Puts the segments of one kernel together.

    Attributes:
        count: the number of results, as text.
        reduced: how many elements each has, as text.
        indices: lines that name parts of `xindex`.
        segments: in order.
        lanes: how many elements are computed side by side.
        row: the innermost dimension, where no other index but that of all elements changes along
            it.
        across: for `tiles`.
    """

    count: str
    reduced: str
    indices: dict[str, str]
    segments: list[Segment]
    lanes: int
    row: Row | None = None
    across: Sequence[Across] = ()

    TILE = 128  # results side by side where what is reduced lies behind them: some lines of a cache
    SIDE = 16  # of a square: a line of 64 bytes, and few enough of them for a cache

    def plain(self) -> list[str]:
        """Return one result after the other, as the threads of a device take them."""
        lines = [
            f"for (int64_t xindex = BRINGUP_FIRST({self.count}); xindex < BRINGUP_LAST"
            f"({self.count}); xindex += BRINGUP_STEP) {{",
            *self._one_by_one(),
        ]
        return [*lines, "}"]

    def threads(self, threads: int) -> list[str]:
        """Return one result a thread, without a loop: compilers make vectors of threads."""
        return [
            f"const int64_t xindex = BRINGUP_BLOCK * {threads} + BRINGUP_THREAD;",
            f"if (xindex < {self.count}) {{",
            *self._one_by_one(),
            "}",
        ]

    def _one_by_one(self) -> list[str]:
        lines = self._named()
        for segment in self.segments:
            if not segment.loops:
                lines += _between(segment)
                continue
            lines += [f"{p.c_type} {p.name} = {p.start};" for p in _parts(segment)]
            lines.append(f"for (int64_t r0_index = 0; r0_index < {self.reduced}; ++r0_index) {{")
            lines += _inverses(segment, "r0_index + 1")
            lines += [*segment.indices, *_lines(segment.code, ""), "}"]
            lines += _lines(segment.after, "")
        return lines

    def grouped(self, threads: int) -> list[str]:
        """Return one result a block of threads, all of which come to every barrier."""
        shared = [part for segment in self.segments for part in _parts(segment)]
        lines = [f"BRINGUP_LOCAL {p.c_type} {p.name}_lanes[{threads}];" for p in shared]
        lines += [
            "const int64_t thread = BRINGUP_THREAD, xindex = BRINGUP_BLOCK;",
            *self._named(),
        ]
        # As many turns for every thread: where they wait for each other in each, compilers for
        # processors make vectors of threads; what Welford keeps for each would go through memory.
        together = [] if any(one.welford for one in self.segments) else ["BRINGUP_TOGETHER();"]
        is_whole = self.reduced.isdigit() and int(self.reduced) % threads == 0
        for segment in self.segments:
            if segment.loops:
                parts = _parts(segment)
                lines += [f"{p.c_type} {p.name} = {p.start};" for p in parts]
                lines += [
                    f"for (int64_t r0_at = 0; r0_at < {self.reduced}; r0_at += {threads}) {{",
                    *_inverses(segment, f"r0_at / {threads} + 1"),
                    "const int64_t r0_index = r0_at + thread;",
                    "{" if is_whole else f"if (r0_index < {self.reduced}) {{",
                    *segment.indices,
                    *_lines(segment.code, ""),
                    "}",
                    *together,
                    "}",
                    *(_combined(segment, threads) if parts else ()),
                ]
            else:
                lines += _lines(segment.code, "")
            if stores := _lines(segment.after, ""):
                lines += ["BRINGUP_BARRIER();", "if (thread == 0) {", *stores, "}"]
                lines += ["BRINGUP_BARRIER();"]
        return lines

    def rows(self) -> list[str]:
        """Return elements in rows of the innermost dimension: no division within a row."""
        row = self.row or Row(self.count, "", frozenset())
        length, name = row.length, row.name
        outer, along = self._split(row)
        body = ["const int64_t xindex = x_at + lane;", "(void)xindex;"]
        body += [f"const int64_t {name} = x_begin + lane;"] if name else []
        code = [line for segment in self.segments for line in _between(segment)]
        ends, compared, others = cut(name, code)
        if 0 < len(ends) <= _MOST_ENDS:
            code, once = others, [f"const int64_t {name} = x_begin;", *compared]
        else:
            ends, once = [], []
        before, code = hoisted([*body, *along], code)
        end = f"({length})"
        if ends:  # some may be beyond the row
            parts = "".join(f"x_begin < {place} ? {place} : " for place in ends)
            end = f"min_int64_t({parts}{end}, {length})"
        return [
            f"const int64_t x_last = BRINGUP_LAST({self.count});",
            f"for (int64_t x_at = BRINGUP_FIRST({self.count}); x_at < x_last;) {{",
            f"const int64_t x_begin = x_at % {length};",
            f"const int64_t x_end = {end};",
            "const int64_t x_count = min_int64_t(x_end - x_begin, x_last - x_at);",
            "const int64_t xindex = x_at;",
            "(void)xindex;",
            *outer,
            *once,
            *before,
            *_simd(code),
            "for (int64_t lane = 0; lane < x_count; ++lane) {",
            *body,
            *along,
            *code,
            "}",
            "x_at += x_count;",
            "}",
        ]

    def tiles(self) -> list[str]:
        """Return elements in squares, where memory lies along the other side: it is read once."""
        row, side = self.row or Row(self.count, "", frozenset()), self.SIDE
        return [
            f"const int64_t x_rows = {self.count} / {row.length};",
            f"const int64_t x_bands = (x_rows + {side - 1}) / {side};",
            f"const int64_t row_last = min_int64_t(BRINGUP_LAST(x_bands) * {side}, x_rows);",
            f"int64_t row_at = BRINGUP_FIRST(x_bands) * {side};",
            f"for (; row_at < row_last; row_at += {side}) {{",
            f"const int64_t rows = min_int64_t({side}, row_last - row_at);",
            f"for (int64_t x_at = 0; x_at < {row.length}; x_at += {side}) {{",
            f"const int64_t lanes = min_int64_t({side}, {row.length} - x_at);",
            f"if (rows == {side} && lanes == {side}) {{",
            *self._tile(row, (str(side), str(side))),
            "} else {",
            *self._tile(row, ("rows", "lanes")),
            *["}"] * 3,
        ]

    def _tile(self, row: Row, size: tuple[str, str]) -> list[str]:
        """Return lines for one square: a compiler unrolls loops of a number that it knows."""
        outer, along = self._split(row)
        lines = []
        for number, one in enumerate(self.across):
            lines += self._square(f"square{number}", one, [*outer, *along], row, size)
        lines += [
            f"for (int64_t line = 0; line < {size[0]}; ++line) {{",
            "const int64_t row = row_at + line;",
            f"const int64_t xindex = row * {row.length};",
            "(void)xindex;",
            *outer,
        ]
        code = [line for segment in self.segments for line in _between(segment)]
        for number, one in enumerate(self.across):
            element = f"square{number}[line][lane]"
            code = [line.replace(f" = {one.text};", f" = {element};") for line in code]
        return [
            *lines,
            *_simd(code),
            f"for (int64_t lane = 0; lane < {size[1]}; ++lane) {{",
            f"const int64_t {row.name} = x_at + lane;",
            f"const int64_t xindex = row * {row.length} + {row.name};",
            "(void)xindex;",
            *along,
            *code,
            "}",
            "}",
        ]

    def _square(
        self, to: str, read: Across, indices: list[str], row: Row, size: tuple[str, str]
    ) -> list[str]:
        """Return lines that copy a square of what is read, as it lies, into one of rows."""
        side, name = self.SIDE, row.name
        declared = f"{read.c_type} {to}[{side}][{side}];"
        index = [f"const int64_t xindex = row * {row.length} + {name};", "(void)xindex;", *indices]
        if read.source and size == (str(side), str(side)):
            address, step = read.source
            return [
                declared,
                "{",
                f"const int64_t row = row_at, {name} = x_at;",
                *index,
                f"transpose_square(&{to}[0][0], {address}, {step});",
                "}",
            ]
        return [
            declared,
            f"for (int64_t lane = 0; lane < {size[1]}; ++lane) {{",
            f"for (int64_t line = 0; line < {size[0]}; ++line) {{",
            f"const int64_t row = row_at + line, {name} = x_at + lane;",
            *index,
            f"{to}[line][lane] = {read.text};",
            "}",
            "}",
        ]

    def inner(self) -> list[str]:
        """Return lanes of what is reduced, for elements of a result that lie side by side."""
        lanes = self.lanes
        lines = [
            f"for (int64_t xindex = BRINGUP_FIRST({self.count}); xindex < BRINGUP_LAST"
            f"({self.count}); ++xindex) {{",
            *self._named(),
        ]
        for segment in self.segments:
            if not segment.loops:
                lines += _between(segment)
                continue
            body = ["const int64_t r0_index = r0_at + lane;", *segment.indices]
            once, code = hoisted(body, _lines(segment.code, LANE))
            arrays, first, then = added_apart(code, lanes) or ([], code, [])
            loop = f"for (int lane = 0; lane < {lanes}; ++lane) {{"
            for part in _parts(segment):
                lines += _started(part, lanes, str(lanes))
            inverses = _inverses(segment, f"r0_at / {lanes} + 1")
            lines += [
                "{",
                *once,
                "int64_t r0_at = 0;",
                f"for (; r0_at + {lanes} <= {self.reduced}; r0_at += {lanes}) {{",
                *inverses,
                *arrays,
                *_simd(first),
                *[loop, *body, *first, "}"],
                *([loop, *body, *then, "}"] if then else ()),
                "}",
                *inverses,
                f"for (int64_t lane = 0; r0_at + lane < {self.reduced}; ++lane) {{",
                *[*body, *code, "}"],
                "}",
                *_halved(segment, lanes),
                *_lines(segment.after, ""),
            ]
        return [*lines, "}"]

    def outer(self) -> list[str]:
        """Return lanes of results, for what is reduced of each lying behind the next one's."""
        tile = self.TILE
        lines = [
            f"const int64_t x_tiles = ({self.count} + {tile - 1}) / {tile};",
            f"const int64_t x_last = min_int64_t(BRINGUP_LAST(x_tiles) * {tile}, {self.count});",
            f"int64_t x_at = BRINGUP_FIRST(x_tiles) * {tile};",
            f"for (; x_at < x_last; x_at += {tile}) {{",
            f"const int64_t x_count = min_int64_t({tile}, x_last - x_at);",
        ]
        for segment in self.segments:
            for part in _parts(segment):
                lines += _started(part, tile, "x_count")
        done: list[Accumulator] = []
        for segment in self.segments:
            if segment.loops:
                lines.append(
                    f"for (int64_t r0_index = 0; r0_index < {self.reduced}; ++r0_index) {{"
                )
                lines += _inverses(segment, "r0_index + 1")
                lines += self._lane_loop(done, [*segment.indices, *_lines(segment.code, LANE)])
                lines.append("}")
                done += _parts(segment)
            text = _lines(segment.after, "") if segment.loops else _between(segment)
            if text:
                lines += self._lane_loop(done, text)
        return [*lines, "}"]

    def _lane_loop(self, done: Iterable[Accumulator], code: list[str]) -> list[str]:
        text = "\n".join(code)
        known = [f"const {p.c_type} {p.name} = {p.name}{LANE};" for p in done if p.name in text]
        head = ["for (int64_t lane = 0; lane < x_count; ++lane) {"]
        index = ["const int64_t xindex = x_at + lane;", "(void)xindex;", *self._named()]
        return [*_simd(code), *head, *index, *known, *code, "}"]

    def _split(self, row: Row) -> tuple[list[str], list[str]]:
        """Return lines for indices that are the same in a row, and for those that are not."""
        others = {index: line for index, line in self.indices.items() if index != row.name}
        return (
            [line for index, line in others.items() if index in row.constant],
            [line for index, line in others.items() if index not in row.constant],
        )

    def _named(self) -> list[str]:
        return list(self.indices.values())


def _parts(segment: Segment) -> list[Accumulator]:
    return [part for one in segment.reductions for part in one.parts]


def _lines(code: Any, at: str) -> list[str]:
    text: str = code.getvalue().replace("@", at)
    return text.splitlines()


def _between(segment: Segment) -> list[str]:
    return _lines(segment.code, "") + _lines(segment.after, "")


def _inverses(segment: Segment, count: str) -> list[str]:
    return [f"const {one} inverse_{one} = 1 / ({one})({count});" for one in segment.welford]


def _simd(code: Sequence[str]) -> list[str]:
    return ["#pragma omp simd"] * runs_at_once(code)


def _halved(segment: Segment, lanes: int) -> list[str]:
    """Return lines that make one of what the lanes have, half of them at a time."""
    parts = _parts(segment)
    combine = [line for one in segment.reductions for line in one.combine]
    lines = []
    while lanes > 1 and combine:
        lanes //= 2
        lines += [
            *_simd([]),
            f"for (int other = 0; other < {lanes}; ++other) {{",
            f"const int lane = other + {lanes};",
            *(f"{p.c_type} {p.name} = {p.name}_lanes[other];" for p in parts),
            *combine,
            *(f"{p.name}_lanes[other] = {p.name};" for p in parts),
            "}",
        ]
    return lines + [f"{p.c_type} {p.name} = {p.name}_lanes[0];" for p in parts]


def _combined(segment: Segment, threads: int) -> list[str]:
    """Return lines that make one of what the threads of a block have, for all of them."""
    parts = _parts(segment)
    kept = [f"{p.name}_lanes[thread] = {p.name};" for p in parts]
    combine = [line for one in segment.reductions for line in one.combine]
    return [
        *kept,
        "BRINGUP_BARRIER();",
        f"for (int span = {threads // 2}; span > 0; span /= 2) {{",
        "if (thread < span) {",
        "const int lane = (int)thread + span;",
        *combine,
        *kept,
        "}",
        "BRINGUP_BARRIER();",
        "}",
        *(f"{p.name} = {p.name}_lanes[0];" for p in parts),
        "BRINGUP_BARRIER();",
    ]


def _started(part: Accumulator, room: int, count: str) -> list[str]:
    return [
        f"{part.c_type} {part.name}_lanes[{room}];",
        f"for (int64_t lane = 0; lane < {count}; ++lane) {part.name}{LANE} = {part.start};",
    ]
