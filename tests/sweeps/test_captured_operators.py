"""Every operator that torch has samples for is captured: a replay on new inputs gives, bit for bit,
what eager gives, or the capture is refused for a reason that is true of this call.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.sweeps.support import FULL, sized
from torch import Tensor
from torch.testing._internal import common_methods_invocations as torch_samples
from torch.utils import _pytree

from bringup import graphs
from bringup.errors import CaptureError

PARTS = 4
SAMPLES = sized(1, 8)
"""How many of an operator's samples are captured."""
LEVEL = 2 if FULL else 1
"""Of replays: functions are compiled in `make sweep`."""

READS_VALUES = re.compile(r" reads the value of a tensor | whose shape depends on data")
VALUES_ARE_READ = {
    "allclose", "argwhere", "bincount", "combinations", "corrcoef", "cov", "equal", "histogram",
    "histogramdd", "item", "linalg.cond", "linalg.lstsq", "masked_select", "nanquantile", "narrow",
    "nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss", "nn.functional.one_hot", "nonzero",
    "nonzero_static", "quantile", "repeat_interleave", "tensor_split", "unique",
    "unique_consecutive",
}  # fmt: skip
"""Operators that look at values on the host, or whose result's shape depends on them."""


class Call:
    """One sample: the operator on tensors that stay at their addresses."""

    def __init__(self, op: Any, sample: Any) -> None:
        self._op = op
        leaves, self._spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self._leaves = [_own(leaf) for leaf in leaves]
        self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        self._contents = [_own(tensor) for tensor in self.tensors]

    def __call__(self) -> list[Any]:
        first, args, kwargs = _pytree.tree_unflatten(self._leaves, self._spec)
        return _pytree.tree_leaves(self._op(first, *args, **kwargs))

    def seeded(self) -> list[Any]:
        """Copies of the results, with the random numbers that every seeded call draws."""
        torch.manual_seed(0)
        return [_own(result) for result in self()]

    def change_inputs(self) -> None:
        """The same numbers in another order: they stay in the operator's domain, and symmetric
        matrices symmetric.
        """
        for tensor in self.tensors:
            if tensor.layout == torch.strided:
                tensor.copy_(tensor.clone().flip(tuple(range(tensor.dim()))))
        self._contents = [_own(tensor) for tensor in self.tensors]

    def put_inputs_back(self) -> None:
        """Their content of before the calls."""
        for tensor, content in zip(self.tensors, self._contents, strict=True):
            tensor.copy_(content)

    def is_input(self, result: Any) -> bool:
        """Whether a result has an input's memory, or none."""
        if not isinstance(result, Tensor) or result.layout != torch.strided:
            return False
        strided = [t for t in self.tensors if t.layout == torch.strided]
        storages = [t.untyped_storage().data_ptr() for t in strided]
        return result.numel() == 0 or result.untyped_storage().data_ptr() in storages


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def samples(op: Any) -> Iterator[Any]:
    """Those of float32 on cpu, without gradients."""
    if torch.float32 not in op.supported_dtypes("cpu"):
        return
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float32)):
        if number == SAMPLES:
            return
        yield sample


@pytest.mark.parametrize("part", range(PARTS))
def test_replay_equals_eager_or_the_capture_says_why_not(
    part: int, sweep_counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It seeds the generator inside the operator: this is done here, outside the capture.
    monkeypatch.setattr(torch_samples, "wrapper_set_seed", lambda op, *a, **k: op(*a, **k))
    wrong: list[str] = []
    for op in torch_samples.op_db[part::PARTS]:
        sweep_counts["operators"] += 1
        for number, sample in enumerate(samples(op)):
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                found = _check(op.name, Call(op.op, sample), sweep_counts)
            if found:
                wrong.append(f"{op.name}.{op.variant_test_name} {number}: {found[:600]}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def _check(name: str, call: Call, counts: Counter[str]) -> str:
    """What is wrong with a capture of this call, or ""."""
    first, failure = outcome(call.seeded)
    if failure is not None:  # the sample itself does not work here
        counts["samples that eager refuses"] += 1
        return ""
    call.put_inputs_back()
    graph = graphs.CapturedGraph(optimize=LEVEL)
    torch.manual_seed(0)
    try:
        with graphs.capture(graph):
            results = call()
        assert graph.wait_for_functions()
    except CaptureError as error:
        return _untrue_reason(name, str(error), counts)
    fresh = [index for index, result in enumerate(results) if not call.is_input(result)]
    if found := difference([results[i] for i in fresh], [first[i] for i in fresh]):
        return f"the captured run differs from eager: {found}"
    call.change_inputs()
    expected, failure = outcome(call.seeded)
    after = [_own(tensor) for tensor in call.tensors]
    call.put_inputs_back()
    torch.manual_seed(0)
    _, replay_failure = outcome(graph.replay)
    if (failure is None) != (replay_failure is None):
        return f"eager on the new inputs: {failure}; the replay: {replay_failure}"
    if failure is not None:
        counts["replays that fail as eager does"] += 1
        return ""
    counts["replays"] += 1
    counts["nodes in compiled functions"] += sum(node.level == 2 for node in graph.levels())
    return difference(results, expected) or difference(call.tensors, after)


def outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return [], error


def _untrue_reason(name: str, text: str, counts: Counter[str]) -> str:
    reasons = {
        "values on the host": bool(READS_VALUES.search(text)) and name in VALUES_ARE_READ,
        "a sparse layout": " a tensor of layout Sparse" in text and "sparse" in name,
        "undefined results": "no captured operator writes this result" in text and "empty" in name,
    }
    for reason, true in reasons.items():
        if true:
            counts[f"refused for {reason}"] += 1
            return ""
    return f"refused: {text}"


def difference(got: list[Any], expected: list[Any]) -> str:
    for ours, theirs in zip(got, expected, strict=True):
        if not isinstance(theirs, Tensor):
            if ours is not theirs and ours != theirs:
                return f"{ours!r} for {theirs!r}"
        elif not _same(ours, theirs):
            return f"{ours} for {theirs}"
    return ""


def _same(ours: Tensor, theirs: Tensor) -> bool:
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    return torch.equal(_bits(ours), _bits(theirs))


def _bits(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    dense = (
        tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    )
    return dense.view(torch.uint8) if dense.numel() else dense
