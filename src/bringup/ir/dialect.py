"""What an operator *is*, as far as a graph needs to know: dialects answer, and know their
framework.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

from bringup._numbers import same_number
from bringup.ir.node import Node, Value
from bringup.ir.operators import Operator
from bringup.ir.symbolic import Dim, SymbolicDim
from bringup.ir.tensor import ConstantData, TensorDesc

ATEN_INFIX: Mapping[str, str] = {
    **{name: f"aten::{name}" for name in ("add", "sub", "rsub", "mul", "div", "matmul", "pow")},
    "neg": "aten::neg",
    "reciprocal": "aten::reciprocal",
}
"""The operators behind `+`, `@`, ... where no dialect names others."""


class Dialect(ABC):
    """Answers what the operators of one vocabulary are: the base class of every dialect.

    `meta` is the dialect's own description of a value; a graph only carries it. What is not
    abstract here has a default for a vocabulary whose metas are `TensorDesc`s without strides,
    whose constants are `ConstantData`, and whose operators compute what their `Operator` says.

    A subclass may have other public names only where its definition lists them, so that a misspelt
    method is an error and not a default:

        class Mine(ir.Dialect, own=("version",)): ...

    Raises `TypeError` at the definition of a subclass with another public name.

    Examples:
        >>> from bringup import ir
        >>> sorted(ir.Dialect.__abstractmethods__)  # what a subclass has to define
        ['bind', 'constant_meta', 'difference', 'evaluate', 'infer', 'name']
        >>> class Mine(ir.Dialect):
        ...     def commute(self, node): ...
        Traceback (most recent call last):
        TypeError: the dialect Mine has 'commute', which is not read: ...
    """

    provisional: ClassVar[bool] = False
    """Whether a graph that is bound to it may be bound again, to one that knows more."""
    values_are_immutable: ClassVar[bool] = False
    """Whether results may become inputs or each other."""
    infix: ClassVar[Mapping[str, str]] = ATEN_INFIX
    """The operators behind `+`, `-`, ... of builders by name (`add`, `sub`, ...)."""
    size_operators: ClassVar[Mapping[str, str]] = {}
    """The operators that compute sizes: "size" (of a tensor in a dimension), "+", "*", "//"."""
    has_symbolic_arguments: ClassVar[bool] = False
    """Whether a symbolic size may be an argument as it is, with no value that computes it."""
    copy_operator: ClassVar[str | None] = None
    """The operator whose result is a copy of its only argument; None where there is none."""

    def __init_subclass__(cls, own: Sequence[str] = (), **options: object) -> None:
        super().__init_subclass__(**options)
        bases = [base for base in cls.__bases__ if issubclass(base, Dialect)]
        known = {*own, *(name for base in bases for name in dir(base))}
        unknown = [name for name in vars(cls) if not name.startswith("_") and name not in known]
        if unknown:
            raise TypeError(
                f"the dialect {cls.__qualname__} has {', '.join(map(repr, unknown))}, which "
                f"{'is' if len(unknown) == 1 else 'are'} not read: spell it as in ir.Dialect, let "
                "a helper begin with an underscore, or list it: class ...(ir.Dialect, own=(...))"
            )

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the vocabulary, e.g. `aten`."""

    @abstractmethod
    def bind(
        self, op_type: str, arguments: Sequence[object], keywords: Mapping[str, object]
    ) -> tuple[Operator, tuple[object, ...]]:
        """Return the operator `op_type` (its overload chosen) and all arguments in schema order,
        defaults filled in: `arguments` by position, `keywords` by name.

        Raises `SchemaError` when there is no such operator or the arguments do not fit its
        schema.
        """

    def commutes(self, node: Node) -> bool:
        """Return whether the first two arguments of this node may change places."""
        return node.operator.commutes

    def draws_random(self, node: Node) -> bool:
        """Return whether this call of a random operator, `node`, draws (no dropout of 0 does)."""
        return node.operator.random

    @abstractmethod
    def infer(self, node: Node, instead_of: Value | None = None) -> tuple[object, ...]:
        """Return the meta of every output of `node`, from that of the inputs. Raises what the
        operator raises.

        `instead_of` is a value that the only output will stand for and that then goes: its meta
        may be taken over where it means the same.
        """

    def meta_of(self, desc: TensorDesc) -> object:
        """Return the meta of a tensor like `desc`, undoing `describe`, or raise `PassError`."""
        return desc

    def describe(self, meta: object) -> TensorDesc | None:
        """Return the meta by value; None for a value that is not a tensor (a symbolic integer)."""
        return meta if isinstance(meta, TensorDesc) else None

    @abstractmethod
    def difference(self, old: object, new: object) -> str | None:
        """Return why a value of meta `new` cannot stand where one of `old` did, or None."""

    def same_layout(self, old: object, new: object) -> bool:
        """Return whether metas `old` and `new` agree in strides too: readers see no difference."""
        return True

    def reads_strides(self, node: Node) -> bool:
        """Return whether a node depends on the strides of its inputs besides taking them."""
        return False

    def laid_out_as(self, value: Value, meta: object, before: Node) -> Value | None:
        """Return a copy of `value` in front of `before` with the strides of `meta`, or None."""
        return None

    @abstractmethod
    def evaluate(self, node: Node, constants: Mapping[Value, object]) -> tuple[object, ...]:
        """Return the outputs of a node whose inputs are all constants, given the data of each."""

    def inline_calls(self, graph: Any) -> int:
        """Let nodes that call a graph, of which constants say which and how often, be this graph;
        return how many are gone. Asked for after constants were folded, inside of a transaction.
        """
        return 0

    def can_fold(self, node: Node) -> bool:
        """Return whether a pure node on constants may be computed once."""
        return True

    def constant(self, payload: ConstantData) -> object:
        """Return a constant whose `payload` was given by value, in the dialect's own form."""
        return payload

    @abstractmethod
    def constant_meta(self, payload: object) -> object:
        """Return the meta of a constant that holds `payload`; `TypeError` for another form."""

    def constant_of(self, data: ConstantData) -> object:
        """Return a payload with these `data`, inverse to `constant_data`, or raise `PassError`."""
        return data

    def constant_data(self, payload: object) -> ConstantData | None:
        """Return what a constant's `payload` holds, by value; None when that is not known."""
        return payload if isinstance(payload, ConstantData) else None

    def supports(self, node: Node) -> tuple[bool, str]:
        """Return whether the node can be executed, and if not, why."""
        return True, ""

    def same(self, left: object, right: object) -> bool:
        """Return whether the host arguments `left` and `right` are equal, symbolic integers
        compared by expression. Types must agree too, and numbers to the bit.
        """
        return same_number(left, right)

    def detached(self) -> Dialect | None:
        """Return one of this class and name that belongs to no graph: what is built with it (a
        pattern) is kept, and serves the graphs of all dialects of this class and name. None where
        there is none.
        """
        return None

    def is_settled(self, meta: object) -> bool:
        """Return whether inference could say no more of a value of this meta: it is settled."""
        return False

    def pass_on_shapes(self, graph: Any) -> None:  # noqa: B027  (nothing to tell by default)
        """Tell the graphs that nodes of `graph` call their shapes, once its own are inferred."""

    def as_size(self, meta: object) -> Dim | None:
        """Return the number that a value of this meta is, where it is a size or was an argument."""
        return None

    def size_named(self, text: str) -> Dim:
        """Return the size that has this text."""
        return SymbolicDim.named(text)


