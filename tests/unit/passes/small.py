"""Small graphs of operators that nobody defines, and passes over them: no dialect, no torch."""

from bringup import ir, passes

STAGE = passes.PassStage.AFTER_INFER_SHAPE


def chain(*names, graph_name="g"):
    """One input through operators `demo::<name>`, one after the other."""
    builder = ir.GraphBuilder(graph_name)
    (value,) = builder.create_inputs(1)
    for name in names:
        value = builder.op(f"demo::{name}", value)
    return builder.build_and_reset(value)


def types(graph):
    """The operators of a graph in order, without namespace."""
    return [node.op_type[6:] for node in graph.nodes if node.op_type.startswith("demo::")]


def swap(old="a", new="b", **hooks):
    """A pattern pass class that puts `demo::new` in the place of `demo::old`."""

    def found(self, inputs):
        return inputs[0].builder.op(f"demo::{old}", inputs[0])

    def replacement(self, inputs):
        return inputs[0].builder.op(f"demo::{new}", inputs[0])

    body = {"found": passes.pattern(found), "replacement": replacement, **hooks}
    return type("Swap", (passes.PatternFusionPass,), body)


def run(graph, **keywords):
    """All registered passes over a graph."""
    return passes.run_passes(graph, passes.select_passes(None), **keywords)


def run_one(cls, graph, name="P", **settings):
    """Register a class as "P" and run it; its result."""
    passes.register_fusion_pass(name=name, stage=STAGE, **settings)(cls)
    return run(graph)[name]
