"""Which node of a compiled graph is the first that makes a result wrong when it is generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch


class Generated:
    """In this block only the first nodes of all graphs that are compiled are generated, and the
    others are the device's eager operators. `fallback` asks.

    Args:
        most: how many; None for all.

    Attributes:
        nodes: those that generated code was or would be written for, in order.
    """

    now: ClassVar[Generated | None] = None

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.nodes: list[Any] = []

    def __enter__(self) -> Generated:
        Generated.now = self
        return self

    def __exit__(self, *_: object) -> None:
        Generated.now = None


def first_wrong_node(is_wrong: Callable[[], bool]) -> str:
    """Return the operator of the first node that makes a result wrong when it is generated, and
    those behind it are not; "" where what is generated changes nothing.

    Args:
        is_wrong: compiles anew, runs, and says whether the result is wrong.
    """
    nodes: list[Any] = []

    def is_wrong_with(most: int) -> bool:
        with torch._inductor.config.patch(force_disable_caches=True), Generated(most) as search:
            found = is_wrong()
        nodes[:] = search.nodes
        return found

    if is_wrong_with(0):
        return ""
    right, wrong = 0, len(nodes)
    if not wrong or not is_wrong_with(wrong):
        return ""
    while wrong - right > 1:
        middle = (wrong + right) // 2
        right, wrong = (right, middle) if is_wrong_with(middle) else (middle, wrong)
    target, written = nodes[wrong - 1].target, nodes[wrong - 1].meta.get("original_aten")
    return f"{target}" + (f" of {written}" if written not in (None, target) else "")
