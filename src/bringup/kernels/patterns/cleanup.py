"""Copies that nothing needs, what is computed twice, and what is computed from no input at all."""

from __future__ import annotations

from typing import Any, ClassVar

from bringup import ir, passes
from bringup.kernels.patterns._support import KNOWN_AT_RUN_TIME, NodePass, refuse_writers, require
from bringup.passes.run.folding import fold_constants

_MOST_ELEMENTS = 1 << 22


class _Returned:
    """The values whose memory a result of the graph has, before any edit."""

    def __init__(self, graph: ir.Graph) -> None:
        self._aliases = ir.AliasAnalysis(graph, track_views=True)
        self._roots = {self._aliases.root(value) for value in graph.outputs}

    def __contains__(self, value: ir.Value) -> bool:
        return self._aliases.root(value) in self._roots


class DropCopies(NodePass):
    """Copies (dropout in evaluation mode leaves one), views and expansions to the same shape, and
    slices of everything (torch leaves them in a graph where sizes are symbolic).

    A copy stays where a result shares its memory: what the caller does to that result must not
    reach another.
    """

    op_types: ClassVar[tuple[str, ...]] = (
        "aten::clone",
        "aten::expand",
        "aten::slice.Tensor",
        "aten::view",
        "aten::_unsafe_view",
    )

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Try every copy."""
        self._returned = _Returned(graph)
        super().run(graph, context)

    def rewrite(self, node: ir.Node) -> None:
        """Let readers read the source."""
        source = node.argument("self")
        assert isinstance(source, ir.Value), "the schema says so"
        before, after = source.desc, node.output.desc
        if before is None or before != after:
            raise passes.PassSkipException(f"it makes {after} of {before}")
        require(source.node.op_type != ir.INPUT, "it copies an input of the graph")
        require(_is_lazy(source) == _is_lazy(node.output), "it resolves a conjugate or negative")
        require(node.output not in self._returned, "a result of the graph shares its memory")
        passes.report_fuse([node], [], self.context)
        self.graph.replace_all_uses(node.output, source)
        self.graph.erase_dead(node)


def _is_lazy(value: ir.Value) -> tuple[bool, bool]:
    meta: Any = value.meta
    return meta.is_conj(), meta.is_neg()


class CollapseViews(DropCopies):
    """A view of a view is one view of the source, and none where the shape is the source's: what
    is left between operators when those around them were joined.
    """

    op_types: ClassVar[tuple[str, ...]] = ("aten::view", "aten::_unsafe_view")

    def rewrite(self, node: ir.Node) -> None:
        """Look at the source of what it looks at."""
        inner = node.inputs[0].node
        if inner.op_type not in self.op_types:
            return super().rewrite(node)
        require(node.output not in self._returned, "a result of the graph shares its memory")
        source, desc = inner.inputs[0], node.output.desc
        if source.desc == desc and source.node.op_type != ir.INPUT:
            self.graph.replace_all_uses(node.output, source)
        else:
            op = self.graph.inserting_before(node).op
            view = op(node.op_type, source, node.argument("size"))
            found = view.value.desc
            require(found == desc, f"a view of the source would be {found} instead of {desc}")
            self.graph.replace_all_uses(node.output, view)
        passes.report_fuse([node], [], self.context)
        self.graph.erase_dead(node)
        return None


class FoldFactories(passes.FusionBasePass):
    """What depends on no input and has static sizes (a causal mask from `arange`) is computed now.

    Where sizes differ from call to call, so do the numbers: there is nothing to compute before.
    Results of more than four million elements are left to the graph, and so is what is random or
    shares memory with a result of the graph.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Make constants of the factories, then fold what reads only constants."""
        refuse_writers(graph)
        assert graph.dialect is not None, "factories are evaluated by the graph's dialect"
        factories = [node for node in graph.nodes if _is_factory(node)]
        returned = _Returned(graph)
        for node in factories:
            try:
                _require_constant(node)
                shared = node.output in returned
                require(not shared, "a result of the graph shares its memory")
            except passes.PassSkipException as reason:
                context.refuse(node.name, str(reason))
                continue
            (payload,) = graph.dialect.evaluate(node, {})
            graph.replace_all_uses(node.output, graph.add_constant(payload, name=node.name))
            graph.erase_dead(node)
        folded = fold_constants(graph)
        require(bool(factories) or folded > 0, "every tensor depends on an input of the graph")


def _is_factory(node: ir.Node) -> bool:
    """Return whether a node makes one tensor of numbers and sizes alone."""
    if not node.operator.parameters or len(node.outputs) != 1 or node.output.desc is None:
        return False
    return all(value.size is not None for value in node.inputs)


def _require_constant(node: ir.Node) -> None:
    require(node.pure, f"{node.op_type} is random or has effects")
    desc = node.output.desc
    assert desc is not None, "a factory makes a tensor"
    is_known = desc.shape.is_static and not node.inputs
    require(is_known, f"the {desc.shape} tensor is made of sizes {KNOWN_AT_RUN_TIME}")
    large = f"{desc.shape} has more than {_MOST_ELEMENTS} elements"
    require(desc.shape.numel <= _MOST_ELEMENTS, large)


class MergeEqual(passes.FusionBasePass):
    """What is computed again from the same values and arguments is read from the first: masks that
    every layer makes of the one mask, views of one tensor.

    What shares memory with a result of the graph stays, and so does what is random.
    """

    def run(self, graph: ir.Graph, context: passes.PassContext) -> None:
        """Look at every node once, in order: what an earlier merge made equal is found too."""
        refuse_writers(graph)
        returned = _Returned(graph)
        known: dict[object, ir.Node] = {}
        merged = 0
        for node in graph.nodes:
            if not node.operator.parameters or not node.pure or not node.outputs:
                continue
            if any(value in returned for value in node.outputs):
                continue
            first = known.setdefault(_call(node), node)
            if first is not node:
                for old, new in zip(node.outputs, first.outputs, strict=True):
                    graph.replace_all_uses(old, new)
                passes.report_fuse([node], [first], context)
                graph.erase_dead(node)
                merged += 1
        require(merged > 0, "no operator is called twice with the same arguments")


def _call(node: ir.Node) -> object:
    """Equal for nodes that compute the same."""
    return node.op_type, _key(node.arguments), _key(dict(node.keywords)), len(node.outputs)


def _key(argument: object) -> object:
    if isinstance(argument, ir.Value):
        return argument
    if isinstance(argument, (tuple, list)):
        return tuple([_key(item) for item in argument])
    if isinstance(argument, dict):
        return tuple([(name, _key(item)) for name, item in sorted(argument.items())])
    return type(argument), repr(argument)  # 1, True and 1.0 are equal in Python, and so are 0, -0.0
