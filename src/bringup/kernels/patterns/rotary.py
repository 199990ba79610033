"""Rotary position embedding."""

from __future__ import annotations

from bringup import ir, kernels, passes
from bringup.kernels.patterns._support import ALL_FLOATS, described, last_dimension, require, single


class Rotary(passes.PatternFusionPass):
    """x * cos + rotate_half(x) * sin -> `bringup::rotary`; the halves are slices or a split."""

    @passes.pattern
    def slices(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """rotate_half with two slices."""
        x = inputs[0]
        half, end = passes.any_value("half"), passes.any_value("end")
        low = x.builder.op("aten::slice.Tensor", x, passes.any_value("low_dim"), 0, half)
        high = x.builder.op("aten::slice.Tensor", x, passes.any_value("high_dim"), half, end)
        return self._rotated(inputs, low, high)

    @passes.pattern
    def halves(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        """rotate_half with one split (or chunk)."""
        x = inputs[0]
        half, dim = passes.any_value("half"), passes.any_value("low_dim")
        parts = x.builder.op("aten::split.Tensor", x, half, dim, outputs=2)
        assert isinstance(parts, tuple)
        return self._rotated(inputs, *parts)

    def _rotated(self, inputs: passes.PatternInputs, low: object, high: object) -> ir.TensorHolder:
        x, cos, sin = inputs[0:3]
        halves = [x.builder.op("aten::neg", high), low]
        turned = single(x.builder, "aten::cat", halves, passes.any_value("cat_dim"))
        return x * cos + turned * sin

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        """Require [B, H, S, D] in memory [B, S, H, D], halves of D, broadcast cos and sin."""
        known = described((*match_result.inputs, *match_result.outputs), ALL_FLOATS)
        require(all(desc.shape.rank == 4 for desc in known), "not all tensors have 4 dimensions")
        x, *tables, result = known
        require(
            ir.same_size(result.strides[1], result.shape[3]), "the heads are not laid out as BSHD"
        )
        depth = x.shape[3]
        require(isinstance(depth, int), f"the size of a head, {depth}, is not known")
        dims = ["low_dim", "cat_dim"]
        if match_result.pattern_name == "slices":
            dims.append("high_dim")
            end = match_result["end"]
            is_behind = isinstance(end, int) and isinstance(depth, int) and end >= depth
            require(is_behind, f"the second half ends at {end!r}, the head at {depth}")
        half = match_result["half"]
        require(isinstance(half, int) and half * 2 == depth, f"{half!r} is not half of {depth}")
        for dim in dims:
            require(last_dimension(match_result[dim], x), f"{dim} is not the last dimension")
        for table in tables:
            self._require_broadcast(x, table)
        return True

    def _require_broadcast(self, x: ir.TensorDesc, table: ir.TensorDesc) -> None:
        fits = all(
            ir.same_size(size, 1) or ir.same_size(size, whole)
            for size, whole in zip(table.shape, x.shape, strict=True)
        )
        require(
            fits and ir.same_size(table.shape[3], x.shape[3]),
            f"a table of {table.shape} does not broadcast to {x.shape}",
        )
        dense = all(ir.same_size(desc.strides[3], 1) for desc in (table, x))
        require(dense, "the elements of a head have gaps in memory")

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        """Return the fused operator."""
        kernels.load()
        builder = ir.GraphBuilder()
        rotated = builder.op("bringup::rotary", *builder.create_inputs(3))
        return single(builder, "aten::transpose.int", rotated, 1, 2)
