"""Targets whose compiler is called like GCC: the host's own g++ or clang++, cross compilers."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bringup import settings
from bringup.errors import MissingCompilerError, TargetError
from bringup.jit.files.depfile import read_depfile
from bringup.jit.files.elf import this_machine
from bringup.jit.source.source import Kind
from bringup.jit.target.compiler_process import Finished
from bringup.jit.target.debug import Debug, Sanitizer
from bringup.jit.target.flags import include_directories
from bringup.jit.target.target import Job, Target, register_target
from bringup.jit.target.toolchain import (
    KnownToolchain,
    Memo,
    Toolchain,
    ask,
    bringup_includes,
    build_environment,
    candidates,
    content_of,
    libraries_of,
    on_path,
    recalled_or_asked,
    space_advice,
    stamps_of,
)

# A header that is read before any other: gcc takes a precompiled one (`x.h.gch`) only in the first
# place, does not say so, and never compares it with its header. And the time of a file is not its
# content.
_SAME_EVERYWHERE = (
    "-include/dev/null",
    "-Wno-builtin-macro-redefined",
    '-D__TIMESTAMP__="Thu Jan  1 00:00:00 1970"',
)
# No errno and no trapping arithmetic: neither changes a value, both keep loops from being
# vectorised. No contraction, so that `a * b + c` is what C and torch say it is, on every processor;
# a kernel that wants fused roundings asks for them by a flag of its own. Interposition off: a
# kernel's own functions are inlined, and a symbol of the same name in the process cannot take their
# place. That includes those that g++ lets the loader make one for all libraries (_ISOLATING).
_COMPILE_FLAGS = (
    "-O3", "-fPIC", "-shared", "-pipe", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fno-semantic-interposition",
)  # fmt: skip
# clang makes no unique symbols and does not know the option. Where another compiler or an archive
# makes some, `build` takes the mark from the binary.
_ISOLATING = {"gcc": ("-fno-gnu-unique",)}
_LINK_FLAG = "-Wl,-Bsymbolic,-z,defs,-z,noseparate-code,--as-needed"
_LANGUAGE_FLAGS = {"c": ("-x", "c", "-std=c11"), "c++": ("-x", "c++", "-std=c++17")}
_ONLY_LIBC = ("-nostdlib", "-lm", "-lc", "-lgcc")
_NEEDS_MORE = r"undefined (reference|symbol)|cannot find -l|unable to find library"
_CPP_HEADER = rb"(?m)^\s*#\s*include\s*<(?!c)[a-z_]+>"
_SANITIZERS = {
    ("gcc", "address"): "libasan.so",
    ("gcc", "undefined"): "libubsan.so",
    ("clang", "address"): "libclang_rt.asan-{}.so",
    ("clang", "undefined"): "libclang_rt.ubsan_standalone-{}.so",
}
# Flags that say nothing about linking.
_COMPILES_ONLY = r"-(D|U|I|iquote|isystem|idirafter|O|m|std=|W(?!l,))"
# These change no folder in which headers are looked for.
_KEEPS_FOLDERS = (
    r"-(D|U|I|iquote|isystem|idirafter|include|imacros|O|W|l|L|g|std=|march=|mtune=|pthread"
    r"|m(no-)?(avx|sse|fma|f16c|bmi|prefer)|f(?!sanitize))"
)
_MISSING_FOLDER = r'(?m)^ignoring nonexistent directory "(.+)"$'
_SEARCHED_FOLDER = r"(?m)^ (/.+)$"  # of `-v`: one a line, indented
_LINKS = r"-(l|L|Wl,|m|f|static|nostdlib|nodefaultlibs|-sysroot)"
_NAMES_LIBRARY = r"-l|--library"
_ATTEMPT = r"(?m)^attempt to open (/.+) failed$"
# These choose the programs that take part in a build.
_CHOOSES_PROGRAMS = r"(-fuse-ld=.+|--ld-path=.+|-flto.*|-fno-integrated-as)\Z"


if TYPE_CHECKING:
    from bringup.jit.source.writer import Writer


class GnuTarget(Target):
    """A target whose compiler is called like GCC.

    Args:
        name: the target's name.
        compilers: what to look for on PATH, best first.
        march: the value of `-march`; a variant of the target (`name:march`) has another.
        get: how to get the compiler, for the message when there is none.
        chosen: the compiler that a setting names, or "".
        setting: the name of that setting.
        runs_here: whether what it builds is meant for this machine.
    """

    def __init__(
        self,
        name: str,
        compilers: Sequence[str],
        *,
        march: str,
        get: str,
        chosen: Callable[[], str] = str,
        setting: str = "",
        runs_here: bool = False,
    ) -> None:
        self.name = name
        self._compilers = tuple(compilers)
        self._march = march
        self._get = get
        self._chosen = chosen
        self._setting = setting
        self._runs_here = runs_here
        self.known_toolchain = KnownToolchain()
        self._folders: dict[tuple[object, ...], tuple[str, ...]] = {}

    @property
    def writer(self) -> Writer:
        """Return the writer of entries in C++."""
        from bringup.jit.source.cpp_writer import CppWriter  # not every kernel has one written

        return CppWriter()

    def variant(self, text: str) -> Target:
        """Return the same compiler with another `-march`. Raises `ValueError` for none."""
        if not re.match(r"[A-Za-z0-9][A-Za-z0-9.+_-]*\Z", text):
            raise ValueError(
                f"target '{self.name}:{text}': expected a value for -march after the colon"
            )
        made = GnuTarget.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.name, made._march = f"{self.name}:{text}", text
        made.known_toolchain = KnownToolchain()
        return made

    def toolchain(self, memo: Memo, kind: Kind = "host") -> Toolchain:
        """Return the compiler as it is now; the same for every kind of source."""
        asked_for = self._asked_for()

        def find() -> Toolchain:
            compiler = self._find()
            which = (compiler, self._march, asked_for)
            return recalled_or_asked(memo, which, lambda: self._query(compiler))

        return self.known_toolchain.get(asked_for, find)

    def _asked_for(self) -> tuple[object, ...]:
        return (
            self._chosen(),
            settings.inherited("PATH", "LD_LIBRARY_PATH", *self.variables),
            bringup_includes(),  # another installation may share the cache
        )

    def _names(self) -> tuple[str, ...]:
        wanted = self._chosen()
        return (os.path.expanduser(wanted),) if wanted else self._compilers

    def found_by(self, language: str) -> tuple[object, ...] | None:
        """Return settings, names and options; None for a subclass, which may ask more."""
        if type(self) is not GnuTarget:
            return None
        of_language = (_LANGUAGE_FLAGS[language], _SAME_EVERYWHERE)
        options = (of_language, self._march, _COMPILE_FLAGS, _ISOLATING, _LINK_FLAG)
        return (*self._asked_for(), self._names(), self._runs_here, options)

    def passed_over(self, compiler: str) -> list[str] | None:
        """Return the places on PATH before `compiler`'s; None with folders that are relative."""
        passed: list[str] = []
        for candidate in itertools.chain.from_iterable(map(candidates, self._names())):
            if candidate == compiler:
                return passed
            if not os.path.isabs(candidate):
                return None
            passed.append(candidate)
        return None

    def _find(self) -> str:
        for name in self._names():
            if found := on_path(name):
                return found
        wanted, looked_for = self._chosen(), ", ".join(self._compilers)
        if wanted:
            raise MissingCompilerError(
                f"no compiler for target {self.name!r}: {self._setting} is {wanted!r}, and there "
                f"is no such program. Unset it to use the first of {looked_for} on PATH, or get "
                f"one with: {self._get}"
            )
        unset = f"{self._setting} is not set, and " if self._setting else ""
        raise MissingCompilerError(
            f"no compiler for target {self.name!r}: {unset}none of {looked_for} is on PATH. Get "
            f"one with: {self._get}"
        )

    @property
    def _advice(self) -> str:
        named = f"Set {self._setting} to a working C++ compiler" if self._setting else "Mend it"
        return f"{named}, or get one with: {self._get}"

    def _ask(self, compiler: str, *arguments: str, said_on_stderr: bool = False) -> str:
        return ask(
            compiler,
            *arguments,
            get=self._advice,
            said_on_stderr=said_on_stderr,
            variables=self.variables,
        )

    def _query(self, compiler: str) -> Toolchain:
        version = self._ask(compiler, "--version")
        baseline = self.predefined_macros(compiler)
        try:
            isa = self.predefined_macros(compiler, f"-march={self._march}")
        except MissingCompilerError as error:  # it has answered a moment ago
            raise ValueError(
                f"target {self.name!r}: {version.partition(chr(10))[0]} does not know "
                f"-march={self._march}; {error}"
            ) from error
        here = self.predefined_macros(compiler, "-march=native") if self._runs_here else isa
        programs = _Programs.of(compiler, self._ask)
        linked = self._linked_by_default(compiler)
        files = (programs.compiler, programs.assembler, programs.linker)
        libraries = [
            [library for program in part for library in libraries_of(program)] for part in files
        ]
        identity, assembler, linker = (
            content_of(version, (*part, *dict.fromkeys(also)))
            for part, also in zip(files, libraries, strict=True)
        )
        found = Toolchain(
            compiler=compiler,
            version=version.partition("\n")[0],
            family="clang" if "__clang__ 1" in baseline else "gcc",
            machine=self._ask(compiler, "-dumpmachine").strip(),
            isa=tuple(sorted(isa - baseline)),
            identity=identity,
            assembler=assembler,
            linker=linker,
            runtime=content_of("", linked),
            tools=stamps_of(programs.compiler),
            parts=stamps_of(
                (*programs.assembler, *programs.linker, *itertools.chain(*libraries), *linked)
            ),
            linked=tuple(linked),
            lacking=_lacking(isa, here) if self._runs_here else (),
            environment=build_environment(self.variables),
            include_directories=bringup_includes(),
            c_folders=self._header_folders(compiler, "c"),
            cxx_folders=self._header_folders(compiler, "c++"),
        )
        return found.fingerprinted()

    def _header_folders(self, compiler: str, language: str, *flags: str) -> tuple[str, ...]:
        """Return the compiler's header folders, first those that it would search."""
        question = (*flags, "-E", "-v", "-x", language, os.devnull)
        said = self._ask(compiler, *question, said_on_stderr=True)
        listed = said.partition("search starts here:")[2].partition("End of search list")[0]
        return (*re.findall(_MISSING_FOLDER, said), *re.findall(_SEARCHED_FOLDER, listed))

    def searched(self, toolchain: Toolchain, language: str, flags: Sequence[str]) -> Sequence[str]:
        """Return the compiler's own folders; it is asked again for flags that may change them."""
        asked = tuple(flag for flag in flags if not re.match(_KEEPS_FOLDERS, flag))
        if not asked:
            return toolchain.c_folders if language == "c" else toolchain.cxx_folders
        known = (toolchain.fingerprint, language, asked)
        if known not in self._folders:
            self._folders[known] = self._header_folders(toolchain.compiler, language, *asked)
        return self._folders[known]

    def passed_by_linker(self, job: Job) -> Sequence[str]:
        """Return what GNU ld says that it tried; an empty library is linked for it."""
        naming = [flag for flag in job.flags if re.match(_LINKS, flag)]
        if not any(re.search(_NAMES_LIBRARY, flag) for flag in naming):
            return ()
        output = job.folder / "passed.so"
        command = (job.toolchain.compiler, "-shared", "-fPIC", "-x", "c++", os.devnull)
        done = super().run(job, [*command, f"-o{output}", *naming, "-Wl,--verbose"])
        output.unlink(missing_ok=True)
        return re.findall(_ATTEMPT, done.output)

    def predefined_macros(self, compiler: str, *flags: str) -> set[str]:
        """Return the macros that the compiler defines by itself with these flags."""
        lines = self._ask(compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull).splitlines()
        return {line.removeprefix("#define ") for line in lines}

    def _linked_by_default(self, compiler: str) -> list[str]:
        """Return the files that the linker reads for an empty library."""
        with self._temporary_folder(compiler) as folder:
            output, linked = f"{folder}/empty.so", f"{folder}/link.d"
            arguments = ("-shared", "-fPIC", "-x", "c++", os.devnull, f"-o{output}")
            self._ask(compiler, *arguments, f"-Wl,--dependency-file={linked}")
            try:
                return [path for path in read_depfile(linked) if os.path.isfile(path)]
            except FileNotFoundError:
                raise MissingCompilerError(
                    f"no compiler for target {self.name!r}: {compiler} linked nothing, or its "
                    f"linker knows no --dependency-file (GNU ld has it since 2.35). {self._advice}"
                ) from None

    @contextlib.contextmanager
    def _temporary_folder(self, compiler: str) -> Iterator[str]:
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bringup-"))
            except OSError as error:
                raise MissingCompilerError(
                    f"the compiler {compiler} cannot be tried: {error}. "
                    f"{space_advice([str(error)]) or self._advice}"
                ) from error
            yield folder

    def flags(self, toolchain: Toolchain, language: str, debug: Debug) -> tuple[str, ...]:
        """Return the options to optimise for `-march`, and to strip unless it is to be debugged."""
        inside = debug.line_info or debug.sanitizers
        return (
            *_LANGUAGE_FLAGS[language],
            *_SAME_EVERYWHERE,
            f"-march={self._march}",
            *_COMPILE_FLAGS,
            *_ISOLATING.get(toolchain.family, ()),
            _LINK_FLAG if inside else f"{_LINK_FLAG},-s",
            *_debug_flags(toolchain, debug),
        )

    def command(self, job: Job) -> list[str]:
        """Return the command line, with everything that keeps folders out of the binary."""
        return [
            *self._compile_command(job),
            *(f"-Wl,--require-defined={job.source.symbol}", f"-Wl,--dependency-file={job.linked}"),
            *("-MD", "-MF", job.headers, "-MT", "kernel", "-o", job.output),
            *([f"-Wa,--MD,{job.assembled}"] if job.toolchain.family == "gcc" else []),
            *self._sanitizer_folders(job),
            job.file,
            *job.flags,
        ]

    def _compile_command(self, job: Job) -> list[str]:
        toolchain, source = job.toolchain, job.source
        searched = [*toolchain.include_directories, *include_directories(job.flags)]
        # Where the sources lie must not show in the binary: the same key is the same content.
        mapped = [
            (str(job.folder), "."),
            (source.directory, "."),
            *((directory, "include") for directory in searched),
        ]
        return [
            toolchain.compiler,
            *self.flags(toolchain, source.language, job.debug),
            *(f"-ffile-prefix-map={directory}={shown}" for directory, shown in mapped if directory),
            *(f"-D{macro}" for macro in job.macros),
            *(f"-I{directory}" for directory in toolchain.include_directories),
        ]

    def _sanitizer(self, toolchain: Toolchain, name: str) -> str:
        library = _SANITIZERS[toolchain.family, name].format(toolchain.machine.partition("-")[0])
        return self._ask(toolchain.compiler, f"-print-file-name={library}").strip()

    def sanitizer_runtime(self, name: Sanitizer) -> str:
        """Return the library of the sanitizer `name` that a process has to have from its start."""
        known = self.known_toolchain.last
        return self._sanitizer(known, name) if known is not None else f"lib{name[0]}san.so"

    def _sanitizer_folders(self, job: Job) -> list[str]:
        """Return where the loader has to look for runtimes: clang's lie in a folder of its own."""
        if job.toolchain.family != "clang":
            return []
        paths = [self._sanitizer(job.toolchain, name) for name in job.debug.sanitizers]
        return [f"-Wl,-rpath,{os.path.dirname(path)}" for path in paths]

    def run(self, job: Job, command: Sequence[str]) -> Finished:
        """Run the compiler; at first without what most kernels do not need.

        Reading libstdc++ and the start-up files costs the linker a fifth of a small kernel's build,
        and `--as-needed` drops them again. What does need them says so, and is linked with them.
        """
        if _may_need_only_libc(job):
            done = super().run(job, [*command, *_ONLY_LIBC])
            if done.status == 0 or not re.search(_NEEDS_MORE, done.output):
                return done
        return super().run(job, command)

    def tools(self, job: Job) -> list[str]:
        """Return the programs that flags of this job use, beyond the toolchain's own."""
        choosing = [flag for flag in job.flags if re.match(_CHOOSES_PROGRAMS, flag)]
        if not choosing:
            return []
        programs = _Programs.of(job.toolchain.compiler, self._ask, choosing)
        known = {path for path, _ in (*job.toolchain.tools, *job.toolchain.parts)}
        return [path for path in programs.all if path not in known]

    def dumps(self, job: Job) -> Mapping[str, Sequence[str]]:
        """Return the commands for `kernel.s` and `kernel.ii`, by file; those that are wanted."""
        command = [flag for flag in self._compile_command(job) if not flag.startswith("-Wl,")]
        compile_flags = [flag for flag in job.flags if not flag.startswith(("-Wl,", "-l", "-L"))]
        wanted = {}
        if job.debug.assembly:
            annotated = ("-S", "-fverbose-asm", "-o", "kernel.s")
            wanted["kernel.s"] = [*command, *annotated, job.file, *compile_flags]
        if job.debug.preprocessed:
            wanted["kernel.ii"] = [*command, "-E", "-o", "kernel.ii", job.file, *compile_flags]
        return wanted

    def check_loadable(self, path: Path, debug: Debug) -> None:
        """Raise `TargetError` for another machine, for instructions that this one lacks, and
        without the runtime of a sanitizer.
        """
        super().check_loadable(path, debug)
        known = self.known_toolchain.last
        lacking = known.lacking if known is not None else ()
        if lacking:
            raise TargetError(
                f"{path} was built by target {self.name!r} for instructions that this machine "
                f"({this_machine()}, {self.name.partition(':')[0]}:native) lacks: "
                f"{', '.join(lacking)}"
            )
        if "address" in debug.sanitizers and not hasattr(ctypes.CDLL(None), "__asan_init"):
            library = self.sanitizer_runtime("address")
            raise TargetError(
                f"{path} was built with sanitize='address', whose runtime has to be in the process "
                f"from its start: run Python with LD_PRELOAD={library}"
            )


