"""Functions that tvm-ffi exports, `__tvm_ffi_<name>`, as operators: by hand in C, with a runtime of
the test's own, and with the real one where it is installed.
"""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.ops.conftest import Define

from bringup import devices, jit, ops
from bringup.errors import CompileError, ContractError, KernelError, SchemaError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
REAL = pytest.mark.skipif(
    importlib.util.find_spec("tvm_ffi") is None,
    reason="needs tvm-ffi's own package: pip install apache-tvm-ffi",
)

Build = Callable[[str], Path]


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def compile_library(text: str) -> Path:
        source, library = tmp_path / "exports.c", tmp_path / "libexports.so"
        source.write_text(text)
        subprocess.run(["cc", "-shared", "-fPIC", f"-o{library}", str(source)], check=True)
        return library

    return compile_library


ABI = """
#include <stdint.h>
#include <string.h>
typedef struct { int32_t type; uint32_t zero; union { int64_t i; double d; const void* p;
  struct { uint8_t code, bits; uint16_t lanes; } dtype; }; } any;
typedef struct { void* data; int32_t device, id, ndim; uint8_t code, bits; uint16_t lanes;
  int64_t* shape; int64_t* strides; uint64_t offset; } tensor;
"""
# A runtime of the library's own: what tvm-ffi's does, for the two functions that count here.
RUNTIME = """
typedef struct { const char* data; size_t size; } bytes;
static struct { uint64_t count; int32_t type, pad; void* deleter; bytes kind, message; } error;
static void* raised; static int released; static void* stream; static int streams;
void TVMFFIErrorMoveFromRaised(void** out) { *out = raised; raised = 0; }
int TVMFFIObjectDecRef(void* object) { ++released; return 0; }
int TVMFFIEnvSetStream(int32_t type, int32_t id, void* given, void** before) {
  *before = stream; stream = given; ++streams; return 0;
}
static int raise(const char* kind, const char* message) {
  error.kind.data = kind; error.kind.size = strlen(kind);
  error.message.data = message; error.message.size = strlen(message);
  raised = &error;
  return -1;
}
"""
SCALE = (
    ABI
    + RUNTIME
    + """
int __tvm_ffi_scale(void* self, const any* args, int32_t n, any* result) {
  if (self != 0) return raise("TypeError", "no handle is expected");
  if (n != 3 || args[0].type != 7 || args[1].type != 3 || args[2].type != 7)
    return raise("TypeError", "expected a tensor, a float and a tensor");
  const tensor* x = args[0].p; const tensor* out = args[2].p;
  if (x->ndim != 1) return raise("ValueError", "x must have one dimension");
  if (args[1].d == 99) { result->type = 70; result->p = &error; return 0; }
  if (args[1].d == 98 || args[1].d == 97) { result->type = 1; result->i = args[1].d == 98 ? 3 : 0; }
  if (args[1].d == 96) { result->type = 3; result->d = 0.5; }
  for (int64_t i = 0; i < x->shape[0]; ++i)
    ((float*)out->data)[i] = ((float*)x->data)[i * x->strides[0]] * args[1].d;
  return 0;
}
"""
)


@pytest.fixture
def scale(define: Define, build: Build) -> ops.KernelOperator:
    return define(
        "scale(Tensor x, float by=2.0) -> Tensor",
        source=build(SCALE),
        entry="tvm_ffi:scale",
        outputs=ops.empty_like("x"),
        checks=ops.dtype("x", torch.float32),
    )


@DEVICES
@PATHS
def test_an_export_is_an_operator_with_its_outputs_last(scale: Any, device: str, path: Any) -> None:
    """Destination passing, without the package."""
    x = torch.arange(4.0, device=device)
    assert path(scale)(x).tolist() == [0, 2, 4, 6]
    assert path(scale)(x, by=0.5).tolist() == [0, 0.5, 1, 1.5]
    assert path(scale)(x, 97.0).tolist() == [0, 97, 194, 291]  # it returns 0
    assert path(scale)(torch.empty(0, device=device)).tolist() == []


@PATHS
def test_what_it_raises_becomes_an_exception_with_its_words(scale: Any, path: Any) -> None:
    """Rule 1: the error that TVMFFIErrorSetRaised keeps for the thread."""
    for _ in range(2):
        with pytest.raises(
            KernelError, match=r"::scale: .* status -1: ValueError: x must have one dimension"
        ):
            path(scale)(torch.ones(2, 2))
    with pytest.raises(KernelError, match=r"returned an object \(tvm-ffi type 70\)"):
        path(scale)(torch.ones(1), 99.0)
    for by, what in ((98.0, "3"), (96.0, "0.5")):
        with pytest.raises(
            KernelError, match=f"the function returned {what}.*, which nothing reads"
        ):
            path(scale)(torch.ones(1), by)
    with pytest.raises(ContractError, match=r"x must be torch\.float32"):
        path(scale)(torch.ones(1).double())


