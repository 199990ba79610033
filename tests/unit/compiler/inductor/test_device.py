"""What a compiled program has of its device: indices that are checked, numbers of the host, another
device than the first, sizes that change, operators that stay eager.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

from bringup import devices
from bringup._native import torch_library
from bringup.compiler.inductor.functions import Functions
from bringup.errors import CompileError, DeviceError, KernelError


def test_a_wrong_index_is_a_kernel_error_with_operator_and_index() -> None:
    pick = torch.compile(lambda x, i: x[i] * 2)
    x = torch.arange(5.0, device="npu")
    assert pick(x, torch.tensor([1, -1], device="npu")).tolist() == [2, 8]
    pick(x, torch.tensor([1, 99], device="npu"))
    with pytest.raises(KernelError, match=r"aten\.index.*index 99 is out of bounds.*size 5"):
        torch.npu.synchronize()
    assert pick(x, torch.tensor([0, -5], device="npu")).tolist() == [0, 0]


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.fmod, torch.remainder])
def test_integers_divided_by_zero_are_a_kernel_error_and_the_least_by_minus_one_wraps(
    divide: Callable[..., torch.Tensor],
) -> None:
    compiled, least = torch.compile(divide, dynamic=True), -(2**63)
    x = torch.tensor([7, least], device="npu")
    got = compiled(x, torch.tensor([-2, -1], device="npu"))
    assert got.tolist() == [
        divide(torch.tensor(7), -2),
        least if divide is torch.floor_divide else 0,
    ]
    compiled(x, torch.tensor([1, 0], device="npu"))
    with pytest.raises(KernelError, match=r"aten\..*division by zero"):
        torch.npu.synchronize()


def test_numbers_of_the_host_are_passed_by_value() -> None:
    step = torch.compile(lambda x, n, k: x * n + k)
    x = torch.ones(4, device="npu")
    assert step(x, torch.tensor(2.5), torch.tensor(3)).tolist() == [5.5] * 4
    assert step(x, torch.tensor(-1.0), torch.tensor(0)).tolist() == [-1] * 4


def _launches(code: str) -> int:
    return len(re.findall(r"^ +npu_fused_\w+\(", code, re.MULTILINE))


def test_each_kernel_is_one_native_call_and_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, calls = torch_library().compiler, list[str]()

    def counted(*, name: str, **given: Any) -> Callable[..., None]:
        launch = generated_kernel(name=name, **given)
        return lambda *values: (calls.append(name), launch(*values))[1]

    generated_kernel = compiler.generated_kernel
    monkeypatch.setattr(compiler, "generated_kernel", counted)
    compiled = torch.compile(lambda x: (x * 2 + 1).softmax(-1).sum(0))
    x = torch.randn(9, 40, device="npu")
    _, (code,) = run_and_get_code(compiled, x)
    torch.npu.synchronize()
    calls.clear()
    device = torch.profiler.ProfilerActivity.PrivateUse1
    with torch.profiler.profile(activities=[device]) as profiler:
        compiled(x)
        torch.npu.synchronize()
    assert calls == re.findall(r"^ +(npu_fused_\w+)\(", code, re.MULTILINE)
    assert [event.name for event in profiler.events()] == calls != []


def test_an_optimizers_step_is_a_launch_or_two_for_all_parameters() -> None:
    def stepped(compiled: bool) -> list[torch.Tensor]:
        sizes = ((12,), (3, 5), (40, 40), (12,), (7,))
        parameters = [torch.linspace(-1, 1, math.prod(size)).reshape(size) for size in sizes]
        trained = [torch.nn.Parameter(one.to("npu")) for one in parameters]
        optimizer = torch.optim.AdamW(trained, lr=0.1)
        step = torch.compile(optimizer.step) if compiled else optimizer.step
        for _ in range(2):
            for one in trained:
                one.grad = one.detach().sin()
            _, codes = run_and_get_code(step)
            launches.extend(map(_launches, codes))
        return [one.detach() for one in trained]

    launches: list[int] = []
    torch.testing.assert_close(stepped(True), stepped(False))
    assert launches in ([1], [1, 2])  # the counts of steps, once they are on the device, before


def test_nests_share_a_launch_unless_one_needs_what_another_writes() -> None:
    def computed(x: torch.Tensor, i: Any, y: torch.Tensor, j: Any) -> tuple[torch.Tensor, ...]:
        rows = x.nonzero().t() + 1  # as many as there are: a nest of none
        total = y.sum(0)
        return rows, x[i] * 2, y[j].exp(), y.softmax(1) + total, total * 2

    x, y = torch.zeros(7, 3, device="npu"), torch.randn(40, 9, device="npu")
    i, j = torch.tensor([6, 0], device="npu"), torch.tensor([[39, 1]], device="npu")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(computed, fullgraph=True)
        got, (code,) = run_and_get_code(compiled, x, i, y, j)
    assert _launches(code) == 2
    torch.testing.assert_close(got, computed(x, i, y, j))
    compiled(x, i, y, j + 1)
    with pytest.raises(KernelError, match="index 40 is out of bounds for a dimension of size 40"):
        torch.npu.synchronize()


def test_memory_of_a_launch_is_the_next_ones() -> None:
    def normed(y: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            y = (y - y.sum(0)).exp()
            y = y / y.sum(0)
        return y

    y = torch.randn(40, 9, device="npu")
    got, (code,) = run_and_get_code(torch.compile(normed), y)
    torch.testing.assert_close(got, normed(y))
    assert code.count("# reuse") >= 2


def test_what_is_the_same_for_all_of_a_row_is_computed_once_before_it() -> None:
    def normed(table: torch.Tensor, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = table[ids]
        parts = torch.cat((rows[:, :9], x[:, 9:]), -1)
        return torch.nn.functional.layer_norm(rows + x, (37,)), parts.amax(-1)

    table, x = torch.randn(5, 37, device="npu"), torch.randn(7, 37, device="npu")
    ids = torch.tensor([4, 0, 2, -1, 3, 1, -5], device="npu")
    compiled = torch.compile(normed)
    got, codes = run_and_get_code(compiled, table, ids, x)
    torch.testing.assert_close(got, normed(table, ids, x))
    kernel = next(one for one in codes[0].split("generated_kernel(") if "acc0_lanes" in one)
    before, loop, *_others = kernel.split("int64_t r0_at = 0;")
    assert "report_fault" in before
    assert "report_fault" not in loop.partition("acc0_lanes[0]")[0]
    compiled(table, torch.full_like(ids, 5), x)
    with pytest.raises(KernelError, match="index 5 is out of bounds for a dimension of size 5"):
        torch.npu.synchronize()


@pytest.mark.parametrize("widths", [(8, 5), (5, 8), (21, 9)])
def test_comparisons_of_an_index_beyond_a_row_leave_the_row_as_long_as_it_is(
    widths: tuple[int, int],
) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        missing = y.shape[1] - x.shape[1] - 1
        return torch.ops.aten.constant_pad_nd(x, [1, missing]) + y * 3

    def g(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        missing = y.shape[1] - x.shape[1] + 1
        return torch.ops.aten.constant_pad_nd(x, [-1, missing]) + y * 3

    x, y = (torch.randn(6, width) for width in widths)
    for one in (f, g):
        made = torch.compile(one)(x.to("npu"), y.to("npu"))
        torch.testing.assert_close(made.cpu(), one(x, y))


def test_a_graph_runs_on_its_own_device() -> None:
    x = torch.arange(6.0, device="npu:1")
    got = torch.compile(lambda x: x.exp().sum())(x)
    assert got.device == x.device
    torch.testing.assert_close(got, x.exp().sum())


def test_other_sizes_need_no_other_graph() -> None:
    compiled = torch.compile(lambda x: (x - x.mean(-1, keepdim=True)).relu(), dynamic=True)
    for rows, columns in ((3, 5), (40, 17), (2, 100)):
        x = torch.randn(rows, columns, device="npu")
        torch.testing.assert_close(compiled(x), (x - x.mean(-1, keepdim=True)).relu())
    assert counters["stats"]["unique_graphs"] == 1


def test_what_generated_code_lacks_is_an_eager_operator_and_is_counted() -> None:
    devices.fallback_report(reset=True)
    compiled = torch.compile(lambda x: torch.special.i0e(x + 1) * 2, fullgraph=True)
    x = torch.rand(9, device="npu")
    torch.testing.assert_close(compiled(x), torch.special.i0e(x + 1) * 2)
    (counted,) = counters["bringup_eager_nodes"]
    assert counted == "aten.special_i0e.default: generated code has no such function"
    rows = [row.operator for row in devices.fallback_report().rows]
    assert any(row.startswith("aten::special_i0e") for row in rows)


def test_convolutions_keep_the_layouts_of_the_devices_operator() -> None:
    convolution = torch.nn.Conv2d(32, 64, 3, padding=1).to("npu")
    compiled = torch.compile(lambda x: convolution(x).relu())
    x = torch.randn(2, 32, 8, 8, device="npu")
    got, expected = compiled(x), convolution(x).relu()
    assert got.stride() == expected.stride()
    torch.testing.assert_close(got, expected)


def test_random_numbers_follow_the_seed_and_never_come_again() -> None:
    @torch.compile
    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        kept = torch.nn.functional.dropout(x, 0.25)
        return torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 3, 9), kept

    def twice() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [one.cpu() for _ in range(2) for one in drawn(x)]

    x = torch.ones(20_000, device="npu")
    first, again = twice(), twice()
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(first[:4], first[4:], strict=True):
        assert not torch.equal(one, other)
    uniform, normal, whole, kept = first[:4]
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(normal.mean()) < 0.035
    assert abs(normal.std() - 1) < 0.025
    assert whole.unique().tolist() == [3, 4, 5, 6, 7, 8]
    assert abs((kept != 0).float().mean() - 0.75) < 0.016
    assert abs(torch.corrcoef(torch.stack([uniform[1:], uniform[:-1]]))[0, 1]) < 0.036


def test_code_that_does_not_compile_is_named_by_its_operators_and_the_programs_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Functions, "sin", staticmethod(lambda x: f"no_such_function({x})"))
    with config.patch(fx_graph_cache=False), pytest.raises(CompileError) as raised:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3, device="npu"))
    said = str(raised.value)
    line = test_code_that_does_not_compile_is_named_by_its_operators_and_the_programs_line
    assert "npu_fused_add_sin.c" in said
    assert f"was generated for {__file__}:{line.__code__.co_firstlineno + 5}" in said


def test_generated_code_is_shown_with_explicit_types() -> None:
    compiled = torch.compile(lambda x, b: (x + b).relu().sum(-1))
    inputs = torch.randn(4, 8, device="npu"), torch.randn(8, device="npu")
    _, (code,) = run_and_get_code(compiled, *inputs)
    assert "generated_kernel('npu_fused_add_relu_sum_0'" in code
    assert "float tmp2 = (tmp0 + tmp1);" in code
    assert "auto" not in code.partition("generated_kernel(")[2].partition("''',")[0]


def test_an_asserted_condition_is_raised() -> None:
    def asserted(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "x must be positive")
        return x + 1

    compiled = torch.compile(asserted, fullgraph=True)
    compiled(torch.ones(3, device="npu"))
    torch.npu.synchronize()
    compiled(-torch.ones(3, device="npu"))
    with pytest.raises(KernelError, match="x must be positive"):
        torch.npu.synchronize()


def test_a_target_without_loops_is_refused_with_what_to_take_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bringup.jit.source.cpp_writer import CppWriter

    monkeypatch.setattr(CppWriter, "loops", None)
    with pytest.raises(Exception, match=r"generates no code for device 'npu'.*backend='bringup'"):
        torch.compile(lambda x: x + 41)(torch.ones(3, device="npu"))
    assert issubclass(DeviceError, Exception)
