"""Reading what a kernel is called with, `"ptr(out), i32(size(x,0)), f32(eps)"`."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from bringup._language._core import Convention, NativeLaunchSize, NativeParameter
from bringup._language._core import ValueKind as ValueKind
from bringup._language.expression import Expression, Instruction, Opcode, bits_of
from bringup._language.reader import ExpressionReader, parse_expression
from bringup._language.signature import C_TYPES, Argument

# A number of blocks or threads: in x, or in up to three dimensions.
Extent: TypeAlias = int | str | Sequence[int | str]
Cluster: TypeAlias = int | Sequence[int]


class CType(NamedTuple):
    """A C type that a number can be declared to have; without bounds every value fits."""

    name: str
    kind: ValueKind
    bounds: tuple[int, int] | None = None


def _whole_types() -> dict[str, CType]:
    types: dict[str, CType] = {}
    for bits in (8, 16, 32, 64):
        half = 2 ** (bits - 1)
        types[f"i{bits}"] = CType(f"int{bits}_t", ValueKind.INT, (-half, half - 1))
        # What comes is an int64, so the largest uint64 cannot come.
        highest = min(2 * half, 2**63) - 1
        types[f"u{bits}"] = CType(f"uint{bits}_t", ValueKind.INT, (0, highest))
    return types


CTYPES: Mapping[str, CType] = {
    **_whole_types(),
    "f32": CType("float", ValueKind.FLOAT32),
    "f64": CType("double", ValueKind.FLOAT64),
    "bool": CType("bool", ValueKind.INT, (0, 1)),
}
_C_TYPE = {
    ValueKind.INT: "int64_t", ValueKind.BOOL: "int64_t", ValueKind.FLOAT64: "double",
    ValueKind.FLOAT32: "float", ValueKind.TEXT: "const char*",
}  # fmt: skip
_POINTERS = {
    "Tensor": Opcode.DATA,
    "int[]": Opcode.LIST_DATA,
    "bool[]": Opcode.LIST_DATA,
    "float[]": Opcode.LIST_DATA,
    "Generator": Opcode.LIST_DATA,
}
_SCALARS = {
    "int": (ValueKind.INT, Opcode.INT),
    "bool": (ValueKind.INT, Opcode.INT),
    "ScalarType": (ValueKind.INT, Opcode.INT),
    "Layout": (ValueKind.INT, Opcode.INT),
    "MemoryFormat": (ValueKind.INT, Opcode.INT),
    "float": (ValueKind.FLOAT64, Opcode.FLOAT),
    "Scalar": (ValueKind.FLOAT64, Opcode.REAL),
    "str": (ValueKind.TEXT, Opcode.STRING),
}
_TVM_ARGUMENTS = {
    **_SCALARS,
    "Tensor": (ValueKind.TENSOR, Opcode.TENSOR),
    "bool": (ValueKind.BOOL, Opcode.INT),
    "ScalarType": (ValueKind.DTYPE, Opcode.INT),
    "Device": (ValueKind.DEVICE, Opcode.INT),
    "int[]": (ValueKind.INTS, Opcode.TENSOR),
    "float[]": (ValueKind.FLOATS, Opcode.TENSOR),
    "bool[]": (ValueKind.BOOLS, Opcode.TENSOR),
    "Tensor[]": (ValueKind.TENSORS, Opcode.TENSOR),
    "Tensor?[]": (ValueKind.TENSORS, Opcode.TENSOR),
}
_NUMBERS = (ValueKind.INT, ValueKind.FLOAT32, ValueKind.FLOAT64)
BYTES = {
    "float": 4,
    "double": 8,
    "bool": 1,
    **{f"{u}int{bits}_t": bits // 8 for u in ("", "u") for bits in (8, 16, 32, 64)},
}
# An item with the name of its member before it.
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.+)\Z", re.DOTALL)
_NOT_PLAIN = {
    Opcode.TEXT: "a text is memory of the host's",
    Opcode.STRING: "a text is memory of the host's",
    Opcode.LIST_DATA: "a list is memory of the host's",
    Opcode.STREAM: "a stream is the host's to use",
    Opcode.WORKSPACE: "no workspace is there for it: pass a tensor",
}
# What is no whole number, or need not be one.
_AROUND = ("ref", "const")
_OWN = ("ptr", "workspace", "fault", *_AROUND, *CTYPES)
_MOST_RULES = 100


@dataclass(frozen=True)
class CParameter:
    """One thing that a kernel gets: a parameter of a function, or a field of a parameter struct."""

    value: Expression  # what it is
    kind: ValueKind  # how it is passed
    c_type: str  # the C type it is passed as
    bounds: tuple[int, int] | None = None  # what a whole number has to be within
    by_reference: bool = False  # whether the address of the value is passed
    optional: bool = False  # whether None is passed as such
    # What the dtype of the tensor whose address it is has to be, as torch calls it; "" when nothing
    # is said.
    dtype: str = ""
    member: str = ""  # what `params=` calls the field, or ""
    is_cast: bool = False  # whether the list says the type of the number: `i32(n)`
    # Whether the list says that nothing is written behind an address: `const(...)`.
    reads_only: bool = False
    # What the function calls the type, or that of what lies behind the address, where only a
    # compiler knows it, or "".
    declared_type: str = ""
    alike: str = ""  # the C type that this has to be like; "" for a number that it has to hold

    @property
    def text(self) -> str:
        return self.value.text

    @property
    def program(self) -> tuple[Instruction, ...]:
        return self.value.program

    @property
    def is_workspace(self) -> bool:
        return self.program[-1].opcode is Opcode.WORKSPACE

    @property
    def is_fault(self) -> bool:
        """Return whether it is the word in which a kernel says that it cannot compute."""
        return self.program[0].opcode is Opcode.FAULT

    @property
    def address_of(self) -> int:
        """Return the tensor argument whose address it is; -1 for none."""
        first = self.program[0]
        return first.argument if first.opcode is Opcode.DATA else -1

    @property
    def argument_name(self) -> str:
        """Return the name of the argument passed as it is, a tensor by its address, or ""."""
        first = self.program[0]
        whole = (Opcode.INT, Opcode.FLOAT, Opcode.STRING, Opcode.DATA, Opcode.LIST_DATA)
        alone = len(self.program) == 1 and first.opcode in whole
        return self.value.names[first.argument] if alone else ""

    def evaluate(self, values: Sequence[Any]) -> Any:
        """Return the value, None for an argument that is None. Raises as `Expression.evaluate`."""
        first = self.program[0]
        if self.optional and values[first.argument] is None:
            return None
        is_null = self.kind is ValueKind.POINTER and first.opcode is Opcode.CONSTANT
        return None if is_null else self.value.evaluate(values)

    @property
    def size(self) -> int:
        return BYTES.get(self.c_type, 8)

    def native(self) -> NativeParameter:
        return NativeParameter(
            value=self.value.native(),
            kind=self.kind,
            by_reference=self.by_reference,
            bounds=self.bounds,
            optional=self.optional,
            size=self.size,
        )


@dataclass(frozen=True)
class LaunchSize:
    """Over how many blocks of how many threads device code with plain arguments runs."""

    # The blocks in x, y and z; the threads, where `free_blocks`.
    grid: tuple[Expression, Expression, Expression]
    block: tuple[Expression, Expression, Expression]  # the threads of a block, likewise
    shared: Expression  # the bytes of a block's shared memory
    free_blocks: bool = False  # whether the device divides the threads into blocks
    cluster: tuple[int, int, int] = (0, 0, 0)  # the blocks of a cluster; 0: there are none
    cooperative: bool = False  # whether all blocks run at the same time

    def native(self) -> NativeLaunchSize:
        return NativeLaunchSize(
            grid=[expression.native() for expression in self.grid],
            block=[expression.native() for expression in self.block],
            shared=self.shared.native(),
            free_blocks=self.free_blocks,
            cluster=self.cluster,
            cooperative=self.cooperative,
        )


@dataclass(frozen=True)
class Binding:
    """How a function that is not compiled with a generated entry is called."""

    convention: Literal["status", "void", "tvm_ffi", "values", "tvm_tensor"]  # in which form
    parameters: tuple[CParameter, ...]  # what it gets
    size: LaunchSize | None = None  # of `"values"`: over which grid

    def native(
        self,
    ) -> tuple[Convention, list[NativeParameter], list[str], NativeLaunchSize | None]:
        names = self.parameters[0].value.names if self.parameters else ()
        if self.size is not None:
            names = self.size.shared.names
        convention = Convention[self.convention.upper()]
        size = self.size.native() if self.size is not None else None
        return convention, [p.native() for p in self.parameters], list(names), size


def parse_call(
    text: str, signature: Sequence[Argument], where: str, *, tvm_ffi: bool = False
) -> tuple[CParameter, ...]:
    """Return the parameters of a list over `signature`, outputs last; with `tvm_ffi` a name stands
    for the argument itself. Raises `ValueError` starting with `where`.
    """
    parts = _parts(text, signature, where)
    return tuple(_Reader(part, signature, where, tvm_ffi).parameter(node) for part, node in parts)


def parse_items(
    text: str, signature: Sequence[Argument], where: str, *, named: bool = False
) -> tuple[CParameter, ...]:
    """Return a list's items, without operators; with `named`, each may name its member of the
    struct. Raises `ValueError` starting with `where`, also for two members alike.
    """
    items: list[CParameter] = []
    for part in _split(text):
        found = _NAMED.match(part) if named else None
        member, item = (found[1], found[2]) if found else ("", part)
        if member and any(item.member == member for item in items):
            raise ValueError(f"{where}: {part!r}: there is a member {member} before")
        reader = _Reader(item, signature, where)
        items.append(replace(reader.item(reader.tree(item)), member=member))
    return tuple(items)


def plain_values(parameters: Sequence[CParameter], where: str) -> None:
    """Raise `ValueError` starting with `where` for what a launch with plain values cannot pass."""
    if sum(parameter.is_fault for parameter in parameters) > 1:
        raise ValueError(f"{where}: fault() stands once in the list, with all rules")
    for parameter in parameters:
        reason = _NOT_PLAIN.get(parameter.program[-1].opcode, "")
        if parameter.by_reference:
            reason = "ref() is an address of the host's"
        if reason:
            raise ValueError(
                f"{where}: {parameter.text}: {reason}; device code with block= gets addresses of "
                "tensors and numbers"
            )


def returning(parameters: Sequence[CParameter], where: str) -> None:
    """Raise `ValueError` starting with `where` for what a function of the host cannot get."""
    for parameter in parameters:
        if parameter.is_fault:
            raise ValueError(
                f"{where}: {parameter.text} is for device code with block=, which returns nothing; "
                "this function returns a status that is not 0"
            )


def parse_size(
    grid: Extent,
    block: Extent,
    shared: int | str,
    signature: Sequence[Argument],
    where: str,
    work_items: Extent | None = None,
    cluster: Cluster | None = None,
    cooperative: bool = False,
) -> LaunchSize:
    """Return the size of a launch. `ValueError` starting with `where` for none."""

    def read(what: str, given: int | str) -> Expression:
        return parse_expression(given, signature, f"{where}: {what}", none_is_zero=True)

    def dimensions(what: str, given: Extent) -> tuple[Expression, Expression, Expression]:
        sizes = [given] if isinstance(given, (int, str)) else list(given)
        if not 1 <= len(sizes) <= 3:
            raise ValueError(
                f"{where}: {what}={given!r}: expected a number or an expression, or one to three "
                "of them"
            )
        x, y, z = (read(what, size) for size in (*sizes, 1, 1)[:3])
        return x, y, z

    if work_items is not None:
        if (grid, block, shared, cluster, cooperative) != (1, 1, 0, None, False):
            raise ValueError(
                f"{where}: work_items={work_items!r}: takes the place of grid=, block=, shared=, "
                "cluster= and cooperative=: the device divides them into blocks"
            )
        grid = work_items
    what = "grid" if work_items is None else "work_items"
    return LaunchSize(
        dimensions(what, grid),
        dimensions("block", block),
        read("shared", shared),
        work_items is not None,
        _cluster(cluster, where),
        cooperative,
    )


def _cluster(given: Cluster | None, where: str) -> tuple[int, int, int]:
    if given is None:
        return 0, 0, 0
    sizes = list(given) if isinstance(given, Sequence) else [given]
    numbers = all(type(size) is int and size >= 1 for size in sizes)
    if not 1 <= len(sizes) <= 3 or not numbers or math.prod(sizes) >= 2**32:
        raise ValueError(
            f"{where}: cluster={given!r}: expected a number of blocks of at least 1, or one to "
            "three of them"
        )
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _split(text: str) -> list[str]:
    """Return the elements of a comma-separated list; the last one may be followed by a comma."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts]
    return parts[:-1] if not parts[-1] else parts


