"""Where a kernel is looked for: the look-ups, in their order, and when each of them is asked."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bringup.errors import MissingCompilerError
from bringup.jit.builder.request import Request
from bringup.jit.store.active_cache import made_private_cache
from bringup.jit.store.cache import Cache
from bringup.jit.store.entries import Hit
from bringup.jit.store.portable_key import portable_key, portable_roots


class When(enum.Enum):
    """When a look-up is asked."""

    CALLED = enum.auto()  # before the compiler is looked for, by the name of the call
    ASKED = enum.auto()  # the compiler is known
    WITHOUT_COMPILER = enum.auto()
    FROZEN = enum.auto()  # nothing was found, and nothing may be built
    BUILDING = enum.auto()  # before waiting for another process that builds the same
    ALONE = enum.auto()  # no other process builds the same


class Question(NamedTuple):
    """What a look-up is asked."""

    # What is asked for; in `When.CALLED` and `WITHOUT_COMPILER` without a compiler.
    request: Request
    store: Cache  # the cache in use
    name: str = ""  # of the call, for its record; "" where there can be none
    digest: str = ""  # of the source; not known in `When.CALLED`
    missing: MissingCompilerError | None = None  # why there is no compiler, if there is none

    @property
    def key(self) -> str:
        return self.request.key(self.digest)


class Lookup(NamedTuple):
    """One place, and when it is asked."""

    find: Callable[[Question], Hit | None]
    when: tuple[When, ...]


# The builds of calls whose records this process has proved whole.
_proved: dict[tuple[str, str], str] = {}


def forget_proved() -> None:
    """Make this process prove the records of calls again, as a new one does."""
    _proved.clear()


def call_record(question: Question) -> Hit | None:
    """Return the answer to this call, here or in another process, if no stamp has changed."""
    store, name = question.store, question.name
    call = (store.layout.prefix, name)
    build = store.recall_call(name, _proved.get(call, ""))
    if build is None:
        return None
    if build.key == _proved.get(call):
        path = store.layout.binary(build.key)
        return Hit(Path(path), build.key, ()) if os.path.exists(path) else None
    hit = store.verified_hit(build)
    if hit is not None:
        _proved[call] = build.key
    return hit


def manifest(question: Question) -> Hit | None:
    """Return a build of this request that read the same headers, by their contents."""
    return question.store.lookup(question.key)


def private_cache(question: Question) -> Hit | None:
    """Return the build in this process's own cache, made where the one in use could not take it."""
    private = made_private_cache()
    return None if private is None else private.lookup(question.key)


def portable_index(question: Question) -> Hit | None:
    """Return what was imported, whatever compiler built it; without a compiler, any build of this
    source, these macros and flags. Raises `MissingCompilerError` with why others do not do.
    """
    request, store, missing = question.request, question.store, question.missing
    hit, refused = store.lookup_portable(
        portable_key(request, question.digest),
        portable_roots(request),
        compiler_is_missing=missing is not None,
    )
    if hit is not None or missing is None:
        return hit
    reasons = "".join(f"\nThe cache has a build of it, but {reason}." for reason in refused)
    raise MissingCompilerError(
        f"{request.source}: {missing}\nThe cache at {store.root} has no build of it that needs no "
        f"compiler; bring one with `bringup cache import`.{reasons}"
    ) from missing


def failures(question: Question) -> Hit | None:
    """Raise the `CompileError` that this request ended in, if it would end so again."""
    from bringup.jit.store.failures import Failures

    if failed := Failures(question.store.layout).find(question.request, question.key):
        raise failed
    return None


def shared_tier(question: Question) -> Hit | None:
    """Return what another machine has built with the same compiler from the same files."""
    from bringup.jit.lookup.sharing import find_shared

    return find_shared(question.request, question.digest, question.store)


# Each is asked only where those above it had no answer.
LOOKUPS = (
    Lookup(call_record, (When.CALLED,)),
    Lookup(manifest, (When.ASKED, When.ALONE)),
    Lookup(private_cache, (When.ASKED,)),
    Lookup(portable_index, (When.ASKED, When.WITHOUT_COMPILER)),
    Lookup(failures, (When.BUILDING, When.ALONE)),
    Lookup(shared_tier, (When.FROZEN, When.ALONE)),
)


def first_answer(when: When, question: Question) -> Hit | None:
    """Return the first answer of the look-ups that are asked then. Raises what they raise."""
    for lookup in LOOKUPS:
        if when in lookup.when and (hit := lookup.find(question)):
            return hit
    return None
