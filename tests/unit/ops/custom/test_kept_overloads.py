"""What `torch.ops` gave out may outlive its operator: calling that is an error, never a crash."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.ops.support import SCALE

from bringup import ops


def _kernel_op(name: str) -> Callable[[], None]:
    return ops.kernel_op(
        f"{name}(Tensor x, float factor) -> Tensor",
        source=SCALE,
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    ).undefine


def _custom_op(name: str) -> Callable[[], None]:
    def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    return ops.custom_op(name)(scale).undefine


def _library(name: str) -> Callable[[], None]:
    namespace, _, bare = name.partition("::")
    library = ops.Library(namespace, "FRAGMENT")
    library.define(f"{bare}(Tensor x, float factor) -> Tensor")
    library.impl(bare, lambda x, factor: x * factor, "CPU")
    return library._destroy


@pytest.mark.parametrize("way", [_kernel_op, _custom_op, _library])
def test_a_kept_overload_of_a_removed_operator_raises_and_names_it(
    way: Callable[[str], Callable[[], None]],
) -> None:
    name = f"bringup_kept::{way.__name__}"
    packet = None
    for _ in range(3):  # the name may be defined again
        undefine = way(name)
        packet = getattr(torch.ops.bringup_kept, way.__name__)
        kept: Any = packet.default
        assert kept(torch.ones(2), 3.0).tolist() == [3, 3]
        undefine()
        assert not hasattr(torch.ops.bringup_kept, way.__name__)
        for call in (kept, packet):
            with pytest.raises(RuntimeError, match=name):
                call(torch.ones(2), 3.0)


def test_a_library_of_before_that_is_collected_takes_nothing_away() -> None:
    """torch then forgets the name, though another library has defined it since."""
    name = "bringup_kept::again"
    undefine_before = _library(name)
    undefine_before()
    undefine = _library(name)
    kept: Any = torch.ops.bringup_kept.again.default
    assert kept(torch.ones(2), 3.0).tolist() == [3, 3]
    del undefine_before
    gc.collect()
    undefine()
    with pytest.raises(RuntimeError, match=name):
        kept(torch.ones(2), 3.0)


def test_nothing_is_kept_of_a_library_that_nobody_has_called() -> None:
    name = "bringup_kept::dropped"
    _library(name)()
    gc.collect()
    assert name not in [str(known) for known in torch._C._dispatch_get_all_op_names()]
