"""Edits alone: 10k nodes with 2,500 pairs of operators (`mul`, `add`), each of which one rule
replaces by one operator, on graphs whose metadata are fake tensors or plain tensors of the device
`meta`, with one replacement for all matches or one built for each.

The peers: torch.fx's own `create_node`, `replace_all_uses_with` and `erase_node` for the same edits
without any matching, and `torch.fx.replace_pattern`. Processor time; graphs are made anew for every
round, outside of the clock, and nobody's time has `recompile` in it. Peak memory is that of the
process, which has torch in it: `python -m benchmarks.rewrite_pairs --nodes 50000` shows another
size.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import subgraph_rewriter

from benchmarks._harness import Row, row
from bringup import compiler, ir, passes

NODES = 10_000
ROUNDS = 5
_BUDGET = "at most 110 us a match"
_ATEN = torch.ops.aten


def graph_of_pairs(nodes: int, kind: str) -> fx.GraphModule:
    """A chain of `relu`, `mul`, `add`, `tanh`; `kind` is `"fake"` or `"meta"`."""
    mode = FakeTensorMode()

    def described() -> torch.Tensor:
        if kind == "meta":
            return torch.empty(4, 8, device="meta")
        with mode:
            return torch.empty(4, 8)

    graph = fx.Graph()

    def call(target: Any, *args: Any) -> fx.Node:
        node = graph.call_function(target, args)
        node.meta["val"] = described()
        return node

    x = graph.placeholder("x")
    x.meta["val"] = described()
    value = call(_ATEN.sigmoid.default, x)  # replace_pattern takes no two inputs that are one
    for _ in range(nodes // 4):
        product = call(_ATEN.mul.Tensor, call(_ATEN.relu.default, value), x)
        value = call(_ATEN.tanh.default, call(_ATEN.add.Tensor, product, value))
    graph.output(value)
    module = fx.GraphModule(torch.nn.Module(), graph)
    module.recompile = lambda: None  # type: ignore[method-assign, return-value, assignment]
    return module


class _MulAdd(passes.PatternFusionPass):
    shared = False
    _made: ir.Graph | None = None

    def patterns(self) -> Any:
        builder = ir.GraphBuilder("mul_add")
        a, b, c = builder.create_inputs(3)
        product = builder.op("aten::mul.Tensor", a, b)
        return builder.build_and_reset(builder.op("aten::add.Tensor", product, c))

    def replacement(self, match: passes.MatchResult) -> ir.Graph:
        if not self.shared or self._made is None:
            builder = ir.GraphBuilder("addcmul")
            a, b, c = builder.create_inputs(3)
            self._made = builder.build_and_reset(builder.op("aten::addcmul", c, a, b))
        return self._made


class _SharedMulAdd(_MulAdd):
    shared = True


def _ours(name: str, module: fx.GraphModule) -> int:
    return compiler.apply_passes(module, passes=[name]).results[0].matches


def _own_calls(module: fx.GraphModule) -> int:
    graph = module.graph
    sums = [node for node in graph.nodes if node.target is _ATEN.add.Tensor]
    for total in sums:
        product, value = total.args
        with graph.inserting_before(total):
            made = graph.create_node(
                "call_function", _ATEN.addcmul.default, (value, *product.args), {}
            )
        made.meta["val"] = total.meta["val"]
        total.replace_all_uses_with(made)
        graph.erase_node(total)
        graph.erase_node(product)
    return len(sums)


def _replace_pattern(module: fx.GraphModule) -> int:
    def pattern(a: Any, b: Any, c: Any) -> Any:
        return _ATEN.add.Tensor(_ATEN.mul.Tensor(a, b), c)

    def replacement(a: Any, b: Any, c: Any) -> Any:
        return _ATEN.addcmul.default(c, a, b)

    return len(subgraph_rewriter.replace_pattern(module, pattern, replacement))


def _timed(module: fx.GraphModule, action: Callable[[fx.GraphModule], int], matches: int) -> float:
    gc.collect()
    start = time.process_time_ns()
    found = action(module)
    spent = float(time.process_time_ns() - start)
    if found != matches:
        raise AssertionError(f"{found} matches instead of {matches}")
    return spent


def run(*, quick: bool = False, nodes: int = 0) -> list[Row]:
    """The rows; the passes are registered for the run only."""
    nodes = nodes or (1_000 if quick else NODES)
    matches = nodes // 4
    stage = passes.PassStage.AFTER_INFER_SHAPE
    known = {"_MulAdd": _MulAdd, "_SharedMulAdd": _SharedMulAdd}
    for name, kind in known.items():
        passes.register_fusion_pass(name=name, stage=stage)(kind)
    try:
        actions: dict[tuple[str, str], Callable[[fx.GraphModule], int]] = {
            (f"{kind}, {words}", kind): partial(_ours, name)
            for kind in ("fake", "meta")
            for name, words in (("_SharedMulAdd", "shared"), ("_MulAdd", "built for each"))
        }
        actions["torch.fx's own calls", "fake"] = _own_calls
        actions["torch.fx.replace_pattern", "fake"] = _replace_pattern
        samples: dict[str, list[float]] = {name: [] for name, _ in actions}
        for (_, kind), action in actions.items():
            _timed(graph_of_pairs(40, kind), action, 10)
        for _ in range(1 if quick else ROUNDS):
            for (name, kind), action in actions.items():
                samples[name].append(_timed(graph_of_pairs(nodes, kind), action, matches))
    finally:
        for name in known:
            passes.unregister_pass(name)
    rows = []
    for name, _ in list(actions)[:4]:
        each = statistics.median(samples[name]) / matches / 1e3
        note = f"{each:.0f} us a match; {_BUDGET}"
        rows += [
            row(f"pairs {nodes // 1000}k, {name}", peer, samples[name], samples[peer], note=note)
            for peer, _ in list(actions)[4:]
        ]
    return rows


def main() -> None:
    """Prints the rows of one size, and the peak memory of the process."""
    from benchmarks.__main__ import table

    parser = argparse.ArgumentParser(prog="python -m benchmarks.rewrite_pairs", description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    options = parser.parse_args()
    rows = run(nodes=options.nodes)
    console = Console(width=150)
    console.print(table(rows))
    for item in rows:
        console.print(f"{item.name}: {item.note}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    console.print(f"peak memory of the process: {peak} MiB")


if __name__ == "__main__":
    main()
