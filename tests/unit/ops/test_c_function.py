"""Functions as they are: a C file or a library that somebody has built becomes an operator by what
its function is called with.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define

from bringup import devices, graphs, jit, ops
from bringup.errors import CompileError, ContractError, KernelError, SchemaError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FORMS = pytest.mark.parametrize("form", ["c", "c++", "library"])

Build = Callable[..., Path]


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(text)`: a library that plain `cc` has made, of no header and no tool of ours."""
    numbers = itertools.count()

    def compile_library(text: str, name: str = "", suffix: str = ".c") -> Path:
        source = tmp_path / f"library{next(numbers)}{suffix}"
        source.write_text(text)
        library = tmp_path / (name or f"lib{source.stem}.so")
        compiler = "cc" if suffix == ".c" else "c++"
        command = [compiler, "-O1", "-shared", "-fPIC", f"-o{library}", str(source), "-lm"]
        subprocess.run(command, check=True)
        return library

    return compile_library


RMS = """
#include <math.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C"
#endif
int rms(float* out, const float* x, const float* w, int64_t rows, int64_t n, float eps,
        void* stream) {
  (void)stream;
  if (n == 13) return 7;
  for (int64_t r = 0; r < rows; ++r) {
    float sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[r * n + i] * x[r * n + i];
    const float k = 1 / sqrtf(sum / n + eps);
    for (int64_t i = 0; i < n; ++i) out[r * n + i] = x[r * n + i] * k * w[i];
  }
  return 0;
}
"""
SIGNATURE = "rms(Tensor x, Tensor w, float eps=1e-6) -> Tensor"
CONTRACT = {"outputs": ops.empty_like("x"), "checks": ops.shape("w", "x.shape[1]"), "entry": "rms"}
ARGS = "ptr(out), ptr(x), ptr(w), size(x,0), size(x,1), eps, stream"
LIBRARY_ARGS = (
    "ptr(out, float32), ptr(x, float32), ptr(w, float32), size(x,0), size(x,1), f32(eps), stream"
)


@pytest.fixture
def rms(define: Define, build: Build, form: str) -> ops.KernelOperator:
    if form == "library":
        return define(SIGNATURE, source=build(RMS), args=LIBRARY_ARGS, **CONTRACT)
    source = jit.Source(text=RMS, name="rms.c" if form == "c" else "rms.cpp")
    return define(SIGNATURE, source=source, args=ARGS, **CONTRACT)


def expected(x: torch.Tensor, w: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


@FORMS
@DEVICES
@PATHS
def test_a_function_is_an_operator_as_it_is(rms: Any, device: str, path: Any) -> None:
    """Row 20: a plain C function, without C++ and without a header, from source or built."""
    x, w = torch.randn(5, 8), torch.randn(8)
    for eps in (1e-6, 0.5):
        result = path(rms)(x.to(device), w.to(device), eps=eps)
        torch.testing.assert_close(result.cpu(), expected(x, w, eps))


@FORMS
@PATHS
def test_strided_and_empty_inputs_reach_it_contiguous(rms: Any, form: str, path: Any) -> None:
    """Pitfall: the gradient of sum() has stride 0, and a function that gets addresses only would
    read beyond it.
    """
    w = torch.randn(4)
    for x in (torch.randn(4, 6).t(), torch.randn(1, 4).expand(3, 4), torch.randn(0, 4)):
        torch.testing.assert_close(path(rms)(x, w), expected(x, w))


@FORMS
@PATHS
def test_another_dtype_or_device_is_refused_before_it_runs(rms: Any, path: Any) -> None:
    """A raw address carries no dtype: whatever is said of it is checked."""
    x, w = torch.randn(2, 4), torch.randn(4)
    with pytest.raises(ContractError, match=r"x must be torch\.float32, got torch\.float64"):
        path(rms)(x.double(), w)
    with pytest.raises(ContractError, match=r"w must be torch\.float32, got torch\.float16"):
        path(rms)(x, w.half())
    with pytest.raises(ContractError, match=r"one device, got x: npu:0, w: cpu"):
        path(rms)(x.to("npu"), w)
    with pytest.raises(ContractError, match="w must have shape"):
        path(rms)(x, torch.randn(5))


@FORMS
def test_meta_and_compiled_calls_know_the_same_contract(rms: Any) -> None:
    """Row 7: one rule for allocation, fake and meta."""
    x, w = torch.randn(2, 4), torch.randn(4)
    assert rms(x.to("meta"), w.to("meta")).shape == (2, 4)
    with pytest.raises(ContractError, match=r"x must be torch\.float32"):
        rms(x.double().to("meta"), w.to("meta"))
    compiled = torch.compile(lambda x, w: rms(x, w) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), expected(x, w) + 1)


