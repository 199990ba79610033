"""What a kernel is built with to find a mistake in it: dumps, line information, sanitizers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from bringup import settings

Sanitizer = Literal["address", "undefined"]

_SWITCHES = ("assembly", "preprocessed", "line_info")


@dataclass(frozen=True)
class Debug:
    """What to leave beside a binary, and what to build into it. Each combination is a build of its
    own in the cache.

    Args:
        assembly: leave the assembly beside the binary (`kernel.s`; `kernel.ptx` for CUDA).
        preprocessed: leave the source as the compiler saw it after the preprocessor (`kernel.ii`).
        line_info: symbols and line numbers for debuggers and profilers.
        sanitize: `"address"`, `"undefined"` or both in a tuple: accesses and undefined behaviour
            are checked while the kernel runs.

    Raises:
        ValueError: a sanitizer that does not exist.
    """

    assembly: bool = False
    preprocessed: bool = False
    line_info: bool = False
    sanitize: Sanitizer | tuple[Sanitizer, ...] = ()

    def __post_init__(self) -> None:
        for name in self.sanitizers:
            if name not in get_args(Sanitizer):
                raise ValueError(
                    f"jit.Debug(sanitize={self.sanitize!r}): expected some of "
                    f"{', '.join(map(repr, get_args(Sanitizer)))}, got {name!r}"
                )
        object.__setattr__(self, "sanitize", tuple(sorted(set(self.sanitizers))))

    def __bool__(self) -> bool:
        return bool(self.words)

    @property
    def sanitizers(self) -> tuple[Sanitizer, ...]:
        """Return what `sanitize` names, sorted."""
        return (self.sanitize,) if isinstance(self.sanitize, str) else self.sanitize

    @property
    def words(self) -> tuple[str, ...]:
        """Return what is asked for, as `BRINGUP_JIT_DEBUG` and the build key say it."""
        return (*(name for name in _SWITCHES if getattr(self, name)), *self.sanitizers)

    @classmethod
    def from_settings(cls) -> Debug:
        """Return what `BRINGUP_JIT_DEBUG` asks for. Raises `SettingError` naming a word."""
        words = settings.jit_debug()
        switches = {name: name in words for name in _SWITCHES}
        sanitizers = tuple(name for name in get_args(Sanitizer) if name in words)
        return cls(**switches, sanitize=sanitizers) if words else NO_DEBUG


NO_DEBUG = Debug()
