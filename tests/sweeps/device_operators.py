"""OpInfo on the device: every sample runs there and on the CPU, forward and backward."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from bringup.conformance._samples import (
    Mover,
    described,
    difference,
    gradients,
    is_strided,
    outcome,
    told,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

__all__ = ["SAMPLES", "Failure", "operators", "sweep"]

SAMPLES = 30  # of each operator
# Off the CPU torch accumulates in another dtype, on purpose: (rtol, atol) of results in 16 bits.
ACCUMULATES_OTHERWISE = {"nn.functional.linear_cross_entropy": (2e-2, 2e-3)}
DTYPES = ("float32", "bfloat16", "float16", "int64", "complex64")

# Nobody wrote what they return.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
UNINITIALISED |= {"new_empty_strided", "resize_", "resize_as_"}
# They draw, and most draws give the same answer, or the same but for signs.
DRAWN = {"pca_lowrank", "svd_lowrank"}
DRAWN |= {"nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"}


@dataclass(frozen=True)
class Failure:
    """A sample that is not the CPU's.

    Attributes:
        operator: with its variant.
        sample: the number of the sample.
        phase: "forward" or "backward".
        told: what differs.
    """

    operator: str
    sample: int
    phase: str
    told: str


def operators(dtype: torch.dtype) -> list[OpInfo]:
    """Those that take `dtype` on cpu, without the ones that are compiled for CUDA only."""
    return [
        op
        for op in op_db
        if dtype in op.supported_dtypes("cpu") and not op.name.startswith("jiterator")
    ]


def sweep(op: OpInfo, dtype: torch.dtype, counts: Counter[str]) -> Iterator[Failure]:
    """The samples of one operator that fail, and how many passed.

    Args:
        op: the operator.
        dtype: of its samples; only float32 has a backward here.
        counts: gets "samples", "backwards" and "not strided".
    """
    torch.manual_seed(0)
    backward = dtype is torch.float32 and op.supports_autograd
    backward = backward and dtype in op.supported_backward_dtypes("cpu")
    samples = op.sample_inputs("cpu", dtype, requires_grad=backward)
    for index, sample in enumerate(itertools.islice(samples, SAMPLES)):
        arguments = (sample.input, sample.args, sample.kwargs)
        if not is_strided(arguments):
            counts["not strided"] += 1
            continue
        for phase, words in _sample(op, sample, dtype, backward, counts):
            yield Failure(op.full_name, index, phase, words)


def _sample(
    op: OpInfo, sample: SampleInput, dtype: torch.dtype, backward: bool, counts: Counter[str]
) -> Iterator[tuple[str, str]]:
    arguments = (sample.input, sample.args, sample.kwargs)
    move = Mover("npu")
    there, failed = outcome(lambda: move(arguments))
    if failed is not None:
        yield "move", described(failed)
        return
    device = "npu" if move.moved else "cpu"
    repeatable = op.name not in UNINITIALISED | DRAWN and _is_repeatable(op, arguments)
    expected, their_error = outcome(lambda: _call(op, arguments))
    if their_error is None and not is_strided(expected):
        counts["not strided"] += 1
        return
    got, our_error = outcome(lambda: _call(op, there))
    counts["samples"] += 1
    tolerance = ACCUMULATES_OTHERWISE.get(op.name) if dtype.itemsize == 2 else None
    words = told(got, our_error, expected, their_error, repeatable, device, tolerance)
    if words:
        yield "forward", words
    if words or not backward or their_error is not None:
        return
    counts["backwards"] += 1
    process = sample.output_process_fn_grad
    theirs, their_error = outcome(lambda: gradients(arguments, process(expected)))
    ours, our_error = outcome(lambda: gradients(there, process(got)))
    words = told(ours, our_error, theirs, their_error, repeatable, device)
    if words:
        yield "backward", words


def _call(op: OpInfo, arguments: tuple[Any, Any, Any]) -> Any:
    first, others, named = arguments
    return op(first, *others, **named)


def _is_repeatable(op: OpInfo, arguments: tuple[Any, Any, Any]) -> bool:
    """Whether the CPU answers alike for two seeds, on copies; random operators do not. The seed
    that some of torch's operators under test set themselves counts for nothing meanwhile.
    """
    results = []
    with mock.patch("torch.manual_seed"):
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)
            results.append(outcome(lambda: _call(op, Mover("cpu")(arguments)))[0])
    return not difference(*results, values=True, device="cpu")


def main() -> None:
    """Runs a part of the sweep, in a process whose environment chooses the device's mode: prints
    counts, operators and failures as JSON.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    chosen = parser.parse_args()
    from bringup import devices

    info = devices.load_driver("sim")
    dtype = getattr(torch, chosen.dtype)
    counts: Counter[str] = Counter()
    failures: list[Failure] = []
    ops = operators(dtype)[chosen.first % chosen.step :: chosen.step]
    for op in ops:
        failures += sweep(op, dtype, counts)
    report = {
        "host_visible": info.host_visible,
        "counts": counts,
        "operators": [op.full_name for op in ops],
        "failures": [vars(failure) for failure in failures],
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