def test_what_it_raises_on_a_device_is_raised_at_the_next_synchronisation(scale: Any) -> None:
    scale(torch.ones(2, 2, device="npu"))
    with pytest.raises(RuntimeError, match=r"scale.*ValueError: x must have one dimension"):
        torch.npu.synchronize()


KINDS = (
    ABI
    + """
int __tvm_ffi_kinds(void* self, const any* args, int32_t n, any* result) {
  int64_t* out = (int64_t*)((const tensor*)args[0].p)->data;
  for (int32_t i = 1; i < n; ++i) { *out++ = args[i].type; *out++ = args[i].zero; }
  *out++ = args[3].i; *out++ = strlen(args[5].p); *out++ = args[6].dtype.code;
  *out++ = args[6].dtype.bits; *out++ = args[6].dtype.lanes; *out++ = args[9].i;
  *out = n;
  return 0;
}
"""
)


@PATHS
def test_each_type_of_a_schema_has_its_own(define: Define, build: Build, path: Any) -> None:
    """None, int, float, bool, str, dtype, tensors, addresses; no text is copied."""
    kinds = define(
        "kinds(Tensor x, int n, bool b, float? f, str s, ScalarType t, Tensor? y, int? m) "
        "-> Tensor",
        source=build(KINDS),
        entry="tvm_ffi:kinds",
        args="out, x, n, b, f, s, t, y, ptr(x), 3 * size(x,0), None, m, f32(1.5)",
        outputs=ops.empty(31, dtype=torch.int64),
        checks=ops.dtype("x", torch.float32),
    )
    x = torch.ones(2)
    given = path(kinds)(x, 5, True, 0.5, "text", torch.bfloat16, x, 7).tolist()
    assert given[:24:2] == [7, 1, 2, 3, 8, 5, 7, 4, 1, 0, 1, 3]
    assert given[1:24:2] == [0] * 12
    assert given[24:] == [1, 4, 4, 16, 1, 6, 13]
    empty = path(kinds)(x, 5, False, None, "", torch.float64, None, None).tolist()
    assert empty[:24:2] == [7, 1, 2, 0, 8, 5, 0, 4, 1, 0, 0, 3]
    assert empty[24:29] == [0, 0, 2, 64, 1]


# The parts of the runtime that lists need; objects are counted, and never freed.
OBJECTS = """
typedef struct { uint64_t count; int32_t type, pad; void* deleter; } object;
typedef struct { object header; tensor t; } held;
typedef struct { object header; int64_t size; any items[8]; } array;
int TVMFFIFunctionGetGlobal(const bytes* name, void** out) {
  static object make; *out = &make; ++alive;
  return name->size == 9 && memcmp(name->data, "ffi.Array", 9) == 0 ? 0 : -1;
}
int TVMFFIFunctionCall(void* make, const any* args, int32_t n, any* result) {
  array* made = calloc(1, sizeof *made); made->size = n; ++alive;
  memcpy(made->items, args, n * sizeof(any));
  result->type = 71; result->p = made; return 0;
}
int TVMFFITensorFromDLPack(void* from, int32_t aligned, int32_t contiguous, void** out) {
  held* made = calloc(1, sizeof *made); made->t = *(tensor*)from; ++alive; *out = made; return 0;
}
"""
LISTS = (
    "#include <stdlib.h>\nstatic int alive;\n"
    + ABI
    + RUNTIME.replace("++released", "--alive; ++released")
    + OBJECTS
    + """
int __tvm_ffi_lists(void* self, const any* args, int32_t n, any* result) {
  double* out = (double*)((const tensor*)args[n - 1].p)->data;
  *out++ = args[0].type; *out++ = args[0].i & 0xffffffff; *out++ = args[0].i >> 32;
  for (int32_t i = 1; i < n - 1; ++i) {
    if (args[i].type != 71) return raise("TypeError", "expected an array");
    const array* list = args[i].p;
    for (int64_t k = 0; k < list->size; ++k) {
      const any* item = &list->items[k];
      *out++ = item->type;
      *out++ = item->type == 1 || item->type == 2 ? item->i : item->type == 3 ? item->d :
               item->type == 70 ? ((float*)((const held*)item->p)->t.data)[0] : -1;
    }
  }
  *out = alive;
  return 0;
}
"""
)


