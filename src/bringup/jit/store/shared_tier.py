"""The shared tier: entries on a file system that machines share, through fsspec.

    <url>/v1/ac/<key>      which entry answers what was asked for, built by this compiler
    <url>/v1/cas/<digest>  the entry, as a bundle, under the SHA-256 of its content

Nothing here may fail or delay a call: what does not answer in time is left alone for a while.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import posixpath
import queue
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from bringup import settings
from bringup.errors import BundleError
from bringup.jit.files.identity import bytes_digest
from bringup.jit.store.bundle import Packed, read_bundle, write_bundle

T = TypeVar("T")

_FLUSH_SECONDS = 10.0

_log = settings.logger("jit")


class _NoAnswerError(Exception):
    """The tier failed, took too long, or is being left alone."""


class Tier:
    """One shared tier at a `url` of fsspec, left alone for `pause_seconds` after a slow request."""

    def __init__(self, url: str, seconds: float, *, pause_seconds: float = 60.0) -> None:
        self._url = url
        self._seconds = seconds
        self._pause_seconds = pause_seconds
        self._silent_until = 0.0
        self._warned = False
        self._filesystem: tuple[Any, str] | None = None
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self.flush)

    def _reset(self) -> None:
        self._queue: queue.Queue[tuple[str, Packed]] = queue.Queue()
        self._writer: threading.Thread | None = None
        self._starting = threading.Lock()

    def fetch(self, key: str) -> Packed | None:
        """Return the entry under this key, checked; None when there is none, or no answer."""
        try:
            index = self._answer(lambda: self._read(f"ac/{key}"))
            if index is None:
                return None
            digest = str(json.loads(index)["bundle"])
            content = self._answer(lambda: self._read(f"cas/{digest}"))
            if content is None:
                return None
            if bytes_digest(content) != digest:
                raise BundleError(f"its content is not that of {digest[:12]}")
            (packed,) = read_bundle(content, f"{self._url}/v1/cas/{digest}")
        except _NoAnswerError:
            return None
        except (BundleError, ValueError, KeyError, TypeError) as error:
            _log.warning("damaged entry in the shared kernel cache %s: %s", self._url, error)
            return None
        return packed

    def send(self, key: str, packed: Packed) -> None:
        """Write the entry, in the background."""
        with self._starting:
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write_behind, name="bringup-cache", daemon=True
                )
                self._writer.start()
        self._queue.put((key, packed))

    def flush(self) -> None:
        """Wait until everything is written, or for 10 seconds."""
        end = time.monotonic() + _FLUSH_SECONDS
        while self._writer is not None and self._queue.unfinished_tasks:
            if time.monotonic() > end:
                _log.warning(
                    "the shared kernel cache %s (BRINGUP_CACHE_REMOTE) is slow: not all is written",
                    self._url,
                )
                return
            time.sleep(0.01)

    def _write_behind(self) -> None:
        while True:
            key, packed = self._queue.get()
            content = write_bundle([packed])
            digest = bytes_digest(content)
            index = json.dumps({"bundle": digest, "key": packed.key}).encode()
            with contextlib.suppress(_NoAnswerError):
                # In this order: an index never leads to what is not there.
                self._answer(lambda c=content, d=digest: self.write(f"cas/{d}", c))  # type: ignore[misc]
                self._answer(lambda k=key, i=index: self.write(f"ac/{k}", i))  # type: ignore[misc]
            self._queue.task_done()

    def _open(self) -> tuple[Any, str]:
        if self._filesystem is None:
            try:
                from fsspec.core import url_to_fs
            except ImportError as error:
                raise ImportError("fsspec is missing: pip install 'bringup[fsspec]'") from error
            filesystem, root = url_to_fs(self._url)
            self._filesystem = filesystem, posixpath.join(root, "v1")
        return self._filesystem

    def _read(self, name: str) -> bytes | None:
        filesystem, root = self._open()
        try:
            content: bytes = filesystem.cat_file(posixpath.join(root, name))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a whole file there; raises what the file system raises."""
        filesystem, root = self._open()
        path = posixpath.join(root, name)
        draft = f"{path}.{os.urandom(16).hex()}"
        filesystem.makedirs(posixpath.dirname(path), exist_ok=True)
        filesystem.pipe_file(draft, content)
        filesystem.mv(draft, path)

    def _answer(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, if it does in time. Raises `_NoAnswerError`."""
        if time.monotonic() < self._silent_until:
            raise _NoAnswerError
        outcome: list[T | Exception] = []
        done = threading.Event()

        def run() -> None:
            try:
                outcome.append(ask())
            except Exception as error:
                outcome.append(error)
            done.set()

        threading.Thread(target=run, name="bringup-cache-request", daemon=True).start()
        if not done.wait(self._seconds):
            self._leave_alone(f"no answer in {self._seconds:g} s")
        (result,) = outcome
        if isinstance(result, Exception):
            self._leave_alone(f"{type(result).__name__}: {result}")
        return result  # type: ignore[return-value]  # no exception

    def _leave_alone(self, reason: str) -> None:
        self._silent_until = time.monotonic() + self._pause_seconds
        if not self._warned:
            self._warned = True
            _log.warning(
                "the shared kernel cache %s (BRINGUP_CACHE_REMOTE) is not used for %g s, and then "
                "tried again: %s",
                self._url,
                self._pause_seconds,
                reason,
            )
        raise _NoAnswerError


@cache
def tier_at(url: str, seconds: float) -> Tier:
    """Return the tier at `url`, which may take `seconds` to answer."""
    return Tier(url, seconds)


def tier() -> Tier | None:
    url = settings.cache_remote()
    return tier_at(url, settings.cache_remote_timeout()) if url else None
