"""Kernels from the tier that machines share, and for it."""

from __future__ import annotations

import os

from bringup import settings
from bringup.errors import BundleError
from bringup.jit.builder.key import key_of
from bringup.jit.builder.request import Request
from bringup.jit.files.headers import Header, PortableHeader
from bringup.jit.files.layout import StoreUnwritableError
from bringup.jit.lookup.publish import publish_from_elsewhere
from bringup.jit.store.bundle import pack_entry
from bringup.jit.store.cache import Cache
from bringup.jit.store.entries import Hit
from bringup.jit.store.portable_key import portable_key, portable_roots
from bringup.jit.store.shared_tier import tier

_log = settings.logger("jit")


def _shared_key(request: Request, source_digest: str) -> str:
    """Return the key of a request to this compiler on every machine."""
    fingerprint = request.toolchain.fingerprint
    return key_of({"asked": (portable_key(request, source_digest),), "compiler": (fingerprint,)})


def find_shared(request: Request, source_digest: str, store: Cache) -> Hit | None:
    """Return another machine's build of the same files and compiler, brought here, or None."""
    shared = tier()
    packed = shared.fetch(_shared_key(request, source_digest)) if shared else None
    if packed is None:
        return None
    roots = portable_roots(request)
    files = [PortableHeader(*header) for header in packed.meta["origin"]["headers"]]
    if not all(header.holds(roots, system=True) for header in files):
        return None
    folders = dict(roots)
    read = [
        Header(os.path.join(folders.get(file.root, ""), file.path), file.digest, None)
        for file in files
        if not file.is_place
    ]
    try:
        return publish_from_elsewhere(request, source_digest, packed, read, store)
    except (StoreUnwritableError, OSError) as error:
        _log.debug("the shared kernel %s cannot be kept: %s", packed.key, error)
        return None


def share(request: Request, source_digest: str, hit: Hit) -> None:
    """Let other machines find an entry."""
    shared = tier()
    if shared is not None:
        try:
            shared.send(_shared_key(request, source_digest), pack_entry(hit.path.parent))
        except BundleError as error:
            _log.debug("%s is not shared: %s", hit.key, error)
