"""What `args=` passes reaches a C function as the same value or is refused: every kind of item
against every type of parameter, in C, in C++, and in device code that gets plain values.

One operator has all items that the definition takes for one type. Each is called with values that
fit, then with one value at a time that does not.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.sweeps.support import part

from bringup import jit, ops
from bringup.errors import BringupError

# An item, the type of its argument, and its values: the first fits most types.
NUMBERS: list[tuple[str, str, list[Any]]] = [
    *((item, "int", [3, 0, -1, 200, 70_000, 2**31, 2**32 + 3, 2**40 + 1, -(2**63), 2**63 - 1])
      for item in ("{}", "i8({})", "u8({})", "i32({})", "u32({})", "i64({})", "u64({})", "{} + 1",
                   "ref({})", "ref(i32({}))", "ref(u8({}))", "ref(i64({}))")),
    *((item, "float", [2.5, 0.0, -1.5, 1e-6, 300.0, 1e12, 1e300, math.inf])
      for item in ("{}", "f32({})", "f64({})", "ref({})", "ref(f32({}))")),
    *((item, "bool", [True, False]) for item in ("{}", "ref({})", "u8({})")),
    *((item, "int[]", [[3, 4], [-1, 5], [2**40 + 1]]) for item in ("ptr({})", "const(ptr({}))",
                                                                     "len({})")),
    *((item, "bool[]", [[True, False]]) for item in ("ptr({})",)),
    *((item, "float[]", [[2.5], [-1.0], [1e300]]) for item in ("ptr({})",)),
    *((item, "Tensor", [None]) for item in ("ptr({})", "ptr({}, float32)", "const(ptr({}))",
                                              "numel({})", "dtype({})")),
    *((item, "str", ["A"]) for item in ("{}",)),
    *((item, "", [None]) for item in ("7", "-2", "300", "2.5", "None", "stream", "'A'")),
]  # fmt: skip
WHOLE = [
    *(f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64)), "int", "unsigned", "short",
    "long", "unsigned long long", "char", "size_t", "ptrdiff_t", "bool", "named", "named_far",
]  # fmt: skip
REAL = ["float", "double", "real", "real_far"]
PARAMETERS = [
    *WHOLE,
    *REAL,
    "enum color", "color_far",
    *(f"{const}{kind}*" for const in ("const ", "") for kind in (*WHOLE, *REAL)),
    "float* const", "const void*", "void*", "address", "constant_address", "float**",
]  # fmt: skip
CASES = [
    (form, kind)
    for form, kind in itertools.product(("c", "cpp", "grid"), PARAMETERS)
    # Device code takes what is stated where a header alone declares the parameter.
    if form != "grid" or not kind.endswith("_far")
]
LISTED = [("c", "int64_t"), ("cpp", "int64_t"), ("c", "float*"), ("grid", "double"),
          ("cpp", "unsigned long long*")]  # fmt: skip
KNOWN = """#include <stdint.h>
#include <stddef.h>
#include <stdbool.h>
#include <far.h>
enum color { red, green };
typedef short named;
typedef float real;
typedef float* address;
typedef const float* constant_address;
"""
FAR = "typedef int named_far;\ntypedef float real_far;\ntypedef enum { no, yes } color_far;\n"
_numbers = itertools.count()


class Function:
    """A function with parameters of one type, and operators of some of the items."""

    def __init__(self, form: str, kind: str, folder: Path) -> None:
        (folder / "far.h").write_text(FAR)
        self.form, self.kind, self.flags = form, kind, (f"-I{folder}",)
        self.name = f"sweep_parameters{next(_numbers)}"

    def text(self, count: int) -> str:
        given = "".join(f", {self.kind} p{i}" for i in range(count))
        read = "".join(f"  out[{i}] = {self._read(i)};\n" for i in range(count))
        start = '#include "bringup/device.h"\n' if self.form == "grid" else ""
        first = "const bringup_position* at, " if self.form == "grid" else ""
        result, end = ("void", "") if self.form == "grid" else ("int", "  return 0;\n")
        linkage = 'extern "C" ' if self.form != "c" else ""
        exported = '__attribute__((visibility("default"))) '
        head = f"{linkage}{exported}{result} f({first}double* out, const float* x{given})"
        return f"{start}{KNOWN}{head} {{\n{read}{end}}}\n"

    def _read(self, i: int) -> str:
        if "**" in self.kind or "void" in self.kind:
            return "0"
        return f"p{i} ? (double)*p{i} : -77" if self.is_pointer else f"(double)p{i}"

    @property
    def is_pointer(self) -> bool:
        return self.kind.endswith(("*", "* const", "address"))

    def define(self, items: list[tuple[str, str, list[Any]]]) -> Any:
        names = [f"a{i}" for i in range(len(items))]
        arguments = [f"{type_} {n}" for n, (_, type_, _) in zip(names, items, strict=True) if type_]
        schema = f"{self.name}::f{next(_numbers)}({', '.join(['Tensor x', *arguments])}) -> Tensor"
        passed = [item.format(n) for n, (item, *_) in zip(names, items, strict=True)]
        source = jit.Source(
            name="f.c" if self.form == "c" else "f.cpp", text=self.text(len(items)), entry="f"
        )
        device = {"kind": "device", "grid": 1, "block": 1} if self.form == "grid" else {}
        return ops.kernel_op(
            schema,
            source=source,
            args=", ".join(["ptr(out)", "ptr(x)", *passed]),
            outputs=ops.empty(max(len(items), 1), dtype=torch.float64),
            checks=ops.kernel_checks(),
            flags=self.flags,
            **device,
        )


def shown(kind: str, value: Any) -> float:
    """What the function is to show for a value."""
    if isinstance(value, list):
        value = value[0]
    if isinstance(value, str):
        return float(ord(value))
    if any(word in kind for word in ("float", "real", "address")):
        with numpy.errstate(over="ignore"):
            return float(numpy.float32(value))
    return float(value)


def wanted(function: Function, item: str, value: Any) -> float | None:
    """The right number; None where there is none to compare."""
    constants = {"'A'": 65.0, "None": -77.0, "stream": -77.0, "numel({})": 1.0, "dtype({})": 6.0}
    untyped = any(word in function.kind for word in ("void", "**", "char*", "uint8_t*"))
    is_stated = "," in item and function.form != "grid"  # device code reads it as stated
    if "far*" in function.kind and "ptr(" in item and value is None and not is_stated:
        return None  # kernel_checks() says that it takes every dtype
    if untyped and ("ptr(" in item or "void" in function.kind):
        return None
    if "void" in function.kind or "**" in function.kind:
        return 0.0
    if item == "stream" and not function.is_pointer:
        return 0.0
    if item in constants:
        return constants[item]
    if "{}" not in item:
        return shown(function.kind, float(item) if "." in item else int(item))
    if item == "len({})":
        return float(len(value))
    if item == "{} + 1":
        value += 1
    value = 1.5 if value is None else value
    return shown(function.kind, numpy.float32(value) if "f32" in item else value)


def wrong_numbers(function: Function) -> list[str]:
    """The items that are taken, and for which the function gets another number."""
    taken = []
    for one in NUMBERS:
        try:
            function.define([one])
        except ValueError:
            continue
        taken.append(one)
    taken = compiled(function, taken)
    if not taken:
        return []
    operator, wrong = function.define(taken), []
    first = [values[0] for *_, values in taken]
    rounds = [first] + [
        [*first[:i], value, *first[i + 1 :]]
        for i, (*_, values) in enumerate(taken)
        for value in values[1:]
    ]
    for values in rounds:
        tensor = torch.tensor([1.5])
        given = [tensor if type_ == "Tensor" else value
                 for (_, type_, _), value in zip(taken, values, strict=True) if type_]  # fmt: skip
        try:
            found = operator(tensor, *given).tolist()
        except (BringupError, ValueError):
            continue
        for (item, *_), value, number in zip(taken, values, found, strict=True):
            expected = wanted(function, item, value)
            if expected is not None and number != expected:
                wrong.append(f"{item} of {value!r} is {number}, not {expected}")
    return sorted(set(wrong))


def compiled(function: Function, items: list[Any]) -> list[Any]:
    """The items with which the function compiles: halves, until what the compiler refuses is out.
    And those whose first values are not refused at a call.
    """
    if not items:
        return []
    operator = function.define(items)
    tensor = torch.tensor([1.5])
    given = [tensor if type_ == "Tensor" else values[0] for _, type_, values in items if type_]
    try:
        operator(tensor, *given)
        return items
    except (BringupError, ValueError):
        if len(items) == 1:
            return []
    half = len(items) // 2
    return compiled(function, items[:half]) + compiled(function, items[half:])


@pytest.mark.parametrize(("form", "kind"), part(CASES, always=LISTED))
def test_a_function_gets_what_is_passed_or_the_operator_is_refused(
    form: str, kind: str, tmp_path: Path
) -> None:
    assert wrong_numbers(Function(form, kind, tmp_path)) == []
