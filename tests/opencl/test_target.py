"""The jit target `opencl`: natural OpenCL C behind operators of one's own and of torch."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.forked_python import output_of
from tests.opencl.conftest import SOURCES

from bringup import jit

BEGIN = f"""
import sys
sys.path.insert(0, {str(SOURCES)!r})
import torch
import bringup_opencl._target
from bringup import devices, graphs, jit, ops

driver = devices.load_driver(sys.argv[1])

def operator(text, args, name="scale"):
    source = jit.Source(text=text, name=f"{{name}}.cl")
    return ops.kernel_op(
        f"cl::{{name}}(Tensor x, float factor, int shift=0) -> Tensor", source=source, entry=name,
        kind="device", args=args, grid="(numel(x) + 63) // 64", block=64, redefine=True,
        outputs=ops.empty_like("x"))

SCALE = '''
kernel void scale(global float* out, global const float* x, ulong n, float factor, int shift) {{
  const ulong i = get_global_id(0);
  if (i < n) out[i] = x[i] * factor + shift;
}}
'''
"""


def run(library: Path, program: str, **variables: str) -> list[str]:
    return output_of(BEGIN + program, str(library), **variables).splitlines()


def test_an_operator_of_natural_opencl_c_is_called_captured_and_compiled(library: Path) -> None:
    said = run(
        library,
        """
scale = operator(SCALE, "ptr(out), ptr(x), numel(x), factor, shift")
x = torch.arange(5.0, device="ocl")
print(scale(x, 2.0, 1).tolist())
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y = scale(scale(x, 2.0), 3.0)
graph.replay()
print(y.tolist())
x.copy_(torch.ones(5))
graph.update({"scale.*.factor": 2.0})
graph.replay()
print(y.tolist())
print(torch.compile(lambda x: scale(x, 3.0), backend="bringup")(x).tolist())
""",
        BRINGUP_OPENCL_MEMORY="coarse",
    )
    assert said == [
        "[1.0, 3.0, 5.0, 7.0, 9.0]",
        "[0.0, 6.0, 12.0, 18.0, 24.0]",
        "[4.0, 4.0, 4.0, 4.0, 4.0]",
        "[3.0, 3.0, 3.0, 3.0, 3.0]",
    ]


def test_scalars_generators_lists_and_complex_numbers_are_plain_values(library: Path) -> None:
    said = run(
        library,
        """
text = '''
kernel void f(global float2* out, global long* drawn, global const float2* x,
              global const float2* y, float a, long seed, long offset, ulong n) {
  const ulong i = get_global_id(0);
  if (i < n) out[i] = a * x[i] + (y ? y[i] : (float2)(100, 0));
  if (i == 0) drawn[0] = 1000 * seed + offset;
}
'''
f = ops.kernel_op(
    "cl::f(Tensor x, Scalar a, Tensor?[] t, *, Generator? g=None) -> (Tensor, Tensor)",
    source=jit.Source(text=text, name="f.cl"), entry="f", kind="device",
    args="ptr(out0), ptr(out1), ptr(x), ptr(t[1]), a, g[0], g[1], numel(x)",
    grid="(numel(x) + 63) // 64", block=64,
    outputs=[ops.empty_like("x"), ops.empty(1, dtype=torch.int64)],
    checks=[ops.same_shape("x", "t"), ops.dtype("x", torch.complex64), ops.kernel_checks()])
x = torch.tensor([1 + 2j, 3j]).to("ocl")
g = torch.Generator("ocl").manual_seed(7)
for call in (f, f.overload):
    y, drawn = call(x, 2, [None, x.conj()], g=g)
    print(y.cpu().tolist(), drawn.item())
    print(call(x, 0.5, [None, None], g=g)[0].cpu().tolist())
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y, drawn = f(x, 3, [], g=g)
g.manual_seed(5)
for _ in range(2):
    graph.replay()
    print(y.cpu().tolist(), drawn.item())
try:
    f(x, 1j, [])
except Exception as error:
    print(type(error).__name__, error)
""",
        BRINGUP_OPENCL_MEMORY="coarse",
    )
    assert said[:4] == [
        "[(3+2j), 3j] 7000",
        "[(100.5+1j), (100+1.5j)]",
        "[(3+2j), 3j] 7002",
        "[(100.5+1j), (100+1.5j)]",
    ]
    assert said[4:6] == ["[(103+6j), (100+9j)] 5000", "[(103+6j), (100+9j)] 5001"]
    assert said[6].startswith("ContractError cl::f: a must be torch.bool or torch.int64")


def test_as_many_threads_run_as_there_are_work_items(library: Path) -> None:
    said = run(
        library,
        """
