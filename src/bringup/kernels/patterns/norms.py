"""RMSNorm and LayerNorm, with the residual addition in front where there is one."""

from __future__ import annotations

from collections.abc import Callable

from bringup import ir, kernels, passes
from bringup.kernels.patterns._support import (
    ALL_FLOATS,
    FLOATS,
    close_to,
    described,
    is_scalar,
    last_dimension,
    require,
    single,
)

_Spelling = Callable[[ir.TensorHolder], ir.TensorHolder]

_SQUARES: dict[str, _Spelling] = {
    "pow": lambda x: single(x.builder, "aten::pow.Tensor_Scalar", x, passes.any_value("two")),
    "mul": lambda x: x * x,
}
_INVERSE_ROOTS: dict[str, _Spelling] = {
    "rsqrt": lambda x: single(x.builder, "aten::rsqrt", x),
    "pow": lambda x: single(x.builder, "aten::pow.Tensor_Scalar", x, -0.5),
    "sqrt": lambda x: single(x.builder, "aten::reciprocal", single(x.builder, "aten::sqrt", x)),
}


class RmsNorm(passes.PatternFusionPass):
    """x / sqrt(mean(x^2) + eps) * weight -> `bringup::rms_norm`, in the spellings in use.

    The square is a power or a product, the inverse root an `rsqrt`, a power or a reciprocal, and
    the weight may be missing (a model in half precision casts before it multiplies; Gemma adds 1).
    """

    def patterns(self) -> list[passes.Pattern]:
        """Return every spelling, those with a weight first."""
        return [
            self._pattern(square, root, weighted)
            for weighted in (True, False)
            for square in _SQUARES
            for root in _INVERSE_ROOTS
        ]

    def _pattern(self, square: str, root: str, weighted: bool) -> passes.Pattern:
        builder = ir.GraphBuilder(f"{square}_{root}{'_weight' if weighted else ''}")
        x = builder.create_input()
        mean = single(builder, "aten::mean.dim", _SQUARES[square](x), passes.any_value("dim"), True)
        normalized = x * _INVERSE_ROOTS[root](mean + passes.any_value("eps"))
        if weighted:
            normalized = builder.create_input() * normalized
        return passes.Pattern(builder.build_and_reset(normalized))

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Require the mean of squares over the last dim, a number as eps, a weight a column."""
        x, *weight = described(
            match_result.inputs, otherwise="its squares are rounded, those of the operator are not"
        )
        eps = match_result["eps"]
        require(isinstance(eps, (int, float)) or is_scalar(eps), f"eps is no number: {eps!r}")
        if match_result.pattern_name.startswith("pow"):
            require(close_to(match_result["two"], 2), f"the power is {match_result['two']!r}")
        require(
            all(item.shape.same_as(ir.Shape(x.shape.dims[-1:])) for item in weight),
            "the weight is not one number per column",
        )
        dim = match_result["dim"]
        require(last_dimension(dim, x), f"the mean is over {dim!r}, not the last dimension")
        return True

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        """Return the fused operator."""
        kernels.load()
        builder = ir.GraphBuilder()
        x, *weight = builder.create_inputs(len(match_result.inputs))
        eps = match_result["eps"]
        arguments = (x, weight[0] if weight else None)
        if not isinstance(eps, ir.Value):
            return single(builder, "bringup::rms_norm", *arguments, eps)
        desc = described(match_result.inputs[:1])[0]
        if eps.desc is None or eps.desc.device != desc.device:
            import torch  # `bringup passes list` does without

            eps = single(builder, "aten::_to_copy", eps, device=torch.device(desc.device))
        return single(builder, "bringup::rms_norm_eps", *arguments, eps)


class NarrowRmsNorm(passes.PatternFusionPass):
    """16-bit floats that are widened for `bringup::rms_norm` without a weight, rounded, and then
    multiplied by one -> the operator in 16 bits, which rounds there too.
    """

    @passes.pattern
    def norm(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """eps is a number."""
        return self._narrow("bringup::rms_norm", inputs, passes.any_value("eps"))

    @passes.pattern
    def norm_eps(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """eps is a tensor."""
        return self._narrow("bringup::rms_norm_eps", inputs, inputs[2])

    def _narrow(self, op_type: str, inputs: passes.PatternInputs, eps: object) -> ir.TensorHolder:
        kernels.load()
        weight, x = inputs[0], inputs[1]
        builder = x.builder
        wide = builder.op("aten::_to_copy", x, dtype=passes.any_value("wide"))
        normalized = single(builder, op_type, wide, None, eps)
        return weight * single(
            builder, "aten::_to_copy", normalized, dtype=passes.any_value("narrow")
        )

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Require widening to float32, rounding back, and one weight per column."""
        inner = next(
            node for node in match_result.get_matched_nodes() if "rms_norm" in node.op_type
        )
        wide = described([inner.argument("x")])[0].dtype
        require(wide == "float32", f"it is computed in {wide}, not in float32")
        narrow = inner.outputs[0].users[0].outputs[0]
        weight, x, _ = described([*match_result.inputs[:2], narrow], ALL_FLOATS - FLOATS)
        require(
            weight.shape.same_as(ir.Shape(x.shape.dims[-1:])),
            "the weight is not one number per column",
        )
        return True

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        """Return the operator on what was widened."""
        kernels.load()
        builder = ir.GraphBuilder()
        weight, x, *eps = builder.create_inputs(len(match_result.inputs))
        op_type = f"bringup::rms_norm{'_eps' if eps else ''}"
        return single(builder, op_type, x, weight, eps[0] if eps else match_result["eps"])


