"""Arguments of a launch against what a kernel of `ascendc_load` declares."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from bringup import ops
from bringup.errors import ContractError


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (lambda x: [x], "kernel 'typed' takes 5 arguments, got 1"),
        (
            lambda x: [x, 1, 0.5, ctypes.c_float(1), PAIR],
            r"argument 2 is a float of 8 bytes .*, the kernel takes a float of 4 bytes; ops.f32",
        ),
        (
            lambda x: [x, 2**32, ops.f32(0), ops.f32(1), PAIR],
            r"argument 1 is an integer of 8 bytes .*takes an integer of 4 bytes; ops.u32\(x\)",
        ),
        (lambda x: [x, -(2**31) - 1, ops.f32(0), ops.f32(1), PAIR], "argument 1 is an integer"),
        (lambda x: [x, ops.i64(1), ops.f32(0), ops.f32(1), PAIR], "argument 1 is an integer of 8"),
        (lambda x: [x, 1, 1, ops.f32(1), PAIR], "argument 2 is an integer .* takes a float of 4"),
        (lambda x: [1.5, 1, ops.f32(0), ops.f32(1), PAIR], "argument 0 is a float .* an address"),
        (lambda x: [x, x, ops.f32(0), ops.f32(1), PAIR], "argument 1 is an address of 8 bytes"),
        (lambda x: [x, 1, ops.f32(0), ops.f32(1), 3], "argument 4 .* takes a struct of 8 bytes$"),
    ],
)
def test_arguments_that_do_not_fit_the_declaration_are_refused(
    typed: ops.KernelLauncher, args: Any, words: str
) -> None:
    """Instead of a kernel that reads a register which nobody set."""
    with pytest.raises(ContractError, match=words):
        typed.launch("typed", block_dim=1, args=args(torch.zeros(8)))


@pytest.mark.parametrize("number", [7, -7, 2**31, ops.i32(-7), ops.u32(7)])
def test_arguments_that_fit_the_declaration_arrive(typed: ops.KernelLauncher, number: Any) -> None:
    x = torch.zeros(5)
    args = [ops.tensor_ptr(x), number, ops.f32(0.5), ops.f32(1.5), PAIR]
    typed.launch("typed", block_dim=1, args=args)
    value = float(getattr(number, "value", number) % 2**32)
    assert torch.equal(x, torch.tensor([value, 0.5, 1.5, 3.0, 4.0]))


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> ops.KernelLauncher:
    path = tmp_path_factory.mktemp("typed") / "typed.cpp"
    path.write_text("""
        #include "kernel_operator.h"
        struct Pair { int32_t a; float b; };
        extern "C" __global__ __aicore__ void typed(__gm__ float* x, uint32_t a, float b, float c,
                                                    Pair pair) {
          x[0] = a; x[1] = b; x[2] = c; x[3] = pair.a; x[4] = pair.b;
        }
    """)
    return ops.ascendc_load("typed", path)


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_float))


PAIR = Pair(3, 4.0)