@FORMS
@DEVICES
def test_a_status_that_is_not_zero_is_an_error(rms: Any, device: str) -> None:
    """Row 23: the function's own return code."""
    x, w = torch.randn(1, 13, device=device), torch.randn(13, device=device)

    def call() -> None:
        rms(x, w)
        torch.npu.synchronize()

    with pytest.raises((KernelError, RuntimeError), match=r"rms.* 7"):
        call()


@FORMS
def test_a_number_that_does_not_fit_is_refused(rms: Any) -> None:
    """No silent narrowing to what the function declares."""
    with pytest.raises(KernelError, match=r"eps\)? is 1e\+300, beyond the range of a 32-bit float"):
        rms(torch.randn(1, 2), torch.randn(2), 1e300)


def test_gradients_come_from_a_function_too(define: Define, build: Build) -> None:
    """Row 10: backward is another operator, and no Python runs."""
    library = build(
        "#include <stdint.h>\n"
        "void twice(double* out, const double* x, int64_t n) {\n"
        "  for (int64_t i = 0; i < n; ++i) out[i] = 2 * x[i];\n}\n"
    )
    options: dict[str, Any] = {"source": library, "entry": "twice", "returns": "void"}
    arguments = "ptr(out, float64), ptr({0}, float64), numel({0})"
    backward = define(
        "twice_backward(Tensor grad) -> Tensor",
        args=arguments.format("grad"),
        outputs=ops.empty_like("grad"),
        **options,
    )
    twice = define(
        "twice(Tensor x) -> Tensor",
        args=arguments.format("x"),
        outputs=ops.empty_like("x"),
        **options,
    )
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="twice"):
        twice(x).sum().backward()
    twice.register_backward(backward.qualified_name)
    twice(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]
    assert torch.autograd.gradcheck(twice, x)


PROBE = """
#include <stdint.h>
#include <string.h>
#ifdef __cplusplus
extern "C"
#endif
int probe(double* out, const float* x, int8_t a, double b, uint16_t c, float d, int32_t e,
          int64_t f, float g, double h, double i, double j, float k, double l, double m, float n,
          int64_t o, _Bool p, const char* text, const char* none, const int64_t* list,
          int64_t length, const float* missing, int64_t has, const void* null, const int32_t* by,
          const float* ref, int64_t dtype, int64_t bits, int64_t last, float end) {
  const double values[] = {(double)a, b, (double)c, d, (double)e, (double)f, g, h, i, j, k, l, m, n,
                           (double)o, (double)p, (double)strlen(text), none == 0,
                           (double)list[length - 1], (double)length, missing == 0, (double)has,
                           null == 0, (double)*by, *ref, (double)dtype, (double)bits, (double)last,
                           end, x[1]};
  for (int at = 0; at < 30; ++at) out[at] = values[at];
  return 0;
}
"""
PROBE_ARGS = (
    "ptr(out, float64), ptr(x, float32), i8(n), v, u16(size(x, -1)), f32(v), i32(stride(x,0)), "
    "numel(x) * 3 - 1, f32(0.5), 1.5, -2.5, v, f32(1), v, v, f32(v), -(n) // 2, bool(flag), word, "
    "nothing, ptr(sizes), len(sizes), ptr(y, float32), has(y), None, ref(i32(n)), ref(f32(v)), "
    "dtype(x), dtype_bits(x), (size(x,0) + 1) * ndim(x), f32(v)"
)


