"""Captured graphs on an OpenCL device with coarse memory, where no node may run on the host."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of
from tests.gpt_program import GPT
from tests.opencl.conftest import ROOT

BEGIN = f"""
{GPT}
import sys
sys.path.insert(0, {str(ROOT / "drivers/opencl/src")!r})
from bringup import devices, graphs
import bringup_opencl
torch.set_num_threads(1)
devices.load_driver(sys.argv[1])
bringup_opencl.load()
devices.set_fallback_policy("forbid")
"""

FORWARD = """
torch.manual_seed(0)
model = GPT(blocks=1).eval()
ids = torch.randint(64, (2, 16))
wanted = model(ids).detach()
model, given = model.to("ocl"), ids.to("ocl")
graph = graphs.CapturedGraph()
with torch.no_grad(), graphs.capture(graph, inputs=(given,)):
    graph.outputs = model(given)
print({node.method for node in graph.nodes} <= {"launch block", "device copy"})
torch.testing.assert_close(graph.outputs.cpu(), wanted, rtol=1e-5, atol=1e-5)
other = torch.randint(64, (2, 16)).to("ocl")
with torch.no_grad():
    print(torch.equal(graph.run(other).cpu(), model(other).cpu()))
    graphs.save(graph, sys.argv[2])
    print(torch.equal(graphs.load(sys.argv[2]).run(other).cpu(), model(other).cpu()))
    graph.update({"norm.native_layer_norm.eps": 0.5})
    graph.replay()
    model.norm.eps = 0.5
    print(torch.equal(graph.outputs.cpu(), model(other).cpu()))
graph.reset()
"""


def test_a_gpt_is_captured_saved_and_updated(library: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "gpt.bgraph")
    said = output_of(BEGIN + FORWARD, str(library), path, BRINGUP_OPENCL_MEMORY="coarse")
    assert said.splitlines()[-4:] == ["True"] * 4


TRAINED = """
def stepper():
    torch.manual_seed(0)
    model = GPT(blocks=1).to("ocl")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)
    ids = torch.randint(64, (4, 33), generator=torch.Generator().manual_seed(1)).to("ocl")

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step

step = stepper()
wanted = [step().item() for _ in range(4)]
step = stepper()
losses = [step().item()]  # the optimizer makes its state in its first step
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    loss = step()
for _ in range(3):
    graph.replay()
    losses.append(loss.item())
print(losses == wanted, wanted[-1] < wanted[0])
print({node.method for node in graph.nodes} <= {"launch block", "device copy"})
"""


def test_a_whole_training_step_is_captured(library: Path) -> None:
    said = output_of(BEGIN + TRAINED, str(library), BRINGUP_OPENCL_MEMORY="coarse")
    assert said.splitlines()[-2:] == ["True True", "True"]
