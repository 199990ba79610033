"""Whether the binary of a call can be had, before there is a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bringup.errors import DeviceError, MissingCompilerError
from bringup.jit.target.target import find_target
from bringup.ops.kernel.kernel_op import definition_of


def wrong_language(name: str, device: str) -> str:
    """Return why the operator's kernel cannot be built for a driver's device, or ""."""
    definition = definition_of(name)
    if definition is None:
        return ""
    try:
        find_target(definition.tuning(device)["target"]).check_language(definition.template.source)
    except (DeviceError, ValueError) as error:
        return str(error)
    return ""


def missing_binary(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why the binary for these arguments, maybe fake, cannot be had or built, or ""."""
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
