"""The interface of targets: how a vendor's compiler is found, asked what it is, and called."""

from __future__ import annotations

import abc
import contextlib
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from bringup.errors import TargetError
from bringup.jit.files.elf import machine_of, this_machine
from bringup.jit.source.argument_check import Declared
from bringup.jit.source.declaration import (
    after_position,
    as_declared,
    check_returns_nothing,
    declared_in,
)
from bringup.jit.source.languages import add_languages, broken_packages, import_packages
from bringup.jit.source.source import Kind, Source
from bringup.jit.target.compiler_process import Finished, run
from bringup.jit.target.debug import Debug
from bringup.jit.target.toolchain import Memo, Toolchain, compiler_environment

if TYPE_CHECKING:
    from bringup._language.c_call import CParameter
    from bringup._language.signature import Argument
    from bringup.jit.source.loop_language import LoopLanguage
    from bringup.jit.source.writer import Writer


@dataclass(frozen=True)
class Job:
    """One run of a target's compiler, in a folder of its own.

    Attributes:
        source: what is compiled.
        file: where it lies: an absolute path, or the name of a file in `folder`.
        output: the file in `folder` that the binary has to be.
        macros: `NAME=value`, sorted.
        flags: the caller's options, in order; folders in them are absolute.
        debug: what to add for debugging.
        toolchain: what runs.
        folder: where it runs. `headers` and `linked` are written there.
        headers: the depfile, in make's syntax: which headers were read.
        linked: the same for what the linker read; a target that links nothing leaves it out.
        assembled: the same for what the assembler read; where it is left out, sources with
            `.incbin` have to name their files by literal absolute paths.
    """

    source: Source
    file: str
    output: str
    macros: tuple[str, ...]
    flags: tuple[str, ...]
    debug: Debug
    toolchain: Toolchain
    folder: Path
    headers: str = "kernel.d"
    linked: str = "link.d"
    assembled: str = "assemble.d"


