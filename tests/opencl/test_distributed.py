"""Several processes on one OpenCL device, whose memory the host does not see."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.ranks import run
from tests.sweeps.support import part


@pytest.mark.parametrize("program", part(["collectives", "users"], always=["collectives"]))
def test_collectives_and_training_between_processes(library: Path, program: str) -> None:
    coarse = {"BRINGUP_OPENCL_MEMORY": "coarse"}
    outcome = run(program, driver=str(library), backend="", environment=coarse)
    assert not outcome.failed
    assert outcome.codes == (0, 0), outcome.text
    assert set(outcome.passed) == set(outcome.asked) != set()
