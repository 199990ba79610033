"""Output rules beyond sizes: promoted dtypes, memory formats, lists, outputs left out, and sizes
that the kernel counts. Real, fake and meta outputs agree.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.forked_python import output_of
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import each, kernel
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from bringup import graphs, jit, ops
from bringup.errors import CaptureError, ContractError, KernelError, SchemaError

PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
Path = Callable[[ops.KernelOperator], Callable[..., Any]]

# The rows of x that are greater than 0, and their numbers.
POSITIVE = kernel(
    "int64_t found = 0;"
    "for (int64_t i = 0; i < count(TENSOR(0)); ++i) {"
    "  if (!(DATA(0)[i] > 0)) continue;"
    "  DATA(1)[found] = DATA(0)[i];"
    "  static_cast<int64_t*>(TENSOR(2)->data)[found++] = i;"
    "}"
    "static_cast<int64_t*>(TENSOR(3)->data)[0] = found;"
)


@pytest.fixture
def positive(define: Define) -> ops.KernelOperator:
    return define(
        "positive(Tensor x) -> (Tensor values, Tensor indices)",
        source=POSITIVE,
        outputs=(
            ops.empty(ops.at_most("x.numel()")),
            ops.empty(ops.at_most("x.numel()"), dtype=torch.int64),
        ),
        dtypes={"T": "x"},
        kind="device",
    )


DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32,
          torch.float64, torch.complex64]  # fmt: skip
TENSORS = st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (2,), (0,)]))


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    first=TENSORS,
    second=TENSORS,
    third=st.none() | TENSORS,
    number=st.none() | st.integers(0, 3) | st.just(True),
    factor=st.none() | st.just(0.5),
)
def test_promotion_is_that_of_torch(
    define: Define, first: Any, second: Any, third: Any, number: Any, factor: Any
) -> None:
    """`ops.promote`: real, meta and torch's own result agree."""
    promoted = define(
        "promoted(Tensor x, Tensor[] ys, Tensor? z, int? n, bool? b, float? f) -> Tensor",
        outputs=ops.empty(0, dtype=ops.promote("x", "ys", "z", "n", "b", "f")),
        checks=ops.kernel_checks(),
    )
    try:
        x, y, z = (
            None if t is None else torch.ones(t[1], dtype=t[0]) for t in (first, second, third)
        )
        flag = number if number is True else None
        integer = None if number is True else number
        scalars = [v for v in (integer, flag, factor) if v is not None]
        expected = torch.tensor([]).to(_promoted_by_torch([x, y, z], scalars)).dtype
        for call in (promoted, promoted.overload):
            assert call(x, [y], z, integer, flag, factor).dtype == expected
        meta = [None if t is None else t.to("meta") for t in (x, y, z)]
        assert promoted(meta[0], [meta[1]], meta[2], integer, flag, factor).dtype == expected
    finally:
        promoted.undefine()


def _promoted_by_torch(tensors: list[Any], scalars: list[Any]) -> torch.dtype:
    """The dtype of a sum: torch.result_type category by category, as elementwise kernels do."""
    import torch._prims_common as prims

    return prims.elementwise_dtypes(
        *[t for t in tensors if t is not None],
        *scalars,
        type_promotion_kind=prims.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT,
    )[1]


def test_a_kernel_gets_the_promoted_c_type(define: Define) -> None:
    mix = define(
        "mix(Tensor x, Tensor y) -> Tensor",
        source=each("DATA(2)[i] = T(static_cast<const A*>(TENSOR(0)->data)[i])"
                    " + T(static_cast<const B*>(TENSOR(1)->data)[i]);"),
        outputs=ops.empty_like("x", dtype=ops.promote("x", "y")),
        checks=ops.same_shape("x", "y"),
        dtypes={"A": "x", "B": "y", "T": "out"},
    )  # fmt: skip
    x, y = torch.arange(3), torch.arange(3) / 2
    for call in (mix, mix.overload):
        for left, right in ((x, y), (y, x), (x, x), (y.double(), x.int())):
            torch.testing.assert_close(call(left, right), left + right)


