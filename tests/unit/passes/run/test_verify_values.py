"""Rewrites whose mistakes show at special values only, and right ones that differ there."""

import inspect

import pytest
import torch
from tests.unit.passes.small import STAGE

from bringup import compiler, ir, passes
from bringup.errors import WrongRewriteError

X, Y = torch.randn(4, 8), torch.randn(4, 8)


def rewritten(function, found, replacement):
    """Return the result of a verified pass over a trace of `function`."""

    number = len(inspect.signature(found).parameters) - 1

    class Rewrite(passes.PatternFusionPass):
        @passes.pattern
        def match(self, inputs):
            return found(Operators(inputs), *inputs[0:number])

        def replacement(self, inputs):
            return replacement(Operators(inputs), *inputs[0:number])

    passes.register_fusion_pass(name="P", stage=STAGE)(Rewrite)
    module = torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(X, Y)
    return compiler.apply_passes(module, passes=["P"], options={"verify": True})["P"]


class Operators:
    """ATen operators as methods."""

    def __init__(self, inputs):
        self._op = inputs[0].builder.op

    def __getattr__(self, name):
        name = "var.correction" if name == "variance" else name
        return lambda *arguments, **named: self._op(f"aten::{name}", *arguments, **named)


WRONG = {
    "zero added": (lambda x, y: x + 0.0, lambda o, x: o.add(x, 0.0), lambda o, x: o.clone(x)),
    "zero minus": (lambda x, y: 0.0 - x, lambda o, x: o.rsub(x, 0.0), lambda o, x: o.neg(x)),
    "large bound": (
        lambda x, y: x.clamp(max=1e4),
        lambda o, x: o.clamp(x, None, 1e4),
        lambda o, x: o.clone(x),
    ),
    "NaN dropped": (torch.minimum, lambda o, x, y: o.minimum(x, y), lambda o, x, y: o.fmin(x, y)),
    "infinity": (lambda x, y: x - x, lambda o, x: o.sub(x, x), lambda o, x: o.zeros_like(x)),
    "quotient": (lambda x, y: x / x, lambda o, x: o.div(x, x), lambda o, x: o.ones_like(x)),
    "tie": (
        lambda x, y: x.round(),
        lambda o, x: o.round(x),
        lambda o, x: o.floor(o.add(x, 0.5)),
    ),
    "at zero": (lambda x, y: x > 0, lambda o, x: o.gt(x, 0), lambda o, x: o.ge(x, 0)),
    "overflow": (
        lambda x, y: (x * 1e38) / 1e38,
        lambda o, x: o.div(o.mul(x, 1e38), 1e38),
        lambda o, x: o.clone(x),
    ),
    "one element": (
        lambda x, y: torch.ops.aten.var.correction(x, None),
        lambda o, x: o.variance(x, None),
        lambda o, x: o.nan_to_num(o.variance(x, None)),
    ),
    "no element": (
        lambda x, y: x.mean(),
        lambda o, x: o.mean(x),
        lambda o, x: o.nan_to_num(o.mean(x)),
    ),
}
RIGHT = {
    "negations": (
        lambda x, y: x.neg().neg(),
        lambda o, x: o.neg(o.neg(x)),
        lambda o, x: o.clone(x),
    ),
    "times one": (lambda x, y: x * 1, lambda o, x: o.mul(x, 1), lambda o, x: o.clone(x)),
    "zero taken": (lambda x, y: x - 0.0, lambda o, x: o.sub(x, 0.0), lambda o, x: o.clone(x)),
    "factors": (
        lambda x, y: x * 2 * 3,
        lambda o, x: o.mul(o.mul(x, 2), 3),
        lambda o, x: o.mul(x, 6),
    ),
    "another order": (
        lambda x, y: x + y + x,
        lambda o, x, y: o.add(o.add(x, y), x),
        lambda o, x, y: o.add(o.add(x, x), y),
    ),
    "half": (lambda x, y: x / 2, lambda o, x: o.div(x, 2), lambda o, x: o.mul(x, 0.5)),
    "square": (lambda x, y: x * x, lambda o, x: o.mul(x, x), lambda o, x: o.pow(x, 2)),
    "exchanged": (
        torch.maximum,
        lambda o, x, y: o.maximum(x, y),
        lambda o, x, y: o.maximum(y, x),
    ),
    "bound at zero": (
        lambda x, y: x.clamp(min=0),
        lambda o, x: o.clamp(x, 0),
        lambda o, x: o.relu(x),
    ),
    "transposed": (lambda x, y: x.t().t(), lambda o, x: o.t(o.t(x)), lambda o, x: o.clone(x)),
    "silu": (
        lambda x, y: x * x.sigmoid(),
        lambda o, x: o.mul(x, o.sigmoid(x)),
        lambda o, x: o.silu(x),
    ),
    "gelu": (
        lambda x, y: x * 0.5 * (1 + torch.erf(x * 0.5**0.5)),
        lambda o, x: o.mul(o.mul(x, 0.5), o.add(o.erf(o.mul(x, 0.5**0.5)), 1)),
        lambda o, x: o.gelu(x),
    ),
    "hardswish": (
        lambda x, y: x * (x + 3).clamp(0, 6) / 6,
        lambda o, x: o.div(o.mul(x, o.clamp(o.add(x, 3), 0, 6)), 6),
        lambda o, x: o.hardswish(x),
    ),
    "tanh": (
        lambda x, y: 2 * torch.sigmoid(2 * x) - 1,
        lambda o, x: o.sub(o.mul(o.sigmoid(o.mul(x, 2)), 2), 1),
        lambda o, x: o.tanh(x),
    ),
    "softmax": (
        lambda x, y: x.exp() / x.exp().sum(-1, keepdim=True),
        lambda o, x: o.div(o.exp(x), o.sum(o.exp(x), [-1], True)),
        lambda o, x: o._softmax(x, -1, False),
    ),
    "minimum of negatives": (
        lambda x, y: -(-x).amax(-1),
        lambda o, x: o.neg(o.amax(o.neg(x), [-1])),
        lambda o, x: o.amin(x, [-1]),
    ),
    "product and sum": (
        lambda x, y: x + x @ (y.t() @ x),
        lambda o, x, y, z: o.add(x, o.mm(y, z)),
        lambda o, x, y, z: o.addmm(x, y, z),
    ),
    "mean": (
        lambda x, y: torch.ops.aten.mean.dim(x, [-1], True),
        lambda o, x: o.mean(x, [-1], True),
        lambda o, x: o.mean(o.clone(x), [-1], True),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_differs_at_special_values_is_wrong(case):
    with pytest.raises(WrongRewriteError, match="'P' is wrong at match"):
        rewritten(*WRONG[case])


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_equal_up_to_rounding_is_right(case):
    result = rewritten(*RIGHT[case])
    assert (result.matches, result.verified, result.unverified) == (1, 1, [])


def test_numbers_of_each_draw_are_among_the_samples():
    dialect = compiler.AtenDialect()
    for draw in range(6):
        data = dialect.sample(dialect.meta_of(ir.TensorDesc(ir.Shape([8, 8]), "float32")), 0, draw)
        expected = torch.tensor(ir.special_numbers(draw), dtype=torch.float32)
        for number in expected:
            same = data.isnan() if number.isnan() else data == number
            assert (same & (data.signbit() == number.signbit())).any()
