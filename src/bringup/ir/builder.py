"""Building graphs in eager style: call operators on holders, get holders back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bringup.errors import ExpiredHandleError
from bringup.ir.constraint import DimPattern, TensorConstraint
from bringup.ir.dialect import Dialect, Operator
from bringup.ir.graph import Graph
from bringup.ir.node import ONE_OF, Node, Value, plain

__all__ = ["GraphBuilder", "TensorHolder"]


class TensorHolder:
    """A value under construction: `+`, `-`, `*`, `/`, `@` work with holders, values and numbers."""

    __slots__ = ("_builder", "_value")

    def __init__(self, builder: GraphBuilder, value: Value) -> None:
        self._builder = builder
        self._value = value

    @property
    def _held_value(self) -> Value:
        return self._value

    @property
    def value(self) -> Value:
        """The value that this holder stands for."""
        return self._value

    @property
    def builder(self) -> GraphBuilder:
        """The builder that made this holder."""
        return self._builder

    def where(
        self,
        *,
        dtype: object = None,
        rank: object = None,
        shape: Iterable[DimPattern] | None = None,
        device: object = None,
    ) -> TensorHolder:
        """In a pattern: what the tensor that this holder stands for must look like; returns itself.

        See `TensorConstraint`. Raises `TypeError` or `ValueError` for a fact that cannot be meant.
        """
        stated = TensorConstraint.of(dtype=dtype, rank=rank, shape=shape, device=device)
        value = self._value
        known = value.node.meta.setdefault("where", {})
        assert isinstance(known, dict)
        known[value.index] = known.get(value.index, TensorConstraint()).joined(stated)
        return self

    def _call(self, op_type: str, *arguments: object) -> TensorHolder:
        result = self._builder.op(op_type, *arguments)
        assert isinstance(result, TensorHolder)
        return result

    def __add__(self, other: object) -> TensorHolder:
        return self._call("aten::add", self, other)

    def __radd__(self, other: object) -> TensorHolder:
        return self._call("aten::add", self, other)

    def __sub__(self, other: object) -> TensorHolder:
        return self._call("aten::sub", self, other)

    def __rsub__(self, other: object) -> TensorHolder:
        return self._call("aten::rsub", self, other)

    def __mul__(self, other: object) -> TensorHolder:
        return self._call("aten::mul", self, other)

    def __rmul__(self, other: object) -> TensorHolder:
        return self._call("aten::mul", self, other)

    def __truediv__(self, other: object) -> TensorHolder:
        return self._call("aten::div", self, other)

    def __matmul__(self, other: object) -> TensorHolder:
        return self._call("aten::matmul", self, other)

    def __neg__(self) -> TensorHolder:
        return self._call("aten::neg", self)

    def __iter__(self) -> Iterator[TensorHolder]:
        raise TypeError(
            f"{self._value!r} is one tensor and cannot be unpacked; an operator with several "
            "outputs returns a tuple of holders (pass outputs=<number> if it depends on the call)"
        )

    def __repr__(self) -> str:
        return f"TensorHolder({self._value!r})"


class GraphBuilder:
    """Makes a graph by calling operators.

    Arguments:
        name: the graph's name.
        dialect: who knows the operators; inside a pass it is that of the graph being rewritten.

    `build_and_reset` ends the builder's life: using it or a holder's operators afterwards raises
    `ExpiredHandleError`.
    """

    def __init__(self, name: str = "graph", dialect: Dialect | None = None) -> None:
        self._graph: Graph | None = Graph(name, dialect)
        self._before: Node | None = None
        self._edits_graph = False

    @classmethod
    def over(cls, graph: Graph, before: Node) -> GraphBuilder:
        """A builder whose operators become nodes of `graph`, placed before `before`."""
        builder = cls.__new__(cls)
        builder._graph, builder._before, builder._edits_graph = graph, before, True
        return builder

    def _live(self) -> Graph:
        if self._graph is None:
            raise ExpiredHandleError(
                "graph handle has expired: this builder built its graph; make a new GraphBuilder"
            )
        return self._graph

    def create_input(self, name: str = "") -> TensorHolder:
        """One more input."""
        if self._edits_graph:
            raise ValueError("a builder over a live graph cannot give it new inputs")
        return TensorHolder(self, self._live().add_input(name))

    def create_inputs(self, number: int) -> tuple[TensorHolder, ...]:
        """`number` inputs more."""
        if number < 0:
            raise ValueError(f"the number of inputs must not be negative, got {number}")
        return tuple(self.create_input() for _ in range(number))

    def op(
        self, op_type: str, *arguments: object, outputs: int | None = None, **keywords: object
    ) -> TensorHolder | tuple[TensorHolder, ...]:
        """Call an operator.

        Arguments:
            op_type: `aten::addmm`, or with an overload `aten::add.Tensor`; without one it is chosen
                from the arguments as torch chooses it.
            arguments, keywords: holders, values of the graph being rewritten, numbers, lists,
                `passes.any_value()`.
            outputs: how many values come back, for an operator whose schema does not say
                (`Tensor[]`).

        Returns one holder, or a tuple of holders when the operator has several outputs.
        Raises `SchemaError` when the arguments do not fit the operator.
        """
        graph = self._live()
        for argument in (*arguments, *keywords.values()):
            self._check_owner(argument)
        node = graph.insert(
            op_type,
            tuple(plain(argument) for argument in arguments),
            {name: plain(argument) for name, argument in keywords.items()},
            before=self._before,
            output_count=outputs,
        )
        holders = tuple(TensorHolder(self, value) for value in node.outputs)
        several = len(holders) != 1 or node.operator.output_count is None
        return holders if several else holders[0]

    def one_of(self, alternatives: Sequence[object], name: str = "") -> TensorHolder:
        """In a pattern: a value that is any one of `alternatives` (holders or host arguments)."""
        graph = self._live()
        for argument in alternatives:
            self._check_owner(argument)
        arguments = tuple(plain(argument) for argument in alternatives)
        node = graph.insert_call(Operator(ONE_OF), arguments, before=self._before, output_count=1)
        node.meta["name"] = name
        return TensorHolder(self, node.output)

    def _check_owner(self, argument: object) -> None:
        if isinstance(argument, (tuple, list)):
            for item in argument:
                self._check_owner(item)
        elif isinstance(argument, TensorHolder) and argument.builder._graph is not self._graph:
            raise ValueError(
                f"{argument!r} was made by another builder (of graph "
                f"{argument.value.node.graph.name!r}, not {self._live().name!r})"
            )

    def build_and_reset(self, outputs: object) -> Graph:
        """The finished graph, returning `outputs` (a holder or a sequence of them)."""
        graph = self._live()
        if self._edits_graph:
            raise ValueError(
                "a builder over a live graph has nothing to build: its nodes are in the graph"
            )
        listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        if not listed:
            raise ValueError(f"graph {graph.name!r} needs at least one output")
        graph.set_outputs(*listed)
        self._graph = None
        return graph
