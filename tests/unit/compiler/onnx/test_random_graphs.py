"""Random graphs, rewritten: the results stay, and what is written is valid."""

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.unit.compiler.onnx.support import STAGE, assert_same_results, register, register_gemm

from bringup import compiler, ir, passes
from bringup.compiler import onnx as bringup_onnx

UNARY = ("Relu", "Neg", "Abs", "Tanh", "Identity", "Transpose")
BINARY = ("Add", "Mul", "MatMul", "Sub")
SIZE = 3


@st.composite
def bodies(draw, depth=0, outer=()):
    """Nodes, initializers and the names of the values of one graph over square matrices."""
    own = [] if depth else ["x", "y"]
    label = f"{draw(st.integers(0, 10**9))}_{depth}"
    constants = [f"k{label}_{i}" for i in range(draw(st.integers(0, 2)))]
    initializers = [
        numpy_helper.from_array(
            np.full((SIZE, SIZE), draw(st.sampled_from([0.0, 1.0, 0.5])), np.float32), name
        )
        for name in constants
    ]
    own += constants
    nodes = []
    for number in range(draw(st.integers(1, 8))):
        known = st.sampled_from([*own, *outer])
        name = f"v{label}_{number}"
        kind = draw(st.sampled_from((*UNARY, *BINARY, *BINARY, "Concat", "If")))
        if kind in UNARY:
            nodes.append(helper.make_node(kind, [draw(known)], [name]))
        elif kind in BINARY:
            nodes.append(helper.make_node(kind, [draw(known), draw(known)], [name]))
        elif kind == "Concat":
            parts = [draw(known) for _ in range(draw(st.integers(1, 3)))]
            nodes.append(helper.make_node("Concat", parts, [f"{name}_c"], axis=0))
            nodes.append(helper.make_node("Slice", [f"{name}_c", "zero", "three"], [name]))
        elif depth < 2:
            branches = [
                draw(graphs(depth + 1, (*own, *outer), f"{name}_{side}")) for side in ("t", "e")
            ]
            nodes.append(
                helper.make_node(
                    "If", ["flag"], [name], then_branch=branches[0], else_branch=branches[1]
                )
            )
        else:
            continue
        own.append(name)
    return nodes, initializers, own


@st.composite
def graphs(draw, depth, outer, name):
    """A branch that returns one value that it computes."""
    nodes, initializers, own = draw(bodies(depth, outer))
    result = f"{name}_result"
    nodes.append(helper.make_node("Identity", [draw(st.sampled_from([*own, *outer]))], [result]))
    info = helper.make_tensor_value_info(result, TensorProto.FLOAT, [SIZE, SIZE])
    return helper.make_graph(nodes, name, [], [info], initializer=initializers)


@st.composite
def models(draw):
    """A model of two inputs, a condition, and up to three results."""
    nodes, initializers, _ = draw(bodies())
    computed = [name for node in nodes for name in node.output]
    results = draw(st.lists(st.sampled_from([*computed, "x"]), min_size=1, max_size=3, unique=True))
    matrix = (TensorProto.FLOAT, [SIZE, SIZE])
    graph = helper.make_graph(
        nodes,
        "random",
        [
            helper.make_tensor_value_info("x", *matrix),
            helper.make_tensor_value_info("y", *matrix),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 2) for name in results],
        initializer=[
            *initializers,
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([SIZE]), "three"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def register_passes():
    """Passes of several shapes, which all keep what is computed."""
    register_gemm()
    register(
        lambda op, inputs: op.Neg(op.Neg(inputs[0])),
        lambda builder, match: builder.build_and_reset(builder.create_input()),
        name="NegNeg",
    )
    register(
        lambda op, inputs: op.Identity(inputs[0]),
        lambda builder, match: builder.build_and_reset(builder.create_input()),
        name="DropIdentity",
    )
    register(
        lambda op, inputs: op.Mul(inputs[0], passes.constant(1.0)),
        lambda builder, match: builder.build_and_reset(builder.create_inputs(1)),
        name="TimesOne",
    )
    register(
        lambda op, inputs: op.Relu(inputs[0]),
        lambda builder, match: builder.onnx.Max(
            builder.create_input(), builder.create_constant([0.0])
        ),
        name="ReluToMax",
    )
    register(
        lambda op, inputs: op.Concat(inputs[0], axis=passes.any_value()),
        lambda builder, match: builder.build_and_reset(builder.create_input()),
        name="ConcatOne",
    )

    @passes.register_fusion_pass(name="TransposeTwice", stage=STAGE)
    class TransposeTwice(passes.PatternFusionPass):
        @passes.pattern
        def twice(self, inputs):
            op = inputs[0].builder.onnx
            once = op.Transpose(inputs[0], perm=passes.any_value())
            return once, op.Transpose(once, perm=passes.any_value())

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            x = builder.create_input()
            return builder.build_and_reset([builder.onnx.Transpose(x, perm=[1, 0]), x])


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(models(), st.booleans())
def test_random_models_compute_the_same_after_passes(proto, fold):
    passes.clear_registered_passes()
    register_passes()
    onnx.checker.check_model(proto, full_check=True)
    assert bringup_onnx.from_proto(proto).to_proto() == proto
    after = onnx.ModelProto()
    after.CopyFrom(proto)
    report = compiler.apply_passes(after, options={"verify": True, "fold": fold})
    assert not any(result.message for result in report.results)
    generator = np.random.default_rng(0)
    for flag in (True, False):
        feeds = {
            name: (generator.standard_normal((SIZE, SIZE)) / 4).astype(np.float32)
            for name in ("x", "y")
        }
        assert_same_results(proto, after, {**feeds, "flag": np.array(flag)})
