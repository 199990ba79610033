"""torch.compile's default backend on an OpenCL device with coarse memory."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import DYNAMO, output_of
from tests.opencl.conftest import ROOT
from tests.opencl.operators_program import LOADED

COMPILED = """
import torch._dynamo
from bringup import graphs
from bringup.errors import KernelError
from tests.compiled_functions import ROWS, compare

NAMES = 'transposed int64 half bfloat16 bool sum_columns argmax var long_rows index_put'.split()
rows = [ROWS[name] for name in NAMES]


def together(*inputs):
    given = iter(inputs)
    return [row.function(*(next(given) for _ in row.inputs())) for row in rows]


inputs = lambda: tuple(value for row in rows for value in row.inputs())
compare(rows[0]._replace(function=together, inputs=inputs, gradient=False), "ocl")
torch._dynamo.reset()
shared = torch.compile(lambda x, y: (x * 2, y + 1))  # one launch, whole blocks of the first nest
given = shared(torch.ones(64, device="ocl"), torch.ones(3, device="ocl"))
assert [one.cpu().unique().tolist() for one in given] == [[2.0], [2.0]]
torch._dynamo.reset()
pick = torch.compile(lambda x, i: x[i] * 2)
x, index = torch.arange(5.0, device="ocl"), torch.tensor([1, 2], device="ocl")
pick(x, index)
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    picked = pick(x, index)
index.copy_(torch.tensor([4, 0]))
graph.replay()
print(picked.tolist())
weight = torch.ones(3, device="ocl", requires_grad=True)
function = torch.compile(lambda w, x: (w * x).sin().sum())
def step():
    weight.grad = None
    function(weight, x[:3]).backward()
    weight.detach().sub_(weight.grad)
step()
trained = graphs.CapturedGraph()
with graphs.capture(trained):
    step()
before = weight.detach().clone()
trained.replay()
replayed = weight.detach().clone()
weight.detach().copy_(before)
step()
print(torch.equal(weight.cpu(), replayed.cpu()), torch.equal(weight.cpu(), before.cpu()))
index.copy_(torch.tensor([1, 99]))
graph.replay()
try:
    torch.ocl.synchronize()
except KernelError as error:
    print(error)
"""


def test_compiled_functions_give_what_eager_operators_give(library: Path) -> None:
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}\n{COMPILED}"
    said = output_of(program, str(library), preload=DYNAMO, BRINGUP_OPENCL_MEMORY="coarse")
    *_, picked, trained, last = said.splitlines()
    assert picked == "[8.0, 0.0]"
    assert trained == "True False"
    assert last.endswith("index 99 is out of bounds for a dimension of size 5")
    assert "aten.index.Tensor" in last
