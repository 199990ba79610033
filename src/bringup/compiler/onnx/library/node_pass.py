"""The form that the passes of the library have: they look at nodes one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from bringup import ir, passes
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.compiler.onnx.library.facts import require
from bringup.compiler.onnx.types import joined
from bringup.errors import PassError

Rule = Callable[[ir.Node], "ir.Value | None"]


class NodePass(passes.FusionBasePass):
    """A pass with one rule for each operator of `rules`.

    A rule is the name of a method. It gets a node and returns what its first output is to be read
    from, or None where it has changed the node itself. `PassSkipException` leaves the node alone
    and says why. What a rule made is looked at again, so chains of any length become one node.
    """

    rules: ClassVar[Mapping[str, str]]

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Try every node in order; the reasons of those left alone go to the report."""
        self.graph, self.context = graph, context
        self._made: ir.Value | None = None
        kinds = {f"onnx::{name}": getattr(self, rule) for name, rule in self.rules.items()}
        nodes = [node for kind in kinds for node in graph.find(kind)]
        require(nodes, f"the graph has no {' or '.join(kinds)}")
        if len(kinds) > 1:
            nodes.sort(key=lambda node: node.order)
        for node in nodes:
            found: ir.Node | None = node
            while found is not None and graph.owns(found) and found.op_type in kinds:
                found = self._tried(found, kinds[found.op_type])

    def made(self, node: ir.Node, op_type: str, *inputs: object, **attributes: Any) -> ir.Value:
        """Return the only output of a new operator of ONNX in front of a node."""
        holder: Any = self.graph.inserting_before(node).op(
            f"onnx::{op_type}", *inputs, **attributes
        )
        self._made = holder.value
        return holder.value  # type: ignore[no-any-return]

    def _tried(self, node: ir.Node, rule: Rule) -> ir.Node | None:
        """Return the node to look at again; None where no rule applied."""
        self._made = None
        try:
            with self.graph.savepoint():
                return self._exchanged(node, rule(node))
        except (passes.PassSkipException, PassError) as reason:
            self.context.refuse(node.name, str(reason))
        except Exception as error:  # a node that is not valid costs the model nothing else
            self.context.refuse(node.name, f"{type(error).__name__}: {error}")
        return None

    def _exchanged(self, node: ir.Node, value: ir.Value | None) -> ir.Node | None:
        if value is None:
            passes.report_fuse([node], [node], self.context)
            return node
        old = node.outputs[0]
        is_new = value is self._made
        together = joined(old.meta, value.meta) if is_new else None
        if together is not None:  # a file may name a size that onnx infers a number for
            self.graph.set_meta(value, together)
        self.graph.replace_all_uses(old, value)
        passes.report_fuse([node], [value.node] if is_new else [], self.context)
        self.graph.erase_dead(node)
        is_left = self.graph.owns(node)  # a dropout counts as random
        if is_left and not any(output.users for output in node.outputs):
            self.graph.erase(node)
        return value.node if is_new else None


def constant_before(node: ir.Node, elements: Any, name: str = "constant") -> ir.Value:
    """Return a new constant for a node: an array."""
    return node.graph.add_constant(ConstantTensor.of_array(elements), name=f"{node.name}_{name}")
