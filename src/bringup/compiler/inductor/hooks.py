"""Passes inside Inductor: as its custom graph passes, with an identity for its caches.

`docs/passes/stages.md` has the table of stages, hooks and operator vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.experimental.proxy_tensor import make_fx

from bringup._native import has_torch_library
from bringup._version import __version__
from bringup.compiler.graph_modules import rewrite
from bringup.compiler.pass_runs import extend_last_report, load_and_select, without_library
from bringup.passes import PassDescriptor, PassStage, PluginReport

HOOKS: Mapping[str, tuple[PassStage, ...]] = {
    "joint_custom_pre_pass": (PassStage.BEFORE_INFER_SHAPE, PassStage.AFTER_INFER_SHAPE),
    "joint_custom_post_pass": (PassStage.AFTER_BUILTIN_FUSION_PASS,),
    "post_grad_custom_post_pass": (PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE,),
}
"""Which of Inductor's custom passes runs which stages."""
_ATEN_HOOK = "joint_custom_pre_pass"


class InductorPass(CustomGraphPass):  # type: ignore[misc]
    """The passes of some stages, as one custom graph pass of Inductor.

    Args:
        selected: the passes, in running order.
        plugins: what was loaded when they were selected.
        options: what passes may read with `context.get_option_value`.
        begins: whether a compile's report begins with these passes; otherwise they add to it.
    """

    def __init__(
        self,
        selected: Sequence[PassDescriptor],
        plugins: PluginReport,
        options: Mapping[str, object],
        *,
        begins: bool,
    ) -> None:
        self.selected = tuple(selected)
        self.begins = begins
        self._plugins = plugins
        self._options = dict(options)

    def __call__(self, graph: Any) -> None:
        """Rewrite one FX graph of Inductor, in place. Raises `PassError` when a pass fails."""
        module = graph.owning_module
        with nullcontext() if self.begins else extend_last_report():
            rewrite(module, self.selected, self._plugins, options=self._options)
        if graph.find_nodes(op="get_attr"):
            _allow_constants(graph)

    def uuid(self) -> object | None:
        """Return what Inductor's caches know these passes by: sources, versions, order and options.

        None, which turns caching off, when the source of a pass is unknown.
        """
        if not all(item.source_digest for item in self.selected):
            return None
        passes = tuple(
            (repr(sorted(item.as_dict().items())), item.source_digest) for item in self.selected
        )
        return ("bringup", __version__, passes, repr(sorted(self._options.items())))


def inductor_hooks(
    passes: Sequence[str] | None = None, *, options: Mapping[str, object] | None = None
) -> dict[str, InductorPass]:
    """Return registered passes as options of plain Inductor:
    `torch.compile(model, options=compiler.inductor_hooks())`.

    The passes then see what Inductor sees: ATen after its decompositions.

    Args:
        passes: names of registered passes; None for all of them.
        options: what passes may read with `context.get_option_value`.

    One custom pass is returned for each hook that has passes to run. Raises `ValueError` for a name
    that is not registered.
    """
    plugins, selected = load_and_select(passes, options or {})
    if passes is None and not has_torch_library():
        selected = without_library(selected)
    hooks = _hooks(selected, plugins, options or {}, HOOKS)
    for hook in list(hooks.values())[:1]:
        hook.begins = True
    return hooks


def passes_before_inductor(selected: Sequence[PassDescriptor]) -> list[PassDescriptor]:
    """Return those that `backend="bringup"` runs on ATen as AOT autograd writes it."""
    return [item for item in selected if item.stage in HOOKS[_ATEN_HOOK]]


def compile_with_inductor(
    aten: Any,
    inputs: Sequence[Any],
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    options: Mapping[str, object],
) -> Any:
    """Generate code for a rewritten ATen graph; later stages run in Inductor's hooks.

    Passes see ATen as AOT autograd writes it and Inductor needs its decompositions, so the graph is
    traced again with these; what its caches see is the rewritten graph.
    """
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    later = {hook: stages for hook, stages in HOOKS.items() if hook != _ATEN_HOOK}
    hooks = _hooks(selected, plugins, options, later)
    mode = detect_fake_mode(inputs)
    with patch.object(mode, "allow_non_fake_inputs", True), mode, torch.no_grad():
        decomposed = make_fx(aten, decomposition_table=select_decomp_table())(*inputs)
        with config.patch(hooks):
            decomposed = _recursive_joint_graph_passes(decomposed)
            return compile_fx_inner(decomposed, inputs)


def _allow_constants(graph: Any) -> None:
    """Let Inductor infer shapes again where a pass put real tensors into the graph."""
    mode = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    if mode is not None:
        mode.allow_non_fake_inputs = True


def _hooks(
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    options: Mapping[str, object],
    table: Mapping[str, tuple[PassStage, ...]],
) -> dict[str, InductorPass]:
    chosen = {
        hook: [item for item in selected if item.stage in stages] for hook, stages in table.items()
    }
    return {
        hook: InductorPass(some, plugins, options, begins=False)
        for hook, some in chosen.items()
        if some
    }
