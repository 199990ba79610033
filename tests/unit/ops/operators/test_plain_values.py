"""Kernels of a device that runs no host code: the same numbers, from addresses and plain values."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.forked_python import output_of

# What a run of all forms prints: digests of results, and what was native.
PROGRAM = """
import hashlib, random, torch
from bringup import devices, jit
driver = devices.load_driver("sim")
assert driver.takes_plain_values == (NATIVE_FORM == "values")
numbers = ("floating", "integral")
devices.kernel("aten::add", expression="self + alpha * other", supports=numbers)
devices.kernel("aten::lt", expression="self < other", supports=numbers)
devices.kernel("aten::addcmul", expression="x + value * a * b")
devices.kernel("aten::native_dropout_backward", expression="grad_output * (mask * scale)")
devices.kernel("aten::clamp", expression="self if isnan(self) else "
               "min if min is not None and self < min else "
               "max if max is not None and self > max else self")
devices.kernel("aten::gelu", expression="0.5 * self * (1 + (tanh(0.797884 * (self + 0.044715 * "
               "self * self * self)) if approximate == 'tanh' else erf(self * 0.707106)))")
two = jit.Source(name="two.cpp", text='''
template <class T> struct total {
  T scale;
  double sum = 0;
  total() : scale(1) {}
  void add(T value, int64_t) { sum += value; }
  T result(int64_t count) const { return static_cast<T>(sum * scale); }
};
template <class T> struct largest {
  T best{};
  int64_t place = -1;
  void add(T value, int64_t index) { if (place < 0 || value > best) best = value, place = index; }
  void result(int64_t, T& value, int64_t& index) const { value = best, index = place; }
};
template <class T> struct norm {
  T power; double sum = 0;
  explicit norm(T p) : power(p) {}
  void add(T value, int64_t) { sum += value * value; }
  T result(int64_t) const { return static_cast<T>(__builtin_sqrt(sum) * power); }
};
''')
devices.kernel("aten::sum.dim_IntList", source=two, kind="reduction", entry="total")
devices.kernel("aten::max.dim", source=two, kind="reduction", entry="largest")
devices.kernel("aten::linalg_vector_norm", source=two, kind="reduction", entry="norm")
digest, draw = hashlib.sha256(), random.Random(7)
torch.manual_seed(0)

def note(result):
    for one in result if isinstance(result, tuple) else (result,):
        one = one.cpu()
        digest.update(f"{one.dtype} {tuple(one.shape)} {one.stride()}".encode())
        digest.update(one.reshape(-1).view(torch.uint8).numpy().tobytes())

def laid_out(shape, dtype):
    larger = [n + draw.choice((0, 0, 2)) for n in shape]
    order = draw.sample(range(len(shape)), len(shape))
    made = (torch.randn([larger[d] for d in order]) * 8).to(dtype).to("npu")
    made = made.permute([order.index(d) for d in range(len(shape))])
    return made[tuple(slice(0, n) for n in shape)]

for dtype in (torch.float32, torch.bfloat16, torch.int32):
    for rank in (0, 1, 2, 3, 4, 6):
        shape = [draw.randint(1, 4) for _ in range(rank)]
        x = laid_out(shape, dtype)
        y = laid_out([n if draw.random() < 0.7 else 1 for n in shape], dtype)
        note(x + y); note(x + 3); note(torch.add(x, y, alpha=2))
        note(torch.add(x, y, out=laid_out(shape, dtype)))
        z = laid_out(shape, dtype); z += y; note(z)
        if dtype is torch.float32:
            note(x < y); note(x < 1)
            note(torch.addcmul(x, y, z, value=0.5)); note(x.clamp(max=1)); note(x.clamp(-1, 2))
            note(torch.nn.functional.gelu(x)); note(x + y.float())
            note(torch.nn.functional.gelu(x, approximate="tanh"))
            there = torch.ops.aten.native_dropout_backward(x, y > 0, 0.625)
            assert torch.equal(there.cpu(), (x * (y > 0) * 0.625).cpu())
        if dtype in (torch.float32, torch.int32) and rank:
            dims = draw.sample(range(rank), draw.randint(1, rank))
            note(x.sum(dims, keepdim=draw.random() < 0.5)); note(x.max(dims[0]))
            if dtype is torch.float32: note(torch.linalg.vector_norm(x, 3, dims))