class AddRmsNorm(passes.PatternFusionPass):
    """A residual addition in front of `bringup::rms_norm` joins it; the sum stays an output."""

    @passes.pattern
    def add_norm(self, inputs: passes.PatternInputs) -> tuple[ir.TensorHolder, ...]:
        """(rms_norm(x + residual), x + residual)."""
        return _add_norm("bringup::rms_norm", inputs, passes.any_value("eps"))

    @passes.pattern
    def add_norm_eps(self, inputs: passes.PatternInputs) -> tuple[ir.TensorHolder, ...]:
        """Return the same where eps is a tensor."""
        return _add_norm("bringup::rms_norm_eps", inputs, inputs[3])

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Require that nothing is broadcast."""
        x, residual, *_ = described(match_result.inputs[:3], ALL_FLOATS)
        require(x.shape.same_as(residual.shape), f"{x.shape} and {residual.shape} are broadcast")
        return True

    def replacement(self, match_result: passes.MatchResult) -> tuple[ir.TensorHolder, ...]:
        """Return the fused operator."""
        builder = ir.GraphBuilder()
        x, residual, weight, *eps = builder.create_inputs(len(match_result.inputs))
        op_type = f"bringup::add_rms_norm{'_eps' if eps else ''}"
        last = eps[0] if eps else match_result["eps"]
        fused = builder.op(op_type, x, residual, weight, last)
        assert isinstance(fused, tuple)
        return fused


def _add_norm(
    op_type: str, inputs: passes.PatternInputs, eps: object
) -> tuple[ir.TensorHolder, ir.TensorHolder]:
    kernels.load()
    x, residual, weight = inputs[0:3]
    total = x + residual
    return single(x.builder, op_type, total, weight, eps), total


class AddLayerNorm(passes.PatternFusionPass):
    """Residual addition and LayerNorm -> `bringup::add_layer_norm` or `add_layer_norm_sum`."""

    @passes.pattern
    def alone(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """layer_norm(x + residual); nothing else reads the sum."""
        return self._add_norm(inputs)[0]

    @passes.pattern
    def shared(self, inputs: passes.PatternInputs) -> tuple[ir.TensorHolder, ...]:
        """(layer_norm(x + residual), x + residual)."""
        return self._add_norm(inputs)

    def _add_norm(self, inputs: passes.PatternInputs) -> tuple[ir.TensorHolder, ir.TensorHolder]:
        x, residual, weight, bias = inputs[0:4]
        total = x + residual
        shape, eps = passes.any_value("shape"), passes.any_value("eps")
        outputs = x.builder.op("aten::native_layer_norm", total, shape, weight, bias, eps)
        assert isinstance(outputs, tuple)
        return outputs[0], total

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Require one normalised dimension and no broadcast."""
        x, residual, weight, bias = described(match_result.inputs, ALL_FLOATS)
        require(weight.shape.rank == bias.shape.rank == 1, "more than one dimension is normalised")
        require(x.shape.same_as(residual.shape), f"{x.shape} and {residual.shape} are broadcast")
        return True

    def replacement(
        self, match_result: passes.MatchResult
    ) -> ir.TensorHolder | tuple[ir.TensorHolder, ...]:
        """Return the fused operator, with the sum where it is asked for."""
        kernels.load()
        builder = ir.GraphBuilder()
        suffix = "_sum" if match_result.pattern_name == "shared" else ""
        inputs = builder.create_inputs(4)
        return builder.op(f"bringup::add_layer_norm{suffix}", *inputs, match_result["eps"])
