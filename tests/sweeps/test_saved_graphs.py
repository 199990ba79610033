"""Random programs that are captured, saved, and replayed in another process give eager's bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.forked_python import output_of_module
from tests.sweeps.saved_programs import save
from tests.sweeps.support import part

from bringup import devices


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("first", part(range(20)))
def test_a_saved_graph_replays_in_another_process(first: int, device: str, tmp_path: Path) -> None:
    if device == "npu":
        devices.load_driver("sim")
    seeds = range(first * 10, first * 10 + 10)
    save(tmp_path, seeds, device)
    output_of_module("tests.sweeps.saved_programs", "sim", device, str(tmp_path), *map(str, seeds))
