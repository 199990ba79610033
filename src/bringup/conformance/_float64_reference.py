"""A second opinion on an operator that differs: the same call in float64 on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from bringup.conformance._deviation import Deviation, dense
from bringup.conformance._samples import Mover, outcome

_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_OTHER_SIDE = 4  # times the other side's own error
_CONDITION = 8  # times what the last bit of the inputs changes


def second_opinion(
    call: Callable[..., Sequence[Any]],
    arguments: Any,
    number: int,
    got: object,
    expected: object,
    found: Deviation,
) -> str:
    """Return why a deviation is no error of this side, or "".

    An operator is not to blame where the result in float64 is as far from the other side's, or
    where flipping the last bits of the inputs changes the exact result as much: no algorithm in
    this dtype can do better then (backward stability; Higham, Accuracy and Stability of Numerical
    Algorithms, 1.5). `call` gives all results on copies of `arguments`; `number` is which result.
    """
    if found.kind != "value" or not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return ""
    exact = _in_float64(call, arguments, number, None)
    if exact is None or exact.shape != dense(got).shape or not bool(exact.isfinite().all()):
        return ""
    limit = found.allowed * float(exact.abs().max())
    ours = float((dense(got) - exact).abs().max())
    theirs = float((dense(expected) - exact).abs().max())
    if ours <= limit:
        return "the other side is further from the result in float64"
    if ours <= _OTHER_SIDE * theirs:
        return "both sides are as far from the result in float64"
    flipped = _in_float64(call, arguments, number, torch.finfo(expected.dtype).eps)
    if flipped is not None and ours <= _CONDITION * float((flipped - exact).abs().max()):
        return "the last bits of the inputs change the exact result as much"
    return ""


def _in_float64(
    call: Callable[..., Sequence[Any]], arguments: Any, number: int, epsilon: float | None
) -> Tensor | None:
    """Return a result in float64 with inputs changed by a relative `epsilon`; None without one."""
    random = torch.Generator().manual_seed(0)

    def widened(leaf: object) -> object:
        if isinstance(leaf, torch.dtype) and leaf in _NARROW:
            return torch.float64
        if not isinstance(leaf, Tensor) or leaf.dtype not in _NARROW:
            return leaf
        wide = leaf.detach().double()
        if epsilon is None:
            return wide
        signs = torch.randint(0, 2, wide.shape, generator=random).double() * 2 - 1
        return wide * (1 + epsilon * signs)

    copies = Mover("cpu")(arguments)
    results, failed = outcome(lambda: call(*_pytree.tree_map(widened, copies)))
    if failed is not None or number >= len(results):
        return None
    result = results[number]
    return dense(result) if isinstance(result, Tensor) and result.is_floating_point() else None
