"""What merely stands in the frame of a capture is looked at without being disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from bringup import graphs
from bringup.errors import CaptureError


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
    monkeypatch.setattr("bringup.graphs._capture._REMEMBERED_BYTES", 64)

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
