"""Templates as operators: what chooses a binary, layouts without copies, refusals, workspace."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import kernel, variant_count

from bringup import devices, graphs, jit, ops
from bringup.errors import (
    CompileError,
    ContractError,
    KernelError,
    MissingKernelError,
    SchemaError,
    UpdateError,
)

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


@pytest.fixture(scope="module", autouse=True)
def npu(simulator: devices.DriverInfo | None) -> devices.DriverInfo | None:
    return simulator


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    yield
    torch._dynamo.reset()


# out[r][c] = x[r][c] * factor + CODE, by strides; CODE says which macros the binary has.
SOURCE = """
#include "bringup/params.h"
enum { identity, negated };
struct P {
  bringup_params head;
  OUT* out;
  const T* x;
  int64_t rows, columns, row_stride, column_stride;
  double factor;
};
extern "C" int32_t run(uint32_t, void*, const P* p) {
  static_assert(ACT == identity || ACT == negated, "");
  for (int64_t r = 0; r < p->rows; ++r)
    for (int64_t c = 0; c < p->columns; ++c) {
      const double value = p->x[r * p->row_stride + c * p->column_stride] * p->factor;
      p->out[r * p->columns + c] = OUT(ACT == negated ? -value : value) + 1000 * LAYOUT + 100 * BIG;
    }
  return 0;
}
extern "C" const char* can_implement(const P* p) {
  return p->factor < 0 ? "the factor is negative" : nullptr;
}
"""
SCHEMA = "f(Tensor x, *, float factor=1.0, str act='identity', ScalarType? dtype=None) -> Tensor"


def template(**options: Any) -> jit.Template:
    given: dict[str, Any] = {
        "text": SOURCE,
        "name": "scale.cpp",
        "dtypes": {"T": "x", "OUT": "out"},
        "layouts": {"LAYOUT": "x"},
        "choices": {"ACT": ("act", "identity", "negated")},
        "buckets": {"BIG": "size(x,0) >= 64"},
        "params": "ptr(out), ptr(x), size(x,0), size(x,1), stride(x,0), stride(x,1), factor",
        "kernel_kind": "vector",
    }
    return jit.Template(**{**given, **options})


@pytest.fixture
def scale(define: Define) -> ops.KernelOperator:
    return define(
        SCHEMA, source=template(), outputs=ops.empty("x.shape[0]", "x.shape[1]", dtype="dtype")
    )


@PATHS
@DEVICES
def test_a_template_is_an_operator(scale: Any, path: Callable[..., Any], device: str) -> None:
    """Compiled by dtype, layout and choice, and in torch.ops."""
    x = torch.arange(6.0).reshape(2, 3)
    call = path(scale)
    assert torch.equal(call(x.to(device), factor=2.0).cpu(), x * 2)
    assert torch.equal(call(x.to(device), act="negated").cpu(), -x)
    result = call(x.to(device).half(), dtype=torch.float64)
    assert (result.dtype, result.tolist()) == (torch.float64, x.tolist())


def test_each_of_dtype_layout_choice_and_bucket_is_a_binary_of_its_own(scale: Any) -> None:
    x = torch.zeros(2, 4)
    for count, call in enumerate(
        (
            lambda: scale(x),
            lambda: scale(x.double()),
            lambda: scale(x, dtype=torch.float64),
            lambda: scale(torch.zeros(4, 2).t()),
            lambda: scale(torch.zeros(2, 8)[:, ::2]),
            lambda: scale(x, act="negated"),
            lambda: scale(torch.zeros(64, 4)),
        ),
        start=1,
    ):
        call()
        call()
        assert variant_count(scale) == count


def test_another_shape_compiles_nothing_and_crossing_a_bucket_once(scale: Any) -> None:
    """Shapes and scalars are run-time values unless a bucket is declared."""
    scale(torch.zeros(2, 3))
    with jit.frozen():
        for rows, columns in ((1, 1), (3, 5), (63, 7), (0, 4), (5, 0)):
            assert scale(torch.zeros(rows, columns), factor=rows / 7).shape == (rows, columns)
    assert variant_count(scale) == 1
    for rows in (64, 65, 1000):
        assert scale(torch.zeros(rows, 1)).unique().tolist() == [100]
    assert variant_count(scale) == 2


def test_a_frozen_miss_names_the_operator_and_the_macros(scale: Any) -> None:
    with (
        jit.frozen(),
        pytest.raises(MissingKernelError, match=r"::f: compiling is frozen.*ACT=negated BIG=0"),
    ):
        scale(torch.zeros(2, 3).to(torch.int8), act="negated")


@PATHS
@DEVICES
def test_views_are_honoured_without_a_copy(scale: Any, path: Any, device: str) -> None:
    """Strided and offset views; a transposed input is LAYOUT_COLUMN."""
    whole = torch.arange(40.0, device=device).reshape(5, 8)
    for view, code in (
        (whole[2:], 0),
        (whole[1:3, 2:5], 0),
        (whole.t(), 1000),
        (whole[1:, 1:].t(), 1000),
        (whole[::2, ::3], 2000),
        (whole[:, :1].expand(5, 4), 2000),
        (whole[0].expand(3, 8), 0),
    ):
        result = path(scale)(view, factor=2.0)
        assert result.is_contiguous()
        assert torch.equal(result.cpu(), view.cpu() * 2 + code)


@PATHS
def test_a_layout_that_is_not_declared_is_copied(define: Define, path: Any) -> None:
    """Contiguous where the template takes nothing else."""
    rows_only = define(
        SCHEMA,
        source=template(layouts={"LAYOUT": ("x", "row")}),
        outputs=ops.empty_like("x"),
    )
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(path(rows_only)(x.t()), x.t())
    assert variant_count(rows_only) == 1


@PATHS
def test_arguments_without_a_layout_follow_the_operators(define: Define, path: Any) -> None:
    """Strided as declared."""
    one = template(layouts={}, macros={"LAYOUT": 0})
    strided = define(SCHEMA, source=one, outputs=ops.empty_like("x"), layout="strided")
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(path(strided)(x.t()[::2]), x.t()[::2])


NZ = """
#include "bringup/params.h"
struct P { bringup_params head; float* out; const float* x; int64_t rows, columns; };
extern "C" void run(uint32_t, void*, const P* p) {
  for (int64_t r = 0; r < p->rows; ++r)
    for (int64_t c = 0; c < p->columns; ++c) {
      const int64_t from = LAYOUT == BRINGUP_LAYOUT_NZ ? bringup_nz_offset(r, c, p->rows)
                                                       : r * p->columns + c;
      p->out[r * p->columns + c] = p->x[from];
    }
}
"""


@DEVICES
def test_blocked_fractal_input_is_read_where_it_lies(define: Define, device: str) -> None:
    unblock = define(
        "unblock(Tensor x, int rows, int columns) -> Tensor",
        source=jit.Template(
            text=NZ,
            name="nz.cpp",
            layouts={"LAYOUT": ("x", "row", "nz")},
            params="ptr(out), ptr(x), rows, columns",
        ),
        outputs=ops.empty("rows", "columns"),
    )
    x = torch.randn(32, 48)
    blocks = x.reshape(2, 16, 3, 16).permute(2, 0, 1, 3).contiguous()
    assert torch.equal(unblock(blocks.to(device), 32, 48).cpu(), x)
    assert torch.equal(unblock(x.to(device), 32, 48).cpu(), x)
    assert variant_count(unblock) == 2 if device == "cpu" else variant_count(unblock) <= 4


@PATHS
@DEVICES
def test_a_refusal_has_a_reason_and_is_raised_at_the_call(
    scale: Any, path: Any, device: str
) -> None:
    """can_implement false is an error, not an uninitialised result."""
    with pytest.raises(
        KernelError, match=r"::f: the kernel cannot run this call: the factor is negative"
    ):
        path(scale)(torch.ones(2, 2, device=device), factor=-1.0)
    assert path(scale)(torch.ones(2, 2, device=device)).sum() == 4  # and the next call is fine


@PATHS
@DEVICES
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ('throw std::runtime_error("no tables");', "no tables"),
        ("throw 3;", "something that is no std::exception"),
    ],
)
def test_can_implement_that_throws_is_an_error_and_ends_nothing(
    define: Define, path: Any, device: str, statement: str, words: str
) -> None:
    text = SOURCE.replace("return p->factor < 0", f"if (p->factor < 0) {statement} return 0")
    throws = define(
        SCHEMA,
        source=template(text=f"#include <stdexcept>\n{text}"),
        outputs=ops.empty("x.shape[0]", "x.shape[1]", dtype="dtype"),
    )
    with pytest.raises(KernelError) as failure:
        path(throws)(torch.ones(2, 2, device=device), factor=-1.0)
    assert str(failure.value) == (
        f"{throws.qualified_name}: can_implement threw: {words} (it should return the reason, or "
        "NULL)"
    )
    assert path(throws)(torch.ones(2, 2, device=device)).sum() == 4


@PATHS
@DEVICES
def test_a_dimension_that_a_tensor_lacks_is_refused(scale: Any, path: Any, device: str) -> None:
    flat = scale_of_vectors(scale)
    with pytest.raises(
        KernelError, match=r"at least 2 dimensions for 'size\(x,1\)', got shape \[3\]"
    ):
        path(flat)(torch.ones(3, device=device))


def scale_of_vectors(scale: Any) -> Any:
    namespace = scale.qualified_name.partition("::")[0]
    return ops.kernel_op(
        f"{namespace}::vector(Tensor x, *, float factor=1.0, str act='identity') -> Tensor",
        source=template(),
        outputs=ops.empty_like("x"),
    )


@PATHS
def test_a_choice_that_is_not_declared_is_refused_by_name(scale: Any, path: Any) -> None:
    expected = "::f: act must be one of 'identity', 'negated', got 'tanh'"
    with pytest.raises(ContractError, match=expected):
        path(scale)(torch.ones(2, 2), act="tanh")
    with pytest.raises(ContractError, match=expected):
        scale.overload(torch.ones(2, 2, device="meta"), act="tanh")
    with pytest.raises(ContractError, match=expected):
        scale.params(torch.ones(2, 2), factor=1.0, act="tanh")


def test_a_number_that_is_not_declared_is_refused_by_name(define: Define) -> None:
    one = template(choices={"ACT": "negate", "BLOCK": ("block", 16, 32)})
    blocked = define(
        "g(Tensor x, *, float factor=1.0, bool negate=False, int block=16) -> Tensor",
        source=one,
        outputs=ops.empty_like("x"),
    )
    x = torch.ones(2, 2)
    assert torch.equal(blocked(x, negate=True, block=32), -x)
    with pytest.raises(ContractError, match="::g: block must be one of 16, 32, got 8"):
        blocked(x, block=8)


def test_a_dtype_without_a_c_type_is_refused_at_the_call(scale: Any) -> None:
    with pytest.raises(ContractError, match=r"::f: x is torch.complex32, which has no C type"):
        scale(torch.ones(2, 2, dtype=torch.complex32))


def test_a_bucket_over_a_dimension_that_is_not_there_is_refused(define: Define) -> None:
    one = template(buckets={"BIG": "size(x,2) > 1"})
    op = define(SCHEMA, source=one, outputs=ops.empty_like("x"))
    with pytest.raises(
        ContractError,
        match=r"dimensions for 'size\(x,2\)|'size\(x,2\) > 1': a tensor of 2 dimensions lacks",
    ):
        op(torch.ones(2, 2))


def test_a_template_that_does_not_compile_names_the_operator(define: Define) -> None:
    one = template(text=SOURCE.replace("return 0;", "return zero;"))
    op = define(SCHEMA, source=one, outputs=ops.empty_like("x"))
    for _ in range(2):
        with pytest.raises(CompileError, match=r"^bringup_test_\d+::f: scale.entry.cpp did not"):
            op(torch.ones(2, 2))


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no such argument": ({"dtypes": {"T": "y"}}, {}, r"dtypes\['T'\]: there is no argument 'y'"),
    "macros twice": ({}, {"macros": {"A": 1}}, "macros= belongs to the template 'scale.cpp'"),
    "layout of an output": ({"layouts": {"L": "out"}}, {}, "an output is always allocated"),
    "two layouts": ({"layouts": {"L": "x", "M": "x"}}, {}, "the layout of x is a macro already"),
    "key bits": (
        {"dtypes": {f"T{i}": "x" for i in range(15)}},
        {},
        r"what chooses the binary takes \d+ bits, at most 97 are there",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_template_that_does_not_fit_the_schema_is_refused(define: Define, case: str) -> None:
    declared, options, message = WRONG[case]
    with pytest.raises(SchemaError, match=rf"::f: .*{message}"):
        define(SCHEMA, source=template(**declared), outputs=ops.empty_like("x"), **options)


# One answer for each thing that the key of a variant packs.
FIELDS: dict[str, dict[str, Any]] = {
    "dtype": {"x": torch.zeros(2, 4, dtype=torch.float64)},
    "dtype of an output": {"dtype": torch.float64},
    "layout column": {"x": torch.zeros(4, 2).t()},
    "layout strided": {"x": torch.zeros(2, 8)[:, ::2]},
    "choice": {"act": "negated"},
    "bucket": {"x": torch.zeros(64, 4)},
    "device": {"x": torch.zeros(2, 4), "device": "npu"},
}


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_of_the_packed_key_alone_is_another_key(scale: Any, field: str) -> None:
    """Nothing that chooses the binary is left out of it."""
    scale(torch.zeros(2, 4))
    given = dict(FIELDS[field])
    x = given.pop("x", torch.zeros(2, 4)).to(given.pop("device", "cpu"))
    for _ in range(2):
        scale(x, **given)
    assert variant_count(scale) == 2


def test_two_operators_of_one_template_do_not_share_a_key(define: Define) -> None:
    one = template()
    outputs = ops.empty_like("x")
    first, second = (
        define(SCHEMA.replace("f(", f"{name}("), source=one, outputs=outputs) for name in "ab"
    )
    first(torch.zeros(2, 2))
    assert (variant_count(first), variant_count(second)) == (1, 0)
    with jit.frozen():  # the binary is the same
        second(torch.zeros(2, 2))


def test_the_parameters_of_a_call_are_those_it_is_compiled_with(scale: Any) -> None:
    x = torch.zeros(3, 2).t()
    params = scale.params(x, factor=2.0, act="negated")
    assert params.macros == {
        "T": "float",
        "OUT": "float",
        "LAYOUT": "BRINGUP_LAYOUT_COLUMN",
        "ACT": "negated",
        "BIG": False,
        "BRINGUP_KERNEL_KIND": "BRINGUP_KERNEL_KIND_VECTOR",
    }
    assert {f.item: f.value for f in params.fields if f.value is not None} == {
        "ptr(x)": x.data_ptr(),
        "size(x,0)": 2,
        "size(x,1)": 3,
        "stride(x,0)": 1,
        "stride(x,1)": 2,
        "factor": 2.0,
    }
    params.template.compile(params)
    with jit.frozen():
        assert torch.equal(scale(x, factor=2.0, act="negated"), -x + 1000)


SAYS_MACROS = """
#include "bringup/params.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  int64_t* out = static_cast<int64_t*>(bringup::tensor(args[1]).data);
  out[0] = LAYOUT;
  out[1] = ODD;
  return 0;
}
"""
SIZES = st.lists(st.sampled_from([0, 1, 2, 3, 16]), min_size=1, max_size=5)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Tensors with dimensions in any order, with gaps, and with repeated elements."""
    sizes = draw(SIZES)
    gaps = [draw(st.sampled_from([1, 1, 2])) for _ in sizes]
    whole = torch.zeros([size * gap for size, gap in zip(sizes, gaps, strict=True)])
    strided = whole[tuple(slice(None, None, gap) for gap in gaps)]
    view = strided.permute(draw(st.permutations(range(len(sizes)))))
    repeated = draw(st.booleans()) and view.shape[0] == 1
    return view.expand(3, *view.shape[1:]) if repeated else view