text = "kernel void put(global int* out) { out[get_global_id(0)] += get_global_size(0); }"
put = ops.kernel_op(
    "cl::put(Tensor(a!) x, int n) -> ()", source=jit.Source(text=text, name="put.cl"), entry="put",
    kind="device", args="ptr(x, int32)", work_items="n")
graph = graphs.CapturedGraph()
x = torch.zeros(200, dtype=torch.int32, device="ocl")
with graphs.capture(graph):
    put(x, 1)
for n in (1, 37, 131, 192):
    x.zero_()
    put(x, n)
    graph.update({"put.0.n": n})
    graph.replay()
    print(x.tolist() == [2 * n] * n + [0] * (200 - n))
""",
    )
    assert said == ["True"] * 4


def test_what_does_not_fit_the_declaration_or_does_not_compile_is_said(library: Path) -> None:
    said = run(
        library,
        """
x = torch.ones(5, device="ocl")
for text, args in (
    (SCALE, "ptr(x), ptr(out), numel(x), factor, shift"),
    (SCALE, "ptr(out), ptr(x), numel(x), factor"),
    (SCALE, "ptr(out), ptr(x), numel(x), shift, shift"),
    (SCALE.replace("void scale", "void other"), "ptr(out), ptr(x), numel(x), factor, shift"),
    (SCALE.replace("shift;", "missing;"), "ptr(out), ptr(x), numel(x), factor, shift"),
    (SCALE.replace("float", "double"), "ptr(out), ptr(x, float64), numel(x), factor, shift"),
):
    try:
        operator(text, args)(x, 2.0)
        print("taken")
    except Exception as error:
        print(type(error).__name__, " ".join(str(error).split()))
""",
    )
    for line, words in zip(
        said,
        (
            "SchemaError cl::scale: scale.cl: args: scale(): ptr(x) is not written",
            "takes 5 parameters, args= has 4",
            "SchemaError cl::scale: scale.cl: args: ",
            "has no function 'scale' (it has other",
            "CompileError cl::scale: scale.cl did not compile for target 'opencl:",
            "float64",
        ),
        strict=True,
    ):
        assert words in line
    assert "scale.cl:4:39: error: use of undeclared identifier 'missing'" in said[4]


PER_ELEMENT = """
import hashlib
devices.kernel("aten::add", expression="self + alpha * other", supports=("floating", "integral"))
devices.kernel("aten::lt", expression="self < other")
total = jit.Source(name="total.cl", text='''
typedef struct { T total; long least; } total_state;
void total_start(total_state* s) { s->total = 0; s->least = -1; }
void total_add(total_state* s, T value, long index) {
  s->total += value;
  if (s->least < 0 || index < s->least) s->least = index;
}
void total_merge(total_state* s, const total_state* other) {
  if (other->least >= 0) total_add(s, other->total, other->least);
}
void total_result(const total_state* s, long count, T* value) {
  *value = s->least == 0 ? s->total : NAN;
}
''')
devices.kernel("aten::sum.dim_IntList", source=total, kind="reduction", entry="total")
torch.manual_seed(0)

def check(function, *tensors):
    with devices.fallback_policy("forbid"):
        there = function(*(t.to("ocl") for t in tensors)).cpu()
    torch.testing.assert_close(there, function(*tensors), rtol=1e-5, atol=1e-5, equal_nan=True)

x, y = torch.randn(4, 5, 6), torch.randn(5, 1)
check(lambda x, y: x + y, x, y)
check(lambda x, y: torch.add(x.t(), y.t(), alpha=-2.5), x[0], y)
check(lambda x: x + x, torch.randn(3000, 701))
check(lambda x: x.permute(2, 0, 1)[::2] + 1.5, x)
check(lambda x: x < 0.5, x)
for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8):
    check(lambda x: x + x, (x * 10).abs().to(dtype))
    check(lambda x: x + 3, (x * 10).abs().to(dtype))
check(lambda x: x + x.float(), x.half())
for dims in (0, 1, 2, (0, 2), (0, 1, 2)):
    check(lambda x: x.sum(dims), x)
