"""Every form of returns is torch.library's: new results, lists, written arguments and views,
whoever defined the operator, called, compiled, exported, over batches and pickled.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.sweeps.call_registrations import Call, compare, registered
from tests.sweeps.support import FULL
from torch.utils import _pytree

from bringup import jit, ops

DOUBLE = jit.Source(
    name="double.cpp",
    text="""#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const auto* x = static_cast<const DLTensor*>(args[FROM]);
  const auto* y = static_cast<const DLTensor*>(args[INTO]);
  int64_t n = 1;
  for (int i = 0; i < x->ndim; ++i) n *= x->shape[i];
  for (int64_t i = 0; i < n; ++i) {
    static_cast<float*>(y->data)[i] = static_cast<const float*>(x->data)[i] * 2;
#ifdef ALSO
    static_cast<float*>(static_cast<const DLTensor*>(args[ALSO])->data)[i] = i;
#endif
  }
  return 0;
}
""",
)


@dataclass(frozen=True)
class Form:
    """One form of arguments that are written, and of returns.

    Attributes:
        signature: the schema without a name.
        function: the operator in Python.
        fake: its fake.
        macros: of the kernel; None where kernels have no such form.
        outputs: the kernel's new results.
        args, kwargs: of a call.
        plain: whether plain torch.library compiles it.
    """

    signature: str
    function: Call
    fake: Call
    macros: dict[str, Any] | None
    outputs: tuple[Any, ...] = ()
    args: tuple[Any, ...] = (torch.arange(3.0),)
    kwargs: tuple[tuple[str, Any], ...] = ()
    plain: bool = False


def _twice_(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


def _twice_for_nothing(x: torch.Tensor) -> None:
    x.mul_(2)


def _into(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(x * 2)


def _swap(x: torch.Tensor, y: torch.Tensor) -> Any:
    y.copy_(x * 2)
    x.copy_(torch.arange(3.0))
    return y, x


LIKE = ops.empty_like("x")
X, Y = torch.arange(3.0) + 1, torch.zeros(3)
FORMS = {
    "new": Form("(Tensor x) -> Tensor", lambda x: x * 2, torch.empty_like,
                {"FROM": 0, "INTO": 1}, (LIKE,), plain=True),
    "two new": Form("(Tensor x) -> (Tensor, Tensor)",
                    lambda x: (x * 2, torch.arange(3.0)),
                    lambda x: (torch.empty_like(x), torch.empty_like(x)),
                    {"FROM": 0, "INTO": 1, "ALSO": 2}, (LIKE, LIKE), plain=True),
    "list": Form("(Tensor x) -> Tensor[]", lambda x: [x * 2, x + 1],
                 lambda x: [torch.empty_like(x), torch.empty_like(x)], None, plain=True),
    "in place": Form("(Tensor(a!) x) -> Tensor(a!)", _twice_, lambda x: x,
                     {"FROM": 0, "INTO": 0}),
    "in place, nothing": Form("(Tensor(a!) x) -> ()", _twice_for_nothing,
                              lambda x: None, {"FROM": 0, "INTO": 0}, plain=True),
    "out": Form("(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", _into, lambda x, *, out: out,
                {"FROM": 0, "INTO": 1}, args=(X,), kwargs=(("out", Y),)),
    "out by position": Form("(Tensor x, Tensor(a!) out) -> Tensor(a!)",
                            lambda x, out: out.copy_(x * 2), lambda x, out: out,
                            {"FROM": 0, "INTO": 1}, args=(X, Y)),
    "two written": Form("(Tensor(a!) x, Tensor(b!) y) -> (Tensor(b!), Tensor(a!))", _swap,
                        lambda x, y: (y, x), {"FROM": 0, "INTO": 1, "ALSO": 0}, args=(X, Y)),
    "written list": Form("(Tensor x, Tensor(a!)[] ys) -> Tensor(a!)[]",
                         lambda x, ys: [y.mul_(2) for y in ys], lambda x, ys: list(ys), None,
                         args=(X, [X, Y])),
    "written and new": Form("(Tensor(a!) x) -> Tensor",
                            lambda x: x.mul_(2).clone(), torch.empty_like, None, plain=True),
    "view": Form("(Tensor(a) x) -> Tensor(a)", lambda x: x[:1], lambda x: x[:1], None),
}  # fmt: skip


def kernel_of_form(form: Form) -> Call | None:
    if form.macros is None:
        return None

    def define(name: str) -> Any:
        return ops.kernel_op(
            f"{name}{form.signature}",
            source=DOUBLE,
            outputs=form.outputs,
            checks=[ops.kernel_checks()],
            macros=form.macros,
        )

    return define


def contexts() -> dict[str, Callable[[Call, Form], Call]]:
    """Ways of running a call: each gives a function of the call's tensors."""

    def compiled(call: Call, form: Form) -> Call:
        torch._dynamo.reset()
        return torch.compile(lambda *a, **k: call(*a, **k), fullgraph=True, backend="aot_eager")

    def exported(strict: bool) -> Callable[[Call, Form], Call]:
        def build(call: Call, form: Form) -> Call:
            class Model(torch.nn.Module):
                def forward(self, *args: Any, **kwargs: Any) -> Any:
                    return call(*args, **kwargs)

            args, kwargs = _pytree.tree_map_only(
                torch.Tensor, torch.clone, (form.args, dict(form.kwargs))
            )
            program = torch.export.export(Model(), args, kwargs, strict=strict)
            return program.run_decompositions().module()

        return build

    made = {"compiled": compiled, "exported": exported(False), "exported strictly": exported(True)}
    return made if FULL else {"compiled": compiled}


