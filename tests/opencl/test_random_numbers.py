"""Random numbers of an OpenCL device: the simulator's, and a GPT that trains with dropout."""

from __future__ import annotations

import json
from pathlib import Path

from tests.forked_python import output_of
from tests.gpt_program import GPT
from tests.opencl.conftest import ROOT
from tests.opencl.operators_program import LOADED

PATH = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n"
DRAWN = """
import json
def drawn(device):
    torch.manual_seed((5 << 33) + 1)
    torch.get_device_module(device).default_generators[0].set_offset((1 << 32) - 2)
    spread = torch.empty(4, 3, 5, device=device).transpose(0, 2)[:, 1:]
    whole = torch.ones(1000, device=device)
    exact = [torch.rand(1001, device=device), spread.uniform_(2, 3).clone(),
             whole.clone().bernoulli_(0.3), *torch.native_dropout(whole, 0.1, True),
             *torch.native_dropout(whole.bfloat16(), 0.5, None),
             torch.randint(-7, 90, (50,), device=device),
             torch.empty(9, dtype=torch.int16, device=device).random_(5),
             torch.randint(1 << 40, 1 << 61, (20,), device=device),
             torch.empty(20, dtype=torch.int32, device=device).random_(),
             torch.empty(20, dtype=torch.int64, device=device).random_(-(1 << 63), None),
             torch.randint(0, 256, (20,), device=device, dtype=torch.uint8)]
    near = [torch.randn(1000, device=device), whole.clone().uniform_(-1, 4),
            spread.normal_(1, 2), whole.clone().exponential_(2),
            whole.clone().log_normal_(0, 0.5), torch.randn(40, device=device)]
    return [[one.double().cpu().flatten().tolist() for one in some] for some in (exact, near)]
with devices.fallback_policy("forbid"):
    print(json.dumps(drawn(DEVICE)))
"""
SIMULATED = """
import torch
from bringup import devices
import bringup_sim_ops
devices.load_driver("sim")
bringup_sim_ops.load()
"""


def test_the_simulator_and_opencl_draw_the_same_numbers(library: Path) -> None:
    simulated = output_of(f"DEVICE = 'npu'\n{SIMULATED}{DRAWN}")
    said = output_of(
        f"{PATH}DEVICE = 'ocl'\n{LOADED}{DRAWN}", str(library), BRINGUP_OPENCL_MEMORY="coarse"
    )
    (exact, near), (wanted, close) = json.loads(said), json.loads(simulated)
    assert exact == wanted
    for one, other in zip(near, close, strict=True):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 2e-5


TRAINED = """
from torch.utils.checkpoint import checkpoint

def losses(seed, steps=8):
    step = trainer("ocl", dropout=0.1)
    torch.ocl.manual_seed(seed)
    return torch.stack([step() for _ in range(steps)]).cpu()

with devices.fallback_policy("forbid"):
    first = losses(1)
    assert torch.equal(losses(1), first) and not torch.equal(losses(2, 2), first[:2])
assert first[-1] < first[0], first
report = devices.fallback_report()
calls = {row.operator: row.calls for row in report.native}
assert report.calls == 0 and calls["aten::native_dropout"] == calls["aten::native_dropout_backward"]

model = GPT(dropout=0.2).to("ocl")
ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1)).to("ocl")
gradients = []
for again in (False, True):
    model.zero_grad()
    torch.ocl.manual_seed(5)
    x = model.word(ids)
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False) if again else block(x)
    torch.ocl.manual_seed(99)
    with devices.fallback_policy("forbid"):
        x.square().mean().backward()
    gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
assert len(gradients[0]) > 10 and all(map(torch.equal, *gradients))
print("done")
"""


def test_a_gpt_with_dropout_trains_without_a_fallback(library: Path) -> None:
    program = f"{PATH}{LOADED}{GPT}{TRAINED}"
    assert output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse") == "done"


CAPTURED = """
from bringup import graphs
x = torch.ones(200, device="ocl")
graph = graphs.CapturedGraph()
with torch.no_grad(), graphs.capture(graph):
    y = torch.nn.functional.dropout(x, 0.5) + torch.rand(200, device="ocl")
torch.ocl.manual_seed(4)
wanted = [torch.nn.functional.dropout(x, 0.5) + torch.rand(200, device="ocl") for _ in range(3)]
torch.ocl.manual_seed(4)
for one in wanted:
    graph.replay()
    assert torch.equal(y, one)
assert not torch.equal(wanted[0], wanted[1])
print("done")
"""


def test_replays_draw_what_calls_draw(library: Path) -> None:
    program = f"{PATH}{LOADED}{CAPTURED}"
    assert output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse") == "done"
