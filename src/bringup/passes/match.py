"""What a hook learns about one match. Valid only while the hook runs."""

from __future__ import annotations

from collections.abc import Mapping

from bringup import ir
from bringup.errors import ExpiredHandleError
from bringup.passes.patterns import Pattern

__all__ = ["MatchResult"]


class MatchResult:
    """One occurrence of a pattern. Expires when the match has been dealt with."""

    def __init__(
        self,
        pattern: Pattern,
        nodes: Mapping[ir.Node, ir.Node],
        inputs: Mapping[ir.Value, ir.Value],
        arguments: Mapping[str, object],
    ) -> None:
        self._pattern = pattern
        self._nodes = dict(nodes)
        self._inputs = dict(inputs)
        self._arguments = dict(arguments)
        self._expired = False

    def _live(self) -> None:
        if self._expired:
            raise ExpiredHandleError(
                "graph handle has expired: a match lives only inside the hook it is given to"
            )

    def expire(self) -> None:
        """End the life of this handle."""
        self._expired = True

    @property
    def pattern_name(self) -> str:
        """The name of the pattern that matched."""
        self._live()
        return self._pattern.name

    def get_pattern_graph_name(self) -> str:
        """The name of the pattern that matched."""
        return self.pattern_name

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """What the pattern's inputs stand for, in order."""
        self._live()
        return tuple(self._inputs[value] for value in self._pattern.graph.inputs)

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """What the pattern's outputs stand for, in order."""
        self._live()
        return tuple(self.value(value) for value in self._pattern.graph.outputs)

    def get_matched_nodes(self) -> tuple[ir.Node, ...]:
        """The matched nodes in graph order (without the producers of the inputs)."""
        self._live()
        return tuple(sorted(self._nodes.values(), key=lambda node: node._order))

    def get_captured_tensor(self, index: int) -> ir.Value:
        """The value captured as number `index`; `IndexError` when fewer were captured."""
        self._live()
        captured = self._pattern.captured
        if not 0 <= index < len(captured):
            raise IndexError(
                f"pattern {self._pattern.name!r} captures {len(captured)} tensors; "
                f"there is no number {index}"
            )
        return self.value(captured[index])

    def value(self, tensor: object) -> ir.Value:
        """What a holder or value of the pattern stands for."""
        self._live()
        value = ir.plain(tensor)
        if isinstance(value, ir.Value):
            if value in self._inputs:
                return self._inputs[value]
            if value._node in self._nodes:
                return self._nodes[value._node].outputs[value._index]
        raise KeyError(f"{tensor!r} is not a value of pattern {self._pattern.name!r}")

    def __getitem__(self, name: str) -> object:
        """A named `any_value` (the argument) or a named capture (the value)."""
        self._live()
        if name in self._arguments:
            return self._arguments[name]
        if name in self._pattern.capture_names:
            return self.value(self._pattern.capture_names[name])
        known = sorted([*self._arguments, *self._pattern.capture_names])
        raise KeyError(
            f"pattern {self._pattern.name!r} captures nothing named {name!r}; it has {known}"
        )

    def __repr__(self) -> str:
        if self._expired:
            return "<expired match>"
        names = ", ".join(node.name for node in self.get_matched_nodes())
        return f"<match of {self._pattern.name}: {names}>"
