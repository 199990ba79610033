"""Models that onnx ships, and random chains of operators: the library changes no number."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_errors
from tests.unit.compiler.onnx.library.support import (
    assert_same_numbers,
    compiled,
    feeds_of,
    run_in_onnxruntime,
)
from tests.unit.compiler.onnx.support import model_of

from bringup import compiler
from bringup.compiler import onnx as bringup_onnx

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
GROUPS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
CANNOT_RUN = (
    onnxruntime_errors.Fail,
    onnxruntime_errors.InvalidGraph,
    onnxruntime_errors.NotImplemented,
)
"""What onnxruntime raises for a model that it has no kernels for."""


def models_in(group):
    return sorted((*DATA.glob(f"{group}/*.onnx"), *DATA.glob(f"{group}/*/model.onnx")))


def inputs_of(path, proto):
    """What is shipped beside a model; random numbers where nothing is."""
    names = [info.name for info in proto.graph.input]
    given = sorted((path.parent / "test_data_set_0").glob("input_*.pb"))
    if not given:
        held = {item.name for item in proto.graph.initializer}
        return {name: item for name, item in feeds_of(proto).items() if name not in held}
    tensors = [onnx.load_tensor(str(item)) for item in given]
    return dict(zip(names, map(numpy_helper.to_array, tensors), strict=False))


def compared(path):
    """Whether the library changed a model; then both were run and agree. None: it cannot run."""
    before = onnx.load(path)
    model = bringup_onnx.load(path)
    report = compiler.apply_passes(model)
    after = model.to_proto()
    if not sum(report.matches.values()):
        assert after == before
        return False
    onnx.checker.check_model(after)
    feeds = inputs_of(path, before)
    try:
        expected = run_in_onnxruntime(before, feeds)
    except CANNOT_RUN:
        return None
    assert_same_numbers(expected, run_in_onnxruntime(after, feeds), 1e-4)
    return True


@pytest.mark.parametrize("group", [name for name in GROUPS if models_in(name)])
def test_models_that_onnx_ships_compute_the_same(group):
    bringup_onnx.register_library()
    found = [compared(path) for path in models_in(group)]
    changed = {"pytorch-converted": 0, "pytorch-operator": 3, "light": 4, "simple": 1}
    assert found.count(True) >= changed.get(group, 0)
    assert found.count(None) == 0


# Random chains

ROWS, COLUMNS = 2, 3


def constant(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.array(values, dtype), name)


@st.composite
def steps(draw, shape):
    """One operator on a tensor of this shape: its text, its constants, and the shape behind it."""
    numbers = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0])
    kind = draw(
        st.sampled_from(
            [
                "Add",
                "Sub",
                "Mul",
                "Div",
                "Relu",
                "Clip",
                "Min",
                "Max",
                "Transpose",
                "Reshape",
                "Unsqueeze",
                "Slice",
                "Cast",
                "Identity",
                "Flatten",
                "Expand",
                "Dropout",
            ]
        )
    )
    if kind in ("Transpose", "Reshape", "Unsqueeze", "Slice", "Flatten", "Expand"):
        return draw(moves(kind, shape))
    rank = len(shape)
    if kind in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        values = draw(st.sampled_from([0.0, 1.0, 2.0]))
        other = draw(st.sampled_from([(), (1,), shape[-1:], (1,) * (rank + 1)]))
        if kind == "Div" and values == 0.0:
            values = 1.0
        constants = {"c": np.full(other, values, np.float32)}
        both = ["", "c"]
        if kind not in ("Sub", "Div") and draw(st.booleans()):
            both.reverse()
        return kind, both, {}, constants, np.broadcast_shapes(shape, other)
    if kind == "Clip":
        low, high = sorted((draw(numbers), draw(numbers)))
        limits = {"l": np.float32(low), "h": np.float32(high)}
        given = draw(st.sampled_from([["l", "h"], ["l"], [None, "h"], []]))
        used = {name: limits[name] for name in given if name}
        return kind, ["", *given], {}, used, shape
    if kind == "Cast":
        return kind, [""], {"to": 1}, {}, shape
    return kind, [""], {}, {}, shape


@st.composite
def moves(draw, kind, shape):
    """The same for operators that change no element."""
    rank = len(shape)
    if kind == "Transpose":
        perm = draw(st.permutations(range(rank)))
        return kind, [""], {"perm": list(perm)}, {}, tuple(shape[axis] for axis in perm)
    if kind == "Reshape":
        size = int(np.prod(shape))
        forms = [(size,), (1, size), shape[::-1], (-1, shape[-1] or 1), (0, *shape[1:])]
        wanted = draw(st.sampled_from([form for form in forms if rank or 0 not in form]))
        behind = np.empty(shape).reshape([shape[0] if d == 0 and rank else d for d in wanted]).shape
        return kind, ["", "s"], {}, {"s": np.array(wanted, np.int64)}, behind
    if kind == "Unsqueeze":
        axis = draw(st.integers(-rank - 1, rank))
        behind = np.expand_dims(np.empty(shape), axis).shape
        return kind, ["", "a"], {}, {"a": np.array([axis])}, behind
    if kind == "Slice" and rank:
        axis = draw(st.integers(-rank, rank - 1))
        start, stop = draw(st.integers(-4, 4)), draw(st.integers(-4, 9))
        step = draw(st.sampled_from([1, 1, 2, -1]))
        index = [slice(None)] * rank
        index[axis] = slice(start, stop, step)
        behind = np.empty(shape)[tuple(index)].shape
        if 0 in behind:
            return "Relu", [""], {}, {}, shape
        four = {"s": [start], "e": [stop], "a": [axis], "t": [step]}
        return kind, ["", *four], {}, {k: np.array(v) for k, v in four.items()}, behind
    if kind == "Flatten":
        axis = draw(st.integers(-rank, rank))
        at = axis + rank if axis < 0 else axis
        behind = (int(np.prod(shape[:at])), int(np.prod(shape[at:])))
        return kind, [""], {"axis": axis}, {}, behind
    if kind == "Expand":
        wanted = draw(st.sampled_from([shape, shape[-1:], (2, *shape), (1,) * rank]))
        return (
            kind,
            ["", "s"],
            {},
            {"s": np.array(wanted, np.int64)},
            (np.broadcast_shapes(shape, wanted)),
        )
    return "Relu", [""], {}, {}, shape


@st.composite
def chains(draw):
    """A model of a chain whose values are read again here and there; some sizes have names."""
    shape, value = (ROWS, COLUMNS), "x"
    nodes, initializers, known = [], [], [("x", shape)]
    for number in range(draw(st.integers(2, 7))):
        if draw(st.integers(0, 4)) == 0:
            value, shape = draw(st.sampled_from(known))
        kind, inputs, attributes, constants, shape = draw(steps(shape))
        if len(shape) > 5 or np.prod(shape) > 100:
            break
        names = {"": value, None: "", **{name: f"{name}{number}" for name in constants}}
        initializers += [
            numpy_helper.from_array(np.asarray(item), names[name])
            for name, item in constants.items()
        ]
        value = f"v{number}"
        nodes.append(
            helper.make_node(kind, [names[name] for name in inputs], [value], **attributes)
        )
        known.append((value, shape))
    results = draw(st.lists(st.sampled_from(known[1:]), min_size=1, max_size=2, unique=True))
    results = dict.fromkeys([*(name for name, _ in results), known[-1][0]])
    ranks = dict(known)
    first = draw(st.sampled_from([ROWS, "N"]))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", 1, [first, COLUMNS])],
        [helper.make_tensor_value_info(name, 1, [None] * len(ranks[name])) for name in results],
        initializers,
    )
    opset = draw(st.sampled_from([13, 17]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(chains(), st.integers(0, 5))
def test_random_chains_compute_the_same(proto, seed):
    after, _ = compiled(proto)
    feeds = feeds_of(proto, ROWS, seed)
    assert_same_numbers(run_in_onnxruntime(proto, feeds), run_in_onnxruntime(after, feeds), 1e-5)


def test_a_second_run_finds_nothing():
    text = """g (float[2,3] x) => (float[?,?] y) <int64[2] s = {3, 2}, float zero = {0}> {
        a = Flatten(x) b = Reshape(a, s) c = Transpose(b) d = Transpose(c) e = Add(d, zero)
        f = Relu(e) y = Clip(f, zero) }"""
    once, _ = compiled(model_of(text, ir_version=8))
    twice, report = compiled(once)
    assert twice == once
    assert not any(report.matches.values())


def test_a_new_constant_of_an_old_model_is_a_node():
    """Before IR version 4 every initializer is an input too."""
    before = model_of("g (float[2,3,4] x) => (float[?,?] y) { a = Flatten(x) y = Neg(a) }", opset=9)
    before.ir_version = 3
    after, _ = compiled(before)
    assert [node.op_type for node in after.graph.node] == ["Constant", "Reshape", "Neg"]
    assert not after.graph.initializer
