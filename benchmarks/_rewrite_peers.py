"""How each system rewrites an RMSNorm: bringup, torch.fx, Inductor and onnxscript.

A system is given a graph (made by `prepare`, not timed) and rewrites it in `apply`. A rule with
another epsilon matches nothing: it needs a number that the graph does not have. Nor does one that
squares the weight in place of the input, of which the graph has every call: only a search down to
the last node refuses it.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from benchmarks._rewrite_graphs import BLOCK_NORMS, replicated
from bringup import compiler, ir, kernels, passes

__all__ = [
    "SYSTEMS",
    "Rule",
    "System",
    "bringup_many",
    "bringup_mirror",
    "fx_many",
    "inductor_many",
    "missing_rules",
    "searched_rules",
]

_EPS = 1e-6
_aten = torch.ops.aten


@dataclass(frozen=True)
class System:
    """A rewriter.

    Attributes:
        name: what rows call it.
        prepare: makes a graph of so many blocks.
        apply: rewrites it by a rule; returns how often it matched.
    """

    name: str
    prepare: Callable[[int], Callable[[], Any]]
    apply: Callable[[Any, Rule], int]


@dataclass(frozen=True)
class Rule:
    """What is looked for: an RMSNorm with this epsilon, or what is none but looks like it."""

    eps: float = _EPS
    squares_weight: bool = False

    def squared(self, x: Any, weight: Any) -> Any:
        """The tensor whose mean square is taken."""
        return weight if self.squares_weight else x


def _rms_norm(x: Any, weight: Any, rule: Rule) -> Any:
    """The operators as the traced block has them."""
    mean = _aten.mean.dim(_aten.pow.Tensor_Scalar(rule.squared(x, weight), 2), [-1], True)
    inverse = _aten.rsqrt.default(_aten.add.Tensor(mean, rule.eps))
    return _aten.mul.Tensor(weight, _aten.mul.Tensor(x, inverse))


def missing_rules(count: int) -> list[Rule]:
    """So many whose number the graph does not have."""
    return [Rule((number + 2) * 1e-6) for number in range(count)]


def searched_rules(count: int) -> list[Rule]:
    """So many that only a search refuses."""
    return [Rule(squares_weight=True)] * count


def _fused(x: Any, weight: Any) -> Any:
    return torch.ops.bringup.rms_norm.default(x, weight, _EPS)


# bringup


def _bringup_class(rule: Rule) -> type[passes.PatternFusionPass]:
    class Norm(passes.PatternFusionPass):
        @passes.pattern
        def norm(self, inputs: passes.PatternInputs) -> ir.TensorHolder:
            x, weight = inputs[0], inputs[1]
            op = x.builder.op
            square = op("aten::pow.Tensor_Scalar", rule.squared(x, weight), 2)
            mean = op("aten::mean.dim", square, [-1], True)
            inverse = op("aten::rsqrt", op("aten::add.Tensor", mean, rule.eps))
            return op("aten::mul.Tensor", weight, op("aten::mul.Tensor", x, inverse))

        @functools.cached_property
        def fused(self) -> ir.Graph:
            builder = ir.GraphBuilder()
            made = builder.op("bringup::rms_norm", *builder.create_inputs(2), _EPS)
            return builder.build_and_reset(made)

        def replacement(self, match_result: passes.MatchResult) -> ir.Graph:
            return self.fused  # the same for every match, as those of the peers are

    return Norm


def _register(rule: Rule, number: int = 0) -> str:
    name = f"bench_{rule.eps!r}_{rule.squares_weight}_{number}"
    if name not in [item.pass_name for item in passes.get_registered_passes()]:
        stage = passes.PassStage.AFTER_INFER_SHAPE
        passes.register_fusion_pass(name=name, stage=stage)(_bringup_class(rule))
    return name


def _apply_bringup(module: Any, rule: Rule) -> int:
    name = _register(rule)
    return compiler.apply_passes(module, [name])[name].matches


def bringup_mirror(module: Any) -> None:
    """Mirroring alone: no pass runs."""
    compiler.apply_passes(module, [])


def bringup_many(rules: list[Rule]) -> Callable[[Any], Any]:
    """Runs one pass for each rule."""
    names = [_register(rule, number) for number, rule in enumerate(rules)]
    return lambda module: compiler.apply_passes(module, names)


# torch.fx


def _fx_pattern(rule: Rule) -> Callable[..., Any]:
    def pattern(x, weight):
        return _rms_norm(x, weight, rule)

    return pattern


def _apply_fx(module: Any, rule: Rule) -> int:
    return len(fx.subgraph_rewriter.replace_pattern(module, _fx_pattern(rule), _fused))


def fx_many(rules: list[Rule]) -> Callable[[Any], Any]:
    """Runs one matcher for each rule."""
    from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

    matchers = [
        SubgraphMatcher(
            fx.symbolic_trace(_fx_pattern(rule)).graph,
            match_output=False,
            remove_overlapping_matches=True,
        )
        for rule in rules
    ]
    return lambda module: [matcher.match(module.graph) for matcher in matchers]


# Inductor


def _tree(rule: Rule) -> Any:
    from torch._inductor.pattern_matcher import CallFunction, KeywordArg

    x, weight = KeywordArg("x"), KeywordArg("weight")
    square = CallFunction(_aten.pow.Tensor_Scalar, rule.squared(x, weight), 2)
    mean = CallFunction(_aten.mean.dim, square, [-1], True)
    inverse = CallFunction(_aten.rsqrt.default, CallFunction(_aten.add.Tensor, mean, rule.eps))
    product = CallFunction(_aten.mul.Tensor, x, inverse)
    return CallFunction(_aten.mul.Tensor, weight, product)


def _tree_pass(rules: list[Rule]) -> Any:
    from torch._inductor.pattern_matcher import PatternMatcherPass, register_graph_pattern

    matcher = PatternMatcherPass()
    for rule in rules:

        @register_graph_pattern(_tree(rule), pass_dict=matcher)
        def fuse(match: Any, x: Any, weight: Any) -> None:
            last = match.output_node()
            with match.graph.inserting_before(last):
                new = match.graph.call_function(
                    torch.ops.bringup.rms_norm.default, (x, weight, _EPS)
                )
            new.meta.update(last.meta)
            last.replace_all_uses_with(new)
            match.erase_nodes()

    return matcher


def _apply_tree(module: Any, rule: Rule) -> int:
    count = _tree_pass([rule]).apply(module.graph)
    module.recompile()
    return int(count)


def inductor_many(rules: list[Rule]) -> Callable[[Any], Any]:
    """Runs one table of a tree for each rule."""
    table = _tree_pass(rules)
    return lambda module: table.apply(module.graph)


def _apply_registered(module: Any, rule: Rule) -> int:
    from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement
    from torch._subclasses.fake_tensor import FakeTensorMode

    matcher = PatternMatcherPass()
    with FakeTensorMode():
        examples = [torch.empty(1, 8, 32), torch.empty(32)]
    register_replacement(_fx_pattern(rule), _fused, examples, fwd_only, matcher)
    count = matcher.apply(module.graph)
    module.recompile()
    return int(count)


# onnxscript


def _onnx_block(op: Any, x: Any, weight: Any) -> Any:
    """As many nodes as the block of the other systems has, with two norms among them."""
    import onnx_ir

    def number(value: float) -> Any:
        constant = onnx_ir.tensor(value, dtype=onnx_ir.DataType.FLOAT)
        return op.Constant(value=constant)

    for _ in range(BLOCK_NORMS):
        mean = op.ReduceMean(op.Pow(x, number(2.0)))
        inverse = op.Reciprocal(op.Sqrt(op.Add(mean, number(_EPS))))
        x = op.Mul(weight, op.Mul(x, inverse))
        for _ in range(16):
            x = op.Add(op.Relu(x), weight)
    return x


def _prepare_onnx(layers: int) -> Callable[[], Any]:
    import onnx_ir
    from onnxscript import ir as script_ir
    from onnxscript.rewriter._context import TapeBuilder

    def make() -> Any:
        kind = onnx_ir.TensorType(onnx_ir.DataType.FLOAT)
        x, weight = (onnx_ir.Value(name=name, type=kind) for name in ("x", "weight"))
        tape = TapeBuilder()
        value = x
        for _ in range(layers):
            value = _onnx_block(tape, value, weight)
        graph = script_ir.Graph(
            [x, weight], [value], nodes=list(tape.nodes), opset_imports={"": 20}, name="graph"
        )
        return script_ir.Model(graph, ir_version=10)

    return make


def _apply_onnx(model: Any, rule: Rule) -> int:
    from onnxscript.rewriter import pattern

    def target(op: Any, x: Any, weight: Any) -> Any:
        mean = op.ReduceMean(op.Pow(x, 2.0))
        inverse = op.Reciprocal(op.Sqrt(op.Add(mean, rule.eps)))
        return op.Mul(weight, op.Mul(x, inverse))

    def replacement(op: Any, x: Any, weight: Any) -> Any:
        return op.SimplifiedLayerNormalization(x, weight, epsilon=_EPS)

    rule = pattern.RewriteRule(target, replacement)
    return int(rule.apply_to_model(model))


def _systems() -> list[System]:
    kernels.load()
    systems = [
        System("bringup", replicated, _apply_bringup),
        System("torch.fx replace_pattern", replicated, _apply_fx),
        System("Inductor CallFunction tree", replicated, _apply_tree),
        System("Inductor register_replacement", replicated, _apply_registered),
    ]
    if importlib.util.find_spec("onnxscript"):
        systems.append(System("onnxscript rewriter", _prepare_onnx, _apply_onnx))
    return systems


SYSTEMS = _systems
