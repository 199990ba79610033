"""What passes use of the native engine."""

from __future__ import annotations

from bringup._native import core

core()  # says what is wrong with it, where something is

from bringup._native import _core  # noqa: E402
from bringup._native._core import GraphCore as GraphCore  # noqa: E402
from bringup._native._core import HostOperators as HostOperators  # noqa: E402
from bringup._native._core import MatcherCore as MatcherCore  # noqa: E402
from bringup._native._core import PassBatch as PassBatch  # noqa: E402
from bringup._native._core import PassRegistration as PassRegistration  # noqa: E402
from bringup._native._core import PatternCore as PatternCore  # noqa: E402
from bringup._native._core import PlacedMatchCore as PlacedMatchCore  # noqa: E402
from bringup._native._core import ProgramCore as ProgramCore  # noqa: E402

native = _core