@pytest.mark.parametrize("form", ["c", "library"])
@DEVICES
def test_everything_that_can_be_passed_arrives(
    define: Define, build: Build, form: str, device: str
) -> None:
    """Row 23: typed arguments, more of them than there are registers, both ways of calling the
    same.
    """
    source = build(PROBE) if form == "library" else jit.Source(text=PROBE, name="probe.c")
    probe = define(
        "probe(Tensor x, Tensor? y, int n, float v, bool flag, str word, str? nothing, int[] sizes)"
        " -> Tensor",
        source=source,
        entry="probe",
        args=PROBE_ARGS,
        outputs=ops.empty(30, dtype=torch.float64),
        checks=ops.dtype("x", torch.float32),
    )
    x = torch.arange(6.0).reshape(2, 3).to(device)
    result = probe(x, None, -7, 0.25, True, "wörd", None, [4, 5, 6])
    assert result.tolist() == [
        -7, 0.25, 3, 0.25, 3, 17, 0.5, 1.5, -2.5, 0.25, 1, 0.25, 0.25, 0.25, 3, 1, 5, 1, 6, 3, 1,
        0, 1, -7, 0.25, 6, 32, 6, 0.25, 1,
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["c", "library"])
@DEVICES
def test_a_function_gets_a_workspace_of_any_size(
    define: Define, build: Build, form: str, device: str
) -> None:
    """Row 21: scratch memory, given back after the call."""
    text = (
        "#include <stdint.h>\n#include <string.h>\n"
        "void reverse(int64_t* x, int64_t n, int64_t* scratch) {\n"
        "  memcpy(scratch, x, 8 * n);\n"
        "  for (int64_t i = 0; i < n; ++i) x[i] = scratch[n - 1 - i];\n}\n"
    )
    library = form == "library"
    reverse = define(
        "reverse(Tensor(a!) x, int spare=0) -> ()",
        source=build(text) if library else jit.Source(text=text, name="reverse.c"),
        entry="reverse",
        args="ptr(x, int64), numel(x), workspace(8 * numel(x) + spare)",
        **({"returns": "void"} if library else {}),
    )
    for n in (0, 1, 1000, 7):
        x = torch.arange(n, device=device)
        version = x._version
        reverse(x)
        assert x.tolist() == list(reversed(range(n)))
        assert x._version == version + 1
    if device == "cpu":
        with pytest.raises(KernelError, match=r"no memory left for its workspace of \d+ bytes"):
            reverse(torch.arange(3), 1 << 60)
        with pytest.raises(KernelError, match="its workspace would have -76 bytes"):
            reverse(torch.arange(3), -100)


def test_numbers_by_reference_as_fortran_passes_them(define: Define, build: Build) -> None:
    """What a Fortran compiler makes of a subroutine: an underscore, and every argument an
    address.
    """
    library = build(
        "void saxpy_(const int* n, const float* a, const float* x, const int* incx, float* y,\n"
        "            const int* incy) {\n"
        "  for (int i = 0; i < *n; ++i) y[i * *incy] += *a * x[i * *incx];\n}\n"
    )
    saxpy = define(
        "saxpy(Tensor(a!) y, Tensor x, float a) -> ()",
        source=library,
        entry="saxpy_",
        returns="void",
        args="ref(i32(numel(x))), ref(f32(a)), ptr(x, float32), ref(i32(1)), ptr(y, float32), "
        "ref(i32(1))",
        checks=ops.same_shape("x", "y"),
    )
    y = torch.ones(3)
    saxpy(y, torch.arange(3.0), 10)
    assert y.tolist() == [1, 11, 21]


