"""OpInfo compiled: torch.compile's default backend on the device gives what eager operators of the
cpu give, and nine of ten nodes of its graphs are generated code.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from tests.sweeps.compiled_operators import DTYPES, comparable, counted_nodes, failures, part_of
from tests.sweeps.support import PARTS, part, sized

from bringup import devices

_STATISTICS = (
    # torch's decomposition keeps them in float32
    r"\(torch\.float32, (\([\d, ]+\)), False\), expected \(torch\.b?float16, \1, False\)"
)
EXPECTED = {
    "native_batch_norm": _STATISTICS,
    # of one element: the difference of equal numbers, on every device
    "native_layer_norm": rf"{_STATISTICS}|sample 10, .*backward: .*difference: 0\.000\d* ",
    "_native_batch_norm_legit": _STATISTICS,
    "_batch_norm_with_update": _STATISTICS,
    # on every device: into a copy with gaps, and the result is a copy without
    "as_strided_scatter": "noncontiguous, forward: .*not (close|equal)",
    "grid_sampler_2d": "up to 0.0",  # places in half precision, which eager operators round
    # of complex numbers, and with every backend of AOTAutograd
    "linalg.pinv": "forward: Tensor-likes are not close",
    "pinverse": "forward: Tensor-likes are not close",
    # torch's decomposition for shapes that are not known, on every device
    "nn.functional.conv2d": "dynamic, backward: .*ValueRangeError",
    # torch's fake of complex numbers in channels_last has other strides
    "nn.functional.pad.replicate_negative": "channels_last, .*backward: .*replication_pad2d_back",
    # torch's lowerings of a symbol for a number, and its fake of weights, on every device
    "_unsafe_masked_index": "dynamic, forward: .*argument of type",
    "constant_pad_nd": "dynamic, forward: .*Cannot convert (symbols|expression) to",
    "cov": "dynamic, forward: TorchRuntimeError",
    # AOTAutograd's view of an argument is as_strided, which averages gradients of equal places
    "reshape": "expanded, dynamic, backward: Tensor-likes are not close",
    # a number for a list of numbers, on every device
    "max_pool2d_with_indices_backward": "dynamic, forward: TorchRuntimeError",
    "view_copy": "expanded, .*Cannot view a tensor",  # on every device
    "tensor_split": "method tensor_split",  # torch takes indices on the CPU only, on every device
}
"""Operators that differ, and a pattern of the words."""
COMPLEX = r"to view Float as ComplexFloat|Error in op: torch\.ops\.aten\.linalg_solve_triangular"
"""What torch says on every device: its sum of complex numbers takes their bits for real ones, and
its fake of a solver has other strides.
"""


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.mark.slow
@pytest.mark.parametrize("first", part(range(PARTS)))
def test_compiled_operators_give_the_cpus_results_and_are_generated(
    first: int, sweep_counts: Counter[str]
) -> None:
    found: list[str] = []
    with comparable(), counted_nodes("npu") as nodes:
        for number, dtype in enumerate(DTYPES[: sized(5, 7)]):
            for place, op in enumerate(part_of(dtype, first, PARTS), number):
                kind, form = getattr(torch, dtype), sized(0, place)
                words = failures(op, kind, "npu", sized(1, 2), form, sweep_counts, form)
                known = EXPECTED.get(op.full_name) or (COMPLEX if kind.is_complex else None)
                told = [one for one in words if known is None or not re.search(known, one)]
                found += [f"{dtype} {op.full_name} {one}" for one in told]
    sweep_counts["generated nodes"] += nodes["generated"]
    sweep_counts["nodes"] += nodes.total()
    assert found == []
    assert nodes.share() >= 0.9, nodes.most_common(20)
