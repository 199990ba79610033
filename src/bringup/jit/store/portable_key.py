"""The portable key: what was asked for in terms that need no compiler; the entry knows the rest."""

from __future__ import annotations

from functools import partial

from bringup.jit.builder.key import KERNEL_ABI, SCHEMA, key_of
from bringup.jit.builder.request import Request
from bringup.jit.target.flags import include_directories, library_directories, without_folders
from bringup.jit.target.toolchain import bringup_includes


def portable_key(request: Request, source_digest: str) -> str:
    """Return the name of a request on every machine: by what folders hold, not their paths."""
    return request.key_once("portable", source_digest, partial(_computed, request))


def _computed(request: Request, source_digest: str) -> str:
    source = request.source
    return key_of(
        {
            "schema": (SCHEMA,),
            "source": (source_digest,),
            "language": (source.language,),
            "entry": (source.symbol,),
            "abi": (source.abi, str(KERNEL_ABI)),
            "kind": (source.kind,),
            "macros": request.macros,
            "target": (request.target,),
            "flags": [without_folders(flag) for flag in request.flags],
            "debug": request.debug.words,
        }
    )


def portable_roots(request: Request) -> list[tuple[str, str]]:
    """Return the folders that a request reads from, by names that are the same everywhere."""
    (own,) = bringup_includes()
    named = [("source", request.source.directory), ("bringup", own)]
    for name, folders in (
        ("include", include_directories(request.flags)),
        ("library", library_directories(request.flags)),
    ):
        named += [(f"{name}{i}", folder) for i, folder in enumerate(folders)]
    return named
