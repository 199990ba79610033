"""Rows: one call of an adopted operator on small tensors on cpu, against the overload in
`torch.ops` and against torch's own function, which parses its arguments in generated code.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks._harness import Row, compare
from bringup import ops

_NEW_TENSOR = "2 tensors -> new tensor"


def _against_overload(what: str, handle: ops.AdoptedOperator, rounds: int, *args, **options) -> Row:
    """The handle's call against the call of the overload that it adopted."""
    return compare(
        f"adopted call, {what}",
        partial(handle, *args, **options),
        partial(handle.overload, *args, **options),
        peer_name="torch.ops",
        budget=0.7 if what == _NEW_TENSOR else None,
        rounds=rounds,
    )


def run(*, quick: bool = False) -> list[Row]:
    """The rows; ratios to `torch.ops` and to `torch` on the same tensors."""
    rounds = 5 if quick else 61
    x, y, out = torch.randn(16), torch.randn(16), torch.empty(16)
    library = torch.library.Library("bringup_benchmark_adopted", "DEF")
    library.define("nothing(Tensor x, float by=2.0, *, int n=1) -> Tensor")
    library.impl("nothing", lambda x, by=2.0, *, n=1: x, "CPU")
    add, add_out = ops.adopt("aten::add.Tensor"), ops.adopt("aten::add.out")
    total = ops.adopt("aten::sum.dim_IntList")
    nothing = ops.adopt("bringup_benchmark_adopted::nothing")
    rows = [
        _against_overload(_NEW_TENSOR, add, rounds, x, y),
        compare(
            f"adopted call, {_NEW_TENSOR}",
            partial(add, x, y),
            partial(torch.add, x, y),
            peer_name="torch.add",
            rounds=rounds,
        ),
        _against_overload("out variant", add_out, rounds, x, y, out=out),
        _against_overload("a list and a bool", total, rounds, x, [0], True),
        _against_overload("a kernel in Python", nothing, rounds, x, 3.0, n=2),
    ]
    for handle in (add, add_out, total, nothing):
        handle.undefine()
    library._destroy()
    return rows