@pytest.fixture(scope="module")
def says_macros() -> Iterator[dict[tuple[str, ...], ops.KernelOperator]]:
    """One operator for each set of layouts that it takes."""
    sets = [("row",), ("row", "column"), ("row", "strided"), ("row", "column", "strided", "nz")]
    operators = {
        words: ops.kernel_op(
            f"bringup_test_macros::says_{number}(Tensor x) -> Tensor",
            source=jit.Template(
                text=SAYS_MACROS,
                name="says.cpp",
                abi="args",
                layouts={"LAYOUT": ("x", *words)},
                buckets={"ODD": "(numel(x) + stride(x,-1)) % 2 == 1 and not size(x,0) == 3"},
            ),
            outputs=ops.empty(2, dtype=torch.int64),
        )
        for number, words in enumerate(sets)
    }
    yield operators
    for operator in operators.values():
        operator.undefine()


@given(view=views())
@settings(deadline=None, max_examples=200)
def test_a_call_is_compiled_as_its_parameters_say(
    says_macros: dict[tuple[str, ...], ops.KernelOperator], view: torch.Tensor
) -> None:
    """The packed key (C++) and the parameter set (Python) are two readings of one declaration."""
    for operator in says_macros.values():
        params = operator.params(view)
        expected = [int(params.layouts["LAYOUT"]), int(params.buckets["ODD"])]
        assert operator(view).tolist() == expected
        assert operator.overload(view).tolist() == expected