def test_a_source_for_several_dtypes_keeps_its_macro(define: Define) -> None:
    twice = define(
        "twice(Tensor x, Tensor y) -> Tensor",
        source=jit.Source(
            text="#include <stdint.h>\nvoid twice(T* out, const T* x, const T* y, int64_t n) {\n"
            "  for (int64_t i = 0; i < n; ++i) out[i] = x[i] + y[i];\n}\n",
            name="twice.cpp",
        ),
        entry="twice",
        args="ptr(out), ptr(x), ptr(y), numel(x)",
        dtypes={"T": "x"},
        outputs=ops.empty_like("x"),
        checks=[ops.same_dtype("x", "y"), ops.same_shape("x", "y")],
    )
    for dtype in (torch.float32, torch.float64, torch.int32):
        x = torch.ones(3, dtype=dtype)
        assert torch.equal(twice(x, x), 2 * x)


X = "f(Tensor x, int n=1) -> Tensor"
ONE = {"outputs": ops.empty_like("x")}
F = "#include <stdint.h>\nint f(float* out, const float* x, int64_t n) { return 0; }\n"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (F, {"args": "ptr(out), ptr(z), numel(x)"}, "there is no argument 'z' (there are x, n, out)"),
    (F, {"args": "ptr(out), ptr(x), m"}, "there is no argument 'm'"),
    (F, {"args": "ptr(out), ptr(x)"},
     "f(float* out, const float* x, int64_t n) takes 3 parameters, args= has 2: ptr(out), ptr(x)"),
    (F, {"args": "ptr(out), ptr(x), x"}, "x is Tensor: write ptr(x), size(x,0), ..."),
    (F, {"args": "ptr(out), ptr(n), n"}, "n is int, which has no address to pass"),
    (F, {"args": "ptr(out), ptr(x), size(x)"}, "size names a dimension, as in size(x,0)"),
    (F, {"args": "ptr(out), ptr(x), numel(x,0)"}, "numel takes no dimension: numel(x)"),
    (F, {"args": "ptr(out), ptr(x), len(x)"}, "x is Tensor, expected int[]"),
    (F, {"args": "ptr(out), ptr(x), i32(1.5)"}, "1.5 is not a whole number"),
    (F, {"args": "ptr(out), ptr(x), f32(n)"}, "n is not a float"),
    (F, {"args": "ptr(out), ptr(x), n / 2"}, "whole numbers are combined with + - * and //"),
    (F, {"args": "ptr(out), ptr(x), n + 'a'"}, "'a' is no whole number"),
    (F, {"args": "ptr(out), ptr(x), ptr(x) + 1"}, "ptr(x) is no whole number"),
    (F, {"args": "ptr(out), ptr(x), workspace()"}, "workspace() takes one argument"),
    (F, {"args": "ptr(out), ptr(x), ref(ptr(x))"}, "ref() is of a number"),
    (F, {"args": "ptr(out), ptr(x), i32(ref(n))"}, "ref() stands around the whole parameter"),
    (F, {"args": "ptr(out), ptr(x, single), n"}, "single is no dtype that a kernel takes (float64"),
    (F, {"args": "ptr(out), ptr(x), 1 << 3"}, "whole numbers are combined with + - * and //"),
    (F, {"args": f"ptr(out), ptr(x), {2**70}"}, "is no number that C has in 64 bits"),
    (F, {"args": "ptr(out), ptr(x), n" + " - (n" * 20 + ")" * 20}, "nested deeper than 16"),
    (F, {"args": "ptr(out), ptr(x), n; exit"}, "cannot be read"),
    (F, {"args": "ptr(out), ptr(x), n=3"}, "cannot be read"),
    (F, {"args": "ptr(out), ptr(x), 'a\\0b'"}, "ends at its first NUL"),
    (F, {"args": ""}, "say what the function gets"),
    (F, {"args": 3}, "args=3: expected a text, got int"),
    (F, {"entry": "g", "args": "ptr(out)"}, "has no function 'g' (it has f); name it with entry="),
    (F, {"returns": "void", "args": "ptr(out), ptr(x), n"},
     "is for functions of a library; a source says itself"),
    (F, {"returns": "void"}, "is for a function with args="),
    (F, {"args": "ptr(out, float64), ptr(x), n"},
     "the function takes x as torch.float32, and as torch.float64"),
    (F, {"args": "ptr(out), ptr(x), n", "outputs": ops.empty(2, dtype=torch.int32)},
     "output out is allocated as torch.int32, and the function takes torch.float32"),
    (F, {"args": "ptr(out), ptr(x), n", "outputs": ops.empty(2, dtype=ops.promote("x", "n"))},
     "allocated as what arguments are promoted to, and the function takes torch.float32"),
    (F.replace("const float*", "const void*"),
     {"args": "ptr(out), ptr(x), n", "outputs": ops.empty(2, dtype=torch.float32)},
     "passes the address of x, and nothing says which dtype the function takes there: write "
     "ptr(x, float32)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "words"), REFUSED)
def test_a_wrong_definition_is_refused_by_name(
    define: Define, text: str, options: dict[str, Any], words: str
) -> None:
    given = {**ONE, "source": jit.Source(text=text, name="f.c"), "entry": "f", **options}
    with pytest.raises(SchemaError) as failure:
        define(X, **given)
    assert words in str(failure.value)
    assert "::f: " in str(failure.value)


DTYPES_TOLD: list[dict[str, Any]] = [
    {"checks": ops.dtype("x", torch.float32, torch.float64)},
    {"args": "ptr(out), ptr(x, int16), n"},
    {"args": "ptr(out), ptr(x), dtype(x)"},
    {"args": "ptr(out), ptr(x), dtype_bits(x)"},
    {"checks": ops.kernel_checks()},
]


@pytest.mark.parametrize("options", DTYPES_TOLD)
def test_each_way_to_say_the_dtype_of_an_address_will_do(
    define: Define, options: dict[str, Any]
) -> None:
    text = F.replace("const float*", "const void*").replace("float*", "void*")
    source = jit.Source(text=text, name="f.c")
    given = {**ONE, "args": "ptr(out), ptr(x), n", **options}
    dtype = torch.int16 if "int16" in given["args"] else torch.float32
    assert define(X, source=source, entry="f", **given)(torch.ones(2, dtype=dtype)).shape == (2,)


def test_what_the_compiler_finds_is_shown_with_the_function(define: Define) -> None:
    """Where the text does not show the declaration, the compiler knows it."""
    hidden = '#define NAME f\nextern "C" int NAME(const float* x, long n) { return 0; }\n'
    source = jit.Source(text=hidden, name="hidden.cpp")
    options: dict[str, Any] = {"source": source, "entry": "f", **ONE}
    operator = define(X, args="ptr(x, float32), n, n", **options)
    with pytest.raises(CompileError, match="too many arguments to function"):
        operator(torch.ones(1))


def test_a_library_without_the_function_names_what_is_near(define: Define, build: Build) -> None:
    """Row 23: the missing symbol."""
    options = {"args": LIBRARY_ARGS, **CONTRACT}
    library = build(RMS.replace("int rms(", "int rms_norm_f32("))
    with pytest.raises(SchemaError, match="exports no function 'rms'; did you mean 'rms_norm_f32'"):
        define(SIGNATURE, source=library, **options)
    other = build("int one(void) { return 1; }\nint two(void) { return 2; }\n")
    with pytest.raises(SchemaError, match=r"no function 'rms'; it exports .*one, two"):
        define(SIGNATURE, source=other, **options)
    mangled = build(RMS.replace('extern "C"', ""), suffix=".cpp")
    with pytest.raises(SchemaError, match=r"but C\+\+'s '_Z3rms.*declare the function extern"):
        define(SIGNATURE, source=mangled, **options)
    variable = build("int rms = 3;\n")
    with pytest.raises(SchemaError, match="exports 'rms' as a variable, not as a function"):
        define(SIGNATURE, source=variable, **options)
    text = library.with_name("libtext.so")
    text.write_text("no library")
    with pytest.raises(SchemaError, match="is no shared library"):
        define(SIGNATURE, source=text, **options)
    with pytest.raises(FileNotFoundError, match=r"no source file 'libnowhere\.so'"):
        define(SIGNATURE, source="libnowhere.so", **options)


LIBRARY_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dtypes": {"T": "x"}}, "is built already: macros and flags cannot change it"),
    ({"macros": {"N": 1}}, "is built already"),
    ({"flags": ["-O3"]}, "is built already"),
    ({"kind": "device"}, "a library is a host entry"),
    ({"returns": "int"}, "expected 'status' or 'void'"),
    ({"args": ARGS}, "nothing says which dtype the function takes there"),
]


