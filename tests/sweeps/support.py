"""How large a sweep is: a fixed slice in `make test`, everything in `make sweep`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

__all__ = ["FULL", "examples", "sized"]

FULL = os.environ.get("BRINGUP_TEST_SWEEP") == "full"
"""Whether `make sweep` runs."""


def sized(fixed: int, full: int) -> int:
    """`full` under `make sweep`, else `fixed`: so many seeds, samples or rows."""
    return full if FULL else fixed


def examples(fixed: int, full: int) -> settings:
    """Hypothesis settings of a sweep: the fixed slice draws the same examples every time."""
    return settings(
        max_examples=sized(fixed, full),
        derandomize=not FULL,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # a minimal example costs many runs, and only a full sweep has the time
        phases=tuple(Phase) if FULL else (Phase.explicit, Phase.generate),
    )
