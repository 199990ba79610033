"""Level 2 of a replay: consecutive elementwise nodes as one C function each, in groups. Nothing
here compiles or runs (`_fuse_build.py`); functions read addresses from a table.

Exact means: results are torch's (`tests/sweeps`), half types rounded behind each operator. Where
torch itself gives two, in vectors and behind them (NaN, which zero `maximum` takes, a number times
`alpha`), a function puts back what it has overwritten and says so; then torch's kernels run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bringup.graphs._copies import overlaps_itself

# More elements are no faster in a function: conversions are no vectors in every compiler.
MOST_ELEMENTS = {"float16": 64}
_FEW_ELEMENTS, _MANY_CALLS = 4096, 3
_MOST_NODES = 48  # of a function

_STORED = {
    "float32": "float", "float64": "double", "float16": "half_t", "bfloat16": "bfloat16_t",
    "bool": "uint8_t", "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t",
    "int32": "int32_t", "int64": "int64_t",
}  # fmt: skip
_COMPUTED = {"float32": "float", "float64": "double", "float16": "float", "bfloat16": "float"}
_BYTES = {"float": 4, "double": 8, "half_t": 2, "bfloat16_t": 2, "uint8_t": 1, "int8_t": 1,
          "int16_t": 2, "int32_t": 4, "int64_t": 8}  # fmt: skip
_MOST = {"float32": 3.4028234663852886e38, "float64": math.inf, "float16": 65504.0,
         "bfloat16": 3.3895313892515355e38}  # fmt: skip

_NAN = "NAN({r})"  # of a result that is NaN where an argument is


@dataclass(frozen=True)
class Rule:
    """How an operator computes an element."""

    tensors: tuple[int, ...]  # which arguments are tensors, `{a}`, `{b}` and `{c}` of the text
    text: str  # of C, with `{n}`, `{m}` for the numbers
    # Which arguments are numbers; None in the place of one is refused.
    numbers: tuple[int, ...] = ()
    result: str = "same"  # "same" as the arguments, "bool", or "moved": bits of an argument
    rounds: bool = True  # whether a number in tensor form is rounded to the type of elements first
    unsure: str = _NAN  # negative when torch's bits depend on where the element is; "" never
    other: str = ""  # what torch may compute instead where `{b}` is one number for all
    moves_sign: bool = False  # alone, which a compiler may do elsewhere, where NaN has another one


_MACROS = ("FMA", "FABS", "NAN", "ZEROS", "DIFFER", "LEAST")  # with an F behind them for float
_EXTREME = "NAN({a}) | NAN({b}) | ZEROS({a}, {b})"
_UNARY = {"neg": "-{a}", "abs": "FABS({a})", "relu": "{a} < 0 ? 0 : {a}"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

RULES: dict[str, Rule] = {
    "add.Tensor": Rule((0, 1), "FMA({b}, {n}, {a})", (2,), other="{a} + {b} * {n}"),
    "sub.Tensor": Rule((0, 1), "FMA({b}, -{n}, {a})", (2,), other="{a} - {b} * {n}"),
    "mul.Tensor": Rule((0, 1), "{a} * {b}", rounds=False),
    "div.Tensor": Rule((0, 1), "{a} / {b}", rounds=False),
    "maximum": Rule((0, 1), "{a} > {b} ? {a} : {b}", unsure=_EXTREME),
    "minimum": Rule((0, 1), "{a} < {b} ? {a} : {b}", unsure=_EXTREME),
    **{name: Rule((0,), text, moves_sign=name != "relu") for name, text in _UNARY.items()},
    "clamp_min": Rule((0,), "{a} < {n} ? {n} : {a}", (1,)),
    "clamp_max": Rule((0,), "{a} > {n} ? {n} : {a}", (1,)),
    "clamp": Rule((0,), "LEAST({a} < {n} ? {n} : {a}, {m})", (1, 2)),
    **{
        f"{name}.{kind}": Rule(
            (0, 1) if kind == "Tensor" else (0,),
            f"{{a}} {sign} {{{'b' if kind == 'Tensor' else 'n'}}}",
            () if kind == "Tensor" else (1,),
            "bool",
            unsure="",
        )
        for name, sign in _COMPARED.items()
        for kind in ("Tensor", "Scalar")
    },
    "where.self": Rule((0, 1, 2), "{a} ? {b} : {c}", result="moved", unsure=""),
    "copy": Rule((1,), "{a}", result="moved"),
    "clone": Rule((0,), "{a}", result="moved"),
    "_to_copy": Rule((0,), "{a}", result="moved"),
    "fill.Scalar": Rule((), "{n}", (1,), unsure=""),
    "zero": Rule((), "0", unsure=""),
}


class Tensor(NamedTuple):
    """Elements in memory: strides are those of the result's dimensions."""

    address: int
    dtype: str
    strides: tuple[int, ...]

    def span(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Return the bytes from the first to behind the last element."""
        last = sum((n - 1) * s for n, s in zip(sizes, self.strides, strict=True))
        size = _BYTES[_STORED[self.dtype]]
        return self.address, self.address + (last + 1) * size


class Number(NamedTuple):
    """A number that a function reads from its table."""

    value: float
    node: int
    argument: int
    updatable: bool


@dataclass(frozen=True)
class Call:
    """One node that can be written."""

    node: int
    rule: Rule
    sizes: tuple[int, ...]
    tensors: tuple[Tensor | Number, ...]
    numbers: tuple[Number, ...]
    result: Tensor
    name: str

    @property
    def is_sure(self) -> bool:
        """Return whether an element's bits are the same everywhere: where there is one NaN, or no
        arithmetic.
        """
        tensors = {one for one in self.tensors if isinstance(one, Tensor)}
        if self.rule.result == "moved":
            return self.result.dtype in {one.dtype for one in tensors}
        is_wide = self.result.dtype in ("float32", "float64")
        is_one = len(tensors) == 1 and is_wide and not self.rule.moves_sign
        is_kept = is_one and self.rule.unsure == _NAN  # maximum(x, x) sets all bits of some
        return not self.rule.unsure or (is_kept and not self.rounds_twice)

    @property
    def rounds_twice(self) -> bool:
        """Return whether torch rounds the product of two numbers before it adds it, or does not,
        as tensors lie in memory.
        """
        if not self.rule.other:
            return False
        added, (alpha,) = self.tensors[1], self.numbers
        is_number = isinstance(added, Number) or not any(added.strides)
        return is_number and (alpha.updatable or abs(alpha.value) != 1)

    def group(self) -> Group:
        """Return a new group for such calls."""
        return Group(self.sizes)


_NO_FASTER = "of so many elements a function is no faster"


class Refused(Exception):  # not an error: why a node is not written
    """Why a node is not written."""


def _as_number(value: Any, node: int, argument: int, *, updatable: bool) -> Number:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused("a number is no plain one")
    if value != value or (isinstance(value, int) and abs(value) > 2**53):
        raise Refused("a number is NaN or too long")
    return Number(float(value), node, argument, updatable)


def as_tensor(value: Any, sizes: Sequence[int]) -> Tensor:
    """Return a tensor as the result's dimensions see it."""
    address, dtype, own, strides, _ = value
    if dtype not in _STORED:
        raise Refused(f"elements of {dtype} are not written")
    missing = len(sizes) - len(own)
    if missing < 0 or any(n not in (1, m) for n, m in zip(own, sizes[missing:], strict=True)):
        raise Refused("the result has another shape")
    seen = tuple(0 if n == 1 else s for n, s in zip(own, strides, strict=True))
    return Tensor(address, dtype, (0,) * missing + seen)


def may_share_memory(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether two elements may be one; torch lets `as_strided` views be written."""
    is_repeated = any(n > 1 and stride == 0 for n, stride in zip(sizes, strides, strict=True))
    return is_repeated or overlaps_itself(sizes, strides)


def as_call(node: int, row: tuple[str, Any, Any, bool]) -> Call:
    """Return a node as a call that is written. Raises `Refused`."""
    op, arguments, results, updatable = row
    namespace, _, name = op.partition("::")
    base, dot, overload = name.partition(".")
    in_place = base.endswith("_") and not base.endswith("__")
    rule = RULES.get(base.removesuffix("_") + dot + overload if in_place else name)
    if base in ("clamp", "clamp_") and overload == "" and None in arguments[1:3]:
        which = "clamp_min" if arguments[2] is None else "clamp_max"
        rule = replace(RULES[which], numbers=(1 if arguments[2] is None else 2,))
    if rule is None or namespace != "aten" or len(results) != 1:
        raise Refused("the operator is not among those that are written")
    sizes = tuple(results[0][2])
    result = as_tensor(results[0], sizes)
    if may_share_memory(sizes, result.strides):
        raise Refused("elements of the result share memory")
    tensors: list[Tensor | Number] = []
    for position, index in enumerate(rule.tensors):
        value = arguments[index]
        if not isinstance(value, tuple):
            raise Refused("an argument is no tensor")
        if value[4] is None:
            tensors.append(as_tensor(value, sizes))
        elif position == 0 or rule.result == "moved":
            raise Refused("an argument is a number in the place of a tensor")
        else:
            tensors.append(_as_number(value[4], node, index, updatable=False))
    numbers = [
        _as_number(arguments[index], node, index, updatable=updatable) for index in rule.numbers
    ]
    call = Call(node, rule, sizes, tuple(tensors), tuple(numbers), result, name)
    dtypes = [result.dtype, *(one.dtype for one in tensors if isinstance(one, Tensor))]
    if not 0 < math.prod(sizes) <= min(MOST_ELEMENTS.get(d, math.inf) for d in dtypes):
        raise Refused(_NO_FASTER)
    _check_types(call)
    return call


def _check_types(call: Call) -> None:
    given = [one.dtype for one in call.tensors if isinstance(one, Tensor)]
    if call.rule.result == "moved":
        if given[0] == "bool" and len(given) == 3:
            given = given[1:]
            if {*given} == {call.result.dtype}:
                return
        elif len(given) == 1:
            (source,) = given
            if source == call.result.dtype or (
                call.result.dtype in _COMPUTED and (source in _COMPUTED or source == "bool")
            ):
                return
        raise Refused("an argument is converted")
    dtype = given[0] if given else call.result.dtype
    expected = "bool" if call.rule.result == "bool" else dtype
    if {*given} - {dtype} or call.result.dtype != expected:
        raise Refused("an argument is converted")
    if dtype not in _COMPUTED:
        raise Refused(f"{dtype} is not written, only copied")
    half = dtype in ("float16", "bfloat16")
    for number in call.numbers:
        alpha = call.name.startswith(("add", "sub"))
        if half and alpha and (number.updatable or number.value != 1):
            raise Refused("torch rounds alpha times an argument of half types in two ways")
        if math.isfinite(number.value) and abs(number.value) > _MOST[dtype]:
            raise Refused("a number is beyond its type")


@dataclass
class Group:
    """Calls in one loop nest: what one writes no other reads or writes, but at the same element."""

    sizes: tuple[int, ...]
    calls: list[Call] = field(default_factory=list)
    reads: set[Tensor] = field(default_factory=set)  # that nothing before wrote
    writes: set[Tensor] = field(default_factory=set)

    def takes(self, call: Call) -> bool:
        """Return whether the call may be one more."""
        if call.sizes != self.sizes or len(self.calls) == _MOST_NODES:
            return False
        reads = {one for one in call.tensors if isinstance(one, Tensor)}
        everything = self.reads | self.writes | reads | {call.result}
        pairs = [(call.result, other) for other in everything]
        pairs += [(one, other) for one in reads for other in self.writes]
        return not any(one != other and self._meet(one, other) for one, other in pairs)

    def _meet(self, one: Tensor, other: Tensor) -> bool:
        (a, b), (c, d) = one.span(self.sizes), other.span(self.sizes)
        return a < d and c < b

    def add(self, call: Call) -> None:
        """Take one more."""
        self.reads |= {one for one in call.tensors if isinstance(one, Tensor)} - self.writes
        self.writes.add(call.result)
        self.calls.append(call)

    @property
    def is_sure(self) -> bool:
        """Return whether torch gives one result."""
        return all(call.is_sure for call in self.calls)

    def why_not(self) -> str:
        """Return why it is no function, or nothing: with many elements one is faster that walks
        through memory less often, and needs no copy of what it overwrites.
        """
        copies = not self.is_sure and self.reads & self.writes
        saves = len(self.calls) >= _MANY_CALLS and not copies
        return "" if saves or math.prod(self.sizes) <= _FEW_ELEMENTS else _NO_FASTER


def groups_of(
    rows: Sequence[Any], read: Callable[[int, Any], Any] = as_call
) -> tuple[list[Group], list[str]]:
    """Return the groups of what `Graph.fusable` gives, which `read` makes calls of, and for each
    node why it is in none.
    """
    groups: list[Group] = []
    reasons: list[str] = []
    current: Group | None = None
    for node, row in enumerate(rows):
        reason = row if isinstance(row, str) else ""
        if not reason:
            try:
                call = read(node, row)
                new = call.group()
                if current is None or type(current) is not type(new) or not current.takes(call):
                    current = new
                    if not current.takes(call):
                        raise Refused("its result lies over an argument")
                    groups.append(current)
                current.add(call)
            except Refused as refused:
                reason = str(refused)
        if reason:
            current = None
        reasons.append(reason)
    taken = []
    for group in groups:
        reason = group.why_not()
        for call in group.calls:
            reasons[call.node] = reason
        if not reason:
            taken.append(group)
    return taken, reasons


@dataclass(frozen=True)
class Uses:
    """Who uses which memory.

    Attributes:
        nodes: for each node (address, bytes, whether it fills them) of what it reads and writes;
            None: it may read anything.
        own: addresses, first and behind last, of what the graph alone uses, with its handles.
        held: of what has handles.
    """

    nodes: Sequence[Sequence[tuple[int, int, bool]] | None]
    own: Sequence[tuple[int, int]]
    held: Sequence[tuple[int, int]]

    def is_dead(self, begin: int, end: int, node: int) -> bool:
        """Return whether nothing reads these addresses behind this node before they are filled."""
        if not any(a <= begin and end <= b for a, b in self.own):
            return False
        for used in self.nodes[node + 1 :]:
            if used is None or any(a < end and begin < a + n for a, n, fills in used if not fills):
                return False
            if any(a <= begin and end <= a + n for a, n, fills in used if fills):
                return True
        return not any(a < end and begin < b for a, b in self.held)


def dead_in(group: Group, uses: Uses) -> set[Tensor]:
    """Return what a group's function need not write: it keeps the values for its own calls."""
    last = group.calls[-1].node
    return {one for one in group.writes if uses.is_dead(*one.span(group.sizes), last)}


@dataclass(frozen=True)
class Written:
    """A function and what it is called with."""

    body: str  # behind the function's name
    addresses: tuple[int, ...]
    numbers: tuple[Number, ...]
    most: tuple[float, ...]  # of each number
    turns: int  # of the outermost loop
    elements: int
    writes: tuple[tuple[int, int], ...]  # address, bytes
    saved: tuple[tuple[int, int], ...]  # of these, what is read before, and matters if unsure


class Writer:
    """Writes the function of one group, and nothing to what is `dead`."""

    def __init__(self, group: Group, dead: set[Tensor]) -> None:
        self.group = group
        self.stored = group.writes - dead
        self.tensors: list[Tensor] = []
        self.numbers: list[Number] = []
        self.most: list[float] = []
        self.head: list[str] = []
        self.inner: list[str] = []
        self.values: dict[Tensor, str] = {}  # variables with the elements as they are stored
        self.unsure: dict[str, list[str]] = {}  # by type
        self.count = 0

    def write(self) -> Written:
        """Return the function."""
        group = self.group
        for call in group.calls:
            self._write_call(call)
        for tensor in sorted(self.stored, key=self.tensors.index):
            self.inner.append(f"{self._element(tensor)} = {self.values[tensor]};")
        nest = self._nest()
        saved = group.reads & self.stored if self.unsure else set()
        lines = [
            *(
                f"{_STORED[t.dtype]}* const p{k} = (void*)p[{k}];"
                for k, t in enumerate(self.tensors)
            ),
            *self.head,
            *(f"{kind} unsure_{kind} = 0;" for kind in self.unsure),
            *nest,
            f"return {' | '.join(f'(unsure_{kind} < 0)' for kind in self.unsure) or 0};",
        ]
        return Written(
            "\n".join(lines),
            tuple(one.address for one in self.tensors),
            tuple(self.numbers),
            tuple(self.most),
            self.turns,
            math.prod(group.sizes),
            self._memory(self.stored),
            self._memory(saved),
        )

    def _memory(self, tensors: set[Tensor]) -> tuple[tuple[int, int], ...]:
        spans = (one.span(self.group.sizes) for one in tensors)
        return tuple((a, b - a) for a, b in sorted(spans))

    def _place(self, tensor: Tensor) -> int:
        if tensor not in self.tensors:
            self.tensors.append(tensor)
        return self.tensors.index(tensor)

    def _element(self, tensor: Tensor) -> str:
        return f"p{self._place(tensor)}[@{self._place(tensor)}@]"  # completed by _nest

    def _variable(self, kind: str, text: str) -> str:
        name = f"v{self.count}"
        self.count += 1
        self.inner.append(f"const {kind} {name} = {text};")
        return name

    def _stored(self, tensor: Tensor) -> str:
        """Return a variable with the element as it lies in memory."""
        if tensor not in self.values:
            self.values[tensor] = self._variable(_STORED[tensor.dtype], self._element(tensor))
        return self.values[tensor]

    def _number(self, number: Number, dtype: str, *, rounds: bool) -> str:
        position = len(self.numbers)
        self.numbers.append(number)
        self.most.append(_MOST[dtype])
        kind = _COMPUTED[dtype]
        text = f"({kind})n[{position}]"
        if rounds:
            text = _widened(_narrowed(text, dtype), dtype)
        self.head.append(f"const {kind} n{position} = {text};")
        return f"n{position}"

    def _write_call(self, call: Call) -> None:
        rule, result = call.rule, call.result
        if result in self.stored:
            self._place(result)
        if rule.result == "moved":
            stored = [self._stored(one) for one in call.tensors if isinstance(one, Tensor)]
            last = call.tensors[-1]
            assert isinstance(last, Tensor)
            text = rule.text.format(**dict(zip("abc", stored, strict=False)))
            if last.dtype != result.dtype:
                kind = _COMPUTED[result.dtype]
                text = f"({text} != 0)" if last.dtype == "bool" else _widened(text, last.dtype)
                wide = self._variable(kind, f"({kind}){text}")
                if last.dtype != "bool":
                    self._note(kind, _of_kind(f"NAN({wide})", kind))
                text = _narrowed(wide, result.dtype)
            self.values[result] = self._variable(_STORED[result.dtype], text)
            return
        first = next((one for one in call.tensors if isinstance(one, Tensor)), result)
        dtype = first.dtype
        kind = _COMPUTED[dtype]
        names: dict[str, str] = {}
        for letter, one in zip("ab", call.tensors, strict=False):
            if isinstance(one, Tensor):
                names[letter] = self._variable(kind, _widened(self._stored(one), dtype))
            else:
                names[letter] = self._number(one, dtype, rounds=rule.rounds)
        for letter, one in zip("nm", call.numbers, strict=False):
            names[letter] = self._number(one, dtype, rounds=True)
        text = _of_kind(rule.text.format(**names), kind)
        if rule.result == "bool":
            self.values[result] = self._variable("uint8_t", text)
            return
        computed = self._variable(kind, text)
        if call.rounds_twice:
            differs = f"DIFFER({computed}, {rule.other.format(**names)})"
            self._note(kind, _of_kind(differs, kind))
        if rule.unsure and not self._shows_later(call):
            self._note(kind, _of_kind(rule.unsure.format(r=computed, **names), kind))
        self.values[result] = self._variable(
            _STORED[result.dtype], _narrowed(computed, result.dtype)
        )

    def _shows_later(self, call: Call) -> bool:
        """Return whether a later call's result is NaN where this one's is, and says so."""
        if call.rule.unsure != _NAN or call.result.dtype not in ("float32", "float64"):
            return False
        for later in self.group.calls[self.group.calls.index(call) + 1 :]:
            if call.result in later.tensors and later.rule.unsure == _NAN:
                return later.rule.result == "same"
            if later.result == call.result:
                return False
        return False

    def _note(self, kind: str, condition: str) -> None:
        """Let the function say that it is not sure where the number is negative."""
        if self.group.is_sure:
            return
        flag = "int32_t" if kind == "float" else "int64_t"
        self.unsure.setdefault(flag, [])
        self.inner.append(f"unsure_{flag} |= {condition};")

    def _nest(self) -> list[str]:
        """Return the loops, over as few dimensions as there are in memory."""
        sizes, strides = collapsed(self.group.sizes, self.tensors)
        self.turns = sizes[0] if sizes else 1
        lines = [] if sizes else ["(void)first, (void)last;"]
        for d, size in enumerate(sizes):
            if d == len(sizes) - 1:
                lines.append("#pragma GCC ivdep")
            begin, end = (0, size) if d else ("first", "last")
            lines.append(f"for (int64_t i{d} = {begin}; i{d} < {end}; ++i{d}) {{")
        for line in self.inner:
            for k, own in enumerate(strides):
                index = " + ".join(
                    f"i{d}" if s == 1 else f"i{d} * {s}" for d, s in enumerate(own) if s
                )
                line = line.replace(f"[@{k}@]", f"[{index or 0}]")
            lines.append(line)
        return [*lines, "}" * len(sizes)]


def _of_kind(text: str, kind: str) -> str:
    for macro in _MACROS if kind == "float" else ():
        text = text.replace(macro + "(", macro + "F(")
    return text


def _widened(text: str, dtype: str) -> str:
    """Return what is computed with of an element in memory."""
    if dtype == "bfloat16":
        return f"load_bfloat16({text})"
    return f"(float){text}" if dtype == "float16" else text


def _narrowed(text: str, dtype: str) -> str:
    if dtype == "bfloat16":
        return f"store_bfloat16({text})"
    return f"(half_t)({text})" if dtype == "float16" else text


def collapsed(sizes: Sequence[int], tensors: Sequence[Tensor]) -> tuple[list[int], list[list[int]]]:
    """Return sizes and the strides of each tensor without dimensions that are not needed."""
    order = [d for d in range(len(sizes)) if sizes[d] > 1]
    order.sort(key=lambda d: [-t.strides[d] for t in tensors])
    kept: list[int] = []
    strides: list[list[int]] = [[] for _ in tensors]
    for d in order:
        own = [t.strides[d] for t in tensors]
        if kept and all(s[-1] == o * sizes[d] for s, o in zip(strides, own, strict=True)):
            kept[-1] *= sizes[d]
            for s, o in zip(strides, own, strict=True):
                s[-1] = o
        else:
            kept.append(sizes[d])
            for s, o in zip(strides, own, strict=True):
                s.append(o)
    return kept, strides
