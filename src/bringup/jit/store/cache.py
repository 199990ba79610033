"""The store on disk: one folder per build, published by one rename, verified before it is used.

    <root>/v1/<ab>/<key>/        kernel.so, meta.json, build.log, source
    <root>/v1/.manifests/        request key -> builds, and the headers that each of them read
    <root>/v1/.portable/         the same without a compiler
    <root>/v1/.calls/            what calls of `compile` were answered with, by stamps
    <root>/v1/.toolchains/       what compilers answered
    <root>/v1/.failed/           what did not compile
    <root>/v1/.locks/ .staging/ .quarantine/ .inuse/ .sizes/

Readers take no lock. An entry that is not what its meta.json says is put aside and built again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bringup import settings
from bringup.errors import BundleError
from bringup.jit.builder.key import Record, key_of
from bringup.jit.files.entry_usage import Sizes, folder_size, keys_in_use, last_used, touch
from bringup.jit.files.headers import Header, PortableHeader, Searched
from bringup.jit.files.identity import bytes_digest, quick_digest, read_bytes
from bringup.jit.files.layout import (
    BINARY,
    LAST_USED,
    META,
    QUARANTINE,
    STAGING,
    StoreLayout,
    StoreUnwritableError,
    replace_file,
    sync,
    translate_write_errors,
    write_durably,
    write_whole,
)
from bringup.jit.store.call_records import CallIndex, RecordedBuild
from bringup.jit.store.entries import Hit, Origin
from bringup.jit.store.index import PortableIndex, PortableVariant, RequestIndex, Variant
from bringup.jit.target.machine import incompatibility_reason

if TYPE_CHECKING:
    from bringup.jit.load.binary import Unloaded
    from bringup.jit.store import bundle
    from bringup.jit.store.prune import Pruned


_FACTS = ("name", "command", "compiler", "seconds")  # of meta.json, beside what the store needs
_OCCUPIED = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}

_log = settings.logger("jit")
_serial = itertools.count()


class Entry(NamedTuple):
    """One build in the cache.

    Attributes:
        key: its build key.
        name: the source's name.
        bytes: what its folder holds.
        path: its folder.
        last_used: when it was used last, in seconds since the epoch, to the hour.
        in_use: whether a living process has loaded it.
    """

    key: str
    name: str
    bytes: int
    path: Path
    last_used: float = 0.0
    in_use: bool = False

    def meta(self) -> dict[str, Any]:
        """Return what its meta.json says: key record, command, compiler, headers, files. Raises
        `OSError` or `ValueError` when that cannot be read.
        """
        found: dict[str, Any] = json.loads(read_bytes(str(self.path / META)))
        if lacking := {"key", "record", "headers", "files", *_FACTS} - found.keys():
            raise ValueError(
                f"{self.path / META} is damaged: it lacks {', '.join(sorted(lacking))}. The entry "
                "is put aside and built again when the kernel is next asked for"
            )
        return found


class Cache:
    """The kernel cache under one root. `jit.cache()` gives the one in use."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = StoreLayout(root)
        self._requests = RequestIndex(self.layout)
        self._portables = PortableIndex(self.layout)
        self._calls = CallIndex(self.layout)

    def __repr__(self) -> str:
        return f"Cache({str(self.root)!r})"

    def distrust(self) -> str:
        """Return why nothing may be loaded from here, or ""."""
        return self.layout.distrust()

    def entries(self) -> list[Entry]:
        """Return every entry with a readable meta.json, by name and key."""
        found = []
        in_use = keys_in_use(self.layout)
        for folder in self.layout.entry_folders():
            try:
                name = str(json.loads(read_bytes(str(folder / META)))["name"])
                size = folder_size(folder)
            except (OSError, ValueError, KeyError, TypeError):
                continue  # removed, or damaged: a lookup puts it aside
            used, key = last_used(folder), folder.name
            found.append(Entry(key, name, size, folder, used, key in in_use))
        return sorted(found, key=lambda entry: (entry.name, entry.key))

    def prune(self, max_bytes: float | None = None, max_entries: int | None = None) -> Pruned:
        """Remove the entries used longest ago until both bounds hold, and stale ones; return all.

        What a living process has loaded stays. A cache is pruned by itself when it grows beyond its
        bounds; this is for other bounds, or for now.

        Args:
            max_bytes: what all entries may hold; by default `BRINGUP_CACHE_MAX_BYTES`.
            max_entries: how many there may be; by default `BRINGUP_CACHE_MAX_ENTRIES`.

        Raises:
            ValueError: a bound is negative.
            OSError: the cache cannot be written.
        """
        bounds = []
        for name, bound, default in (
            ("max_bytes", max_bytes, settings.cache_max_bytes()),
            ("max_entries", max_entries, settings.cache_max_entries()),
        ):
            if bound is not None and bound < 0:
                raise ValueError(f"prune({name}={bound}): expected a number that is not negative")
            bounds.append(default if bound is None else bound)
        from bringup.jit.store import prune  # a lookup has no use for it

        with self._unwritable_is_an_error("pruned"):
            return prune.prune(self.layout, *bounds)

    def clear(self) -> Pruned:
        """Remove everything but what living processes have loaded, and return it; `unload` first
        lets go of what only this process holds. Raises `OSError` when the cache cannot be written.
        """
        from bringup.jit.store import prune

        with self._unwritable_is_an_error("cleared"):
            return prune.clear(self.layout)

    def unload(self) -> Unloaded:
        """Close the libraries of this process's kernels, wherever they lie, that nothing holds.

        Returns what was closed and what is held: an operator, a graph or a running launch keeps its
        kernel. What was closed is loaded again when it is next used.
        """
        from bringup.jit.load.binary import unload

        return unload()

    def find(self, key: str) -> Entry:
        """Return the entry whose key begins so. Raises `LookupError` for none, or several."""
        found = [entry for entry in self.entries() if entry.key.startswith(key)]
        if len(found) != 1 or not key:
            several = ", ".join(f"{entry.key[:12]} ({entry.name})" for entry in found[:8])
            raise LookupError(
                f"{len(found)} entries of the cache at {self.root} begin with {key!r}"
                + (f": {several}; give more digits" if found else "; `bringup cache ls` lists them")
            )
        return found[0]

    def export_bundle(
        self, path: str | os.PathLike[str], keys: Iterable[str] | None = None
    ) -> list[Entry]:
        """Write entries into one file, which `import_bundle` takes on machines without a compiler.
        Returns the entries that are in the bundle.

        Args:
            path: the file; one that is there is replaced.
            keys: which entries, by the first digits of their keys; all of them by default.

        Raises:
            TypeError: `keys` is one text, not a list.
            LookupError: a key names no entry, or several, or the cache is empty.
            BundleError: an entry that is named is damaged; without `keys` it is put aside, with a
                line in the log, and left out.
            OSError: the file cannot be written.
        """
        from bringup.jit.store import bundle

        if isinstance(keys, str):
            raise TypeError(f"export_bundle(keys={keys!r}): expected a list of keys")
        chosen = self.entries() if keys is None else dict.fromkeys(map(self.find, keys))
        packed: dict[Entry, bundle.Packed] = {}
        for entry in chosen:
            try:
                packed[entry] = bundle.pack_entry(entry.path)
            except BundleError as error:
                self._quarantine(entry.path, str(error))
                if keys is not None:
                    raise
        if not packed:
            raise LookupError(f"the kernel cache at {self.root} has nothing to export")
        write_whole(Path(path), bundle.write_bundle(packed.values()))
        return list(packed)

    def import_bundle(self, path: str | os.PathLike[str]) -> list[Entry]:
        """Take the entries of the bundle `path`: what they were built for needs no compiler here.
        Returns the entries that this machine can use.

        All of them are checked before any is taken. Entries for other machines are left out with a
        warning that names what is missing. Code is imported: take bundles only from people whose
        programs you would run.

        Raises:
            BundleError: it is no bundle, it is damaged, or no entry of it fits this machine.
            OSError: it cannot be read, or the cache cannot be written.
        """
        from bringup.jit.store import bundle

        if os.path.exists(path) and not os.path.isfile(path):
            raise BundleError(
                f"{os.fspath(path)} is no file; expected one that `bringup cache export` writes"
            )
        return self.take_all(bundle.read_bundle(read_bytes(os.fspath(path)), str(path)), str(path))

    def take_all(self, packed: Sequence[bundle.Packed], what: str) -> list[Entry]:
        """Take the entries of a bundle that was read. Returns the entries that this machine can
        use.

        Args:
            packed: the entries.
            what: what messages call the bundle.

        Raises:
            BundleError: no entry fits this machine.
            OSError: the cache cannot be written.
        """
        fitting = [entry for entry in packed if not entry.incompatibility_reason]
        if refused := [entry for entry in packed if entry.incompatibility_reason]:
            first = refused[0]
            reason = f"{first.meta['name']} ({first.key[:12]}): {first.incompatibility_reason}"
            if not fitting:
                raise BundleError(f"nothing in the bundle {what} is for this machine: {reason}")
            _log.warning(
                "%d entries of %s are not for this machine: %s", len(refused), what, reason
            )
        with self._unwritable_is_an_error("written"):
            for entry in fitting:
                self.take(entry)
                origin, binary = entry.meta["origin"], entry.meta["files"][BINARY]
                headers = tuple(PortableHeader(*header) for header in origin["headers"])
                of = Origin(origin["key"], origin["machine"], tuple(origin["requires"]), headers)
                of = of._replace(also=tuple(origin.get("also", ())))
                self.add_portable(of, entry.key, binary["size"], binary["sha256"], imported=True)
            self.make_room()
        keys = {entry.key for entry in fitting}
        return [entry for entry in self.entries() if entry.key in keys]

    def take(self, packed: bundle.Packed) -> None:
        """Make a packed entry one of this cache. Raises `StoreUnwritableError`."""
        staged = self.stage()
        try:
            with translate_write_errors():
                for name, content in packed.files.items():
                    write_durably(staged / name, content)
                sync(staged)
                self._commit(staged, packed.key, packed.meta["files"][BINARY])
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def make_room(self, *keep: str) -> None:
        """Prune other entries if the cache has grown beyond its bounds: for after entries came."""
        from bringup.jit.store import prune

        with contextlib.suppress(StoreUnwritableError):
            prune.prune_when_full(
                self.layout, settings.cache_max_bytes(), settings.cache_max_entries(), keep
            )

    @contextlib.contextmanager
    def _unwritable_is_an_error(self, done: str) -> Iterator[None]:
        try:
            yield
        except StoreUnwritableError as error:
            raise PermissionError(
                f"the kernel cache at {self.root} cannot be {done}: {error}"
            ) from error

    def recall(self, name: str) -> bytes | None:
        """Return what was kept as `name`, a compiler's answer in another process, or None."""
        try:
            return read_bytes(f"{self.layout.prefix}.toolchains/{name}")
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Keep `content`, a compiler's answer, as `name` for others, if this can be written."""
        with contextlib.suppress(StoreUnwritableError):
            replace_file(self.layout.folder(".toolchains") / name, content)

    def lookup(self, request_key: str) -> Hit | None:
        """Return the verified entry of `request_key` whose headers are as they were, or None."""
        for variant in self._requests.variants(request_key):
            if variant.holds() and self._intact(variant):
                return self._used(self._hit(variant))
        return None

    def lookup_portable(
        self, portable_key: str, roots: Sequence[tuple[str, str]], *, compiler_is_missing: bool
    ) -> tuple[Hit | None, list[str]]:
        """Return the verified entry, whatever compiler built it, and why others were refused.

        Args:
            portable_key: what was asked for, without the compiler.
            roots: where headers are now, by the names that entries have for these folders.
            compiler_is_missing: False: only builds that were imported count.
        """
        refused = []
        for variant in self._portables.variants(portable_key):
            if not (variant.imported or compiler_is_missing):
                continue
            if reason := incompatibility_reason(variant.machine, variant.requires):
                refused.append(reason)
            elif all(header.holds(roots, system=False) for header in variant.headers):
                if self._intact(variant):
                    found = _found(variant.headers, roots)
                    path = Path(self.layout.binary(variant.key))
                    hit = Hit(path, variant.key, found, _searched(variant.headers, roots))
                    return self._used(hit), refused
            else:
                refused.append("it was built from other headers")
        return None, refused

    def recall_call(self, name: str, proved: str) -> RecordedBuild | None:
        """Return the build that a call of this name was answered with, if all that the answer
        depends on is untouched; `proved` as in `CallIndex.find`.
        """
        return self._calls.find(name, proved)

    def verified_hit(self, build: RecordedBuild) -> Hit | None:
        """Return the verified entry of a build, or None when its binary is gone or another one."""
        path = self.layout.binary(build.key)
        try:
            intact = quick_digest(read_bytes(path)) == build.digest
        except OSError:
            return None
        return self._used(Hit(Path(path), build.key, ())) if intact else None

    def note_call(self, name: str, record: bytes) -> None:
        """Let others recall how the call `name` was answered, where `record` can be written."""
        with contextlib.suppress(StoreUnwritableError, OSError):
            self._calls.add(name, record)

    def _hit(self, variant: Variant) -> Hit:
        key, _, sha256, headers, searched = variant
        return Hit(Path(self.layout.binary(key)), key, headers, searched, sha256)

    def _used(self, hit: Hit) -> Hit:
        touch(f"{self.layout.prefix}{hit.key[:2]}/{hit.key}")
        return hit

    def publish(
        self,
        staged: Path,
        request_key: str,
        record: Record,
        headers: Sequence[Header],
        searched: Searched,
        origin: Origin,
        facts: Mapping[str, object],
    ) -> Hit:
        """Make the folder `staged` an entry, whole or not at all, and return it.

        When another process was first, its entry is returned.

        Args:
            staged: has the binary; is moved.
            request_key: what finds it again.
            record: what the key is made of.
            headers: what the compiler read.
            searched: where it looked for files, and which of them were there.
            origin: what finds it without its compiler.
            facts: more for its `meta.json`.

        Raises `StoreUnwritableError`.
        """
        key = key_of(record)
        with translate_write_errors():
            files = {path.name: path.read_bytes() for path in sorted(staged.iterdir())}
            manifest = {
                name: {"size": len(content), "sha256": bytes_digest(content)}
                for name, content in files.items()
            }
            meta = {
                **facts,
                "key": key,
                "record": record,
                "headers": [header.path for header in headers],
                "origin": origin._asdict(),
                "files": manifest,
            }
            (staged / META).write_text(json.dumps(meta))
            sync(staged / BINARY, staged / META, staged)
            size, sha256 = self._commit(staged, key, manifest[BINARY])
            variant = Variant(key, size, sha256, tuple(headers), searched)
            self._requests.add(request_key, variant)
            self.add_portable(origin, key, size, sha256)
        return self._used(self._hit(variant))

    def add_portable(
        self, origin: Origin, key: str, size: int, sha256: str, *, imported: bool = False
    ) -> None:
        """Let an entry be found without its compiler. Raises `StoreUnwritableError`.

        Args:
            origin: what was asked for, and the machine that it runs on.
            key: of the entry.
            size: of its binary, in bytes.
            sha256: of its binary.
            imported: whether it came with a bundle.
        """
        variant = PortableVariant(key, size, sha256, *origin[1:4], imported)
        for name in (origin.key, *origin.also):
            self._portables.add(name, variant)

    def _commit(self, staged: Path, key: str, ours: Mapping[str, Any]) -> tuple[int, str]:
        """Return size and digest of the binary now under `key`; `ours` describes the staged one."""
        final = self.layout.entry(key)
        final.parent.mkdir(exist_ok=True, mode=0o700)
        size = folder_size(staged)
        for _ in range(3):
            if winner := self.verified(key):
                return winner
            try:
                staged.rename(final)  # what is lost with a name that the disk had not yet: a build
            except OSError as error:
                if error.errno not in _OCCUPIED:
                    raise
            else:
                Sizes(self.layout).add(key, size, 1)
                return ours["size"], ours["sha256"]
        raise StoreUnwritableError(f"{final} holds something that cannot be put aside")

    def _intact(self, variant: Variant | PortableVariant) -> bool:
        """Return whether the binary is what the index, or at least its own meta.json, says."""
        try:
            content = read_bytes(self.layout.binary(variant.key))
        except OSError:
            content = b""
        if len(content) == variant.size and bytes_digest(content) == variant.sha256:
            return True
        return self.verified(variant.key) is not None

    def verified(self, key: str) -> tuple[int, str] | None:
        """Return size and digest of the binary `key`, as its meta.json says; put others aside."""
        entry = self.layout.entry(key)
        try:
            meta: dict[str, Any] = json.loads(read_bytes(str(entry / META)))
            size, sha256 = meta["files"][BINARY]["size"], meta["files"][BINARY]["sha256"]
            content = read_bytes(str(entry / BINARY))
            if meta["key"] != key:
                problem = f"it is entry {str(meta['key'])[:12]}"
            elif len(content) != size:
                problem = f"{BINARY} has {len(content)} bytes instead of {size}"
            elif bytes_digest(content) != sha256:
                problem = f"the content of {BINARY} has changed"
            else:
                return size, sha256
        except FileNotFoundError as error:
            if not os.path.lexists(entry):
                return None
            problem = f"{Path(error.filename).name} is missing"
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"{META} cannot be read ({error!r})"
        self._quarantine(entry, problem)
        return None

    def _quarantine(self, entry: Path, problem: str) -> None:
        try:
            aside = self.layout.folder(QUARANTINE) / entry.name
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(OSError):
                aside.unlink()  # a file, put aside by the same name before
            entry.rename(aside)
            done = f"moved to {aside} and built again"
        except FileNotFoundError:
            return  # another process put it aside
        except (OSError, StoreUnwritableError) as error:
            done = f"not used (it cannot be put aside: {error})"
        _log.warning("damaged kernel cache entry %s: %s; %s", entry, problem, done)

    def stage(self) -> Path:
        """Return a new folder to build in, on the store's disk. Raises `StoreUnwritableError`."""
        staging = self.layout.folder(STAGING)
        folder = staging / f"{os.getpid()}-{next(_serial)}-{time.time_ns()}"
        with translate_write_errors():
            folder.mkdir(mode=0o700)
        return folder

    def adopt(self, staged: Path) -> Path:
        """Return a copy of another cache's staged folder. Raises `StoreUnwritableError`."""
        folder = self.stage()
        with translate_write_errors():
            for file in staged.iterdir():
                if file.name not in (META, LAST_USED):
                    shutil.copyfile(file, folder / file.name)
        return folder


def _found(
    headers: Iterable[PortableHeader], roots: Sequence[tuple[str, str]]
) -> tuple[Header, ...]:
    """Return where the headers of the request lie here."""
    folders = dict(roots)
    return tuple(
        Header(os.path.join(folders[header.root], header.path), header.digest, None)
        for header in headers
        if header.root and not header.is_place
    )


def _searched(headers: Iterable[PortableHeader], roots: Sequence[tuple[str, str]]) -> Searched:
    """Return where files were looked for in the folders of the request."""
    folders = dict(roots)
    paths: dict[bool, list[str]] = {False: [], True: []}
    for header in headers:
        if header.is_place:
            path = os.path.join(folders[header.root], header.path)
            paths[header.says_present].append(path)
    return Searched.of(paths[False], paths[True])
