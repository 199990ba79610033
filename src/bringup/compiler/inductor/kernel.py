"""A fused loop nest of Inductor as one function of a target's language."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped]
import torch

from bringup.compiler.inductor.functions import (
    COPIED,
    HALVES,
    TYPES,
    Functions,
    computed,
    computed_type,
)
from bringup.compiler.inductor.indices import print_index
from bringup.compiler.inductor.segments import (
    Across,
    Nest,
    Reduction,
    Row,
    Segment,
    finding,
    folding,
    welford,
    welford_step,
)
from bringup.compiler.inductor.torch_private import (
    CSE,
    CSEVariable,
    DeferredLine,
    IndentedBuffer,
    OrderedSet,
    SIMDKernel,
    SizeArg,
    TensorArg,
    V,
)
from bringup.jit import LoopLanguage

_FAR = 16  # elements: another line of a cache
_ALONE = 8  # elements that one worker adds while several of them agree on one
_FEW = 128  # elements that one thread reduces in no time


class Parameter(NamedTuple):
    """One parameter of a kernel.

    Attributes:
        c_type: that it is declared with.
        name: in the kernel's text.
        value: what the wrapper passes.
        kind: for `launch`.
    """

    c_type: str
    name: str
    value: str
    kind: str

    @property
    def key(self) -> tuple[str, str]:
        return self.c_type, self.value


class TypedCSE(CSE):  # type: ignore[misc]
    """Declares each variable with the type of its dtype."""

    def generate(self, buffer: Any, expr: Any, **kwargs: Any) -> Any:
        """Write `expr` once; its dtype has to be given."""
        dtype = kwargs.get("dtype")
        if dtype is not None:
            self.prefix = f"{computed_type(dtype)} "
        elif not isinstance(expr, CSEVariable) and kwargs.get("assignment", True):
            raise NotImplementedError(f"an expression without a dtype: {expr}")
        return super().generate(buffer, expr, **kwargs)


class LoopKernel(SIMDKernel):  # type: ignore[misc]
    """Writes the nodes that Inductor fused as loops over results and what each is reduced of.

    Attributes:
        language: what it is written in.
        dtypes: what it computes with; others it copies.
        device: that it is for.
        faults: what can go wrong in it, in words; a report has the number behind the place here.
    """

    overrides = Functions
    suffix = ";"
    newvar_prefix = ""
    kexpr = sexpr = pexpr = staticmethod(print_index)
    language: LoopLanguage
    dtypes: frozenset[torch.dtype]
    device: torch.device
    inside_reduction: bool

    def __init__(self, tiling: Any, **kwargs: Any) -> None:
        super().__init__(tiling, **kwargs)
        self.cse = TypedCSE("", self.suffix)
        self.faults: list[str] = []
        self._segments: list[Segment] = []
        self._results: dict[str, str] = {}  # lines that name parts of xindex
        self._entries: dict[str, Any] = {}
        self._reduced: list[str] = []
        self._after = IndentedBuffer()
        self._reductions: list[Reduction] = []
        self._welford: dict[str, None] = {}
        self._numbers = itertools.count()
        self._outer = False
        self._places: list[Any] = []
        self._added_to: set[str] = set()  # parameters
        self._unconditional = self.loads
        self._read: dict[str, tuple[str, Any, torch.dtype]] = {}

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return TYPES[dtype]

    def finalize_indexing(self, indices: Iterable[Any]) -> None:
        """See in which direction neighbours lie in memory."""
        if not self.inside_reduction:
            return
        results, reduced = 0, 0
        x, r = (tree.symbol() for tree in self.range_trees)
        for index in indices:
            strides = self.get_strides_of_load(index)
            reduced += strides[r] == 1
            results += strides[x] == 1 and strides[r] not in (0, 1)
        self._outer = results > reduced

    @property
    def _has_lanes(self) -> bool:
        return self.language.lanes > 1

    @property
    def _is_grouped(self) -> bool:
        """Return whether a block of threads computes one result of much that lies side by side."""
        if self._has_lanes or not self.language.shared or not self.features.is_reduction():
            return False
        known, reduced = V.graph.sizevars, self.range_trees[1].numel
        return not self._outer and not known.statically_known_lt(reduced, _FEW)

    # --- memory

    def is_host_number(self, name: str) -> bool:
        """Return whether a buffer is a 0-dimensional tensor of the host, which comes by value."""
        buffer = V.graph.try_get_buffer(name)
        return buffer is not None and buffer.get_device().type == "cpu"

    def _kept(self, dtype: torch.dtype) -> torch.dtype:
        """Return what the elements of a buffer are taken for."""
        alike = (one for one in COPIED if one.itemsize == dtype.itemsize)
        return dtype if dtype in self.dtypes else next(alike)

    def load(self, name: str, index: Any) -> Any:
        pointer, dtype = self.args.input(name), self._kept(V.graph.get_dtype(name))
        place = self._place(index)
        if self.is_host_number(name):
            text = f"({computed_type(dtype)}){pointer}"
        elif dtype in HALVES:
            text = f"load_{HALVES[dtype]}({pointer}, {place})"
        elif dtype is torch.bool:
            text = f"{pointer}[{place}] != 0"
        else:
            text = f"{pointer}[{place}]"
        if self.loads is self._unconditional and not self.is_host_number(name):
            self._read[text] = f"&{pointer}[{place}]", self._places[-1], dtype
        return self.cse.generate(self.loads, text, dtype=computed(dtype))

    def _place(self, index: Any) -> str:
        prepared = self.prepare_indexing(index)
        self._places.append(prepared)
        return str(self.index_to_str(prepared))

    def _stored(self, name: str, index: Any, value: Any) -> Any:
        pointer, dtype = self.args.output(name), self._kept(V.graph.get_dtype(name))
        place = self._place(index)
        if dtype in COPIED:
            text = f"{pointer}[{place}] = {value};"
        elif dtype in HALVES:
            text = f"store_{HALVES[dtype]}({pointer}, {place}, {value});"
        elif dtype is torch.bool:
            text = f"{pointer}[{place}] = ({value}) != 0;"
        else:
            text = f"{pointer}[{place}] = ({TYPES[dtype]})({value});"
        return DeferredLine(name, text)

    def store(self, name: str, index: Any, value: Any, mode: Any = None) -> None:
        """Write one element, or add to it."""
        if mode is None:
            self.stores.writeline(self._stored(name, index, value))
            return
        c_type = TYPES[V.graph.get_dtype(name)]
        if mode != "atomic_add" or c_type not in self.language.atomics:
            raise NotImplementedError(f"store {mode} of {c_type} in {self.language.suffix}")
        place = self.index_to_str(self.prepare_indexing(index))
        pointer = self.args.output(name)
        self._added_to.add(pointer)
        line = f"atomic_add_{c_type}(&{pointer}[{place}], ({c_type})({value}));"
        self.stores.writeline(DeferredLine(name, line))

    def store_reduction(self, name: str, index: Any, value: Any) -> None:
        inside, self.inside_reduction = self.inside_reduction, False
        try:
            self._after.writeline(self._stored(name, index, value))
        finally:
            self.inside_reduction = inside

    # --- reductions

    def _names(self, count: int, dtype: torch.dtype) -> list[Any]:
        return [self.cse.namedvar(f"acc{next(self._numbers)}", dtype=dtype) for _ in range(count)]

    def reduction(self, dtype: Any, src_dtype: Any, reduction_type: str, value: Any) -> Any:
        """Keep what a reduction needs, and return what it will be after the loop."""
        key = (src_dtype, reduction_type, value)
        if key not in self.cse.reduction_cache:
            self.cse.reduction_cache[key] = self._reduce(dtype, src_dtype, reduction_type, value)
        return self.cse.reduction_cache[key]

    def _reduce(self, dtype: torch.dtype, src: torch.dtype, kind: str, value: Any) -> Any:
        source = computed(src)
        if kind.startswith("welford"):
            return self._reduce_welford(kind, source, value)
        if kind in ("argmax", "argmin"):
            best, where = (*self._names(1, source), *self._names(1, torch.int64))
            tree = next(tree for tree in self.range_trees if tree.is_reduction)
            made, line = finding(str(best), str(where), kind, source, value, tree.name)
            result = where
        else:
            kept = source if kind in ("max", "min") else computed(dtype)
            (result,) = self._names(1, torch.bool if kind == "any" else kept)
            made, line = folding(str(result), kind, result.dtype, value)
        self.compute.writeline(line)
        self._reductions.append(made)
        return result

    def _reduce_welford(self, kind: str, dtype: torch.dtype, value: Any) -> tuple[Any, ...]:
        names, c_type = self._names(3, dtype), TYPES[dtype]
        texts = [str(name) for name in names]
        made, line = welford(texts, c_type, value)
        if kind == "welford_reduce":
            self._welford[c_type] = None
            self.compute.writeline(line)
        else:
            self.compute.writeline(welford_step([f"{text}@" for text in texts], value, c_type))
        self._reductions.append(made)
        return tuple(names)

    # --- checks

    def _fault(self, words: str) -> int:
        origins = self.current_node.node.get_origins() if self.current_node else ()
        targets = (origin.target for origin in origins)
        operators = sorted({str(t) for t in targets if isinstance(t, torch._ops.OpOverload)})
        self.faults.append(f"{', '.join(operators) or 'a compiled kernel'}: {words}")
        return len(self.faults)

    def check_bounds(self, expr: Any, size: Any, lower: bool, upper: bool) -> None:
        """Report an index that is out of bounds, and go on with one that is not."""
        if not (lower or upper):
            return
        index, limit = self.index_to_str(expr), self.index_to_str(size)
        number = self._fault(f"index {{}} is out of bounds for a dimension of size {size}")
        wrong = " || ".join([f"{index} < 0"] * lower + [f"{index} >= {limit}"] * upper)
        instead = f" {index} = 0;" if isinstance(expr, sympy.Symbol) else ""
        self.compute.writeline(
            f"if ({wrong}) {{ report_fault(fault, {number}, {index});{instead} }}"
        )

    def check_divisor(self, value: Any) -> None:
        """Report a division of integers by 0, whose result is 0 then."""
        bounds = getattr(value, "bounds", None)
        if value != 0 if bounds is None else bounds.lower > 0 or bounds.upper < 0:
            return
        number = self._fault("division by zero")
        self.compute.writeline(f"if ({value} == 0) report_fault(fault, {number}, 0);")

    def device_assert_async(self, cond: Any, msg: str) -> None:
        """Report that a condition does not hold."""
        number = self._fault(msg.replace("{", "(").replace("}", ")"))
        self.compute.writeline(f"if (!({cond})) report_fault(fault, {number}, 0);")

    # --- the text

    def codegen_iteration_ranges_entry(self, entry: Any) -> None:
        """Name a part of an index."""
        line = f"const int64_t {entry.name} = {print_index(self.rename_indexing(entry.expr))};"
        if entry.is_reduction:
            self._reduced.append(line)
        else:
            self._results[entry.name], self._entries[entry.name] = line, entry

    def codegen_body(self) -> None:
        """End a segment: what follows sees the results of its reductions."""
        if not (self.loads or self.compute or self.stores or self._after):
            return
        code, after, loops = IndentedBuffer(), self._after, self.inside_reduction
        code.splice(self.loads)
        code.splice(self.compute)
        (code if loops else after).splice(self.stores)
        for buffer in (self.loads, self.compute, self.stores):
            buffer.clear()
        self._after = IndentedBuffer()
        found, kinds = tuple(self._reductions), tuple(self._welford)
        self._segments.append(Segment(loops, self._reduced, code, after, found, kinds))
        self._reduced, self._reductions, self._welford = [], [], {}
        if loops or (self._outer and self._has_lanes):
            self._forget()

    def _forget(self) -> None:
        """Forget the variables of a loop's body: results of reductions are there after it."""
        results = [
            variable
            for item in self.cse.reduction_cache.values()
            for variable in (item if isinstance(item, tuple) else (item,))
        ]
        self.cse.invalidate(OrderedSet(results))
        for node in self.range_tree_nodes.values():
            if node.is_reduction:
                node.cache_clear()

    def numel_of(self, tree: Any) -> str:
        if isinstance(tree.numel, sympy.Integer):
            return str(print_index(tree.numel))
        return f"{tree.prefix}numel"

    def _nest(self) -> Nest:
        results, *reduced = self.range_trees
        numel = self.numel_of(reduced[0]) if reduced else "1"
        return Nest(
            count=self.numel_of(results),
            reduced=numel,
            indices=self._results,
            segments=self._segments,
            lanes=self.language.lanes,
            row=self._row(),
        )

    def _row(self) -> Row | None:
        """Return length and name of the innermost dimension, if no other index changes along it."""
        entries = list(self._entries.values())
        whole = self.range_trees[0].numel
        inner = [e for e in entries if e.divisor == 1 and e.length != whole]
        if len(inner) != 1:
            return None
        length = inner[0].length
        known = V.graph.sizevars.statically_known_multiple_of
        others = [e for e in entries if e is not inner[0] and e.divisor != 1]
        if all(known(e.divisor, length) for e in others):
            constant = frozenset(e.name for e in others)
            text = f"({print_index(self.rename_indexing(length))})"
            return Row(text, inner[0].name, constant)
        return None

    def _is_across(self) -> bool:
        """Return whether elements that follow in a row lie far from each other in some tensor."""
        row = self._row()
        return row is not None and any(abs(self._step(one, row)) >= _FAR for one in self._places)

    def _step(self, place: Any, row: Row) -> int:
        """Return how far the elements of a row lie from each other; 0 where it is not known."""
        symbol = self._entries[row.name].symbol()
        step = place.subs(symbol, 1) - place.subs(symbol, 0)
        return int(step) if isinstance(step, sympy.Integer) else 0

    def _across(self) -> list[Across]:
        """Return what is read across rows: at places that are known before anything is computed."""
        if (row := self._row()) is None:
            return []
        found = []
        for text, (address, place, dtype) in self._read.items():
            indirect = any(str(symbol).startswith("tmp") for symbol in place.free_symbols)
            step = self._step(place, row)
            if indirect or abs(step) < _FAR:
                continue
            follows = dtype.itemsize == 4 and self._rows_follow(place, row)
            found.append(Across(text, computed_type(dtype), (address, step) if follows else ()))
        return found

    def _rows_follow(self, place: Any, row: Row) -> bool:
        """Return whether the rows of a square lie side by side in memory."""
        inner, known = self._entries[row.name], V.graph.sizevars
        others = [e for e in self._entries.values() if e is not inner and place.has(e.symbol())]
        if len(others) != 1:
            return False
        (outer,) = others
        symbol, rows = outer.symbol(), self.range_trees[0].numel
        return bool(
            sympy.expand(place.subs(symbol, symbol + 1) - place) == 1
            and known.statically_known_equals(outer.divisor, inner.length)
            and (
                known.statically_known_equals(outer.length * inner.length, rows)
                or known.statically_known_multiple_of(outer.length, Nest.SIDE)
            )
        )

    def parameters(self) -> list[Parameter]:
        _, given, signature, _ = self.args.python_argdefs()
        found = []
        for call, argument in zip(given, signature, strict=True):
            if isinstance(argument, TensorArg) and self.is_host_number(argument.buffer):
                wide = "double" if argument.dtype.is_floating_point else "int64_t"
                kind = "d" if wide == "double" else "l"
                found.append(Parameter(wide, argument.name, call, kind))
            elif isinstance(argument, TensorArg):
                dtype, kind = self._kept(argument.dtype), self._access(argument.name)
                stored = "uint8_t" if dtype is torch.bool else COPIED.get(dtype) or TYPES[dtype]
                found.append(Parameter(f"BRINGUP_GLOBAL {stored}*", argument.name, call, kind))
            elif isinstance(argument, SizeArg):
                found.append(Parameter("int64_t", argument.name, str(call), "i"))
            else:
                raise NotImplementedError(f"an argument of kind {type(argument).__name__}")
        for tree in self.range_trees:
            if not isinstance(tree.numel, sympy.Integer):
                call = V.graph.wrapper_code.codegen_python_sizevar(tree.numel)
                found.append(Parameter("int64_t", f"{tree.prefix}numel", call, "i"))
        return found

    def _access(self, name: str) -> str:
        """Return the kind of a tensor's parameter: "r" it is read, "w" written, "b" both."""
        if name.startswith("in_ptr"):
            return "r"
        return "b" if name.startswith("in_out_ptr") or name in self._added_to else "w"

    @property
    def shares_launches(self) -> bool:
        """Return whether a launch may compute other nests too: none that adds to shared places."""
        return not self._added_to and not self._is_grouped

    def codegen_kernel(self, name: str | None = None) -> str:
        self.codegen_body()
        nest = self._nest()
        if self._is_grouped:
            lines = nest.grouped(self.language.threads)
        elif self.language.shared:
            lines = nest.threads(self.language.threads)
        elif not self._has_lanes:
            lines = nest.plain()
        elif not self.features.is_reduction():
            nest.across = self._across()
            lines = nest.tiles() if self._is_across() else nest.rows()
        else:
            lines = nest.outer() if self._outer else nest.inner()
        return "\n".join(lines)

    def work(self) -> str:
        """Return how many elements there are, of which a launch makes blocks, for the wrapper."""
        trees = self.range_trees if self._has_lanes else self.range_trees[:1]
        sizes = [V.graph.wrapper_code.codegen_python_sizevar(tree.numel) for tree in trees]
        first, *others = sizes
        if self._is_grouped:
            others = [str(self.language.elements)]
        work = " * ".join([f"({first})", *(f"max(1, {size})" for size in others)])
        alone = bool(self._added_to) and self._has_lanes
        return f"-(-{work} // {_ALONE})" if alone else work

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        """Write nothing: the scheduling starts it, with others."""


def indented(lines: Iterable[str]) -> list[str]:
    """Return lines of C indented by their braces."""
    depth, found = 1, []
    for line in lines:
        text = line.strip()
        if text.startswith("}"):
            depth -= 1
        found.append(text if text.startswith("#") else "  " * depth + text)
        opened = text.count("{") - text.count("}")
        depth += opened + (1 if text.startswith("}") else 0)
    return found