@PATHS
@DEVICES
def test_lists_are_arrays_of_the_runtime_and_devices_are_dlpacks(
    define: Define, build: Build, path: Any, device: str
) -> None:
    lists = define(
        "lists(Tensor x, Device d, int[] n, float[] f, bool[] b, Tensor?[] t) -> Tensor",
        source=build(LISTS),
        entry="tvm_ffi:lists",
        args="d, n, f, b, t, out",
        outputs=ops.empty(16, dtype=torch.float64),
        checks=ops.kernel_checks(),
    )
    x = torch.tensor([5.0], device=device)
    for _ in range(2):  # what the first call made is gone
        given = path(lists)(x, torch.device("cuda:1"), [7, -1], [0.5], [True], [x, None]).tolist()
        assert given[:3] == [6, 2, 1]
        assert given[3:] == [1, 7, 1, -1, 3, 0.5, 2, 1, 70, 5, 0, -1, 4]


RETURNS = (
    ABI
    + RUNTIME
    + """
static struct { uint64_t count; int32_t type, pad; void* deleter; tensor t; } made;
static int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
static float data[] = {9, 0, 3, 1, 4, 2, 5};
int __tvm_ffi_returns(void* self, const any* args, int32_t n, any* result) {
  const int64_t how = args[0].i;
  if (how == 3) return 0;
  made.t.data = data; made.t.offset = 4; made.t.device = 1; made.t.ndim = how == 1 ? 1 : 2;
  made.t.code = 2; made.t.bits = how == 2 ? 64 : 32; made.t.lanes = 1;
  made.t.shape = shape; made.t.strides = how == 4 ? 0 : strides;
  result->type = 70; result->p = &made;
  return 0;
}
"""
)


@PATHS
def test_a_returned_tensor_is_copied_where_it_is_what_outputs_says(
    define: Define, build: Build, path: Any
) -> None:
    returns = define(
        "returns(Tensor x, int how) -> Tensor",
        source=build(RETURNS),
        entry="tvm_ffi:returns",
        args="how",
        outputs=ops.empty(2, 3, dtype=torch.float32),
    )
    call, x = path(returns), torch.ones(1)
    assert call(x, 4).tolist() == [[0, 3, 1], [4, 2, 5]]
    other = "another shape or dtype"
    for how, words in ((1, other), (2, other), (3, "no tensor"), (0, "not contiguous")):
        with pytest.raises(KernelError, match=words):
            call(x, how)
    with pytest.raises(RuntimeError, match="copied on the CPU alone"):
        call(x.to("npu"), 0).tolist()


@REAL
def test_containers_devices_and_returned_tensors_of_the_real_package(define: Define) -> None:
    total = define(
        "total(Tensor x, Tensor[] t, int[] n, Device d) -> Tensor",
        source=jit.Source(text=TOTAL, name="total.cpp"),
        entry="tvm_ffi:total",
        args="t, n, d",
        flags=_real_flags(),
        outputs=ops.empty(1, dtype=torch.float32),
        checks=ops.kernel_checks(),
    )
    x = torch.ones(1)
    for call in (total, total.overload):
        assert call(x, [x, 2 * x], [10, 20], torch.device("cpu")).tolist() == [33]
        with pytest.raises(KernelError, match="ValueError: expected the cpu"):
            call(x, [x], [1], torch.device("cuda:0"))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("f(Tensor x, Generator n) -> Tensor", {}, "n is Generator, which tvm-ffi passes as an object"),
    ("f(Tensor x) -> Tensor", {"args": "y"}, "there is no argument 'y'"),
    ("f(Tensor x) -> Tensor", {"entry": "tvm_ffi:scal"}, "did you mean '__tvm_ffi_scale'?"),
    ("f(Tensor x) -> Tensor", {"entry": "tvm_ffi:"}, "expected the name of a C function"),
    ("f(Tensor x) -> Tensor", {"returns": "void"}, "is for functions of a library"),
    ("f(Tensor x) -> Tensor", {"args": "ptr(x), out"}, "nothing says which dtype"),
]


@pytest.mark.parametrize(("signature", "options", "words"), REFUSED)
def test_a_wrong_definition_is_refused(
    define: Define, build: Build, signature: str, options: dict[str, Any], words: str
) -> None:
    given = {"outputs": ops.empty_like("x"), "entry": "tvm_ffi:scale", **options}
    with pytest.raises(SchemaError) as failure:
        define(signature, source=build(SCALE), **given)
    assert words in str(failure.value)


def test_a_source_with_an_export_is_compiled(define: Define) -> None:
    scale = define(
        "scale(Tensor x, float by) -> Tensor",
        source=jit.Source(text=SCALE, name="scale.c"),
        entry="tvm_ffi:scale",
        outputs=ops.empty_like("x"),
    )
    assert scale(torch.ones(2), 3.0).tolist() == [3, 3]
    assert scale(torch.ones(2, device="npu"), 3.0).tolist() == [3, 3]


NEEDS_RUNTIME = (
    ABI
    + """
void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
int __tvm_ffi_fails(void* self, const any* args, int32_t n, any* result) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", "said through the real runtime");
  return -1;
}
"""
)


