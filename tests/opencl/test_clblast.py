"""Products by CLBlast, in front of the package's own: what it takes, and what it does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.opencl.conftest import ROOT, UNOPTIMIZED, need
from tests.opencl.operators_program import LOADED

# Hands what it is asked on to CLBlast, counts, and fails where the environment says so.
COUNTING = """
#include <dlfcn.h>
#include <stdlib.h>
static int calls;
int counted(void) { const int had = calls; calls = 0; return had; }
static void* real(const char* name) { return dlsym(dlopen("libclblast.so.1", RTLD_NOW), name); }
#define DECLARED(...) __VA_ARGS__
#define HANDED_ON(name, parameters, arguments)                        \\
  int name(parameters) {                                              \\
    const char* const status = getenv("CLBLAST_STATUS");              \\
    ++calls;                                                          \\
    return status ? atoi(status) : ((int (*)(parameters))real(#name))(arguments); \\
  }
typedef unsigned long S;
typedef void* P;
#define ROUTINES(letter, N)                                                                      \\
  HANDED_ON(CLBlast##letter##gemm, DECLARED(int l, int t, int u, S m, S n, S k, N x, P a, S b,   \\
            S c, P d, S e, S f, N y, P g, S h, S i, P q, P v),                                   \\
            DECLARED(l, t, u, m, n, k, x, a, b, c, d, e, f, y, g, h, i, q, v))                   \\
  HANDED_ON(CLBlast##letter##gemmStridedBatched, DECLARED(int l, int t, int u, S m, S n, S k,    \\
            N x, P a, S b, S c, S d, P e, S f, S g, S h, N y, P i, S j, S o, S p, S r, P q, P v),\\
            DECLARED(l, t, u, m, n, k, x, a, b, c, d, e, f, g, h, y, i, j, o, p, r, q, v))       \\
  HANDED_ON(CLBlast##letter##ger, DECLARED(int l, S m, S n, N x, P a, S b, S c, P d, S e, S f,   \\
            P g, S h, S i, P q, P v), DECLARED(l, m, n, x, a, b, c, d, e, f, g, h, i, q, v))
ROUTINES(S, float)
ROUTINES(D, double)
ROUTINES(H, unsigned short)
"""
BEGIN = f"""
ROOT = {str(ROOT / "drivers/opencl/src")!r}
{LOADED}
import ctypes, os
counted_in = os.environ["BRINGUP_OPENCL_BLAS"]
counted = ctypes.CDLL(counted_in).counted
torch.manual_seed(0)


def takes(calls, function, *arguments, **options):
    counted()
    compare(function, *arguments, **options)
    assert counted() == calls, (calls, function)
"""

PRODUCTS = """
a, b = torch.randn(37, 50), torch.randn(50, 33)
takes(1, torch.mm, a, b)
takes(1, torch.mm, a.double(), b.double(), rtol=1e-12)
takes(0, torch.mm, a.half(), b.half(), falls_back=True)  # PoCL has no half precision
takes(1, lambda a, b: a.t() @ b.t(), torch.randn(50, 37), torch.randn(33, 50))
takes(1, lambda a, b: torch.mm(a[3:, 2:30], b[1:29, 5:]), a, b)  # parts, by their strides
takes(1, lambda a, b: torch.mm(a, b, out=torch.zeros(33, 37, device=a.device).t()), a, b)
takes(1, lambda a, b: torch.mm(a[:1], b[:, :1]), a, b)
takes(1, lambda a, b: torch.mm(a[:, :1].expand(37, 1), b[:1]), a, b)
takes(0, lambda a, b: torch.mm(a[1:, ::2], b[:25]), a, b)  # no rows, no columns: the package's own
takes(0, lambda a, b: torch.mm(a[:1].expand(4, 50), b), a, b)
takes(0, torch.mm, torch.randn(3, 0), torch.randn(0, 2))
takes(0, torch.mm, torch.randn(0, 3), torch.randn(3, 2))
takes(1, torch.bmm, torch.randn(3, 5, 7), torch.randn(3, 7, 40))
takes(1, torch.bmm, torch.randn(3, 5, 7), torch.randn(3, 40, 9).transpose(1, 2)[:, :7, 1:])
takes(1, lambda a, b: torch.bmm(a.expand(3, 5, 7), b), torch.randn(1, 5, 7), torch.randn(3, 7, 6))
takes(0, torch.bmm, torch.randn(0, 5, 7), torch.randn(0, 7, 4))
for bias, calls in ((torch.randn(33), 2), (torch.randn(37, 33), 1), (torch.randn(1), 0),
                    (torch.randn(33, 37).t(), 0), (torch.randn(66)[::2], 2)):
    takes(calls, torch.addmm, bias, a, b)
    takes(calls, lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2), bias, a, b)