x = torch.randn([3] * 8, device="npu")[(slice(0, 2),) * 8]
note(x + x)
note(torch.empty(0, 3, device="npu") + 1)
report = devices.fallback_report()
print(digest.hexdigest())
print(*sorted(f"{row.operator} {row.calls}" for row in report.native), sep="; ")
print(*sorted(f"{row.operator} {row.calls}" for row in report.rows), sep="; ")
"""


def run(form: str) -> list[str]:
    host_code = "1" if form == "host" else "0"
    program = f"NATIVE_FORM = {form!r}\n{PROGRAM}"
    return output_of(program, BRINGUP_SIM_HOST_CODE=host_code).splitlines()


def test_plain_values_give_the_bits_of_the_hosts_form() -> None:
    by_host, by_values = run("host"), run("values")
    assert by_values[0] == by_host[0]
    # Of eight dimensions that nothing merges plain values have no room.
    assert by_host[1].count("aten::") == by_values[1].count("aten::") == 12
    assert "aten::add.Tensor 1" in by_values[2].split("; ")
    assert "aten::add.Tensor" not in by_host[2]


RAW = """
import torch
from bringup import devices, jit
devices.load_driver("sim")
rows = jit.Source(name="rows.cpp", entry="rows", text='''
#include "bringup/device.h"
BRINGUP_EXPORT void rows(const bringup_position* at, const T* x, T* out, int64_t n, int64_t step,
                         double alpha, int32_t keep, OUT* more) {
  for (int64_t i = at->thread_idx.x; i < n; i += at->block_dim.x)
    out[at->block_idx.x * n + i] = x[at->block_idx.x * step + i] * alpha + keep;
  if (more) more[at->block_idx.x] = 1;
}
''')
kernel = devices.kernel("aten::_log_softmax", source=rows, kind="raw", strided=("self",),
    args="ptr(self), ptr(out), size(self, 1), stride(self, 0), f64(2.5), i32(dim), None",
    dtypes={"T": "self", "OUT": "out"}, grid="size(self, 0)", block=2, supports=(torch.float32,))
x = torch.arange(12.0, device="npu").reshape(3, 4)[:, :3]
print(torch._log_softmax(x, 1, False).tolist())
graph = torch.zeros(2)
try:
    devices.kernel("aten::_softmax", source=rows, kind="raw", args="ptr(self), size(self, 1)",
                   dtypes={"T": "self", "OUT": "out"})
    torch._softmax(x, 1, False)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("host_code", ["0", "1"])
def test_a_raw_kernel_gets_what_args_lists(host_code: str) -> None:
    said = output_of(RAW, BRINGUP_SIM_HOST_CODE=host_code).splitlines()
    assert said[0] == "[[1.0, 3.5, 6.0], [11.0, 13.5, 16.0], [21.0, 23.5, 26.0]]"
    assert said[1].startswith("SchemaError aten::_softmax: rows(const T* x, T* out, ")
    assert "takes 7 parameters, args= has 2" in said[1]


ITEMS = """
import torch
from bringup import devices, jit
devices.load_driver("sim")
twice = jit.Source(name="twice.cpp", entry="twice", text='''
#include "bringup/device.h"
BRINGUP_EXPORT void twice(const bringup_position* at, const T* x, T* out) {
  const int64_t i = (int64_t)at->block_idx.x * at->block_dim.x + at->thread_idx.x;
  out[i] = 2 * x[i];
}
''')
devices.kernel("aten::neg.out", source=twice, kind="raw", args="ptr(self), ptr(out)",
               work_items="numel(out) * (size(self, 0) != 3) - (size(self, 0) == 3)")
for n in (0, 1, 3, 37, 100, 128):
    whole = torch.full((n + 64,), -1.0, device="npu")
    torch.neg(torch.arange(float(n), device="npu"), out=whole[:n])
    assert whole[n:].eq(-1).all()  # no thread more
    print(whole[:n].sum().item())
report = devices.fallback_report()
print([row.calls for row in report.rows if row.operator == "aten::neg.out"])
"""


