"""What passes use of the native engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bringup._native import core

if TYPE_CHECKING:
    import bringup._native._core as native
    from bringup._native._core import (
        CandidateCore,
        GraphCore,
        HostOperators,
        MatcherCore,
        PassBatch,
        PassRegistration,
        PatternCore,
        ProgramCore,
    )
else:
    native = core()
    GraphCore = native.GraphCore
    HostOperators = native.HostOperators
    CandidateCore = native.CandidateCore
    MatcherCore = native.MatcherCore
    PassBatch = native.PassBatch
    PassRegistration = native.PassRegistration
    PatternCore = native.PatternCore
    ProgramCore = native.ProgramCore

__all__ = [
    "CandidateCore",
    "GraphCore",
    "HostOperators",
    "MatcherCore",
    "PassBatch",
    "PassRegistration",
    "PatternCore",
    "ProgramCore",
    "native",
]
