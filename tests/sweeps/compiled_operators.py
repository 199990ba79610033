"""Samples of torch's own operator tests, compiled for a device and compared with eager operators of
the cpu; and which of the graphs' nodes were generated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import config, ir
from torch._inductor.graph import GraphLowering

from bringup._differences import not_close
from bringup.conformance._operators import UNINITIALISED
from bringup.conformance._opinfo import DRAWN, is_repeatable, operators
from bringup.conformance._samples import Mover, described, gradients, is_strided, outcome, tensors

DTYPES = ("float32", "float16", "bfloat16", "int64", "bool", "float64", "complex64")
FORMS = ("as given", "noncontiguous", "channels_last", "expanded")
"""How tensors of a sample lie in memory."""

# Generated code computes with half precision as float and rounds at the end; eager operators round
# what they hand on.
TOLERANCES = {
    torch.float32: (1e-5, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1e-5, 1e-5),
    torch.float16: (5e-3, 5e-3),
    torch.bfloat16: (4e-2, 4e-2),
}

# Products, convolutions, sorts and scans are no part of what is generated; views compute nothing.
_OTHERS = (
    "mm addmm bmm baddbmm mv addmv dot vdot addbmm sort topk kthvalue median mode cumsum cumprod "
    "logcumsumexp cummax cummin"
)


class Nodes(Counter[str]):
    """Counts what has tensors of a device and none of complex numbers: under "generated", and under
    the names of what is not.
    """

    def share(self) -> float:
        """Return which part is generated."""
        return self["generated"] / max(1, self.total())


@contextmanager
def counted_nodes(device: str) -> Iterator[Nodes]:
    """Count the nodes that Inductor lowers meanwhile."""
    nodes, run = Nodes(), GraphLowering.run_node

    def run_node(graph: Any, node: Any) -> Any:
        before = len(graph.operations)
        found = run(graph, node)
        if _computes_on(node, device):
            name = node.target._schema.name.split("::")[1]
            kernels = [one for one in graph.operations[before:] if _is_eager(one)]
            nodes[name if kernels else "generated"] += 1
        return found

    with mock.patch.object(GraphLowering, "run_node", run_node):
        yield nodes


def _computes_on(node: Any, device: str) -> bool:
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = node.target._schema.name.split("::")[1]
    if (
        name in _OTHERS.split()
        or node.target.is_view
        or "attention" in name
        or "convolution" in name
    ):
        return False
    found = [*tensors(node.meta.get("val"))]
    given = [*found, *tensors([one.meta.get("val") for one in node.all_input_nodes])]
    return any(one.device.type == device for one in found) and not any(map(torch.is_complex, given))


def _is_eager(operation: Any) -> bool:
    return isinstance(operation, ir.ExternKernel) and not isinstance(
        operation, (ir.MultiOutput, ir.DeviceCopy)
    )


def failures(
    op: Any,
    dtype: torch.dtype,
    device: str,
    samples: int,
    form: int,
    counts: Counter[str],
    turn: int,
) -> Iterator[str]:
    """Yield how the samples of an operator differ when they are compiled, in words.

    Args:
        op: an OpInfo.
        dtype: of the samples; float32 and complex64 are compared backward, too.
        device: for which they are compiled.
        samples: how many, from all of the operator's.
        form: the place among `FORMS` of the first one's; the others have those that follow.
        counts: gets "samples", "backwards" and "dynamic".
        turn: where odd, the first sample is compiled for all shapes, and then every other one.
    """
    backward = dtype in (torch.float32, torch.complex64) and op.supports_autograd
    backward = backward and dtype in op.supported_backward_dtypes("cpu")
    torch.manual_seed(0)
    given = list(op.sample_inputs("cpu", dtype, requires_grad=backward))
    apart = max(1, len(given) // samples)
    chosen = list(enumerate(given))[: apart * samples : apart]
    for number, (index, sample) in enumerate(chosen, form):
        name = FORMS[number % len(FORMS)]
        if is_strided((sample.input, sample.args, sample.kwargs)):
            dynamic = (number - form + turn) % 2 == 1
            counts["dynamic"] += dynamic
            for words in _sample(op, _formed(sample, name), device, backward, counts, dynamic):
                yield f"sample {index}, {name}, {'dynamic, ' * dynamic}{words}"


def _formed(sample: Any, form: str) -> Any:
    if form == "noncontiguous":
        return sample.noncontiguous()

    def formed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.numel():
            return value
        made = value
        if form == "channels_last" and value.dim() in (4, 5):
            last = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
            made = value.contiguous(memory_format=last)
        # equal indices would be written in any order
        floating = value.is_floating_point() or value.is_complex()
        if form == "expanded" and value.dim() and floating:
            made = value[:1].expand_as(value)
        return made.detach().requires_grad_(value.requires_grad)

    return sample if form == "as given" else sample.transform(formed)


def _sample(
    op: Any, sample: Any, device: str, backward: bool, counts: Counter[str], dynamic: bool
) -> Iterator[str]:
    arguments = (sample.input, sample.args, sample.kwargs)
    move = Mover(device)
    there = move(arguments)
    repeats = op.name not in UNINITIALISED | DRAWN and is_repeatable(op, arguments)
    expected, their_error = outcome(lambda: _call(op.op, arguments))
    if their_error is not None or not is_strided(expected) or not move.moved:
        return
    torch._dynamo.reset()
    got, our_error = outcome(lambda: _compiled(op.op, there, dynamic))
    counts["samples"] += 1
    if words := _difference(got, our_error, expected, repeats):
        yield f"forward: {words}"
        return
    if repeats and (words := _difference(there, None, arguments, True)):
        yield f"arguments after the call: {words}"
    if not backward:
        return
    counts["backwards"] += 1
    process = sample.output_process_fn_grad
    theirs, their_error = outcome(lambda: gradients(arguments, process(expected)))
    if their_error is None:
        ours, our_error = outcome(lambda: _synchronized(gradients(there, process(got))))
        if words := _difference(ours, our_error, theirs, repeats):
            yield f"backward: {words}"


def _call(function: Any, arguments: tuple[Any, Any, Any]) -> Any:
    first, others, named = arguments
    return function(first, *others, **named)


def _compiled(function: Any, arguments: tuple[Any, Any, Any], dynamic: bool) -> Any:
    compiled = torch.compile(lambda *given: _call(function, given), dynamic=dynamic)
    return _synchronized(compiled(*arguments))


def _synchronized(results: Any) -> Any:
    """Return results, once what failed at work on them was raised."""
    torch.accelerator.synchronize()
    return results


def _difference(got: Any, error: Exception | None, expected: Any, values: bool) -> str:
    """Return how results differ in what compiled code promises: strides are Inductor's."""
    if error is not None:
        return described(error)
    ours, theirs = list(tensors(got)), list(tensors(expected))
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors, expected {len(theirs)}"
    for one, other in zip(ours, theirs, strict=True):
        forms = [(t.dtype, tuple(t.shape), t.requires_grad) for t in (one, other)]
        if forms[0] != forms[1]:
            return f"{forms[0]}, expected {forms[1]}"
        rtol, atol = TOLERANCES.get(one.dtype, (0.0, 0.0))
        words = not_close(one.detach().cpu(), other.detach(), rtol=rtol, atol=atol)
        if values and words:
            return words
    return ""


@contextmanager
def comparable() -> Iterator[None]:
    """Compile anew, draw as eager operators do, and seed no generator behind Dynamo's back."""

    def freeze_nothing() -> AbstractContextManager[None]:
        return nullcontext()

    with ExitStack() as stack:
        stack.enter_context(config.patch(fx_graph_cache=False, fallback_random=True))
        stack.enter_context(functorch_config.patch(enable_autograd_cache=False))
        stack.enter_context(mock.patch("torch.testing._utils.freeze_rng_state", freeze_nothing))
        counters.clear()
        yield


def part_of(dtype: str, first: int, step: int) -> list[Any]:
    """Return every `step`-th operator of a dtype."""
    return operators(getattr(torch, dtype))[first % step :: step]
