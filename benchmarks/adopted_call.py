"""Rows: one call of an adopted operator on small tensors on cpu, against the overload in
`torch.ops` and against torch's own function, which parses its arguments in generated code.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks._harness import Row, compare
from bringup import ops


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
        compare(
            "adopted call, 2 tensors -> new tensor",
            partial(add, x, y),
            partial(add.overload, x, y),
            peer_name="torch.ops",
            budget=0.7,
            rounds=rounds,
        ),
        compare(
            "adopted call, 2 tensors -> new tensor",
            partial(add, x, y),
            partial(torch.add, x, y),
            peer_name="torch.add",
            rounds=rounds,
        ),
        compare(
            "adopted call, out variant",
            partial(add_out, x, y, out=out),
            partial(add_out.overload, x, y, out=out),
            peer_name="torch.ops",
            rounds=rounds,
        ),
        compare(
            "adopted call, a list and a bool",
            partial(total, x, [0], True),
            partial(total.overload, x, [0], True),
            peer_name="torch.ops",
            rounds=rounds,
        ),
        compare(
            "adopted call, a kernel in Python",
            partial(nothing, x, 3.0, n=2),
            partial(nothing.overload, x, 3.0, n=2),
            peer_name="torch.ops",
            rounds=rounds,
        ),
    ]
    for handle in (add, add_out, total, nothing):
        handle.undefine()
    library._destroy()
    return rows
