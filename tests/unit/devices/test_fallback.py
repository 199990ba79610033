"""What may run on the host, and what it costs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from bringup import devices
from bringup.errors import DeviceError


@pytest.fixture(autouse=True)
def everything_allowed() -> Iterator[None]:
    devices.set_fallback_policy()
    devices.fallback_report(reset=True)
    yield
    devices.set_fallback_policy()


def row(operator: str) -> devices.FallbackRow:
    (found,) = [r for r in devices.fallback_report().rows if r.operator == operator]
    return found


def test_calls_are_counted_and_the_dearest_comes_first() -> None:
    x = torch.randn(300, 300, device="npu")
    devices.fallback_report(reset=True)
    for _ in range(3):
        x @ x
    for _ in range(5):
        x[:1, :1] + 1
    report = devices.fallback_report()
    assert row("aten::mm").calls == 3
    assert report.rows[0].operator == "aten::mm"
    assert report.calls == 8
    assert report.seconds == sum(r.seconds for r in report.rows) > 0
    assert all(r.bytes_to_host == r.bytes_to_device == 0 for r in report.rows)  # it is visible
    text = str(report)
    assert text.splitlines()[1].startswith("aten::mm")
    assert text.splitlines()[-1].split()[:2] == ["total", "8"]


def test_a_reset_begins_anew() -> None:
    torch.ones(2, device="npu").exp()
    assert devices.fallback_report(reset=True).calls > 0
    assert devices.fallback_report().rows == ()
    assert str(devices.fallback_report()) == "no operator ran on the host"


def test_convolutions_count() -> None:
    x = torch.randn(1, 2, 5, 5, device="npu", requires_grad=True)
    torch.nn.functional.conv2d(x, torch.randn(3, 2, 3, 3, device="npu")).sum().backward()
    assert row("aten::convolution_overrideable").calls == 1
    assert row("aten::convolution_backward_overrideable").calls == 1


def test_what_is_forbidden_names_operator_and_device() -> None:
    x = torch.ones(3, 3, device="npu")
    with devices.fallback_policy("allow", {"aten::mm": "forbid"}):
        with pytest.raises(NotImplementedError, match=r"'aten::mm' has no kernel for device 'npu'"):
            x @ x
        assert (x + x).sum().item() == 18
    assert (x @ x).sum().item() == 27
    with devices.fallback_policy("forbid", {"aten::exp.out": "allow", "aten::exp": "allow"}):
        x.exp()
        with pytest.raises(NotImplementedError, match="the fallback policy forbids"):
            x.log()
    assert row("aten::mm").calls == 1


def test_the_more_exact_name_counts() -> None:
    x = torch.ones(3, 3, device="npu")
    exact = "aten::mm.default"
    with devices.fallback_policy("allow", {"aten::mm": "forbid", exact: "allow"}):
        x @ x
    with (
        devices.fallback_policy("allow", {"aten::mm": "allow", exact: "forbid"}),
        pytest.raises(NotImplementedError),
    ):
        x @ x


def test_a_warning_comes_once_an_operator() -> None:
    x = torch.ones(3, 3, device="npu")
    with devices.fallback_policy("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            x @ x
    (warning,) = [w for w in caught if "'aten::mm'" in str(w.message)]
    assert "runs on the host" in str(warning.message)


def test_own_kernels_are_not_affected() -> None:
    with devices.fallback_policy("forbid"):
        x = torch.empty(3, device="npu")
        assert x.view(1, 3).to("cpu").shape == (1, 3)


@pytest.mark.parametrize(
    ("default", "operators", "why"),
    [
        ("never", {}, "default: 'never', expected allow, warn or forbid"),
        ("allow", {"aten::mm": "no"}, "aten::mm: 'no', expected"),
        ("allow", {"mm": "forbid"}, "'mm' is no operator, expected 'aten::mm'"),
    ],
)
def test_a_wrong_policy_is_refused_and_the_former_stays(
    default: str, operators: dict[str, str], why: str
) -> None:
    devices.set_fallback_policy("allow", {"aten::mm": "forbid"})
    with pytest.raises(DeviceError, match=why):
        devices.set_fallback_policy(default, operators)  # type: ignore[arg-type]
    x = torch.ones(2, 2, device="npu")
    with pytest.raises(NotImplementedError):
        x @ x


def test_all_threads_count() -> None:
    x = torch.ones(4, 4, device="npu")
    x @ x
    devices.fallback_report(reset=True)

    def work() -> None:
        for _ in range(200):
            x @ x

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert row("aten::mm").calls == 800


def test_the_setting_and_copies_of_memory_that_the_host_cannot_see(
    fresh_python: Callable[..., str],
) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
x = torch.ones(10, 10, device="npu")
devices.fallback_report(reset=True)
y = x.exp()
(row,) = devices.fallback_report().rows
print(row.calls, row.bytes_to_host, row.bytes_to_device)
try:
    x @ x
except NotImplementedError as error:
    print("BRINGUP_FALLBACK" in str(error))
"""
    said = fresh_python(code, BRINGUP_SIM_ISOLATED="1", BRINGUP_FALLBACK="allow,aten::mm=forbid")
    assert said == "1 400 400\nTrue"


