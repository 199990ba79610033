"""A function of another library, replaced for a while."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_changing = threading.RLock()
_below: weakref.WeakKeyDictionary[Callable[..., Any], Callable[..., Any] | None]
_below = weakref.WeakKeyDictionary()
"""Of each replacement that is over while another one stood on top of it: what it replaced."""


@contextmanager
def attribute_replaced(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace a function for a while. One put over it in that time is left alone: ours stays below,
    and does nothing outside captures. Captures that overlap, in threads, leave nothing.
    """
    with _changing:
        former = vars(owner).get(name)
        ours = make(getattr(owner, name))
        setattr(owner, name, ours)
    try:
        yield
    finally:
        with _changing:
            if vars(owner).get(name) is not ours:
                _below[ours] = former
            else:
                while former in _below:
                    former = _below.pop(former)
                if former is None:
                    delattr(owner, name)  # inherited
                else:
                    setattr(owner, name, former)
