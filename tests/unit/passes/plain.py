"""A dialect without torch: operators `t::...` made up as they are used, metas that are descriptors.

`t::add` and `t::mul` commute, `t::write` writes its first operand, `t::random` is random, operators
whose names end in a number have that many outputs (`t::split2`).
"""

import struct

from tests.oracles.matching import Matcher

from bringup import ir, passes
from bringup.passes.matching.native_matcher import NativeMatcher


class PlainDialect(ir.Dialect):
    name = "plain"

    def bind(self, op_type, arguments, keywords):
        name = op_type.removeprefix("t::")
        operator = ir.Operator(
            op_type,
            output_count=int(name[-1]) if name[-1].isdigit() else 1,
            mutates=frozenset({0}) if name == "write" else frozenset(),
            random=name == "random",
            commutes=name in ("add", "mul"),
        )
        return operator, (*map(_tuples, arguments), *map(_tuples, keywords.values()))

    def commutes(self, node):
        return node.op_type in ("t::add", "t::mul")

    def infer(self, node, instead_of=None):
        count = node.operator.output_count or 1
        metas = [value.meta for value in node.inputs]
        return tuple(metas[0] if metas else None for _ in range(count))

    def difference(self, old, new):
        return None

    def evaluate(self, node, constants):
        raise NotImplementedError

    def constant_meta(self, payload):
        return None if payload is None else desc(*payload.shape, dtype=payload.dtype)


def _tuples(argument):
    return tuple(map(_tuples, argument)) if isinstance(argument, (tuple, list)) else argument


def desc(*sizes, dtype="float32", device="cpu"):
    return ir.TensorDesc(ir.Shape(sizes), dtype, device=device)


_CODES = {
    "bool": "?",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}


def data(dtype, shape, *values):
    """A constant's payload."""
    if dtype == "bfloat16":
        words = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
        return ir.ConstantData(dtype, shape, struct.pack(f"<{len(words)}H", *words))
    return ir.ConstantData(dtype, shape, struct.pack(f"<{len(values)}{_CODES[dtype]}", *values))


class Build:
    """Makes a graph by attribute: `b.relu(x)` is `builder.op("t::relu", x)`."""

    def __init__(self, name="graph", dialect=None):
        self.builder = ir.GraphBuilder(name, dialect or PlainDialect())

    def __getattr__(self, name):
        return lambda *arguments, **keywords: self.builder.op(
            f"t::{name}", *arguments, outputs=int(name[-1]) if name[-1].isdigit() else 1, **keywords
        )

    def after(self, target, *sources):
        """`target`, which from now on runs after `sources`."""
        self.builder.add_control_dependency(target, sources)
        return target

    def inputs(self, number):
        return self.builder.create_inputs(number)

    def input(self, meta=None):
        graph = self.builder._graph
        return ir.TensorHolder(self.builder, graph.add_input(meta=meta))

    def constant(self, payload=None):
        graph = self.builder._graph
        return ir.TensorHolder(self.builder, graph.add_constant(payload))

    def graph(self, *outputs):
        return self.builder.build_and_reset(list(outputs))


def graph_of(function, inputs=1):
    """The graph of `function(build, *inputs)`, which returns its outputs."""
    return _built(function, inputs, "graph")


def pattern_of(function, inputs=1, name="pattern", **options):
    """The same as a pattern."""
    return passes.Pattern(_built(function, inputs, name), **options)


def _built(function, inputs, name):
    build = Build(name)
    outputs = function(build, *build.inputs(inputs))
    return build.graph(*outputs) if isinstance(outputs, (tuple, list)) else build.graph(outputs)


def matches(pattern, graph):
    """Every match without rewriting: the names of its nodes in order; and the near miss."""
    found, miss = candidates(pattern, graph)
    return [[node.name for node in item.result.get_matched_nodes()] for item in found], miss


def candidates(pattern, graph):
    """Every match and the near miss, on which the native matcher and its oracle agree."""
    found, miss = answers(NativeMatcher, pattern, graph)
    expected, near_miss = answers(Matcher, pattern, graph)
    assert list(map(facts, found)) == list(map(facts, expected))
    assert miss == near_miss
    return found, miss


def answers(kind, pattern, graph):
    """What one kind of matcher finds without rewriting: candidates, and the near miss."""
    matcher = kind(pattern, graph, ir.AliasAnalysis(graph))
    return list(matcher.matches()), matcher.near_miss


def facts(candidate):
    """All that a hook may learn of a candidate."""
    hoisted = [node.name for node in candidate.hoist]
    return candidate.before.name, hoisted, result_facts(candidate.result)


def result_facts(result):
    pattern = result._pattern
    frame = result._frame
    return (
        [node.name for node in result.get_matched_nodes()],
        [value and value.name for value in result.inputs],
        [result.value(value).name for value in pattern.graph.outputs if result.has(value)],
        {name: result.chosen(name) for name in pattern.choices},
        {name: ir.argument_text(item) for name, item in frame.names.items()},
        frame.sizes,
        {name: list(map(result_facts, result.each(name))) for name in frame.lists},
    )


def only(pattern, graph):
    """The result of the only match."""
    found, miss = candidates(pattern, graph)
    assert len(found) == 1, miss
    return found[0].result
