"""What a function of somebody's is called with: `"ptr(out), ptr(x), i32(size(x,0)), f32(eps)"`.

Owns reading such a list against a signature: for each parameter the C expression that a generated
entry passes, and the program that the native library runs where nothing is compiled
(native/runtime/c_function.h). The leaves are the items of `items`.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple

from bringup._language.items import Item, parse_items
from bringup._language.signature import C_TYPES, Argument

__all__ = ["CTYPES", "Binding", "CParameter", "CType", "Convention", "ValueKind", "parse_call"]

Convention = Literal["status", "void", "tvm_ffi"]

_GRAMMAR = (
    "a parameter is ptr(x), ptr(x, float32), size(x,i), stride(x,i), numel(x), ndim(x), dtype(x), "
    "has(x), len(list), a scalar argument's name, stream, device, workspace(bytes), a number, a "
    "text or None; of whole numbers also + - * and //, of each i8 to i64, u8 to u64, f32, f64 and "
    "bool, and ref() of these"
)
_MAX_DEPTH = 16  # kMaxDepth of c_function.cpp
_MAX_LEVELS = 100
"""Of a parameter's text: what is nested deeper might exceed Python's recursion limit."""


class Step(IntEnum):
    """What a step of a program does; the numbers are those of CStep::Op."""

    CONSTANT = 0
    TEXT = 1
    INT = 2
    FLOAT = 3
    STRING = 4
    DATA = 5
    LIST_DATA = 6
    TENSOR = 7
    SIZE = 8
    STRIDE = 9
    NUMEL = 10
    NDIM = 11
    LENGTH = 12
    HAS = 13
    DTYPE = 14
    DTYPE_CODE = 15
    DTYPE_BITS = 16
    STREAM = 17
    DEVICE = 18
    WORKSPACE = 19
    ADD = 20
    SUBTRACT = 21
    MULTIPLY = 22
    FLOOR_DIVIDE = 23


class ValueKind(IntEnum):
    """What a parameter is; the numbers are those of CParameter::Kind."""

    INT = 0
    FLOAT64 = 1
    FLOAT32 = 2
    POINTER = 3
    BOOL = 4
    TEXT = 5
    TENSOR = 6
    DTYPE = 7


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
    ValueKind.INT: "int64_t",
    ValueKind.BOOL: "int64_t",
    ValueKind.FLOAT64: "double",
    ValueKind.FLOAT32: "float",
    ValueKind.TEXT: "const char*",
}
_OPERATORS: Mapping[type[ast.operator], tuple[Step, str]] = {
    ast.Add: (Step.ADD, "({left} + {right})"),
    ast.Sub: (Step.SUBTRACT, "({left} - {right})"),
    ast.Mult: (Step.MULTIPLY, "({left} * {right})"),
    ast.FloorDiv: (Step.FLOOR_DIVIDE, "bringup_glue_floor_divide({left}, {right})"),
}
_ITEM_STEPS = {
    "size": Step.SIZE,
    "stride": Step.STRIDE,
    "numel": Step.NUMEL,
    "ndim": Step.NDIM,
    "len": Step.LENGTH,
    "has": Step.HAS,
    "stream": Step.STREAM,
    "device": Step.DEVICE,
    "dtype": Step.DTYPE,
    "dtype_code": Step.DTYPE_CODE,
    "dtype_bits": Step.DTYPE_BITS,
}
_SCALAR_STEPS = {"float": Step.FLOAT, "str": Step.STRING}
_ITEM_KINDS = {
    "void*": ValueKind.POINTER,
    "double": ValueKind.FLOAT64,
    "const char*": ValueKind.TEXT,
}
_TVM_KINDS = {
    "Tensor": (ValueKind.TENSOR, Step.TENSOR),
    "int": (ValueKind.INT, Step.INT),
    "bool": (ValueKind.BOOL, Step.INT),
    "ScalarType": (ValueKind.DTYPE, Step.INT),
    "float": (ValueKind.FLOAT64, Step.FLOAT),
    "str": (ValueKind.TEXT, Step.STRING),
}

Program = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class CParameter:
    """One parameter of the function, and what it gets.

    Attributes:
        text: as written.
        kind: how it is passed.
        c_type: the C type it is passed as.
        code: the C expression of its value over `args` and `ctx`; of a workspace, its size.
        program: the same for the native library.
        texts: literals of the program.
        bounds: what a whole number has to be within.
        by_reference: whether the address of the value is passed.
        is_workspace: whether it is scratch memory.
        optional: whether None is passed as such.
        items: what it reads.
        divisors: C expressions that must not be 0.
        address_of: the argument whose address it is; -1 for none.
        dtype: what that argument's dtype has to be, as torch calls it; "" when nothing is said.
    """

    text: str
    kind: ValueKind
    code: str
    program: Program
    c_type: str = ""
    texts: tuple[str, ...] = ()
    bounds: tuple[int, int] | None = None
    by_reference: bool = False
    is_workspace: bool = False
    optional: bool = False
    items: tuple[Item, ...] = ()
    divisors: tuple[str, ...] = ()
    address_of: int = -1
    dtype: str = ""

    def declared(self, c_type: CType) -> CParameter:
        """The same for a function that declares the parameter like this."""
        whole = self.kind is c_type.kind is ValueKind.INT and self.bounds is None
        floating = self.kind is ValueKind.FLOAT64 and c_type.kind is not ValueKind.INT
        if self.by_reference or not (whole or floating):
            return self
        return replace(self, kind=c_type.kind, c_type=c_type.name, bounds=c_type.bounds)

    def spec(self) -> tuple[Any, ...]:
        """What the native library takes."""
        bounds = [] if self.bounds is None else list(self.bounds)
        program = [tuple(step) for step in self.program]
        return (
            self.text,
            int(self.kind),
            self.by_reference,
            bounds,
            self.optional,
            program,
            list(self.texts),
        )


@dataclass(frozen=True)
class Binding:
    """How a function that is not compiled with a generated entry is called."""

    convention: Convention
    parameters: tuple[CParameter, ...] = field(repr=False)

    def spec(self) -> tuple[int, list[tuple[Any, ...]]]:
        """What the native library takes: CConvention and the parameters."""
        number = ("status", "void", "tvm_ffi").index(self.convention)
        return number, [parameter.spec() for parameter in self.parameters]


def parse_call(
    text: str, signature: Sequence[Argument], where: str, *, tvm_ffi: bool = False
) -> tuple[CParameter, ...]:
    """The parameters of a comma-separated list.

    Args:
        text: the list.
        signature: the kernel's arguments, outputs last.
        where: what errors start with.
        tvm_ffi: whether a name stands for the argument itself, tensors included.

    Raises `ValueError` for a list that cannot be read, or that names what the signature has not.
    """
    try:
        call = ast.parse(f"f({text}\n)", mode="eval").body
    except (SyntaxError, ValueError):
        raise ValueError(f"{where}: {text!r} cannot be read; {_GRAMMAR}") from None
    if not isinstance(call, ast.Call) or call.keywords:
        raise ValueError(f"{where}: {text!r} cannot be read; {_GRAMMAR}")
    if _levels_of(call) > _MAX_LEVELS:
        raise ValueError(f"{where}: it is nested too deeply to be read")
    return tuple(_Reader(signature, where, tvm_ffi, node).parameter() for node in call.args)


def _levels_of(tree: ast.AST) -> int:
    """How many nodes stand within each other at most."""
    levels, found = 0, [tree]
    while found:
        levels += 1
        found = [child for node in found for child in ast.iter_child_nodes(node)]
    return levels


class _Reader:
    """Reads one parameter."""

    def __init__(
        self, signature: Sequence[Argument], where: str, tvm_ffi: bool, node: ast.expr
    ) -> None:
        self._signature = signature
        self._where = where
        self._tvm_ffi = tvm_ffi
        self._node = node
        self._text = ast.unparse(node)
        self._items: list[Item] = []
        self._texts: list[str] = []
        self._divisors: list[str] = []

    def parameter(self) -> CParameter:
        node, by_reference = self._node, False
        if _called(node) == "ref":
            node, by_reference = self._only(node), True
        read = self._value(node)
        if by_reference and read.kind not in _NUMBERS:
            raise self._error("ref() is of a number; an address or a text is passed as it is")
        if _depth_of(read.program) > _MAX_DEPTH:
            raise self._error(f"is nested deeper than {_MAX_DEPTH} levels")
        return replace(
            read,
            by_reference=by_reference,
            c_type=read.c_type or _C_TYPE.get(read.kind, "void*"),
            texts=tuple(self._texts),
            items=tuple(self._items),
            divisors=tuple(self._divisors),
        )

    def _value(self, node: ast.expr) -> CParameter:
        name = _called(node)
        if name in CTYPES:
            return self._cast(CTYPES[name], node)
        if name == "workspace":
            size = self._whole(self._only(node))
            step = (int(Step.WORKSPACE), -1, 0)
            program = (*size.program, step)
            return replace(size, kind=ValueKind.POINTER, program=program, is_workspace=True)
        if name == "ref":
            raise self._error("ref() stands around the whole parameter")
        if name == "ptr" and isinstance(node, ast.Call) and len(node.args) == 2:
            return self._typed_pointer(node)
        if isinstance(node, ast.BinOp):
            return self._operator(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._negative(node)
        if isinstance(node, ast.Constant):
            return self._constant(node.value)
        if self._tvm_ffi and isinstance(node, ast.Name):
            found = self._whole_argument(node.id)
            if found is not None:
                return found
        return self._leaf(ast.unparse(node))

    def _made(self, kind: ValueKind, code: str, *steps: tuple[int, int, int]) -> CParameter:
        return CParameter(self._text, kind, code, steps)

    def _constant(self, value: Any) -> CParameter:
        if value is None:
            return self._made(ValueKind.POINTER, "NULL", (Step.CONSTANT, -1, 0))
        if isinstance(value, str):
            if "\0" in value:
                raise self._error("a text ends at its first NUL for C; remove it")
            self._texts.append(value)
            code = "".join(_c_character(byte) for byte in value.encode())
            return self._made(ValueKind.TEXT, f'"{code}"', (Step.TEXT, -1, len(self._texts) - 1))
        if isinstance(value, (bool, int)) and -(2**63) < value < 2**63:
            return self._made(
                ValueKind.INT, f"INT64_C({int(value)})", (Step.CONSTANT, -1, int(value))
            )
        if isinstance(value, float) and abs(value) < float("inf"):
            return self._float(value)
        raise self._error(f"{value!r} is no number that C has in 64 bits, no text and not None")

    def _float(self, value: float) -> CParameter:
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return self._made(ValueKind.FLOAT64, f"({value!r})", (Step.CONSTANT, -1, bits))

    def _negative(self, node: ast.UnaryOp) -> CParameter:
        if isinstance(node.operand, ast.Constant) and isinstance(node.operand.value, float):
            return self._float(-node.operand.value)
        zero = (int(Step.CONSTANT), -1, 0)
        value = self._whole(node.operand)
        program = (zero, *value.program, (int(Step.SUBTRACT), -1, 0))
        return replace(value, code=f"(-{value.code})", program=program)

    def _operator(self, node: ast.BinOp) -> CParameter:
        known = _OPERATORS.get(type(node.op))
        if known is None:
            raise self._error("whole numbers are combined with + - * and //")
        left, right = self._whole(node.left), self._whole(node.right)
        step, code = known
        if step is Step.FLOOR_DIVIDE:
            self._divisors.append(right.code)
        return self._made(
            ValueKind.INT,
            code.format(left=left.code, right=right.code),
            *left.program,
            *right.program,
            (int(step), -1, 0),
        )

    def _whole(self, node: ast.expr) -> CParameter:
        value = self._value(node)
        if value.kind is not ValueKind.INT:
            raise self._error(f"{ast.unparse(node)} is no whole number")
        return replace(value, bounds=None, c_type="")

    def _cast(self, c_type: CType, node: ast.expr) -> CParameter:
        given = self._only(node)
        is_literal = isinstance(given, ast.Constant) and type(given.value) is int
        if is_literal and c_type.kind is not ValueKind.INT:
            given = ast.Constant(float(given.value))  # type: ignore[attr-defined]
        value = self._value(given)
        expected = ValueKind.INT if c_type.kind is ValueKind.INT else ValueKind.FLOAT64
        if value.kind is not expected:
            kind = "a whole number" if expected is ValueKind.INT else "a float"
            raise self._error(f"{ast.unparse(given)} is not {kind}")
        return replace(value, kind=c_type.kind, c_type=c_type.name, bounds=c_type.bounds)

    def _typed_pointer(self, node: ast.Call) -> CParameter:
        name, word = ast.unparse(node.args[0]), ast.unparse(node.args[1])
        if word not in C_TYPES:
            raise self._error(f"{word} is no dtype that a kernel takes ({', '.join(C_TYPES)})")
        pointer = self._leaf(f"ptr({name})")
        if pointer.address_of < 0:
            raise self._error(f"{name} is no tensor")
        return replace(pointer, dtype=word)

    def _whole_argument(self, name: str) -> CParameter | None:
        index = next((i for i, a in enumerate(self._signature) if a.name == name), None)
        if index is None:
            return None
        argument = self._signature[index]
        if argument.type not in _TVM_KINDS:
            raise self._error(
                f"{name} is {argument.type}, which tvm-ffi passes as an object of its own runtime; "
                "pass a tensor instead"
            )
        kind, step = _TVM_KINDS[argument.type]
        made = self._made(kind, "", (int(step), index, 0))
        return replace(made, optional=argument.optional)

    def _leaf(self, text: str) -> CParameter:
        (item,) = parse_items(text, self._signature, self._where) or (None,)
        if item is None:
            raise self._error(_GRAMMAR)
        self._items.append(item)
        kind = _ITEM_KINDS.get(item.c_type, ValueKind.INT)
        step = (int(self._step(item)), item.argument, item.index or 0)
        is_tensor = item.function == "ptr" and self._signature[item.argument].type == "Tensor"
        made = self._made(kind, item.code, step)
        return replace(made, address_of=item.argument if is_tensor else -1)

    def _step(self, item: Item) -> Step:
        known = _ITEM_STEPS.get(item.function)
        if known is not None:
            return known
        argument_type = self._signature[item.argument].type
        if item.function == "ptr":
            return Step.DATA if argument_type == "Tensor" else Step.LIST_DATA
        return _SCALAR_STEPS.get(argument_type, Step.INT)

    def _only(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
            raise self._error(f"{_called(node)}() takes one argument")
        return node.args[0]

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self._where}: {self._text!r}: {what}")


_NUMBERS = (ValueKind.INT, ValueKind.FLOAT32, ValueKind.FLOAT64)


def _called(node: ast.expr) -> str:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if is_call else ""  # type: ignore[attr-defined]


def _c_character(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"


def _depth_of(program: Program) -> int:
    depth = deepest = 0
    for step, _, _ in program:
        depth += 1 if step < Step.WORKSPACE else 0 if step == Step.WORKSPACE else -1
        deepest = max(deepest, depth)
    return deepest
