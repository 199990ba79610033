"""A sample of torch's operator tests, float32: forward and backward on the device and on cpu."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

SAMPLES = 4  # of each operator
STEP = 9  # every ninth operator of those that can be compared
# Not comparable: uninitialised or random results, sparse results, results on cpu by contract, and
# one whose samples do not survive .to() (they are views of a larger storage).
LEFT_OUT = ("empty", "rand", "normal", "dropout", "bernoulli", "sparse", "uniform", "multinomial")
LEFT_OUT_EXACTLY = {"to", "as_strided", "tensor_split", "cauchy", "exponential", "geometric"}
# With dropout, for which the device has numbers of its own (tests/sweeps/test_random_numbers.py).
LEFT_OUT_EXACTLY |= {
    "nn.functional.multi_head_attention_forward",
    "nn.functional.scaled_dot_product_attention",
}


def comparable(op: OpInfo) -> bool:
    return (
        torch.float32 in op.supported_dtypes("cpu")
        and not op.name.startswith("jiterator")
        and not any(part in op.name for part in LEFT_OUT)
        and op.name not in LEFT_OUT_EXACTLY
    )


OPS = [op for op in op_db if comparable(op)][::STEP]


def tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def moved(sample: SampleInput) -> SampleInput:
    def move(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value.detach().to("npu").requires_grad_(value.requires_grad)
        return torch.device("npu") if isinstance(value, torch.device) else value

    there = sample.transform(move)
    if "device" in there.kwargs:
        there.kwargs["device"] = "npu"
    return there


def gradients(sample: SampleInput, result: object) -> list[torch.Tensor | None]:
    leaves = [t for t in tensors([sample.input, sample.args, sample.kwargs]) if t.requires_grad]
    outputs = [t for t in tensors(sample.output_process_fn_grad(result)) if t.requires_grad]
    if not leaves or not outputs:
        return []
    total = sum((t.abs() if t.is_complex() else t).sum() for t in outputs)
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


@pytest.mark.filterwarnings("ignore::UserWarning")  # deprecations of what is tested
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.full_name)
def test_operator_equals_cpu(op: OpInfo) -> None:
    torch.manual_seed(0)
    differentiable = op.supports_autograd and torch.float32 in op.supported_backward_dtypes("cpu")
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=differentiable)
    for sample in itertools.islice(samples, SAMPLES):
        there = moved(sample)
        expected = op(sample.input, *sample.args, **sample.kwargs)
        got = op(there.input, *there.args, **there.kwargs)
        for ours, theirs in zip(tensors(got), tensors(expected), strict=True):
            assert ours.device.type == "npu"
            torch.testing.assert_close(
                ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-4, equal_nan=True
            )
        if not differentiable:
            continue
        pairs = zip(gradients(there, got), gradients(sample, expected), strict=True)
        for ours, theirs in pairs:
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-3, atol=1e-3, equal_nan=True)
