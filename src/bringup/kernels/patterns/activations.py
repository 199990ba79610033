"""SwiGLU and the spellings of GELU."""

from __future__ import annotations

import math
from typing import ClassVar

from bringup import ir, kernels, passes
from bringup.kernels.patterns._support import (
    ALL_FLOATS,
    KNOWN_AT_RUN_TIME,
    close_to,
    described,
    is_frozen,
    is_scalar,
    require,
    single,
)


class SwiGlu(passes.PatternFusionPass):
    """silu(gate) * up -> `bringup::silu_mul`."""

    @passes.pattern
    def silu(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """With the operator."""
        gate, up = inputs[0:2]
        return single(gate.builder, "aten::silu", gate) * up

    @passes.pattern
    def sigmoid(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """Written out."""
        gate, up = inputs[0:2]
        return gate * single(gate.builder, "aten::sigmoid", gate) * up

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Require one shape of both, rows without gaps."""
        gate, up = described(match_result.inputs, ALL_FLOATS)
        require(gate.shape.rank > 0, "the gate has no dimension")
        require(gate.shape.same_as(up.shape), f"the shapes {gate.shape} and {up.shape} differ")
        require(
            all(ir.same_size(desc.strides[-1], 1) for desc in (gate, up)),
            "rows have gaps in memory",
        )
        return True

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        """Return the fused operator."""
        kernels.load()
        builder = ir.GraphBuilder()
        return single(builder, "bringup::silu_mul", *builder.create_inputs(2))


class _WrittenOutGelu(passes.PatternFusionPass):
    """A GELU that a model computes by its formula -> `aten::gelu`."""

    approximate: ClassVar[str]
    numbers: ClassVar[dict[str, float]]

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        described(
            match_result.inputs,
            otherwise="the formula rounds at each step, so the operator's result is another",
        )
        for name in self.names(match_result.pattern_name):
            given, wanted = match_result[name], self.numbers[name]
            is_known = not is_scalar(given) or is_frozen(given)
            require(is_known, f"{name} is a number {KNOWN_AT_RUN_TIME}")
            require(close_to(given, wanted), f"{name} is {given!r}, in the formula {wanted}")
        return True

    def names(self, pattern_name: str) -> tuple[str, ...]:
        """Return which numbers this spelling has."""
        raise NotImplementedError

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        x = builder.create_input()
        return single(builder, "aten::gelu", x, approximate=self.approximate)


class TanhGelu(_WrittenOutGelu):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), GPT-2's activation."""

    approximate = "tanh"
    numbers: ClassVar[dict[str, float]] = {
        "half": 0.5, "three": 3.0, "cubic": 0.044715, "scale": math.sqrt(2 / math.pi), "one": 1.0,
    }  # fmt: skip

    @passes.pattern
    def power(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """Match a cube written as a power."""
        cube = single(
            inputs[0].builder, "aten::pow.Tensor_Scalar", inputs[0], passes.any_value("three")
        )
        return self._gelu(inputs[0], cube)

    @passes.pattern
    def product(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """Match a cube written as a product."""
        x = inputs[0]
        return self._gelu(x, x * x * x)

    def _gelu(self, x: ir.TensorHolder, cube: ir.TensorHolder) -> ir.TensorHolder:
        named = passes.any_value
        inner = (x + cube * named("cubic")) * named("scale")
        shifted = single(x.builder, "aten::tanh", inner) + named("one")
        return x * named("half") * shifted

    def names(self, pattern_name: str) -> tuple[str, ...]:
        """Return which numbers this spelling has."""
        return tuple(name for name in self.numbers if name != "three" or pattern_name == "power")


class ErfGelu(_WrittenOutGelu):
    """0.5 x (1 + erf(x / sqrt(2)))."""

    approximate = "none"
    numbers: ClassVar[dict[str, float]] = {
        "half": 0.5, "root": math.sqrt(2), "inverse": math.sqrt(0.5), "one": 1.0,
    }  # fmt: skip

    @passes.pattern
    def quotient(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """x is divided."""
        return self._gelu(inputs[0], inputs[0] / passes.any_value("root"))

    @passes.pattern
    def product(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """x is multiplied."""
        return self._gelu(inputs[0], inputs[0] * passes.any_value("inverse"))

    def _gelu(self, x: ir.TensorHolder, scaled: ir.TensorHolder) -> ir.TensorHolder:
        shifted = single(x.builder, "aten::erf", scaled) + passes.any_value("one")
        return x * passes.any_value("half") * shifted

    def names(self, pattern_name: str) -> tuple[str, ...]:
        """Return which numbers this spelling has."""
        left_out = "inverse" if pattern_name == "quotient" else "root"
        return tuple(name for name in self.numbers if name != left_out)


class BiasGelu(passes.PatternFusionPass):
    """gelu(linear layer with a bias) -> a product without bias and `bringup::bias_gelu`."""

    @passes.pattern
    def linear(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """gelu(view(addmm(bias, x, weight)))."""
        builder = inputs[0].builder
        layer = builder.op("aten::addmm", inputs[0], inputs[1], inputs[2])
        view = builder.op("aten::view", layer, passes.any_value("size"))
        return single(builder, "aten::gelu", view)

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Require a bias for each column and a view that keeps columns."""
        bias, _, weight, result = described(
            (*match_result.inputs, *match_result.outputs),
            otherwise="the product would be rounded before the bias is added",
        )
        width = ir.Shape(weight.shape.dims[-1:])
        require(bias.shape.same_as(width), f"the bias is {bias.shape}, not one number per column")
        require(ir.Shape(result.shape.dims[-1:]).same_as(width), "the view cuts columns")
        return True

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        """Product, fused bias and activation, view."""
        kernels.load()
        builder = ir.GraphBuilder()
        bias, x, weight = builder.create_inputs(3)
        product = single(builder, "aten::mm", x, weight)
        fused = single(builder, "bringup::bias_gelu", product, bias)
        return single(builder, "aten::view", fused, match_result["size"])
