"""What values and nodes are called when a graph is written."""

from __future__ import annotations

from collections.abc import Iterable

from bringup import ir
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.compiler.onnx.nodes import origin_of


class Taken:
    """Names in use in a model: ONNX lets no graph hide a name of the graphs around it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)

    def add(self, name: str) -> None:
        self._names.add(name)

    def fresh(self, wanted: str) -> str:
        name, number = wanted or "value", 1
        while name in self._names:
            name = f"{wanted or 'value'}_{number}"
            number += 1
        self._names.add(name)
        return name


def names_in(graph: ir.Graph, outputs: Iterable[str]) -> set[str]:
    """Return the names that files gave to what is still in a graph, and to its outputs."""
    found = set(outputs)
    for node in graph.nodes:
        origin = origin_of(node)
        if origin is not None:
            found.update(origin.names)
    return found


class Names:
    """The names of a graph's values: none `taken` in the model; `reserved` are outputs'."""

    def __init__(self, taken: Taken, constants: dict[int, str], reserved: Iterable[str]) -> None:
        self.taken = taken
        self.constants = dict(constants)
        self._reserved = frozenset(reserved)
        self._given: dict[ir.Value, str] = {}

    def give(self, value: ir.Value, name: str) -> str:
        self._given[value] = name
        self.taken.add(name)
        return name

    def has(self, value: ir.Value) -> bool:
        return value in self._given

    def of(self, value: ir.Value) -> str:
        """Return what a value is called: as the file calls it, else by its node."""
        if value in self._given:
            return self._given[value]
        node = value.node
        if node.op_type == ir.CONSTANT and id(node.payload) in self.constants:
            return self.give(value, self.constants[id(node.payload)])
        origin = origin_of(node)
        name = origin.names[value.index] if origin and value.index < len(origin.names) else ""
        if not name or name in self._reserved:
            name = self.taken.fresh(_base(value))
        return self.give(value, name)

    def written(self) -> dict[str, ir.Value]:
        return {name: value for value, name in self._given.items()}


def _base(value: ir.Value) -> str:
    node = value.node
    held = node.payload.name if isinstance(node.payload, ConstantTensor) else ""
    base = held or node.name
    return base if len(node.outputs) <= 1 else f"{base}_{value.index}"
