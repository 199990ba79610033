"""Building graphs in eager style: call operators on holders, get holders back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from bringup.errors import ExpiredHandleError
from bringup.ir.constants import constant_payload
from bringup.ir.constraint import DimPattern, TensorConstraint
from bringup.ir.dialect import ATEN_INFIX, Dialect
from bringup.ir.graph import Graph, use_builder
from bringup.ir.node import ONE_OF, Node, Value, plain
from bringup.ir.operators import Operator
from bringup.ir.order import topological_sort
from bringup.ir.symbolic import DimLike
from bringup.ir.tensor import Shape, TensorDesc


class TensorHolder:
    """A value of a `builder`: `+`, `-`, `*`, `/`, `@` work with holders, values and numbers."""

    __slots__ = ("_builder", "_value")

    def __init__(self, builder: GraphBuilder, value: Value) -> None:
        self._builder = builder
        self._value = value

    @property
    def _held_value(self) -> Value:
        return self._value

    @property
    def value(self) -> Value:
        """Return the value that this holder stands for."""
        return self._value

    @property
    def builder(self) -> GraphBuilder:
        """Return the builder that made this holder."""
        return self._builder

    def get_owner_builder(self) -> GraphBuilder:
        """Return the same as `builder`, as GE calls it."""
        return self._builder

    def where(
        self,
        *,
        dtype: object = None,
        rank: object = None,
        shape: Iterable[DimPattern] | None = None,
        device: object = None,
    ) -> TensorHolder:
        """Say what the tensor of this holder must look like, in a pattern; return the holder.

        See `TensorConstraint`. Raises `TypeError` or `ValueError` for a fact that cannot be meant.

        Args:
            dtype: its dtype, or a tuple of choices; None for any, as for all of these.
            rank: its number of dimensions, or a tuple of choices.
            shape: its sizes; at most one `...`.
            device: its device, or a tuple of choices; `"npu"` takes every device of that type.
        """
        stated = TensorConstraint.of(dtype=dtype, rank=rank, shape=shape, device=device)
        value = self._value
        known = value.node.meta.setdefault("where", {})
        assert isinstance(known, dict)
        known[value.index] = known.get(value.index, TensorConstraint()).joined(stated)
        return self

    def _infix(self, name: str, left: object, right: object) -> TensorHolder:
        """Return the dialect's infix operator; numbers, lists and arrays become constants."""
        table = self._builder.infix
        op_type = table.get(name)
        if op_type is None:  # with the operands reversed: "rsub"
            op_type, left, right = table[name.removeprefix("r")], right, left
        result = self._builder.op(op_type, self._operand(left), self._operand(right))
        assert isinstance(result, TensorHolder)
        return result

    def _operand(self, item: object) -> object:
        is_array = isinstance(item, (list, tuple)) or hasattr(item, "__array_interface__")
        if is_array:
            return self._builder.create_constant(item)
        if isinstance(item, (bool, int, float)) and not self._builder.takes_numbers:
            desc = self._value.known_desc
            return self._builder.create_constant(item, None if desc is None else desc.dtype)
        return item

    def _unary(self, name: str) -> TensorHolder:
        result = self._builder.op(self._builder.infix[name], self)
        assert isinstance(result, TensorHolder)
        return result

    def __add__(self, other: object) -> TensorHolder:
        return self._infix("add", self, other)

    __radd__ = __add__

    def __sub__(self, other: object) -> TensorHolder:
        return self._infix("sub", self, other)

    def __rsub__(self, other: object) -> TensorHolder:
        return self._infix("rsub", self, other)

    def __mul__(self, other: object) -> TensorHolder:
        return self._infix("mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> TensorHolder:
        return self._infix("div", self, other)

    def __rtruediv__(self, other: object) -> TensorHolder:
        if "reciprocal" in self._builder.infix:
            return self._infix("mul", self._unary("reciprocal"), other)
        return self._infix("rdiv", self, other)

    def __matmul__(self, other: object) -> TensorHolder:
        return self._infix("matmul", self, other)

    def __pow__(self, other: object) -> TensorHolder:
        return self._infix("pow", self, other)

    def __neg__(self) -> TensorHolder:
        return self._unary("neg")

    def __iter__(self) -> Iterator[TensorHolder]:
        raise TypeError(
            f"{self._value!r} is one tensor and cannot be unpacked; an operator with several "
            "outputs returns a tuple of holders (pass outputs=<number> if it depends on the call)"
        )

    def __repr__(self) -> str:
        return f"TensorHolder({self._value!r})"


class Operators:
    """The operators of one namespace as functions of holders; see `GraphBuilder.op`."""

    def __init__(self, builder: GraphBuilder, namespace: str) -> None:
        self._builder = builder
        self._namespace = namespace

    def __getattr__(self, name: str) -> Callable[..., TensorHolder | tuple[TensorHolder, ...]]:
        if name.startswith("__"):
            raise AttributeError(name)
        return functools.partial(self._builder.op, f"{self._namespace}::{name}")


class GraphBuilder:
    """Makes a graph by calling operators.

    Args:
        name: the graph's name.
        dialect: who knows the operators; inside a pass it is that of the graph being rewritten.

    `build_and_reset` ends the builder's life: using it or a holder's operators afterwards raises
    `ExpiredHandleError`.
    """

    def __init__(self, name: str = "graph", dialect: Dialect | None = None) -> None:
        self._graph: Graph | None = Graph(name, dialect)
        self._before: Node | None = None
        self._outputs: dict[int, object] = {}
        self._edits_graph = False
        self._dependencies: tuple[Node, ...] = ()

    @classmethod
    def over(cls, graph: Graph, before: Node) -> GraphBuilder:
        """Return a builder whose operators become nodes of `graph`, placed before `before`."""
        builder = cls.__new__(cls)
        builder._graph, builder._before, builder._edits_graph = graph, before, True
        builder._dependencies = ()
        builder._outputs = {}
        return builder

    def _live(self) -> Graph:
        if self._graph is None:
            raise ExpiredHandleError(
                "graph handle has expired: this builder built its graph; make a new GraphBuilder"
            )
        return self._graph

    def _with_inputs(self) -> Graph:
        if self._edits_graph:
            raise ValueError("a builder over a live graph cannot give it new inputs")
        return self._live()

    def create_input(
        self,
        name: str | int = "",
        *,
        shape: Sequence[DimLike] | None = None,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> TensorHolder:
        """Return one more input.

        With a `shape` (numbers, or names of symbolic sizes) the input is described: then the shapes
        of all values can be inferred, at once if the builder has a dialect, else when the graph
        meets one.

        A number for the `name`, as GE's builders take it first, is the position of the input, which
        must be the next: `ValueError` otherwise.

        `dtype` and `device` belong to the description, and mean nothing without a `shape`.
        """
        graph = self._with_inputs()
        if isinstance(name, int):
            self._check_next(name)
            name = ""
        if shape is None:
            return TensorHolder(self, graph.add_input(name))
        desc = TensorDesc(Shape(tuple(shape)), dtype, device=device)
        meta = None
        if graph.dialect is not None and graph.is_bound:
            meta = graph.dialect.meta_of(desc)
        value = graph.add_input(name, meta)
        value.node.meta["desc"] = desc
        return TensorHolder(self, value)

    def create_constant(
        self, values: object, dtype: str | None = None, *, name: str = "constant"
    ) -> TensorHolder:
        """Return a constant: of a number (no dimension), a nested list, a numpy array, or a tensor.

        Integers are int64 and other numbers float32 unless `dtype` says otherwise. Raises
        `TypeError` for values that make no tensor, `ValueError` for an unknown dtype.

        `name` is what its node is called.
        """
        payload = constant_payload(values, dtype)
        before = self._before
        return TensorHolder(self, self._live().add_constant(payload, name=name, before=before))

    def create_scalar(self, value: complex, dtype: str | None = None) -> TensorHolder:
        """Return a constant `value` without dimensions of `dtype`. `TypeError` for no number."""
        if not isinstance(value, (bool, int, float, complex)):
            raise TypeError(f"a scalar is made from a number, got {value!r}")
        return self.create_constant(value, dtype)

    def create_vector(self, values: Sequence[complex], dtype: str | None = None) -> TensorHolder:
        """Return a constant of one dimension; `TypeError` when `values` is not a sequence of
        numbers.

        `dtype` as in `create_constant`; float32 for an empty vector.
        """
        listed = list(values)
        if not all(isinstance(item, (bool, int, float, complex)) for item in listed):
            raise TypeError(f"a vector is made from numbers, got {values!r}")
        return self.create_constant(listed, dtype if listed or dtype else "float32")

    @property
    def name(self) -> str:
        """Return what the graph is called."""
        return self._live().name

    @property
    def infix(self) -> Mapping[str, str]:
        """Return the operators behind `+`, `@`, ...: the dialect's, or ATen's where it has none."""
        dialect = self._live().dialect
        return ATEN_INFIX if dialect is None else dialect.infix

    @property
    def takes_numbers(self) -> bool:
        """Return whether numbers may be operands of infix operators as they are."""
        return self.infix is ATEN_INFIX

    @property
    def aten(self) -> Operators:
        """ATen's operators as functions: `builder.aten.addmm(bias, x, weight)`."""
        return Operators(self, "aten")

    @property
    def onnx(self) -> Operators:
        """ONNX's operators as functions: `builder.onnx.Gemm(x, weight, bias, transB=1)`."""
        return Operators(self, "onnx")

    def operators(self, namespace: str) -> Operators:
        """Return a namespace's operators as functions: `builder.operators("demo").twice(x)`."""
        return Operators(self, namespace)

    def create_const_float(self, values: object) -> TensorHolder:
        """Return a float32 constant of `values`, a number or a nested list, as GE calls it."""
        return self.create_constant(values, "float32")

    def create_const_int64(self, values: object) -> TensorHolder:
        """Return an int64 constant of `values`, a number or a nested list, as GE calls it."""
        return self.create_constant(values, "int64")

    def create_const_int32(self, values: object) -> TensorHolder:
        """Return an int32 constant of `values`, a number or a nested list, as GE calls it."""
        return self.create_constant(values, "int32")

    def _check_next(self, index: int) -> None:
        count = len(self._live().inputs)
        if index != count:
            raise ValueError(
                f"inputs are created in their order: the next one is number {count}, got {index}"
            )

    def create_inputs(
        self, number: int, start_index: int | None = None
    ) -> tuple[TensorHolder, ...]:
        """Return `number` more inputs; `ValueError` where `start_index` is not the next one's."""
        if number < 0:
            raise ValueError(f"the number of inputs must not be negative, got {number}")
        if start_index is not None:
            self._check_next(start_index)
        graph = self._with_inputs()
        return tuple([TensorHolder(self, graph.add_input()) for _ in range(number)])

    def op(
        self, op_type: str, *arguments: object, outputs: int | None = None, **keywords: object
    ) -> TensorHolder | tuple[TensorHolder, ...]:
        """Call an operator.

        Args:
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
        node = graph.insert(
            op_type,
            tuple([self._held(argument) for argument in arguments]),
            {name: self._held(argument) for name, argument in keywords.items()},
            before=self._before,
            output_count=outputs,
        )
        for source in self._dependencies:
            graph.add_control_edge(source, node)
        holders = tuple([TensorHolder(self, value) for value in node.outputs])
        several = len(holders) != 1 or node.operator.output_count is None
        return holders if several else holders[0]

    def add_control_dependency(self, target: object, dependencies: object) -> None:
        """Let the operator behind `target` run after those behind `dependencies`, whether or not it
        reads anything of them: control edges (`Graph.add_control_edge`).

        Args:
            target: a holder, value or node.
            dependencies: one of these, or a sequence of them; an input counts as what computes it.

        Raises `ValueError` for what is of another graph, or an edge that there cannot be.
        """
        graph = self._live()
        for source in self._nodes_of(dependencies):
            for node in self._nodes_of(target):
                graph.add_control_edge(source, node)

    @contextmanager
    def control_dependency_scope(self, dependencies: object) -> Iterator[None]:
        """Let all operators called in the block run after those of `dependencies`; scopes nest."""
        outer = self._dependencies
        self._dependencies = (*outer, *self._nodes_of(dependencies))
        try:
            yield
        finally:
            self._dependencies = outer

    def _nodes_of(self, given: object) -> tuple[Node, ...]:
        if isinstance(given, (tuple, list)):
            return tuple(node for item in given for node in self._nodes_of(item))
        found = self._held(given)
        node = found.node if isinstance(found, Value) else found
        if not isinstance(node, Node):
            raise TypeError(f"a control dependency is a holder, value or node, got {given!r}")
        return (node,)

    def one_of(self, alternatives: Sequence[object], name: str = "") -> TensorHolder:
        """Return, in a pattern, any of `alternatives` (holders, arguments), called `name`."""
        graph = self._live()
        arguments = tuple([self._held(argument) for argument in alternatives])
        node = graph.insert_call(Operator(ONE_OF), arguments, before=self._before, output_count=1)
        node.meta["name"] = name
        return TensorHolder(self, node.output)

    def _held(self, argument: object) -> object:
        if isinstance(argument, TensorHolder):
            if argument._builder._graph is not self._graph:
                raise ValueError(
                    f"{argument!r} was made by another builder (of graph "
                    f"{argument.value.node.graph.name!r}, not {self._live().name!r})"
                )
            return argument._value
        if isinstance(argument, (tuple, list)):
            return tuple([self._held(item) for item in argument])
        return plain(argument)

    def set_graph_output(self, output: object, index: int) -> None:
        """Let `output` be result `index` of the graph, for `build_and_reset()` without outputs."""
        self._outputs[index] = self._held(output)

    def build_and_reset(self, outputs: object = None) -> Graph:
        """Return the finished graph, returning `outputs` (a holder or a sequence of them); by
        default what `set_graph_output` got.

        Raises `PassError` when control dependencies make a cycle.

        Raises `ValueError` for a builder over a live graph, and when there is no output.
        """
        graph = self._live()
        if self._edits_graph:
            raise ValueError(
                "a builder over a live graph has nothing to build: its nodes are in the graph"
            )
        if outputs is None:
            outputs = [self._outputs[index] for index in sorted(self._outputs)]
        listed = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        if not listed:
            raise ValueError(f"graph {graph.name!r} needs at least one output")
        graph.set_outputs(*listed)
        if graph.has_control_edges:
            topological_sort(graph)
        self._graph = None
        return graph


use_builder(GraphBuilder.over)
