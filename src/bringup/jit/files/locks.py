"""One build of a request at a time between processes, in a store's own folder of locks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from bringup._locks import Owner, exclusive
from bringup.jit.files.layout import StoreLayout, translate_write_errors

FOLDER = ".locks"


@contextlib.contextmanager
def build_lock(
    layout: StoreLayout, key: str, timeout: float, waiting: Callable[[float, Owner], None]
) -> Iterator[bool]:
    """See `exclusive`: the lock of a request. Raises `StoreUnwritableError`."""
    with contextlib.ExitStack() as held:
        path = layout.folder(FOLDER) / f"{key}.lock"
        with translate_write_errors():
            is_ours = held.enter_context(exclusive(path, timeout, waiting))
        yield is_ours
