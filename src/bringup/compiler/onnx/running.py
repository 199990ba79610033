"""Running a model on random inputs, by onnx's reference implementation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bringup.compiler.onnx import sampling
from bringup.compiler.onnx.constants import ConstantTensor
from bringup.compiler.onnx.types import look_of
from bringup.errors import ModelError, first_line

_PLAIN = "biufc"


def run(
    proto: Any,
    feeds: Mapping[str, Any] | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> list[Any]:
    """Return the results of an `onnx.ModelProto` as arrays; items of sequences one by one.

    Args:
        proto: not changed.
        feeds: the inputs by name; random ones for those that are missing and have no default.
        folder: where its external data lie.
        seed: of the random inputs; each symbolic size has one number.

    Elements that numpy has no dtype for come as float32. Raises `ModelError` when the model cannot
    be run: an operator without an implementation, an input of unknown rank.
    """
    from onnx.reference import ReferenceEvaluator

    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    for tensor in whole.graph.initializer:
        constant = ConstantTensor(tensor, None if folder is None else Path(folder))
        if constant.is_external:
            tensor.CopyFrom(constant.tensor())
    given = {**random_feeds(whole, seed), **(feeds or {})}
    try:
        results = ReferenceEvaluator(whole).run(None, given)
    except Exception as error:
        reason = first_line(error)
        raise ModelError(f"the model cannot be run: {type(error).__name__}: {reason}") from error
    return [array for item in results for array in _arrays(item)]


def random_feeds(proto: Any, seed: int) -> dict[str, Any]:
    """Return random data for inputs without default; `ModelError` if a rank is unknown."""
    defaults = {tensor.name for tensor in proto.graph.initializer}
    found = {}
    for number, info in enumerate(proto.graph.input):
        if info.name in defaults:
            continue
        try:
            found[info.name] = sampling.sample(look_of(info.type), seed + number, 0)
        except Exception as error:
            raise ModelError(f"input {info.name!r}: {error}") from error
    return found


def _arrays(item: Any) -> list[Any]:
    if isinstance(item, list):
        return [array for one in item for array in _arrays(one)]
    array = np.asarray(item)
    if array.dtype.kind in "OUS":
        raise ModelError("a result of the model is text, which cannot be compared")
    return [array if array.dtype.kind in _PLAIN else array.astype(np.float32)]
