"""Metadata that a package attaches to tensors of the driver's device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.devices import _load
from bringup.devices._external_memory import loaded_native
from bringup.errors import DeviceError, first_line

if TYPE_CHECKING:
    import torch


def metadata(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the metadata that `set_metadata` gave a tensor, or one that it is a view or copy of.

    Args:
        tensor: any tensor.

    Returns:
        A new dictionary; empty for a tensor that has none, as those of other devices.

    Raises:
        DeviceError: no driver is loaded.
    """
    found: str = loaded_native("devices.metadata").metadata_of(tensor)
    return json.loads(found) if found else {}


def set_metadata(tensor: torch.Tensor, values: Mapping[str, Any]) -> None:
    """Attach metadata to a tensor of the driver's device, in the place of what it has.

    Views of the tensor and copies of it on the device (`clone`, `to`, `contiguous`, `deepcopy`,
    `detach`, parameters) that are made from then on have it, too, and `torch.save` and `torch.load`
    keep it. Results of operators have none, nor do copies on other devices; `copy_` and other
    writes leave it to the tensor that is written. It belongs to this tensor, not to its memory:
    views that are there already keep what they have.

    Args:
        tensor: on the driver's device.
        values: names and what JSON has: text, numbers, bool, None, lists and dictionaries of these.
            Empty: the tensor has no metadata from then on.

    Raises:
        DeviceError: no driver is loaded, the tensor is on another device, or another library keeps
            metadata of its own there (`c10::BackendMeta`).
        TypeError: `values` is no mapping, or has what does not come back from JSON as it was.
    """
    native = loaded_native("devices.set_metadata")
    info = _load.loaded()
    assert info is not None
    if tensor.device.type != info.device_name:
        raise DeviceError(
            f"devices.set_metadata: the tensor is on {tensor.device}: expected one on "
            f"{info.device_name}"
        )
    text = _written(values)
    try:
        native.set_metadata(tensor, text)
    except RuntimeError as error:
        raise DeviceError(f"devices.set_metadata: {first_line(error)}") from None


def _written(values: Mapping[str, Any]) -> str:
    if not isinstance(values, Mapping):
        raise TypeError(
            f"devices.set_metadata: expected a mapping of names, got {type(values).__name__}"
        )
    given = dict(values)
    if not given:
        return ""
    try:
        text = json.dumps(given)
    except (TypeError, ValueError) as error:
        raise TypeError(f"devices.set_metadata: {given!r} is no JSON: {error}") from None
    if (back := json.loads(text)) != given:
        raise TypeError(f"devices.set_metadata: JSON has {back!r} for {given!r}")
    return text