@pytest.mark.parametrize("isolated", ["0", "1"])
def test_running_statistics_that_no_schema_says_are_written_are_the_cpus(
    fresh_python: Callable[..., str], isolated: str
) -> None:
    code = """
import torch
from bringup import devices
devices.load_driver("sim")
x = torch.arange(24.0).view(4, 3, 2)

def statistics(device, update):
    mean, var = (torch.ones(6, device=device)[::2] for _ in range(2))
    update(x.to(device), mean, var)
    return mean.cpu(), var.cpu()

for update in (
    lambda x, mean, var: torch.batch_norm_update_stats(x, mean, var, 0.1),
    lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 0),
    lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, False, 0.1, 0),
    lambda x, mean, var: torch.instance_norm(x, None, None, mean, var, True, 0.1, 0, False),
):
    pairs = zip(statistics("npu", update), statistics("cpu", update))
    print(*(torch.equal(ours, theirs) for ours, theirs in pairs))
devices.fallback_report(reset=True)
statistics("npu", lambda x, m, v: torch.batch_norm(x, None, None, m, v, False, 0, 1, False))
(row,) = (row for row in devices.fallback_report().rows if "batch_norm" in row.operator)
print(row.bytes_to_device)
"""
    copied = 24 * 4 if isolated == "1" else 0  # of the result: evaluation writes no statistics
    said = fresh_python(code, BRINGUP_SIM_ISOLATED=isolated)
    assert said == "\n".join(["True True"] * 4 + [str(copied)])


def test_a_policy_from_before_the_driver_holds(fresh_python: Callable[..., str]) -> None:
    code = """
import torch
from bringup import devices
devices.set_fallback_policy("forbid")
devices.load_driver("sim")
try:
    torch.empty(2, device="npu").exp()
except NotImplementedError:
    print("refused")
"""
    assert fresh_python(code, BRINGUP_FALLBACK="allow") == "refused"


def test_an_out_form_of_a_vendor_serves_all_forms_of_a_structured_operator() -> None:
    """torch's composite kernels allocate and check; the fallback stands aside."""
    seen = []

    def subtract(
        self: torch.Tensor, other: torch.Tensor, *, alpha: int = 1, out: torch.Tensor
    ) -> torch.Tensor:
        seen.append(out.shape)
        return out.fill_(7)

    x, y = torch.ones(3, 1, device="npu"), torch.ones(2, device="npu")
    with (
        torch.library._scoped_library("aten", "IMPL") as library,
        devices.fallback_policy("forbid"),
    ):
        library.impl("sub.out", subtract, "PrivateUse1")
        fresh = x - y
        z = torch.zeros(2, device="npu")
        z -= y
    assert seen == [(3, 2), (2,)]
    assert fresh.shape == (3, 2)
    assert (fresh.cpu() == 7).all()
    assert z.tolist() == [7, 7]
    assert (x - y).cpu().eq(0).all()  # the fallback again


@pytest.mark.parametrize("name", ["all", "any"])
def test_an_out_form_that_falls_back_itself_is_no_kernel_of_a_vendor(name: str) -> None:
    """torch has kernels of the CPU and composite ones for `all.dims_out` and `any.dims_out`."""

    def fill_true(
        x: torch.Tensor, dim: object, keepdim: bool = False, *, out: torch.Tensor
    ) -> object:
        return out.fill_(True)

    x = torch.tensor([[True, False], [True, True]], device="npu")
    devices.fallback_report(reset=True)
    function = getattr(torch, name)
    assert function(x, dim=(0,)).tolist() == function(x.cpu(), dim=(0,)).tolist()
    rows = {row.operator: row.calls for row in devices.fallback_report().rows}
    assert rows == {f"aten::{name}.dims": 1}
    entry = devices.dispatch_table(f"aten::{name}.dims")["PrivateUse1"]
    assert entry.kind.value == "host fallback"
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library.impl(f"{name}.dims_out", fill_true, "PrivateUse1")
        assert function(x & False, dim=(0,)).tolist() == [True, True]
    assert function(x & False, dim=(0,)).tolist() == [False, False]


UNBOXED = {
    "add.Tensor": lambda x: x + x,
    "div.Tensor": lambda x: x / x,
    "exp": torch.exp,
    "mul.Tensor": lambda x: x * 3,
    "neg": torch.neg,
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "sqrt": torch.sqrt,
    "sub.Tensor": lambda x: torch.sub(x, 2 * x, alpha=0.5),
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("operator", UNBOXED)
def test_short_operators_without_boxing_have_the_bytes_of_cpu_and_are_counted(
    operator: str,
) -> None:
    here = torch.rand(3, 5)[:, 1:] - 0.25
    there = here.to("npu")
    devices.fallback_report(reset=True)
    result = UNBOXED[operator](there)
    assert row(f"aten::{operator}").calls == 1
    expected = UNBOXED[operator](here)
    assert result.device == there.device
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0, equal_nan=True)


def test_short_operators_without_boxing_run_in_the_device_of_their_tensors() -> None:
    x = torch.ones(2, device="npu:1")
    assert (x + x).device == torch.relu(x).device == x.device
    with pytest.raises(RuntimeError, match=r"tensors of aten::mul.Tensor .* npu:1 and cpu"):
        x * torch.ones(2)


def test_a_kernel_takes_the_place_of_an_unboxed_fallback_while_it_lives() -> None:
    x = torch.full((2,), -1.0, device="npu")
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells once that the fallback's kernel is overridden
        library.impl("relu", lambda self: torch.full_like(self, 7), "PrivateUse1")
        assert torch.relu(x).tolist() == [7, 7]
    assert torch.relu(x).tolist() == [0, 0]
