"""Arguments that overlap in memory, one of them written: another function at each kind of overlap.

AOT autograd makes a graph for arguments that overlap as they did when it was traced, and nothing
compiles it anew when they overlap otherwise (pytorch #139789). So a compiled graph that writes
arguments looks at each call, and runs as Dynamo captured it where the overlap is another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    InputMutationAOTOutput,
    ParamAOTInput,
    PlainAOTInput,
)

from bringup import settings
from bringup._native import has_torch_library, torch_library

_LOG = settings.logger("compiler")
_Pair = tuple[int, int, int, int]


def written_arguments(aten: Any, count: int) -> set[int]:
    """Return which of `count` arguments an AOT graph writes; a base stands for all its views."""
    written: set[int] = set()
    for result in aten.graph.output_node().meta.get("desc") or ():
        if isinstance(result, InputMutationAOTOutput):
            source = result.mutated_input
            if isinstance(source, PlainAOTInput):
                written.add(source.idx)
            elif not isinstance(source, (ParamAOTInput, BufferAOTInput)):
                written.update(range(count))
    return written


def as_traced_or_eagerly(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    traced: Sequence[Any],
    written: set[int],
    name: str,
) -> Callable[..., Any]:
    """Return `compiled` where arguments overlap as the `traced` ones did, else `eager`."""
    tensors = [index for index, item in enumerate(traced) if isinstance(item, torch.Tensor)]
    if not written or len(tensors) < 2 or not has_torch_library():
        return compiled
    overlaps = torch_library("overlapping arguments").graphs.overlaps
    mask = bytes([index in written for index in range(len(traced))])
    expected = _traced_overlaps(traced, tensors, written)
    is_told = False

    def run(*arguments: Any) -> Any:
        nonlocal is_told
        if overlaps(arguments, mask) == expected:
            return compiled(*arguments)
        if not is_told:
            is_told = True
            _LOG.warning(
                "%s writes an argument that overlaps another one in memory, otherwise than when it "
                "was compiled: such calls run uncompiled; give it copies, or the same views each "
                "time",
                name,
            )
        return eager(*arguments)

    return run


def _traced_overlaps(
    traced: Sequence[Any], tensors: Sequence[int], written: set[int]
) -> list[_Pair] | None:
    """Return the overlaps of the traced arguments; None where they are not known."""
    try:
        spans = {index: _span(traced[index]) for index in tensors}
    except TypeError:  # a size that only the data tell
        return None
    return sorted(_pairs(traced, spans, written))


def _pairs(traced: Sequence[Any], spans: dict[int, range], written: set[int]) -> Iterator[_Pair]:
    storages = {index: traced[index].untyped_storage()._cdata for index in spans if spans[index]}
    for one in storages:
        for other in storages:
            if one < other and storages[one] == storages[other] and written & {one, other}:
                left, right = spans[one], spans[other]
                if left.start < right.stop and right.start < left.stop:
                    offsets = [_hint(traced[index].storage_offset()) for index in (one, other)]
                    yield one, offsets[0], other, offsets[1]


def _span(tensor: Any) -> range:
    """Return the bytes of its storage that a tensor lies within."""
    if tensor.layout is not torch.strided:
        return range(0)
    sizes = [_hint(size) for size in tensor.shape]
    if 0 in sizes:
        return range(0)
    first = _hint(tensor.storage_offset())
    steps = zip(sizes, map(_hint, tensor.stride()), strict=True)
    last = first + sum((size - 1) * stride for size, stride in steps)
    size = tensor.element_size()
    return range(first * size, (last + 1) * size)


def _hint(size: Any) -> int:
    return int(size.node.hint if isinstance(size, torch.SymInt) else size)
