"""Random ONNX models, sorted or not, with sizes that are numbers, names, other names or unknown:
the library, with and without folding, loses none of them, and onnxruntime computes the same.
"""

import random

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.sweeps.support import part

from bringup import compiler, passes
from bringup.compiler.onnx import register_library

SIZE = 3
ONE = ("Relu", "Neg", "Abs", "Identity", "Sigmoid", "Sqrt")
TWO = ("Add", "Sub", "Mul", "Min", "Max")


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """The library for ONNX, and no other pass."""
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    passes.clear_registered_passes()
    register_library()
    yield
    passes.clear_registered_passes()


class Drawn:
    """One random model: every value is a matrix of SIZE rows."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.opset = self.draw.choice((11, 13, 17, 18, 21))
        self.nodes, self.held, self.widths, self.infos = [], [], {"x": 4}, []
        for _ in range(self.draw.randint(2, 9)):
            self.step()
        names = [name for name in self.widths if name != "x"]
        self.outputs = self.draw.sample(names, k=min(len(names), self.draw.randint(1, 4)))
        self.model = self.made()

    def constant(self, array):
        name = f"c{len(self.held)}"
        self.held.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def value(self, width, op, inputs, **attributes):
        name = f"v{sum(len(node.output) for node in self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.widths[name] = width
        return name

    def step(self):
        source = self.draw.choice(list(self.widths))
        width = self.widths[source]
        kind = self.draw.choice(
            ("one", "two", "slices", "gemm", "constants", "branch", "cast", "pair")
        )
        getattr(self, kind)(source, width)

    def one(self, source, width):
        self.value(width, self.draw.choice(ONE), [source])

    def two(self, source, width):
        number = self.draw.choice((0.0, -0.0, 1.0, 2.0))
        self.value(width, self.draw.choice(TWO), [source, self.constant(np.float32(number))])

    def pair(self, source, width):
        alike = [name for name, other in self.widths.items() if other == width]
        self.value(width, self.draw.choice(TWO), [source, self.draw.choice(alike)])

    def slices(self, source, width):
        """One or two slices of the columns; those of four cut them in two."""
        at = self.constant(np.array([1]))
        cut = max(1, width // 2)
        for start, stop in [(0, cut), (cut, width)] if width > 1 else [(0, 1)]:
            ends = [self.constant(np.array([end])) for end in (start, stop)]
            self.value(stop - start, "Slice", [source, *ends, at])

    def gemm(self, source, width):
        wide = self.draw.choice((2, 4))
        weight = self.constant(np.ones((width, wide), np.float32))
        bias = self.draw.choice((np.zeros(wide, np.float32), np.ones(wide, np.float32)))
        self.value(wide, "Gemm", [source, weight, self.constant(bias)])

    def constants(self, source, width):
        """What is computed from constants, which may be a result."""
        held = [self.constant(np.full((SIZE, width), n, np.float32)) for n in (1.0, 2.0)]
        made = self.value(width, "Add", held)
        self.value(width, "Mul", [made, source])

    def branch(self, source, width):
        """An If, of which the condition may be known."""
        source = self.value(width, "Abs", [source])  # onnxruntime loses casts that branches read
        bodies = {}
        for name, op in (("then_branch", self.draw.choice(ONE)), ("else_branch", "Identity")):
            info = helper.make_tensor_value_info(
                f"{name}{len(self.widths)}", TensorProto.FLOAT, None
            )
            node = helper.make_node(op, [source], [info.name])
            bodies[name] = helper.make_graph([node], name, [], [info])
        known = self.constant(np.array(self.draw.random() < 0.5))
        if self.draw.random() < 0.3:
            known = "q"
        self.value(width, "If", [known], **bodies)

    def cast(self, source, width):
        made = self.value(width, "Cast", [source], to=TensorProto.DOUBLE)
        self.value(width, "Cast", [made], to=TensorProto.FLOAT)
        del self.widths[made]

    def size(self, number):
        """How a size is stated."""
        return self.draw.choice((number, "N", f"M{self.draw.randrange(9)}", None))

    def made(self):
        stated = []
        for name, width in self.widths.items():
            rows = [self.size(SIZE), self.draw.choice((width, self.size(width)))]
            shape = None if self.draw.random() < 0.1 else rows
            stated.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        infos = {info.name: info for info in stated}
        x = helper.make_tensor_value_info(
            "x", TensorProto.FLOAT, [self.draw.choice(("N", SIZE)), 4]
        )
        q = helper.make_tensor_value_info("q", TensorProto.BOOL, [])
        inner = [
            infos[n] for n in infos if n not in ("x", *self.outputs) and self.draw.random() < 0.5
        ]
        graph = helper.make_graph(
            self.nodes, "g", [x, q], [infos[n] for n in self.outputs], self.held, value_info=inner
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def results_of(model, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("block", part(range(60)))
def test_no_model_is_lost_and_all_compute_the_same(block):
    for seed in range(20 * block, 20 * block + 20):
        before = Drawn(seed).model
        feeds = {"x": np.arange(-4, 8, dtype=np.float32).reshape(SIZE, 4), "q": np.array(True)}
        expected = results_of(before, feeds)
        if seed % 3 == 0:  # onnxruntime does not sort by what branches read
            nodes = list(before.graph.node)
            random.Random(seed).shuffle(nodes)
            del before.graph.node[:]
            before.graph.node.extend(nodes)
        for fold in (False, True):
            after = onnx.ModelProto()
            after.CopyFrom(before)
            report = compiler.apply_passes(after, options={"fold": fold})
            assert not [item for item in report.results if item.status.value == "failed"], seed
            assert [info.name for info in after.graph.output] == [
                info.name for info in before.graph.output
            ]
            for one, other in zip(expected, results_of(after, feeds), strict=True):
                np.testing.assert_array_equal(one, other, err_msg=str(seed))
