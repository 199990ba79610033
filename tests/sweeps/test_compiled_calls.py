"""What an operator gives in a compiled function is what it gives in eager, for every schema type:
where torch cannot compile a value, it cannot for a plain `torch.library` registration either.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tests.sweeps.call_registrations import Call, outcome, registered
from tests.sweeps.call_types import KINDS, Kind
from tests.sweeps.support import FULL
from tests.sweeps.test_calls import fake_note, forms, kernel_of, noting

from bringup.ops.schema.defaults import default_of

_SLICE = ("int?", "int[2]", "str")


def compiled(call: Call, args: tuple[Any, ...]) -> Any:
    """What a function that makes the call gives once it is compiled."""
    torch._dynamo.reset()
    return outcome(
        torch.compile(lambda *given: call(*given), backend="aot_eager", fullgraph=True), args, {}
    )


def form_of(kind: Kind) -> str:
    """A declaration with a default where the type has one, not keyword-only."""
    return forms(kind)[-2]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if FULL or kind.type in _SLICE], ids=lambda kind: kind.type
)
def test_a_compiled_call_is_the_eager_one(kind: Kind, sweep_counts: Counter[str]) -> None:
    signature = f"(Tensor x, {form_of(kind)}) -> Tensor"
    default = default_of(torch._C.parse_schema(f"f{signature}").arguments[1])
    kernel = kernel_of(kind, signature) if kind.in_kernels else None
    x = torch.ones(3)
    calls = [(x,), *((x, value) for value in kind.values)]
    with registered(signature, noting(default), fake_note, kernel) as operators:
        for args in calls:
            if isinstance(outcome(operators.oracle, args, {}), Exception):
                continue
            for who, paths in operators.ours.items():
                eager = outcome(paths[0], args, {})
                if isinstance(eager, Exception):
                    continue
                answer = compiled(paths[0], args)
                sweep_counts["compiled calls"] += 1
                where = f"{who}{args}"
                if isinstance(answer, Exception):
                    of_torch = compiled(operators.oracle, args)
                    assert isinstance(of_torch, Exception), f"{where}: {answer!r}, not {of_torch}"
                    sweep_counts["refused as by torch"] += 1
                else:
                    assert repr(answer) == repr(eager), f"{where}: {answer}, eager {eager}"