@DEVICES
def test_a_compiled_model_runs_templates(scale: Any, device: str) -> None:
    """Fake and Meta; a transposed view reaches the kernel as it is."""

    def model(x: torch.Tensor, factor: float) -> torch.Tensor:
        return scale(x.t(), factor=factor) + scale(x * 2, act="negated")

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for n in (3, 4, 7):
        x = torch.randn(n, n, device=device)
        torch.testing.assert_close(compiled(x, 2.0), x.t() * 2 + 1000 - x * 2)
    meta = scale(torch.empty(2, 3, device="meta"), dtype=torch.float16)
    assert (meta.shape, meta.dtype) == ((2, 3), torch.float16)


def test_other_hits_go_on_while_a_kernel_compiles(scale: Any, define: Define) -> None:
    """A hit of another key never waits for a compile."""
    scale(torch.zeros(2, 2))
    begun, release = threading.Event(), threading.Event()
    real = jit.Template.compile

    def slow_compile(self: jit.Template, params: jit.Params, **options: Any) -> jit.Binary:
        begun.set()
        assert release.wait(60)
        return real(self, params, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit.Template, "compile", slow_compile)
        results: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: results.append(scale(torch.ones(2, 2).double())))
        thread.start()
        assert begun.wait(60)
        for _ in range(100):
            assert scale(torch.ones(2, 2)).sum() == 4
        assert not results
        release.set()
        thread.join()
    assert results[0].sum() == 4


