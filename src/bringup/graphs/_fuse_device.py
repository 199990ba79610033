"""Level 2 of a replay for what a driver's device runs itself: consecutive operators whose kernels
are expressions (`devices.kernel`) as one expression, and so as one kernel of the device's target.

Exact means: elements are those of the operators' own kernels, which the same writer and compiler
make of the same texts, without contraction; each result is rounded to its type. Which of two NaNs
an operator gives is left to compilers, in one kernel too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bringup import jit
from bringup._language.signature import ELEMENT_TYPES
from bringup.graphs._fuse import Group, Refused, Tensor, as_tensor, collapsed, may_share_memory
from bringup.jit.target.target import find_target

ROUNDED = {"bringup::half": "float16", "bringup::bfloat16": "bfloat16"}
# Functions whose results are exact, or rounded in one way.
_WHOLE = ("floor", "ceil", "trunc", "rint")
_EXACT = frozenset(("abs", "min", "max", "isnan", "copysign", *_WHOLE, *ROUNDED.values()))
_MOST_VALUES = 60  # of a launch
_COPY = jit.ElementExpression("source", ("source",))


class Kind(NamedTuple):
    """What the calls of one kernel have in common."""

    computed: str  # the C type
    target: str
    float64: bool  # whether the device has it
    flags: tuple[str, ...]

    @property
    def writer(self) -> jit.Writer:
        """Return what writes for the target."""
        writer = find_target(self.target).writer
        assert writer is not None  # it wrote the operators' own kernels
        return writer


class Operand(NamedTuple):
    """An argument of an operator's kernel: a tensor, or a number."""

    form: jit.Operand
    tensor: Tensor | None


