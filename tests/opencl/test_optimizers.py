"""What torch.optim and clip_grad_norm_ call for lists of parameters: single launches."""

from __future__ import annotations

from pathlib import Path

from tests.forked_python import output_of
from tests.opencl.conftest import ROOT, UNOPTIMIZED
from tests.opencl.operators_program import LOADED

BEGIN = f"""
import os
ROOT = {str(ROOT / "drivers/opencl/src")!r}
{LOADED}
SHAPES = [(5, 7), (3,), (40, 50), (), (0,), (2, 3, 4), (1500,), (6, 1), (1,)]


def launches():
    torch.ocl.synchronize()
    with open(os.environ["BRINGUP_DRIVER_TRACE"]) as lines:
        return sum('"function":"launch_values' in line for line in lines)


def parameters(device, more=()):
    torch.manual_seed(1)
    made = [torch.randn(shape) for shape in (*SHAPES, *more)]
    made.append(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    return [one.to(device).requires_grad_() for one in made]


def set_gradients(given, step):
    for one in given:
        one.grad = (torch.sin(3 * one.detach().cpu()) + step).to(one.device)
"""

FUSED = """
from torch.optim import SGD, Adam, AdamW
CASES = (
    (AdamW, {}), (Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (AdamW, {"maximize": True, "weight_decay": 0.2}), (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (SGD, {"lr": 0.1, "momentum": 0.8, "dampening": 0.1, "maximize": True}),
)

def stepped(device, kind, options, tensor_rate):
    given = parameters(device)
    if tensor_rate:
        options = {**options, "lr": torch.tensor(options.get("lr", 1e-2), device=device)}
    optimizer = kind(given, fused=True, **options)
    counts = []
    for step in range(3):
        set_gradients(given, step)
        # As GradScaler does: a scale, and whether a gradient was infinite.
        optimizer.grad_scale = torch.tensor(2.0, device=device) if step == 1 else None
        optimizer.found_inf = torch.tensor(float(step == 2), device=device)
        before = launches() if device == "ocl" else 0
        optimizer.step()
        counts.append(launches() - before if device == "ocl" else 0)
    state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    return [*(one.detach() for one in given), *(one.grad for one in given), *state], counts

for kind, options in CASES:
    for tensor_rate in (False, True):
        wanted, _ = stepped("cpu", kind, options, tensor_rate)
        with devices.fallback_policy("forbid"):
            made, counts = stepped("ocl", kind, options, tensor_rate)
        for one, right in zip(made, wanted, strict=True):
            torch.testing.assert_close(one.cpu(), right, rtol=1e-5, atol=1e-6)
        print(kind.__name__, counts[0], counts[1])
"""
OTHER = """
from bringup import graphs
def step(p, g, m, v, s):
    torch._fused_adam_(p, g, m, v, [], s, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
                       amsgrad=False, maximize=False)
def lists(count, shape=(4, 6)):
    torch.manual_seed(2)
    made = [[torch.rand(shape) for _ in range(count)] for _ in range(4)]
    return [*made, [torch.tensor(3.0) for _ in range(count)]]
wanted, given = lists(19), moved(lists(19), "ocl")
step(*wanted)
graph = graphs.CapturedGraph()
with devices.fallback_policy("forbid"), graphs.capture(graph):
    step(*given)
print([node.method for node in graph.nodes])
graph.replay()
torch.testing.assert_close(moved(given, "cpu"), wanted, rtol=1e-5, atol=1e-6)
# What does not lie alike is the host's, and what overlaps: nothing is computed in a wrong place.
for change in ("layout", "overlap", "dtype"):
    here, there = lists(2), moved(lists(2), "ocl")
    for of in (here, there):
        if change == "layout":
            of[2][1] = of[2][1].t().contiguous().t()
        elif change == "overlap":
            of[0][1] = of[0][0].view(-1)[:4].view(2, 2)
            for k in (1, 2, 3):
                of[k][1] = of[k][1].flatten()[:4].view(2, 2)
        else:
            of[0:4] = [[one.double() for one in each] for each in of[0:4]]
    devices.fallback_report(reset=True)
    step(*here)
    step(*there)
    print(change, sum(row.calls for row in devices.fallback_report().rows) > 0)
    torch.testing.assert_close([one.cpu() for one in there[0]], here[0], rtol=1e-5, atol=1e-6)
"""
CLIPPED = """
clip = torch.nn.utils.clip_grad_norm_
def clipped(more, choose, order):
    given, wanted = (list(filter(choose, parameters(of, more))) for of in ("ocl", "cpu"))
    set_gradients(given, 0)
    set_gradients(wanted, 0)
    with devices.fallback_policy("forbid"):
        before = launches()
        norm = clip(given, 0.7, order)
        made = launches() - before
    torch.testing.assert_close(norm.cpu(), clip(wanted, 0.7, order))
    for one, right in zip(given, wanted):
        torch.testing.assert_close(one.grad.cpu(), right.grad)
    return len(given), made

# Of 40 dense tensors 16 a launch, of norms and of products; 2 + 1 to join the norms, 5 for all.
print(clipped(SHAPES * 4, lambda one: one.dim() in (1, 2, 3), 2.0))
clipped(SHAPES, lambda one: True, 1.0)
clipped(SHAPES, lambda one: one.numel() > 0, float("inf"))
# One element for all, in both places and with other layouts.
x, y, s = torch.randn(3, 5), torch.randn(5, 3).t(), torch.tensor(2.5)
compare(lambda x, y, s: (x * s, s / x, x.clone().div_(s), y * s, x + s * y, s * s), x, y, s)
compare(lambda x, s: torch.addcmul(x, s, s, value=2), x, s)
compare(lambda x, s: torch.where(x > s, s, x), x, s)
for reduce in (torch.sum, torch.argmax, torch.linalg.vector_norm):
    for shape in ((1,), (31,), (64,), (7, 300), *((3, 0) for _ in (1,) if reduce != torch.argmax)):
        compare(reduce, torch.randn(shape))
"""


def run(library: Path, folder: Path, program: str) -> list[str]:
    variables = {"BRINGUP_DRIVER_TRACE": str(folder / "calls.jsonl"), **UNOPTIMIZED}
    said = output_of(BEGIN + program, str(library), BRINGUP_OPENCL_MEMORY="coarse", **variables)
    return said.splitlines()


def test_fused_optimizers_step_as_on_the_cpu_in_single_launches(
    library: Path, tmp_path: Path
) -> None:
    said = run(library, tmp_path, FUSED)
    # Of 10 parameters 8 a launch of Adam's, whose steps are lists, too, and 14 of SGD's.
    assert said == ["AdamW 4 4"] * 2 + ["Adam 4 4"] * 2 + ["AdamW 4 4"] * 2 + ["SGD 1 1"] * 6


def test_fused_steps_are_captured_and_fall_back_where_they_do_not_fit(
    library: Path, tmp_path: Path
) -> None:
    said = run(library, tmp_path, OTHER)
    assert said == [f"{['launch block'] * 3}", "layout True", "overlap True", "dtype True"]


def test_gradients_are_clipped_in_a_launch_for_each_list(library: Path, tmp_path: Path) -> None:
    assert run(library, tmp_path, CLIPPED)[0] == "(40, 14)"
