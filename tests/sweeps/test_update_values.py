"""Every operator that a handler can name, and every host argument of it, updated with values that
change what its results are: the update is refused, or a replay is eager to the bit.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.sweeps.support import part
from torch import Tensor
from torch.testing._internal import common_methods_invocations as torch_samples
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bringup import graphs
from bringup.errors import CaptureError, UpdateError

NAMES = sorted({f"{op.name}/{op.variant_test_name}" for op in torch_samples.op_db})
SAMPLES = 3
"""How many of an operator's samples are looked at for overloads that none before has shown."""
ENUMERATIONS = {"reduction", "interpolation_mode", "padding_mode"}
"""Integers whose unknown values some kernels of torch take for any of the known ones."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "int": (0, 1, 2, -1, 7),
    "float": (0.0, -0.0, 1.0, 2.5, -1.5, math.inf, math.nan, 1e300),
    "bool": (True, False),
    "number": (0, 2, 2.5, -0.0, True, 2j, -1, 300, 1e300, math.nan),
    "dtype": (torch.float64, torch.float32, torch.int64, torch.complex64, torch.bool),
    "str": ("none", "tanh", "tahn", "floor", "trunc", "sum", "mean", "reflect"),
}
"""Values for an argument, by its type in the schema without `?`."""


@dataclass
class Call:
    """One call of an overload, on tensors that stay where they are."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        leaves, spec = _pytree.tree_flatten((self.args, self.kwargs))
        self.args, self.kwargs = _pytree.tree_unflatten([_own(leaf) for leaf in leaves], spec)
        leaves = _pytree.tree_leaves((self.args, self.kwargs))
        self.kept = [(leaf, leaf.clone()) for leaf in leaves if isinstance(leaf, Tensor)]

    @property
    def name(self) -> str:
        """The operator's name with its overload."""
        return f"{self.func._schema.name}.{self.func._overloadname}"

    def put_back(self) -> None:
        """The content of before the calls."""
        for tensor, content in self.kept:
            tensor.copy_(content)

    def run(self, name: str | None = None, value: Any = None) -> list[Any]:
        """Calls it, with one argument as given, and the same random numbers each time."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for index, argument in enumerate(self.func._schema.arguments):
            if argument.name == name and index < len(args):
                args[index] = value
            elif argument.name == name:
                kwargs[argument.name] = value
        torch.manual_seed(0)
        return _pytree.tree_leaves(self.func(*args, **kwargs))

    def eager(self, name: str, value: Any) -> list[Any] | Exception:
        """Copies of the results and of the arguments after it, or what it raises."""
        self.put_back()
        try:
            results = self.run(name, value)
            return [_own(one) for one in (*results, *(tensor for tensor, _ in self.kept))]
        except Exception as error:
            return error
        finally:
            self.put_back()


class Overloads(TorchDispatchMode):
    """Keeps the first call of every overload."""

    def __init__(self, calls: dict[Any, Call]) -> None:
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fits = func.namespace == "aten" and torch.Tag.inplace_view not in func.tags
        if fits and func not in self.calls and all(map(_fits, args)):
            self.calls[func] = Call(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _fits(value: Any) -> bool:
    """Whether a graph can have such an argument."""
    leaves = _pytree.tree_leaves(value)
    return all(not isinstance(t, Tensor) or t.layout == torch.strided for t in leaves)


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def calls_of(name: str) -> Iterator[Call]:
    """One call of each overload that an operator's samples are made of."""
    seen: dict[Any, Call] = {}
    for op in torch_samples.op_db:
        if f"{op.name}/{op.variant_test_name}" != name:
            continue
        for dtype in (torch.float32, torch.int64):
            if dtype not in op.supported_dtypes("cpu"):
                continue
            for number, sample in enumerate(op.sample_inputs("cpu", dtype)):
                if number == SAMPLES:
                    break
                try:
                    with Overloads(seen):
                        op.op(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    continue
    yield from seen.values()


def values_for(type_: str, now: Any) -> Iterator[Any]:
    """Other values of an argument's type."""
    plain = type_.removesuffix("?")
    if type_.endswith("?") and now is not None:
        yield None
    if plain in PLAIN:
        yield from PLAIN[plain]
    elif plain in ("int[]", "float[]", "bool[]") and now:
        yield [type(now[0])(1) for _ in now]
        yield [type(now[0])(2 * one + 1) for one in now]
        yield list(reversed(now))


@pytest.mark.parametrize("name", part(NAMES, always=["mul/", "clamp/", "nn.functional.gelu/"]))
def test_an_update_is_refused_or_the_replay_is_eager(
    name: str, sweep_counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_samples, "wrapper_set_seed", lambda op, *a, **k: op(*a, **k))
    wrong = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for call in calls_of(name):
            wrong += [f"{call.name}: {text}" for text in _check(call, sweep_counts)]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def _check(call: Call, counts: Counter[str]) -> Iterator[str]:
    arguments = [argument.name for argument in call.func._schema.arguments]
    handler: Any = type("Every", (graphs.GraphOpHandler,), {})
    first = call.eager("", None)
    graph = graphs.CapturedGraph()
    with graphs.graph_handler_scope(call.name, handler):
        specs = [("kwarg", one, one) for one in _host_arguments(call.func)]
        handler.UPDATE_SPECS = {call.name: specs}
        try:
            with graphs.capture(graph):
                results = call.run()
        except CaptureError:
            counts["captures refused"] += 1
            return
    if isinstance(first, Exception):
        return
    for key, slot in graph.slots.items():
        argument = key.rpartition(".")[2]
        if argument not in arguments or slot.type.startswith("Tensor"):
            continue
        for value in values_for(slot.type, slot.value):
            if argument in ENUMERATIONS and value not in (0, 1, 2):
                continue
            counts["updates"] += 1
            text = _update(graph, call, results, key, value, counts)
            if text:
                yield f"{argument}: {slot.value!r} -> {value!r}: {text}"


def _host_arguments(func: Any) -> list[str]:
    from bringup._native import torch_library

    schema = func._schema
    native = torch_library("a sweep").graphs
    overload = schema.overload_name
    return [name for _, name, _ in native.host_arguments(schema.name, overload)[1]]


def _update(
    graph: Any, call: Call, results: list[Any], key: str, value: Any, counts: Counter[str]
) -> str:
    argument, former = key.rpartition(".")[2], graph.slots[key].value
    expected = call.eager(argument, value)
    try:
        graph.update({key: value})
    except UpdateError as error:
        counts["refused"] += 1
        if graph.slots[key].value is not former and repr(graph.slots[key].value) != repr(former):
            return f"refused, and written all the same: {error}"
        return "" if _has_to_be(expected, results) or _not_taken(error) else f"refused: {error}"
    try:
        torch.manual_seed(0)
        graph.replay()
        got = [_own(one) for one in (*results, *(tensor for tensor, _ in call.kept))]
    except Exception as error:
        return f"taken, and the replay raises {error!r:.300}; eager: {expected!r:.200}"
    finally:
        call.put_back()
        graph.update({key: former})
    if isinstance(expected, Exception):
        return f"taken, and eager raises {expected!r:.200}"
    counts["replays"] += 1
    return _difference(got, expected)


def _not_taken(error: UpdateError) -> bool:
    """Whether it is about the value's type or length, not about the call."""
    return " takes " in str(error)


def _has_to_be(expected: Any, results: list[Any]) -> bool:
    """Whether results cannot be kept where the graph has them."""
    if isinstance(expected, Exception):
        return True
    fresh = expected[: len(results)]
    return len(fresh) < len(results) or [_layout(one) for one in fresh] != [
        _layout(one) for one in results
    ]


def _layout(one: Any) -> Any:
    return (one.shape, one.dtype) if isinstance(one, Tensor) else None


def _difference(got: list[Any], expected: list[Any]) -> str:
    if len(got) != len(expected):
        return f"{len(got)} tensors for {len(expected)}"
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, Tensor) and not _same(ours, theirs):
            return f"{ours} for {theirs}"[:400]
    return ""


def _same(ours: Tensor, theirs: Tensor) -> bool:
    return _layout(ours) == _layout(theirs) and torch.equal(_bits(ours), _bits(theirs))


def _bits(tensor: Tensor) -> Tensor:
    given = tensor.resolve_conj().resolve_neg().reshape(-1)
    dense = given.new_empty(given.shape).copy_(given)  # one element may have a stride of 0
    return dense.view(torch.uint8) if dense.numel() else dense
