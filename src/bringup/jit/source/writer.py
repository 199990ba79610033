"""What a target's writer is asked for: the code around an author's function for one element.

A device that runs the host's code gets kernel.h's form. Any other gets plain values: what belongs
to each argument, then to each result, then the sizes. Dimensions are merged as far as possible, and
there are `RANK` of them: the first ones may have size 1.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from bringup._language.c_call import Binding, parse_call, parse_size
from bringup._language.signature import Argument
from bringup.jit.source.element import ElementExpression, Exact
from bringup.jit.source.loop_language import LoopLanguage
from bringup.jit.source.source import Source

RANK = 6  # of pointwise kernels with plain values; native/torch/operators/operator_kernel.h, too
KEPT = 4  # of reductions: as many dimensions of the results, then as many that are reduced
_MOST_BLOCKS = 1 << 16
_MOST_VALUES = 64  # of a launch; native/grid/c_call.h, too
_MOST_CALLS = 24

Form = Literal["tensor", "integer", "float", "number", "none", "string", "random"]


@dataclass(frozen=True)
class Operand:
    """What the kernel gets for one argument.

    Attributes:
        form: a tensor of the device; an integer or a float of the host that is converted to the
            type computed in; a number of its schema type; None; a string; random numbers, of which
            the kernel gets the seed and the offset of its call and the function a `bringup_random`
            (bringup/random.h) of the element.
        c_type: of a tensor, its elements; of a number, its own.
        optional: whether the function takes a pointer, which may be null.
        text: of a string.
        rounded: of a tensor or a number that is converted, the half precision that it has before it
            is widened to the type computed in: torch promotes operands first.
        given: whether the function has a parameter for it.
        exact: of a number, whether that is a double, where the device has them, and not of the type
            computed in.
        single: of a tensor, whether it has no dimensions and others have: its one element is that
            of all.
    """

    form: Form
    c_type: str = ""
    optional: bool = False
    text: str = ""
    rounded: str = ""
    given: bool = True
    exact: bool = False
    single: bool = False


@dataclass(frozen=True)
class Element:
    """What an author's function is called with.

    Attributes:
        source: what defines it.
        function: its name.
        operands: the operator's arguments in order; a reduction's first one is its input.
        computed: the C type computed in, as kernel.h names it.
        results: the C types of the results' elements.
        float64: whether the device has numbers of 64 bits.
    """

    source: Source
    function: str
    operands: tuple[Operand, ...]
    computed: str
    results: tuple[str, ...]
    float64: bool = True

    @property
    def draws(self) -> bool:
        """Return whether it gets random numbers."""
        return any(operand.form == "random" for operand in self.operands)

    @property
    def outs(self) -> tuple[str, ...]:
        """Return what the results are called: out, or out0, out1, ..."""
        count = len(self.results)
        return ("out",) if count == 1 else tuple(f"out{r}" for r in range(count))

    def pointwise_values(self, writer: Writer, *, dense: bool) -> Binding:
        """Return what a pointwise kernel of `writer` gets: of a tensor the address and, unless all
        are `dense`, its `RANK` strides in elements; of a number its value; of random numbers seed
        and offset; of each result as of a tensor; then the number of elements, or their `RANK`
        sizes.
        """
        outs = self.outs
        signature = [*_arguments(self.operands), *(Argument(out, "Tensor") for out in outs)]
        items = _items(self, signature, 0 if dense else RANK)
        count = f"numel({outs[0]})"
        sizes = [count] if dense else [f"size({outs[0]}, {d})" for d in range(RANK)]
        blocks = f"(({count} + {writer.elements - 1}) // {writer.elements})"
        return _binding(signature, [*items, *sizes], blocks, writer.threads)

    def reduction_values(self, writer: Writer, *, dense: bool = False) -> Binding:
        """Return what a reduction of `writer` gets: of its input the address and 2 * `KEPT`
        strides, those of the reduced dimensions last; of the other operands numbers; of each result
        the address and `KEPT` strides; then the sizes of the input, and how many threads share one
        result. With `dense` one block makes one result of elements that lie one behind another:
        there are no strides, and their number alone.
        """
        operands, count = self.operands, len(self.results)
        results = [Argument(f"out{r}", "Tensor") for r in range(count)]
        signature = [*_arguments(operands), Argument("kept", "int"), *results]
        numbers = [one for i in range(1, len(operands)) for one in _number(self, i)]
        if dense:
            items = ["ptr(a0)", *numbers, *(f"ptr(out{r})" for r in range(count)), "numel(a0)"]
            return _binding(signature, items, "1", writer.lanes)
        items = ["ptr(a0)", *(f"stride(a0, {d})" for d in range(2 * KEPT)), *numbers]
        for r in range(count):
            items += [f"ptr(out{r})", *(f"stride(out{r}, {d})" for d in range(KEPT))]
        items += [f"size(a0, {d})" for d in range(2 * KEPT)]
        # One result a thread where results lie side by side, or have little to add; of many that
        # have no more than some hundreds of elements several a block.
        inner = " * ".join(f"size(a0, {d})" for d in range(KEPT, 2 * KEPT))
        few = f"(({inner}) < 32 or (numel(out0) >= 64 and stride(a0, {2 * KEPT - 1}) != 1))"
        some = min(writer.lanes, 8)
        many = f"(({inner}) >= 512 or numel(out0) < 64)"
        shared = f"(1 + (not {few}) * ({some - 1} + {writer.lanes - some} * {many}))"
        blocks = f"(numel(out0) * {shared} + {writer.lanes - 1}) // {writer.lanes}"
        blocks = f"min({blocks}, {_MOST_BLOCKS})"
        return _binding(signature, [*items, shared], blocks, writer.lanes)


@dataclass(frozen=True)
class Written:
    """A source with an entry around the author's function.

    Attributes:
        source: what is compiled; its entry takes tensors of any layout.
        flags: what the compiler needs besides.
        binding: how the entry is called; None in kernel.h's form.
        dense: of a kernel with plain values, the entry for tensors whose elements lie one behind
            another (of a reduction to one result), and how that one is called.
        several: the entry for several calls at once, one behind another, and how many there are at
            most. With plain values these are calls of `dense`, which each
            have their own blocks, and null and 0 for those that are missing.
    """

    source: Source
    flags: tuple[str, ...] = ()
    binding: Binding | None = None
    dense: tuple[str, Binding] | None = None
    several: tuple[str, int] | None = None


class Writer(abc.ABC):
    """Writes entries in the language of a target. A vendor's target returns one as its `writer`.

    Attributes:
        RANK: how many dimensions a pointwise kernel with plain values gets.
        KEPT: how many a result of a reduction has there; as many are reduced.
        threads: of a block of a pointwise kernel with plain values.
        elements: of a block, likewise.
        lanes: the threads of a block of a reduction with plain values.
        number: what the language calls a double, or what takes its place on the device.
        repeated: the functions of expressions that give the same bits in whatever kernel they are,
            besides those that round, choose or copy a sign: captured graphs make one kernel of
            operators that have no other ones.
    """

    RANK: ClassVar[int] = RANK
    KEPT: ClassVar[int] = KEPT
    threads: int = 1
    elements: int = 1 << 14
    lanes: int = 1
    number: str = "double"
    repeated: frozenset[str] = frozenset()

    def calls(self, dense: Binding) -> int:
        """Return how many calls of a `dense` entry one launch can make; fewer than 2: no list."""
        return min(_MOST_VALUES // len(dense.parameters), _MOST_CALLS)

    @property
    def loops(self) -> LoopLanguage | None:
        """Return the language of torch.compile's loop nests, or None where there is none."""
        return None

    def c_type(self, c_type: str) -> str:
        """Return what the language calls elements of the type that kernel.h calls `c_type`."""
        return c_type

    @abc.abstractmethod
    def expression(
        self, name: str, expression: ElementExpression, operands: Sequence[Operand], computed: str
    ) -> Source:
        """Return a function `name` of an `expression`; its parameters are the given `operands`, in
        order: numbers of the C type `computed`. It returns the result; of several it gets the
        addresses, of that type, too.
        """

    def parameters(
        self, expression: ElementExpression, operands: Sequence[Operand], c_type: str
    ) -> tuple[list[str], dict[str, str | None]]:
        """Return the parameters of a function that computes an `expression` of `operands` in
        `c_type`, and what each argument is for `ElementExpression.code`.
        """
        given: list[str] = []
        known: dict[str, str | None] = {}
        names = iter(expression.names)
        for operand in operands:
            if operand.form == "random":
                given.append("bringup_random random_")
                continue
            name = next(names)
            known[name] = f'"{operand.text}"' if operand.form == "string" else None
            if operand.given:
                given.append(f"{self.number if operand.exact else c_type} {name}_given")
                known[name] = Exact(f"{name}_given") if operand.exact else f"{name}_given"
        if expression.results > 1:
            given += [f"{c_type}* out{r}" for r in range(expression.results)]
        return given, known

    @abc.abstractmethod
    def pointwise(self, element: Element, *, values: bool) -> Written:
        """Return an entry that calls `element` for each element of the results. With `values` it
        is device code with plain values, which `Element.pointwise_values` says, else of kernel.h's
        form.
        """

    @abc.abstractmethod
    def reduction(self, element: Element, *, values: bool) -> Written:
        """Return an entry that gives what is behind each result to the author's `element`; with
        `values` called as `Element.reduction_values` says.
        """


