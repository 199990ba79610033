"""Functions that are compiled for a device, in regular tables: one function over dtypes, special
values and layouts. Each entry is a `Row` with a name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from tests.compiled_functions import Row

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
TOLERANCES = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Of dtypes that generated code computes with as float32; eager operators round each time."""

SPECIAL = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.3, -0.7, 7.25, -6.0),
    *(math.inf, -math.inf, math.nan, 1e-30, -1e-30, 1e-42, 88.5, -104.0, 1e10, -3e38),
)
"""Numbers that functions treat differently, in float32."""


def _words(text: str) -> list[str]:
    return text.split()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _special() -> tuple[torch.Tensor, ...]:
    return (torch.tensor(SPECIAL),)


def _special_pairs() -> tuple[torch.Tensor, ...]:
    pairs = torch.tensor(list(itertools.product(SPECIAL[:17], repeat=2)))
    return pairs[:, 0].contiguous(), pairs[:, 1].contiguous()


def _smooth() -> tuple[torch.Tensor, ...]:
    """Return numbers of which no function here has a kink or a pole."""
    return (torch.linspace(0.2, 0.93, 65),)


Functions = Mapping[str, Callable[..., Any]]
UNARY: Functions = {
    name: getattr(torch, name)
    for name in _words(
        "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 expm1 log log2 "
        "log10 log1p sqrt rsqrt reciprocal square abs neg sign sgn floor ceil trunc round "
        "frac sigmoid logit erf erfc erfinv lgamma digamma relu selu celu isfinite isinf "
        "isnan isposinf isneginf signbit positive deg2rad rad2deg sinc i0 nan_to_num"
    )
} | {
    name: getattr(F, name)
    for name in _words(
        "relu6 hardtanh hardsigmoid hardswish mish softsign tanhshrink softshrink hardshrink "
        "logsigmoid elu gelu silu softplus leaky_relu"
    )
}
UNARY = dict(UNARY) | {
    "clamp_min": lambda x: x.clamp(min=0.25),
    "clamp_max": lambda x: x.clamp(max=0.25),
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "round_decimals": lambda x: x.round(decimals=2),
    "entr": torch.special.entr,
    "ndtr": torch.special.ndtr,
    "pow_half": lambda x: x**0.5,
    "pow_minus_two": lambda x: x**-2,
    "pow_of_two": lambda x: 2**x,
    "float_power": lambda x: torch.float_power(x, 3).float(),
    "ldexp": lambda x: torch.ldexp(x, torch.arange(x.numel(), device=x.device) % 7),
    "frexp": lambda x: torch.frexp(x.nan_to_num()),
}
BINARY: Functions = {
    name: getattr(torch, name)
    for name in _words(
        "add sub mul div maximum minimum fmax fmin pow atan2 fmod remainder hypot copysign "
        "nextafter xlogy logaddexp logaddexp2 floor_divide eq ne lt le gt ge logical_and "
        "logical_or logical_xor heaviside rsub dist"
    )
} | {
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "isclose": lambda x, y: torch.isclose(x, y, equal_nan=True),
    "where": lambda x, y: torch.where(x < y, x, -y),
    "xlog1py": torch.special.xlog1py,
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=-2),
    "clamp_tensor": lambda x, y: torch.clamp(x, min=y, max=y + 1),
}
WITHOUT_GRADIENT = set(
    _words(
        "sign sgn floor ceil trunc round isfinite isinf isnan isposinf isneginf signbit ldexp "
        "frexp round_decimals eq ne lt le gt ge logical_and logical_or logical_xor heaviside "
        "nextafter isclose dist div_floor div_trunc floor_divide"
    )
)
# Sums over infinities and differences of nearly equal numbers say nothing.
FINITE = {"dist"}


def _special_rows() -> list[Row]:
    found = [Row(f"{name}_special", function, _special) for name, function in UNARY.items()]
    found += [
        Row(f"{name}_special", function, _finite_pairs if name in FINITE else _special_pairs)
        for name, function in BINARY.items()
    ]
    return found


def _finite_pairs() -> tuple[torch.Tensor, ...]:
    return tuple(one.nan_to_num(posinf=9.0, neginf=-9.0) for one in _special_pairs())


