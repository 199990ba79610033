"""Pointwise kernels: shapes, layouts, promotion, written results. The oracle is torch on cpu."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.ops.operators import kernels

from bringup import devices
from bringup.ops.operators.family import family_of

Declare = Callable[..., devices.OperatorKernel]
ALL = ("floating", "integral", "bool")
ONE_KERNEL = HealthCheck.function_scoped_fixture  # for all examples of a test, as is meant
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8)


@pytest.fixture
def add() -> Iterator[devices.OperatorKernel]:
    """Made anew for each test: others declare kernels for the same operator, and close them."""
    kernel = devices.kernel("aten::add", source=kernels.source(kernels.ADD), kind="pointwise",
                          supports=("floating", "integral"))  # fmt: skip
    yield kernel
    kernel.close()


@st.composite
def operands(draw: st.DrawFn) -> list[torch.Tensor]:
    """Two tensors that broadcast, of any dtypes, permuted, strided and expanded."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    made = []
    for _ in range(2):
        own = [1 if draw(st.booleans()) else size for size in shape][draw(st.integers(0, 4)) :]
        dtype = draw(st.sampled_from(DTYPES))
        order = draw(st.permutations(range(len(own))))
        step = draw(st.sampled_from([1, 1, 2]))
        base = torch.arange(1, 1 + 2 * max(1, torch.Size(own).numel())).to(dtype)
        room = [own[d] for d in order]
        strided = base[: step * torch.Size(room).numel() : step].reshape(room)
        tensor = strided.permute([order.index(d) for d in range(len(own))])
        if draw(st.booleans()) and tensor.dim():
            tensor = tensor[..., :1].expand_as(tensor)
        made.append(tensor)
    return made


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """With the same strides."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size()
    base = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to("npu")
    assert base.numel() == room
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def strides_that_matter(tensor: torch.Tensor) -> list[int]:
    """Not those of dimensions of size 1: where dtypes differ, the CPU iterates over an operand that
    it converted first, without gaps, and such dimensions have other strides there.
    """
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


@given(operands(), st.sampled_from([1, 2, -3]))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_two_tensors_are_added_as_on_cpu(
    add: devices.OperatorKernel, tensors: list[torch.Tensor], alpha: int
) -> None:
    try:
        expected = torch.add(*tensors, alpha=alpha)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error).split("(")[0][:40]):
            torch.add(*map(on_device, tensors), alpha=alpha)
        return
    got = torch.add(*map(on_device, tensors), alpha=alpha)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert strides_that_matter(got) == strides_that_matter(expected)
    torch.testing.assert_close(got.cpu(), expected, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("other", [2, 2.5, True, torch.tensor(2), torch.tensor(2.5).double()])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_numbers_promote_as_on_cpu(
    add: devices.OperatorKernel, dtype: torch.dtype, other: object, shape: tuple[int, ...]
) -> None:
    x = torch.ones(shape, dtype=dtype)
    got = x.to("npu") + other
    expected = x + other
    assert got.dtype is expected.dtype
    assert torch.equal(got.cpu(), expected)


def test_channels_last_stays_channels_last(add: devices.OperatorKernel) -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    got = on_device(x) + on_device(x)
    assert got.stride() == (x + x).stride()
    assert torch.equal(got.cpu(), x + x)


def test_a_given_result_is_resized_with_torchs_warning(add: devices.OperatorKernel) -> None:
    x = torch.ones(3, device="npu")
    out = torch.empty(2, device="npu")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, x, out=out)
    assert out.tolist() == [2, 2, 2]


def test_a_result_is_converted_to_the_dtype_of_the_given_one(add: devices.OperatorKernel) -> None:
    x = torch.full((3,), 1.5, device="npu")
    out = torch.empty(3, device="npu", dtype=torch.float64)
    assert torch.add(x, x, out=out) is out
    assert out.tolist() == [3, 3, 3]


@pytest.mark.parametrize("in_place", [True, False])
def test_a_result_that_cannot_be_cast_is_refused_as_on_cpu(
    add: devices.OperatorKernel, in_place: bool
) -> None:
    x = torch.ones(2, dtype=torch.int32, device="npu")

    def call() -> object:
        return x.add_(1.5) if in_place else torch.add(x, 1.5, out=x)

    with pytest.raises(
        RuntimeError, match="result type Float can't be cast to the desired output type Int"
    ):
        call()


def test_in_place_on_a_view_writes_the_view_alone(add: devices.OperatorKernel) -> None:
    x = torch.zeros(4, 4, device="npu")
    x[:, 1::2].add_(torch.arange(4.0, device="npu").unsqueeze(1))
    expected = torch.zeros(4, 4)
    expected[:, 1::2].add_(torch.arange(4.0).unsqueeze(1))
    assert torch.equal(x.cpu(), expected)


def test_in_place_does_not_broadcast_what_is_written(add: devices.OperatorKernel) -> None:
    x = torch.zeros(1, device="npu")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.add_(torch.ones(3, device="npu"))


def test_overlapping_memory_is_refused_as_by_torch(add: devices.OperatorKernel) -> None:
    x = torch.zeros(5, device="npu")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.add(x[1:], x[1:], out=x[:-1])
    with pytest.raises(RuntimeError, match="unsupported operation"):
        x[:1].expand(3).add_(1)


def test_two_devices_are_refused_as_by_torch(add: devices.OperatorKernel) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device="npu") + torch.ones(2)


def test_another_device_than_the_current_one(add: devices.OperatorKernel) -> None:
    x = torch.ones(3, device="npu:1")
    got = x + x
    assert got.device == torch.device("npu:1")
    assert got.tolist() == [2, 2, 2]


def test_work_is_in_the_order_of_its_stream(add: devices.OperatorKernel) -> None:
    side = torch.npu.Stream()
    x = torch.zeros(1 << 16, device="npu")
    torch.npu.synchronize()
    with torch.npu.stream(side):
        for _ in range(20):
            x.add_(1)
        done = side.record_event()
    torch.npu.current_stream().wait_event(done)
    assert (x + 0).min().item() == 20


def test_two_threads_call_at_once(add: devices.OperatorKernel) -> None:
    failures: list[object] = []

    def work(seed: int) -> None:
        for i in range(50):
            x = torch.full((7,), float(seed + i), device="npu")
            if (x + seed).tolist() != [2.0 * seed + i] * 7:
                failures.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_large_tensors_are_cut_into_blocks(add: devices.OperatorKernel) -> None:
    x = torch.arange(300_007.0).reshape(-1, 1)
    got = x.to("npu") + torch.arange(3.0, device="npu")
    assert torch.equal(got.cpu(), x + torch.arange(3.0))


def test_views_are_handed_to_a_c_function(declare: Declare) -> None:
    text = """
    #include "bringup/kernel.h"
    BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
      const bringup::View<const T> a(args[0]), b(args[1]);
      const bringup::View<OUT> out(args[2]);
      for (int64_t i = 0; i < out.numel(); ++i) out.at(i) = a.at(i) * b.at(i);
      return 0;
    }
    """
    declare("aten::mul", text, entry="run")
    x, y = torch.randn(3, 4), torch.randn(3, 1)
    devices.fallback_report(reset=True)
    got = x.to("npu") * y.to("npu")
    assert torch.equal(got.cpu(), x * y)
    assert [row.operator for row in devices.fallback_report().native] == ["aten::mul.Tensor"]


VIEWS = """
#include "bringup/kernel.h"
template <class A> double number(const void* arg) {
  return static_cast<A>(1.5) == 1 ? bringup::scalar<int64_t>(arg) : bringup::scalar<double>(arg);
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<const T> a(args[0]), b(args[1]);
  const bringup::View<OUT> out(args[3]);
  for (int64_t i = 0; i < out.numel(); ++i)
    out.at(i) = static_cast<OUT>(a.at(i) + number<T>(args[2]) * b.at(i));
  return 0;
}
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_a_scalar_has_one_kind_in_a_c_function_whatever_its_value(
    declare: Declare, dtype: torch.dtype
) -> None:
    declare("aten::add", VIEWS, entry="run", supports=("floating", "integral"))
    x = torch.tensor([1, 2, 3], dtype=dtype)
    y = x.to("npu")
    assert torch.equal((y + y).cpu(), x + x)
    for alpha in (2, -3, 2.5) if dtype.is_floating_point else (2, -3):
        assert torch.equal(torch.add(y, y, alpha=alpha).cpu(), torch.add(x, x, alpha=alpha))
        assert torch.equal(y.clone().add_(y, alpha=alpha).cpu(), x.clone().add_(x, alpha=alpha))
    native = {row.operator: row.calls for row in devices.fallback_report().native}
    assert native["aten::add.Tensor"] >= 3