STRIDED = [
    lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    lambda: torch.randn(4, 6).t(),
    lambda: torch.randn(4, 6)[:, ::2],
    lambda: torch.randn(4, 1, 6).permute(2, 1, 0),
    lambda: torch.randn(3, 1).expand(3, 4),
    lambda: torch.randn(1).expand(5),
    lambda: torch.randn(()),
]


@pytest.mark.parametrize("make", STRIDED)
def test_preserved_strides_are_those_of_empty_like(define: Define, make: Any) -> None:
    """`memory_format=torch.preserve_format`; a fake's strides are the real ones."""
    keep = define(
        "keep(Tensor x) -> Tensor",
        outputs=ops.empty_like("x", memory_format=torch.preserve_format),
        strided=("x",),
    )
    x = make()
    expected = torch.empty_like(x).stride()
    with FakeTensorMode() as mode:
        fake = keep(mode.from_tensor(x))
    for result in (keep(x), keep.overload(x), keep(x.to("meta")), fake):
        assert (result.shape, result.stride()) == (x.shape, expected)


def test_channels_last_outputs_and_their_rank(define: Define) -> None:
    last = define(
        "last(Tensor x) -> Tensor", outputs=ops.empty_like("x", memory_format=torch.channels_last)
    )
    for device in ("cpu", "meta"):
        assert last(torch.ones(2, 3, 4, 5, device=device)).stride() == (60, 1, 15, 3)
        with pytest.raises(
            ContractError, match=r"output 0 must have 4 dimensions for its memory format, got \[2\]"
        ):
            last(torch.ones(2, device=device))


def test_only_the_named_arguments_are_seen_with_their_strides(define: Define) -> None:
    strides = define(
        "strides(Tensor x, Tensor y) -> Tensor",
        source=kernel("DATA(2)[0] = TENSOR(0)->strides[0]; DATA(2)[1] = TENSOR(1)->strides[0];"),
        outputs=ops.empty(2, dtype=torch.int64),
        checks=ops.kernel_checks(),
        strided=("x",),
        macros={"T": "int64_t"},
    )
    t = torch.randn(3, 5).t()
    for call in (strides, strides.overload):
        assert call(t, t).tolist() == [1, 3]
        assert call(t.detach().requires_grad_(), t).tolist() == [1, 3]


@PATHS
def test_lists_of_outputs(define: Define, path: Path) -> None:
    double = define(
        "double(Tensor x, Tensor[] ys) -> (Tensor[], Tensor)",
        source=kernel(
            "const auto* from = LIST(1); const auto* to = LIST(2);"
            "for (int64_t k = 0; k < from->size; ++k) {"
            "  const auto* y = static_cast<const DLTensor* const*>(from->data)[k];"
            "  const auto* out = static_cast<const DLTensor* const*>(to->data)[k];"
            "  for (int64_t i = 0; i < count(y); ++i)"
            "    static_cast<T*>(out->data)[i] = 2 * static_cast<const T*>(y->data)[i];"
            "}"
            "DATA(3)[0] = to->size;"
        ),
        outputs=(ops.empty_like("ys"), ops.empty(1)),
        checks=ops.kernel_checks(),
        dtypes={"T": "x"},
    )
    x = torch.ones(1)
    for ys in ([torch.randn(2), torch.randn(3, 2).t()], []):
        doubled, number = path(double)(x, ys)
        assert isinstance(doubled, list)
        assert number.item() == len(ys)
        for got, y in zip(doubled, ys, strict=True):
            assert torch.equal(got, 2 * y)
    torch.library.opcheck(double.overload, (x, [torch.randn(2), torch.randn(3)]))


@PATHS
def test_an_output_that_is_not_wanted_is_empty(define: Define, path: Path) -> None:
    two = define(
        "two(Tensor x, bool[] mask, bool more=True) -> (Tensor, Tensor)",
        outputs=(ops.empty_like("x", when="mask[1]"), ops.empty_like("x", when="more")),
    )
    for device in ("cpu", "meta"):
        x = torch.ones(2, 3, device=device)
        for mask, more in (([True, False], True), ([False, True], False)):
            first, second = path(two)(x, mask, more)
            assert first.shape == ((2, 3) if mask[1] else (0,))
            assert second.shape == ((2, 3) if more else (0,))
        with pytest.raises(ContractError, match="mask must have at least 2 elements, got 1"):
            path(two)(x, [True])


