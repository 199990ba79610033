"""Every dtype that has a C type reaches a kernel as torch has it: complex numbers, unsigned ones
and floats of 8 bits, on cpu and npu.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.ops.conftest import Define
from tests.unit.ops.support import each

from bringup import ops

pytestmark = pytest.mark.usefixtures("simulator")
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])
FLOAT8 = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]  # fmt: skip
CAST = each(
    "static_cast<TO*>(TENSOR(2)->data)[i] = static_cast<TO>(static_cast<const FROM*>("
    "TENSOR(0)->data)[i]);"
)


@pytest.fixture
def cast(define: Define) -> ops.KernelOperator:
    return define(
        "cast(Tensor x, ScalarType to) -> Tensor", source=CAST, kind="device",
        outputs=ops.empty_like("x", dtype="to"), dtypes={"FROM": "x", "TO": "out"},
    )  # fmt: skip


def _values() -> torch.Tensor:
    """Floats around every value and every middle between two of every format, and special ones."""
    found = []
    for dtype in FLOAT8:
        codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
        codes = codes[codes.isfinite()].unique()
        middles = (codes[1:] + codes[:-1]) / 2
        both = torch.cat([codes, middles])
        found += [both, both.nextafter(torch.tensor(torch.inf)), both.nextafter(torch.tensor(0.0))]
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-45, 3.4e38, 464, 465, 61440]
    return torch.cat([*found, torch.tensor(special), torch.randn(2000).exp2() * 100])


@DEVICES
@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_floats_of_8_bits_are_torchs(cast: Any, dtype: torch.dtype, device: str) -> None:
    values = _values()
    if dtype is torch.float8_e8m0fnu:
        values = values.abs()
    got = cast(values.to(device), dtype).cpu()
    wanted = values.to(dtype)
    same = (got.view(torch.uint8) == wanted.view(torch.uint8)) | (
        got.float().isnan() & wanted.float().isnan()
    )
    assert same.all(), values[~same][:5]
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    back = cast(codes.to(device), torch.float32).cpu()
    assert torch.equal(back.nan_to_num(1e30), codes.float().nan_to_num(1e30))
    assert torch.equal(back.signbit()[back == 0], codes.float().signbit()[codes.float() == 0])


ADD = each("DATA(2)[i] = DATA(0)[i] + DATA(1)[i] * DATA(0)[i];")
COMPLEX = pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)


@pytest.fixture
def add(define: Define) -> ops.KernelOperator:
    return define(
        "add(Tensor x, Tensor y) -> Tensor", source=ADD, kind="device", dtypes={"T": "x"},
        outputs=ops.empty_like("x"), checks=[ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
    )  # fmt: skip


@DEVICES
@COMPLEX
def test_complex_numbers_are_computed_with(add: Any, dtype: torch.dtype, device: str) -> None:
    x = torch.randn(5, 4, dtype=dtype)
    a, b = x.to(device), x.flip(0).to(device)
    lazily = {
        "plain": (a, b), "conj": (a.conj(), b), "neg": (a, torch._neg_view(b)),
        "both": (torch._neg_view(a.conj()), b.conj()), "strided": (a.t(), b.t()),
        "of a part": (a.imag + 0j, b.conj()), "empty": (a[:0], b[:0]),
    }  # fmt: skip
    for name, (left, right) in lazily.items():
        left, right = left.to(dtype), right.to(dtype)
        wanted = left.cpu() + right.cpu() * left.cpu()
        for call in (add, add.overload):
            torch.testing.assert_close(call(left, right).cpu(), wanted, msg=name)


@DEVICES
@pytest.mark.parametrize("bits", [16, 32, 64])
def test_unsigned_numbers_wrap_as_c_has_them(add: Any, bits: int, device: str) -> None:
    dtype = getattr(torch, f"uint{bits}")
    numbers = [0, 1, 3, 2 ** (bits - 1), 2**bits - 1]
    x = torch.tensor(numbers, dtype=dtype).to(device)
    wanted = [(n + n * n) % 2**bits for n in numbers]
    for call in (add, add.overload):
        assert call(x, x).cpu().tolist() == wanted


@COMPLEX
def test_gradients_of_complex_operators_are_torchs(define: Define, dtype: torch.dtype) -> None:
    both = [ops.same_shape("grad", "y"), ops.same_dtype("grad", "y")]
    backward = define(
        "b(Tensor grad, Tensor y) -> Tensor", dtypes={"T": "y"}, outputs=ops.empty_like("grad"),
        source=each("DATA(2)[i] = DATA(0)[i] * ~DATA(1)[i];"), checks=both,
    )  # fmt: skip
    mul = define(
        "mul(Tensor x, Tensor y) -> Tensor", source=each("DATA(2)[i] = DATA(0)[i] * DATA(1)[i];"),
        dtypes={"T": "x"}, outputs=ops.empty_like("x"),
        checks=[ops.same_shape("x", "y"), ops.same_dtype("x", "y")],
    )  # fmt: skip
    mul.register_backward(backward.qualified_name, save=("y",), gradients=("x",))
    x, y = (torch.randn(3, dtype=dtype).requires_grad_() for _ in range(2))
    weight = torch.randn(3, dtype=dtype)
    (wanted,) = torch.autograd.grad((x * y * weight).real.sum(), x)
    for call in (mul, mul.overload):
        (got,) = torch.autograd.grad((call(x, y.detach()) * weight).real.sum(), x)
        torch.testing.assert_close(got, wanted)


@DEVICES
def test_outputs_are_filled_as_torch_fills_them(define: Define, device: str) -> None:
    op = define(
        "f(Tensor x, ScalarType t) -> (Tensor, Tensor)", kind="device",
        outputs=(ops.empty(3, dtype="t"), ops.empty_like("x", memory_format=torch.channels_last)),
    )  # fmt: skip
    x = torch.ones(1, 2, 2, 2, device=device)
    torch.use_deterministic_algorithms(True)
    try:
        for call in (op, op.overload):
            for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int32, torch.bool):
                plain, formatted = call(x, dtype)
                wanted = torch.empty(3, dtype=dtype)
                assert repr(plain.cpu()) == repr(wanted)
                assert formatted.isnan().all()
                assert plain._version == 0
        assert torch.empty(2, device=device).isnan().all()
        assert torch.empty_strided((2,), (1,), device=device).isnan().all()
        torch.utils.deterministic.fill_uninitialized_memory = False
        assert not torch.zeros(3, device=device).isnan().any()
        op(x, torch.float32)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
