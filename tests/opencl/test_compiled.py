"""torch.compile's default backend on an OpenCL device with coarse memory."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of
from tests.opencl.conftest import ROOT
from tests.opencl.operators_program import LOADED

COMPILED = """
import torch._dynamo
from bringup.errors import KernelError
from tests.compiled_functions import ROWS, compare

NAMES = 'transposed int64 half bfloat16 bool sum_columns argmax var index_put'.split()
rows = [ROWS[name] for name in NAMES]


def together(*inputs):
    given = iter(inputs)
    return [row.function(*(next(given) for _ in row.inputs())) for row in rows]


inputs = lambda: tuple(value for row in rows for value in row.inputs())
compare(rows[0]._replace(function=together, inputs=inputs, gradient=False), "ocl")
torch._dynamo.reset()
pick = torch.compile(lambda x, i: x[i] * 2)
pick(torch.arange(5.0, device="ocl"), torch.tensor([1, 99], device="ocl"))
try:
    torch.ocl.synchronize()
except KernelError as error:
    print(str(error).partition(" (in")[0])
"""


def test_compiled_functions_give_what_eager_operators_give(library: Path) -> None:
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}\n{COMPILED}"
    said = output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse")
    last = said.splitlines()[-1]
    assert last.endswith("index 99 is out of bounds for a dimension of size 5")
    assert "aten.index.Tensor" in last