@PATHS
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_sizes_that_the_kernel_counts(
    positive: ops.KernelOperator, path: Path, device: str, simulator: object
) -> None:
    """Outputs at an upper bound, cut to what the kernel has found."""
    for x in (torch.randn(3, 7), -torch.ones(4), torch.ones(4), torch.empty(0)):
        values, indices = path(positive)(x.to(device))
        assert values.cpu().tolist() == x[x > 0].tolist()
        assert indices.cpu().tolist() == (x.flatten() > 0).nonzero().flatten().tolist()
        assert values.is_contiguous()
        assert not values._is_view()


@PATHS
@pytest.mark.parametrize(
    ("statement", "got"),
    [("", "it wrote none"), ("static_cast<int64_t*>(TENSOR(2)->data)[0] = 9;", "it wrote 9")],
)
def test_a_count_that_cannot_be_is_an_error(
    define: Define, path: Path, statement: str, got: str
) -> None:
    wrong = define(
        "wrong(Tensor x) -> Tensor",
        source=kernel(statement),
        outputs=ops.empty(ops.at_most("x.numel() * 2"), 3),
    )
    with pytest.raises(KernelError) as failure:
        path(wrong)(torch.ones(4))
    assert str(failure.value) == (
        f"{wrong.qualified_name}: the kernel must write the count of output 0, between 0 and 8; "
        + got
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_counted_sizes_compile(positive: ops.KernelOperator, backend: str) -> None:
    """An unbacked size; no recompilation for another count or another length."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    def model(x: torch.Tensor) -> torch.Tensor:
        values, indices = positive(x)
        return values * 2 + indices

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
        for n in (5, 9, 14):
            x = torch.randn(n)
            torch.testing.assert_close(compiled(x), model(x))
    assert counter.frame_count == 1


def test_counted_sizes_have_no_meta(positive: ops.KernelOperator) -> None:
    with pytest.raises(
        ContractError, match=f"{positive.qualified_name}: the size of an output depends on data"
    ):
        positive(torch.ones(3, device="meta"))


def test_counted_sizes_have_no_graph(positive: ops.KernelOperator) -> None:
    graph = graphs.CapturedGraph()
    x = torch.ones(3)
    text = f"{positive.qualified_name} gives a result whose shape"
    with pytest.raises(CaptureError, match=text), graphs.capture(graph):
        positive(x)


def test_counted_outputs_have_gradients(define: Define, positive: ops.KernelOperator) -> None:
    scatter = define(
        "scatter(Tensor grad_values, Tensor x, Tensor indices) -> Tensor",
        source=kernel(
            "for (int64_t i = 0; i < count(TENSOR(1)); ++i) DATA(3)[i] = 0;"
            "for (int64_t i = 0; i < count(TENSOR(2)); ++i)"
            "  DATA(3)[static_cast<int64_t*>(TENSOR(2)->data)[i]] = DATA(0)[i];"
        ),
        outputs=ops.empty_like("x"),
        checks=ops.same_shape("grad_values", "indices"),
        dtypes={"T": "x"},
    )
    positive.register_backward(scatter.qualified_name, save=("x", "indices"))
    for call in (positive, positive.overload):
        x = torch.tensor([1.0, -1, 2], requires_grad=True)
        (call(x)[0] * torch.tensor([3.0, 4.0])).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3, 0, 4]


WRONG_RULES = [
    (lambda: ops.empty_like("x", memory_format=torch.preserve_format), r"pass strided=\('x',\)"),
    (lambda: ops.empty(3, memory_format=torch.preserve_format), "keeps the strides of an argument"),
    (lambda: ops.empty_like("x", dtype=ops.promote("x", "s")), "'s' is no tensor, list of tensors"),
    (lambda: ops.empty(3, ops.at_most(4)), r"only the first size can be ops.at_most"),
    (lambda: ops.empty(ops.at_most(4), when="b"), "has no memory_format= or when="),
    (lambda: ops.empty_like("x", when="x"), r"when='x': expected a bool argument"),
    (lambda: ops.empty_like("x", when="b[0]"), r"when='b\[0\]': expected a bool argument"),
]


@pytest.mark.parametrize(("rule", "text"), WRONG_RULES)
def test_rules_that_cannot_be_are_refused_at_definition(
    define: Define, rule: Any, text: str
) -> None:
    with pytest.raises(SchemaError, match=text):
        define("wrong(Tensor x, bool b, str s) -> Tensor", outputs=rule())


def test_lists_counts_and_options_that_cannot_be_are_refused(define: Define) -> None:
    with pytest.raises(SchemaError, match=r"Tensor\[\] is ops.empty_like of a Tensor\[\] argument"):
        define("wrong(Tensor x) -> Tensor[]", outputs=ops.empty_like("x"))
    with pytest.raises(SchemaError, match="the count 'count' has another bound"):
        define("wrong(Tensor x) -> (Tensor, Tensor)",
               outputs=[ops.empty(ops.at_most(n)) for n in (3, 4)])  # fmt: skip
    with pytest.raises(SchemaError, match=r"strided='x': expected names of tensor arguments \(x\)"):
        define("wrong(Tensor x) -> Tensor", outputs=ops.empty_like("x"), strided="x")
    with pytest.raises(SchemaError, match="release_gil='never': expected 'auto', True or False"):
        define("wrong(Tensor x) -> Tensor", outputs=ops.empty_like("x"), release_gil="never")


RELEASES = """
#include <dlfcn.h>
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto holds = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  static_cast<int64_t*>(static_cast<const DLTensor*>(args[1])->data)[0] = holds();
  return 0;
}
"""


@pytest.mark.parametrize(
    ("declared", "small", "large"), [("auto", 1, 0), (True, 0, 0), (False, 1, 1)]
)
def test_the_gil_is_released_as_declared(
    define: Define, declared: Any, small: int, large: int
) -> None:
    """`release_gil`: by size, always or never; by the kernel's own word."""
    holds = define(
        "holds(Tensor x) -> Tensor",
        source=jit.Source(text=RELEASES, name="holds.cpp"),
        outputs=ops.empty(1, dtype=torch.int64),
        release_gil=declared,
    )
    assert holds(torch.ones(1)).item() == small
    assert holds(torch.ones(1 << 15)).item() == large
    assert holds.overload(torch.ones(1)).item() == 0


