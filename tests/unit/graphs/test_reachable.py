"""What merely stands in the frame of a capture is looked at without being disturbed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bringup import graphs
from bringup.errors import CaptureError
from bringup.graphs import _reachable
from bringup.graphs._reachable import reachable


class _Lazy(Mapping[str, Any]):
    """A data set that loads what it is asked for."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        raise OSError("not connected")

    def __getitem__(self, key: str) -> Any:
        raise OSError("not connected")


class _LazyDict(dict[str, Any]):
    def items(self) -> Any:
        raise OSError("not connected")


class _LazyList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise OSError("not connected")


class _LazySet(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise OSError("not connected")


class _Proxy:
    """Stands for something that is not bound."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("unbound")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("unbound")


class _Key:
    def __repr__(self) -> str:
        raise RuntimeError("no name")


class _WithoutInit(nn.Module):
    def __init__(self) -> None:
        pass


def _ragged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


PRESENT: dict[str, Callable[[], Any]] = {
    "lazy module": lambda: nn.LazyLinear(2),
    "nested tensor": _ragged,
    "lazy mapping": _Lazy,
    "lazy dictionary": lambda: _LazyDict(a=torch.ones(2)),
    "lazy list": lambda: _LazyList([torch.ones(2)]),
    "lazy set": lambda: _LazySet([1]),
    "proxy": _Proxy,
    "key": lambda: {_Key(): torch.ones(2)},
    "module without init": _WithoutInit,
    "sparse": lambda: torch.eye(2).to_sparse(),
    "meta": lambda: torch.ones(2, device="meta"),
    "script": lambda: torch.jit.script(nn.Linear(2, 2)),
}


@pytest.mark.parametrize("name", PRESENT)
def test_what_stands_in_the_frame_does_not_break_a_capture(name: str) -> None:
    present, x, graph = PRESENT[name](), torch.ones(3), graphs.CapturedGraph()
    with graphs.capture(graph):
        y = x * 2
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [8, 8, 8]
    del present


def test_a_dictionary_from_locals_keeps_its_content() -> None:
    x, graph = torch.ones(3), graphs.CapturedGraph()
    variables = locals()
    with graphs.capture(graph):
        x * 2
    assert variables["x"] is x


def test_a_tensor_over_the_limit_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bringup.graphs._capture.REMEMBERED_BYTES", 64)

    def run(large: torch.Tensor, views: list[torch.Tensor], cache: torch.Tensor) -> None:
        alias = cache.numpy()
        with graphs.capture(graphs.CapturedGraph()):
            alias[0] = 5
            views[0] * 2

    views, cache = [torch.ones(4)] * 9, torch.zeros(4)
    views.append(views[0][1:])
    with pytest.raises(
        CaptureError, match=r"'cache' \(float32\[4\]\) was written inside the captu"
    ):
        run(torch.ones(17), views, cache)
    assert cache.sum() == 0


def names_of(**values: Any) -> list[str]:
    return [name for name, _, _ in reachable(values)]


def test_values_are_found_as_deep_as_the_limit_nearest_first() -> None:
    end: Any = SimpleNamespace()
    for _ in range(_reachable.DEEPEST + 1):
        end = SimpleNamespace(a=end)
    found = list(reachable({"x": end, "near": torch.ones(1)}))
    deepest = "x" + ".a" * _reachable.DEEPEST
    assert [name for name, _, _ in found][:3] == ["x", "near", "x.a"]
    assert found[-1][0] == deepest
    assert found[-1][2] == {}  # what it holds is not asked for
    assert list(found[-2][2]) == [".a"]


def test_as_many_values_as_the_limit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reachable, "MOST_OBJECTS", 3)
    values = {str(number): object() for number in range(5)}
    assert names_of(**values) == ["0", "1", "2"]


def test_numbers_strings_and_what_was_found_before_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_reachable, "MOST_OBJECTS", 2)
    shared = torch.ones(1)
    plain = {"n": None, "i": 10**9, "f": 0.5, "s": "text", "t": True}
    assert names_of(**plain, first=shared, again=shared, last=torch.ones(2)) == ["first", "last"]


def test_what_a_function_and_a_partial_keep_is_found_one_level_deeper() -> None:
    tensor, other = torch.ones(1), torch.ones(2)

    def function(x: Tensor, default: Tensor = tensor, *, by_name: Tensor = other) -> Tensor:
        return x + default + by_name

    found = {id(value) for _, value, _ in reachable({"f": functools.partial(function)})}
    assert {id(tensor), id(other)} <= found


def test_a_set_is_looked_into_and_a_class_is_not() -> None:
    tensor = torch.ones(1)
    assert names_of(kept={tensor}) == ["kept", "kept"]
    assert names_of(kept=frozenset({tensor})) == ["kept", "kept"]
    assert names_of(kind=type("Kind", (), {"weight": tensor})) == ["kind"]