@pytest.mark.parametrize("host_code", ["0", "1"])
def test_work_items_are_as_many_threads_none_for_0_and_a_fallback_below(host_code: str) -> None:
    said = output_of(ITEMS, BRINGUP_SIM_HOST_CODE=host_code).splitlines()
    assert said == ["0.0", "0.0", "-3.0", "1332.0", "9900.0", "16256.0", "[1]"]


FAULTS = """
import torch
from bringup import devices, jit
devices.load_driver("sim")
take = jit.Source(name="take.cpp", entry="take", text='''
#include "bringup/device.h"
BRINGUP_EXPORT void take(const bringup_position* at, const T* x, const I* index, T* out,
                         int64_t size, int64_t n, int32_t* fault) {
  for (int64_t i = at->block_idx.x; i < n; i += at->grid_dim.x) {
    const bool inside = index[i] >= 0 && index[i] < size;
    if (!inside) *fault = 1;
    out[i] = inside ? x[index[i]] : 0;
  }
}
''')
devices.kernel("aten::take", source=take, kind="raw", dtypes={"T": "self", "I": "index"}, grid=2,
               args="ptr(self), ptr(index), ptr(out), numel(self), numel(out), "
                    "fault('index: an element is outside self')")
x = torch.arange(6.0, device="npu")
for index in (0, 6, -7, 5):
    try:
        print(x.take(torch.tensor([index, 1], device="npu")).tolist())
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("host_code", ["0", "1"])
def test_a_raw_kernel_says_what_it_cannot_compute(host_code: str) -> None:
    said = output_of(FAULTS, BRINGUP_SIM_HOST_CODE=host_code).splitlines()
    words = "operator 'aten::take' failed on device 0: index: an element is outside self"
    assert (said[0], said[3]) == ("[0.0, 1.0]", "[5.0, 1.0]")
    assert said[1].startswith(words)
    assert said[2].startswith(words)


REFUSED = """
import torch
from bringup import devices, jit
devices.load_driver("sim")
function = jit.Source(name="f.cpp", text="template <class T> T add(T a, T b, T c) { return a; }")
for options in (
    {}, {"source": function, "expression": "self"}, {"expression": "self", "kind": "raw"},
    {"source": function, "args": "ptr(self)"}, {"source": function, "kind": "raw", "block": 8},
    {"expression": "self / other", "supports": ("integral",)}, {"expression": "self + missing"},
    {"source": function, "entry": "run"},
):
    try:
        devices.kernel("aten::add", **options)
        print("taken")
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_declarations_that_do_not_fit_are_refused() -> None:
    said = output_of(REFUSED, BRINGUP_SIM_HOST_CODE="0").splitlines()
    for line, words in zip(
        said,
        [
            "expected source= or expression=, one of them",
            "expected source= or expression=, one of them",
            "expression= is of one element: kind='pointwise', not 'raw'",
            "args= belongs to kind='raw'; the kit starts a pointwise kernel",
            "grid=, block=, shared= and work_items= belong to args=",
            "declare floating point dtypes only",
            "missing is no argument (x, a, self, other, alpha)",
            "there are no views of kernel.h for entry='run'",
        ],
        strict=True,
    ):
        assert line.startswith("SchemaError ")
        assert words in line


