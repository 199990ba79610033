"""Models that passes run over: one that is loaded, or a proto, which is changed in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bringup.compiler.onnx.model import OnnxModel, from_proto
from bringup.errors import PassError


@contextmanager
def opened(target: Any) -> Iterator[OnnxModel]:
    """In this block: the model behind `target`.

    A proto is written back at the end, also after a `PassError`: the edits of the passes that
    succeeded stay. Any other exception leaves it as it was.
    """
    if isinstance(target, OnnxModel):
        yield target
        return
    copy = type(target)()
    copy.CopyFrom(target)
    model = from_proto(copy)
    try:
        yield model
    except PassError:
        target.CopyFrom(model.to_proto())
        raise
    target.CopyFrom(model.to_proto())
