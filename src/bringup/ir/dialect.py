"""What an operator *is*, as far as a graph needs to know. A dialect answers; this package only
asks.

`compiler.aten` implements the protocol for PyTorch's operators. Nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from bringup.ir.node import Node, Value
from bringup.ir.operators import Operator
from bringup.ir.tensor import ConstantData, TensorDesc

__all__ = ["Dialect", "current_dialect", "use_dialect"]


class Dialect(Protocol):
    """Answers what the operators of one vocabulary are.

    `meta` is the dialect's own description of a value; a graph only carries it. A dialect may have
    a method `detached()`, which returns one of its class and name that belongs to no graph: what is
    built with that one (a pattern) is kept, and serves the graphs of all dialects of this class and
    name.

    Where strides mean something it may have two more: `reads_strides(node)`, whether a node depends
    on those of its inputs besides taking them, and `laid_out_as(value, meta, before)`, a copy of
    `value` in front of `before` that has the strides of `meta`, None where none can be made.

    Others that it may have:

    - `infix`: the operators behind `+`, `-`, ... of builders by name (`add`, `sub`, ...); those of
      ATen otherwise.
    - `can_fold(node)`: whether a node on constants may be computed once; any pure one otherwise.
    - `is_settled(node)`: whether inference over a graph may leave a node out, because all is known
      of its outputs; none otherwise.
    - `pass_on_shapes(graph)`: called when all shapes of a graph were inferred, to tell the graphs
      that its nodes call.
    - `values_are_immutable`: whether results may become inputs or each other.
    - `as_size(meta)`: the number that a value of this meta is, where it is a size, also of one that
      hooks were given as an argument; `size_operators`: the operators that compute sizes, by "size"
      (of a tensor in a dimension), "+", "*", "//"; `size_named(text)`: the size that has this
      text.
    - `copy_of(value, before)`: a value with memory of its own and the same elements.
    """

    @property
    def name(self) -> str:
        """The vocabulary, e.g. `aten`."""

    def bind(
        self, op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[Operator, tuple[object, ...]]:
        """The operator `op_type` (its overload chosen) and all arguments in schema order,
        defaults filled in: `arguments` by position, `keywords` by name.

        Raises `SchemaError` when there is no such operator or the arguments do not fit its
        schema.
        """

    def commutes(self, node: Node) -> bool:
        """Whether the first two arguments of this node may change places."""

    def draws_random(self, node: Node) -> bool:
        """Whether this call of a random operator, `node`, draws numbers (a dropout of 0 does
        not).
        """

    def infer(self, node: Node, instead_of: Value | None = None) -> tuple[object, ...]:
        """The meta of every output of `node`, from that of the inputs. Raises what the operator
        raises.

        `instead_of` is a value that the only output will stand for and that then goes: its meta
        may be taken over where it means the same.
        """

    def meta_of(self, desc: TensorDesc) -> object:
        """The meta of a tensor that looks like `desc`: the opposite of `describe`.

        Raises `PassError` where the dialect has no such tensor.
        """

    def describe(self, meta: object) -> TensorDesc | None:
        """The meta by value; None for a value that is not a tensor (a symbolic integer)."""

    def difference(self, old: object, new: object) -> str | None:
        """Why a value of meta `new` cannot stand where one of `old` did; None when it can."""

    def same_layout(self, old: object, new: object) -> bool:
        """Whether the metas `old` and `new` agree in their strides too, so that no consumer can
        tell them apart.
        """

    def evaluate(self, node: Node, constants: Mapping[Value, object]) -> tuple[object, ...]:
        """The outputs of a node whose inputs are all constants, given the data of each."""

    def sample(self, meta: object, seed: int, draw: int) -> object:
        """Random data for a value of this meta. `seed` decides the elements; symbolic sizes
        depend on `draw` alone, so that values sampled with the same `draw` fit together.
        """

    def distance(self, expected: object, got: object) -> tuple[float, float]:
        """How far the result `got` is from `expected` at most, and how far it may be."""

    def vary(self, meta: object, dtype: str | None, more: int) -> object:
        """The meta in another floating-point `dtype` (None: its own), with every size above 1
        larger by `more`; the same object where that changes nothing.
        """

    def constant(self, payload: ConstantData) -> object:
        """A constant whose `payload` was given by value, in the dialect's own form."""

    def constant_meta(self, payload: object) -> object:
        """The meta of a constant that holds `payload`.

        Raises `TypeError` for a payload that is not in the dialect's own form.
        """

    def constant_of(self, data: ConstantData) -> object:
        """A payload with these data: what `constant_data` gives back.

        Raises `PassError` where the dialect cannot hold them.
        """

    def constant_data(self, payload: object) -> ConstantData | None:
        """What a constant's `payload` holds, by value; None when that is not known."""

    def supports(self, node: Node) -> tuple[bool, str]:
        """Whether the node can be executed, and if not, why."""

    def same(self, left: object, right: object) -> bool:
        """Whether the host arguments `left` and `right` are equal, symbolic integers compared
        by expression.
        """


_CURRENT: ContextVar[Dialect | None] = ContextVar("bringup_dialect", default=None)


def current_dialect() -> Dialect | None:
    """The dialect of builders that are given none: inside a pass, that of the graph it edits."""
    return _CURRENT.get()


@contextmanager
def use_dialect(dialect: Dialect | None) -> Iterator[None]:
    """Make `dialect` the one that builders use in this block."""
    token = _CURRENT.set(dialect)
    try:
        yield
    finally:
        _CURRENT.reset(token)
