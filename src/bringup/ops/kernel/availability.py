"""Whether the binary of a call can be had, before there is a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bringup.errors import MissingCompilerError
from bringup.ops.kernel.kernel_op import definition_of


def missing_binary(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why a kernel operator's binary for these arguments, which may be fake, cannot be had:
    "" where it can, and for other operators. It is built where there is a compiler.
    """
    definition = definition_of(func.name())
    if definition is None:
        return ""
    values = definition.schema.bind(args, kwargs)
    device = next((value.device.type for value in values if isinstance(value, torch.Tensor)), "cpu")
    try:
        definition.built(definition.template.compile, device, definition.params(*args, **kwargs))
    except MissingCompilerError as error:
        return str(error)
    return ""