class Target(abc.ABC):
    """Something that kernels are built for, with the compiler that does it.

    Attributes:
        name: what `jit.compile(target=)` calls it.
        languages: file suffix -> language, for the sources it builds.
        variables: environment variables that its compiler needs and that can change what it
            builds; their values belong to the key.
        words: words of its languages that C does not have, and what C says for them, for reading
            declarations: {"uint": "unsigned int", "global": ""}.
        takes_position: whether device code with plain arguments takes its place in the grid first,
            as what is built like the host's code does. A device's own language has words for it.
        host_library: whether a binary is a shared library that this process opens. Where it is
            not, the driver gets the file, and nothing here reads it.
        models: whether devices with different `arch` need binaries of their own. Then what stands
            behind the first dash of a device's `arch` is given to `variant`.
    """

    name: str
    languages: Mapping[str, str] = MappingProxyType(
        {".c": "c", ".cc": "c++", ".cpp": "c++", ".cxx": "c++"}
    )
    variables: tuple[str, ...] = ()
    words: Mapping[str, str] = MappingProxyType({})
    takes_position: bool = True
    host_library: bool = True
    models: bool = False

    @property
    def writer(self) -> Writer | None:
        """Return what writes entries around an author's function for one element; None: this target
        builds kernels that are whole.
        """
        return None

    @property
    def main_language(self) -> str:
        """Return the language that `bringup doctor` shows the options of."""
        known = tuple(self.languages.values())
        return "c++" if "c++" in known else known[0]

    @abc.abstractmethod
    def toolchain(self, memo: Memo, kind: Kind = "host") -> Toolchain:
        """Return the compiler for sources of this kind, as it is now.

        Called for every `jit.compile`, so the answer is worth keeping while nothing has changed.
        Raises `MissingCompilerError` saying how to get one.

        Args:
            memo: keeps what was found out about a compiler, so that it is asked once.
            kind: what the sources are for.
        """

    def found_by(self, language: str) -> tuple[object, ...] | None:
        """Return all that decides which compiler `toolchain` finds and which options a build in
        this language has when nothing is debugged, apart from the content of files; None when it
        cannot be said so. Then every process asks `toolchain` before it loads a kernel.
        """
        return None

    def passed_over(self, compiler: str) -> list[str] | None:
        """Return what `toolchain` would find before `compiler` if it were there; None: unknown."""
        return None

    @abc.abstractmethod
    def flags(self, toolchain: Toolchain, language: str, debug: Debug) -> tuple[str, ...]:
        """Return the options of every build, before the caller's. No folders: they are in the key.

        Raises `ValueError` for a debug build that this target does not have.

        Args:
            toolchain: the compiler that gets them.
            language: what the source is written in, one of the values of `languages`.
            debug: what to add for debugging.
        """

    @abc.abstractmethod
    def command(self, job: Job) -> list[str]:
        """Return the command line that makes `job.output`, `job.headers` and `job.linked` of
        `job.file`.
        """

    def run(self, job: Job, command: Sequence[str]) -> Finished:
        """Run `command`, the compiler's command line for `job`, once, under the limits of the
        settings, and return how it ended. A target whose compiler is a library does its work here.
        """
        return run(command, job.folder, compiler_environment(self.variables))

    def declaration(self, source: Source, entry: str) -> tuple[Declared, ...] | None:
        """Return the parameters of the function `entry` that `args=` fills, as the source declares
        them; None where its text does not show them: then the compiler has the last word.

        Raises `ValueError` saying why it is no function that can be started.
        """
        declared = declared_in(source, entry, self.words)
        if declared is None or source.abi != "values":
            return declared
        check_returns_nothing(source, entry)
        return after_position(entry, declared) if self.takes_position else declared

    def check_symbol(self, path: Path, name: str) -> None:
        """Raise `ValueError` when the binary at `path` has no entry of this name. Asked after a
        build where a binary is no library of the host; the loader tells for one that is. By default
        a binary has an entry whose name is in it.
        """
        if name.encode() not in path.read_bytes():
            raise ValueError(f"the binary of target {self.name!r} has no entry {name!r}")

    def tools(self, job: Job) -> Sequence[str]:
        """Return programs that flags of this job use, beyond those of the toolchain."""
        return ()

    def searched(self, toolchain: Toolchain, language: str, flags: Sequence[str]) -> Sequence[str]:
        """Return the folders in which the compiler looks for headers after those that the flags
        name, in order; nothing where that is not known. Then a header of the system that turns up
        before another one of the system is not noticed.

        `toolchain` is the compiler, `language` what the source is written in.
        """
        return ()

    def passed_by_linker(self, job: Job) -> Sequence[str]:
        """Return what the linker would have taken for libraries of this job, had it been there."""
        return ()

    def dumps(self, job: Job) -> Mapping[str, Sequence[str]]:
        """Return the commands that write what `job.debug` wants beside the binary, by file name."""
        return {}

    def covered(self) -> tuple[str, ...]:
        """Return the names of other targets whose requests a build of this one in a bundle answers:
        a fatbin's, those for each of its models. By default there are none.
        """
        return ()

    def check_loadable(self, path: Path, debug: Debug) -> None:
        """Raise `TargetError` if the binary at `path`, built with `debug`, cannot load here."""
        built_for = machine_of(path)
        if built_for and built_for != this_machine():
            raise TargetError(
                f"{path} was built by target {self.name!r} for {built_for}, and this machine is "
                f"{this_machine()}: it can be stored and shipped, not loaded here. Load it on "
                f"{built_for}, or compile for target 'cpu' to run it here"
            )

    def variant(self, text: str) -> Target:
        """Return the target `name:text`, another model of the machine. Raises `ValueError`."""
        raise ValueError(f"target '{self.name}:{text}': {self.name!r} has no variants")

    def check_language(self, source: Source) -> None:
        """Raise `ValueError` when this target cannot build what the source is written in."""
        if source.language not in self.languages.values():
            builds = ", ".join(dict.fromkeys(self.languages.values()))
            others = [
                name
                for name, other in targets().items()
                if source.language in other.languages.values()
            ]
            hint = f"; {' and '.join(map(repr, others))} can" if others else ""
            raise ValueError(
                f"{source}: target {self.name!r} builds {builds}, not {source.language}{hint}"
            )


