"""Weights as constants: found among the inputs of a compiled graph."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, ParamAOTInput, PlainAOTInput
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import is_fake

from bringup.compiler.aten import ordinary_torch
from bringup.compiler.dynamo import root_and_path
from bringup.compiler.inner_compiler import BoxedFunction

_SCOPE = re.compile(r"_(?:modules|parameters|buffers)\['([^']+)'\]")


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer that is input number `index` of what AOT autograd was given, and then
    (see `placed`) of the graph that it made.

    `argument` is its number among the arguments of the Dynamo graph, and `source` Dynamo's word for
    where it is; None for one of the graph's own parameters and buffers. `root` is the word for the
    outermost module that owns it, where there is one, and `path` goes on from there.
    """

    index: int
    name: str
    tensor: Any
    argument: int | None = None
    source: Any = None
    root: str | None = None
    path: str = ""


def weights_of(module: Any, example_inputs: Sequence[Any]) -> list[Weight]:
    own = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    weights = [Weight(index, name, tensor) for index, (name, tensor) in enumerate(own)]
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, (node, example) in enumerate(zip(placeholders, example_inputs, strict=True)):
        if isinstance(example, torch.Tensor) and _is_static(node, example) and not is_fake(example):
            source = getattr(node.meta.get("grapharg"), "source", None)
            root, path = (None, "") if source is None else root_and_path(source)
            place = len(own) + index
            weights.append(Weight(place, _name_of(node), example, index, source, root, path))
    return weights


def placed(aten: Any, weights: Sequence[Weight]) -> list[Weight]:
    """Return the weights by their positions among the inputs of a graph that AOT autograd made.

    It drops inputs that are given twice, and puts one input in front in the place of several that
    share memory and are written; weights that went that way, or were taken apart (tensor
    subclasses), are left out.
    """
    positions: dict[object, int] = {}
    for position, node in enumerate(aten.graph.find_nodes(op="placeholder")):
        origin = node.meta.get("desc")
        if isinstance(origin, PlainAOTInput):
            positions[origin.idx] = position
        elif isinstance(origin, (ParamAOTInput, BufferAOTInput)):
            positions[origin.target] = position
    found = []
    for weight in weights:
        key = weight.name if weight.argument is None else weight.argument
        if key in positions:
            found.append(dataclasses.replace(weight, index=positions[key]))
    return found


def freeze_weights(aten: Any, weights: Sequence[Weight]) -> frozenset[str]:
    """Let the graph read constants instead of those of its inputs that are weights.

    `weights` are as `placed` gives them, none of them written by the graph. The inputs stay in the
    signature. Returns the names of the constants, which share memory with the weights.
    """
    placeholders = [node for node in aten.graph.nodes if node.op == "placeholder"]
    if not weights:
        return frozenset()
    first = next(node for node in aten.graph.nodes if node.op != "placeholder")
    names = [f"_frozen_{count}" for count in range(len(weights))]
    for name, weight in zip(names, weights, strict=True):
        node = placeholders[weight.index]
        with ordinary_torch():
            aten.register_buffer(name, weight.tensor.detach(), persistent=False)
        with aten.graph.inserting_before(first):
            constant = aten.graph.get_attr(name)
        constant.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(constant)
    aten.recompile()
    return frozenset(names)


@dataclass(frozen=True)
class Built:
    """A compiled graph: what runs it, the weights that it froze, and their constants."""

    run: BoxedFunction
    frozen: Sequence[Weight]
    constants: Sequence[Any]


def constants_of(aten: Any) -> list[Any]:
    values = [
        getattr(aten, str(node.target), None) for node in aten.graph.find_nodes(op="get_attr")
    ]
    return [value for value in values if isinstance(value, torch.Tensor)]


def drop_unused_constants(aten: Any) -> None:
    """Forget a graph's tensors that no operator reads any more: packed weights have copies."""
    nodes = aten.graph.find_nodes(op="get_attr")
    used = {node.target for node in nodes if node.users}
    for node in nodes:
        if not node.users:
            aten.graph.erase_node(node)
            if node.target not in used and hasattr(aten, str(node.target)):
                delattr(aten, str(node.target))
    aten.recompile()


def _is_static(node: Any, example: Any) -> bool:
    static = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    return static is not None or isinstance(example, torch.nn.Parameter)


def _name_of(node: Any) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    text = name() if callable(name) else str(name)
    return ".".join(_SCOPE.findall(text)) or text or str(node.target)


def written_inputs() -> frozenset[int]:
    """Return the positions of the inputs that the graph writes which AOT autograd is compiling."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return frozenset()
    return frozenset(index for index, info in enumerate(metadata.input_info) if info.mutates_data)