NO_WRITER = """
import torch
from bringup import devices, jit

class Own(jit.GnuTarget):
    writer = None

jit.register_target(Own("own", ["c++"], march="native", get=""))
devices.load_driver("sim")
devices.kernel("aten::neg", expression="-self")
for device in ("npu:0", "npu:1"):
    try:
        print(torch.neg(torch.ones(2, device=device)))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_target_without_a_writer_and_one_that_is_not_there_are_named() -> None:
    said = output_of(NO_WRITER, BRINGUP_SIM_ARCHS="own-1,missing-1").splitlines()
    assert said[0] == (
        "SchemaError aten::neg: the target of 'own-1' writes no entries around a pointwise "
        "function; use kind='raw'"
    )
    assert said[1].startswith("ValueError target 'missing': expected one of 'cpu', 'sim', ")


HOST_ENTRY = """
import os, subprocess, sys, torch
from bringup import devices, jit
from bringup._native import include_dir
devices.load_driver("sim")
text = '''
#include "bringup/kernel.h"
#include <string.h>
#ifndef T
#define T float
#endif
/* As a vendor's library would, but at once: the simulator's memory is the host's. */
int run(void** args, int32_t n, const bringup_ctx* ctx) {
  const DLTensor* x = (const DLTensor*)args[0];
  DLTensor* out = (DLTensor*)args[1];
  if (n != 2 || ctx->device.device_type != 12) return 1;
  T* scratch = (T*)ctx->workspace(ctx, sizeof(T) * x->shape[0]);
  for (int64_t i = 0; i < x->shape[0]; ++i) scratch[i] = -((const T*)x->data)[i];
  memcpy(out->data, scratch, sizeof(T) * x->shape[0]);
  return 0;
}
'''
source = jit.Source(text=text, name="library.c")
kernel = devices.kernel("aten::neg", source=source, kind="raw", host=True)
x = torch.arange(3.0, device="npu")
print(torch.neg(x).tolist(), torch.neg(x.double()).dtype)
with kernel.disabled():
    print(torch.neg(x).tolist())
print([row.operator for row in devices.fallback_report().native])
kernel.close()
file = os.path.join(sys.argv[1], "library.c")
open(file, "w").write(text)
built = file.replace(".c", ".so")
subprocess.run(["cc", "-shared", "-fPIC", f"-I{include_dir()}", "-o", built, file], check=True)
devices.kernel("aten::neg", source=built, kind="raw", host=True, supports=(torch.float32,))
print(torch.neg(x).tolist())
for options in ({"kind": "pointwise"}, {"kind": "raw", "args": "ptr(self)"}):
    try:
        devices.kernel("aten::exp", source=source, host=True, **options)
    except Exception as error:
        print(type(error).__name__, error)
try:
    devices.kernel("aten::exp", source=built, kind="raw")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("host_code", ["0", "1"])
def test_a_host_entry_puts_a_library_behind_an_operator(tmp_path: Path, host_code: str) -> None:
    said = output_of(HOST_ENTRY, str(tmp_path), BRINGUP_SIM_HOST_CODE=host_code).splitlines()
    assert said[0] == "[-0.0, -1.0, -2.0] torch.float64"
    assert said[1:4] == ["[-0.0, -1.0, -2.0]", "['aten::neg']", "[-0.0, -1.0, -2.0]"]
    assert said[4] == said[5]
    assert "host=True is of a raw kernel of kernel.h's form, without args=" in said[4]
    assert "a library that starts work itself needs host=True" in said[6]


IN_FRONT = """
import torch
from bringup import devices, graphs, jit
devices.load_driver("sim")
text = '''
#include "bringup/kernel.h"
const char* bringup_can_implement(void** args, int32_t n, const bringup_ctx* ctx) {
  return ((const DLTensor*)args[0])->shape[0] == 3 ? 0 : "another size";
}
int run(void** args, int32_t n, const bringup_ctx* ctx) {
  const float* x = (const float*)((const DLTensor*)args[0])->data;
  float* out = (float*)((DLTensor*)args[1])->data;
  for (int i = 0; i < 3; ++i) out[i] = 10 * x[i];  // which shows that it ran
  if (x[0] < 0) ctx->set_error(ctx, "below zero");
  return x[0] < 0;
}
'''
source = jit.Source(text=text, name="front.c")
options = {"source": source, "kind": "raw", "host": True, "supports": (torch.float32,)}
x, other = torch.arange(1.0, 4.0, device="npu"), torch.arange(4.0, device="npu")

def told():
    return [int(torch.neg(of)[1]) for of in (x, other, x.int())]

def declared():
    numbers = ("floating", "integral")
    return devices.kernel("aten::neg", expression="-self", supports=numbers)

behind, front = declared(), devices.kernel("aten::neg", **options)
devices.set_fallback_policy("forbid")
print(told())
with front.disabled():
    print(told())
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    first = torch.neg(x)
    last = torch.neg(torch.neg(first)[:2])
def replayed():
    graph.replay()
    return [one.tolist() for one in (first, last)]
print([node.kind for node in graph.nodes], replayed())
graph.update({"neg.0.self": torch.tensor([5.0, 6, 7], device="npu")})
torch.npu.synchronize()
print(replayed())
graph.update({"neg.0.self": torch.tensor([-5.0, 6, 7], device="npu")})
try:
    graph.replay()
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0])
graph.update({"neg.0.self": x})
print(replayed())
front.close()
print(told(), replayed())
graph.reset()
front = devices.kernel("aten::neg", **options)
with behind.disabled(), devices.fallback_policy("allow"):
    print(told(), front.enabled)
behind.close()
with devices.fallback_policy("allow"):
    print(told(), front.enabled)
"""


