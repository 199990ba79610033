"""What `compile` is called with as a value: stored, sent to another process, recorded in a run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bringup.jit.files.layout import write_whole
from bringup.jit.lookup import events
from bringup.jit.source.source import Source
from bringup.jit.target.debug import Debug
from bringup.jit.target.flags import Macro, render_flags, render_macros

if TYPE_CHECKING:
    from bringup.jit.builder.request import Request


_FORMAT = 1
_SOURCE_FIELDS = ("text", "name", "entry", "abi", "kind")


@dataclass(frozen=True)
class Spec:
    """One kernel that a caller may want: hashable, picklable, and its `repr` is Python that makes
    it again.

    Args:
        source: what is compiled.
        macros: as for `jit.compile`, or `"NAME=value"` texts. Kept as sorted texts.
        flags: as for `jit.compile`.
        target: what it is built for.
        debug: as for `jit.compile`; None asks `BRINGUP_JIT_DEBUG` when it is built.

    Raises:
        TypeError, ValueError: a macro or a flag cannot be what it says.
    """

    source: Source
    macros: Mapping[str, Macro] | Iterable[str] = ()
    flags: Iterable[str] = ()
    target: str = "cpu"
    debug: Debug | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, Source):
            raise TypeError(
                f"jit.Spec(source=...): expected a jit.Source, got {type(self.source).__name__} "
                f"({self.source!r})"
            )
        object.__setattr__(self, "macros", _canonical(self.macros))
        object.__setattr__(self, "flags", render_flags(self.flags))

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `jit.compile` besides the source."""
        macros = dict(text.split("=", 1) for text in self.macros)
        return {"macros": macros, "target": self.target, "flags": self.flags, "debug": self.debug}

    @classmethod
    def of(cls, request: Request) -> Spec:
        """Return the spec that the call of `compile` in `request` amounted to."""
        debug = request.debug if request.debug else None
        return cls(request.source, request.macros, request.flags, request.target, debug)

    def __str__(self) -> str:
        debug = self.debug.words if self.debug else ()
        parts = [str(self.source), *self.macros, *self.flags, *debug]
        return f"{' '.join(parts)} for {self.target}"

    def __repr__(self) -> str:
        more = [f"macros={list(self.macros)!r}"] if self.macros else []
        more += [f"flags={list(self.flags)!r}"] if self.flags else []
        more += [f"target={self.target!r}"] if self.target != "cpu" else []
        more += [f"debug=jit.{self.debug!r}"] if self.debug is not None else []
        return f"jit.Spec({', '.join([_source_code(self.source), *more])})"


def _canonical(macros: Mapping[str, Macro] | Iterable[str]) -> tuple[str, ...]:
    if isinstance(macros, Mapping):
        return render_macros(macros)
    if isinstance(macros, str):
        raise TypeError(f"macros={macros!r}: expected a mapping or a sequence of NAME=value texts")
    pairs: dict[str, Macro] = {}
    for text in macros:
        name, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not equals:
            raise ValueError(f"macro {text!r}: expected a text like NAME=value")
        pairs[name] = value
    return render_macros(pairs)


def _source_code(source: Source) -> str:
    given = _source_fields(source)
    path = given.pop("path", None)
    first = [] if path is None else [repr(path)]
    return f"jit.Source({', '.join([*first, *(f'{k}={v!r}' for k, v in given.items())])})"


def _source_fields(source: Source) -> dict[str, str]:
    """Return what the source was made with, defaults left out."""
    if source.path is not None:
        given, plain = {"path": str(source.path)}, Source(source.path)
    else:
        given, plain = {}, Source(text=source.text)
    changed = {
        field: getattr(source, field)
        for field in _SOURCE_FIELDS
        if getattr(source, field) != getattr(plain, field) or field == "text"
    }
    return given | {field: value for field, value in changed.items() if value is not None}


def save_specs(path: str | os.PathLike[str], specs: Iterable[Spec]) -> None:
    """Write specs to a JSON file that `load_specs` and `bringup cache prebuild` read, whole or not
    at all. A source that is a text travels in the file; one that is a file stays where it is.

    Args:
        path: the file; its folder exists. A file of this name is replaced.
        specs: what is written, in this order.

    Raises:
        OSError: the file cannot be written.
    """
    listed = [
        {
            "source": _source_fields(spec.source),
            "macros": list(spec.macros),
            "flags": list(spec.flags),
            "target": spec.target,
            "debug": None if spec.debug is None else asdict(spec.debug),
        }
        for spec in specs
    ]
    content = json.dumps({"bringup_specs": _FORMAT, "specs": listed}, indent=1) + "\n"
    write_whole(Path(path), content.encode())


def load_specs(*paths: str | os.PathLike[str]) -> list[Spec]:
    """Return the specs of files of `save_specs` or `record`, each once, in their order.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file holds something else; the message names the file and the place in it.
    """
    found: dict[Spec, None] = {}
    for path in paths:
        try:
            content = json.loads(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: expected a file of kernel specs, got {error}") from None
        if not isinstance(content, dict) or content.get("bringup_specs") != _FORMAT:
            raise ValueError(
                f"{path}: expected a file of kernel specs, written by jit.record or "
                f'jit.save_specs (with "bringup_specs": {_FORMAT})'
            )
        for index, item in enumerate(content.get("specs", ())):
            try:
                found[_read_spec(item)] = None
            except (TypeError, ValueError, KeyError, AttributeError) as error:
                raise ValueError(f"{path}: spec {index} cannot be read: {error}") from error
    return list(found)


def _read_spec(item: dict[str, Any]) -> Spec:
    source = Source(**item["source"])
    debug = None if item["debug"] is None else Debug(**item["debug"])
    return Spec(source, item["macros"], item["flags"], item["target"], debug)


class Recording:
    """The kernels that were asked for while `jit.record` was on."""

    def __init__(self) -> None:
        self._found: dict[Spec, None] = {}

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Return each kernel once, in the order in which they were asked for first."""
        return tuple(self._found)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the specs to `path`; see `save_specs`."""
        save_specs(path, self.specs)

    def _note(self, event: events.Event) -> None:
        self._found.setdefault(Spec.of(event.request), None)


@contextmanager
def record(path: str | os.PathLike[str] | None = None) -> Iterator[Recording]:
    """Note, in every thread, each kernel that is asked for in the block; yields the recording.

    Operators ask once per kernel in a process, so record from the start of the run that is to be
    repeated. With `path` the specs are written there at the end, also when the run failed.
    """
    recording = Recording()
    end = events.subscribe(recording._note, events.Asked)
    try:
        yield recording
    finally:
        end()
        if path is not None:
            recording.save(path)