@pytest.mark.parametrize("linkage", ["BRINGUP_EXPORT", ""])
def test_a_plain_source_may_say_what_it_cannot_do(define: Define, linkage: str) -> None:
    source = kernel("DATA(1)[0] = 1;")
    text = f"""{source.text}
    {linkage} const char* bringup_can_implement(void** args, int32_t, const bringup_ctx*) {{
      return TENSOR(0)->ndim > 1 ? "x has more than one dimension" : nullptr;
    }}
    """
    op = define(
        "h(Tensor x) -> Tensor",
        source=jit.Source(text=text, name="kernel.cpp"),
        outputs=ops.empty_like("x"),
        dtypes={"T": "x"},
    )
    assert op(torch.zeros(1)).tolist() == [1]
    with pytest.raises(KernelError, match="::h: the kernel cannot run this call: x has more than"):
        op(torch.zeros(1, 1))


def test_templates_are_captured_and_updated(scale: Any) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = scale(x.t(), factor=2.0)
    graph.replay()
    assert torch.equal(y, x.t() * 2 + 1000)
    graph.update({"f.0.factor": 3.0})
    graph.replay()
    assert torch.equal(y, x.t() * 3 + 1000)
    with pytest.raises(UpdateError, match="the kernel cannot run this call: the factor is neg"):
        graph.update({"f.0.factor": -3.0})
    graph.replay()
    assert torch.equal(y, x.t() * 3 + 1000)


def test_what_chooses_the_binary_cannot_be_updated_in_a_graph(define: Define) -> None:
    one = template(choices={"ACT": "negate"}, buckets={"BIG": "n > 8"})
    op = define(
        "g(Tensor x, *, float factor=1.0, bool negate=False, int n=1) -> Tensor",
        source=one,
        outputs=ops.empty_like("x"),
    )
    x = torch.ones(2, 2)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = op(x, negate=False, n=1)
    graph.update({"g.0.n": 8})
    for change in ({"g.0.n": 9}, {"g.0.negate": True}):
        with pytest.raises(UpdateError, match="::g: it would run another binary than in the capt"):
            graph.update(change)
    graph.replay()
    assert torch.equal(y, x)