def test_one_source_serves_a_device_that_is_loaded_later() -> None:
    """Also the fast path: a driver may come after the definition and the first calls."""
    script = """
        import torch
        from tests.unit.ops.support import SCALE
        from bringup import devices, ops
        scale = ops.kernel_op("later::scale(Tensor x, float factor=2.0) -> Tensor", source=SCALE,
                              outputs=ops.empty_like("x"), dtypes={"T": "x"}, kind="device")
        x = torch.randn(5)
        assert torch.equal(scale(x), 2 * x)
        devices.load_driver("sim")
        for call in (scale, scale.overload):
            assert torch.equal(call(x.to("npu"), factor=3).cpu(), 3 * x)
        assert torch.equal(scale(x), 2 * x)
    """
    output_of(textwrap.dedent(script))


@PATHS
def test_a_batch_of_none_has_no_sample_that_counts(
    positive: ops.KernelOperator, path: Path
) -> None:
    with pytest.raises(RuntimeError, match="positive has a result whose size depends on data"):
        torch.vmap(path(positive))(torch.ones(0, 3))


def test_an_output_larger_than_memory_has_addresses_is_refused(add: ops.KernelOperator) -> None:
    """An expanded input may have more elements than bytes can be counted for."""
    endless = torch.empty(1).expand(1 << 61)
    with pytest.raises(RuntimeError, match="overflow"):
        add(endless, endless)
