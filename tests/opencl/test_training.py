"""Training steps on an OpenCL device with coarse memory, where nothing may fall back."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of
from tests.gpt_program import GPT
from tests.opencl.conftest import ROOT

TRAINED = """
import sys
sys.path.insert(0, ROOT)
from bringup import devices
import bringup_opencl
torch.set_num_threads(1)
devices.load_driver(sys.argv[1])
bringup_opencl.load()

def losses(device):
    step = trainer(device)
    return torch.stack([step() for _ in range(5)]).cpu()

wanted = losses("cpu")
with devices.fallback_policy("forbid"):
    given = losses("ocl")
torch.testing.assert_close(given, wanted, rtol=1e-5, atol=0)
assert devices.fallback_report().calls == 0
assert wanted[-1] < wanted[0]
print("done")
"""


def test_a_gpt_trains_without_a_fallback_as_on_the_cpu(library: Path) -> None:
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{GPT}\n{TRAINED}"
    said = output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse")
    assert said.splitlines()[-1] == "done"
