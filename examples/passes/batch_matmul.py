"""Batched products with one side that is the same for all items, or that is a single column.

Flatten: bmm(x, one matrix for all) -> view, mm, view. Tile: a matrix that `repeat` copied for each
item is expanded instead, which copies nothing. Column: a product of small depth with one column ->
multiplication and sum.
"""

from __future__ import annotations

from bringup import ir, passes

_STAGE = passes.PassStage.AFTER_INFER_SHAPE
_SMALL_DEPTH = 16


@passes.register_fusion_pass(name="SampleBatchMatMulTile", stage=_STAGE, priority=2)
class Tile(passes.PatternFusionPass):
    """repeat(w, [b, 1, 1]) on either side of a bmm -> expand."""

    @passes.pattern
    def left(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        op = inputs[0].builder.op
        tiled = op("aten::repeat", inputs[0], passes.any_value("repeats", kind="list"))
        return op("aten::bmm", tiled, inputs[1])

    @passes.pattern
    def right(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        op = inputs[0].builder.op
        tiled = op("aten::repeat", inputs[0], passes.any_value("repeats", kind="list"))
        return op("aten::bmm", inputs[1], tiled)

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        one, repeats = match_result.inputs[0].desc, match_result["repeats"]
        return one.shape.rank == 3 and one.shape[0] == 1 and repeats[1:] == (1, 1)

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        one, other = builder.create_inputs(2)
        repeats = match_result["repeats"]
        sizes = [repeats[0], *match_result.inputs[0].desc.shape.dims[1:]]
        wide = builder.op("aten::expand", one, sizes)
        operands = (wide, other) if match_result.pattern_name == "left" else (other, wide)
        return builder.op("aten::bmm", *operands)


@passes.register_fusion_pass(name="SampleBatchMatMulColumn", stage=_STAGE, priority=1)
class Column(passes.PatternFusionPass):
    """bmm(x [b, m, k], w [b, k, 1]) with k up to 16 -> sum(x * transpose(w))."""

    @passes.pattern
    def bmm(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        return inputs[0].builder.op("aten::bmm", inputs[0], inputs[1])

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        _, depth, width = match_result.inputs[1].desc.shape
        return width == 1 and isinstance(depth, int) and depth <= _SMALL_DEPTH

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        x, weight = builder.create_inputs(2)
        products = x * builder.op("aten::transpose.int", weight, 1, 2)
        return builder.op("aten::sum.dim_IntList", products, [-1], True)


@passes.register_fusion_pass(name="SampleBatchMatMulFlatten", stage=_STAGE)
class Flatten(passes.PatternFusionPass):
    """bmm(x [b, m, k], expand(w [1, k, n])) -> view(mm(view(x), w))."""

    @passes.pattern
    def bmm(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
        op = inputs[0].builder.op
        wide = op("aten::expand", inputs[1], passes.any_value("size", kind="list"))
        return op("aten::bmm", inputs[0], wide)

    def meet_requirements(self, match_result: passes.MatchResult) -> bool:
        x, one = (value.desc.shape for value in match_result.inputs)
        same_for_all = one.rank == 2 or (one.rank == 3 and one[0] == 1)
        return same_for_all and x.is_static and one.is_static

    def replacement(self, match_result: passes.MatchResult) -> ir.TensorHolder:
        builder = ir.GraphBuilder()
        x, one = builder.create_inputs(2)
        items, rows, depth = match_result.inputs[0].desc.shape
        width = match_result.inputs[1].desc.shape[-1]
        flat = builder.op("aten::reshape", x, [items * rows, depth])
        product = builder.op("aten::mm", flat, builder.op("aten::reshape", one, [depth, width]))
        return builder.op("aten::view", product, [items, rows, width])