def test_a_host_entry_goes_in_front_of_a_kernel_and_into_graphs() -> None:
    said = output_of(IN_FRONT, BRINGUP_SIM_HOST_CODE="0").splitlines()
    first = "[[10.0, 20.0, 30.0], [-100.0, -200.0]]"
    assert said == [
        "[20, -1, -2]",
        "[-2, -1, -2]",
        f"['kernel', 'kernel', 'kernel'] {first}",
        "[[50.0, 60.0, 70.0], [-500.0, -600.0]]",
        "KernelError aten::neg: the kernel failed with status 1: below zero",
        first,
        f"[-2, -1, -2] {first}",
        "[-2, -1, -2] True",
        "[-2, -1, -2] False",
    ]


CHOSEN = """
import torch
from bringup import devices, jit
devices.load_driver("sim")
source = jit.Source(name="rows.cpp", entry="rows", text='''
#include "bringup/device.h"
BRINGUP_EXPORT void rows(const bringup_position* at, const T* x, T* out, int64_t n, int64_t inner) {
  const int64_t row = at->block_idx.x;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = row / inner * inner * n + row % inner + i * inner;
    out[place] = x[place] + i;
  }
}
''')
devices.kernel("aten::_softmax", source=source, kind="raw", supports=(torch.float32,),
    args="ptr(self), ptr(out), size(self, dim), stride(self, dim)",
    grid="(numel(self) // (size(self, dim) + (size(self, dim) == 0)) + 1) * (ndim(self) < 3) - 1")
joined = jit.Source(name="joined.cpp", entry="joined", text='''
#include "bringup/device.h"
BRINGUP_EXPORT void joined(const bringup_position* at, const T* a, int64_t n, const T* b, int64_t m,
                           const T* none, int64_t nothing, T* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i];
  for (int64_t i = 0; i < m; ++i) out[n + i] = b[i];
  if (none || nothing) out[0] = -1;
}
''')
devices.kernel("aten::cat", source=joined, kind="raw", dtypes={"T": "tensors"},
    args="ptr(tensors[0]), numel(tensors[0]), ptr(tensors[1]), numel(tensors[1]), "
    "ptr(tensors[2]), numel(tensors[2]), ptr(out)")
x = torch.zeros(2, 3, device="npu")
devices.fallback_report(reset=True)

def told(result):
    report = devices.fallback_report(reset=True)
    print(result.tolist(), sum(row.calls for row in report.native), report.calls)

told(torch._softmax(x, 1, False))
told(torch._softmax(x, -2, False))
told(torch._softmax(x[0, 0], -1, False))
told(torch._softmax(x[:0], 0, False))
told(torch._softmax(x[None, :1], 1, False))
told(torch.ops.aten._softmax.out(x, 1, False, out=torch.ones(3, 2, device="npu").t()))
told(torch.cat((x[0], x[1, :1])))
"""


def test_a_raw_kernel_gets_dimensions_and_lists_and_its_grid_says_what_it_takes() -> None:
    said = output_of(CHOSEN, BRINGUP_SIM_HOST_CODE="0").splitlines()
    assert said == [
        "[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]] 1 0",
        "[[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]] 1 0",
        "0.0 1 0",
        "[] 1 0",
        "[[[1.0, 1.0, 1.0]]] 0 1",  # its grid refuses three dimensions
        "[[0.3333333432674408, 0.3333333432674408, 0.3333333432674408], "
        "[0.3333333432674408, 0.3333333432674408, 0.3333333432674408]] 0 1",  # lies otherwise
        "[0.0, 0.0, 0.0, 0.0] 1 0",
    ]