takes(1, lambda c, a, b: torch.addmm(c, a, b, beta=0), torch.full((33,), float("nan")), a, b)
takes(1, lambda c, a, b: c.clone().addmm_(a, b, beta=0.5), torch.randn(37, 33), a, b)
takes(1, torch.baddbmm, torch.randn(2, 5, 6), torch.randn(2, 5, 7), torch.randn(2, 7, 6))
takes(0, torch.baddbmm, torch.randn(5, 6), torch.randn(2, 5, 7), torch.randn(2, 7, 6),
      falls_back=True)
# In the order of the stream, between kernels of the package.
x, w = torch.randn(64, 64), torch.randn(64, 64) / 8
def chain(x, w):
    for _ in range(20):
        x = torch.mm(x + 1, w).tanh()
    return x
takes(20, chain, x, w, rtol=1e-3, atol=1e-4)
side = torch.Stream("ocl")
with side:
    compare(chain, x, w, rtol=1e-3, atol=1e-4)
"""
CAPTURED = """
from bringup import graphs
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
x, other = torch.randn(4, 16), torch.randn(4, 16)
wanted = [model(one).detach() for one in (x, other)]
model, given = model.to("ocl"), x.to("ocl")
graph = graphs.CapturedGraph()
with torch.no_grad(), devices.fallback_policy("forbid"), graphs.capture(graph, inputs=(given,)):
    graph.outputs = model(given)
counted()
for one, result in zip((x, other), wanted):
    torch.testing.assert_close(graph.run(one.to("ocl")).cpu(), result, rtol=1e-5, atol=1e-5)
assert counted() == 8, "each replay calls the library"
graph.reset()
a, b = torch.randn(5, 7), torch.randn(7, 6)
on_device = a.to("ocl"), b.to("ocl")
with graphs.capture(graph):
    made = torch.addmm(torch.zeros(6, device="ocl"), *on_device, alpha=2)
    last = made * 2
graph.update({"addmm.alpha": 3.0, "addmm.mat1": (a + 1).to("ocl")})
graph.replay()
torch.testing.assert_close(last.cpu(), 6 * (a + 1) @ b, rtol=1e-5, atol=1e-5)
"""
FAILING = """
from bringup.errors import DeviceError
a = torch.randn(4, 4, device="ocl")
for status in (-1016, -2041, -61, -7777):
    os.environ["CLBLAST_STATUS"] = str(status)
    try:
        torch.mm(a, a)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
del os.environ["CLBLAST_STATUS"]
takes(1, torch.mm, *torch.randn(2, 4, 4))
bringup_opencl.unload()
for wanted in ("nobody's", "/nowhere/libclblast.so"):
    os.environ["BRINGUP_OPENCL_BLAS"] = wanted
    try:
        bringup_opencl.load()
    except DeviceError as error:
        print(error)
for wanted, calls in (("tiled", 0), ("", 0), (counted_in, 1)):
    os.environ["BRINGUP_OPENCL_BLAS"] = wanted
    bringup_opencl.load()
    takes(calls, torch.mm, *torch.randn(2, 4, 4))
    bringup_opencl.unload()
"""


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("libclblast1")
    folder = tmp_path_factory.mktemp("clblast")
    source, made = folder / "counting.c", folder / "libcounting.so"
    source.write_text(COUNTING)
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(made), "-ldl"], check=True)
    return made


def run(library: Path, counting: Path, program: str, memory: str = "coarse") -> list[str]:
    variables = {"BRINGUP_OPENCL_MEMORY": memory, "BRINGUP_OPENCL_BLAS": str(counting)}
    variables |= UNOPTIMIZED
    said = output_of(f"{BEGIN}\n{program}\nprint('done')", str(library), **variables).splitlines()
    assert said[-1] == "done"
    return said[:-1]


@pytest.mark.parametrize("memory", ["coarse", "fine"])
def test_products_are_the_cpus_and_by_the_library_where_it_takes_them(
    library: Path, counting: Path, memory: str
) -> None:
    run(library, counting, PRODUCTS, memory)


def test_a_captured_product_is_a_node_of_its_own(library: Path, counting: Path) -> None:
    run(library, counting, CAPTURED)


def test_what_fails_is_said_in_words_and_the_setting_chooses(library: Path, counting: Path) -> None:
    said = run(library, counting, FAILING)
    failed = "KernelError aten::mm: the kernel failed with status 1: CLBlast's gemm failed with "
    assert said[:4] == [
        f"{failed}-1016: the rows of a matrix overlap",
        f"{failed}-2041: its database has nothing for the device",
        f"{failed}-61: CL_INVALID_BUFFER_SIZE",
        f"{failed}-7777: a status of OpenCL or of clblast_c.h",
    ]
    setting = "BRINGUP_OPENCL_BLAS="
    assert said[4] == f"{setting}nobody's: expected tiled, clblast or the library's path"
    assert said[5].startswith(f"{setting}/nowhere/libclblast.so: CLBlast cannot be loaded (")
    assert "apt-get install libclblast1" in said[5]
