"""A function of somebody else's, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["attribute_replaced"]


@contextmanager
def attribute_replaced(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replaces a function for a while. Somebody else who replaces it meanwhile is left alone: ours
    stays below theirs then, and does nothing outside captures.
    """
    former = vars(owner).get(name)
    ours = make(getattr(owner, name))
    setattr(owner, name, ours)
    try:
        yield
    finally:
        if vars(owner).get(name) is ours:
            if former is None:
                delattr(owner, name)  # inherited
            else:
                setattr(owner, name, former)
