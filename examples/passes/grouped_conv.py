"""A convolution in groups -> a split, one convolution for each group, and a concatenation."""

from __future__ import annotations

from bringup import ir, passes


@passes.register_decompose_pass(
    name="SampleGroupedConv",
    stage=passes.PassStage.AFTER_INFER_SHAPE,
    op_types=("aten::convolution",),
)
class SplitGroupedConv(passes.DecomposePass):
    def meet_requirements(self, node: ir.Node) -> bool:
        groups = node.argument("groups")
        plain = not node.argument("transposed") and node.inputs[0].desc.shape.rank == 4
        return groups > 1 and plain and node.inputs[1].desc.shape.is_static

    def replacement(self, node: ir.Node) -> ir.Graph:
        groups = node.argument("groups")
        out_channels, in_channels = node.inputs[1].desc.shape.dims[:2]
        builder = ir.GraphBuilder("groups")
        inputs = builder.create_inputs(len(node.inputs))
        widths = (in_channels, *(out_channels // groups for _ in inputs[1:]))
        parts = [
            builder.op("aten::split.Tensor", x, width, int(number == 0), outputs=groups)
            for number, (x, width) in enumerate(zip(inputs, widths, strict=True))
        ]
        settings = node.arguments[3:8]  # stride, padding, dilation, transposed, output_padding
        convolutions = []
        for group in range(groups):
            x, weight, *bias = (part[group] for part in parts)
            convolutions.append(
                builder.op("aten::convolution", x, weight, bias[0] if bias else None, *settings, 1)
            )
        replacement = builder.build_and_reset(builder.op("aten::cat", convolutions, 1))
        passes.infer_shape(replacement, node)
        return replacement
