"""Training steps on an OpenCL device with coarse memory, where nothing may fall back."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of
from tests.gpt_program import GPT
from tests.opencl.conftest import ROOT
from tests.opencl.operators_program import LOADED


def said_last(library: Path, program: str, **variables: str) -> str:
    """Return the last line of a program behind the loaded device and the GPT."""
    begin = f"ROOT = {str(ROOT / 'drivers/opencl/src')!r}\n{LOADED}\n{GPT}\n"
    said = output_of(begin + program, str(library), BRINGUP_OPENCL_MEMORY="coarse", **variables)
    return said.splitlines()[-1]


TRAINED = """

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
    assert said_last(library, TRAINED) == "done"


CNN = """
def images(device, steps, foreach=None):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 12, (3, 2), stride=(1, 2), dilation=(2, 1), groups=4, bias=False),
        nn.BatchNorm2d(12), nn.ReLU(), nn.AvgPool2d(2, 1, 1), nn.Conv2d(12, 40, 1),
        nn.AdaptiveAvgPool2d((2, 1)), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(40, 5),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=foreach)
    x, y = torch.randn(6, 3, 15, 14).to(device), torch.randint(5, (6,)).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    with torch.no_grad():
        losses.append(F.cross_entropy(model.eval()(x), y))
    return torch.stack(losses)
"""

SAME_IMAGES = """
import os
def copied_to_the_host():
    with open(os.environ["BRINGUP_DRIVER_TRACE"]) as lines:
        return sum('"function":"copy' in line and '"kind":2' in line for line in lines)

wanted = images("cpu", 5)
before = copied_to_the_host()
devices.fallback_report(reset=True)
with devices.fallback_policy("forbid"):
    given = images("ocl", 5)
assert devices.fallback_report().calls == 0
assert copied_to_the_host() == before
given = given.cpu()
assert copied_to_the_host() > before
torch.testing.assert_close(given, wanted, rtol=1e-5, atol=0)
assert wanted[4] < wanted[0]
print("done")
"""


def test_a_cnn_trains_without_a_fallback_as_on_the_cpu(library: Path, tmp_path: Path) -> None:
    trace = str(tmp_path / "calls.jsonl")
    assert said_last(library, CNN + SAME_IMAGES, BRINGUP_DRIVER_TRACE=trace) == "done"


UNWRITTEN = """
import weakref
from torch.utils._python_dispatch import TorchDispatchMode

class Unwritten(TorchDispatchMode):
    '''Compares every tensor that is alive with what it was, behind each operator.'''
    kept, operators = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        Unwritten.operators += 1
        schema = function._schema.arguments
        given = [*args, *(kwargs or {}).values()]
        written = [
            v for v, a in zip(given, schema)
            if (a.alias_info and a.alias_info.is_write) or a.name.startswith("running_")
        ]
        storages = {t.untyped_storage().data_ptr() for t in written if isinstance(t, torch.Tensor)}
        for key, (reference, copy) in list(self.kept.items()):
            tensor = reference()
            if tensor is None:
                del self.kept[key]
            elif tensor.untyped_storage().data_ptr() in storages:
                self.kept[key] = reference, tensor.detach().cpu()
            else:
                assert torch.equal(tensor.detach().cpu().nan_to_num(), copy.nan_to_num()), function
        several = result if isinstance(result, (tuple, list)) else (result,)
        for tensor in [*given, *several]:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "ocl":
                if id(tensor) not in self.kept:
                    self.kept[id(tensor)] = weakref.ref(tensor), tensor.detach().cpu()
        return result

torch.manual_seed(0)
x, y = torch.randn(64, 8).to("ocl"), torch.randint(4, (64,)).to("ocl")
small = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to("ocl")
step = trainer("ocl", foreach=False)
with Unwritten():
    F.cross_entropy(small(x), y).backward()
    step()
    images("ocl", 1, foreach=False)
assert Unwritten.operators > 400
print("done")
"""


def test_operators_write_their_results_alone(library: Path) -> None:
    """A kernel that wrote behind its result met the tensor that lay there."""
    assert said_last(library, CNN + UNWRITTEN) == "done"


SERVED = """
torch.manual_seed(0)
model = Block(64, 4, 0.0).eval()
x = torch.randn(2, 16, 64)
with torch.inference_mode():
    wanted = model(x)
    compiled = torch.compile(model.to("ocl"), backend="bringup")
    torch.testing.assert_close(compiled(x.to("ocl")).cpu(), wanted, rtol=1e-5, atol=1e-5)
    with devices.fallback_policy("forbid"):
        compiled(x.to("ocl"))
print("done")
"""


def test_a_block_is_compiled_without_kernels_of_another_language(library: Path) -> None:
    """The shipped kernels are in C++: their passes leave the device's operators."""
    assert said_last(library, SERVED) == "done"