def values_of(call: Call, form: Form) -> Any:
    """What a call gives and leaves in its arguments; not which tensor is which."""
    args, kwargs = _pytree.tree_map_only(torch.Tensor, torch.clone, (form.args, dict(form.kwargs)))
    result = call(*args, **kwargs)
    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.tolist, (result, args, kwargs))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_returns_is_that_of_torch_library(
    form: Form, sweep_counts: Counter[str]
) -> None:
    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        compare(operators, form.args, dict(form.kwargs), False, sweep_counts)
        sweep_counts["operators"] += 1 + len(operators.ours)
        with torch.inference_mode():
            compare(operators, form.args, dict(form.kwargs), False, sweep_counts)
        with torch.profiler.profile():
            compare(operators, form.args, dict(form.kwargs), False, sweep_counts)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_compiles_and_exports_as_eager(form: Form, sweep_counts: Counter[str]) -> None:
    if "(a) " in form.signature:
        pytest.skip("a view of somebody else's: torch compiles none without its source")
    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        expected = values_of(operators.oracle, form)
        for who, paths in operators.ours.items():
            if who == "adopt" and not (form.plain and FULL):
                continue  # torch's own operator, which torch does not compile in these forms
            chosen = paths if FULL else paths[:1]
            for path, (name, context) in itertools.product(chosen, contexts().items()):
                got = values_of(context(path, form), form)
                sweep_counts["compiled or exported"] += 1
                assert _plain(got) == _plain(expected), f"{who}, {name}: {got}, not {expected}"


def _plain(result: Any) -> Any:
    """Lists for tuples: an exported program gives them as it likes."""
    return _pytree.tree_leaves(result)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_runs_over_batches(form: Form, sweep_counts: Counter[str]) -> None:
    """One call a sample is the oracle; a batch of nothing keeps the shapes."""
    if "(a) " in form.signature or form.function is FORMS["two new"].function:
        pytest.skip("no rule for views; a constant result has no batch to compare")

    def batch(size: int) -> Any:
        return _pytree.tree_map_only(
            torch.Tensor,
            lambda t: (
                torch.stack([t + i for i in range(size)]) if size else t.new_empty(0, *t.shape)
            ),
            (form.args, dict(form.kwargs)),
        )

    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        for who, paths in operators.ours.items():
            if who in ("adopt", "Library"):
                continue  # no rule unless one is registered
            for path, size in itertools.product(paths, (0, 1, 3)):
                args, kwargs = batch(size)

                def run(a: Any, k: Any, path: Call = path) -> Any:
                    result = path(*a, **k)
                    return a if result is None else result  # vmap returns tensors only

                result = torch.vmap(run)(args, kwargs)
                sweep_counts["batches"] += 1
                again_args, again_kwargs = batch(size)
                for i in range(size):
                    one_args, one_kwargs = _pytree.tree_map_only(
                        torch.Tensor, lambda t, i=i: t[i], (again_args, again_kwargs)
                    )
                    expected = form.function(*one_args, **one_kwargs)
                    expected = one_args if expected is None else expected
                    got = _pytree.tree_map_only(torch.Tensor, lambda t, i=i: t[i], result)
                    assert _tensors(got) == _tensors(expected), f"{who} {size} {i}"
                assert _tensors((args, kwargs)) == _tensors((again_args, again_kwargs)), who
                if size == 0 and form.signature.endswith("Tensor"):
                    assert result.shape == (0, 3)


def _tensors(value: Any) -> list[Any]:
    return [t.tolist() for t in _pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_callable_is_pickled_and_copied_by_name(
    form: Form, sweep_counts: Counter[str]
) -> None:
    with registered(form.signature, form.function, form.fake, kernel_of_form(form)) as operators:
        for who, paths in operators.ours.items():
            if who == "Library":
                continue  # has no callable of its own
            sweep_counts["pickled"] += 1
            for same in (pickle.loads(pickle.dumps(paths[0])), copy.deepcopy(paths[0])):
                assert same is paths[0]
