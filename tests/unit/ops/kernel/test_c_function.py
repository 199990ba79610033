"""Functions as they are: a C file or a library that somebody has built becomes an operator by what
its function is called with.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.ops.c_functions import (
    ARGS,
    CONTRACT,
    LIBRARY_ARGS,
    RMS,
    SIGNATURE,
    Build,
    expected,
)
from tests.unit.ops.conftest import Define

from bringup import graphs, jit, ops
from bringup.errors import CompileError, ContractError, KernelError, SchemaError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FORMS = pytest.mark.parametrize("form", ["c", "c++", "library"])


pytestmark = pytest.mark.usefixtures("simulator")


@pytest.fixture
def rms(define: Define, build: Build, form: str) -> ops.KernelOperator:
    if form == "library":
        return define(SIGNATURE, source=build(RMS), args=LIBRARY_ARGS, **CONTRACT)
    source = jit.Source(text=RMS, name="rms.c" if form == "c" else "rms.cpp")
    return define(SIGNATURE, source=source, args=ARGS, **CONTRACT)


@FORMS
@DEVICES
@PATHS
def test_a_function_is_an_operator_as_it_is(rms: Any, device: str, path: Any) -> None:
    """A plain C function, without C++ and without a header, from source or built."""
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
    """One rule for allocation, fake and meta."""
    x, w = torch.randn(2, 4), torch.randn(4)
    assert rms(x.to("meta"), w.to("meta")).shape == (2, 4)
    with pytest.raises(ContractError, match=r"x must be torch\.float32"):
        rms(x.double().to("meta"), w.to("meta"))
    compiled = torch.compile(lambda x, w: rms(x, w) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, w), expected(x, w) + 1)


@FORMS
@DEVICES
def test_a_status_that_is_not_zero_is_an_error(rms: Any, device: str) -> None:
    """The function's own return code."""
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
    """Backward is another operator, and no Python runs."""
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
    """Typed arguments, more of them than there are registers, both ways of calling the
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
    """Scratch memory, given back after the call."""
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


def test_isolated_device_memory_is_translated_for_functions(tmp_path: Path) -> None:
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
    output_of(textwrap.dedent(script), str(tmp_path), BRINGUP_SIM_ISOLATED="1")


@pytest.mark.parametrize("name", ["wide.c", "wide.cpp"])
def test_a_wide_status_counts_as_a_whole(define: Define, name: str) -> None:
    text = "#include <stdint.h>\nint64_t wide(int64_t n) { return n; }\n"
    wide = define(
        "wide(Tensor x, int n) -> Tensor",
        source=jit.Source(text=text, name=name),
        entry="wide",
        args="n",
        outputs=ops.empty_like("x"),
    )
    wide(torch.ones(1), 0)
    for status in (1, -1, 2**32, -(2**63)):
        with pytest.raises(KernelError, match="failed with status"):
            wide(torch.ones(1), status)


@pytest.mark.parametrize("build", [True, False])
def test_a_function_without_args_is_refused_before_it_is_called(
    define: Define, build: bool
) -> None:
    """It would take the array of addresses for its first pointer."""
    source = jit.Source(text=RMS, name="rms.c")
    given = {name: value for name, value in CONTRACT.items() if name != "args"}
    with pytest.raises(ValueError, match=r"it gets \(.*\), not \(void\*\* args.*with args="):
        define(SIGNATURE, source=source, **given, build=build)(torch.ones(1, 2), torch.ones(2))


def test_what_the_compiler_says_comes_with_the_definition(define: Define) -> None:
    source = jit.Source(text=RMS.replace("return 0", "return nought"), name="rms.c")
    with pytest.raises(CompileError, match="nought"):
        define(SIGNATURE, source=source, args=ARGS, **CONTRACT, build=True)
    define(SIGNATURE, source=jit.Source(text=RMS, name="rms.c"), args=ARGS, **CONTRACT, build=True)
    with pytest.raises(SchemaError, match=r"build=: macros are those of a call"):
        define(
            "f(Tensor x) -> Tensor",
            source=jit.Source(text="", name="f.cpp"),
            outputs=ops.empty_like("x"),
            dtypes={"T": "x"},
            build=True,
        )


def test_messages_name_what_the_author_wrote(define: Define) -> None:
    source = jit.Source(text=RMS, name="rms.c")
    with pytest.raises(SchemaError, match=r": rms\.c: args: 'ptr\(y\)': there is no argument 'y'"):
        define(SIGNATURE, source=source, args=ARGS.replace("ptr(x)", "ptr(y)"), **CONTRACT)
