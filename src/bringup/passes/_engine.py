"""What passes use of the native engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup._native import core

if TYPE_CHECKING:
    from bringup._native._core import MatcherCore, PatternCore, ProgramCore
else:
    MatcherCore = core().MatcherCore
    PatternCore = core().PatternCore
    ProgramCore = core().ProgramCore

__all__ = ["MatcherCore", "PatternCore", "ProgramCore"]
