"""Native or fallback: what is counted where, switching, closing, refusals of declarations."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from tests.unit.ops.operators import kernels

from bringup import devices
from bringup.errors import CompileError, DeviceError, SchemaError

Declare = Callable[..., devices.OperatorKernel]

WRONG = "template <class T> T mul(T a, T b) { return a * b + T(1); }"


def native_calls() -> dict[str, int]:
    return {row.operator: row.calls for row in devices.fallback_report(reset=True).native}


def fallen_back() -> set[str]:
    return {row.operator for row in devices.fallback_report().rows}


def test_a_disabled_kernel_falls_back_until_it_is_enabled(declare: Declare) -> None:
    x = torch.full((2,), 3.0, device="npu")
    kernel = declare("aten::mul", WRONG)
    assert (x * x).tolist() == [10, 10]
    with kernel.disabled():
        assert not kernel.enabled
        assert (x * x).tolist() == [9, 9]
    assert (x * x).tolist() == [10, 10]
    assert native_calls()["aten::mul.Tensor"] == 2


def test_a_closed_kernel_is_gone(declare: Declare) -> None:
    x = torch.full((2,), 3.0, device="npu")
    table = torch._C._dispatch_dump("aten::mul.Tensor")
    kernel = declare("aten::mul", WRONG)
    assert "by devices.kernel" in torch._C._dispatch_dump("aten::mul.Tensor")
    kernel.close()
    assert (x * x).tolist() == [9, 9]
    assert torch._C._dispatch_dump("aten::mul.Tensor") == table
    with pytest.raises(DeviceError, match="is closed"):
        kernel.enable()


def test_what_is_not_supported_falls_back_and_is_counted(declare: Declare) -> None:
    declare("aten::mul", kernels.MUL, supports=(torch.float32,))
    x = torch.ones(2, device="npu")
    x * x
    x.double() * x.double()
    x.to(torch.complex64) * 2
    report = devices.fallback_report()
    assert {row.operator: row.calls for row in report.native}["aten::mul.Tensor"] == 1
    assert {row.operator: row.calls for row in report.rows}["aten::mul.Tensor"] == 2


def test_the_policy_holds_for_what_is_not_supported(declare: Declare) -> None:
    kernel = declare("aten::mul", kernels.MUL, supports=(torch.float32,))
    x = torch.ones(2, device="npu")
    with devices.fallback_policy("allow", {"aten::mul": "forbid"}):
        x * x
        with pytest.raises(NotImplementedError, match="aten::mul"):
            x.double() * x.double()
        with kernel.disabled(), pytest.raises(NotImplementedError, match="aten::mul"):
            x * x


def test_sparse_tensors_fall_back(declare: Declare) -> None:
    declare("aten::mul", WRONG)
    x = torch.eye(2).to_sparse().to("npu")
    assert torch.equal((x * x).to_dense().cpu(), torch.eye(2))


def test_a_second_declaration_takes_the_place_of_the_first_with_a_warning(
    declare: Declare,
) -> None:
    source = kernels.source(WRONG)
    first = devices.kernel("aten::mul", source=source, kind="pointwise")
    with pytest.warns(UserWarning, match="takes the place of the kernel that .*test_switching"):
        declare("aten::mul", kernels.MUL)
    assert (torch.ones(2, device="npu") * 3).tolist() == [3, 3]
    first.close()  # which changes nothing for the second
    devices.fallback_report(reset=True)
    torch.ones(2, device="npu") * 3
    assert "aten::mul.Tensor" in native_calls()


def test_somebody_elses_kernel_is_not_overridden(declare: Declare) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("erfinv", lambda x: x, "PrivateUse1")
    try:
        with pytest.raises(DeviceError, match="another library registered"):
            declare("aten::erfinv", "template <class T> T erfinv(T x) { return x; }")
    finally:
        library._destroy()
    assert torch.zeros(1, device="npu").erfinv().tolist() == [0]


def test_a_refused_declaration_leaves_the_fallback_as_it_was(declare: Declare) -> None:
    table = torch._C._dispatch_dump("aten::exp")
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        library.impl("exp", lambda x: torch.full_like(x, 7), "PrivateUse1")
        with pytest.raises(DeviceError, match="another library registered"):
            declare("aten::exp", "template <class T> T exp(T x) { return x; }")
        assert torch.zeros(1, device="npu").exp().tolist() == [7]
    assert torch._C._dispatch_dump("aten::exp") == table
    assert torch.zeros(1, device="npu").exp().tolist() == [1]


def test_a_kernel_that_does_not_compile_says_so_where_it_is_called(declare: Declare) -> None:
    declare("aten::mul", "template <class T> T mul(T a, T b) { return a * c; }")
    with pytest.raises(CompileError, match="aten::mul"):
        torch.ones(2, device="npu") * 2.5


@pytest.mark.parametrize(
    ("operator", "kind", "message"),
    [
        ("gelu", "pointwise", "expected an operator"),
        ("aten::no_such_operator", "pointwise", "torch has no such operator"),
        ("aten::layer_norm", "raw", "made of other operators"),
        ("aten::add.None", "pointwise", "expected one of its overloads"),
        ("aten::max.dim", "pointwise", "has results as large as its arguments"),
        ("aten::mm", "reduction", "one tensor argument"),
        ("aten::clone", "raw", "cannot get its argument 'memory_format'"),
        ("aten::mul", "elementwise", "expected 'pointwise', 'reduction' or 'raw'"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(operator: str, kind: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        devices.kernel(operator, source=kernels.source(""), kind=kind)  # type: ignore[arg-type]


def test_an_operator_that_is_not_pointwise_is_found_out(declare: Declare) -> None:
    declare("aten::mm", "template <class T> T mm(T a, T b) { return a * b; }")
    with pytest.raises(SchemaError, match="it is not pointwise"):
        torch.ones(2, 3, device="npu") @ torch.ones(3, 4, device="npu")


def test_options_of_another_kind_are_refused() -> None:
    source = kernels.source(kernels.MUL)
    with pytest.raises(SchemaError, match="dtypes= belongs to kind='raw'"):
        devices.kernel("aten::mul", source=source, kind="pointwise", dtypes={"T": "self"})
    with pytest.raises(SchemaError, match="expected an argument of a raw kernel"):
        devices.kernel("aten::mul", source=source, kind="pointwise", strided=("self",))
    with pytest.raises(SchemaError, match="supports='complex'"):
        devices.kernel("aten::mul", source=source, kind="pointwise", supports=("complex",))  # type: ignore[arg-type]