def _lacking(isa: Iterable[str], here: Iterable[str]) -> tuple[str, ...]:
    """Return the feature macros not defined `here`; sizes and names of processors do not count."""
    known = {macro.partition(" ")[0] for macro in here}
    names = {macro.partition(" ")[0] for macro in isa} - known
    return tuple(sorted(name for name in names if not name.islower()))


def _may_need_only_libc(job: Job) -> bool:
    return (
        not job.debug.sanitizers
        and all(re.match(_COMPILES_ONLY, flag) for flag in job.flags)
        and not re.search(_CPP_HEADER, job.source.content())
    )


def _debug_flags(toolchain: Toolchain, debug: Debug) -> tuple[str, ...]:
    flags = ["-g"] if debug.line_info or debug.sanitizers else []
    if debug.sanitizers:
        flags += [f"-fsanitize={','.join(debug.sanitizers)}", "-fno-omit-frame-pointer"]
        if toolchain.family == "clang":
            flags.append("-shared-libsan")
    return tuple(flags)


class _Programs:
    """The programs that a compiler's driver starts, by their part in a build."""

    def __init__(self, compiler: list[str], assembler: list[str], linker: list[str]) -> None:
        self.compiler = tuple(dict.fromkeys(compiler))
        self.assembler = tuple(dict.fromkeys(assembler))
        self.linker = tuple(dict.fromkeys(linker))

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.compiler, *self.assembler, *self.linker)

    @classmethod
    def of(cls, driver: str, query: Callable[..., str], flags: Iterable[str] = ()) -> _Programs:
        """Ask the driver what it would start for C and for C++."""
        compiler, assembler, linker = [driver], [], []
        for language in ("c", "c++"):
            dry_run = query(
                driver, "-###", "-shared", "-x", language, os.devnull, *flags,
                said_on_stderr=True,
            )  # fmt: skip
            for words in map(shlex.split, filter(_starts_program, dry_run.splitlines())):
                program = _located(words[0], driver, query)
                name = os.path.basename(program)
                if "-cc1" in words or name.startswith("cc1"):
                    compiler.append(program)
                elif name == "as" or name.endswith("-as"):
                    assembler.append(program)
                else:
                    linker.append(program)
        if any(os.path.basename(program) == "collect2" for program in linker):
            chosen = next((f[9:] for f in flags if f.startswith("-fuse-ld=")), "")
            linker.append(_located(f"ld.{chosen}" if chosen else "ld", driver, query))
        if any(flag.startswith("-flto") for flag in flags):
            compiler.append(_located("lto1", driver, query))
        return cls(*(list(filter(os.path.isfile, part)) for part in (compiler, assembler, linker)))


def _starts_program(line: str) -> bool:
    return line.startswith(" ") and not line.startswith(" (")


def _located(program: str, driver: str, query: Callable[..., str]) -> str:
    """Return the path of a program that a driver starts by name."""
    if os.path.isabs(program):
        return program
    said = query(driver, f"-print-prog-name={program}").strip()
    return said if os.path.isabs(said) else on_path(said) or said


_HOST = ("c++", "g++", "clang++")

for _name in ("cpu", "sim"):
    register_target(
        GnuTarget(
            _name,
            _HOST,
            march="native",
            get="apt-get install g++",
            chosen=settings.jit_cxx,
            setting="BRINGUP_JIT_CXX",
            runs_here=True,
        )
    )
register_target(
    GnuTarget(
        "aarch64",
        ("aarch64-linux-gnu-g++",),
        march="armv8-a",
        get="apt-get install g++-aarch64-linux-gnu",
    )
)