check(lambda x: x.sum(0), torch.randn(300, 100))  # a thread for each result
check(lambda x: x.sum(1, keepdim=True), torch.randn(30, 1000))  # a block for each
check(lambda x: x.sum((0, 2)), torch.randn(9, 70, 40).transpose(1, 2))
check(lambda x: x.sum(1), torch.randn(70000, 2))  # more results than blocks
"""


def test_functions_and_expressions_become_opencl_c(library: Path) -> None:
    run(library, PER_ELEMENT, BRINGUP_OPENCL_MEMORY="coarse")


def test_a_second_process_compiles_nothing(library: Path) -> None:
    program = PER_ELEMENT.replace("torch.manual_seed(0)", "jit.freeze()\ntorch.manual_seed(0)")
    run(library, PER_ELEMENT, BRINGUP_OPENCL_MEMORY="coarse")
    run(library, program, BRINGUP_OPENCL_MEMORY="coarse")


def test_options_that_define_macros_reach_the_compiler(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(SOURCES))
    importlib.import_module("bringup_opencl._target")
    text = "#if FIRST != 3 || SECOND != 4\n#error not defined\n#endif\nkernel void k() {}\n"
    source = jit.Source(text=text, name="defined.cl", entry="k", kind="device", abi="values")
    flags = ["-DFIRST=3"]
    binary = jit.compile(source, macros={"SECOND": "4"}, target="opencl", flags=flags)
    assert binary.path.is_file()


def test_a_header_beside_the_source_is_part_of_the_key(library: Path, tmp_path: Path) -> None:
    said = run(
        library,
        f"""
from pathlib import Path
folder = Path({str(tmp_path)!r})
(folder / "add.cl").write_text('#include "more.h"\\nT add(T a, T b, T c) {{ return a + MORE; }}')
x = torch.ones(2, device="ocl")
for more in (1, 2):
    (folder / "more.h").write_text(f"#define MORE {{more}}")
    kernel = devices.kernel("aten::add", source=folder / "add.cl")
    print((x + x).tolist())
    kernel.close()
""",
    )
    assert said == ["[2.0, 2.0]", "[3.0, 3.0]"]


@pytest.mark.parametrize("name", ["opencl", "opencl:0123456789abcdef"])
def test_a_machine_without_the_device_is_told_what_to_get(name: str) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(SOURCES)!r})
import bringup_opencl._target
from bringup import jit
try:
    jit.compile(jit.Source(text="kernel void run(void) {{}}", name="k.cl"), target={name!r})
    print("compiled")
except Exception as error:
    print(type(error).__name__, error)
"""
    nothing = {} if ":" in name else {"OCL_ICD_VENDORS": str(Path(sys.prefix) / "nothing.icd")}
    said = output_of(code, **nothing)
    words = "this machine has no such device" if ":" in name else "apt-get install"
    assert said.startswith("MissingCompilerError")
    assert words in said


def test_quotients_without_divisions_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOURCES))
    writer = importlib.import_module("bringup_opencl._writer")
    text = f"""typedef unsigned int uint;
typedef unsigned long ulong;
{writer._QUOTIENT}
void each(const uint* numbers, const uint* divisors, uint* out, long n) {{
  for (long i = 0; i < n; ++i)
    out[i] = bringup_quotient(numbers[i], divisors[i], 0xffffffffu / divisors[i]);
}}
"""
    source = jit.Source(text=text, name="quotients.c", entry="each", abi="function")
    each = ctypes.CDLL(str(jit.compile(source).path)).each
    random = np.random.default_rng(0)
    divisors = np.concatenate([np.arange(1, 2000), 2 ** np.arange(31), 2 ** np.arange(1, 32) - 1])
    quotients = random.integers(0, 2**31 // divisors)
    near = np.concatenate([quotients * divisors + more for more in (-1, 0, 1)])
    numbers = np.concatenate([near, np.full(divisors.size, 2**31 - 1)]).clip(0, 2**31 - 1)
    divisors = np.tile(divisors, 4)
    given = [array.astype(np.uint32) for array in (numbers, divisors, np.empty_like(numbers))]
    each(*(ctypes.c_void_p(array.ctypes.data) for array in given), ctypes.c_long(numbers.size))
    assert (given[2] == numbers // divisors).all()