def _arguments(operands: Sequence[Operand]) -> list[Argument]:
    types = {
        "tensor": "Tensor", "integer": "int", "float": "float", "string": "str", "random": "int[]"
    }  # fmt: skip
    found = []
    for i, one in enumerate(operands):
        number = "float" if one.c_type == "double" else "int"
        found.append(Argument(f"a{i}", types.get(one.form, number)))
    return found


def _number(element: Element, i: int) -> list[str]:
    operand = element.operands[i]
    if operand.form in ("none", "string"):
        return []
    if operand.form == "random":
        return [f"a{i}[0]", f"a{i}[1]"]
    if operand.form == "float" or operand.c_type == "double":
        return [f"a{i}" if element.float64 else f"f32(a{i})"]
    return [f"a{i}"]


def _items(element: Element, signature: Sequence[Argument], strides: int) -> list[str]:
    items: list[str] = []
    for i, argument in enumerate(signature):
        if argument.type != "Tensor":
            items += _number(element, i)
            continue
        items += [f"ptr({argument.name})"]
        items += [f"stride({argument.name}, {d})" for d in range(strides)]
    return items


def _binding(
    signature: Sequence[Argument], items: Sequence[str], blocks: str, threads: int
) -> Binding:
    parameters = parse_call(", ".join(items), signature, "a written entry")
    size = parse_size(blocks, threads, 0, signature, "a written entry")
    return Binding("values", parameters, size)
