"""The small language in which a template says what a kernel gets: `"ptr(x), size(x,0), eps"`.

Owns reading it against a signature, the C expression of each item over `args`, and its value for
the arguments of a call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bringup._language.signature import Argument, address_of, dtype_number, strides_of

__all__ = ["Item", "parse_items"]

_MAX_DIGITS = 9  # of a dimension; a 32-bit number
_NAMED = re.compile(r"(?P<member>[A-Za-z_]\w*)\s*=\s*(?P<item>.+)\Z", re.DOTALL)
_ITEM = re.compile(r"(?P<word>\w+)\s*(?:\(\s*(?P<name>\w+)\s*(?:,\s*(?P<index>-?\d+)\s*)?\))?\Z")
_LISTS = ("int[]", "bool[]", "float[]", "Tensor[]")
_GRAMMAR = (
    "items are ptr(x), size(x,i), stride(x,i), numel(x), ndim(x), dtype(x), has(x), len(list), a "
    "scalar argument's name, stream and device"
)


class _Function(NamedTuple):
    """What a function of the language takes, and the C of it."""

    types: tuple[str, ...]
    indexed: bool
    code: str


_FUNCTIONS: Mapping[str, _Function] = {
    "size": _Function(("Tensor",), True, "bringup_glue_size({arg}, {index})"),
    "stride": _Function(("Tensor",), True, "bringup_glue_stride({arg}, {index})"),
    "numel": _Function(("Tensor",), False, "bringup_glue_numel({arg})"),
    "ndim": _Function(("Tensor",), False, "bringup_glue_ndim({arg})"),
    "len": _Function(_LISTS, False, "bringup_glue_length({arg})"),
    "dtype": _Function(("Tensor",), False, "bringup_glue_dtype({arg})"),
    "dtype_code": _Function(("Tensor",), False, "bringup_glue_dtype_code({arg})"),
    "dtype_bits": _Function(("Tensor",), False, "bringup_glue_dtype_bits({arg})"),
}
_SCALARS: Mapping[str, tuple[str, str]] = {
    "int": ("int64_t", "bringup_glue_int({arg})"),
    "bool": ("int64_t", "bringup_glue_int({arg})"),
    "ScalarType": ("int64_t", "bringup_glue_int({arg})"),
    "float": ("double", "bringup_glue_float({arg})"),
    "str": ("const char*", "(const char*){arg}"),
}
_POINTERS: Mapping[str, str] = {
    "Tensor": "bringup_glue_data({arg})",
    "int[]": "bringup_glue_list_data({arg})",
    "bool[]": "bringup_glue_list_data({arg})",
    "float[]": "bringup_glue_list_data({arg})",
}


@dataclass(frozen=True)
class Item:
    """One thing that a kernel gets.

    Attributes:
        text: as written, in canonical form.
        function: `"ptr"`, `"size"`, ..., `"scalar"`, `"stream"` or `"device"`.
        argument: the index of the argument in the signature; -1 for stream and device.
        index: of a dimension, where one is named.
        c_type: of the field or parameter: `void*`, `int64_t`, `double` or `const char*`.
        code: the C expression of its value over `args` and `ctx`.
        member: what `params=` calls the member of the parameter struct that holds it, or "".
    """

    text: str
    function: str
    argument: int
    index: int | None
    c_type: str
    code: str
    member: str = ""

    @property
    def argument_name(self) -> str:
        """The name of the argument that the kernel gets as it is, a tensor by its address; "" for
        everything else.
        """
        return {"scalar": self.text, "ptr": self.text[4:-1]}.get(self.function, "")

    def value(self, values: Sequence[Any]) -> Any:
        """What the kernel gets for these arguments; an address is None where there is no storage.
        Raises `ValueError` for a dimension that a tensor has not.
        """
        if self.argument < 0:
            return None
        given = values[self.argument]
        if self.function == "has":
            return int(given is not None)
        if self.function == "ptr":
            return address_of(given)
        if given is None:
            return 0
        if self.index is not None:
            return self._of_dimension(given, self.index)
        if self.function == "numel":
            return math.prod(given.shape)
        if self.function == "ndim":
            return len(given.shape)
        if self.function.startswith("dtype"):
            return dtype_number(given.dtype, self.function)
        return len(given) if self.function == "len" else given

    def _of_dimension(self, tensor: Any, index: int) -> int:
        sizes = tensor.shape if self.function == "size" else strides_of(tensor)
        try:
            return int(sizes[index])
        except IndexError:
            raise ValueError(f"{self.text}: the tensor has {len(sizes)} dimensions") from None


def parse_items(
    text: str, signature: Sequence[Argument], where: str, *, named: bool = False
) -> tuple[Item, ...]:
    """The items of a comma-separated list; with `named`, each may begin with the name of its member
    in the parameter struct: `rows=size(x,0)`. `ValueError` starting with `where` for a list that
    cannot be read, that names what the signature has not, or two members alike.
    """
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text)]
    if parts and not parts[-1]:
        parts.pop()
    items: list[Item] = []
    for part in parts:
        found = _NAMED.match(part) if named else None
        member = found["member"] if found else ""
        if member and any(item.member == member for item in items):
            raise ValueError(f"{where}: {part!r}: there is a member {member} before")
        item = _Reader(found["item"] if found else part, signature, where).item()
        items.append(replace(item, member=member))
    return tuple(items)


class _Reader:
    """Reads one item."""

    def __init__(self, text: str, signature: Sequence[Argument], where: str) -> None:
        self._text = text
        self._signature = signature
        self._where = where

    def item(self) -> Item:
        found = _ITEM.match(self._text)
        if not found:
            raise self._error(f"cannot be read; {_GRAMMAR}")
        word, name, index = found["word"], found["name"], found["index"]
        if name is None:
            return self._bare(word)
        argument = self._argument(name)
        code_of = {"arg": f"args[{argument}]", "index": index}
        kind = self._signature[argument].type
        if word == "has":
            return self._made("has", argument, None, "int64_t", f"(args[{argument}] != NULL)")
        if word == "ptr":
            code = self._pointer(kind, name)
            return self._made("ptr", argument, None, "void*", code.format(**code_of))
        function = _FUNCTIONS.get(word)
        if function is None:
            raise self._error(f"there is no {word}(...); {_GRAMMAR}")
        if kind not in function.types:
            raise self._error(f"{name} is {kind}, expected {' or '.join(function.types)}")
        if function.indexed != (index is not None):
            needed = "names a dimension, as in" if function.indexed else "takes no dimension:"
            shown = f"{word}({name},0)" if function.indexed else f"{word}({name})"
            raise self._error(f"{word} {needed} {shown}")
        if index is not None and len(index) > _MAX_DIGITS:
            raise self._error("there is no such dimension")
        dimension = None if index is None else int(index)
        return self._made(word, argument, dimension, "int64_t", function.code.format(**code_of))

    def _bare(self, word: str) -> Item:
        named = {argument.name for argument in self._signature}
        if word == "stream" and word not in named:
            return self._made("stream", -1, None, "void*", "ctx->stream")
        if word == "device" and word not in named:
            return self._made("device", -1, None, "int64_t", "(int64_t)ctx->device.device_id")
        argument = self._argument(word)
        kind = self._signature[argument].type
        if kind not in _SCALARS:
            raise self._error(f"{word} is {kind}: write ptr({word}), size({word},0), ...")
        c_type, code = _SCALARS[kind]
        return self._made("scalar", argument, None, c_type, code.format(arg=f"args[{argument}]"))

    def _pointer(self, kind: str, name: str) -> str:
        if kind not in _POINTERS:
            raise self._error(
                f"{name} is {kind}, which has no address to pass; expected {' or '.join(_POINTERS)}"
            )
        return _POINTERS[kind]

    def _argument(self, name: str) -> int:
        for index, argument in enumerate(self._signature):
            if argument.name == name:
                return index
        known = ", ".join(argument.name for argument in self._signature)
        raise self._error(f"there is no argument {name!r} (there are {known})")

    def _made(
        self, function: str, argument: int, index: int | None, c_type: str, code: str
    ) -> Item:
        text = re.sub(r"\s+", "", self._text)
        return Item(text, function, argument, index, c_type, code)

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{self._where}: {self._text!r}: {what}")
