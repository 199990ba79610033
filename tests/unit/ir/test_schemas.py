"""Schemas as data: the same operators, overloads, defaults and refusals as torch's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bringup import compiler, ir, passes
from bringup.errors import SchemaError
from bringup.ir import schemas

ATEN = compiler.AtenDialect()
SHIPPED = ir.aten_schemas()


def values(number):
    builder = ir.GraphBuilder()
    return [holder.value for holder in builder.create_inputs(number)]


X, Y, Z = values(3)

CALLS = [
    ("add", (X, Y), {}),
    ("add", (X, 2), {}),
    ("add", (X, 2.5), {"alpha": 3}),
    ("add.Scalar", (X, 2), {}),
    ("sub", (X, 1), {}),
    ("rsub", (X, 1), {}),
    ("mul", (X, 2), {}),
    ("div", (X, Y), {"rounding_mode": "floor"}),
    ("div", (X, 2), {}),
    ("remainder", (X, 2), {}),
    ("pow", (X, 2), {}),
    ("pow", (X, Y), {}),
    ("pow", (2, X), {}),
    ("eq", (X, 1), {}),
    ("eq", (X, Y), {}),
    ("lt", (X, 0.5), {}),
    ("maximum", (X, Y), {}),
    ("max", (X,), {}),
    ("max", (X, Y), {}),
    ("max", (X, 1), {}),
    ("max", (X, 1, True), {}),
    ("mean", (X,), {}),
    ("mean", (X, [-1]), {}),
    ("mean", (X, [-1], True), {}),
    ("mean", (X, -1), {}),
    ("sum", (X,), {}),
    ("sum", (X, [0, 1]), {"keepdim": True}),
    ("sum", (X, None), {}),
    ("any", (X,), {}),
    ("any", (X, 1), {}),
    ("std", (X,), {}),
    ("var", (X, [0]), {"correction": 1}),
    ("clamp", (X, 0), {}),
    ("clamp", (X,), {"min": 0, "max": 1.5}),
    ("clamp", (X, Y, Z), {}),
    ("where", (X, Y, Z), {}),
    ("where", (X, 1, Z), {}),
    ("where", (X, Y, 0.0), {}),
    ("addmm", (X, Y, Z), {}),
    ("addmm", (X, Y, Z), {"beta": 2, "alpha": 0.5}),
    ("mm", (X, Y), {}),
    ("matmul", (X, Y), {}),
    ("softmax", (X, -1), {}),
    ("_softmax", (X, -1, False), {}),
    ("native_layer_norm", (X, [8], Y, Z, 1e-5), {}),
    ("layer_norm", (X, [8]), {}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("view", (X, [2, -1]), {}),
    ("reshape", (X, [4]), {}),
    ("permute", (X, [1, 0]), {}),
    ("transpose", (X, 0, 1), {}),
    ("t", (X,), {}),
    ("slice", (X, 1, 0, 4), {}),
    ("select", (X, 0, 1), {}),
    ("cat", ([X, Y], 1), {}),
    ("stack", ([X, Y],), {}),
    ("split", (X, 2, 1), {}),
    ("split", (X, [1, 2], 1), {}),
    ("split_with_sizes", (X, [3, 5], 1), {}),
    ("index", (X, [Y, None]), {}),
    ("embedding", (X, Y), {}),
    ("full", ([2, 3], 1.5), {}),
    ("zeros", ([2],), {}),
    ("arange", (4,), {}),
    ("arange", (0, 4), {}),
    ("convolution", (X, Y, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {}),
    ("conv2d", (X, Y), {"padding": [1, 1]}),
    ("conv2d", (X, Y, None, [1, 1], "same"), {}),
    ("scaled_dot_product_attention", (X, Y, Z), {"is_causal": True}),
    ("expand", (X, [2, 3]), {}),
    ("clone", (X,), {}),
    ("bitwise_and", (X, Y), {}),
    ("logical_not", (X,), {}),
    ("native_dropout", (X, 0.5, True), {}),
]


def bound(dialect, name, arguments, keywords):
    try:
        operator, ordered = dialect.bind(f"aten::{name}", arguments, keywords)
    except SchemaError:
        return "refused"
    names = [(parameter.name, parameter.type) for parameter in operator.parameters]
    facts = (operator.output_count, operator.aliases, operator.random, operator.pure)
    return operator.type, names, facts, ordered


@pytest.mark.parametrize(("name", "arguments", "keywords"), CALLS)
def test_call_is_bound_as_torch_binds_it(name, arguments, keywords):
    found = bound(SHIPPED, name, arguments, keywords)
    assert found != "refused"
    assert found == bound(ATEN, name, arguments, keywords)


@pytest.mark.parametrize(
    ("name", "arguments", "keywords"),
    [
        ("relu", (), {}),
        ("relu", (X, Y), {}),
        ("relu", (X,), {"inplace": True}),
        ("addmm", (X, Y), {}),
        ("addmm", (X, Y, Z), {"self": X}),
        ("pow", ("a", "b"), {}),
        ("conv2d", (X, Y), {"padding": 1}),
        ("mean.dim", (X,), {}),
        ("mean.nothing", (X,), {}),
        ("no_such_operator", (X,), {}),
    ],
)
def test_call_that_torch_refuses_is_refused(name, arguments, keywords):
    assert bound(ATEN, name, arguments, keywords) == "refused"
    assert bound(SHIPPED, name, arguments, keywords) == "refused"


def test_every_shipped_schema_is_the_one_of_this_torch():
    """The file is written by tools/write_aten_schemas.py; write it again for another torch."""
    data = json.loads(Path(schemas.__file__).with_name("aten_schemas.json").read_text())
    assert data["torch"] == torch.__version__.partition("+")[0]
    for packet in data["operators"]:
        for overload in schemas.overloads_of(packet).values():
            kind = overload.operator.type
            named = kind if "." in kind else f"{kind}.default"
            real = compiler.aten.operator_of(compiler.schema.overload_of(named))
            assert overload.operator == real


def test_core_operators_are_all_there():
    missing = []
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for key in packet.overloads() if hasattr(packet, "overloads") else ():
            overload = getattr(packet, key)
            returns = [str(item.type) for item in overload._schema.returns]
            if torch.Tag.core in overload.tags and set(returns) == {"Tensor"}:
                mutates = any(
                    a.alias_info and a.alias_info.is_write for a in overload._schema.arguments
                )
                if not mutates and key not in schemas.overloads_of(f"aten::{name}"):
                    missing.append(f"{name}.{key}")
    assert missing == []


def test_graph_built_with_schemas_is_bound_to_torch_and_shaped():
    builder = ir.GraphBuilder("g", SHIPPED)
    x = builder.create_input("x", shape=(4, 8))
    w = builder.create_input("w", shape=(8, 3))
    product, bias = builder.aten.mm(x, w), [1.0, 2.0, 3.0]
    graph = builder.build_and_reset(builder.aten.sum(product + bias, [-1], dtype="float64"))
    assert [node.op_type for node in graph.nodes if "aten" in node.op_type] == [
        "aten::mm",
        "aten::add.Tensor",
        "aten::sum.dim_IntList",
    ]
    assert graph.outputs[0].desc is None
    passes.clear_registered_passes()
    compiler.apply_passes(graph)
    assert str(graph.outputs[0].desc) == "float64[4]"
    assert graph.find(ir.CONSTANT)[0].payload.tolist() == [1.0, 2.0, 3.0]


def test_wrong_call_is_refused_where_it_is_made():
    builder = ir.GraphBuilder("g", SHIPPED)
    (x,) = builder.create_inputs(1)
    with pytest.raises(SchemaError, match="aten::relu takes at most 1 positional argument"):
        builder.aten.relu(x, x)
    with pytest.raises(SchemaError, match="there is no schema of aten::reluu"):
        builder.aten.reluu(x)
    with pytest.raises(SchemaError, match=r"no overload of aten::pow takes \('a', %input_0\)"):
        builder.aten.pow("a", x)
    left, right = builder.operators("demo").split(x, outputs=2)
    assert (left.value.index, right.value.index) == (0, 1)


PROGRAM = """
import sys
sys.modules["torch"] = None
from bringup import ir, passes

builder = ir.GraphBuilder("g", ir.aten_schemas())
x = builder.create_input("x", shape=(4, 8))
graph = builder.build_and_reset(builder.aten.relu(x) * 2 + 1.5)

@passes.register_fusion_pass(name="Twice", stage=passes.PassStage.AFTER_INFER_SHAPE)
class Twice(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        return 2 * inputs[0]

    def replacement(self, inputs):
        return inputs[0] + inputs[0]

print(passes.run_passes(graph, passes.get_registered_passes()).matches)
print(graph)
"""


def test_aten_graph_is_built_and_rewritten_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "{'Twice': 1}",
        "graph g:",
        "  %x: float32[4, 8] = ir::input()",
        "  %relu = aten::relu(self=%x)",
        "  %add_1 = aten::add.Tensor(self=%relu, other=%relu, alpha=1)",
        "  %add = aten::add.Tensor(self=%add_1, other=1.5, alpha=1)",
        "  ir::output(%add)",
    ]
