"""Whether a function takes what `args=` passes: items against the parameters that it declares.

C converts without a word; what would lose a value or lead to other memory is refused at definition,
or has a range that is looked at before each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bringup._language.c_call import BYTES, CTYPES, CParameter, CType, ValueKind
from bringup._language.expression import Opcode
from bringup._language.signature import C_TYPES, Argument

_WHOLE = frozenset(("signed", "unsigned", "char", "short", "int", "long"))
_WORDS: Mapping[str, str] = {
    "size_t": "u64", "ssize_t": "i64", "ptrdiff_t": "i64", "intmax_t": "i64", "uintmax_t": "u64",
    "float": "f32", "double": "f64", "bool": "bool", "_Bool": "bool",
    **{f"{u}int{bits}_t": f"{u or 'i'}{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
DTYPES: Mapping[str, str] = {
    "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f32": "float32", "f64": "float64", "bool": "bool",
    "i8": "int8",
}  # fmt: skip
# Bytes, of whatever.
UNTYPED = frozenset(("char", "unsigned char", "uint8_t", "void"))


@dataclass(frozen=True)
class Declared:
    """The type of one parameter.

    Attributes:
        text: as it stands there.
        word: what `c_call` calls the type of a number, or "".
        dtype: the dtype whose elements a pointer leads to, or "".
        base: the type without qualifiers and stars.
        spelled: the same as the compiler knows it: "enum color".
        stars: how many addresses lead to it.
        constant: whether what an address leads to is const.
    """

    text: str
    word: str
    dtype: str
    base: str = ""
    spelled: str = ""
    stars: int = 0
    constant: bool = False

    @property
    def element(self) -> str:
        """Return `c_call`'s name of the type or of the elements behind an address, or ""."""
        return word_of(self.base)

    @property
    def unknown(self) -> str:
        """Return what only the compiler knows: the type itself or that of the elements, or ""."""
        return "" if self.element or self.base == "void" or self.stars > 1 else self.spelled


def word_of(base: str) -> str:
    """Return what `c_call` calls a type, or ""."""
    words = base.split()
    if not words or not _WHOLE.issuperset(words):
        return _WORDS.get(base, "")
    bits = 8 if "char" in words else 16 if "short" in words else 64 if "long" in words else 32
    return f"{'u' if 'unsigned' in words else 'i'}{bits}"


def fit(
    parameter: CParameter,
    declared: Declared,
    where: str,
    *,
    values: bool = False,
    signature: Sequence[Argument] = (),
) -> CParameter:
    """Return the parameter as the function takes it. Raises `ValueError` starting with `where`."""
    wrong = ""
    if parameter.by_reference:
        parameter, wrong = _referred(parameter, declared)
    elif parameter.kind in (ValueKind.INT, ValueKind.FLOAT32, ValueKind.FLOAT64):
        wrong = _number_misfit(parameter, declared, values)
        if not wrong and declared.word:
            parameter = _converted(parameter, CTYPES[declared.word], values)
        elif not wrong:
            parameter = replace(parameter, declared_type=declared.unknown)
    elif declared.stars == 0 and not declared.word:  # an address by another name
        is_number = "ptr" in declared.base.lower()  # uintptr_t, CUdeviceptr
        parameter = replace(
            parameter, declared_type="" if is_number else declared.unknown, alike="void*"
        )
    else:
        wrong = _address_misfit(parameter, declared, signature)
        wrong = wrong or _writes(parameter, declared, signature)
        if parameter.address_of >= 0 and not parameter.dtype:
            parameter = replace(parameter, dtype=declared.dtype)
        elif parameter.program[0].opcode is Opcode.LIST_DATA and declared.element == "u64":
            parameter = replace(parameter, bounds=CTYPES["u64"].bounds)
        alike = _elements(parameter, signature)
        if alike and declared.unknown:
            parameter = replace(parameter, declared_type=declared.unknown, alike=alike)
    if wrong:
        raise ValueError(f"{where}: {parameter.text} {wrong}")
    return parameter


def check_written(
    parameters: Sequence[CParameter],
    declared: Sequence[Declared],
    where: str,
    signature: Sequence[Argument],
) -> None:
    """Raise `ValueError` where a function gets an output only as what it must not write."""
    pairs = [(p, d) for p, d in zip(parameters, declared, strict=True) if p.address_of >= 0]
    writable = {p.address_of for p, d in pairs if not d.constant}
    for parameter, one in pairs:
        index = parameter.address_of
        if index not in writable and index < len(signature) and signature[index].written:
            raise ValueError(
                f"{where}: {parameter.text} is written by the operator, and '{one.text}' is const: "
                "is it in the right place of args=?"
            )


