"""What Inductor computes for one element, as text in what C and OpenCL C share.

Each value has an explicit type: float for half precision, else its own. A function that is not here
is none that generated code has, and `fallback` leaves it to the device's eager operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from bringup.compiler.inductor.torch_private import (
    DTYPE_TO_COMPUTATION_DTYPE,
    IndentedBuffer,
    OpOverrides,
    V,
    get_bounds_index_expr,
    ops,
    pointwise_overrides_data,
)

TYPES: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.float32: "float",
        torch.float64: "double",
        torch.int64: "int64_t",
        torch.int32: "int32_t",
        torch.int16: "int16_t",
        torch.int8: "int8_t",
        torch.uint8: "uint8_t",
        torch.bool: "bool",
        torch.float16: "half_t",
        torch.bfloat16: "bfloat16_t",
    }
)
"""The dtypes that generated code computes with."""
COPIED: Mapping[torch.dtype, str] = MappingProxyType(
    {
        torch.bits8: "bits8_t",
        torch.bits16: "bits16_t",
        torch.complex32: "bits32_t",
        torch.complex64: "bits64_t",
        torch.complex128: "bits128_t",
    }
)
"""Those that stand for others of their size, which generated code copies: Inductor makes copies
that are no nodes.
"""
HALVES: Mapping[torch.dtype, str] = MappingProxyType(
    {torch.float16: "half", torch.bfloat16: "bfloat16"}
)
_BITS = {torch.float32: "float", torch.float64: "double", torch.int32: "int32"} | {
    torch.int64: "int64"
}
BITCASTS = frozenset(
    pair
    for a, b in ((torch.float32, torch.int32), (torch.float64, torch.int64))
    for pair in ((a, b), (b, a))
)
"""Pairs of dtypes whose bits generated code takes for each other's."""
# Functions of math.h with one and with more arguments.
_MATH = (
    "exp exp2 expm1 log log1p log2 log10 sqrt sin cos tan asin acos atan sinh cosh tanh asinh "
    "acosh atanh erf erfc floor ceil trunc lgamma"
)
_MATH_MORE = "pow atan2 copysign nextafter hypot"


def computed(dtype: torch.dtype) -> torch.dtype:
    return DTYPE_TO_COMPUTATION_DTYPE.get(dtype, dtype)


def computed_type(dtype: torch.dtype) -> str:
    return COPIED.get(dtype) or TYPES[computed(dtype)]


def literal(value: Any, dtype: torch.dtype) -> str:
    """Return a number of the type that `dtype` is computed with."""
    dtype = computed(dtype)
    if dtype is torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        whole = int(value)
        least = whole == torch.iinfo(torch.int64).min
        text = f"(-INT64_C({-whole - 1}) - 1)" if least else f"INT64_C({whole})"
        return text if dtype is torch.int64 else f"(({TYPES[dtype]}){whole})"
    number = float(value)
    if math.isnan(number):
        text = "NAN"
    elif math.isinf(number):
        text = "INFINITY" if number > 0 else "-INFINITY"
    else:
        text = repr(number) + ("" if dtype is torch.float64 else "f")
    return f"({text})"


def _dtype(value: Any) -> torch.dtype:
    """Return the dtype of an operand: numbers of Python take part as what they are."""
    if isinstance(value, (bool, int, float)):
        return {bool: torch.bool, int: torch.int64, float: torch.float32}[type(value)]
    found: torch.dtype = value.dtype
    return found


def _together(*values: Any) -> torch.dtype:
    dtypes = [_dtype(value) for value in values if not isinstance(value, (bool, int, float))]
    found = dtypes[0] if dtypes else _dtype(values[0])
    for dtype in dtypes[1:]:
        found = torch.promote_types(found, dtype)
    return computed(found)


def _as(value: Any, dtype: torch.dtype) -> str:
    if isinstance(value, (bool, int, float)):
        return literal(value, dtype)
    return f"{value}" if _dtype(value) is dtype else f"(({TYPES[dtype]}){value})"


def _named(name: str, *values: Any) -> str:
    """Return a call of a helper of the prelude for the type of its operands."""
    dtype = _together(*values)
    if dtype is torch.bool:
        dtype = torch.uint8
    given = ", ".join(_as(value, dtype) for value in values)
    return f"{name}_{TYPES[dtype]}({given})"


def _divided(name: str, a: Any, b: Any) -> str:
    """Return the same for a division of integers, after a check of what is divided by."""
    V.kernel.check_divisor(b)
    return _named(name, a, b)