_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 1e-40, -1e-40)


def special_numbers(draw: int) -> tuple[float, ...]:
    """Return the numbers that `VerifiableDialect.sample` takes elements from in a draw: none in the
    draws 0 to 2, in draw 3 zeros of either sign, ties and denormals, in draw 4 NaN besides, in draw
    5 also infinities and large numbers.

    Args:
        draw: the number of the draw.
    """
    further = ((), (math.nan,), (math.nan, math.inf, -math.inf, 1e5, -1e5))
    return (*_SPECIAL, *further[draw - 3]) if draw >= 3 else ()


class VerifiableDialect(
    Dialect, own=("sample", "distance", "vary", "strictness", "signed_distance")
):
    """A dialect that makes data and compares results: rewrites of its graphs can be run against
    what they replace.
    """

    @abstractmethod
    def sample(self, meta: object, seed: int, draw: int) -> object:
        """Return random data for a value of this `meta`. `seed` decides the elements; symbolic
        sizes depend on `draw` alone, so that values sampled with the same `draw` fit together, and
        so do the `special_numbers` among the elements.
        """

    @abstractmethod
    def distance(self, expected: object, got: object) -> tuple[float, float]:
        """Return how far the result `got` is from `expected` at most, and how far it may be."""

    @abstractmethod
    def vary(
        self,
        meta: object,
        dtype: str | None = None,
        resized: Callable[[int], int] | None = None,
    ) -> object:
        """Return the meta in another floating `dtype`, or sizes above 1 `resized`, or itself."""

    def strictness(self, node: Node) -> int:
        """Return for which inputs the results of `node` are fixed by its definition: 0 for ordinary
        ones, 1 for NaN (it computes element by element), 2 for infinities and overflow (it rounds
        once, or chooses), 3 also the signs of zeros (it does not choose between equal operands). 0
        unless a dialect knows better.
        """
        return 0

    def signed_distance(self, expected: object, got: object) -> tuple[float, float]:
        """Return the distance of `expected` and `got`, infinite where zeros differ in sign."""
        return self.distance(expected, got)


_CURRENT: ContextVar[Dialect | None] = ContextVar("bringup_dialect", default=None)


def current_dialect() -> Dialect | None:
    """Return the dialect of builders given none: inside a pass that of the graph it edits."""
    return _CURRENT.get()


@contextmanager
def use_dialect(dialect: Dialect | None) -> Iterator[None]:
    """Make `dialect` the one that builders use in this block."""
    token = _CURRENT.set(dialect)
    try:
        yield
    finally:
        _CURRENT.reset(token)
