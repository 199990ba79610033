"""Executors of `concurrent.futures` that are given as such, or by an engine's address."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future, as_completed
from typing import Any, TypeVar

Job = TypeVar("Job")
_PACKAGES = {"dask": "distributed", "ray": "ray"}


class _Ray(Executor):
    """Jobs as Ray's tasks; one whose worker is lost is tried again, as Ray does by default."""

    def __init__(self, ray: Any) -> None:
        self._remote = ray.remote(lambda function, args, kwargs: function(*args, **kwargs))

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._remote.remote(fn, args, kwargs).future()
        return future


@contextlib.contextmanager
def opened(given: Executor | str) -> Iterator[Executor]:
    """Yield an executor, given, or of "dask://HOST:PORT" or "ray://HOST:PORT" and then
    disconnected. Raises `TypeError`, `ValueError` for another address, `ModuleNotFoundError` for
    no such engine, `ConnectionError` where nothing answers.
    """
    if not isinstance(given, str):
        if not callable(getattr(given, "submit", None)):
            raise TypeError(
                "executor=: expected an executor of concurrent.futures or an address, got "
                f"{type(given).__name__} ({given!r})"
            )
        yield given
        return
    engine, separator, place = given.partition("://")
    if engine not in _PACKAGES or not separator or not place.rpartition(":")[0]:
        raise ValueError(f"executor {given!r}: expected dask://HOST:PORT or ray://HOST:PORT")
    try:
        package = importlib.import_module(_PACKAGES[engine])
    except ModuleNotFoundError as error:
        install = f"pip install {_PACKAGES[engine]}" + ("[client]" if engine == "ray" else "")
        raise ModuleNotFoundError(f"executor {given!r} needs its package: {install}") from error
    with contextlib.ExitStack() as stack:
        try:
            if engine == "dask":
                client = stack.enter_context(package.Client(f"tcp://{place}"))
                executor = client.get_executor(pure=False)
            else:
                stack.enter_context(package.init(address=given))
                executor = _Ray(package)
        except OSError as error:
            raise ConnectionError(f"executor {given!r}: nothing answers there: {error}") from error
        yield executor


def completed(
    executor: Executor, function: Any, jobs: dict[Job, tuple[Any, ...]]
) -> Generator[tuple[Job, Future[Any]], None, None]:
    """Yield jobs with the futures of `function(*arguments)` as they end; a lost worker is its
    future's error. What has not begun is cancelled when the generator is closed.
    """
    futures: dict[Future[Any], Job] = {}
    try:
        for job, arguments in jobs.items():
            try:
                futures[executor.submit(function, *arguments)] = job
            except Exception as error:  # a pool whose workers died takes nothing more
                refused: Future[Any] = Future()
                refused.set_exception(error)
                futures[refused] = job
        for future in as_completed(futures):
            yield futures[future], future
    finally:
        for future in futures:
            future.cancel()