def _number_misfit(parameter: CParameter, declared: Declared, values: bool) -> str:
    """Return why the declared type does not hold the number, or ""."""
    is_whole = parameter.kind is ValueKind.INT
    kind = "a whole number" if is_whole else "a float"
    what = f"is {kind}, and the function has '{declared.text}' there"
    if declared.stars:
        return f"{what}, an address; ref({parameter.text}) passes that of a number"
    if not declared.word:
        unknown = values and not parameter.is_cast
        return f"{what}, whose type the source does not show: say i32(), f32(), ..." * unknown
    if not is_whole and CTYPES[declared.word].kind is ValueKind.INT:
        return f"{what}, a whole number, which would lose what stands behind the point"
    if is_whole and values and CTYPES[declared.word].kind is not ValueKind.INT:
        return f"{what}, a float: make it one in the schema"
    rounds = values and parameter.is_cast and parameter.kind is ValueKind.FLOAT32
    if rounds and CTYPES[declared.word].kind is ValueKind.FLOAT64:
        return f"{what}, which nothing widens in device code: leave out f32(), or take a float"
    return ""


def _converted(parameter: CParameter, c_type: CType, values: bool) -> CParameter:
    """Return a number that is passed as the declared type, within the ranges of both."""
    if parameter.kind is ValueKind.INT and c_type.kind is not ValueKind.INT:
        return parameter
    if parameter.kind is ValueKind.FLOAT32 and not values:
        return parameter  # rounded as args= says; C widens it
    bounds = c_type.bounds
    if bounds is not None and parameter.bounds is not None:
        bounds = max(bounds[0], parameter.bounds[0]), min(bounds[1], parameter.bounds[1])
    return replace(parameter, kind=c_type.kind, c_type=c_type.name, bounds=bounds)


def _referred(parameter: CParameter, declared: Declared) -> tuple[CParameter, str]:
    """Return a number passed by address as the function reads it, and why not."""
    what = f"is the address of {parameter.c_type}, and the function has '{declared.text}' there"
    c_type = CTYPES.get(declared.element)
    if declared.stars != 1:
        return parameter, what
    if c_type is None:
        unknown = declared.unknown
        return replace(parameter, declared_type=unknown, alike=parameter.c_type), ""
    made = _converted(parameter, c_type, values=True)
    same_kind = (parameter.kind is ValueKind.INT) is (c_type.kind is ValueKind.INT)
    fits = same_kind and (made.size == parameter.size or not parameter.is_cast)
    return (made, "") if fits else (parameter, what)


def _address_misfit(
    parameter: CParameter, declared: Declared, signature: Sequence[Argument]
) -> str:
    """Return why the function does not take the address, or ""."""
    first = parameter.program[0]
    what = f"is an address, and the function has '{declared.text}' there"
    if first.opcode in (Opcode.TEXT, Opcode.STRING):
        is_text = declared.stars == 1 and declared.element in ("", "i8", "u8")
        return "" if is_text else what.replace("an address", "a text")
    if declared.stars == 0:
        is_handle = first.opcode is Opcode.STREAM and declared.word in ("i64", "u64")
        return "" if is_handle else f"{what}, a number"
    if first.opcode in (Opcode.STREAM, Opcode.CONSTANT) or parameter.is_workspace:
        return ""
    if declared.stars > 1:
        return f"{what}: that of addresses"
    alike = _elements(parameter, signature)
    is_bytes = declared.base in UNTYPED and first.opcode is Opcode.DATA
    if is_bytes or not (alike and declared.element):
        return ""
    expected = CTYPES[declared.element]
    given = next(one for one in CTYPES.values() if one.name == alike)
    same = (given.kind, BYTES[given.name]) == (expected.kind, BYTES[expected.name])
    return "" if same else f"{what}: its elements are {alike}"


def _elements(parameter: CParameter, signature: Sequence[Argument]) -> str:
    """Return the C type behind the address; "" where `args=` does not say it, or C has none."""
    first = parameter.program[0]
    if first.opcode in (Opcode.TEXT, Opcode.STRING):
        return "char"
    if first.opcode is Opcode.FAULT:
        return "int32_t"
    if first.opcode is Opcode.LIST_DATA and first.argument < len(signature):
        return "double" if signature[first.argument].type == "float[]" else "int64_t"
    found = C_TYPES.get(parameter.dtype, "")
    return found if found in BYTES else ""


def _writes(parameter: CParameter, declared: Declared, signature: Sequence[Argument]) -> str:
    """Return why the function may write what the operator does not, or ""."""
    first = parameter.program[0]
    if first.opcode not in (Opcode.DATA, Opcode.LIST_DATA, Opcode.STRING):
        return ""
    argument = signature[first.argument] if first.argument < len(signature) else None
    is_written = argument is None or argument.written is not False
    if is_written or declared.constant or declared.stars == 0 or parameter.reads_only:
        return ""
    return (
        f"is not written by the operator, and the function may write through '{declared.text}': "
        "declare it const there, or the argument as written in the schema, Tensor(a!); where the "
        f"function only reads, say const({parameter.text})"
    )
