"""Plain objects among the arguments of a captured call: `run` compares what they hold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bringup import graphs
from bringup.errors import ContractError
from bringup.graphs import _equality


@dataclass
class Config:
    scale: float = 2.0
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    table: dict[str, Any] = field(default_factory=lambda: {"a": 1, "b": 2})
    names: set[str] = field(default_factory=lambda: {"x"})
    shift: Tensor | None = None
    inner: Any = None


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale


class ByDefault:
    scale = 2.0


class Mode(Enum):
    TWICE = 2.0
    THRICE = 3.0


class Scaled(nn.Module):
    def forward(self, x: Tensor, cfg: Any) -> Tensor:
        scale = cfg.value if isinstance(cfg, Mode) else getattr(cfg, "scale", 2.0)
        shift = getattr(cfg, "shift", None)
        return x * scale if shift is None else x * scale + shift


def captured_with(cfg: Any, model: nn.Module | None = None) -> graphs.CapturedGraph:
    graph, x = graphs.CapturedGraph(), torch.zeros(2)
    with graphs.capture(graph):
        (model or Scaled())(x, cfg)
    return graph


def changed(**fields: Any) -> Callable[[Any], None]:
    return lambda cfg: [setattr(cfg, key, value) for key, value in fields.items()] and None


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (
            Config,
            changed(scale=3.0),
            r"'cfg\.scale' was 2\.0 \(float\) when .*, got 3\.0 \(float\)",
        ),
        (Config, changed(scale=2), r"'cfg\.scale' was 2\.0 \(float\) when .*, got 2 \(int\)"),
        (Config, lambda c: c.sizes.append(3), r"'cfg\.sizes\[2\]' was not there when .*, got 3"),
        (Config, lambda c: c.sizes.pop(), r"'cfg\.sizes\[1\]' was 2 \(int\) when .*, got nothing"),
        (Config, lambda c: c.names.add("y"), r"'cfg\.names\{'y'\}' was not there"),
        (
            Config,
            lambda c: c.table.update(a=c.table.pop("a")),
            r"'cfg\.table' was a dict of \['a'\], \['b'\] when .*, got a dict of \['b'\], \['a'\]",
        ),
        (
            lambda: Config(inner=SimpleNamespace(dtype=torch.float32)),
            lambda c: setattr(c.inner, "dtype", torch.float16),
            r"'cfg\.inner\.dtype' was torch\.float32",
        ),
        (
            lambda: Config(inner=Config()),
            changed(inner=SimpleNamespace(scale=2.0)),
            r"'cfg\.inner' was a Config when .*, got a SimpleNamespace",
        ),
        (lambda: SimpleNamespace(scale=2.0), changed(scale=3.0), r"'cfg\.scale' was 2\.0"),
        (lambda: Slotted(2.0), changed(scale=3.0), r"'cfg\.scale' was 2\.0"),
        (ByDefault, changed(scale=3.0), r"'cfg\.scale' was not there when .*, got 3\.0"),
    ],
)
def test_an_argument_whose_field_has_changed_is_refused_by_its_path(
    make: Callable[[], Any], change: Callable[[Any], None], words: str
) -> None:
    cfg = make()
    graph = captured_with(cfg)
    assert graph.run(torch.ones(2), cfg).tolist() == [2, 2]
    change(cfg)
    with pytest.raises(ContractError, match=words):
        graph.run(torch.ones(2), cfg)
    assert graph.run(torch.ones(2)).tolist() == [2, 2]  # left out: as it was captured


def test_another_object_of_the_same_class_with_equal_fields_is_accepted() -> None:
    graph = captured_with(Config(inner=SimpleNamespace(names=("a", 1.5, None))))
    equal = Config(inner=SimpleNamespace(names=("a", 1.5, None)))
    assert graph.run(torch.ones(2), equal).tolist() == [2, 2]
    assert graph.run(torch.ones(2), cfg=equal).tolist() == [2, 2]
    with pytest.raises(ContractError, match=r"'cfg' was a Config when .*, got a SimpleNamespace"):
        graph.run(torch.ones(2), SimpleNamespace(**vars(equal)))


def test_a_tensor_in_an_object_is_read_where_it_lies_and_cannot_be_another_one() -> None:
    cfg = Config(shift=torch.ones(2))
    graph = captured_with(cfg)
    assert cfg.shift is not None
    cfg.shift.fill_(5)
    assert graph.run(torch.ones(2), cfg).tolist() == [7, 7]
    assert graph.run(torch.ones(2), Config(shift=cfg.shift)).tolist() == [7, 7]
    with pytest.raises(ContractError, match=r"'cfg\.shift' was float32\[2\] on cpu when .*, got"):
        graph.run(torch.ones(2), Config(shift=torch.ones(2)))


def test_a_tensor_that_the_graph_does_not_read_may_be_another_one_of_its_shape() -> None:
    graph = captured_with(Config(inner=torch.ones(3)))
    assert graph.run(torch.ones(2), Config(inner=torch.zeros(3))).tolist() == [2, 2]
    with pytest.raises(ContractError, match=r"'cfg\.inner' was float32\[3\] on cpu when .*\[4\]"):
        graph.run(torch.ones(2), Config(inner=torch.zeros(4)))


def test_what_the_call_itself_changes_is_compared_with_what_it_found() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor, cfg: Any) -> Tensor:
            cfg.scale += 1
            return x * cfg.scale

    cfg = Config(scale=1.0)
    graph = captured_with(cfg, Counting())
    with pytest.raises(ContractError, match=r"'cfg\.scale' was 1\.0 \(float\) when .*, got 2\.0"):
        graph.run(torch.ones(2), cfg)
    assert graph.run(torch.ones(2), Config(scale=1.0)).tolist() == [2, 2]


def test_what_cannot_be_looked_into_has_to_be_the_same_object() -> None:
    for given, other in (
        (Mode.TWICE, Mode.THRICE),
        (ByDefault(), ByDefault()),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (Config(inner=Mode.TWICE), Config(inner=Mode.THRICE)),
        (Config(inner=nn.ReLU()), Config(inner=nn.ReLU())),
    ):
        graph = captured_with(given)
        assert graph.run(torch.ones(2), given).tolist() == [2, 2]
        with pytest.raises(ContractError, match=r"'cfg(\.inner)?' was .* when .*, got"):
            graph.run(torch.ones(2), other)


def nested(depth: int, end: Any) -> Any:
    for _ in range(depth):
        end = SimpleNamespace(inner=end)
    return end


def test_objects_are_looked_into_as_deep_as_the_limit_and_are_the_same_beyond() -> None:
    def given(depth: int, scale: float) -> Any:
        return nested(depth, SimpleNamespace(scale=scale))

    depth = _equality.DEEPEST - 1
    seen = captured_with(given(depth, 2.0))
    assert seen.run(torch.ones(2), given(depth, 2.0)).tolist() == [2, 2]
    with pytest.raises(ContractError, match=r"'cfg(\.inner)+\.scale' was 2\.0 \(float\)"):
        seen.run(torch.ones(2), given(depth, 3.0))
    end = Config()
    unseen = captured_with(nested(depth + 1, end))
    assert unseen.run(torch.ones(2), nested(depth + 1, end)).tolist() == [2, 2]
    with pytest.raises(ContractError, match=r"'cfg(\.inner)+' was Config"):
        unseen.run(torch.ones(2), nested(depth + 1, Config()))


def test_as_many_values_as_the_limit_are_looked_at() -> None:
    many = [[number] for number in range(_equality.MOST_VALUES)]
    graph = captured_with(Config(inner=many))
    assert graph.run(torch.ones(2), Config(inner=list(many))).tolist() == [2, 2]
    with pytest.raises(ContractError, match=r"'cfg\.inner\[0\]\[0\]' was 0 \(int\) when .*, got 7"):
        graph.run(torch.ones(2), Config(inner=[[7], *many[1:]]))
    with pytest.raises(ContractError, match=r"'cfg\.inner\[999\]' was \[999\] \(list\) when"):
        graph.run(torch.ones(2), Config(inner=[*many[:-1], [999]]))


def test_an_object_that_contains_itself_is_compared() -> None:
    def ring(scale: float) -> Config:
        cfg = Config(scale)
        cfg.inner = [cfg]
        return cfg

    graph = captured_with(ring(2.0))
    assert graph.run(torch.ones(2), ring(2.0)).tolist() == [2, 2]
    with pytest.raises(ContractError, match=r"'cfg\.scale' was 2\.0"):
        graph.run(torch.ones(2), ring(3.0))
    with pytest.raises(ContractError, match=r"'cfg\.inner\[0\]' was"):
        graph.run(torch.ones(2), Config(inner=[None]))


def test_objects_in_nests_and_several_arguments_are_compared() -> None:
    class Several(nn.Module):
        def forward(self, x: Tensor, *cfgs: Any, **more: Any) -> Tensor:
            return x * sum(cfg.scale for cfg in (*cfgs, *more["more"]))

    graph, x, one, two = graphs.CapturedGraph(), torch.zeros(2), Config(1.0), Config(2.0)
    with graphs.capture(graph):
        Several()(x, one, more=[two])
    assert graph.run(torch.ones(2), Config(1.0), more=[Config(2.0)]).tolist() == [3, 3]
    two.scale = 5.0
    with pytest.raises(ContractError, match=r"'more\['more'\]\[0\]\.scale' was 2\.0"):
        graph.run(torch.ones(2), one, more=[two])
