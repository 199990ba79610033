"""Other processors than this one, as far as compilers and kernels know them."""

from __future__ import annotations

from bringup import jit

__all__ = ["build_for", "unsupported"]


class _Tuned(jit.GnuTarget):
    """A target with more options."""

    options: tuple[str, ...] = ()

    def flags(self, toolchain: jit.Toolchain, language: str, debug: jit.Debug) -> tuple[str, ...]:
        """Return the options of every build."""
        return (*super().flags(toolchain, language, debug), *self.options)


def _target(name: str, described: str) -> _Tuned:
    march, *options = described.split()
    target = _Tuned(name, ["c++"], march=march, get="", runs_here=True)
    target.options = tuple(options)
    return target


def build_for(described: str) -> None:
    """Build this process's kernels for another machine: a value of `-march`, then options."""
    for name in ("cpu", "sim"):
        jit.register_target(_target(name, described), replace=True)


def unsupported(described: str) -> str:
    """Return the instruction sets of that machine that this one lacks."""
    return ", ".join(_target("machine", described).toolchain(jit.cache()).lacking)
