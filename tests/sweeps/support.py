"""How large a sweep is: a slice in `make test`, everything in `make sweep`.

Older sweeps have a fixed slice (`sized`, `examples`). Those whose cases can be listed take the
twentieth that the number of commits chooses (`part`), so that twenty commits run them whole.
"""

from __future__ import annotations

import datetime
import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, Phase, settings

__all__ = ["FULL", "PARTS", "examples", "part", "seed", "sized", "told"]

Case = TypeVar("Case")

PARTS = 20
"""Of how many parts of a sweep `make test` runs one."""

_SETTING = os.environ.get("BRINGUP_TEST_SWEEP", "")

FULL = _SETTING == "full"
"""Whether `make sweep` runs."""


@functools.cache
def seed() -> int:
    """Return what chooses the part: BRINGUP_TEST_SWEEP, the number of commits, else the day."""
    if _SETTING and not FULL:
        return int(_SETTING)
    here = Path(__file__).parent
    git = ["git", "-C", str(here), "rev-parse", "--is-shallow-repository"]
    shallow = subprocess.run(git, capture_output=True, text=True, check=False)
    if shallow.stdout.strip() != "false":  # no git, no repository, or one without its history
        return datetime.datetime.now(datetime.timezone.utc).date().toordinal()
    count = ["git", "-C", str(here), "rev-list", "--count", "HEAD"]
    return int(subprocess.run(count, capture_output=True, text=True, check=True).stdout)


def told() -> str:
    """Return the line about the sweeps in the header of a run."""
    if FULL:
        return "sweeps: in full"
    return f"sweeps: part {seed() % PARTS} of {PARTS}; again with BRINGUP_TEST_SWEEP={seed()}"


def part(cases: Sequence[Case], always: Sequence[Case] = ()) -> list[Case]:
    """Return this run's share of a sweep's cases, in their order, and `always` before them.

    Neighbours of a list tend to be alike, so every twentieth case is taken.
    """
    chosen = list(cases) if FULL else list(cases[seed() % PARTS :: PARTS])
    return [*always, *(case for case in chosen if case not in always)]


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
