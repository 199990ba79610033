"""Kernels of each kind against the CPU, over torch's own samples of their operators: values,
dtypes, strides, gradients. The oracle is torch on cpu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.ops.operators import kernels
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

from bringup import devices

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ALL = ("floating", "integral", "bool")
F32, I64 = torch.float32, torch.int64

# operator, text, options, name of torch's samples, variant, dtypes
CASES = [
    ("aten::gelu", kernels.GELU, {}, "nn.functional.gelu", "", FLOATS),
    ("aten::gelu_backward", kernels.GELU_BACKWARD, {}, "nn.functional.gelu", "", FLOATS[:2]),
    ("aten::relu", kernels.RELU, {"supports": ALL}, "nn.functional.relu", "",
     (*FLOATS, torch.int32)),
    ("aten::add", kernels.ADD, {"supports": ALL[:2]}, "add", "", (*FLOATS, I64, torch.uint8)),
    ("aten::mul", kernels.MUL, {"supports": ALL}, "mul", "", (*FLOATS, I64, torch.bool)),
    ("aten::clamp", kernels.CLAMP, {"supports": ALL[:2]}, "clamp", "", (F32, torch.int16)),
    ("aten::where", kernels.WHERE, {"supports": ALL}, "where", "", (F32, I64)),
    ("aten::lt", kernels.LT, {"supports": ALL}, "lt", "", (F32, I64, torch.bool)),
    ("aten::sqrt", kernels.SQRT, {"entry": "root"}, "sqrt", "", (F32, I64)),
    ("aten::sum", kernels.SUM, {"kind": "reduction"}, "sum", "", FLOATS[:3]),
    ("aten::max.dim", kernels.MAX_DIM, {"kind": "reduction", "entry": "largest"}, "max",
     "reduction_with_dim", FLOATS[:2]),
    ("aten::argmax", kernels.ARGMAX, {"kind": "reduction"}, "argmax", "", FLOATS[:3]),
    ("aten::native_layer_norm", kernels.LAYER_NORM, {"kind": "raw"}, "nn.functional.layer_norm",
     "", FLOATS[:2]),
]  # fmt: skip
CALLS = [
    pytest.param(*case[:5], dtype, id=f"{case[0]}-{dtype}") for case in CASES for dtype in case[5]
]


def to_npu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="npu")
    if value.numel():
        moved.copy_(value.detach())
    return moved.requires_grad_(value.requires_grad)


def tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map(lambda v: found.append(v) if isinstance(v, torch.Tensor) else None, value)
    return found


def assert_close(have: torch.Tensor, want: torch.Tensor) -> None:
    """In half precision to two units in the last place: the CPU rounds `alpha` to it, the kit as
    CUDA does not.
    """
    coarse = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(want.dtype)
    options = {} if coarse is None else {"rtol": coarse, "atol": coarse}
    torch.testing.assert_close(have.cpu(), want, equal_nan=True, **options)


@pytest.mark.parametrize(("operator", "text", "options", "samples", "variant", "dtype"), CALLS)
def test_a_kernel_gives_what_cpu_gives(
    declare: Callable[..., devices.OperatorKernel],
    operator: str,
    text: str,
    options: dict[str, Any],
    samples: str,
    variant: str,
    dtype: torch.dtype,
) -> None:
    declared = declare(operator, text, **options)
    info = next(o for o in op_db if o.name == samples and o.variant_test_name == variant)
    grad = dtype.is_floating_point and info.supports_autograd
    for sample in info.sample_inputs("cpu", dtype, requires_grad=grad):
        given = (sample.input, sample.args, sample.kwargs)
        expected = info.op(sample.input, *sample.args, **sample.kwargs)
        moved = tree_map(to_npu, given)
        got = info.op(moved[0], *moved[1], **moved[2])
        for want, have in zip(tensors(expected), tensors(got), strict=True):
            assert_close(have, want)
            assert have.stride() == want.stride()
        if grad:
            compare_gradients(given, moved, tensors(expected)[0], tensors(got)[0])
    native = {row.operator for row in devices.fallback_report().native}
    assert native & set(declared.operators)


def compare_gradients(given: Any, moved: Any, expected: torch.Tensor, got: torch.Tensor) -> None:
    """Of the one result that has some."""
    leaves = [[t for t in tensors(v) if t.requires_grad] for v in (given, moved)]
    if not expected.requires_grad or not leaves[0]:
        return
    seed = torch.ones_like(expected)
    wanted = torch.autograd.grad(expected, leaves[0], seed, allow_unused=True)
    found = torch.autograd.grad(got, leaves[1], to_npu(seed), allow_unused=True)
    for want, have in zip(wanted, found, strict=True):
        assert (want is None) == (have is None)
        if want is not None and have is not None:
            assert_close(have, want)