@pytest.mark.parametrize("number", [1, 2.5, True, torch.tensor(3), torch.tensor(0.5)])
def test_a_number_in_the_place_of_a_tensor_has_no_view_and_falls_back(
    declare: Declare, number: Any
) -> None:
    declare("aten::add", VIEWS, entry="run")
    x = torch.tensor([1.0, 2.0])
    for computed, right in (
        (x.to("npu") + number, x + number),
        (number + x.to("npu"), number + x),
        (torch.add(x.to("npu"), number, out=torch.empty(2, device="npu")), x + number),
        (x.to("npu").add_(number), x + number),
    ):
        assert torch.equal(computed.cpu(), right)


def test_none_is_a_null_pointer(declare: Declare) -> None:
    declare("aten::clamp", kernels.CLAMP)
    x = torch.tensor([-2.0, 0.5, 3.0], device="npu")
    assert x.clamp(min=0).tolist() == [0, 0.5, 3]
    assert x.clamp(max=1).tolist() == [-2, 0.5, 1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.float32])
def test_a_number_that_the_dtype_does_not_hold_is_refused_as_on_cpu(
    add: devices.OperatorKernel, dtype: torch.dtype
) -> None:
    large = 1e300 if dtype.is_floating_point else 2**40
    x = torch.ones(3, dtype=dtype)
    assert torch.add(x.to("npu"), x.to("npu"), alpha=2).tolist() == [3, 3, 3]
    for device in ("cpu", "npu"):
        y = x.to(device)
        for call in (
            lambda y=y: torch.add(y, y, alpha=large),
            lambda y=y: y.add_(y * 1, alpha=large),
        ):
            with pytest.raises(RuntimeError, match="without overflow"):
                call()


