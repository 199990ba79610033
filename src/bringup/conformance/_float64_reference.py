"""A second opinion on an operator that differs: the same call in float64 on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from bringup.conformance._deviation import dense
from bringup.conformance._samples import Mover, outcome

_WIDE = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
_WIDE[torch.complex64] = torch.complex128
_OTHER_SIDE = 4  # times the other side's own error
_CONDITION = 8  # times what the last bit of the inputs changes


def second_opinion(
    call: Callable[..., Sequence[Any]],
    arguments: Any,
    number: int,
    got: object,
    expected: object,
    limits: Callable[[Tensor], Tensor],
    pointwise: bool = False,
) -> str:
    """Return why values that differ are no error of this side, or "".

    An operator is not to blame where the result in float64 is as far from the other side's, or
    where flipping the last bits of the inputs changes the exact result as much: no algorithm in
    this dtype can do better then (backward stability; Higham, Accuracy and Stability of Numerical
    Algorithms, 1.5). `call` gives all results on copies of `arguments`; `number` is which result;
    `limits` says how far each element may be from the exact one. Of a pointwise operator each
    element is to be right by itself, otherwise the largest error counts.
    """
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return ""
    exact = _in_float64(call, arguments, number, None)
    mine, other = dense(got), dense(expected)
    if exact is None or not exact.shape == mine.shape == other.shape:
        return ""
    if not all(bool(values.isfinite().all()) for values in (exact, mine, other)):
        return ""
    allowed = limits(exact)
    ours = (mine - exact).abs()

    def within(factor: int, errors: Tensor) -> bool:
        errors = errors if pointwise else errors.max()
        return bool((ours <= torch.maximum(allowed, factor * errors)).all())

    if bool((ours <= allowed).all()):
        return "the other side is further from the result in float64"
    if within(_OTHER_SIDE, (other - exact).abs()):
        return "both sides are as far from the result in float64"
    flipped = _in_float64(call, arguments, number, torch.finfo(expected.dtype).eps)
    if flipped is not None and within(_CONDITION, (flipped - exact).abs()):
        return "the last bits of the inputs change the exact result as much"
    return ""


def _in_float64(
    call: Callable[..., Sequence[Any]], arguments: Any, number: int, epsilon: float | None
) -> Tensor | None:
    """Return a result in float64 with inputs changed by a relative `epsilon`; None without one."""
    random = torch.Generator().manual_seed(0)

    def widened(leaf: object) -> object:
        if isinstance(leaf, torch.dtype):
            return _WIDE.get(leaf, leaf)
        if not isinstance(leaf, Tensor) or leaf.dtype not in _WIDE:
            return leaf
        wide = leaf.detach().to(_WIDE[leaf.dtype])
        if epsilon is None:
            return wide
        signs = torch.randint(0, 2, wide.shape, generator=random).double() * 2 - 1
        return wide * (1 + epsilon * signs)

    copies = Mover("cpu")(arguments)
    results, failed = outcome(lambda: call(*_pytree.tree_map(widened, copies)))
    if failed is not None or number >= len(results):
        return None
    result = results[number]
    if not isinstance(result, Tensor) or result.dtype not in _WIDE.values():
        return None
    return dense(result)
