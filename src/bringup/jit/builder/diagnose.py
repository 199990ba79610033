"""What to say when a compiler failed: its first diagnostic with the source's line, and a hint."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from bringup import settings
from bringup.errors import CompileError
from bringup.jit.source.source import Source
from bringup.jit.target.compiler_process import Finished
from bringup.jit.target.toolchain import Toolchain

_ERROR = re.compile(
    r"(: (fatal |catastrophic )?error[: ]|undefined (reference|symbol)|required symbol"
    r"|cannot find -l|unable to find library|virtual memory exhausted|terminated program)"
)
_DETAIL = re.compile(r"\s*\d*\s*\||\s+\S")
_PLACE = re.compile(r"([^\s:(][^:(\n]*)(?::(\d+)|\((\d+)\))")
_DISK_FULL = "No space left on device"

Found: TypeAlias = "re.Match[str]"

_operator: ContextVar[str] = ContextVar("operator", default="")


@contextlib.contextmanager
def compiling_for(operator: str) -> Iterator[None]:
    """Within, what fails to compile says that it was for this operator."""
    token = _operator.set(operator)
    try:
        yield
    finally:
        _operator.reset(token)


def operator_prefix() -> str:
    """Return how a message of this moment begins: with the operator, where one is known."""
    operator = _operator.get()
    return f"{operator}: " if operator else ""


@dataclass(frozen=True)
class Failure:
    """A run of a compiler that failed."""

    source: Source  # what was compiled
    target: str  # the target's full name
    macros: tuple[str, ...]  # `NAME=value`
    toolchain: Toolchain  # what ran
    folder: Path  # where it ran
    done: Finished  # what came of it

    @property
    def log(self) -> str:
        """Return what the compiler said, and why we stopped it if we did."""
        if self.done.stop is None:
            return self.done.output
        return f"{self.done.output}\nerror: the compiler was stopped: {self.done.stop.what}"


def disk_is_full(failure: Failure) -> bool:
    return _DISK_FULL in failure.log


def compile_error(failure: Failure, kept: Path) -> CompileError:
    """Return the error to raise; `kept` is where the full log is."""
    done, source = failure.done, failure.source
    diagnostic = first_diagnostic(failure.log, failure.folder, source.text or "")
    advice = _hint(failure)
    lines = (
        f"{operator_prefix()}{source} did not compile for target "
        f"{failure.target!r} (exit status {done.status}):",
        diagnostic,
        f"hint: {advice}" if advice else "",
        f"parameters: {', '.join(failure.macros)}" if failure.macros else "",
        f"command: {shlex.join(done.command)}",
        f"full log: {kept}",
    )
    return CompileError(
        "\n".join(filter(None, lines)),
        command=list(done.command),
        diagnostic=diagnostic,
        log=failure.log,
        status=done.status,
    )


def first_diagnostic(log: str, folder: Path, text: str = "") -> str:
    """Return the first error of a log, with its line of the source in `folder`, or of `text`."""
    lines = log.strip().splitlines()
    first = next((i for i, line in enumerate(lines) if _ERROR.search(line)), None)
    if first is None:
        return lines[0] if lines else "the compiler said nothing"
    last = first + 1
    while last < len(lines) and _DETAIL.match(lines[last]):
        last += 1
    if last > first + 1:
        return "\n".join(lines[first:last])
    quoted = _source_line(lines[first], folder, text)
    return f"{lines[first]}\n{quoted}" if quoted else lines[first]


def _source_line(line: str, folder: Path, text: str) -> str:
    """Return the line of the source that a message without one is about, or ""."""
    place = _PLACE.match(line)
    if place is None:
        return ""
    # A text inside a generated entry goes by its own name, of which there is no file.
    lines = text.partition(f'#line 1 "{place[1]}"\n')[2].splitlines()
    number = int(place[2] or place[3])
    try:
        lines = lines or (folder / place[1]).read_text(errors="replace").splitlines()
        return f"{number:5} | {lines[number - 1]}"
    except (OSError, IndexError):
        return ""


def _missing_entry(failure: Failure, _: Found) -> str:
    language = failure.source.language
    declared = {"c": "", "c++": ', declared extern "C"', "cuda": ', declared extern "C"'}
    if failure.source.kind == "device" and language == "cuda":
        return (
            f"the source has to define the kernel {failure.source.symbol!r}, declared "
            'extern "C" __global__'
        )
    return (
        f"the source has to define the function {failure.source.symbol!r}"
        f"{declared.get(language, '')}"
    )


def _missing_header(failure: Failure, found: Found) -> str:
    name = next(filter(None, found.groups()))
    if name.startswith(("torch/", "ATen/", "c10/", "pybind11/")):
        return (
            f"a kernel needs no {name.split('/')[0]} headers: take bringup/kernel.h, whose views "
            "are the tensors (they cost a hundredth of the time to compile)"
        )
    return f"{name} is in no searched folder: add its folder with flags=['-I/folder']"


def _missing_function(failure: Failure, found: Found) -> str:
    return (
        f"nothing defines {found[2]!r}: link the library that does with "
        "flags=['-L/folder', '-lname'], or define it in the source"
    )


def _missing_library(failure: Failure, found: Found) -> str:
    name = found[1] or found[2]
    return f"no folder that is searched has lib{name}: add the one that has: flags=['-L/folder']"


def _full_disk(failure: Failure, _: Found) -> str:
    temporary = settings.inherited("TMPDIR").get("TMPDIR", "/tmp")
    return (
        f"free space where it is built ({failure.folder.parent}) and where compilers keep "
        f"temporary files ({temporary}), or set BRINGUP_CACHE_DIR and TMPDIR to folders with space"
    )


_OUT_OF_MEMORY = (
    "the compiler asked for more memory than there is, or than BRINGUP_JIT_MEMORY allows: "
    "raise that, or split the source"
)
_KILLED = (
    "the compiler was killed, most likely by the kernel for want of memory (`dmesg` says "
    "so): compile fewer kernels at once, or give the machine or the container more memory"
)
_TOO_BIG = "a file became larger than BRINGUP_JIT_FILE_SIZE allows: raise that"


def _not_fitting(failure: Failure, _: Found) -> str:
    return (
        f"the parts of the compiler do not fit each other (it says: {failure.toolchain.version}): "
        "versions are mixed on PATH or LD_LIBRARY_PATH; choose another with BRINGUP_JIT_CXX"
    )


def _unknown_option(failure: Failure, _: Found) -> str:
    return (
        f"{failure.toolchain.version} does not know this option: take it out of flags, or choose "
        "a newer compiler with BRINGUP_JIT_CXX"
    )


_CUDAS_NAME = (
    "a macro is called like a template parameter of CUDA's own headers (T, and the like): give it "
    "a longer name, as in dtypes={'ELEMENT': 'x'}"
)

_Advice: TypeAlias = str | Callable[[Failure, Found], str]
_HINTS: tuple[tuple[re.Pattern[str], _Advice], ...] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (_DISK_FULL, _full_disk),
        (r"File size limit exceeded|File too large", _TOO_BIG),
        (r"virtual memory exhausted|out of memory allocating|std::bad_alloc", _OUT_OF_MEMORY),
        (r"Cannot allocate memory|memory exhausted|LLVM ERROR: out of memory", _OUT_OF_MEMORY),
        (r"failed to map segment from shared object", _OUT_OF_MEMORY),
        (r"(Killed|signal) signal terminated program|Killed$", _KILLED),
        (r"cuda_device_runtime_api\.h\(\d+\): error", _CUDAS_NAME),
        (r"required symbol|undefined symbol: (?=run\b)", _missing_entry),
        (
            r"error: (\S+): No such file or directory|error: '([^']+)' file not found"
            r'|open source file "([^"]+)"',
            _missing_header,
        ),
        (r"cannot find -l(\S+?):? |unable to find library -l(\S+)", _missing_library),
        (r"undefined (reference to|symbol:) [`']?([^'\n]+?)(?:'|$)", _missing_function),
        (
            r"version `[A-Z_0-9.]+' not found|error while loading shared libraries"
            r"|unsupported GNU version|unsupported clang version|cannot execute",
            _not_fitting,
        ),
        (
            r"unrecognized command-line option|unknown argument|bad value .* for .-m"
            r"|Unknown option|unrecognized option|unsupported option",
            _unknown_option,
        ),
    )
)


def _hint(failure: Failure) -> str:
    stop = failure.done.stop
    if stop is not None:
        return f"{stop.setting} sets how long a compiler may run; raise it, or split the source"
    if failure.done.status == -signal.SIGXFSZ:
        return _TOO_BIG
    for pattern, advice in _HINTS:
        if found := pattern.search(failure.log):
            return advice if isinstance(advice, str) else advice(failure, found)
    if failure.done.status == -signal.SIGKILL:
        return _KILLED
    # A process that cannot even map its libraries dies without a word, the driver or its child.
    died = failure.done.status < 0 or "signal terminated program" in failure.log
    return _OUT_OF_MEMORY if died and settings.jit_memory() is not None else ""
