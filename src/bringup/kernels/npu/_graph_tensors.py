"""torch_npu's functions that show tensors of a replay, over `bringup.graphs`' own."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from bringup import graphs

_saved: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)
"""How often a file's name has been used in the process, by whatever graph."""


def print_npugraph_tensor(tensor: torch.Tensor, *, tensor_name: str | None = None) -> None:
    """Print a tensor with its shape and dtype as it is in every replay, or now where no capture is
    under way; `graphs.print_tensor` prints the tensor alone.

    Args:
        tensor: what to print.
        tensor_name: before it.

    Examples:
        >>> from bringup.kernels import npu
        >>> npu.print_npugraph_tensor(torch.ones(2), tensor_name="x")
        x=tensor([1., 1.]), shape=(2,), dtype=torch.float32
    """
    name = "" if tensor_name is None else f"{tensor_name}="

    def show(value: torch.Tensor) -> None:
        print(f"{name}{value}, shape={tuple(value.shape)}, dtype={value.dtype}", flush=True)

    graphs.host_function(show, tensor)


def save_npugraph_tensor(
    tensors: torch.Tensor | Sequence[torch.Tensor],
    *,
    save_path: str | None = None,
    overwrite: bool = False,
) -> None:
    """Save tensors (`torch.save`, on the cpu) as they are in every replay, or now where no capture
    is under way: `x.pt` becomes `x_device_0_0.pt`, `x_device_0_1.pt`, ..., counted over all graphs.

    Args:
        tensors: one, or a sequence, which is saved as a list.
        save_path: ends with `.pt` or `.bin`, in a folder that is there; None is `tensor_<time>.pt`
            in the current one.
        overwrite: writes `x_device_0.pt` each time.

    Raises:
        ValueError: `save_path` is none of such.

    Examples:
        >>> import tempfile
        >>> from bringup.kernels import npu
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     npu.save_npugraph_tensor(torch.ones(2), save_path=f"{folder}/x.pt")
        ...     torch.load(f"{folder}/x_device_0_0.pt")
        tensor([1., 1.])
    """
    path = Path(f"tensor_{time.time_ns()}.pt" if save_path is None else save_path).absolute()
    if path.suffix not in (".pt", ".bin") or not path.parent.is_dir():
        raise ValueError(f"save_path ends with .pt or .bin, in a folder that is there, got {path}")
    alone = isinstance(tensors, torch.Tensor)
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    stem = f"{path.with_suffix('')}_device_{max((t.device.index or 0) for t in given)}"

    def save(*values: torch.Tensor) -> None:
        number = "" if overwrite else f"_{next(_saved[stem])}"
        torch.save(values[0] if alone else list(values), f"{stem}{number}{path.suffix}")

    graphs.host_function(save, *given)


def _define() -> torch.library.Library:
    library = torch.library.Library("npu", "FRAGMENT")
    name = "*, str? tensor_name=None) -> ()"
    path = "*, str? save_path=None, bool overwrite=False) -> ()"
    for signature, function in (
        (f"print_npugraph_tensor(Tensor self, {name}", print_npugraph_tensor),
        (f"save_npugraph_tensor(Tensor self, {path}", save_npugraph_tensor),
        (f"save_npugraph_tensor.tensor_list(Tensor[] self, {path}", save_npugraph_tensor),
    ):
        library.define(signature)
        library.impl(signature.partition("(")[0], function, "CompositeImplicitAutograd")
    return library


_LIBRARY = _define()