def _math(name: str, *values: Any) -> str:
    dtype = _together(*values)
    if not dtype.is_floating_point:
        dtype = torch.float32
    given = ", ".join(_as(value, dtype) for value in values)
    return f"{_typed(name, dtype)}({given})"


def _typed(name: str, dtype: torch.dtype) -> str:
    """Return the name of a function of math.h for a dtype."""
    return f"{name}f" if dtype is torch.float32 else name


class Functions(OpOverrides):  # type: ignore[misc]
    """The functions of `ops` that generated code has."""

    @staticmethod
    def constant(value: Any, dtype: torch.dtype) -> str:
        return literal(value, dtype)

    @staticmethod
    def to_dtype(
        x: Any,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> str:
        if dtype in HALVES:
            return f"round_{HALVES[dtype]}((float){x})"
        if dtype is torch.bool:
            return f"({x} != 0)"
        return f"(({TYPES[dtype]}){x})"

    @staticmethod
    def to_dtype_bitcast(x: Any, dtype: torch.dtype, src_dtype: torch.dtype) -> str:
        if dtype is src_dtype:
            return f"{x}"
        if (src_dtype, dtype) not in BITCASTS:
            raise NotImplementedError(f"the bits of {src_dtype} as {dtype}")
        return f"bitcast_{_BITS[src_dtype]}_{_BITS[dtype]}({x})"

    @staticmethod
    def index_expr(expr: Any, dtype: torch.dtype) -> Any:
        text = V.kernel.index_to_str(V.kernel.prepare_indexing(expr))
        given = torch.int64 if expr.is_integer or expr.is_Boolean else torch.float64
        index = V.kernel.cse.generate(
            V.kernel.compute,
            f"({TYPES[given]})({text})",
            bounds=get_bounds_index_expr(expr),
            dtype=given,
        )
        return ops.to_dtype(index, dtype)

    value_expr = index_expr

    @staticmethod
    def masked(mask: Any, body: Callable[[], Any], other: Any) -> Any:
        inner = IndentedBuffer()
        with V.kernel.swap_buffers(inner):
            found = body()
        dtype = found.dtype
        variable = V.kernel.cse.newvar(dtype=dtype)
        out = V.kernel.compute
        out.writeline(f"{computed_type(dtype)} {variable} = {literal(other, dtype)};")
        out.writeline(f"if ({mask}) {{")
        with out.indent():
            out.splice(inner)
            out.writeline(f"{variable} = {found};")
        out.writeline("}")
        return variable

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> str:
        dtype = _together(yes, no)
        return f"({condition} ? {_as(yes, dtype)} : {_as(no, dtype)})"

    @staticmethod
    def truediv(a: Any, b: Any) -> str:
        dtype = _together(a, b)
        dtype = dtype if dtype.is_floating_point else torch.float32
        return f"({_as(a, dtype)} / {_as(b, dtype)})"

    div_rn = truediv

    @staticmethod
    def abs(x: Any) -> str:
        dtype = _dtype(x)
        if dtype in (torch.bool, torch.uint8):
            return f"{x}"
        if dtype.is_floating_point:
            return _math("fabs", x)
        return f"({x} < 0 ? {_arithmetic('-', 0, x)} : {x})"

    @staticmethod
    def sigmoid(x: Any) -> str:
        dtype = _together(x) if _together(x).is_floating_point else torch.float32
        return f"(1 / (1 + {_typed('exp', dtype)}(-{_as(x, dtype)})))"

    @staticmethod
    def signbit(x: Any) -> str:
        if not _dtype(x).is_floating_point:
            return f"({x} < 0)"
        name = "double_int64" if _dtype(x) is torch.float64 else "float_int32"
        return f"(bitcast_{name}({x}) < 0)"

    @staticmethod
    def truncdiv(a: Any, b: Any) -> str:
        if _together(a, b).is_floating_point:
            return f"{_typed('trunc', _together(a, b))}({a} / {b})"
        return _divided("truncdiv", a, b)

    @staticmethod
    def remainder(a: Any, b: Any) -> str:
        floating = _together(a, b).is_floating_point
        return _named("remainder", a, b) if floating else _divided("remainder", a, b)

    @staticmethod
    def fmod(a: Any, b: Any) -> str:
        floating = _together(a, b).is_floating_point
        return _math("fmod", a, b) if floating else _divided("fmod", a, b)

    mod = fmod


def _arithmetic(sign: str, a: Any, b: Any) -> str:
    """Return a sum, difference or product. Integers wrap: in C overflow is undefined."""
    dtype = _together(a, b)
    if dtype in (torch.int32, torch.int64):
        signed, wraps = TYPES[dtype], f"u{TYPES[dtype]}"
        return f"(({signed})(({wraps}){_as(a, dtype)} {sign} ({wraps}){_as(b, dtype)}))"
    return f"({_as(a, dtype)} {sign} {_as(b, dtype)})"


def _special(name: str) -> Any:
    return staticmethod(lambda *values: _named(name, *values))


def _polynomial(name: str, shifted: bool, *constants: Any) -> Any:
    """Return a polynomial of x whose degree is another tensor's; a shifted one is of 2 x - 1."""

    def polynomial(x: Any, degree: Any) -> str:
        dtype = _together(x, degree)
        given = f"({_as(x, dtype)} + {_as(x, dtype)} - 1)" if shifted else _as(x, dtype)
        return f"{name}_{TYPES[dtype]}({given}, {', '.join([_as(degree, dtype), *constants])})"

    return staticmethod(polynomial)


def _function(name: str) -> Any:
    return staticmethod(lambda *values: _math(name, *values))


_OPERATIONS: dict[str, Callable[..., str]] = {
    "add": lambda a, b: _arithmetic("+", a, b),
    "sub": lambda a, b: _arithmetic("-", a, b),
    "mul": lambda a, b: _arithmetic("*", a, b),
    "square": lambda x: _arithmetic("*", x, x),
    "neg": lambda x: f"(-{x})" if _dtype(x).is_floating_point else _arithmetic("-", 0, x),
    "reciprocal": lambda x: Functions.truediv(1.0, x),
    "floordiv": lambda a, b: _divided("floordiv", a, b),
    "fma": lambda x, y, z: f"({x} * {y} + {z})",
    "maximum": lambda a, b: _named("max", a, b),
    "minimum": lambda a, b: _named("min", a, b),
    "relu": lambda x: _named("max", x, 0),
    "sign": lambda x: f"{x}" if _dtype(x) is torch.bool else _named("sign", x),
    "rsqrt": lambda x: f"(1 / {_math('sqrt', x)})",
    "round": lambda x: _math("rint", x),
    "ldexp": lambda x, n: f"{_typed('ldexp', _dtype(x))}({x}, (int){n})",
    "isnan": lambda x: f"({x} != {x})",
    "isinf": lambda x: f"({_math('fabs', x)} == INFINITY)",
    "bitwise_not": lambda x: f"(!{x})" if _dtype(x) is torch.bool else f"(~{x})",
    "bitwise_left_shift": lambda a, b: _named("shift_left", a, b),
    "bitwise_right_shift": lambda a, b: _named("shift_right", a, b),
    "lshift": lambda a, b: _named("shift_left", a, b),
    "rshift": lambda a, b: _named("shift_right", a, b),
    "logical_not": lambda a: f"({a} == 0)",
    "logical_and": lambda a, b: f"(({a} != 0) && ({b} != 0))",
    "logical_or": lambda a, b: f"(({a} != 0) || ({b} != 0))",
    "logical_xor": lambda a, b: f"(({a} != 0) != ({b} != 0))",
    "rand": lambda seed, offset: f"philox_rand({seed}, {offset})",
    "randn": lambda seed, offset: f"philox_randn({seed}, {offset})",
    "randint64": lambda seed, offset, low, high: (
        f"philox_randint64({seed}, {offset}, {low}, {high})"
    ),
}
for _name, _operation in _OPERATIONS.items():
    setattr(Functions, _name, staticmethod(_operation))
for _name in (*_MATH.split(), *_MATH_MORE.split()):
    setattr(Functions, _name, _function(_name))
for _name in ("digamma", "polygamma", "zeta"):
    setattr(Functions, _name, _special(_name))
# Chebyshev's with more than so many degrees are computed by cosines where x is within -1 and 1.
for _kind, _limits in enumerate(("66", "86", "86", "84"), 1):
    for _before, _limit in zip(("", "shifted_"), _limits, strict=True):
        _name = f"{_before}chebyshev_polynomial_{'tuvw'[_kind - 1]}"
        setattr(Functions, _name, _polynomial("chebyshev", bool(_before), str(_kind), _limit))
for _name, _letter in zip(("hermite_polynomial_h", "hermite_polynomial_he"), "he", strict=True):
    setattr(Functions, _name, _polynomial("recurrent", False, f"'{_letter}'"))
for _name in ("laguerre_polynomial_l", "legendre_polynomial_p"):
    setattr(Functions, _name, _polynomial("recurrent", False, f"'{_name[-1]}'"))
for _name in pointwise_overrides_data:
    if Functions._is_unimplemented(_name):
        setattr(Functions, _name, Functions._unimplemented(_name))