@pytest.mark.parametrize(("options", "words"), LIBRARY_REFUSED)
def test_what_a_library_cannot_have_is_refused(
    define: Define, build: Build, options: dict[str, Any], words: str
) -> None:
    given = {"args": LIBRARY_ARGS, **CONTRACT, **options}
    with pytest.raises(SchemaError, match=words):
        define(SIGNATURE, source=build(RMS), **given)


def test_a_library_with_an_entry_of_kernel_h_needs_no_args(define: Define, build: Build) -> None:
    library = build(
        "#include <stdint.h>\ntypedef struct { double* data; } tensor;\n"
        "int32_t one(void** args, int32_t n, const void* ctx) {\n"
        "  ((tensor*)args[1])->data[0] = 1 + ((tensor*)args[0])->data[0] + n;\n  return 0;\n}\n"
    )
    one = define(
        "one(Tensor x) -> Tensor", source=library, entry="one", outputs=ops.empty_like("x")
    )
    assert one(torch.ones(1, dtype=torch.float64)).item() == 4
    assert one(torch.ones(1, dtype=torch.float64).to("npu")).item() == 4


def test_a_library_needs_no_compiler(
    define: Define, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with kernels and without a compiler is the one that libraries are for."""
    library = build(RMS)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "unused"))
    rms = define(SIGNATURE, source=library, args=LIBRARY_ARGS, **CONTRACT)
    with jit.frozen():
        x, w = torch.randn(3, 4), torch.randn(4)
        torch.testing.assert_close(rms(x, w), expected(x, w))
    assert not (tmp_path / "unused").exists()


SEVEN = "int seven(long* out) {{ *out = {0}; return 0; }}\n"
SEVEN_OPTIONS: dict[str, Any] = {
    "entry": "seven",
    "args": "ptr(out)",
    "outputs": ops.empty(1, dtype=torch.int64),
}


def test_a_new_build_of_a_library_is_another_one(define: Define, build: Build) -> None:
    """The content of a library is its identity; the loader would take the path for it."""
    library = build(SEVEN.format(7), "renamed.so")
    first = define("a(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    x = torch.ones(1)
    assert first(x).item() == 7
    build(SEVEN.format(8), "new.so").rename(library)
    second = define("b(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    assert second(x).item() == 8
    assert first(x).item() == 7


def test_a_library_that_is_written_over_while_loaded_is_refused(
    define: Define, build: Build
) -> None:
    """Its old code would go on running, or half of it."""
    library = build(SEVEN.format(17), "over.so")
    assert define("a(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)(torch.ones(1)) == 17
    other = build(SEVEN.format(18), "other.so").read_bytes()
    with library.open("r+b") as file:
        file.write(other)
    late = define("b(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    with pytest.raises(CompileError, match="was written over while this process had it loaded"):
        late(torch.ones(1))


def test_a_library_that_does_not_load_says_why(define: Define, build: Build) -> None:
    library = build("int absent(void);\nint seven(long* out) { return absent(); }\n")
    operator = define("a(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    with pytest.raises(CompileError, match=r"cannot be loaded: .*undefined symbol: absent"):
        operator(torch.ones(1))
    library.unlink()
    with pytest.raises(FileNotFoundError, match="no such kernel source"):
        operator(torch.ones(1))


def test_entries_of_functions_are_used_again(build: Build) -> None:
    """A kernel's entry has no room for whose it is, so there is a fixed number of them."""
    from bringup import _native

    template = jit.Template(build(SEVEN.format(7)), abi="function", params="n", entry="seven")
    binding = template.bind([jit.Argument("n", "int")]).binding
    assert binding is not None
    for _ in range(3000):
        kernel = _native.core().bind_c_function(str(template.path), "seven", *binding.spec())
        assert _native.core().release_kernel(kernel)
    held: list[int] = []

    def hold_all() -> None:
        for _ in range(3000):
            kernel = _native.core().bind_c_function(str(template.path), "seven", *binding.spec())
            held.append(kernel)

    with pytest.raises(RuntimeError, match="has bound 2048 functions, more than there are"):
        hold_all()
    for kernel in held:
        _native.core().release_kernel(kernel)


def test_an_unused_function_is_closed_by_unload(build: Build) -> None:
    template = jit.Template(build(SEVEN.format(9)), abi="function", params="ptr(x)", entry="seven")
    params = jit.params(template, x=torch.ones(1))
    binary = template.compile(params)
    assert binary.kernel_id == binary.kernel_id
    assert binary.key in jit.cache().unload().closed


def test_a_library_has_nothing_to_prebuild(define: Define, build: Build) -> None:
    """Row 21: the kernels of a run as values, libraries among them."""
    rms = define(SIGNATURE, source=build(RMS), args=LIBRARY_ARGS, **CONTRACT)
    params = rms.params(torch.randn(2, 4), torch.randn(4))
    assert [field.item for field in params.fields][3:] == [
        "size(x,0)",
        "size(x,1)",
        "eps",
        "stream",
    ]
    report = jit.prebuild([params])
    assert (len(report.hits), len(report.failed)) == (1, 0)
    with pytest.raises(ValueError, match="is built already: macros and flags cannot change it"):
        jit.compile(params.template.source, macros={"N": 1})


def test_a_template_may_be_a_function_too(define: Define) -> None:
    template = jit.Template(text=RMS, name="rms.c", entry="rms", abi="function", params=ARGS)
    rms = define(SIGNATURE, source=template, outputs=CONTRACT["outputs"], checks=CONTRACT["checks"])
    x, w = torch.randn(2, 4), torch.randn(4)
    torch.testing.assert_close(rms(x, w), expected(x, w))
    with pytest.raises(SchemaError, match="entry= belongs to the template"):
        define(SIGNATURE, source=template, **CONTRACT)


def test_a_captured_graph_updates_what_a_function_gets(define: Define, build: Build) -> None:
    """Slots write arguments in place, for every entry form."""
    library = build(
        "#include <stdint.h>\nint scale(float* out, const float* x, int64_t n, float by) {\n"
        "  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * by;\n  return 0;\n}\n"
    )
    scale = define(
        "scale(Tensor x, float by) -> Tensor",
        source=library,
        entry="scale",
        args="ptr(out), ptr(x, float32), numel(x), f32(by)",
        outputs=ops.empty_like("x"),
    )
    for device in ("cpu", "npu"):
        x = torch.arange(3.0, device=device)
        scale(x, 1.0)
        graph = graphs.CapturedGraph()
        with torch.no_grad(), graphs.capture(graph):
            y = scale(x, 2.0)
        graph.replay()
        assert y.tolist() == [0, 2, 4]
        graph.update({"scale.0.by": 5.0})
        graph.replay()
        assert y.tolist() == [0, 5, 10]
        with pytest.raises(Exception, match="beyond the range of a 32-bit float"):
            graph.update({"scale.0.by": 1e300})


def test_isolated_device_memory_is_translated_for_functions() -> None:
    """A driver may give the host other addresses than its own code sees."""
    script = """
        import subprocess, sys, torch
        from pathlib import Path
        from bringup import devices, ops
        devices.load_driver("sim")
        folder = Path(sys.argv[1])
        (folder / "f.c").write_text('''
        int twice(float* out, const float* x, long n) {
          for (long i = 0; i < n; ++i) out[i] = 2 * x[i];
          return 0;
        }''')
        library = folder / "f.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "f.c"], check=True)
        twice = ops.kernel_op(
            "isolated::twice(Tensor x) -> Tensor", source=library, entry="twice",
            args="ptr(out), ptr(x, float32), numel(x)", outputs=ops.empty_like("x"),
        )
        assert twice(torch.arange(3.0).to("npu")).cpu().tolist() == [0, 2, 4]
    """
    folder = Path(os.environ["BRINGUP_CACHE_DIR"]).parent
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(folder)],
        env={**os.environ, "BRINGUP_SIM_ISOLATED": "1"},
        check=True,
    )