def test_operands_are_promoted_to_half_before_they_are_widened(declare: Declare) -> None:
    declare("aten::add", kernels.ADD)
    x = torch.tensor([2049, 4097], dtype=torch.int32)
    y = torch.tensor([-2048.0, -4096.0], dtype=torch.float16)
    assert torch.equal(torch.add(x.to("npu"), y.to("npu")).cpu(), torch.add(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "sign"), [("eq", "=="), ("ne", "!="), ("lt", "<"), ("ge", ">=")])
def test_numbers_that_half_precision_is_compared_with_are_rounded(
    declare: Declare, name: str, sign: str, dtype: torch.dtype
) -> None:
    text = f"template <class T> bool {name}(T a, T b) {{ return a {sign} b; }}"
    for form in ("Scalar", "Tensor"):
        declare(f"aten::{name}.{form}", text)
    compare = getattr(torch, name)
    for number in (0.1, 2.1, 1e9, 1e-9, 2049):
        x = torch.tensor([number, -number, 0.0, 0.3]).to(dtype)
        for other in (number, torch.tensor(number, dtype=torch.float64)):
            assert torch.equal(compare(x.to("npu"), other).cpu(), compare(x, other)), other
        y = x.to("npu")
        assert torch.equal(getattr(y, f"{name}_")(number).cpu(), getattr(x, f"{name}_")(number))


@pytest.mark.parametrize("wide", [torch.float32, torch.float64, torch.bfloat16])
def test_results_in_half_precision_are_rounded_before_they_are_written_wider(
    declare: Declare, wide: torch.dtype
) -> None:
    declare("aten::add", kernels.ADD)
    x, y = torch.randn(2, 100).half().unbind()
    expected = torch.add(x, y, out=torch.empty(100, dtype=wide))
    got = torch.add(x.to("npu"), y.to("npu"), out=torch.empty(100, dtype=wide, device="npu"))
    assert torch.equal(got.cpu(), expected)


def test_an_overload_that_is_named_leaves_those_of_numbers_alone(declare: Declare) -> None:
    of_tensors = declare("aten::lerp.Tensor", LERP)
    assert of_tensors.operators == (
        "aten::lerp.Tensor",
        "aten::lerp.Tensor_out",
        "aten::lerp_.Tensor",
    )
    of_numbers = declare("aten::lerp.Scalar", LERP)
    assert of_numbers.operators == (
        "aten::lerp.Scalar",
        "aten::lerp.Scalar_out",
        "aten::lerp_.Scalar",
    )
    of_both = family_of("aten::lerp", "pointwise")
    assert len(of_both) == 6


LERP = "template <class T> T lerp(T a, T b, T weight) { return a + weight * (b - a); }"


def test_a_result_that_grows_over_the_input_is_computed_from_what_was_there(
    declare: Declare,
) -> None:
    declare("aten::gelu", kernels.GELU)
    for shift in (0, 1, 3):
        base = torch.arange(1.0, 41.0, device="npu")
        x, wanted = base[8:28], torch.nn.functional.gelu(base[8:28].cpu())
        torch._C._nn.gelu(x, out=base[8 + shift : 8 + shift])
        after = torch.arange(1.0, 41.0)
        after[8 + shift : 28 + shift] = wanted
        torch.testing.assert_close(base.cpu(), after)
