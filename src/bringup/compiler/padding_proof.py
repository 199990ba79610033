"""Whether a graph's length may be padded: a proof over its operators, not a guess.

A graph that takes `actual_seq_lengths` has one symbolic size, the length of its padded sequences.
Another value of it may be used when every operator computes a row of that dimension from the same
row alone, or reads lengths; whatever is not known to do so is a reason not to pad.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from bringup.errors import BringupError

_AS_THEY_ARE = frozenset({"aten::clone", "aten::alias", "aten::detach", "aten::_to_copy"})
_VIEWS = frozenset({"aten::view", "aten::_unsafe_view", "aten::reshape"})
_MOVES = frozenset({"aten::transpose", "aten::permute", "aten::unsqueeze", "aten::expand"})
_REDUCTIONS = ("aten::mean", "aten::sum", "aten::amax", "aten::_softmax")
_FILLED = frozenset({"aten::full", "aten::zeros", "aten::ones"})
_ALL = 2**62


class NotPaddedError(BringupError):
    """Why another length cannot be used in a graph."""


@dataclass(frozen=True)
class LengthInput:
    """The length of a graph's padded sequences, and where it shows.

    Attributes:
        size: position of the argument that is the length.
        padded: by position of a tensor argument, its dimension of that length.
        cut: for each result, its dimension of that length, or None.
        given_back: positions of results that are the length itself.
        lengths: the lengths of sequences: for each a position among arguments, or a constant.
        operators: how many operators take them.
        fits: whether a length may be used, for the arguments of a call.
    """

    size: int
    padded: Mapping[int, int]
    cut: tuple[int | None, ...]
    given_back: frozenset[int]
    lengths: tuple[tuple[bool, int], ...]
    operators: int
    fits: Callable[[Sequence[Any], int], bool]

    def values(self, arguments: Sequence[Any]) -> list[int]:
        """Return the lengths of sequences in a call."""
        return [arguments[value] if is_position else value for is_position, value in self.lengths]


def length_input(aten: Any) -> LengthInput:
    """Return what of a graph may be padded. Raises `NotPaddedError`, naming the operator."""
    return _Proof(aten).result()


class _Proof:
    def __init__(self, aten: Any) -> None:
        self._nodes = list(aten.graph.nodes)
        self._inputs = [node for node in self._nodes if node.op == "placeholder"]
        self._takers = [node for node in self._nodes if _takes_lengths(node)]
        if not self._takers:
            raise NotPaddedError("no operator of it takes actual_seq_lengths")
        self._symbol = self._length_symbol()
        self._lengths = self._lengths_of_sequences()
        # how many rows of other dimensions lie before each sequence of the length's
        self._outer: dict[fx.Node, Any] = {}

    def result(self) -> LengthInput:
        padded = {}
        for index, node in enumerate(self._inputs):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and self._carries(node):
                padded[index] = self._whole_dimension(node)
            elif self._has(value) and value.node.expr != self._symbol:
                raise NotPaddedError(f"its input {node.name} is {value.node.expr}")
        for node in self._nodes:
            if node.op == "call_function":
                self._require_rows_stay_apart(node)
            elif node.op not in ("placeholder", "output", "get_attr"):
                raise NotPaddedError(f"{node.op} {node.target} is not known")
        cut, given_back = self._results()
        return LengthInput(
            self._size_position(),
            padded,
            cut,
            given_back,
            self._lengths,
            len(self._takers),
            self._fits(),
        )

    def _length_symbol(self) -> Any:
        found = set()
        for node in self._takers:
            tensors, dim = _sequences(node)
            for tensor in tensors:
                size = _tensor(tensor).shape[dim]
                found.add(size.node.expr if isinstance(size, torch.SymInt) else int(size))
        if len(found) != 1:
            raise NotPaddedError(f"its operators take sequences of several lengths: {found}")
        (symbol,) = found
        if not isinstance(symbol, sympy.Symbol):
            raise NotPaddedError(
                f"its length is {symbol}, not symbolic: compile with dynamic=True, or call it with "
                "another length"
            )
        return symbol

    def _lengths_of_sequences(self) -> tuple[tuple[bool, int], ...]:
        lists = {tuple(_argument(node, "actual_seq_lengths")) for node in self._takers}
        if len(lists) != 1:
            raise NotPaddedError("its operators take different actual_seq_lengths")
        (items,) = lists
        found = []
        for item in items:
            if not isinstance(item, fx.Node):
                found.append((False, int(item)))
                continue
            users = set(item.users) - set(self._takers)
            if item.op != "placeholder" or users:
                raise NotPaddedError(f"the length {item.name} is computed, or read by {users}")
            if item.meta["val"].node.expr == self._symbol:
                raise NotPaddedError("one length is the padded length itself")
            found.append((True, self._inputs.index(item)))
        for node in self._takers:
            if _argument(node, "actual_seq_lengths_kv") is not None:
                raise NotPaddedError(f"{node.name} has lengths of keys")
        return tuple(found)

    def _size_position(self) -> int:
        for index, node in enumerate(self._inputs):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and value.node.expr == self._symbol:
                return index
        raise NotPaddedError("its length is no argument of its own")

    def _has(self, size: Any) -> bool:
        return isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) and (
            self._symbol in size.node.expr.free_symbols
        )

    def _dims(self, node: fx.Node) -> list[int]:
        tensor = _tensor(node)
        shape = () if tensor is None else tensor.shape
        return [dim for dim, size in enumerate(shape) if self._has(size)]

    def _carries(self, node: Any) -> bool:
        return isinstance(node, fx.Node) and bool(self._dims(node))

    def _whole_dimension(self, node: fx.Node) -> int:
        """Return the only dimension that is the length and nothing else."""
        dims = self._dims(node)
        if len(dims) != 1 or _expr(_tensor(node).shape[dims[0]]) != self._symbol:
            raise NotPaddedError(f"{node.name} has shape {list(_tensor(node).shape)}")
        return dims[0]

    def _rows_before(self, node: fx.Node) -> Any:
        if node in self._outer:
            return self._outer[node]
        dim = self._whole_dimension(node)
        return sympy.prod(_expr(size) for size in _tensor(node).shape[:dim])

    def _require_rows_stay_apart(self, node: fx.Node) -> None:
        if not isinstance(node.target, torch._ops.OpOverload):
            if node.target is not operator.getitem and not _is_number(node):
                raise NotPaddedError(f"{node.target} is not known")
            return
        tensors = [x for x in node.all_input_nodes if self._carries(x)]
        numbers = [x for x in node.all_input_nodes if _is_number(x) and self._has(x.meta["val"])]
        if not tensors and not numbers:
            return
        name = _name(node)
        known = (
            self._takes_lengths_rightly(node)
            if node in self._takers
            else self._is_made_of_the_length(node, name)
            if not tensors
            else self._is_by_rows(node, name, tensors, bool(numbers))
        )
        if not known:
            shapes = ", ".join(str(list(_tensor(x).shape)) for x in tensors) or "the length"
            raise NotPaddedError(f"it is not known that {name} keeps rows apart, of {shapes}")
        if self._carries(node) and node not in self._outer:
            self._whole_dimension(node)

    def _takes_lengths_rightly(self, node: fx.Node) -> bool:
        tensors, dim = _sequences(node)
        return all(self._whole_dimension(x) == dim for x in tensors)

    def _is_made_of_the_length(self, node: fx.Node, name: str) -> bool:
        """Return whether a value computed from the length keeps its rows for a longer one."""
        if name in _FILLED or name == "aten::expand":
            return not _is_number(_argument(node, "fill_value", None))
        if name == "aten::arange":
            return not any(_is_number(_argument(node, word, 0)) for word in ("start", "step"))
        if name == "aten::slice":
            start, step = _argument(node, "start", 0), _argument(node, "step", 1)
            return start in (0, None) and step == 1
        return False

    def _is_by_rows(
        self, node: fx.Node, name: str, tensors: Sequence[fx.Node], has_numbers: bool
    ) -> bool:
        tags = node.target.tags
        if torch.Tag.nondeterministic_seeded in tags or node.target._schema.is_mutable:
            return False
        if name in _VIEWS:
            return self._view_keeps_rows(node)
        if name == "aten::expand":
            return True
        if has_numbers:
            return False
        if torch.Tag.pointwise in tags or name in _AS_THEY_ARE:
            return self._keeps_rows_before(node, tensors)
        if name in _MOVES:
            return all(x not in self._outer for x in tensors)
        rule = _RULES.get(name)
        return rule is not None and rule(self, node)

    def _keeps_rows_before(self, node: fx.Node, tensors: Sequence[fx.Node]) -> bool:
        merged = {self._outer[x] for x in tensors if x in self._outer}
        if not merged:
            return True
        if len(merged) != 1 or any(x not in self._outer for x in tensors):
            return False
        (self._outer[node],) = merged
        return True

    def _view_keeps_rows(self, node: fx.Node) -> bool:
        """Return whether as many elements as before lie before each sequence of a view."""
        before = self._rows_before(node.args[0])
        shape = _tensor(node).shape
        dims = self._dims(node)
        if len(dims) != 1:
            return False
        factor = sympy.cancel(_expr(shape[dims[0]]) / self._symbol)
        if self._symbol in factor.free_symbols:
            return False
        rows = sympy.prod(_expr(size) for size in shape[: dims[0]]) * factor
        if factor != 1:
            self._outer[node] = before
        return bool(sympy.expand(rows - before) == 0)

    def _product(self, node: fx.Node) -> bool:
        """Return the rows of a left operand, or columns of a right one, without the length."""
        left, right = node.args[-2:] if _name(node) != "aten::addmm" else node.args[1:3]
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        rank = len(_tensor(left).shape)
        if self._carries(left) == self._carries(right) or len(node.all_input_nodes) > 3:
            return False
        if _name(node) == "aten::addmm" and self._carries(node.args[0]):
            return False
        if self._carries(right):
            return self._dims(right) == [rank - 1] and right not in self._outer
        if self._dims(left) != [rank - 2]:
            return False
        if left in self._outer:
            self._outer[node] = self._outer[left]
        return True

    def _other_dimension(self, node: fx.Node) -> bool:
        """Return the rows along dimensions other than the length's."""
        source = node.args[0]
        if not self._carries(source) or any(self._carries(x) for x in node.args[1:]):
            return False
        assert isinstance(source, fx.Node)
        rank = len(_tensor(source).shape)
        given = _argument(node, "dim", None)
        dims = [given] if isinstance(given, int) else given
        if not dims:
            return False
        return source not in self._outer and self._dims(source)[0] not in {d % rank for d in dims}

    def _slice(self, node: fx.Node) -> bool:
        if self._other_dimension(node) or node.args[0] in self._outer:
            return node.args[0] not in self._outer
        start, end = _argument(node, "start", 0), _argument(node, "end", None)
        return start in (0, None) and (end is None or (isinstance(end, int) and end >= _ALL))

    def _select(self, node: fx.Node) -> bool:
        index = _argument(node, "index")
        if node.args[0] in self._outer:
            return False
        return self._other_dimension(node) or (isinstance(index, int) and index >= 0)

    def _norm(self, node: fx.Node) -> bool:
        source, normalized = node.args[0], node.args[1]
        assert isinstance(source, fx.Node)
        rank = len(_tensor(source).shape)
        inner = range(rank - len(normalized), rank)
        if any(self._carries(x) for x in node.args[1:]) or self._dims(source)[0] in inner:
            return False
        return source not in self._outer

    def _looked_up(self, node: fx.Node) -> bool:
        table = node.args[0]
        return not self._carries(table) and node.args[-1] not in self._outer

    def _joined(self, node: fx.Node) -> bool:
        parts, dim = list(node.args[0]), _argument(node, "dim", 0)
        rank = len(_tensor(parts[0]).shape)
        return all(
            self._carries(x) and x not in self._outer and self._whole_dimension(x) != dim % rank
            for x in parts
        )

    def _prefix(self, node: fx.Node) -> bool:
        """Return the rows, each made of rows before it, which padding never is."""
        return node.args[0] not in self._outer

    def _results(self) -> tuple[tuple[int | None, ...], frozenset[int]]:
        (values,) = self._nodes[-1].args
        cut: list[int | None] = []
        given_back = set()
        for index, value in enumerate(values):
            is_node = isinstance(value, fx.Node)
            if is_node and self._carries(value):
                cut.append(self._whole_dimension(value))
                continue
            cut.append(None)
            if is_node and self._has(value.meta.get("val")):
                if value.meta["val"].node.expr != self._symbol:
                    raise NotPaddedError(f"its result {index} is a number made of the length")
                given_back.add(index)
        return tuple(cut), frozenset(given_back)

    def _fits(self) -> Callable[[Sequence[Any], int], bool]:
        """Return whether the compiled guards hold for these lengths, padded ones included."""
        others = {}
        for index, node in enumerate(self._inputs):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
                others[value.node.expr] = index
                environment = value.node.shape_env
        length = self._symbol
        taken = {others.pop(length), *(value for is_input, value in self._lengths if is_input)}
        others = {symbol: place for symbol, place in others.items() if place not in taken}

        answers: dict[tuple[int, ...], bool] = {}

        def fits(arguments: Sequence[Any], size: int) -> bool:
            key = (size, *(arguments[index] for index in others.values()))
            if key not in answers:
                values = dict(zip((length, *others), key, strict=True))
                answers[key] = _hold(environment, length, values)
            return answers[key]

        return fits


