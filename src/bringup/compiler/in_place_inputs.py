"""Inputs that a model writes, such as key-value caches, are written where they lie.

AOT autograd makes a graph that computes the new content of a written input as a result, and copies
it into the input behind the graph. Here the graph writes it: by the in-place form of the operators
that changed it (one row of a cache instead of all of it), or by a copy as its last step.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._library.utils import is_inplace

from bringup.compiler.functionalized import Wrapped, unwrap, wrapped, written_operand

_ATEN = torch.ops.aten


def write_inputs_in_place(module: Any, allowed: Collection[int]) -> int:
    """Let a graph of ATen operators write those of its inputs that it computes new content for.

    `allowed` are the positions of those that may be written. Returns how many inputs it writes now;
    others stay results, which AOT autograd copies.
    """
    output = module.graph.output_node()
    results = list(output.args[0])
    sources = output.meta.get("desc") or [None] * len(results)
    placeholders = module.graph.find_nodes(op="placeholder")
    inputs = {node.meta.get("desc"): index for index, node in enumerate(placeholders)}
    count = 0
    for position, source in enumerate(sources):
        if not isinstance(source, InputMutationAOTOutput):
            continue
        index = inputs.get(source.mutated_input)
        if index in allowed and _write(module.graph, placeholders[index], results[position]):
            results[position] = placeholders[index]
            output.args = (tuple(results),)
            count += 1
    if count:
        module.recompile()
    return count


def unwrap_writes(module: Any) -> int:
    """Let a graph, after the last pass, call writing operators that AOT autograd wrapped by
    themselves: on copies, but for what `write_inputs_in_place` left to them, and memory that
    nothing reads later. Returns how many calls there were.
    """
    return unwrap(module, _is_dead_after)


def _is_dead_after(operand: Any, call: Wrapped, number: int) -> bool:
    if operand.op != "call_function" or _is_view(operand):
        return False
    same_memory = _aliases(operand)
    readers = {user for node in same_memory for user in node.users}
    return not any(reader > call.node for reader in readers) and not any(
        item in same_memory for item in call.reads_but(number)
    )


def _write(graph: Any, target: Any, value: Any) -> bool:
    """Return whether `target` now gets what `value` computes."""
    if not isinstance(value, torch.fx.Node) or value.op != "call_function":
        return False
    output = graph.output_node()
    if len(_results(output, value)) != 1 or any(_results(output, n) for n in _aliases(target)):
        return False
    steps = _steps_from(target, value)
    if steps and _may_overwrite(graph, target, steps):
        for step in steps:
            _write_step(graph, step)
        return True
    with graph.inserting_before(output):
        graph.call_function(_ATEN.copy_.default, (target, value))
    return True


def _results(output: Any, node: Any) -> list[int]:
    return [index for index, item in enumerate(output.args[0]) if item is node]


def _steps_from(target: Any, value: Any) -> list[Any]:
    """Return the chain of operators from `target` to `value`; none if one has no in-place form."""
    steps: list[Any] = []
    while value is not target:
        if not isinstance(value, torch.fx.Node) or value.op != "call_function" or not value.args:
            return []
        steps.append(value)
        found = written_operand(value)
        if found is not None:
            call, number = found
            value = call.operands[number]
        elif value.target in _WINDOWS or _in_place_form(value.target) is not None:
            value = value.args[0]
        else:
            return []
    return steps[::-1]


_WINDOWS = {
    _ATEN.slice_scatter.default: _ATEN.slice.Tensor,
    _ATEN.select_scatter.default: _ATEN.select.int,
}
"""Operators that write a part, and the view of that part: (base, part, *where)."""


def _written_by(step: Any) -> tuple[Wrapped, int] | None:
    """Return the wrapped call that does all writes of a step, and the number of its operand."""
    if step.target not in _WINDOWS:
        return written_operand(step)
    base, part, *where = step.args
    found = written_operand(part)
    if found is None or len(part.users) > 1:
        return None
    window = found[0].operands[found[1]]
    is_same = (
        isinstance(window, torch.fx.Node)
        and window.target is _WINDOWS[step.target]
        and (list(window.args), window.kwargs) == ([base, *where], step.kwargs)
    )
    return found if is_same else None


def _in_place_form(overload: Any) -> Any | None:
    """Return the in-place form, such as `index_copy_` of `index_copy`."""
    if not isinstance(overload, torch._ops.OpOverload):
        return None
    packet = getattr(getattr(torch.ops, overload.namespace), f"{overload._opname}_", None)
    form = getattr(packet, overload._overloadname, None)
    if form is None:
        return None
    ours, theirs = overload._schema.arguments, form._schema.arguments
    same = [(a.name, str(a.type)) for a in ours] == [(b.name, str(b.type)) for b in theirs]
    first = theirs[0].alias_info
    return form if same and first is not None and first.is_write else None


def _may_overwrite(graph: Any, target: Any, steps: Sequence[Any]) -> bool:
    """Return whether no later step reads the former content."""
    order = {node: index for index, node in enumerate(graph.nodes)}
    for base, step in zip([target, *steps], steps, strict=False):
        same_memory = _aliases(base)
        found = _written_by(step)
        writer = step if found is None else found[0].node
        read = [item for item in step.all_input_nodes if item is not base]
        if found is not None:
            read = found[0].reads_but(found[1])
        if any(item in same_memory for item in read):
            return False
        readers = {user for node in same_memory for user in node.users} - {step}
        if any(order[reader] > order[writer] for reader in readers):
            return False
        if step.meta["val"].dtype != base.meta["val"].dtype:
            return False
        if tuple(step.meta["val"].shape) != tuple(base.meta["val"].shape):
            return False
    return True


def _aliases(node: Any) -> set[Any]:
    """Return a node and all that may be a view of it."""
    found, pending = {node}, [node]
    while pending:
        item = pending.pop()
        users, written = list(item.users), written_operand(item)
        if written is not None and is_inplace(written[0].op):  # it returns what it writes
            users += written[0].node.users
        for user in users:
            if user not in found and _is_view(user):
                found.add(user)
                pending.append(user)
    return found


def _is_view(node: Any) -> bool:
    if node.op != "call_function":
        return bool(node.op != "output")
    if not isinstance(node.target, torch._ops.OpOverload):
        is_copy = wrapped(node) is not None or node.target in _PLAIN
        return node.target is operator.getitem or not is_copy
    return any(item.alias_info is not None for item in node.target._schema.returns) or (
        node.target in _SOMETIMES_VIEWS
    )


_PLAIN = (operator.add, operator.mul, operator.sub, operator.floordiv)  # of sizes
_SOMETIMES_VIEWS = (
    *(_ATEN.reshape.default, _ATEN.contiguous.default, _ATEN._to_copy.default),
    _ATEN._unsafe_view.default,
)


def _write_step(graph: Any, step: Any) -> None:
    base = step.args[0]
    found = _written_by(step)
    with graph.inserting_before(step):
        if found is not None:
            call, number = found
            call.in_place.add(number)
            step.replace_all_uses_with(base if step.target in _WINDOWS else call.operands[number])
        elif step.target in _WINDOWS:
            _, part, *where = step.args
            window = graph.call_function(_WINDOWS[step.target], (base, *where), step.kwargs)
            graph.call_function(_ATEN.copy_.default, (window, part))
            step.replace_all_uses_with(base)
        else:
            written = graph.call_function(_in_place_form(step.target), step.args, step.kwargs)
            written.meta.update(step.meta)
            step.replace_all_uses_with(written)
    graph.erase_node(step)
