"""Torch's pointwise operators as expressions for every device; NaN goes through as in torch."""

from __future__ import annotations

from collections.abc import Collection

import torch

from bringup.errors import SchemaError
from bringup.ops.operators.operator_kernel import OperatorKernel
from bringup.ops.operators.table import Operator, OperatorTable, Supported

_FLOATING: tuple[Supported, ...] = ("floating",)
_NUMBERS: tuple[Supported, ...] = ("floating", "integral")
_EVERYTHING: tuple[Supported, ...] = ("floating", "integral", "bool")
# Of numbers below a bound, which rounding to half precision would reach.
_SINGLE_AND_DOUBLE: tuple[Supported, ...] = (torch.float32, torch.float64)

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FUNCTIONS = "sqrt exp exp2 expm1 log log1p log2 log10 sin cos erf floor ceil trunc tanh"
# Gelu (Hendrycks and Gimpel, arXiv:1606.08415): by the error function, or by tanh.
_CDF = "0.5 * (1 + erf(self * 0.70710678118654752))"
_INNER = "0.79788456080286536 * (self + 0.044715 * self * self * self)"
_GELU = f'0.5 * self * (1 + tanh({_INNER})) if approximate == "tanh" else self * ({_CDF})'
_GELU_BACKWARD = f"""
t = tanh({_INNER}) if approximate == "tanh" else {_CDF}
slope = 0.79788456080286536 * (1 + 0.134145 * self * self)
by_tanh = 0.5 * (1 + t) + 0.5 * self * (1 - t * t) * slope
by_erf = t + self * 0.39894228040143268 * exp(-0.5 * self * self)
grad_output * (by_tanh if approximate == "tanh" else by_erf)
"""
# A bound that is NaN makes everything NaN, whatever the other one is.
_CLAMP = """
low = self if min is None else (min if self < min else self)
both = low if max is None else (max if low > max else low)
bounded = both if max is None or not isnan(max) else max
self if isnan(self) else (min if min is not None and isnan(min) else bounded)
"""
_POW = """
usual = self * self * self if exponent == 3 else self ** exponent
self * self if exponent == 2 else usual
"""
# Roots for a number as exponent: of -inf and -0 they are not those of pow.
_POW_OF_NUMBER = """
usual = self * self * self if exponent == 3 else self ** exponent
root = sqrt(self) if exponent == 0.5 else (1 / sqrt(self) if exponent == -0.5 else usual)
self * self if exponent == 2 else root
"""

_DROPOUT = """
draws = 1 if train is None else train
scale = 0 if p == 1 else 1 / (1 - p)
kept = uniform() >= p if draws != 0 else 1
input * kept * scale if draws != 0 else input, kept
"""
# Box and Muller (Ann. Math. Statist. 29, 1958).
_NORMAL = "sqrt(-2 * log(1 - uniform())) * cos(6.28318530717958648 * uniform())"
# As torch's, neither 0 nor infinite.
_EXPONENTIAL = "u = uniform(); (2.98023223876953125e-08 if u == 0 else -log1p(-u)) / lambd"


def _rows(supports: tuple[Supported, ...], **expressions: str) -> list[Operator]:
    return [
        Operator(f"aten::{name.replace('__', '.')}", supports, text)
        for name, text in expressions.items()
    ]


POINTWISE: tuple[Operator, ...] = (
    *_rows(
        _NUMBERS, add="self + alpha * other", sub="self - alpha * other", mul="self * other",
        neg="-self", abs="abs(self)", addcmul="self + value * tensor1 * tensor2",
        where__self="self if condition else other", clamp=_CLAMP, relu="0 if self < 0 else self",
        maximum="max(self, other)", minimum="min(self, other)",
        **{
            f"{name}__{other}": f"self {sign} other"
            for name, sign in _COMPARISONS.items()
            for other in ("Tensor", "Scalar")
        },
    ),
    *_rows(
        _FLOATING, pow__Tensor_Tensor=_POW, pow__Scalar=_POW, pow__Tensor_Scalar=_POW_OF_NUMBER,
        div="self / other", reciprocal="1 / self", addcdiv="self + value * tensor1 / tensor2",
        # From the nearer end, so that a weight of 1 gives `end` itself.
        lerp="self + weight * (end - self) if abs(weight) < 0.5 else "
        "end - (end - self) * (1 - weight)", rsqrt="1 / sqrt(self)",
        **{name: f"{name}(self)" for name in _FUNCTIONS.split()}, sigmoid="1 / (1 + exp(-self))",
        silu="self / (1 + exp(-self))", gelu=_GELU,
        leaky_relu="self if self > 0 else self * negative_slope", gelu_backward=_GELU_BACKWARD,
        silu_backward="s = 1 / (1 + exp(-self)); grad_output * s * (1 + self * (1 - s))",
        threshold_backward="0 if self <= threshold else grad_output",
        tanh_backward="grad_output * (1 - output * output)",
        sigmoid_backward="grad_output * (1 - output) * output",
        leaky_relu_backward="grad_output if self > 0 else grad_output * negative_slope",
        native_dropout_backward="grad_output * (mask * scale)",
        log_sigmoid_forward="z = exp(-abs(self)); min(0, self) - log1p(z), z",
        log_sigmoid_backward="share = buffer / (1 + buffer); "
        "grad_output * (1 - share if self < 0 else share)",
        _prelu_kernel="self if self > 0 else weight * self",
        _prelu_kernel_backward="grad_output if self > 0 else weight * grad_output, "
        "0 if self > 0 else self * grad_output",
    ),
    # Random numbers: the same on every device.
    *_rows(
        _FLOATING, native_dropout=_DROPOUT, **{"bernoulli_.float": "uniform() < p"},
        normal_=f"mean + std * {_NORMAL}", log_normal=f"exp(mean + std * {_NORMAL})",
        cauchy="median + sigma * tan(3.14159265358979324 * (uniform() - 0.5))",
        exponential=_EXPONENTIAL,
    ),
    *_rows(_SINGLE_AND_DOUBLE, uniform="uniform() * (to - from_) + from_"),
)  # fmt: skip


def pointwise_kernels(without: Collection[str] = ()) -> dict[str, OperatorKernel]:
    """Give the loaded driver's device kernels for the pointwise operators of torch that the kit has
    expressions for: arithmetic, comparisons, functions, activations and their gradients. Each is
    compiled at its first call, by the device's target, which needs a writer. Returns the handle of
    each, by its name in the table.

    Args:
        without: operators of the table that get none, "aten::gelu".

    Raises:
        DeviceError: no driver is loaded, or other code has a kernel for one of them.
        SchemaError: `without` names an operator that the table does not have.
    """
    names = {row.name for row in POINTWISE}
    if unknown := sorted(set(without) - names):
        raise SchemaError(f"devices.pointwise_kernels: without={unknown[0]!r}: no such operator")
    return OperatorTable(row for row in POINTWISE if row.name not in without).load()