@dataclass(frozen=True)
class DeviceCall:
    """One node that can be written."""

    node: int
    name: str
    sizes: tuple[int, ...]
    expression: jit.ElementExpression
    operands: tuple[Operand, ...]
    result: Tensor
    kind: Kind | None  # None: the driver's copy, which goes with any kernel for its elements

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return what it reads."""
        return tuple(one.tensor for one in self.operands if one.tensor is not None)

    def group(self) -> DeviceGroup:
        """Return a new group for such calls."""
        return DeviceGroup(self.sizes)


@dataclass
class DeviceGroup(Group):
    """Calls in one kernel."""

    kind: Kind | None = None
    copied: set[str] = field(default_factory=set)  # the C types of elements that are copied

    def takes(self, call: Any) -> bool:
        """Return whether the call may be one more."""
        if not super().takes(call):
            return False
        kind, copied = self._with(call)
        if self.kind not in (None, kind) or copied - {kind.computed if kind else max(copied)}:
            return False
        tensors = {*self.reads, *self.writes, *call.tensors, call.result}
        rank, _, values = layout_of(self.sizes, sorted(tensors))
        values += sum(one.tensor is None for c in (*self.calls, call) for one in c.operands)
        return rank <= jit.Writer.RANK and values <= _MOST_VALUES

    def add(self, call: Any) -> None:
        """Take one more."""
        self.kind, self.copied = self._with(call)
        super().add(call)

    def _with(self, call: DeviceCall) -> tuple[Kind | None, set[str]]:
        copied = {ELEMENT_TYPES[call.result.dtype]} if call.kind is None else set()
        return call.kind or self.kind, self.copied | copied

    def why_not(self) -> str:
        """Return why it is no kernel, or nothing."""
        alone = len(self.calls) == 1 or self.kind is None
        return "no neighbour goes into one kernel with it" if alone else ""


class Layout(NamedTuple):
    """How a kernel walks through tensors."""

    rank: int  # before it is filled up
    tensors: list[tuple[list[int], list[int]]]  # the sizes and strides of each
    values: int  # that a launch has for it


def layout_of(sizes: Sequence[int], tensors: Sequence[Tensor]) -> Layout:
    """Return what a pointwise kernel gets: one dimension of dense elements, or `RANK` of any."""
    kept, strides = collapsed(sizes, tensors)
    if len(kept) < 2 and all(own in ([], [1]) for own in strides):
        return Layout(1, [(kept or [1], [1])] * len(tensors), len(tensors) + 1)
    rank = jit.Writer.RANK
    more = max(rank - len(kept), 0)
    filled = [([1] * more + kept, [0] * more + own) for own in strides]
    return Layout(len(kept), filled, len(tensors) * (1 + rank) + rank)


def as_device_call(node: int, row: tuple[Any, ...]) -> DeviceCall:
    """Return a node as a call that is written. Raises `Refused`."""
    op, arguments, results, planner, values = row
    if planner is None:
        return _copy(node, op, *arguments)
    expressed = planner.expressed(values)
    if expressed is None:
        raise Refused("its kernel is no expression")
    kind = Kind(expressed.computed, expressed.target, expressed.float64, expressed.flags)
    if unknown := expressed.expression.calls - _EXACT - kind.writer.repeated:
        raise Refused(f"{min(unknown)} may give something else in another kernel")
    if len(expressed.results) != 1:
        raise Refused("it has several results")
    stored, computed = expressed.results[0], expressed.computed
    if stored not in (computed, "bool", *ROUNDED) or computed == "bool":
        raise Refused(f"it computes in {computed}, for a result of {stored}")
    written = results[0] if results else arguments[expressed.written[0]]
    sizes = tuple(written[2])
    result = as_tensor(written, sizes)
    if may_share_memory(sizes, result.strides):
        raise Refused("elements of the result share memory")
    operands = tuple(
        Operand(form, as_tensor(arguments[i], sizes) if form.form == "tensor" else None)
        for form, i in zip(expressed.operands, expressed.given, strict=True)
    )
    return DeviceCall(node, op, sizes, expressed.expression, operands, result, kind)


def _copy(node: int, op: str, source: Any, target: Any) -> DeviceCall:
    sizes = tuple(target[2])
    result = as_tensor(target, sizes)
    c_type = ELEMENT_TYPES[result.dtype]
    if c_type == "bool" or c_type in ROUNDED:
        raise Refused(f"of {result.dtype} bits are moved, and numbers computed with")
    operand = Operand(jit.Operand("tensor", c_type), as_tensor(source, sizes))
    return DeviceCall(node, op, sizes, _COPY, (operand,), result, None)


class Given(NamedTuple):
    """What a kernel gets for one argument: a tensor's address, or the number of a node; neither
    for what its text says.
    """

    address: int
    sizes: list[int]
    strides: list[int]
    number: tuple[int, int] | None  # node, and position among the arguments of its kernel


@dataclass(frozen=True)
class DeviceWritten:
    """A kernel and what it is called with."""

    nodes: tuple[int, int]  # the first, and how many
    name: str
    kind: Kind
    text: jit.Written
    is_dense: bool
    given: tuple[Given, ...]
    reads: tuple[tuple[int, int, int], ...]  # node, position, address: as long as they are so
    results: tuple[int, ...]  # the nodes whose results it writes

    def kernel_id(self) -> int:
        """Compile it; raises `BringupError`."""
        flags = (*self.text.flags, *self.kind.flags)
        binary = jit.compile(self.text.source, target=self.kind.target, flags=flags)
        if self.is_dense and self.text.dense is not None:
            entry, binding = self.text.dense
            return replace(binary, entry=entry, binding=binding).kernel_id
        return replace(binary, binding=self.text.binding).kernel_id


class DeviceWriter:
    """Writes the kernel of one group, and nothing to what is `dead`."""

    def __init__(self, group: DeviceGroup, dead: set[Tensor]) -> None:
        self._group = group
        self._stored = (group.writes - dead) or {group.calls[-1].result}
        self._lines: list[str] = []
        self._operands: dict[str, jit.Operand] = {}
        self._loaded: dict[tuple[Tensor, jit.Operand], str] = {}
        self._numbers: dict[str, tuple[int, int]] = {}
        self._values: dict[Tensor, str] = {}

    def write(self) -> DeviceWritten:
        """Return the kernel."""
        group, kind = self._group, self._group.kind
        assert kind is not None
        calls: Sequence[Any] = group.calls
        for call in calls:
            self._write_call(call, kind)
        outs = [one for one in self._values if one in self._stored]
        text = "\n".join([*self._lines, ", ".join(self._values[one] for one in outs)])
        expression = jit.ElementExpression(text, tuple(self._operands))
        operands = tuple(self._operands.values())
        source = kind.writer.expression("replayed", expression, operands, kind.computed)
        results = tuple(ELEMENT_TYPES[one.dtype] for one in outs)
        element = jit.Element(source, "replayed", operands, kind.computed, results, kind.float64)
        names = [call.name for call in calls]
        return DeviceWritten(
            (calls[0].node, len(calls)),
            f"{names[0]} to {names[-1]} ({len(calls)} operators of a captured graph)",
            kind,
            kind.writer.pointwise(element, values=True),
            *self._given(outs),
            tuple(_reads(calls)),
            tuple({call.result: call.node for call in calls if call.result in outs}.values()),
        )

    def _write_call(self, call: DeviceCall, kind: Kind) -> None:
        names: dict[str, str] = {}
        for position, (name, operand) in enumerate(
            zip(call.expression.names, call.operands, strict=True)
        ):
            names[name] = self._argument(call.node, position, operand)
        lines, (value,) = call.expression.renamed(names, f"c{call.node - self._first}_")
        stored = ELEMENT_TYPES[call.result.dtype]
        if stored in ROUNDED:
            value = f"{ROUNDED[stored]}({value})"
        elif stored == "bool":
            value = f"({value}) != 0"
        self._lines += lines
        self._values[call.result] = self._line(value)

    @property
    def _first(self) -> int:
        first: int = self._group.calls[0].node
        return first

    def _line(self, value: str) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = {value}")
        return name

    def _argument(self, node: int, position: int, operand: Operand) -> str:
        form, tensor = operand
        if tensor is None:
            name = f"n{len(self._operands)}"
            self._operands[name] = form
            if form.given:
                self._numbers[name] = (node, position)
            return name
        if tensor in self._values:
            value = self._values[tensor]
            return self._line(f"{ROUNDED[form.rounded]}({value})") if form.rounded else value
        if (tensor, form) not in self._loaded:
            name = f"t{len(self._operands)}"
            self._operands[name] = form
            self._loaded[tensor, form] = name
        return self._loaded[tensor, form]

    def _given(self, outs: Sequence[Tensor]) -> tuple[bool, tuple[Given, ...]]:
        loaded = {name: tensor for (tensor, _), name in self._loaded.items()}
        tensors = [*loaded.values(), *outs]
        layout = layout_of(self._group.sizes, tensors)
        laid = dict(zip((*loaded, *outs), zip(tensors, layout.tensors, strict=True), strict=True))
        given = []
        for key in (*self._operands, *outs):
            if key in laid:
                tensor, (sizes, strides) = laid[key]
                given.append(Given(tensor.address, sizes, strides, None))
            else:
                given.append(Given(0, [], [], self._numbers.get(str(key))))
        return layout.values == len(tensors) + 1, tuple(given)


def _reads(calls: Iterable[DeviceCall]) -> Iterable[tuple[int, int, int]]:
    for call in calls:
        for position, one in enumerate(call.operands):
            if one.tensor is not None and call.kind is not None:
                yield call.node, position, one.tensor.address
