"""Rewriting ONNX models: one RMSNorm rule over a chain of blocks of 1k to 50k nodes, against
onnxscript's rewriter on the same model.

`rewrite` starts from a loaded model, and builds the replacement for every match, as onnxscript's
rules do; `file` also counts reading the proto and writing it back; `rewrite, built once` is a pass
that builds its replacement once. The
model states the shape of every value, as exporters do. Models are loaded anew for every round,
outside of the clock of `rewrite`, which counts processor time. Both systems have run once before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks._harness import Row, missing, row
from bringup import compiler, ir, passes

_BLOCK = 10  # nodes, six of them an RMSNorm
_WIDTH = 8
SIZES = {1_000: 7, 10_000: 3, 50_000: 3}  # nodes, and rounds
_NAME = "BenchmarkOnnxRmsNorm"
_ONCE = f"{_NAME}Once"
_PEERS = {"rewrite": "rewrite", "rewrite, built once": "rewrite", "file": "file"}
_BUDGETS = {"rewrite": 1 / 4, "rewrite, built once": 1 / 5, "file": 2 / 3}


def chain(nodes: int) -> Any:
    """A model of `nodes` nodes: in each block an RMSNorm, a product, a bias, an activation."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    shape = ["batch", _WIDTH]
    made, infos, value = [], [], "x"
    for block in range(nodes // _BLOCK):
        names = iter(f"v{block}_{number}" for number in range(_BLOCK))
        square, mean, shifted, root, normal, scaled, linear, biased, active, total = names
        steps = [
            ("Pow", [value, "two"], square, shape),
            ("ReduceMean", [square], mean, ["batch", 1]),
            ("Add", [mean, "eps"], shifted, ["batch", 1]),
            ("Sqrt", [shifted], root, ["batch", 1]),
            ("Div", [value, root], normal, shape),
            ("Mul", [normal, "scale"], scaled, shape),
            ("MatMul", [scaled, "weight"], linear, shape),
            ("Add", [linear, "bias"], biased, shape),
            ("Relu", [biased], active, shape),
            ("Add", [active, value], total, shape),
        ]
        for kind, inputs, output, dims in steps:
            attributes = {"axes": [-1]} if kind == "ReduceMean" else {}
            made.append(helper.make_node(kind, inputs, [output], name=f"n_{output}", **attributes))
            infos.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, dims))
        value = total
    weights = {
        "two": np.float32(2),
        "eps": np.float32(1e-6),
        "scale": np.ones(_WIDTH, np.float32),
        "weight": np.eye(_WIDTH, dtype=np.float32),
        "bias": np.zeros(_WIDTH, np.float32),
    }
    graph = helper.make_graph(
        made,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        initializer=[
            numpy_helper.from_array(np.asarray(item), key) for key, item in weights.items()
        ],
        value_info=infos[:-1],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _register() -> None:
    stage = passes.PassStage.AFTER_INFER_SHAPE

    @passes.register_fusion_pass(name=_NAME, stage=stage)
    class RmsNorm(passes.PatternFusionPass):
        @passes.pattern
        def norm(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
            x, scale = inputs[0:2]
            op = x.builder.onnx
            square = op.Pow(x, passes.constant(2.0))
            mean = op.ReduceMean(square, axes=[-1])
            root = op.Sqrt(op.Add(mean, passes.constant(1e-6, rtol=1e-3)))
            return op.Mul(op.Div(x, root), scale)

        def replacement(self, match_result: passes.MatchResult) -> ir.Graph:
            builder = ir.GraphBuilder()
            x, scale = builder.create_inputs(2)
            made = builder.operators("com.example").RMSNorm(x, scale, epsilon=1e-6)
            return builder.build_and_reset(made)

    @passes.register_fusion_pass(name=_ONCE, stage=stage)
    class RmsNormOnce(RmsNorm):
        _fused: ir.Graph | None = None

        def replacement(self, match_result: passes.MatchResult) -> ir.Graph:
            if self._fused is None:
                self._fused = super().replacement(match_result)
            return self._fused  # it depends on nothing of the match


def _ours(model: Any, name: str = _NAME) -> int:
    return compiler.apply_passes(model, [name]).matches[name]


def _peer_rules() -> Any:
    from onnxscript import rewriter

    def norm(op: Any, x: Any, scale: Any) -> Any:
        root = op.Sqrt(op.Add(op.ReduceMean(op.Pow(x, 2.0), axes=[-1]), 1e-6))
        return op.Mul(op.Div(x, root), scale)

    def fused(op: Any, x: Any, scale: Any, **_: Any) -> Any:
        return op.RMSNorm(x, scale, epsilon=1e-6, _domain="com.example")

    return rewriter.pattern.RewriteRuleSet([rewriter.pattern.RewriteRule(norm, fused)])


def _timed(make: Callable[[], Any], action: Callable[[Any], int], expected: int) -> float:
    model = make()
    gc.collect()
    start = time.process_time_ns()
    found = action(model)
    spent = float(time.process_time_ns() - start)
    if found != expected:
        raise AssertionError(f"matched {found} times instead of {expected}")
    return spent


def _size_rows(nodes: int, rounds: int) -> list[Row]:
    import onnx_ir

    proto, matches, rules = chain(nodes), nodes // _BLOCK, _peer_rules()

    def ours_whole(given: Any) -> int:
        model = compiler.onnx.from_proto(given)
        found = _ours(model)
        model.to_proto()
        return found

    def peer_whole(given: Any) -> int:
        model = onnx_ir.serde.deserialize_model(given)
        found = rules.apply_to_model(model)
        onnx_ir.serde.serialize_model(model)
        return int(found)

    systems: dict[str, tuple[Callable[[], Any], Callable[[Any], int]]] = {
        "rewrite": (lambda: compiler.onnx.from_proto(proto), _ours),
        "rewrite, built once": (
            lambda: compiler.onnx.from_proto(proto),
            lambda model: _ours(model, _ONCE),
        ),
        "file": (lambda: proto, ours_whole),
        "peer's rewrite": (
            lambda: onnx_ir.serde.deserialize_model(proto),
            lambda model: int(rules.apply_to_model(model)),
        ),
        "peer's file": (lambda: proto, peer_whole),
    }
    samples: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, (make, action) in systems.items():
            samples[name].append(_timed(make, action, matches))
    label = f"{nodes // 1000}k nodes, {matches} matches"
    return [
        row(
            f"onnx {part} {label}",
            "onnxscript",
            samples[part],
            samples[f"peer's {_PEERS[part]}"],
            budget=budget,
        )
        for part, budget in _BUDGETS.items()
    ]


def run(*, quick: bool = False) -> list[Row]:
    """The rows; the pass is registered for the run only."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        return [missing("onnx rewrite", "onnxscript", str(error))]
    _register()
    try:
        _size_rows(100, 1)
        sizes = {1_000: 2} if quick else SIZES
        return [made for nodes, rounds in sizes.items() for made in _size_rows(nodes, rounds)]
    finally:
        for name in (_NAME, _ONCE):
            passes.unregister_pass(name)


def main() -> None:
    """Prints the rows."""
    from rich.console import Console

    from benchmarks.__main__ import table

    Console(width=150).print(table(run()))


if __name__ == "__main__":
    main()
