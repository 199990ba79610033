"""The schemas of ATen's operators as data: building and checking graphs where there is no torch.

`aten_schemas.json` is written by `tools/write_aten_schemas.py`. The overload of a call is chosen as
torch chooses it: the first whose parameters take the arguments.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bringup.errors import PassError, SchemaError
from bringup.ir.dialect import Dialect
from bringup.ir.node import Node, Value
from bringup.ir.operators import Operator, Parameter
from bringup.ir.tensor import ConstantData, Shape, TensorDesc

COMMUTATIVE_ATEN = frozenset({
    "aten::add.Tensor", "aten::mul.Tensor", "aten::maximum", "aten::minimum", "aten::eq.Tensor",
    "aten::ne.Tensor", "aten::logical_and", "aten::logical_or", "aten::logical_xor",
    "aten::bitwise_and.Tensor", "aten::bitwise_or.Tensor", "aten::bitwise_xor.Tensor",
})  # fmt: skip
"""The operators of which the first two arguments may change places."""

_NUMBERS_AS_TENSORS = frozenset({
    "aten::add", "aten::sub", "aten::subtract", "aten::mul", "aten::multiply", "aten::div",
    "aten::divide", "aten::true_divide", "aten::floor_divide",
})  # fmt: skip
"""The operators whose tensor parameters take numbers too."""


_KINDS: Mapping[str, tuple[type, ...]] = {
    "number": (int, float, complex), "int": (int,), "float": (int, float), "bool": (bool,),
}  # fmt: skip


@dataclass(frozen=True)
class _OverloadParameter:
    name: str
    type: str
    keyword_only: bool
    has_default: bool
    default: object
    size: int
    symbolic: bool

    def takes(self, argument: object, numbers: bool) -> bool:
        if isinstance(argument, str) and self.name.endswith("dtype"):
            return True
        return _fits(self.type, argument, bool(self.size) and not self.symbolic, numbers)

    def canonical(self, argument: object) -> object:
        """Return one form per meaning: tuples for lists, floats for float parameters."""
        if isinstance(argument, (tuple, list)):
            return tuple(argument)
        is_list = "List[" in self.type
        if is_list and isinstance(argument, (int, float)) and not isinstance(argument, bool):
            return (argument,) * max(self.size, 1)
        if self.type in ("float", "Optional[float]") and type(argument) is int:
            return float(argument)
        return argument


@dataclass(frozen=True)
class _Overload:
    operator: Operator
    slots: tuple[_OverloadParameter, ...]

    @property
    def by_position(self) -> int:
        return sum(not slot.keyword_only for slot in self.slots)


class AtenOperators(Dialect):
    """What ATen's operators are, by any source of schemas."""

    def commutes(self, node: Node) -> bool:
        """See `Dialect.commutes`. A scaled addition (`alpha`) does not commute."""
        return node.op_type in COMMUTATIVE_ATEN and node.attributes.get("alpha", 1) == 1

    def draws_random(self, node: Node) -> bool:
        """See `Dialect.draws_random`: not with a dropout of 0, nor outside of training."""
        attributes = node.attributes
        idle = any(attributes.get(name) == 0 for name in ("p", "dropout_p"))
        return node.operator.random and not idle and attributes.get("train", True) is not False


