"""Which higher-order operators only compute: those that AOT autograd and export make."""

from __future__ import annotations

import operator

import torch
from torch import fx

_COPYING = frozenset({"auto_functionalized", "auto_functionalized_v2"})
"""Write copies of the operands, whatever the operator that they call writes."""
_FUNCTIONAL = frozenset(
    {
        *("with_effects", "triton_kernel_wrapper_functional", "out_dtype"),
        *("cond", "while_loop", "while_loop_stack_output"),
        *("scan", "map_impl", "associative_scan"),
        *("invoke_subgraph", "flex_attention", "flex_attention_backward"),
    }
)
"""Write nothing and return new memory where the graphs that they call do."""


def writes_nothing(node: fx.Node) -> bool:
    """Return whether a higher-order call writes no operand and returns its own memory."""
    name = node.target.name()
    if name in _COPYING:
        return True
    if name not in _FUNCTIONAL:
        return False
    owner = node.graph.owning_module
    operands = [item for item in node.all_input_nodes if item.op == "get_attr"]
    bodies = [getattr(owner, str(item.target), None) for item in operands]
    return all(_is_functional(body) for body in bodies if isinstance(body, fx.GraphModule))


def _is_functional(body: fx.GraphModule) -> bool:
    results = body.graph.output_node().all_input_nodes
    return all(map(_only_computes, body.graph.nodes)) and not any(map(_may_alias, results))


def _only_computes(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return writes_nothing(node)
    return getattr(node.target, "__module__", None) in ("_operator", "math", "torch")


def _may_alias(node: fx.Node) -> bool:
    """Return whether a result of a body may be an operand of it, or a view of one."""
    if node.target is operator.getitem:
        return _may_alias(node.args[0])
    if node.op != "call_function":
        return not isinstance(node.meta.get("val"), (int, torch.SymInt))
    if isinstance(node.target, torch._ops.OpOverload):
        return any(item.alias_info is not None for item in node.target._schema.returns)
    return False
