"""Random programs captured at every level: replays on new inputs give the bits of eager.

Programs are of many operators, dtypes and layouts, and write in place.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.sweeps.replay_programs import compare
from tests.sweeps.support import sized

from bringup import devices

PROGRAMS = sized(50, 1000)
PARTS = 2


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("part", range(PARTS))
def test_replays_of_every_level_give_what_eager_gives(
    part: int, device: str, sweep_counts: Counter[str]
) -> None:
    if device == "npu":
        devices.load_driver("sim")
    sweep_counts.update(compare(device, range(part, PROGRAMS, PARTS)))
