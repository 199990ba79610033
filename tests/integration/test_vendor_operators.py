"""The example of a vendor's own operators: every way to register one wins over the fallback, and
gives what the CPU gives. Each program is a process of its own, because registrations stay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.forked_python import PACKAGES, run_forked

from bringup import devices

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "device_operators"

BEGIN = """
import sys
import torch
from bringup import devices
from torch.nn import functional as F

def load():
    for name in ("vendor_operators", "vendor_stable"):
        torch.ops.load_library(f"{BUILT}/{name}.so")

def check(call, *host, fallback=()):
    '''The call on the device gives what it gives on the host; what fell back meanwhile.'''
    there = [t.to("npu") for t in host]
    devices.fallback_report(reset=True)
    got = call(*there)
    torch.npu.synchronize()
    assert {row.operator for row in devices.fallback_report().rows} == set(fallback)
    assert got.device.type == "npu"
    torch.testing.assert_close(got.cpu(), call(*host), rtol=1e-5, atol=1e-6, equal_nan=True)

def gradients(call, *host):
    found = []
    for device in ("cpu", "npu"):
        given = [t.detach().to(device).requires_grad_() for t in host]
        result = call(*given)
        weight = torch.arange(result.numel(), dtype=result.dtype).reshape(result.shape).cos()
        found.append([g.cpu() for g in torch.autograd.grad(result, given, weight.to(device))])
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)