def test_functions_are_called_without_the_native_torch_library_too(build: Build) -> None:
    """Where no library fits this torch, operators run through Python: the same function, the same
    refusals.
    """
    script = """
        import sys, torch
        from bringup import ops
        rms = ops.kernel_op(
            "plain::rms(Tensor x, Tensor w, float eps=1e-6) -> Tensor", source=sys.argv[1],
            entry="rms", args=sys.argv[2], outputs=ops.empty_like("x"),
            checks=ops.shape("w", "x.shape[1]"),
        )
        x, w = torch.randn(3, 4), torch.randn(4)
        expected = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w
        torch.testing.assert_close(rms(x, w), expected)
        for wrong, words in (((x.double(), w), "x must be torch.float32"),
                             ((x, w, 1e300), "beyond the range of a 32-bit float"),
                             ((torch.ones(1, 13), torch.ones(13)), "failed with status 7")):
            try:
                rms(*wrong)
            except Exception as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
    """
    argv = [sys.executable, "-c", textwrap.dedent(script), str(build(RMS)), LIBRARY_ARGS]
    subprocess.run(argv, env={**os.environ, "BRINGUP_NATIVE": "0"}, check=True)


@pytest.mark.parametrize("name", ["f.c", "f.cpp"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_number_that_is_no_status_is_refused_by_the_compiler(
    define: Define, name: str, kind: str
) -> None:
    """0.5 would be a success, 3.5 a failure with status 3."""
    text = f"{kind} f(float* out, const float* x) {{ return 0; }}"
    text = f'extern "C" {text}' if name == "f.cpp" else text
    operator = define(
        "one(Tensor x) -> Tensor",
        source=jit.Source(text=text, name=name, entry="f"),
        args="ptr(out), ptr(x)",
        outputs=ops.empty_like("x"),
    )
    with pytest.raises(CompileError, match="returns a floating-point number, which is no status"):
        operator(torch.ones(1))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("size(x, 99999999999999999999)", "there is no such dimension"),
        ("+".join(["1"] * 500), "nested too deeply|nested deeper"),
    ],
    ids=["dimension", "sum"],
)
def test_args_beyond_what_can_be_read_are_refused_by_name(
    define: Define, build: Build, args: str, told: str
) -> None:
    library = build("int f(long n) { return 0; }")
    with pytest.raises(SchemaError, match=told):
        define(
            "one(Tensor x) -> Tensor",
            source=library,
            entry="f",
            args=args,
            outputs=ops.empty_like("x"),
        )
