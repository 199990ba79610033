"""Kinds of arguments and results beyond tensors, int, float, bool and str: as they reach a kernel,
on cpu and npu, by the callable and by `torch.ops`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import each, kernel

from bringup import graphs, jit, ops
from bringup.errors import ContractError, SchemaError

pytestmark = pytest.mark.usefixtures("simulator")
PATHS = pytest.mark.parametrize(
    "path", [lambda op: op, lambda op: op.overload], ids=["fast", "slow"]
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])

SCALAR = kernel(
    "const bringup_scalar& s = bringup::number(args[1]);"
    "auto* out = static_cast<int64_t*>(TENSOR(2)->data);"
    "out[0] = s.integer; out[1] = s.dtype.code; out[2] = s.dtype.bits;"
    "out[3] = s.real >= 0x1p62 ? INT64_MIN : static_cast<int64_t>(s.real * 4);"
    "out[4] = static_cast<int64_t>(s.imaginary * 4);"
)
NUMBERS = [
    (2**53 + 1, [2**53 + 1, 0, 64, 2**55, 0]),
    (-3, [-3, 0, 64, -12, 0]),
    (2**63 + 2**11, [-(2**63) + 2**11, 1, 64, -(2**63), 0]),
    (True, [1, 6, 8, 4, 0]),
    (0.25, [0, 2, 64, 1, 0]),
    (1.5 - 2.25j, [0, 5, 128, 6, -9]),
]


@PATHS
@DEVICES
@pytest.mark.parametrize(("number", "seen"), NUMBERS)
def test_a_scalar_arrives_as_it_was_given(
    define: Define, path: Any, device: str, number: Any, seen: list[int]
) -> None:
    op = define(
        "f(Tensor x, Scalar s=7) -> Tensor", source=SCALAR, kind="device",
        outputs=ops.empty(5, dtype=torch.int64),
    )  # fmt: skip
    x = torch.ones(1, device=device)
    assert path(op)(x, number).tolist() == seen
    assert path(op)(x).tolist() == [7, 0, 64, 28, 0]


@PATHS
def test_scalars_promote_as_torch_promotes_them(define: Define, path: Any) -> None:
    op = define(
        "f(Tensor x, Scalar s) -> Tensor", outputs=ops.empty_like("x", dtype=ops.promote("x", "s"))
    )
    for dtype in (torch.bool, torch.int32, torch.bfloat16, torch.float32, torch.complex64):
        x = torch.zeros(2, dtype=dtype)
        for number in (True, 1, 1.5, 2j):
            expected = torch.result_type(x, number)
            assert path(op)(x, number).dtype == expected
            assert path(op)(x.to("meta"), number).dtype == expected


@PATHS
@DEVICES
def test_constants_of_torch_arrive_as_numbers(define: Define, path: Any, device: str) -> None:
    op = define(
        "f(Tensor x, Device d, Layout? l=None, MemoryFormat m=contiguous_format) -> Tensor",
        source=kernel(
            "auto* out = static_cast<int64_t*>(TENSOR(4)->data);"
            "const auto* d = static_cast<const DLDevice*>(args[1]);"
            "out[0] = d->device_type; out[1] = d->device_id;"
            "out[2] = args[2] ? INT(2) : -1; out[3] = INT(3);"
        ),
        kind="device",
        outputs=ops.empty(4, dtype=torch.int64),
    )
    call, x = path(op), torch.ones(1, device=device)
    assert call(x, torch.device("cpu")).tolist() == [1, 0, -1, 0]
    assert call(x, torch.device("npu:1"), torch.sparse_coo).tolist() == [12, 1, 1, 0]
    assert call(x, "cuda:3", m=torch.preserve_format).tolist() == [2, 3, -1, 1]


INDICES = kernel(
    "const auto items = bringup::list<DLTensor>(args[1]);"
    "auto* out = static_cast<int64_t*>(TENSOR(2)->data);"
    "for (int64_t i = 0; i < 4; ++i) out[i] = i >= items.size() ? -1 : !items.has(i) ? 0 :"
    " static_cast<const int64_t*>(items[i].data)[items[i].ndim > 0 ? items[i].shape[0] - 1 : 0];"
)


@PATHS
@DEVICES
def test_a_list_may_hold_none(define: Define, path: Any, device: str) -> None:
    op = define(
        "f(Tensor x, Tensor?[] indices) -> Tensor", source=INDICES, kind="device",
        outputs=ops.empty(4, dtype=torch.int64), checks=ops.dtype("indices", torch.int64),
    )  # fmt: skip
    x, i = torch.ones(1, device=device), torch.tensor([5, 6, 7, 8], device=device)
    assert path(op)(x, [None, i, None]).tolist() == [0, 8, 0, -1]
    assert path(op)(x, [i[::2], None]).tolist() == [7, 0, -1, -1]  # copied, since it is strided
    assert path(op)(x, []).tolist() == [-1] * 4
    with pytest.raises(ContractError, match=r"indices must be torch\.int64, got torch\.float32"):
        path(op)(x, [None, x])
    if device == "npu":
        with pytest.raises(ContractError, match="all tensors must be on one device"):
            path(op)(x, [i.cpu()])


LENGTHS = kernel(
    "const auto items = bringup::list<DLTensor>(args[1]);"
    "for (int64_t k = 0; k < count(TENSOR(0)); ++k) static_cast<float*>(TENSOR(2)->data)[k] ="
    "  items.has(0) ? -1 : items.has(1) ? items[1].shape[0] : 0;"
)


def test_what_is_none_in_a_list_is_none_in_backward(define: Define) -> None:
    backward = define(
        "backward(Tensor grad, Tensor?[] i) -> Tensor", source=LENGTHS,
        outputs=ops.empty_like("grad"), checks=ops.kernel_checks(),
    )  # fmt: skip
    forward = define(
        "f(Tensor x, Tensor?[] i) -> Tensor", outputs=ops.empty_like("x"),
        checks=ops.kernel_checks(),
    )  # fmt: skip
    forward.register_backward(backward.qualified_name, save=("i",), gradients=("x",))
    for call in (forward, forward.overload):
        x = torch.ones(2, requires_grad=True)
        call(x, [None, torch.ones(3)]).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [3, 3]
    with pytest.raises(SchemaError, match="gradients= names 'i', which is no Tensor or Tensor"):
        forward.register_backward(backward.qualified_name, save=("i",), gradients=("i",))


DRAW = kernel(
    "const auto* at = static_cast<const int64_t*>(LIST(1)->data);"
    "static_cast<int64_t*>(TENSOR(2)->data)[0] = at[0];"
    "static_cast<int64_t*>(TENSOR(2)->data)[1] = at[1];"
)


@pytest.fixture
def draw(define: Define) -> ops.KernelOperator:
    return define("draw(Tensor x, Generator? g=None) -> Tensor", source=DRAW, kind="device",
                  outputs=ops.empty(2, dtype=torch.int64))  # fmt: skip


@PATHS
@DEVICES
def test_a_generator_is_a_seed_and_an_offset_that_no_other_call_has(
    draw: ops.KernelOperator, path: Any, device: str
) -> None:
    x, call = torch.ones(1, device=device), path(draw)
    generator = torch.Generator(device).manual_seed(7)
    first, second = call(x, generator).tolist(), call(x, g=generator).tolist()
    assert first != second
    if device == "npu":
        assert (first, second) == ([7, 0], [7, 1])
    generator.manual_seed(7)
    assert [call(x, generator).tolist(), call(x, generator).tolist()] == [first, second]
    torch.manual_seed(3)
    default = call(x).tolist()
    assert call(x).tolist() != default
    torch.manual_seed(3)
    assert call(x, None).tolist() == default


@PATHS
def test_a_generator_of_another_device_is_refused(draw: ops.KernelOperator, path: Any) -> None:
    with pytest.raises(RuntimeError, match="expected a generator of device 'npu:0' but got"):
        path(draw)(torch.ones(1, device="npu"), torch.Generator())
    with pytest.raises(RuntimeError, match="expected a generator of device 'cpu' but got"):
        path(draw)(torch.ones(1), torch.Generator("npu"))


def test_each_sample_of_a_batch_draws_or_none_does(draw: ops.KernelOperator) -> None:
    x = torch.ones(3, 1)
    drawn = torch.vmap(draw, randomness="different")(x)
    assert len(set(drawn[:, 0].tolist())) == 3
    for randomness in ("error", "same"):
        with pytest.raises(RuntimeError, match="draws random numbers, which differ between"):
            torch.vmap(draw, randomness=randomness)(x)


@DEVICES
@pytest.mark.parametrize("given", [True, False])
def test_replays_draw_what_calls_draw(draw: ops.KernelOperator, device: str, given: bool) -> None:
    x = torch.ones(1, device=device)
    generator = torch.Generator(device) if given else None

    def seed() -> None:
        torch.manual_seed(11) if generator is None else generator.manual_seed(11)

    seed()
    eager = [draw(x, generator).tolist() for _ in range(6)]
    seed()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        one = draw(x, generator)
        two = draw(x, generator)
    seed()
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed += [one.tolist(), two.tolist()]
    assert replayed == eager


TWICE = kernel(
    "const int64_t size = count(TENSOR(0)); double sum = 0;"
    "for (int64_t i = 0; i < size; ++i) {"
    "  const float v = static_cast<float*>(TENSOR(0)->data)[i];"
    "  static_cast<float*>(TENSOR(1)->data)[i] = 2 * v; sum += v;"
    "}"
    "static_cast<int64_t*>(TENSOR(2)->data)[0] = -size;"
    "static_cast<double*>(TENSOR(3)->data)[0] = sum;"
    "static_cast<bool*>(TENSOR(4)->data)[0] = sum > 2;"
)


@pytest.fixture
def twice(define: Define) -> ops.KernelOperator:
    return define("twice(Tensor x) -> (Tensor, int, float, bool)", source=TWICE, kind="device",
                  outputs=ops.empty_like("x"), checks=ops.dtype("x", torch.float32))  # fmt: skip


@PATHS
@DEVICES
def test_numbers_are_returned_beside_tensors(
    twice: ops.KernelOperator, path: Any, device: str
) -> None:
    x = torch.tensor([1.0, 2.5], device=device)
    y, n, total, large = path(twice)(x)
    assert (y.tolist(), n, total, large) == ([2, 5], -2, 3.5, True)
    assert [type(one) for one in (n, total, large)] == [int, float, bool]
    assert path(twice)(x[:0])[1:] == (0, 0.0, False)


def test_a_number_has_no_gradient_and_the_tensor_beside_it_has(
    define: Define, twice: ops.KernelOperator
) -> None:
    backward = define("b(Tensor grad) -> Tensor", outputs=ops.empty_like("grad"), source=each(
        "static_cast<float*>(TENSOR(1)->data)[i] ="
        " 2 * static_cast<float*>(TENSOR(0)->data)[i];"))  # fmt: skip
    twice.register_backward(backward.qualified_name)
    for call in (twice, twice.overload):
        x = torch.ones(2, requires_grad=True)
        y, n, _, _ = call(x)
        y.sum().backward()
        assert x.grad is not None
        assert (x.grad.tolist(), n) == ([2, 2], -2)


def test_a_number_breaks_a_compiled_graph_and_is_refused_where_there_is_none(
    twice: ops.KernelOperator,
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: twice(x * 1)[1] + twice(x)[0].sum(), backend="aot_eager")
    assert compiled(torch.ones(3)).item() == 3
    with pytest.raises(ContractError, match="returns a number, which meta tensors do not have"):
        twice(torch.ones(3, device="meta"))
    x = torch.ones(3, device="npu")
    with pytest.raises(RuntimeError, match="twice"), graphs.capture(graphs.CapturedGraph()):
        twice(x * 2)


REFUSED = [
    ("f(Tensor x, str[] names) -> Tensor", "argument 'names' has type List"),
    ("f(Tensor x, Generator a, Generator b) -> Tensor", "a kernel draws from one Generator"),
    ("f(Tensor x, Tensor(a!)?[] y) -> Tensor", "the kernel ABI cannot carry"),
    ("f(Tensor(a) x) -> Tensor(a)", "no kernel runs for a view"),
    ("f(Tensor x) -> int[]", "returns tensors, int, float and bool, got a return of type List"),
]


@pytest.mark.parametrize(("signature", "words"), REFUSED)
def test_what_no_kernel_needs_is_refused_by_name(
    define: Define, signature: str, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        define(signature, outputs=ops.empty_like("x"))


def test_functions_take_scalars_and_generators_as_plain_numbers(define: Define) -> None:
    text = (
        "void f(double* out, float alpha, double beta, long layout, unsigned long seed,"
        " long offset, const long* at, long items) { out[0] = alpha; out[1] = beta;"
        " out[2] = layout; out[3] = seed == at[0]; out[4] = offset - at[1]; out[5] = items; }"
    )
    op = define(
        "f(Tensor x, Scalar alpha, Scalar? beta=None, *, Layout l=strided, Generator? g=None,"
        " Tensor?[] t) -> Tensor",
        source=jit.Source(text=text, name="f.c"), entry="f",
        args="ptr(out), alpha, beta, l, g[0], g[1], ptr(g), len(t)",
        outputs=ops.empty(6, dtype=torch.float64), checks=ops.kernel_checks(),
    )  # fmt: skip
    x = torch.ones(1)
    assert op(x, 3, t=[None]).tolist() == [3, 0, 0, 1, 0, 1]
    assert op(x, 0.5, 2, l=torch.sparse_coo, t=[]).tolist() == [0.5, 2, 1, 1, 0, 0]
    with pytest.raises(ContractError, match=r"alpha must be .*, got torch\.complex128"):
        op(x, 1j, t=[])
