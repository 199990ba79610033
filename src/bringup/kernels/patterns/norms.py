"""RMSNorm and LayerNorm, with the residual addition in front where there is one."""

from __future__ import annotations

from collections.abc import Callable

from bringup import ir, kernels, passes
from bringup.kernels.patterns._support import binary, described, last_dimension

__all__ = ["AddLayerNorm", "AddRmsNorm", "RmsNorm"]

_Spelling = Callable[[ir.GraphBuilder, ir.TensorHolder], ir.TensorHolder]


def _unary(builder: ir.GraphBuilder, op_type: str, x: ir.TensorHolder) -> ir.TensorHolder:
    result = builder.op(op_type, x)
    assert isinstance(result, ir.TensorHolder)
    return result


_SQUARES: dict[str, _Spelling] = {
    "pow": lambda builder, x: binary(
        builder, "aten::pow.Tensor_Scalar", x, passes.any_value("two")
    ),
    "mul": lambda builder, x: binary(builder, "aten::mul.Tensor", x, x),
}
_INVERSE_ROOTS: dict[str, _Spelling] = {
    "rsqrt": lambda builder, x: _unary(builder, "aten::rsqrt", x),
    "pow": lambda builder, x: binary(builder, "aten::pow.Tensor_Scalar", x, -0.5),
    "sqrt": lambda builder, x: _unary(
        builder, "aten::reciprocal", _unary(builder, "aten::sqrt", x)
    ),
}


class RmsNorm(passes.PatternFusionPass):
    """x / sqrt(mean(x^2) + eps) * weight -> `bringup::rms_norm`, in the spellings in use.

    The square is a power or a product, the inverse root an `rsqrt`, a power or a reciprocal, and
    the weight may be missing (a model in half precision casts before it multiplies; Gemma adds 1).
    """

    def patterns(self) -> list[passes.Pattern]:
        """Every spelling, those with a weight first."""
        return [
            self._pattern(square, root, weighted)
            for weighted in (True, False)
            for square in _SQUARES
            for root in _INVERSE_ROOTS
        ]

    def _pattern(self, square: str, root: str, weighted: bool) -> passes.Pattern:
        builder = ir.GraphBuilder(f"{square}_{root}{'_weight' if weighted else ''}")
        x = builder.create_input()
        mean = builder.op(
            "aten::mean.dim", _SQUARES[square](builder, x), passes.any_value("dim"), True
        )
        shifted = binary(builder, "aten::add.Tensor", mean, passes.any_value("eps"))
        normalized = binary(builder, "aten::mul.Tensor", x, _INVERSE_ROOTS[root](builder, shifted))
        if weighted:
            normalized = binary(builder, "aten::mul.Tensor", builder.create_input(), normalized)
        return passes.Pattern(builder.build_and_reset(normalized))

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """The mean of squares over the last dimension, a number as eps, one weight per column."""
        known = described(match_result.inputs)
        if known is None or not isinstance(match_result["eps"], (int, float)):
            return False
        if match_result.pattern_name.startswith("pow") and match_result["two"] != 2:
            return False
        fits = len(known) == 1 or known[1].shape.dims == known[0].shape.dims[-1:]
        return fits and last_dimension(match_result["dim"], known[0])

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        """The fused operator."""
        kernels.load()
        builder = ir.GraphBuilder()
        x, *weight = builder.create_inputs(len(match_result.inputs))
        eps = match_result["eps"]
        return _one(builder.op("bringup::rms_norm", x, weight[0] if weight else None, eps))


def _one(result: ir.TensorHolder | tuple[ir.TensorHolder, ...]) -> ir.TensorHolder:
    """The one output of an operator."""
    assert isinstance(result, ir.TensorHolder)
    return result


class AddRmsNorm(passes.PatternFusionPass):
    """A residual addition in front of `bringup::rms_norm` joins it; the sum stays an output."""

    @passes.pattern
    def add_norm(self, inputs: passes.PatternInputs) -> tuple[ir.TensorHolder, ...]:
        """(rms_norm(x + residual), x + residual)."""
        kernels.load()
        x, residual, weight = inputs[0], inputs[1], inputs[2]
        builder = x.builder
        total = binary(builder, "aten::add.Tensor", x, residual)
        normalized = builder.op("bringup::rms_norm", total, weight, passes.any_value("eps"))
        return _one(normalized), total

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Nothing is broadcast."""
        known = described(match_result.inputs)
        return known is not None and known[0].shape == known[1].shape

    def replacement(self, match_result: passes.MatchResult) -> tuple[ir.TensorHolder, ...]:
        """The fused operator."""
        builder = ir.GraphBuilder()
        x, residual, weight = builder.create_inputs(3)
        fused = builder.op("bringup::add_rms_norm", x, residual, weight, match_result["eps"])
        assert isinstance(fused, tuple)
        return fused


class AddLayerNorm(passes.PatternFusionPass):
    """Residual addition and LayerNorm -> `bringup::add_layer_norm`, or `add_layer_norm_sum` where
    the sum is read by others too.
    """

    @passes.pattern
    def alone(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """layer_norm(x + residual); nobody else reads the sum."""
        return self._add_norm(inputs)[0]

    @passes.pattern
    def shared(self, inputs: passes.PatternInputs) -> tuple[ir.TensorHolder, ...]:
        """(layer_norm(x + residual), x + residual)."""
        return self._add_norm(inputs)

    def _add_norm(self, inputs: passes.PatternInputs) -> tuple[ir.TensorHolder, ir.TensorHolder]:
        builder = inputs[0].builder
        total = binary(builder, "aten::add.Tensor", inputs[0], inputs[1])
        shape, eps = passes.any_value("shape"), passes.any_value("eps")
        outputs = builder.op("aten::native_layer_norm", total, shape, inputs[2], inputs[3], eps)
        assert isinstance(outputs, tuple)
        return outputs[0], total

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """One dimension is normalised and nothing is broadcast."""
        known = described(match_result.inputs)
        if known is None:
            return False
        one_dimension = known[2].shape.rank == known[3].shape.rank == 1
        return one_dimension and known[0].shape == known[1].shape

    def replacement(
        self, match_result: passes.MatchResult
    ) -> ir.TensorHolder | tuple[ir.TensorHolder, ...]:
        """The fused operator, with the sum where it is asked for."""
        kernels.load()
        builder = ir.GraphBuilder()
        suffix = "_sum" if match_result.pattern_name == "shared" else ""
        inputs = builder.create_inputs(4)
        return builder.op(f"bringup::add_layer_norm{suffix}", *inputs, match_result["eps"])
