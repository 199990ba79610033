"""Which nodes stay the device's eager operators: generated code lacks their dtype or function."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphModulePass, get_hash_for_files
from torch.utils._pytree import tree_leaves

from bringup.compiler.inductor.pairs import compute_pairs
from bringup.compiler.inductor.search import Generated


class EagerNodes(CustomGraphModulePass):  # type: ignore[misc]
    """Marks these nodes for Inductor, after its own passes over a graph.

    What it marked is counted by operator and reason in `torch._dynamo.utils.counters`, under
    `bringup_eager_nodes`.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type

    def uuid(self) -> object:
        """Return what Inductor's caches know the whole generator by: the content of its files, and
        what it writes for. The same in every process, so that there is nothing without an order;
        and asked for every graph, also where there is no code for the device.
        """
        from bringup.compiler.inductor.launch import known_language

        module, device = (
            torch.get_device_module(self._device_type),
            torch.device(self._device_type, 0),
        )
        if not module.is_initialized():
            return (_content(),)  # a forked process: there are no graphs for the device
        device = torch.device(self._device_type, 0)
        language = known_language(device)
        properties = module.get_device_properties(device)
        return (_content(), language, properties.arch, sorted(map(str, properties.dtypes)))

    def __call__(self, gm: Any) -> None:
        from bringup.compiler.inductor.launch import dtypes_of

        _keep_what_is_overwritten(gm.graph)
        _copy_negative_inputs(gm.graph, self._device_type)
        compute_pairs(gm.graph, self._device_type, dtypes_of(torch.device(self._device_type, 0)))
        for node in gm.graph.nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            if reason := self._reason(node) or _left_out(node):
                node.meta["should_fallback"] = True
                counters["bringup_eager_nodes"][f"{node.target}: {reason}"] += 1

    def _reason(self, node: Any) -> str:
        from bringup.compiler.inductor.functions import BITCASTS, TYPES
        from bringup.compiler.inductor.launch import dtypes_of

        dtypes = {value.dtype for value in _tensors(node)}
        is_view = node.target.is_view and node.target is not torch.ops.aten.view.dtype
        if not dtypes or is_view:
            return ""
        has = dtypes_of(torch.device(self._device_type, 0))
        if lacking := [dtype for dtype in dtypes if dtype not in has]:
            return f"there is no {', '.join(sorted(map(str, lacking)))} in generated code"
        if torch.float64 not in has and any(
            value.device.type == "cpu" and value.is_floating_point() for value in _tensors(node)
        ):
            return "numbers of the host are float64"
        if any(map(_is_negative, node.all_input_nodes)):
            return "its input has the negative bit"
        name = node.target._schema.name.split("::")[1]
        if _is_lowered_wrong(name, node):
            return "Inductor computes something else"
        if name in _lacking():
            return "generated code has no such function"
        if _accumulates(node) and (dtype := node.meta["val"].dtype) not in self._added(TYPES):
            return f"several workers cannot add {dtype} in one place"
        if node.target is torch.ops.aten.view.dtype:
            given = node.args[0].meta["val"].dtype
            if given is not node.args[1] and (given, node.args[1]) not in BITCASTS:
                return f"the bits of {given} are not taken for {node.args[1]}"
        return ""

    def _added(self, types: Mapping[torch.dtype, str]) -> set[torch.dtype]:
        from bringup.compiler.inductor.launch import known_language

        language = known_language(torch.device(self._device_type, 0))
        return {d for d, name in types.items() if language and name in language.atomics}


def _keep_what_is_overwritten(graph: Any) -> None:
    """Copy arguments whose values a later argument gets: torch's passes drop a swap's copies."""
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    written: set[Any] = set()
    for node in copies:
        place, source = node.args[:2]
        if source in written:
            with graph.inserting_before(copies[0]):
                kept = graph.call_function(torch.ops.aten.clone.default, (source,))
            kept.meta["val"] = source.meta["val"]
            node.replace_input_with(source, kept)
        written.add(place)


def _copy_negative_inputs(graph: Any, device_type: str) -> None:
    """Let nodes read a copy of an input with the negative bit: generated code sees its memory."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in filter(_is_negative, graph.find_nodes(op="placeholder")):
        if (value := node.meta["val"]).device.type != device_type:
            continue
        with graph.inserting_before(first):
            copied = graph.call_function(torch.ops.aten.clone.default, (node,))
        copied.meta["val"] = value.clone()
        written = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        kept = {copied, graph.output_node(), *(one for one in written if one.args[0] is node)}
        node.replace_all_uses_with(copied, delete_user_cb=lambda user, kept=kept: user not in kept)


def _is_negative(node: Any) -> bool:
    value = node.meta.get("val")
    return node.op == "placeholder" and isinstance(value, torch.Tensor) and value.is_neg()


def _is_lowered_wrong(name: str, node: Any) -> bool:
    """Return whether torch 2.13 lowers it wrong: windows over the edge, or another dtype."""
    if name == "avg_pool2d_backward":
        return bool(node.args[5])  # ceil_mode
    return name in ("any", "all") and node.args[0].meta["val"].dtype is torch.uint8


def _accumulates(node: Any) -> bool:
    """Return whether several elements of a result may be added to one, in any order."""
    name, given = node.target._schema.name, (*node.args[3:], *node.kwargs.values())
    if "index_put" in name:
        return True in given or name.endswith("accumulate")
    return "scatter_add" in name or ("scatter" in name and bool({"sum", "mean", "add"} & {*given}))


def _left_out(node: Any) -> str:
    search = Generated.now
    if search is None or node.target.is_view or next(_tensors(node), None) is None:
        return ""
    search.nodes.append(node)
    return "" if search.most is None or len(search.nodes) <= search.most else "it is left out"


def _tensors(node: Any) -> Iterator[torch.Tensor]:
    for one in (node, *node.all_input_nodes):
        for value in tree_leaves(one.meta.get("val")):
            if isinstance(value, torch.Tensor):
                yield value


@cache
def _lacking() -> frozenset[str]:
    """Return names of ATen whose lowering needs a function that generated code lacks."""
    from bringup.compiler.inductor.functions import Functions
    from bringup.compiler.inductor.torch_private import OpsHandler, pointwise_overrides_data

    names = {name for name in dir(OpsHandler) if not name.startswith("_")}
    lacking = {name for name in names if Functions._is_unimplemented(name)}
    named = {pointwise_overrides_data[n].name for n in lacking if n in pointwise_overrides_data}
    return frozenset(named | {name for name in lacking if hasattr(torch.ops.aten, name)})


@cache
def _content() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    spec = importlib.util.find_spec("bringup.jit.source.c_loops")
    found = (*map(str, files), *((spec.origin,) if spec and spec.origin else ()))
    return str(get_hash_for_files(found))