@dataclass
class _Registry:
    """The targets by name, and the variants that were asked for."""

    named: dict[str, Target] = field(default_factory=dict)
    variants: dict[str, Target] = field(default_factory=dict)
    changing: threading.Lock = field(default_factory=threading.Lock)


_registry = _Registry()


@contextlib.contextmanager
def temporary_targets() -> Iterator[None]:
    """Remove at the end of the block the targets registered in it."""
    global _registry
    before, _registry = _registry, _Registry(dict(_registry.named))
    try:
        yield
    finally:
        _registry = before


def register_target(target: Target, *, replace: bool = False) -> None:
    """Make a target known to `jit.compile` by its name.

    Args:
        target: an object of a class of yours.
        replace: take the place of a target of the same name.

    Raises:
        TypeError: it is no `Target`.
        ValueError: the name is taken, is empty or has a colon (which asks for a variant), or a
            suffix of its languages is known as another language.
    """
    if not isinstance(target, Target):
        raise TypeError(
            f"jit.register_target: expected an object of a subclass of jit.Target, got "
            f"{type(target).__name__} ({target!r})"
        )
    name = target.name
    if not name or ":" in name or shlex.quote(name) != name:
        raise ValueError(f"jit.register_target: {name!r} cannot name a target; expected one word")
    with _registry.changing:
        if name in _registry.named and not replace:
            raise ValueError(
                f"jit.register_target: there is a target {name!r} already "
                f"({type(_registry.named[name]).__name__}); replace=True takes its place"
            )
        add_languages(target.languages)
        _registry.named[name] = target
        _registry.variants = {
            full: made
            for full, made in _registry.variants.items()
            if full.partition(":")[0] != name
        }


def targets() -> Mapping[str, Target]:
    """Return the targets by name, without their variants; those of installed packages too."""
    import_packages()
    return MappingProxyType(_registry.named)


def find_target(name: str) -> Target:
    """Return the target `name` or `name:variant`. Raises `ValueError` listing all."""
    found = _registry.named.get(name) or _registry.variants.get(name)
    if found is not None:
        return found
    family, colon, text = name.partition(":") if isinstance(name, str) else ("", "", "")
    known = _registry.named.get(family) or targets().get(family)
    if known is None:
        raise ValueError(
            f"target {name!r}: expected one of {', '.join(map(repr, _registry.named))}"
            f"{broken_packages()}"
        )
    if not colon:
        return known
    made = known.variant(text)
    with _registry.changing:
        return _registry.variants.setdefault(name, made)


def loops_of(target: str) -> LoopLanguage | None:
    """Return the language of torch.compile's loop nests for a target, or None."""
    known = target.partition(":")[0] in targets()
    writer = find_target(target).writer if known else None
    return writer.loops if writer is not None else None


def target_of_arch(arch: str) -> str:
    """Return the name of the target that builds for devices with this `arch`: "sim" of "sim-1",
    and "opencl:gfx90a" of "opencl-gfx90a" where each model needs code of its own.
    """
    family, dash, model = arch.partition("-")
    found = _registry.named.get(family) or targets().get(family)
    return f"{family}:{model}" if found is not None and found.models and dash else family


def target_of_language(language: str) -> Target:
    """Return the first target that builds this language, which says how declarations are read."""
    return next(one for one in _registry.named.values() if language in one.languages.values())


def called_as_declared(
    source: Source, parameters: Sequence[CParameter], where: str, signature: Sequence[Argument]
) -> tuple[CParameter, ...]:
    """Return a function's parameters as its source declares them, or raise `ValueError`."""
    try:
        declared = target_of_language(source.language).declaration(source, source.entry)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return as_declared(source, declared, parameters, where, signature)
