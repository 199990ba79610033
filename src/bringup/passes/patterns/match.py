"""One match of a pattern: what a hook learns about it, and where it may be rewritten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bringup import ir
from bringup.errors import ExpiredHandleError
from bringup.ir.node import plain

if TYPE_CHECKING:
    from bringup.passes.patterns.bindings import PatternFrame


class MatchResult:
    """One occurrence of a pattern. Valid only while the hook runs that it is given to.

    Args:
        frame: what each part of the pattern stands for; written by the engine.
    """

    def __init__(self, frame: PatternFrame) -> None:
        self._frame = frame
        self._pattern = frame.pattern
        self._expired = False
        self._items: list[MatchResult] = []

    def _live(self) -> None:
        if self._expired:
            raise ExpiredHandleError(
                "graph handle has expired: a match lives only inside the hook it is given to"
            )

    @property
    def is_expired(self) -> bool:
        """Return whether the match has been dealt with."""
        return self._expired

    def expire(self) -> None:
        """End the life of this handle, and of those of its items."""
        self._expired = True
        for item in self._items:
            item.expire()

    @property
    def pattern_name(self) -> str:
        """Return the name of the pattern that matched."""
        self._live()
        return self._pattern.name

    def get_pattern_graph_name(self) -> str:
        """Return the name of the pattern that matched."""
        return self.pattern_name

    @property
    def inputs(self) -> tuple[ir.Value | None, ...]:
        """Return what the pattern's inputs stand for, in order; None for those of absent parts."""
        self._live()
        return tuple(self._frame.inputs.get(value) for value in self._pattern.graph.inputs)

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """Return what the pattern's outputs stand for, in order."""
        self._live()
        return tuple(self.value(value) for value in self._pattern.graph.outputs)

    def get_matched_nodes(self) -> tuple[ir.Node, ...]:
        """Return the matched nodes in graph order (without the producers of the inputs)."""
        self._live()
        found = {node for frame in self._frame.frames() for node in frame.nodes.values()}
        return tuple(sorted(found, key=lambda node: node.order))

    def bound_nodes(self) -> dict[ir.Node, ir.Node]:
        """Return the nodes of the pattern, and what each stands for."""
        self._live()
        return dict(self._frame.nodes)

    def get_captured_tensor(self, index: int) -> ir.Value:
        """Return the value captured as number `index`; `IndexError` when fewer were captured."""
        self._live()
        captured = self._pattern.captured
        if not 0 <= index < len(captured):
            raise IndexError(
                f"pattern {self._pattern.name!r} captures {len(captured)} tensors; "
                f"there is no number {index}"
            )
        return self.value(captured[index])

    def captured(self) -> tuple[ir.Value, ...]:
        """Return all captured values that stand for anything in this match, in order."""
        self._live()
        found = [self._resolve(value) for value in self._pattern.captured]
        return tuple(value for value in found if value is not None)

    def has(self, tensor: object) -> bool:
        """Return whether `tensor`, a holder or value, stands for anything; `KeyError` of others."""
        self._live()
        return self._resolve(self._own(tensor)) is not None

    def value(self, tensor: object) -> ir.Value:
        """Return what `tensor`, a holder or value of the pattern, stands for; `KeyError` when it is
        no value of the pattern, or is absent in this match (see `has`).
        """
        self._live()
        value = self._own(tensor)
        found = self._resolve(value)
        if found is None:
            raise KeyError(
                f"{value.name!r} of pattern {self._pattern.name!r} is absent in this match; ask "
                "match_result.has(...) first"
            )
        return found

    def chosen(self, name: str) -> int | None:
        """Return which alternative of the `one_of` or `optional` of this name matched, counted from
        0; None when the match does not reach it. `KeyError` when there is no such name.
        """
        self._live()
        if name not in self._pattern.choices:
            known = sorted(self._pattern.choices)
            raise KeyError(
                f"pattern {self._pattern.name!r} has no choice named {name!r}; it has {known}"
            )
        return self._frame.chosen.get(self._pattern.choices[name])

    def each(self, name: str) -> tuple[MatchResult, ...]:
        """Return the matches of the items of a `variadic` of this name, or raise `KeyError`."""
        self._live()
        if name not in self._frame.lists:
            known = sorted(self._frame.lists)
            raise KeyError(
                f"pattern {self._pattern.name!r} matched no list of patterns named {name!r}; "
                f"there are {known}"
            )
        items = tuple(MatchResult(frame) for _, frame in self._frame.lists[name])
        self._items.extend(items)
        return items

    def has_name(self, name: str) -> bool:
        """Return whether a name of the pattern stands for anything in this match."""
        try:
            self[name]
        except KeyError:
            return False
        return True

    def __getitem__(self, name: str) -> object:
        """Return what a name of the pattern stands for: an argument (`any_value`, `constant`), a
        tuple of values (`variadic`), a size (`where(shape=...)`), or a captured value.
        """
        self._live()
        frame = self._frame.scope(name)
        if name in frame.names:
            return frame.names[name]
        if name in frame.sizes:
            return frame.sizes[name]
        if name in self._frame.lists:
            return tuple(value for value, _ in self._frame.lists[name])
        if name in self._pattern.capture_names:
            return self.value(self._pattern.capture_names[name])
        absent = " in this match: it belongs to a part that is absent"
        own = self._frame
        known = sorted([*own.names, *own.sizes, *own.lists, *self._pattern.capture_names])
        raise KeyError(
            f"pattern {self._pattern.name!r} captures nothing named {name!r}"
            f"{absent if name in self._pattern.names else ''}; it has {known}"
        )

    def _own(self, tensor: object) -> ir.Value:
        value = plain(tensor)
        if (
            not isinstance(value, ir.Value)
            or value.is_erased
            or value.graph is not self._pattern.graph
        ):
            raise KeyError(f"{tensor!r} is not a value of pattern {self._pattern.name!r}")
        return value

    def _resolve(self, value: ir.Value) -> ir.Value | None:
        from bringup.passes.patterns.bindings import resolve

        return resolve(self._frame, value)

    def __repr__(self) -> str:
        if self._expired:
            return "<expired match>"
        names = ", ".join(node.name for node in self.get_matched_nodes())
        return f"<match of {self._pattern.name}: {names}>"


@dataclass(frozen=True)
class PlacedMatch:
    """A match that may be rewritten: where the replacement goes, what must move in front of it."""

    result: MatchResult
    before: ir.Node
    hoist: tuple[ir.Node, ...]
