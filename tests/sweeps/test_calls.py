"""Every way to call an operator gives what torch.library gives: for each schema type, whoever
defined the operator (`kernel_op`, `custom_op`, `Library`, `adopt`), the callable and `torch.ops` do
what a plain `torch.library` registration of the same function does, in value, in the identity of
what is returned, in dtype and in error.

What a definition cannot carry is refused there, by the argument's name.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sweeps.call_registrations import Call, Operators, compare, outcome, registered
from tests.sweeps.call_types import KINDS, MACROS, NOTE, Kind, base, note
from tests.sweeps.support import FULL, examples

from bringup import jit, ops
from bringup.errors import SchemaError
from bringup.ops.schema.defaults import default_of


def kernel_of(kind: Kind, signature: str) -> Call:
    def define(name: str) -> Any:
        return ops.kernel_op(
            f"{name}{signature}",
            source=jit.Source(text=NOTE, name="note.cpp"),
            outputs=ops.empty(8, dtype=torch.float64),
            checks=ops.kernel_checks(),
            macros={MACROS.get(base(kind), "T_NUMBERS"): "1"},
        )

    return define


def forms(kind: Kind) -> list[str]:
    """The declarations of the second argument: positional and keyword-only, with each default."""
    declared = [f"{kind.type} k", *(f"{kind.type} k={default}" for default in kind.defaults)]
    return [*declared, f"*, {declared[-1]}"]


def calls(kind: Kind, form: str) -> list[tuple[tuple[Any, ...], dict[str, Any], bool]]:
    """Calls with positional, keyword and default arguments, and some that do not fit; the last
    member: whether only we refuse it.
    """
    x = torch.ones(3)
    keyword_only = form.startswith("*")
    made: list[tuple[tuple[Any, ...], dict[str, Any], bool]] = [
        ((x,), {}, False),
        ((x, 1, 2), {}, False),
        ((x,), {"unknown": 1}, False),
        ((), {"k": kind.values[0]}, False),
    ]
    for value in kind.values:
        ours = any(value is o or (type(value) is list and value == o) for o in kind.ours)
        if not keyword_only:
            made.append(((x, value), {}, ours))
        made.append(((x,), {"k": value}, ours))
        made.append(((), {"k": value, "x": x}, ours))
    return made


def noting(default: Any) -> Call:
    """The operator in Python; the dispatcher leaves defaults out."""

    def function(x: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
        given = (*rest, *kwargs.values())
        return note(given[0] if given else default)

    return function


def fake_note(x: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
    return x.new_empty(8, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.type for kind in KINDS])
def test_every_type_is_taken_as_torch_library_takes_it(
    kind: Kind, sweep_counts: Counter[str]
) -> None:
    chosen = forms(kind) if FULL else forms(kind)[-2:-1]
    for form in chosen:
        signature = f"(Tensor x, {form}) -> Tensor"
        default = default_of(torch._C.parse_schema(f"f{signature}").arguments[1])
        kernel = kernel_of(kind, signature) if kind.in_kernels else None
        with registered(signature, noting(default), fake_note, kernel) as operators:
            sweep_counts["operators"] += 1 + len(operators.ours)
            for args, kwargs, ours_refuse in calls(kind, form):
                compare(operators, args, kwargs, ours_refuse, sweep_counts)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if not k.in_kernels], ids=[k.type for k in KINDS if not k.in_kernels]
)
def test_a_type_that_kernels_do_not_carry_is_refused_by_name(kind: Kind) -> None:
    with pytest.raises(SchemaError, match=r"argument 'k' has type .*, which the kernel ABI"):
        kernel_of(kind, f"(Tensor x, {kind.type} k) -> Tensor")("sweep_calls::refused")


# --- Several arguments at once, drawn.

SIGNATURE = (
    "(Tensor x, int n=1, float[2] pair=[1., 2.], *, bool flag=False, str s='a', ScalarType? d=None,"
    " int[2] size=3) -> Tensor"
)
ARGUMENTS: dict[str, list[Any]] = {
    "n": [0, -7, True, 1.5, None, 2**63],
    "pair": [[1.0, 2.0], (3, 4), 2.5, [1.0], [], "ab"],
    "flag": [True, False, 1, None],
    "s": ["", "é", 3],
    "d": [None, torch.float16, "x"],
    "size": [4, [5, 6], (7,), [1, 2, 3], 1.5],
}


def _all(x: torch.Tensor, n: Any = 1, pair: Any = (1.0, 2.0), *, flag: Any = False, s: Any = "a",
         d: Any = None, size: Any = (3, 3)) -> torch.Tensor:  # fmt: skip
    given = (n, pair, flag, s, d, size)
    return torch.stack([note(value) for value in given])


@examples(150, 3000)
@given(data=st.data())
def _drawn(operators: Operators, counts: Counter[str], data: Any) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(ARGUMENTS)), unique=True))
    chosen = {name: data.draw(st.sampled_from(ARGUMENTS[name]), label=name) for name in names}
    args: list[Any] = [torch.ones(3)]
    for name in ("n", "pair"):
        if name not in chosen or not data.draw(st.booleans()):
            break
        args.append(chosen.pop(name))
    bound = dict(zip(("x", "n", "pair"), args, strict=False)) | chosen
    wrong_length = any(
        isinstance(bound.get(name), (list, tuple)) and len(bound[name]) != 2
        for name in ("pair", "size")
    )
    mismatched = isinstance(outcome(operators.oracle, args, chosen), Exception)
    compare(operators, args, chosen, wrong_length and not mismatched, counts)


def test_calls_with_many_arguments_are_those_of_torch_library(sweep_counts: Counter[str]) -> None:
    def fake(x: torch.Tensor, *rest: Any, **kwargs: Any) -> torch.Tensor:
        return x.new_empty(6, 8, dtype=torch.float64)

    with registered(SIGNATURE, _all, fake, None) as operators:
        _drawn(operators, sweep_counts)