def test_without_the_package_a_library_that_needs_it_says_so(build: Build) -> None:
    script = (
        "import importlib.util, sys, torch\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'tvm_ffi' else find(name)\n"
        "from bringup import ops\n"
        "fails = ops.kernel_op('t::fails(Tensor x) -> Tensor', source=sys.argv[1],\n"
        "                      entry='tvm_ffi:fails', outputs=ops.empty_like('x'))\n"
        "try:\n    fails(torch.ones(1))\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    said = output_of(script, str(build(NEEDS_RUNTIME)))
    assert said.startswith("CompileError"), said
    assert "needs tvm-ffi's runtime, which is not installed: pip install apache-tvm-ffi" in said


@REAL
def test_the_real_runtime_is_found_for_a_library_that_needs_it(
    define: Define, build: Build
) -> None:
    fails = define(
        "fails(Tensor x) -> Tensor",
        source=build(NEEDS_RUNTIME),
        entry="tvm_ffi:fails",
        outputs=ops.empty_like("x"),
    )
    with pytest.raises(KernelError, match="RuntimeError: said through the real runtime"):
        fails(torch.ones(1))


def _real_flags() -> list[str]:
    package = importlib.util.find_spec("tvm_ffi")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent
    libraries = [f"-L{folder}/lib", "-ltvm_ffi", f"-Wl,-rpath,{folder}/lib"]
    return [f"-I{folder}/include", *libraries, "-std=c++17"]


TOTAL = """
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
namespace ffi = tvm::ffi;
struct Alloc {
  void AllocData(DLTensor* t) { t->data = malloc(4); }
  void FreeData(DLTensor* t) { free(t->data); }
};
ffi::Tensor Total(ffi::Array<ffi::Tensor> tensors, ffi::Array<int64_t> numbers, DLDevice device) {
  if (device.device_type != kDLCPU) TVM_FFI_THROW(ValueError) << "expected the cpu";
  float total = 0;
  for (ffi::Tensor t : tensors) total += static_cast<float*>(t.data_ptr())[0];
  for (int64_t n : numbers) total += n;
  auto made = ffi::Tensor::FromNDAlloc(Alloc(), ffi::Shape({1}), DLDataType{2, 32, 1}, device);
  static_cast<float*>(made.data_ptr())[0] = total;
  return made;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(total, Total);
"""
TYPED = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
namespace ffi = tvm::ffi;
void AddOne(ffi::TensorView x, ffi::TensorView out, int64_t n, ffi::Optional<double> more,
            bool twice, ffi::String name) {
  if (x.ndim() != 1) TVM_FFI_THROW(ValueError) << name << ": expected one dimension";
  const float add = n + more.value_or(0.0);
  for (int64_t i = 0; i < x.size(0); ++i) {
    static_cast<float*>(out.data_ptr())[i] =
        (static_cast<float*>(x.data_ptr())[i] + add) * (twice ? 2 : 1);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_one, AddOne);
"""


@REAL
def test_a_typed_export_of_the_real_package(define: Define) -> None:
    """TVM_FFI_DLL_EXPORT_TYPED_FUNC, its own type checks and its own errors."""
    add_one = define(
        "add_one(Tensor x, int n, float? more=None, bool twice=False, str name='f') -> Tensor",
        source=jit.Source(text=TYPED, name="add_one.cpp"),
        entry="tvm_ffi:add_one",
        args="x, out, n, more, twice, name",
        flags=_real_flags(),
        outputs=ops.empty_like("x"),
    )
    x = torch.arange(3.0)
    assert add_one(x, 1).tolist() == [1, 2, 3]
    assert add_one(x, 1, 0.5, twice=True).tolist() == [3, 5, 7]
    assert add_one(x.to("npu"), 1).tolist() == [1, 2, 3]
    with pytest.raises(KernelError, match="ValueError: given: expected one dimension"):
        add_one(torch.ones(1, 1), 1, name="given")
    compiled = torch.compile(lambda x: add_one(x, 2), fullgraph=True, backend="aot_eager")
    assert compiled(x).tolist() == [2, 3, 4]


def test_a_library_of_another_machine_is_refused(define: Define, build: Build) -> None:
    library = build(SCALE)
    content = bytearray(library.read_bytes())
    content[18:20] = (243).to_bytes(2, "little")
    other = library.with_name("other.so")
    other.write_bytes(content)
    scale = define(
        "scale(Tensor x, float by) -> Tensor",
        source=other,
        entry="tvm_ffi:scale",
        outputs=ops.empty_like("x"),
    )
    with pytest.raises((CompileError, RuntimeError), match="riscv64"):
        scale(torch.ones(1), 1.0)