def _smooth_pairs() -> tuple[torch.Tensor, ...]:
    return torch.linspace(0.2, 3.1, 33), torch.linspace(2.9, 0.4, 33)


def _gradient_rows() -> list[Row]:
    """Return several functions a row, each with its gradient: one compiled graph for five."""
    found = []
    for table, inputs in ((UNARY, _smooth), (BINARY, _smooth_pairs)):
        functions = {n: f for n, f in table.items() if n not in WITHOUT_GRADIENT}
        for first in range(0, len(functions), 3):
            names = list(functions)[first : first + 3]
            found.append(
                Row(
                    "gradient_of_" + "_and_".join(names),
                    _each(functions, names),
                    inputs,
                    True,
                    2e-5,
                )
            )
    return found


def _each(functions: Functions, names: list[str]) -> Callable[..., Any]:
    chosen = [functions[name] for name in names]
    return lambda *inputs: tuple(function(*inputs) for function in chosen)


# Integers, whose arithmetic wraps, and bool


def _whole(dtype: torch.dtype) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return all pairs of small numbers and the dtype's limits."""
    info = torch.iinfo(dtype)
    numbers = {0, 1, 2, 3, 7, 100, info.max, info.max - 1, info.min, info.min + 1}
    if info.min < 0:
        numbers |= {-1, -2, -3, -7, -100}
    pairs = torch.tensor(list(itertools.product(sorted(numbers), repeat=2)), dtype=dtype)
    return lambda: (pairs[:, 0].contiguous(), pairs[:, 1].contiguous())


