"""`example::rms_norm(Tensor x, Tensor weight, float eps=1e-6)`: x / rms(x) * weight, row by row."""

from __future__ import annotations

from pathlib import Path

import torch

from bringup import jit, ops

__all__ = ["rms_norm", "rms_norm_backward"]

_HERE = Path(__file__).parent

if (_HERE / "kernels.bundle").is_file():  # compiled beforehand: no compiler is needed then
    jit.use_bundle(_HERE / "kernels.bundle")

rms_norm = ops.kernel_op(
    "example::rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor",
    source=_HERE / "rms_norm.cpp",
    outputs=ops.empty_like("x"),
    checks=[
        ops.same_dtype("x", "weight"),
        ops.shape("weight", "x.shape[-1]"),
        ops.dtype("x", torch.float32, torch.float64),
    ],
    dtypes={"T": "x"},
)
rms_norm_backward = ops.kernel_op(
    "example::rms_norm_backward(Tensor grad, Tensor x, Tensor weight, float eps=1e-6)"
    " -> (Tensor, Tensor)",
    source=_HERE / "rms_norm_backward.cpp",
    outputs=(ops.empty_like("x"), ops.empty_like("weight")),
    checks=[
        ops.same_shape("grad", "x"),
        ops.same_dtype("grad", "x", "weight"),
        ops.shape("weight", "x.shape[-1]"),
        ops.dtype("x", torch.float32, torch.float64),
    ],
    dtypes={"T": "x"},
)
rms_norm.register_backward("example::rms_norm_backward", save=("x", "weight"))
