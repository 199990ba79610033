"""Operators with indices on an OpenCL device: what the CPU refuses is an error there, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.opencl.conftest import ROOT
from tests.opencl.operators_program import LOADED

SWEEP = """
from bringup_opencl._operators import OPERATORS
aten = torch.ops.aten
x, images = torch.randn(4, 3).log_softmax(1), torch.randn(1, 3, 2, 2).log_softmax(1)
one, all_of = torch.tensor(1.0), torch.ones(4)

def rows(index):
    return torch.tensor([0, index, 1])

def classes(index):
    return torch.tensor([0, 1, index, 2])

def pixels(index):
    return classes(index).reshape(1, 2, 2)

# Of each operator that has indices: calls, the size of the dimension, whether the CPU is asked.
CALLS = {
    "aten::index_select": [
        (lambda i: aten.index_select(x, 0, rows(i)), 4),
        (lambda i: aten.index_select(x, 1, rows(i)), 3),
        (lambda i: aten.index_select(x.int(), 0, rows(i).int()), 4),
        (lambda i: torch.nn.functional.embedding(rows(i), x), 4),
    ],
    "aten::index.Tensor": [
        (lambda i: aten.index(x, [rows(i)]), 4),
        (lambda i: aten.index(x, [rows(i)[:, None], classes(i).int()[:2]]), 3),
    ],
    "aten::gather": [
        (lambda i: aten.gather(x, 0, rows(i).reshape(1, 3)), 4),
        (lambda i: aten.gather(x, 1, classes(i).reshape(4, 1)), 3),
    ],
    "aten::scatter_add": [
        (lambda i: aten.scatter_add(x, 0, rows(i).reshape(1, 3), x[:1]), 4),
        (lambda i: aten.scatter_add(x, 1, classes(i).reshape(4, 1), x[:, :1].clone()), 3),
    ],
    # Indices that name no row are passed over: the forward pass refuses them.
    "aten::embedding_dense_backward": [
        (lambda i: aten.embedding_dense_backward(x, classes(i), 4, -1, False), 4),
    ],
    "aten::nll_loss_forward": [
        (lambda i, r=r: aten.nll_loss_forward(x, classes(i), None, r, -100), 3) for r in range(3)
    ],
    "aten::nll_loss2d_forward": [
        (lambda i, r=r: aten.nll_loss2d_forward(images, pixels(i), None, r, -100), 3)
        for r in range(3)
    ],
    "aten::nll_loss_backward": [
        (lambda i: aten.nll_loss_backward(one, x, classes(i), None, 1, -100, one), 3),
    ],
    "aten::nll_loss2d_backward": [
        (lambda i: aten.nll_loss2d_backward(one, images, pixels(i), None, 1, -100, one), 3),
    ],
}

def has_indices(operator):
    name, _, overload = operator.name.removeprefix("aten::").partition(".")
    packet = getattr(aten, name)
    schema = getattr(packet, overload or packet.overloads()[0])._schema
    return any(a.name in ("index", "indices", "target") for a in schema.arguments)

# The CPU writes beside its result for indices that no pooling gave; the device adds nothing.
UNCHECKED = {"aten::max_pool2d_with_indices_backward"}
found = {operator.name for operator in OPERATORS if has_indices(operator)}
assert found - UNCHECKED == set(CALLS), found

class OnDevice(torch.utils._python_dispatch.TorchDispatchMode):
    '''Runs operators on the device's copies of their arguments.'''

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        with devices.fallback_policy("forbid" if "aten::" + function.__name__.partition(".")[0]
                                     in CALLS else "allow"):
            return function(*moved(list(args), "ocl"), **(kwargs or {}))

def refusal(call, index, on_device):
    try:
        if on_device:
            with OnDevice():
                call(index)
            torch.ocl.synchronize()
        else:
            call(index)
    except (IndexError, RuntimeError) as error:
        return str(error)
    return ""

for name, calls in CALLS.items():
    for number, (call, size) in enumerate(calls):
        for index in (0, -1, -size - 1, size):
            cpu, here = refusal(call, index, False), refusal(call, index, True)
            assert bool(cpu) == bool(here), (name, number, index, cpu, here)
            words = f"operator '{name}' failed on device 0: "
            assert not here or here.startswith(words), here
print("done")
"""


@pytest.mark.parametrize("memory", ["coarse", "fine"])
def test_an_index_outside_its_dimension_is_refused_where_the_cpu_refuses_it(
    library: Path, memory: str
) -> None:
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}\n{SWEEP}"
    said = output_of(program, str(library), BRINGUP_OPENCL_MEMORY=memory)
    assert said.splitlines()[-1] == "done"


RANDOM = f"""
sys.path.insert(0, {str(ROOT)!r})
from tests.sweeps import indexed_calls
print(indexed_calls.compare("ocl") > 0)
"""


def test_indices_of_every_form_choose_what_they_choose_on_the_cpu(library: Path) -> None:
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}\n{RANDOM}"
    said = output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse")
    assert said.splitlines()[-1] == "True"


REPLAYED = """
from bringup import graphs
x, index = torch.randn(4, 3).to("ocl"), torch.tensor([0, 3]).to("ocl")
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    out = x.CHOSEN
graph.replay()
torch.ocl.synchronize()
index.copy_(torch.tensor([0, 4]))
graph.replay()
try:
    print(out.cpu())
except RuntimeError as error:
    print(error)
graph.replay()
try:
    print(torch.ones(2, 3, device="ocl").add_(out).sum().item())
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("memory", ["coarse", "fine"])
@pytest.mark.parametrize(
    ("chosen", "operator", "rule"),
    [
        ("index_select(0, index)", "index_select", "index"),
        ("__getitem__((index, index[:, None].clamp(max=2)))", "index.Tensor", "indices"),
    ],
)
def test_a_replay_tells_of_an_index_outside(
    library: Path, memory: str, chosen: str, operator: str, rule: str
) -> None:
    replayed = REPLAYED.replace("CHOSEN", chosen)
    program = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}\n{replayed}"
    said = output_of(program, str(library), BRINGUP_OPENCL_MEMORY=memory).splitlines()
    words = f"operator 'aten::{operator}' failed on device 0: {rule}: an element is outside"
    assert len(said) == 2
    assert all(line.startswith(words) for line in said)