def _divisible(dtype: torch.dtype) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Return the pairs without division by 0, and without the least number by -1."""
    one, other = _whole(dtype)()
    least = torch.iinfo(dtype).min
    kept = (other != 0) & ~((other == -1) & (one == least) if least < 0 else other == 0)
    return lambda: (one[kept], other[kept])


WHOLE: Functions = {
    "wraps": lambda a, b: (a + b, a - b, a * b, a * 3 - 7),
    "divided": lambda a, b: (
        torch.div(a, b, rounding_mode="floor"),
        torch.div(a, b, rounding_mode="trunc"),
        a // b,
    ),
    "remainders": lambda a, b: (a % b, torch.fmod(a, b), a % 7),
    "true_division": lambda a, b: (a / b, a / 3, torch.reciprocal(a)),
    "shifted": lambda a, b: (a << (b % 9).abs(), a >> (b % 9).abs(), a << 1, a >> 2),
    "bits": lambda a, b: (a & b, a | b, a ^ b, ~a),
    "compared": lambda a, b: (a == b, a != b, a < b, a <= b, a > 1, a >= b, a.bool()),
    "extremes": lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), a.clamp(1, 5)),
    "signs": lambda a, b: (-a, a.sign(), a.abs(), a.signbit(), a.square()),
    "powers": lambda a, b: (a**2, a**3, a ** (b % 5).abs()),
    "chosen": lambda a, b: (torch.where(a > b, a, b), a.masked_fill(b == 1, 9)),
    "summed": lambda a, b: (a.sum(), a.prod(), a.amax(), a.amin(), a.argmax(), a.any(), a.all()),
    "functions": lambda a, b: ((a % 7).exp(), (a % 7).sqrt(), a.sigmoid(), (a % 5).log1p()),
    "gcd_lcm": lambda a, b: (torch.gcd(a, b), torch.lcm(a % 12, b % 12)),
}
DIVIDES = {"divided", "remainders", "true_division"}


def _whole_rows() -> list[Row]:
    return [
        Row(
            f"{name}_{_name(dtype)}",
            function,
            _divisible(dtype) if name in DIVIDES else _whole(dtype),
        )
        for name, function in WHOLE.items()
        for dtype in INTEGERS
        if not (dtype is torch.uint8 and name == "signs")
    ]


def _truths() -> tuple[torch.Tensor, ...]:
    return torch.tensor([0, 0, 1, 1]).bool(), torch.tensor([0, 1, 0, 1]).bool()


BOOL: Functions = {
    "arithmetic": lambda a, b: (a + b, a * b, a / (b | True)),
    "bits": lambda a, b: (a & b, a | b, a ^ b, ~a, a.logical_not()),
    "compared": lambda a, b: (a == b, a != b, a < b, a <= b, a > b, a >= b),
    "extremes": lambda a, b: (torch.maximum(a, b), torch.minimum(a, b), a.amax(), a.amin()),
    "summed": lambda a, b: (a.sum(), a.any(), a.all(), a.sum(0, dtype=torch.int32), a.prod()),
    "chosen": lambda a, b: (torch.where(a, 1.5, b), a.masked_fill(b, True), a & ~b),
    "promoted": lambda a, b: (a + 1, a * 2.5, a.float() - b.float(), a.int() << b.int()),
    "functions": lambda a, b: (a.exp(), a.sqrt(), a.sign(), a.sigmoid()),
}

# Other floating dtypes

FLOATING: Functions = {
    "arithmetic": lambda x, y: (x + y, x - y * 2, x * y, x / (y.abs() + 1)),
    "exponentials": lambda x, y: (x.exp(), x.expm1(), y.abs().log1p(), x.sigmoid(), x.tanh()),
    "trigonometry": lambda x, y: (x.sin(), x.cos(), x.atan(), torch.atan2(x, y)),
    "rounded": lambda x, y: (x.floor(), x.ceil(), x.trunc(), x.round(), x.frac()),
    "compared": lambda x, y: (x == y, x < y, x >= 0, x.isnan(), x.signbit()),
    "activations": lambda x, y: (F.relu(x), F.gelu(x), F.silu(y), F.elu(x), F.hardswish(y)),
    "extremes": lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(-0.5, 0.5)),
    "powers": lambda x, y: (x**2, x.abs() ** 1.5, x.abs().sqrt(), y.abs().add(1).rsqrt()),
    "summed": lambda x, y: (x.sum(), y.sum(-1), x.sum(0), x.mean(), x.mean(0), y.mean(-1)),
    "extrema": lambda x, y: (x.amax(), x.amin(-1), y.argmax(), x.argmin(0), y.max(-1)),
    "spread": lambda x, y: (x.var(), x.std(-1), y.var(0), torch.var_mean(x, -1)),
    "softmax": lambda x, y: (x.softmax(-1), y.softmax(0), x.log_softmax(-1), y.logsumexp(-1)),
    "norms": lambda x, y: (x.norm(), F.layer_norm(y, (65,)), F.rms_norm(x, (65,))),
    "products": lambda x, y: ((x / 9 + 1).prod(-1), (y / 9 + 1).prod()),
    "any_all": lambda x, y: (x.any(), x.all(-1), (x > 1).any(0), (x > -9).all()),
    "indexed": lambda x, y: (
        x[[0, -1]],
        x.gather(1, (y > 0).long()),
        x.index_select(0, y.argmax(0)[:3] % 9),
    ),
    "put": lambda x, y: x.index_put(((y[:, 0] > 0).long(),), y, accumulate=True),
    "joined": lambda x, y: (torch.cat([x, y]), torch.stack([x, y], -1), x.flip(0).roll(2, 1)),
    "scanned": lambda x, y: (x.cumsum(-1), y.cumsum(0), x.sort(-1).values),
    "specials": lambda x, y: (x / 0, (x / 0) - (x / 0), (x / 0).isinf(), (-x / 0).nan_to_num()),
}


def _floating_pair(dtype: torch.dtype) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(9, 65).to(dtype) for _ in range(2))


def _floating_rows() -> list[Row]:
    return [
        Row(
            f"{name}_{_name(dtype)}",
            function,
            _floating_pair(dtype),
            name in ("arithmetic", "activations") and dtype is not torch.float32,
            TOLERANCES.get(dtype),
        )
        for name, function in FLOATING.items()
        for dtype in FLOATS
    ]


# Casts


def _castable(dtype: torch.dtype) -> Callable[[], tuple[torch.Tensor, ...]]:
    numbers = [0, 1, 2, 3, 7, 100, 127]
    if dtype is torch.bool:
        numbers = [0, 1]
    elif dtype.is_floating_point:
        numbers += [-1, -2.5, 0.5, 1.5, 99.75, -0.0, -100]
    elif torch.iinfo(dtype).min < 0:
        numbers += [-1, -2, -100, torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    return lambda: (torch.tensor(numbers).to(dtype),)


ALL = (*FLOATS, *INTEGERS, torch.bool)
CASTS = [
    Row(
        f"cast_{_name(one)}_to_{_name(other)}",
        lambda x, other=other: (x.to(other), (x + x).to(other)),
        _castable(one),
    )
    for one in ALL
    for other in ALL
    if one is not other
]

# Layouts

LAYOUTS: Mapping[str, Callable[[], torch.Tensor]] = {
    "channels_last": lambda: torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(7, 33, 18).transpose(0, 2),
    "expanded": lambda: torch.randn(3, 1, 19).expand(3, 17, 19),
    "strided": lambda: torch.randn(9, 40, 6)[::2, 3:37:3, 1:],
    "offset": lambda: torch.randn(4, 6, 10)[2:, 1:, 3:],
    "flipped": lambda: torch.randn(4, 33, 5).flip(1),
    "overlapping": lambda: torch.randn(60).as_strided((5, 4, 9), (7, 1, 3)),
    "one_column": lambda: torch.randn(700, 1, 1),
    "one_row": lambda: torch.randn(1, 1, 700),
}
ON_LAYOUTS: Functions = {
    "pointwise": lambda x: (x.relu() + 1, x * x.transpose(1, 2).sum(), x + x[:1]),
    "sum": lambda x: (x.sum(), x.sum(0), x.sum(1), x.sum(-1), x.sum((0, -1))),
    "extremes": lambda x: (x.amax(1), x.argmax(-1), x.argmin(0), x.max(1)),
    "spread": lambda x: (x.var(), x.std(1), torch.var_mean(x, 0, correction=0)),
    "softmax": lambda x: (x.softmax(0), x.softmax(1), x.log_softmax(-1)),
    "norm": lambda x: (x - x.mean(1, keepdim=True)) * x.norm(dim=-1, keepdim=True),
    "copied": lambda x: (x.contiguous() + 1, x.flatten() * 2, x.reshape(-1, x.size(1)) - 1),
}


def _layout_rows() -> list[Row]:
    return [
        Row(
            f"{name}_of_{layout}",
            function,
            lambda make=make: (make(),),
            name in ("sum", "norm"),
            2e-5,
        )
        for name, function in ON_LAYOUTS.items()
        for layout, make in LAYOUTS.items()
        if not (name == "spread" and layout.startswith("one_"))
    ]


EMPTY: Mapping[str, tuple[int, ...]] = {
    "rows": (0, 5),
    "columns": (5, 0),
    "all": (0,),
    "deep": (3, 0, 4),
}
ON_EMPTY: Functions = {
    "pointwise": lambda x: (x + 1, x.relu() * x, x > 0, x.long()),
    "sums": lambda x: (x.sum(), x.sum(0), x.sum(-1), x.prod(), x.any(), x.all(-1), x.mean(0)),
    "views": lambda x: (x.reshape(-1) * 2, torch.cat([x, x], -1), torch.stack([x, x]) + 1),
    "softmax": lambda x: (x.softmax(-1), x.softmax(0)),
}
ON_ZERO_DIM: Functions = {
    "pointwise": lambda x: (x + 1, x.relu(), x * x, x > 0, x.expand(3) + 1),
    "sums": lambda x: (
        x.sum(),
        x.mean(),
        x.amax(),
        x.argmax(),
        x.any(),
        x.softmax(0),
        x.var(correction=0),
    ),
    "views": lambda x: (x.reshape(1) + 1, x[None] * 2, torch.stack([x, x + 1])),
}


def _small_rows() -> list[Row]:
    found = [
        Row(f"{name}_of_no_{what}", function, lambda shape=shape: (torch.randn(shape),))
        for name, function in ON_EMPTY.items()
        for what, shape in EMPTY.items()
    ]
    found += [
        Row(f"{name}_of_zero_dim", function, lambda: (torch.tensor(-1.5),))
        for name, function in ON_ZERO_DIM.items()
    ]
    return found


TABLES = [
    *_special_rows(),
    *_gradient_rows(),
    *_whole_rows(),
    *(Row(f"{name}_bool", function, _truths) for name, function in BOOL.items()),
    *_floating_rows(),
    *CASTS,
    *_layout_rows(),
    *_small_rows(),
]
