"""Running registered passes over a graph of any kind, in place."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup import ir
from bringup._native import has_torch_library
from bringup.compiler.pass_runs import load_and_select, remember, run, without_library
from bringup.errors import did_you_mean
from bringup.passes import PassDescriptor, PassReport, PluginReport

if TYPE_CHECKING:
    from torch import fx
    from torch.export import ExportedProgram


_ONNX_MODEL = "bringup.compiler.onnx.model.OnnxModel"


def apply_passes(
    target: Any, passes: Sequence[str] | None = None, *, options: Mapping[str, object] | None = None
) -> PassReport:
    """Load the pass plugins and run passes over a graph, in place.

    Args:
        target: a `torch.fx.GraphModule` of ATen operators, a `torch.export.ExportedProgram` (its
            weights count as constants), an `onnx.OnnxModel` or `onnx.ModelProto` with the graphs
            that nodes call and its functions, or an `ir.Graph`.
        passes: names of registered passes; None for all, bringup's library on ATen graphs among
            them.
        options: what passes may read. `pass_switch`: on or off by name; `pass_versions`: the
            version by name; `verify`: rewrites are run against what they replace; `dump_passes`: a
            folder for graphs; `fold`: what depends on an ONNX model's constants is computed once;
            `freeze`: a `GraphModule`'s tensors are constants.

    Returns matches, near misses and edits per pass. Raises `PassError` when a pass failed (its
    edits are undone, those of others stay), `ValueError` for an unknown name or an option that
    looks misspelt, `TypeError` for another kind of target or option.

    Examples:
        >>> from bringup import compiler
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> module = make_fx(lambda x: x / 2 * 2, tracing_mode="fake")(torch.ones(4))
        >>> compiler.apply_passes(module, passes=[]).matches
        {}
    """
    _check_options(options)
    plugins, selected = load_and_select(passes, options or {}, library=not _is_onnx(target))
    if isinstance(target, ir.Graph) and not target.is_bound:
        from bringup.compiler.aten import AtenDialect

        target.bind(AtenDialect())
    if passes is None and not (_is_aten(target) and has_torch_library()):
        selected = without_library(selected)
    if isinstance(target, ir.Graph):
        return remember(run(target, selected, options or {}, plugins))
    if _is_fx(target):
        return _rewrite_fx(target, selected, plugins, options or {})
    if _is_onnx(target):
        from bringup.compiler.onnx.model import opened

        with opened(target) as model:
            return _rewrite_all(model.graphs, selected, plugins, options or {})
    hint = ": load the file with compiler.onnx.load" if isinstance(target, (str, Path)) else ""
    raise TypeError(
        "apply_passes takes a torch.fx.GraphModule, a torch.export.ExportedProgram, an ONNX model "
        f"or an ir.Graph, got {type(target).__name__}{hint}"
    )


def _is_aten(target: object) -> bool:
    if not isinstance(target, ir.Graph):
        return _is_fx(target)
    aten = sys.modules.get("bringup.compiler.aten")
    return aten is not None and isinstance(target.dialect, aten.AtenDialect)


def _is_fx(target: object) -> bool:
    """Return whether it is a graph of torch; imports torch for nothing else."""
    if "torch" not in sys.modules:
        return False
    from torch import fx
    from torch.export import ExportedProgram

    return isinstance(target, (fx.GraphModule, ExportedProgram))


def _rewrite_fx(
    target: fx.GraphModule | ExportedProgram,
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    options: Mapping[str, object],
) -> PassReport:
    from torch import fx

    from bringup.compiler.export import frozen_program
    from bringup.compiler.graph_modules import rewrite

    if isinstance(target, fx.GraphModule):
        constants = _tensors_of(target) if options.get("freeze") else frozenset()
        return rewrite(target, selected, plugins, options=options, constants=constants)
    with frozen_program(target) as constants:
        return rewrite(target.graph_module, selected, plugins, options=options, constants=constants)


def _tensors_of(module: fx.GraphModule) -> frozenset[str]:
    """Return the names of the tensors that a graph reads from its module."""
    import torch

    names = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    return frozenset(n for n in names if isinstance(getattr(module, n, None), torch.Tensor))


def _is_onnx(target: object) -> bool:
    """Return whether it is an ONNX model; imports onnx for nothing else."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(target).__mro__}
    return not names.isdisjoint(("onnx.onnx_ml_pb2.ModelProto", _ONNX_MODEL))


def _rewrite_all(
    graphs: Sequence[ir.Graph],
    selected: Sequence[PassDescriptor],
    plugins: PluginReport,
    options: Mapping[str, object],
) -> PassReport:
    fold = bool(options.get("fold"))
    whole, *others = [run(graph, selected, options, plugins, fold=fold) for graph in graphs]
    for report in others:
        whole.results.extend(report.results)
        whole.folded += report.folded
    return remember(whole)


_OPTIONS = ("dump_passes", "pass_switch", "pass_versions", "verify")


def _check_options(options: object) -> None:
    """Refuse an option whose name is nearly a known one; passes may read any other."""
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options must map names to values, got {options!r}")
    for name in options or {}:
        hint = did_you_mean(name, _OPTIONS, cutoff=0.85)
        if hint and name not in _OPTIONS:
            raise ValueError(f"there is no option {name!r}{hint}")
