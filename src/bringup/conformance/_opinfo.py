"""OpInfo on a device: torch's operator samples run there and on the CPU, forward and backward."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree

from bringup.conformance._float64_reference import second_opinion
from bringup.conformance._operators import UNINITIALISED
from bringup.conformance._samples import (
    TOLERANCES,
    Mover,
    describe_difference,
    described,
    difference,
    gradients,
    is_strided,
    outcome,
    tensors,
)

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

SAMPLES = 30  # of each operator
# Off the CPU torch accumulates in another dtype, on purpose: (rtol, atol) of results in 16 bits.
ACCUMULATES_OTHERWISE = {"nn.functional.linear_cross_entropy": (2e-2, 2e-3)}
DTYPES = ("float32", "bfloat16", "float16", "int64", "complex64")

# What differs off the CPU in torch itself: operator, number of the sample and phase; part of the
# words, and why.
WANTS_CPU = "torch.tensor_split takes indices that are a tensor only on cpu, on every device"
TORCHS_OWN = {
    ("tensor_split", sample, "forward"): ("indices_or_sections to be on cpu", WANTS_CPU)
    for sample in range(4)
}

# They draw, and most draws give the same answer, or the same but for signs.
DRAWN = {"pca_lowrank", "svd_lowrank"}
DRAWN |= {"nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d"}


class Watch:
    """Sees what runs on the device; this does nothing. `counts_calls` runs samples again."""

    counts_calls = False

    def run(self) -> AbstractContextManager[object]:
        """Entered around the run of a sample on the device that is compared; nothing that sees
        operators may be active then. torch drops the conjugation of views in operators that call
        others while a dispatch mode is active: its complex pinv is wrong there, on every device.
        """
        return nullcontext()

    def calls(self) -> AbstractContextManager[object]:
        """Count operators: in an operator sample's second run, the only one of a module."""
        return nullcontext()

    def results(self, got: object, expected: object) -> None:
        """Take results that agree: the device's and the CPU's."""


@dataclass(frozen=True)
class Failure:
    """A sample, by its number, that is not the CPU's, in "forward" or "backward", and why."""

    operator: str
    sample: int
    phase: str
    words: str

    @property
    def is_torchs_own(self) -> bool:
        """Return whether torch itself does otherwise off the CPU."""
        known = TORCHS_OWN.get((self.operator, self.sample, self.phase))
        return known is not None and known[0] in self.words


