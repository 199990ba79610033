"""Running what a rewrite replaces against what it puts there, on random inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from bringup import ir
from bringup.errors import PassError, WrongRewriteError
from bringup.ir.node import map_argument

_SIGNED = 3
"""The strictness of `ir.VerifiableDialect` at which signs of zeros count."""
_MOST_REASONS = 5
_VARIANTS: tuple[tuple[str, str | None, Callable[[int], int] | None], ...] = (
    ("dtype float64", "float64", None),
    ("dtype bfloat16", "bfloat16", None),
    ("every size 1 larger", None, lambda size: size + 1),
    ("every size 1", None, lambda size: 1),
    ("every size 0", None, lambda size: 0),
)
"""Other dtypes of the floating-point inputs, or other sizes in the place of those above 1."""

_NO_CALLS = (ir.INPUT, ir.CONSTANT, ir.OUTPUT)

Data = dict[Any, object]
"""By value, or by symbolic size."""
Again = Callable[[ir.Graph], bool]
"""Runs the same pass over another graph; whether it rewrote anything there."""


class Verifier:
    """Checks the rewrites of one pass on one graph; `again` runs it over a variant of a match. It
    counts those `verified`, and keeps five reasons why others are `unverified`.
    """

    def __init__(self, pass_name: str, dialect: ir.Dialect | None, again: Again) -> None:
        if not isinstance(dialect, ir.VerifiableDialect):
            named = "no dialect" if dialect is None else f"the dialect {dialect.name!r}"
            raise PassError(f"verifying needs a provider of 'sample'; there is {named}")
        self.verified = 0
        self.unverified: list[str] = []
        self._name = pass_name
        self._dialect = dialect
        self._again = again
        self._seen: set[tuple[object, ...]] = set()

    def check(
        self,
        where: str,
        nodes: Sequence[ir.Node],
        inputs: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
        replacement: ir.Graph,
    ) -> None:
        """Compare `nodes` with the `replacement` of them, before it takes their place. An input is
        None where an optional part of the pattern is absent.

        Raises `WrongRewriteError` that names pass, match and largest difference.
        """
        if not replacement.is_bound:
            replacement.bind(self._dialect)
        if all(_is_empty(value) for value in outputs):
            self._unverified(
                f"{where}: the results have no elements, so there is nothing to compare"
            )
            return
        nodes = [node for node in nodes if node.op_type != ir.CONSTANT]
        free = _read_outside(nodes, inputs, replacement)
        try:
            strictness = self._strictness(nodes, replacement.nodes)
            for draw in _draws(strictness):
                data = self._data(free, draw)
                expected = evaluate(self._dialect, nodes, dict(data), outputs)
                own = {
                    **data,
                    **{
                        inner: data[outer]
                        for inner, outer in zip(replacement.inputs, inputs, strict=False)
                        if outer is not None
                    },
                }
                own.update(self._sizes(replacement, draw))
                got = evaluate(self._dialect, replacement.nodes, own, replacement.outputs)
                self._compare(where, expected, got, strictness, f"draw {draw}")
        except _NotComparableError as reason:
            self._unverified(f"{where}: {reason}")
            return
        self.verified += 1
        self._sweep(where, nodes, free, outputs)

    def snapshot(self, graph: ir.Graph) -> list[tuple[object, ...]] | None:
        """Return the results of a graph on random inputs; None, and a reason, if it cannot run."""
        if all(_is_empty(value) for value in graph.outputs):
            self._unverified(f"graph {graph.name}: the results have no elements")
            return None
        try:
            return self._all_results(graph)
        except _NotComparableError as reason:
            self._unverified(f"graph {graph.name}: {reason}")
            return None

    def check_graph(self, graph: ir.Graph, before: list[tuple[object, ...]]) -> None:
        """Compare the results of a graph with those of `snapshot`."""
        try:
            self._compare_all(f"graph {graph.name!r}", before, graph, "")
        except _NotComparableError as reason:
            self._unverified(f"graph {graph.name}: {reason}")
            return
        self.verified += 1

    def _strictness(self, *nodes: Iterable[ir.Node]) -> int:
        """Return how far results of all these nodes can be compared."""
        calls = (node for node in chain(*nodes) if node.op_type not in _NO_CALLS)
        return min(map(self._dialect.strictness, calls), default=_SIGNED)

    def _all_results(self, graph: ir.Graph) -> list[tuple[object, ...]]:
        return [self._results(graph, draw) for draw in _draws(self._strictness(graph.nodes))]

    def _compare_all(
        self, where: str, before: list[tuple[object, ...]], graph: ir.Graph, how: str
    ) -> None:
        strictness = self._strictness(graph.nodes)
        for draw, expected in zip(_draws(strictness), before, strict=False):
            words = how or f"draw {draw}"
            self._compare(where, expected, self._results(graph, draw), strictness, words)

    def _results(self, graph: ir.Graph, draw: int) -> tuple[object, ...]:
        sources = [*graph.inputs, *(node.output for node in graph.find(ir.CONSTANT))]
        return evaluate(self._dialect, graph.nodes, self._data(sources, draw), graph.outputs)

    def _data(self, values: Iterable[ir.Value], draw: int) -> Data:
        data: Data = {}
        for number, value in enumerate(values):
            if value.node.payload is not None:
                data[value] = value.node.payload
            elif value.meta is None:
                raise _NotComparableError(f"the shape of {value.name!r} is unknown")
            else:
                data[value] = self._sample(value, 1000 * draw + number, draw)
        return data

    def _sizes(self, replacement: ir.Graph, draw: int) -> Data:
        """Return the symbolic sizes that a replacement computes with, as they are in this draw."""
        sizes = {size for node in replacement.nodes for size in ir.sizes_in(node.arguments)}
        return {size: self._dialect.sample(size, 0, draw) for size in sizes}

    def _sample(self, value: ir.Value, seed: int, draw: int) -> object:
        try:
            return self._dialect.sample(value.meta, seed, draw)
        except PassError as error:
            raise _NotComparableError(str(error)) from error

    def _compare(
        self,
        where: str,
        expected: Sequence[object],
        got: Sequence[object],
        strictness: int,
        how: str,
    ) -> None:
        dialect = self._dialect
        distance = dialect.signed_distance if strictness == _SIGNED else dialect.distance
        for index, (old, new) in enumerate(zip(expected, got, strict=True)):
            difference, allowed = distance(old, new)
            if not difference <= allowed:
                raise WrongRewriteError(
                    f"{self._name!r} is wrong at {where}: result {index} differs by "
                    f"{difference:.3g} at most, {allowed:.3g} is allowed ({how})"
                )

    def _unverified(self, reason: str) -> None:
        if len(self.unverified) < _MOST_REASONS:
            self.unverified.append(reason)

    # Other dtypes and sizes

    def _sweep(
        self,
        where: str,
        nodes: Sequence[ir.Node],
        free: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
    ) -> None:
        """Check the match in other dtypes and sizes, where the pass takes it there too."""
        signature = (
            *(node.op_type for node in nodes),
            *(desc.dtype for value in free if (desc := value.known_desc) is not None),
        )
        if signature in self._seen:
            return
        self._seen.add(signature)
        for words, dtype, resized in _VARIANTS:
            variant = self._variant(nodes, free, outputs, dtype, resized)
            if variant is None:
                continue
            try:
                before = self._all_results(variant)
                if self._again(variant):
                    self._compare_all(where, before, variant, words)
            except _NotComparableError:
                continue  # what was replaced, or what replaces it, has no such kernel

    def _variant(
        self,
        nodes: Sequence[ir.Node],
        free: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        dtype: str | None,
        resized: Callable[[int], int] | None,
    ) -> ir.Graph | None:
        """Return the matched nodes as a graph with other inputs, or None without such."""
        graph = ir.Graph("variant", self._dialect)
        copies: dict[ir.Value, object] = {}
        changed = False
        for value in free:
            if value.node.payload is not None:
                copies[value] = graph.add_constant(value.node.payload)
                continue
            meta = self._dialect.vary(value.meta, dtype, resized)
            changed = changed or meta is not value.meta
            copies[value] = graph.add_input(meta=meta)
        if not changed:
            return None
        called: dict[ir.Node, ir.Node] = {}
        try:
            for node in nodes:
                arguments = tuple(map_argument(item, copies) for item in node.arguments)
                copy = graph.insert_call(node.operator, arguments, output_count=len(node.outputs))
                copies.update(zip(node.outputs, copy.outputs, strict=False))
                called[node] = copy
                for source in node.control_inputs:
                    if source in called:
                        graph.add_control_edge(called[source], copy)
        except PassError:
            return None
        graph.set_outputs(*(copies[value] for value in outputs))
        return graph


def _draws(strictness: int) -> range:
    """Return the draws in which what is as strict is compared: see `ir.special_numbers`."""
    return range(4 + min(strictness, 2))


def _is_empty(value: ir.Value) -> bool:
    desc = value.known_desc
    return desc is not None and any(ir.same_size(size, 0) for size in desc.shape)


class _NotComparableError(Exception):
    """Something cannot be run; its text says what and why."""


def evaluate(
    dialect: ir.Dialect, nodes: Sequence[ir.Node], data: Data, outputs: Sequence[ir.Value]
) -> tuple[object, ...]:
    for node in nodes:
        if node.op_type in (ir.INPUT, ir.OUTPUT) or (node.outputs and node.output in data):
            continue
        if node.op_type == ir.CONSTANT:
            data[node.output] = node.payload
            continue
        if not node.operator.parameters or (node.operator.random and not node.pure):
            raise _NotComparableError(f"{node.op_type} ({node.name!r}) cannot be run twice alike")
        try:
            results = dialect.evaluate(node, data)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise _NotComparableError(f"{node.op_type} ({node.name!r}) raised {reason}") from error
        data.update(zip(node.outputs, results, strict=True))
    return tuple(data[value] for value in outputs)


def _read_outside(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value | None], replacement: ir.Graph
) -> list[ir.Value]:
    """Return what the old or the new nodes read of the graph: the inputs first, each once."""
    inside = set(nodes)
    read = [value for node in nodes for value in node.inputs if value.node not in inside]
    new = [
        value
        for node in replacement.nodes
        for value in node.inputs
        if not replacement.owns(value.node)
    ]
    given = [value for value in inputs if value is not None]
    return list(dict.fromkeys((*given, *read, *new)))