class AtenSchemas(AtenOperators):
    """A dialect that knows what ATen's operators take and return, and nothing about shapes.

    A graph that was built with it is bound again by a dialect that knows more, when it meets one.
    Operators of other namespaces are taken as they come.
    """

    name = "ATen's schemas"
    provisional = True

    def bind(
        self, op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[Operator, tuple[object, ...]]:
        """See `Dialect.bind`. Raises `SchemaError`, also for named arguments beyond ATen."""
        if not op_type.startswith("aten::"):
            if keywords:
                raise SchemaError(
                    f"the parameters of {op_type} are not known: give its arguments by position"
                )
            return Operator(op_type), tuple(arguments)
        overload = _resolved(op_type, arguments, keywords)
        return overload.operator, _in_order(overload, arguments, keywords)

    def infer(self, node: Node, instead_of: Value | None = None) -> tuple[object, ...]:
        """See `Dialect.infer`: nothing is known about any output."""
        return (None,) * (node.operator.output_count or 1)

    def difference(self, old: object, new: object) -> str | None:
        """See `Dialect.difference`."""
        return None if old == new else f"expected {old}, got {new}"

    def same_layout(self, old: object, new: object) -> bool:
        """See `Dialect.same_layout`."""
        return old == new

    def constant_meta(self, payload: object) -> object:
        """See `Dialect.constant_meta`."""
        if isinstance(payload, ConstantData):
            return TensorDesc(Shape(payload.shape), payload.dtype)
        return None

    def supports(self, node: Node) -> tuple[bool, str]:
        """See `Dialect.supports`."""
        return False, f"{node.op_type} cannot be run: only its schema is known"

    def evaluate(self, node: Node, constants: Mapping[Value, object]) -> tuple[object, ...]:
        """See `Dialect.evaluate`: always raises `PassError`."""
        raise PassError(f"{node.op_type} cannot be evaluated: only its schema is known")


@cache
def aten_schemas() -> AtenSchemas:
    """Return the schemas that are shipped: `ir.GraphBuilder("g", ir.aten_schemas())`."""
    return AtenSchemas()


@cache
def _data() -> dict[str, Any]:
    path = Path(__file__).with_name("aten_schemas.json")
    found: dict[str, Any] = json.loads(path.read_text())["operators"]
    return found


@cache
def overloads_of(packet: str) -> dict[str, _Overload]:
    """Return the overloads of an operator by name. Raises `SchemaError` without one."""
    if packet not in _data():
        raise SchemaError(
            f"there is no schema of {packet} among those that are shipped: it writes its "
            "arguments, returns no tensor, or does not exist; with torch, use its own dialect"
        )
    return {name: _overload(packet, name, facts) for name, facts in _data()[packet].items()}


def _overload(packet: str, name: str, facts: dict[str, Any]) -> _Overload:
    slots = []
    for item in facts["parameters"]:
        slot = _OverloadParameter(
            item["name"],
            item["type"],
            keyword_only=item.get("keyword_only", False),
            has_default="default" in item,
            default=None,
            size=item.get("size", 0),
            symbolic=item.get("symbolic", False),
        )
        slots.append(dataclasses.replace(slot, default=slot.canonical(item.get("default"))))
    kind = packet if name == "default" else f"{packet}.{name}"
    names = [slot.name for slot in slots]
    commutes = kind in COMMUTATIVE_ATEN
    operator = Operator(
        type=kind,
        parameters=tuple(Parameter(slot.name, slot.type, slot.keyword_only) for slot in slots),
        output_count=facts["outputs"],
        aliases=frozenset(facts.get("aliases", ())),
        random=facts.get("random", False),
        commutes=commutes,
        commutes_if_one=names.index("alpha") if commutes and "alpha" in names else None,
    )
    return _Overload(operator, tuple(slots))


def _resolved(
    op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]
) -> _Overload:
    packet, _, name = op_type.partition(".")
    overloads = overloads_of(packet)
    if name:
        if name not in overloads:
            raise SchemaError(f"operator {packet} has no overload {name!r}; it has {[*overloads]}")
        return overloads[name]
    if len(overloads) == 1:
        return next(iter(overloads.values()))
    candidates = list(overloads.values())
    if any(_is_open(item) for item in (*arguments, *keywords.values())):
        candidates.sort(key=lambda item: item.operator.type != packet)
    for overload in candidates:
        if _takes(packet, overload, arguments, keywords):
            return overload
    texts = [_shown(item) for item in arguments]
    shown = ", ".join([*texts, *(f"{key}={_shown(item)}" for key, item in keywords.items())])
    raise SchemaError(f"no overload of {op_type} takes ({shown}); there are {[*overloads]}")


def _takes(
    packet: str, overload: _Overload, arguments: Sequence[object], keywords: Mapping[str, object]
) -> bool:
    if len(arguments) > overload.by_position:
        return False
    names = {slot.name for slot in overload.slots}
    if not keywords.keys() <= names:
        return False
    numbers = packet in _NUMBERS_AS_TENSORS
    for index, slot in enumerate(overload.slots):
        if index < len(arguments) and not slot.keyword_only:
            if slot.name in keywords or not slot.takes(arguments[index], numbers):
                return False
        elif slot.name in keywords:
            if not slot.takes(keywords[slot.name], numbers):
                return False
        elif not slot.has_default:
            return False
    return True


def _fits(kind: str, argument: object, repeats: bool, numbers: bool) -> bool:
    if _is_open(argument):
        return True
    if kind.startswith("Optional["):
        return argument is None or _fits(kind[9:-1], argument, repeats, numbers)
    if kind.startswith("List["):
        if isinstance(argument, (tuple, list)):
            return all(_fits(kind[5:-1], item, False, False) for item in argument)
        return repeats and _fits(kind[5:-1], argument, False, False)
    if kind == "Tensor":
        return isinstance(argument, Value) or (numbers and isinstance(argument, (int, float)))
    return isinstance(argument, _KINDS.get(kind, (str,)))


def _is_open(argument: object) -> bool:
    """Return whether it stands for arguments of a pattern: anything that is no argument itself."""
    plain = (Value, bool, int, float, complex, str, tuple, list, type(None))
    return not isinstance(argument, plain)


def _in_order(
    overload: _Overload, arguments: Sequence[object], keywords: Mapping[str, object]
) -> tuple[object, ...]:
    """Return all arguments in schema order with defaults. Raises `SchemaError`."""
    kind = overload.operator.type
    if len(arguments) > overload.by_position:
        raise SchemaError(
            f"{kind} takes at most {overload.by_position} positional arguments, "
            f"got {len(arguments)}"
        )
    names = [slot.name for slot in overload.slots]
    for name in keywords:
        if name not in names:
            raise SchemaError(f"{kind} has no parameter {name!r}; it has {names}")
        if names.index(name) < len(arguments):
            raise SchemaError(f"{kind} got {name!r} twice")
    ordered: list[object] = []
    for index, slot in enumerate(overload.slots):
        if index < len(arguments):
            ordered.append(slot.canonical(arguments[index]))
        elif slot.name in keywords:
            ordered.append(slot.canonical(keywords[slot.name]))
        elif slot.has_default:
            ordered.append(slot.default)
        else:
            raise SchemaError(f"{kind} needs an argument for {slot.name!r}; it has {names}")
    return tuple(ordered)


def _shown(argument: object) -> str:
    return f"%{argument.name}" if isinstance(argument, Value) else repr(argument)