@functools.cache
def all_operators() -> Sequence[OpInfo]:
    """Return torch's list, whose import takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return tuple(op_db)


def operators(dtype: torch.dtype) -> list[OpInfo]:
    """Return those that take `dtype` on cpu, without the ones that are compiled for CUDA only."""
    return [
        op
        for op in all_operators()
        if dtype in op.supported_dtypes("cpu") and not op.name.startswith("jiterator")
    ]


def sweep(
    op: OpInfo,
    dtype: torch.dtype,
    counts: Counter[str],
    device: str,
    *,
    samples: int = SAMPLES,
    watch: Watch | None = None,
) -> Iterator[Failure]:
    """Yield the samples of one operator that fail, backward too in float32, and count them."""
    torch.manual_seed(0)
    backward = dtype is torch.float32 and op.supports_autograd
    backward = backward and dtype in op.supported_backward_dtypes("cpu")
    given = op.sample_inputs("cpu", dtype, requires_grad=backward)
    run = _Run(op, dtype, device, backward, counts, watch or Watch())
    for index, sample in enumerate(itertools.islice(given, samples)):
        arguments = (sample.input, sample.args, sample.kwargs)
        if not is_strided(arguments):
            counts["not strided"] += 1
            continue
        for phase, words in _sample(run, sample):
            yield Failure(op.full_name, index, phase, words)


@dataclass(frozen=True)
class _Run:
    """What the samples of one operator have in common."""

    op: OpInfo
    dtype: torch.dtype
    device: str
    backward: bool
    counts: Counter[str]
    watch: Watch


def _sample(run: _Run, sample: SampleInput) -> Iterator[tuple[str, str]]:
    op, counts, watch = run.op, run.counts, run.watch
    arguments = (sample.input, sample.args, sample.kwargs)
    move = Mover(run.device)
    there, failed = outcome(lambda: move(arguments))
    if failed is not None:
        yield "move", described(failed)
        return
    device = torch.device(run.device).type if move.moved else "cpu"
    copies, kept = Mover(run.device)(arguments), Mover("cpu")(arguments)
    repeatable = op.name not in UNINITIALISED | DRAWN and is_repeatable(op, arguments)
    expected, their_error = outcome(lambda: _call(op, arguments))
    if their_error is None and not is_strided(expected):
        counts["not strided"] += 1
        return
    with watch.run():
        got, our_error = outcome(lambda: _call(op, there))
    backward = run.backward and their_error is None
    _count_calls(run, copies, sample.output_process_fn_grad if backward else None)
    counts["samples"] += 1
    if op.name == "native_batch_norm" and their_error is None and our_error is None:
        # What is empty on the CPU, statistics in evaluation, is not in torch's other kernels.
        got = tuple(a if b.numel() else a[:0] for a, b in zip(got, expected, strict=True))
    tolerance = ACCUMULATES_OTHERWISE.get(op.name) if run.dtype.itemsize == 2 else None
    words = describe_difference(
        got, our_error, expected, their_error, repeatable, device, tolerance
    )
    if words and their_error is None and our_error is None:
        call = _Call(kept, lambda given: _call(op, given), _is_pointwise(op), tolerance)
        words = call.judged(words, got, expected, device)
    if not words and their_error is None and repeatable:
        words = _left_otherwise(there, arguments, device)
    if words:
        yield "forward", words
    elif repeatable:
        watch.results(got, expected)
    if words or not backward:
        return
    counts["backwards"] += 1
    process = sample.output_process_fn_grad
    theirs, their_error = outcome(lambda: gradients(arguments, process(expected)))
    with watch.run():
        ours, our_error = outcome(lambda: gradients(there, process(got)))
    words = describe_difference(ours, our_error, theirs, their_error, repeatable, device)
    if words and their_error is None and our_error is None:
        again = _Call(kept, lambda given: gradients(given, process(_call(op, given))))
        words = again.judged(words, ours, theirs, device)
    if words:
        yield "backward", words
    elif repeatable:
        watch.results(ours, theirs)


@dataclass(frozen=True)
class _Call:
    """What was computed, for a second opinion: `run` gives results of copies of `arguments`."""

    arguments: Any
    run: Callable[[Any], Any]
    pointwise: bool = False
    tolerance: tuple[float, float] | None = None

    def judged(self, words: str, got: Any, expected: Any, device: str) -> str:
        """Return how results differ, or "" where no value of the device's is to blame."""
        if difference(got, expected, values=False, device=device):
            return words
        pairs = zip(_pytree.tree_leaves(got), _pytree.tree_leaves(expected), strict=True)
        for number, (one, other) in enumerate(pairs):
            own = partial(difference, values=True, device=device, tolerance=self.tolerance)
            if own(one, other) and not self._opinion(number, one, other):
                return words
        return ""

    def _opinion(self, number: int, one: object, other: object) -> str:
        if not isinstance(other, Tensor):
            return ""
        rtol, atol = self.tolerance or TOLERANCES.get(other.dtype, (0.0, 0.0))
        return second_opinion(
            self._again,
            self.arguments,
            number,
            one,
            other,
            lambda exact: rtol * exact.abs() + atol,
            self.pointwise,
        )

    def _again(self, *arguments: Any) -> list[Any]:
        """Return the results for arguments in float64, of which the same ones want a gradient."""
        for given, kept in zip(tensors(arguments), tensors(self.arguments), strict=True):
            given.requires_grad_(kept.requires_grad)
        return list(_pytree.tree_leaves(self.run(arguments)))


def _is_pointwise(op: OpInfo) -> bool:
    """Return whether each element of the result is a function of few."""
    packet = getattr(torch.ops.aten, str(op.aten_name), None)
    forms = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.pointwise in form.tags for form in forms)


def _count_calls(run: _Run, arguments: tuple[Any, Any, Any], process: Any) -> None:
    """Run a sample again to count its operators, backward too; errors are the first run's."""
    if not run.watch.counts_calls:
        return
    with run.watch.calls():
        got, failed = outcome(lambda: _call(run.op, arguments))
        if failed is None and process is not None:
            outcome(lambda: gradients(arguments, process(got)))


def _left_otherwise(there: object, arguments: object, device: str) -> str:
    """Return how arguments differ after the call, for declared and undeclared writes."""
    words = difference(list(tensors(there)), list(tensors(arguments)), values=True, device=device)
    return f"the arguments after the call: {words}" if words else ""


def _call(op: OpInfo, arguments: tuple[Any, Any, Any]) -> Any:
    first, others, named = arguments
    return op(first, *others, **named)


def is_repeatable(op: OpInfo, arguments: tuple[Any, Any, Any]) -> bool:
    """Return whether the CPU answers alike for two seeds, without those that tests set."""
    results = []
    with mock.patch("torch.manual_seed"):
        for seed in (1, 2):
            torch.default_generator.manual_seed(seed)
            results.append(outcome(lambda: _call(op, Mover("cpu")(arguments)))[0])
    return not difference(*results, values=True, device="cpu")