def _hold(environment: Any, length: Any, values: Mapping[Any, int]) -> bool:
    """Return whether all found out of the length while compiling is true of these."""
    bounds = environment.var_to_range.get(length)
    if bounds is not None and not (bounds.lower <= values[length] <= bounds.upper):
        return False
    # a size that turned out to be a number, or another one, has been replaced by it
    known = [environment.replace(guard.expr) for guard in environment.guards]
    touched = [expr for expr in known if length in expr.free_symbols]
    return all(expr.subs(values) == sympy.true for expr in touched)


_RULES: Mapping[str, Callable[[_Proof, fx.Node], bool]] = {
    "aten::mm": _Proof._product, "aten::addmm": _Proof._product, "aten::bmm": _Proof._product,
    "aten::native_layer_norm": _Proof._norm, "aten::embedding": _Proof._looked_up,
    "aten::gather": _Proof._looked_up, "aten::slice": _Proof._slice, "aten::select": _Proof._select,
    "aten::cat": _Proof._joined, "aten::cumsum": _Proof._prefix,
    "aten::unbind": _Proof._other_dimension, "aten::split": _Proof._other_dimension,
    "aten::split_with_sizes": _Proof._other_dimension,
    **dict.fromkeys(_REDUCTIONS, _Proof._other_dimension),
}  # fmt: skip


def _sequences(node: fx.Node) -> tuple[list[fx.Node], int]:
    """Return the tensors that an operator with lengths takes, and their dimension of the length."""
    tensors = [x for x in node.args if isinstance(x, fx.Node) and _tensor(x) is not None]
    return tensors, 2 if _name(node) == "bringup::attention" else 1


def _takes_lengths(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.name in ("bringup::attention", "bringup::mean_pool")


def _name(node: fx.Node) -> str:
    name: str = node.target._schema.name
    return name


def _argument(node: fx.Node, name: str, otherwise: Any = None) -> Any:
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            if index < len(node.args):
                return node.args[index]
            return node.kwargs.get(name, otherwise)
    return otherwise


def _tensor(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _is_number(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(
        node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)
    )


def _expr(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(int(size))