def _parts(text: str, signature: Sequence[Argument], where: str) -> Iterator[tuple[str, ast.expr]]:
    source = f"f({text}\n)"
    call = _Reader(text, signature, where).tree(source)
    if not isinstance(call, ast.Call) or call.keywords:
        reader = _Reader(text, signature, where)
        raise reader.error(f"it cannot be read; {reader.grammar}")
    for node in call.args:
        yield ast.get_source_segment(source, node) or "", node


class _Reader(ExpressionReader):
    grammar = (
        "a parameter is ptr(x), ptr(x, float32), size(x,i), stride(x,i), size(x,i,n) and "
        "stride(x,i,n) where a tensor without dimension i has n, numel(x), ndim(x), "
        "dtype(x), has(x), len(list), list[i], a scalar argument's name, stream, device, "
        "workspace(bytes), fault(rules), a number, a text or None; of whole numbers also "
        "+ - * // %, min(), comparisons, and, or, not, of each i8 to i64, u8 to u64, f32, f64 and "
        "bool, and ref() of these; const() of an address"
    )

    def __init__(
        self, text: str, signature: Sequence[Argument], where: str, tvm_ffi: bool = False
    ) -> None:
        super().__init__(text, signature, where, none_is_zero=True)
        self._tvm_ffi = tvm_ffi
        self._texts: list[str] = []

    def parameter(self, node: ast.expr) -> CParameter:
        around = _called(node) if _called(node) in _AROUND else ""
        by_reference = around == "ref"
        read = self._value(self._only(node) if around else node)
        if by_reference and read.kind not in _NUMBERS:
            raise self.error("ref() is of a number; an address or a text is passed as it is")
        if around == "const" and read.kind not in (ValueKind.POINTER, ValueKind.TEXT):
            raise self.error("const() is of an address")
        self.check_depth(read.program)
        value = replace(read.value, texts=tuple(self._texts))
        reads_only = around == "const"
        return replace(read, by_reference=by_reference, value=value, reads_only=reads_only)

    def item(self, node: ast.expr) -> CParameter:
        read = self.parameter(node)
        only = read.program[0].opcode
        if len(read.program) > 1 or only in (Opcode.CONSTANT, Opcode.TEXT) or read.bounds:
            raise self.error("is more than an item; compute with items in the kernel")
        return read

    def visit(self, node: ast.expr) -> list[Instruction]:
        if not isinstance(node, (ast.Name, ast.Constant)) and _called(node) not in _OWN:
            return super().visit(node)
        read = self._value(node)
        if read.kind is not ValueKind.INT:
            raise self.error(f"{ast.unparse(node)} is no whole number")
        return list(read.program)

    def _value(self, node: ast.expr) -> CParameter:
        name = _called(node)
        if name in CTYPES:
            return self._cast(CTYPES[name], node)
        if name == "workspace":
            size = self.visit(self._only(node))
            return self._made(ValueKind.POINTER, *size, Instruction(Opcode.WORKSPACE))
        if name == "fault":
            return self._fault(node)
        if name in _AROUND:
            raise self.error(f"{name}() stands around the whole parameter")
        if name == "ptr":
            return self._pointer(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        literal = _literal(node)
        if literal is None or isinstance(literal, (str, float)):
            return self._constant(literal)
        if isinstance(literal, bool):
            return self._made(ValueKind.INT, Instruction(Opcode.CONSTANT, value=int(literal)))
        return self._made(ValueKind.INT, *super().visit(node))

    def _made(self, kind: ValueKind, *program: Instruction) -> CParameter:
        is_real = kind is ValueKind.FLOAT64
        names = tuple(argument.name for argument in self.arguments)
        value = Expression(self.text, program, names, is_real=is_real)
        return CParameter(value, kind, _C_TYPE.get(kind, "void*"))

    def _constant(self, value: str | float | None) -> CParameter:
        if value is None:
            return self._made(ValueKind.POINTER, Instruction(Opcode.CONSTANT))
        if isinstance(value, str):
            if "\0" in value:
                raise self.error("a text ends at its first NUL for C; remove it")
            self._texts.append(value)
            number = len(self._texts) - 1
            return self._made(ValueKind.TEXT, Instruction(Opcode.TEXT, value=number))
        if abs(value) == float("inf"):
            raise self.error(f"{value!r} is no number that C has in 64 bits")
        return self._made(
            ValueKind.FLOAT64, Instruction(Opcode.CONSTANT, value=bits_of(float(value)))
        )

    def _name(self, node: ast.Name) -> CParameter:
        named = {argument.name for argument in self.arguments}
        if node.id == "stream" and node.id not in named:
            return self._made(ValueKind.POINTER, Instruction(Opcode.STREAM))
        if node.id == "device" and node.id not in named:
            return self._made(ValueKind.INT, Instruction(Opcode.DEVICE))
        index = self.index(node)
        argument = self.arguments[index]
        known = _TVM_ARGUMENTS if self._tvm_ffi else _SCALARS
        if argument.type not in known:
            raise self.error(
                f"{node.id} is {argument.type}, which tvm-ffi passes as an object of its own "
                "runtime; pass a tensor instead"
                if self._tvm_ffi
                else f"{node.id} is {argument.type}: write ptr({node.id}), size({node.id},0), ..."
            )
        kind, opcode = known[argument.type]
        made = self._made(kind, Instruction(opcode, index))
        return replace(made, optional=self._tvm_ffi and argument.optional)

    def _cast(self, c_type: CType, node: ast.expr) -> CParameter:
        given = self._only(node)
        literal = _literal(given)
        if type(literal) is int and c_type.kind is not ValueKind.INT:
            given = ast.Constant(float(literal))
        value = self._value(given)
        expected = ValueKind.INT if c_type.kind is ValueKind.INT else ValueKind.FLOAT64
        if value.kind is not expected:
            kind = "a whole number" if expected is ValueKind.INT else "a float"
            raise self.error(f"{ast.unparse(given)} is not {kind}")
        return replace(
            value, kind=c_type.kind, c_type=c_type.name, bounds=c_type.bounds, is_cast=True
        )

    def _pointer(self, node: ast.expr) -> CParameter:
        given = node.args if isinstance(node, ast.Call) and not node.keywords else []
        if not 1 <= len(given) <= 2:
            raise self.error("ptr() takes a tensor or a list, and a dtype where it is to be said")
        if isinstance(given[0], ast.Subscript) and len(given) == 1:
            items = self.argument(given[0].value, "Tensor[]", "Tensor?[]")
            number = self.number_of(given[0].slice)
            return self._made(ValueKind.POINTER, Instruction(Opcode.ITEM_DATA, items, number))
        index = self.index(given[0])
        name, kind = self.arguments[index].name, self.arguments[index].type
        if kind not in _POINTERS:
            raise self.error(
                f"{name} is {kind}, which has no address to pass; expected {' or '.join(_POINTERS)}"
            )
        made = self._made(ValueKind.POINTER, Instruction(_POINTERS[kind], index))
        if len(given) == 1:
            return made
        word = ast.unparse(given[1])
        if word not in C_TYPES:
            raise self.error(f"{word} is no dtype that a kernel takes ({', '.join(C_TYPES)})")
        if made.address_of < 0:
            raise self.error(f"{name} is no tensor")
        return replace(made, dtype=word)

    def _fault(self, node: ast.expr) -> CParameter:
        rules = [_literal(rule) for rule in node.args] if isinstance(node, ast.Call) else []
        texts = [rule for rule in rules if isinstance(rule, str) and rule]
        if not texts or len(texts) != len(rules) or len(texts) > _MOST_RULES:
            raise self.error(
                f"fault() takes texts, 1 to {_MOST_RULES}: the rules whose number, from 1, the "
                "kernel writes there"
            )
        self._texts += texts
        return self._made(ValueKind.POINTER, Instruction(Opcode.FAULT))

    def _only(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            raise self.error(f"{_called(node)}() takes one argument")
        return node.args[0]


_NO_LITERAL = object()


def _literal(node: ast.expr) -> Any:
    """Return the constant of a tree, with its sign; something else where it is none."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _literal(node.operand)
        return -value if type(value) in (int, float) else _NO_LITERAL
    return _NO_LITERAL


def _called(node: ast.expr) -> str:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if is_call else ""  # type: ignore[attr-defined]