torch.manual_seed(0)
x, y = torch.randn(3, 4, 5), torch.randn(4, 1)
"""

Program = Callable[..., str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the example's libraries, built outside of the sources."""
    assert shutil.which("cmake") is not None, "the tests need cmake: pip install cmake"
    folder = tmp_path_factory.mktemp("vendor")
    config = subprocess.check_output(
        [sys.executable, "-m", "bringup", "config", "--cmake"], text=True
    ).strip()
    facts = {
        "bringup_DIR": config,
        "torch_DIR": Path(torch.__file__).parent,
        "vendor_driver": devices.driver_library("sim"),
    }
    options = [f"-D{name}={value}" for name, value in facts.items()]
    for command in (
        ["cmake", "-S", str(EXAMPLE), "-B", str(folder), *options],
        ["cmake", "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


@pytest.fixture
def program(built: Path, tmp_path: Path) -> Program:
    """Runs code after BEGIN, the driver and the libraries loaded (`order`: which first); what it
    printed, without torch's remark that a kernel was overridden.
    """

    def run(code: str, order: str = "driver", **environment: str) -> str:
        steps = ['devices.load_driver("sim")', "load()"]
        begin = BEGIN + "\n".join(steps if order == "driver" else steps[::-1])
        done = run_forked(
            f"BUILT = {str(built)!r}\n{begin}\n{code}",
            environment=os.environ | environment,
            preload=PACKAGES,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


ATEN = """
check(torch.relu, x)
check(torch.relu, x.transpose(0, 2))
check(torch.relu, x[:0])
check(torch.relu, x[0, 0, 0])
check(lambda t: t.clone().relu_(), x)
check(torch.relu, x.double())
check(torch.relu, (x * 9).int())
check(torch.relu, torch.tensor([float("nan"), -0.0, float("-inf")]))
gradients(torch.relu, x)
"""
STRUCTURED = """
check(torch.maximum, x, y)
check(torch.maximum, x, x.flip(0).transpose(0, 0))
check(torch.maximum, x[:0], y[:1])
check(torch.maximum, (x * 9).long(), (y * 9).long())
check(torch.maximum, torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, float("nan")]))
check(lambda a, b: torch.maximum(a, b, out=torch.empty(0, device=a.device)), x, y)
check(lambda a, b: torch.maximum(a, b, out=torch.empty(5, 4, 3, device=a.device).mT[:, :4, :3].mT
                                 .transpose(0, 2)[:3]), x[:, :, :5], y)
check(lambda a: torch.maximum(a, torch.tensor(0.5)), x)
gradients(torch.maximum, x, y)
"""
STABLE = """
check(F.hardswish, x)
check(F.hardswish, x.transpose(0, 1))
check(F.hardswish, x[:0])
gradients(F.hardswish, x)
"""
STUBS = """
check(torch.abs, x)
check(torch.abs, x.transpose(0, 2))
check(torch.abs, x[:0])
check(lambda t: t.clone().abs_(), x)
check(lambda t: torch.abs(t, out=torch.empty(3, 5, 4, device=t.device).mT), x)
check(torch.abs, torch.tensor([-(2**63), -3, 0]))
"""
ATTENTION = """
q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
for options in ({}, {"is_causal": True}, {"scale": 0.5}):
    def call(*given): return F.scaled_dot_product_attention(*given, **options)
    check(call, q, k, v)
    check(call, q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
    gradients(call, q, k, v)
"""


@pytest.mark.parametrize(
    "code",
    [ATEN, STRUCTURED, STABLE, STUBS, ATTENTION],
    ids=["aten", "structured", "stable", "stub", "sdpa"],
)
@pytest.mark.parametrize("order", ["driver", "library"])
def test_an_operator_of_the_vendors_is_called_instead_of_the_fallback(
    program: Program, code: str, order: str
) -> None:
    program(code, order)


def test_kernels_run_where_the_host_does_not_see_the_memory(program: Program) -> None:
    program(ATEN + STRUCTURED + STABLE + STUBS + ATTENTION, BRINGUP_SIM_ISOLATED="1")


def test_kernels_run_in_the_order_of_their_stream(program: Program) -> None:
    program("""
source = torch.full((1 << 22,), -1.0, device="npu")
was_ahead = False
with torch.npu.stream(torch.npu.Stream()) as stream:
    for _ in range(50):  # until this thread was ahead of the stream's, whatever else runs
        target = torch.zeros(1 << 22, device="npu")
        for _ in range(8):
            target.copy_(source)
        result = torch.abs(target)
        was_ahead = was_ahead or not stream.query()
        del target
        assert result.cpu().eq(1).all()
        if was_ahead:
            break
assert was_ahead
""")


def test_what_a_kernel_does_not_take_is_refused_in_words(program: Program) -> None:
    said = program("""
for call in (
    lambda: torch.ones(2, device="npu", dtype=torch.half).relu(),
    lambda: F.hardswish(torch.ones(2, device="npu", dtype=torch.double)),
    lambda: torch.ops.vendor.cube(torch.ones(2, device="npu", dtype=torch.int64)),
    lambda: torch.ops.vendor.cube_backward(*(torch.ones(n, device="npu") for n in (3, 2))),
):
    try:
        call()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
""").splitlines()
    assert "aten::relu: the device has no kernel for Half" in said[-4]
    assert "aten::hardswish: the device has a kernel for float32 only" in said[-3]
    assert "vendor::cube takes float32, got Long" in said[-2]
    assert "vendor::cube_backward: the gradient is [3], the input [2]" in said[-1]


def test_attention_that_the_device_does_not_take_is_torchs_decomposed_one(
    program: Program,
) -> None:
    program("""
from torch.nn.attention import SDPBackend, sdpa_kernel
q = torch.randn(2, 3, 5, 8)
mask = torch.randn(5, 5)
def names(*given, **options):
    devices.fallback_report(reset=True)
    got = F.scaled_dot_product_attention(*given, **options)
    here = [t.cpu() for t in given]
    options = {name: o.cpu() if isinstance(o, torch.Tensor) else o for name, o in options.items()}
    torch.testing.assert_close(got.cpu(), F.scaled_dot_product_attention(*here, **options))
    return {row.operator for row in devices.fallback_report().rows}
n = q.to("npu")
assert names(n, n, n) == set()
assert "aten::bmm" in names(n, n, n, attn_mask=mask.to("npu"))
assert "aten::bmm" in names(*[n.double()] * 3)
with sdpa_kernel(SDPBackend.MATH):
    assert "aten::bmm" in names(n, n, n)
""")


def test_a_forward_only_operator_refuses_a_backward_by_name(program: Program) -> None:
    said = program("""
leaf = x.to("npu").requires_grad_()
result = torch.ops.vendor.hard_threshold(leaf, 0.5)
torch.testing.assert_close(result.detach().cpu(), torch.where(x.abs() < 0.5, 0, x))
try:
    result.sum().backward()
except RuntimeError as error:
    print(error)
""")
    assert "derivative for vendor::hard_threshold is not implemented" in said


def test_forward_and_backward_registered_apart_pass_torchs_opcheck(program: Program) -> None:
    program("""
torch.library.register_autograd(
    "vendor::cube",
    lambda ctx, grad: torch.ops.vendor.cube_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
leaf = x.to("npu").requires_grad_()
utils = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")  # the fourth knows no npu
torch.library.opcheck(torch.ops.vendor.cube.default, (leaf,), test_utils=utils)
got, = torch.autograd.grad(torch.ops.vendor.cube(leaf).sum(), leaf)
torch.testing.assert_close(got.cpu(), 3 * x * x)
""")


def test_a_function_in_cpp_has_gradients_also_when_it_is_compiled(program: Program) -> None:
    program("""
leaf = x.to("npu").requires_grad_()
wanted = 1 - torch.tanh(x / 2) ** 2
compiled = torch.compile(lambda t: torch.ops.vendor.softclip(t, 2.0) * 3, backend="aot_eager",
                         fullgraph=True)
for call, factor in ((lambda t: torch.ops.vendor.softclip(t, 2.0), 1), (compiled, 3)):
    devices.fallback_report(reset=True)
    result = call(leaf)
    torch.testing.assert_close(result.detach().cpu(), factor * 2 * torch.tanh(x / 2))
    got, = torch.autograd.grad(result.sum(), leaf)
    torch.testing.assert_close(got.cpu(), factor * wanted)
assert torch.ops.vendor.softclip(torch.ones(2, 3, device="meta"), 1.0).shape == (2, 3)
""")


def test_an_operator_in_python_wins_and_goes_with_its_library(program: Program) -> None:
    program("""
with torch.library._scoped_library("aten", "IMPL") as library:
    library.impl("hardtanh", lambda self, low=-1, high=1: self + 7, "PrivateUse1")
    devices.fallback_report(reset=True)
    assert F.hardtanh(torch.zeros(2, device="npu")).tolist() == [7, 7]
    assert [row.operator for row in devices.fallback_report().rows] == ["aten::add.Tensor"]
check(F.hardtanh, x, fallback=["aten::hardtanh"])
""")


def test_a_captured_graph_holds_a_vendors_kernels_and_the_cpus_of_the_others(
    program: Program,
) -> None:
    said = program("""
from bringup import errors, graphs
given = x.to("npu")
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    result = given.neg() + 1
for _ in range(2):
    given.copy_(torch.randn_like(x))
    graph.replay()
    torch.npu.synchronize()
    torch.testing.assert_close(result.cpu(), 1 - given.cpu())
for call in (torch.relu, lambda t: torch.maximum(t, -t), torch.ops.vendor.cube):
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        result = call(given)
    print([node.op for node in graph.nodes if node.method == "stream capture"])
    for _ in range(2):
        given.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(result, call(given))
try:
    with graphs.capture(graphs.CapturedGraph()):
        torch.ops.vendor.hard_threshold(given, 0.5)
except errors.CaptureError as error:
    print(str(error).replace("\\n", " "))
""")
    *captured, threshold = said.splitlines()
    assert captured == ["['aten::relu']", "['aten::maximum']", "['vendor::cube']"]
    # No tag says that it draws no random numbers, which a node would repeat.
    assert "vendor::hard_threshold runs a kernel on the device that starts its own" in threshold


def test_the_stable_library_needs_no_symbol_of_libtorchs_classes(built: Path) -> None:
    listed = subprocess.check_output(
        ["nm", "-D", "--undefined-only", str(built / "vendor_stable.so")], text=True
    )
    needed = [line.split()[-1] for line in listed.splitlines()]
    assert any(name.startswith(("aoti_torch_", "torch_")) for name in needed)
    classes = ("_ZN2at", "_ZNK2at", "_ZN3c10", "_ZNK3c10", "_ZN5torch", "_ZNK5torch")
    assert [name for name in needed if name.startswith(classes)] == []
