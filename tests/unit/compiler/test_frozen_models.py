"""Models of one class share a compiled graph, and each has its own frozen weights."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import pytest
import torch
from torch import nn

from bringup import compiler
from bringup.compiler.inference_graph import InferenceGraph
from bringup.errors import ContractError

MODES: list[dict[str, Any]] = [
    {},
    {"mode": "serve"},
    {"mode": "max"},
    {"options": {"freeze": True}},
    {"options": {"freeze": True, "capture": True}},
    {"options": {"freeze": True, "on_weight_change": "refold"}},
]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has one entry for each time that weights were folded and packed."""
    made: list[int] = []
    build = InferenceGraph.build

    def counted(*args: Any) -> Any:
        made.append(1)
        return build(*args)

    monkeypatch.setattr(InferenceGraph, "build", counted)
    return made


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


class Block(nn.Module):
    """Of a class of its own: Dynamo compiles no `compile()` of torch's containers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = net(seed)
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.shift.exp()


def close(mode: dict[str, Any]) -> dict[str, float]:
    return {"rtol": 0.1, "atol": 0.1} if mode.get("mode") == "max" else {}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_models_of_one_class_are_each_packed_once(
    mode: dict[str, Any], builds: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    models = [net(seed) for seed in range(4)]
    x = torch.randn(2, 4)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        compiled = [torch.compile(model, backend="bringup", **mode) for model in models]
        for _ in range(3):
            for call, model in zip(compiled, models, strict=True):
                torch.testing.assert_close(call(x), model(x), **close(mode))
    assert len(builds) == 4
    assert "no longer frozen" not in caplog.text
    assert "recompile_limit" not in caplog.text


def test_thirty_two_models_are_kept_and_counted(
    builds: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    models = [Block(seed).eval() for seed in range(32)]
    x = torch.randn(2, 4)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for _ in range(2):
            for model in models:
                if not model._compiled_call_impl:
                    model.compile(backend="bringup", options={"freeze": True})
                torch.testing.assert_close(model(x), model.forward(x))
    assert len(builds) == 32
    assert "recompile_limit" not in caplog.text
    report = compiler.frozen_models()[-1]
    assert report.models == 32
    assert report.memory_bytes == 32 * 3 * 4  # the shifts' exponentials
    del models, model
    gc.collect()
    assert compiler.frozen_models()[-1].models <= 1  # Dynamo may hold the one it compiled


@pytest.mark.parametrize("which", [0, 1])
def test_a_changed_weight_raises_for_its_own_model_alone(which: int) -> None:
    models = [net(0), net(1)]
    x = torch.randn(2, 4)
    with torch.no_grad():
        options = {"freeze": True}
        compiled = [torch.compile(m, backend="bringup", options=options) for m in models]
        for call in compiled:
            call(x)
        models[which][2].bias.add_(1)
        with pytest.raises(ContractError, match=r"the weight '2\.bias' .* was written"):
            compiled[which](x)
        models[1 - which](x)
        torch.testing.assert_close(compiled[1 - which](x), models[1 - which](x))
        models[1 - which][0].weight = nn.Parameter(torch.zeros(8, 4))
        with pytest.raises(ContractError, match=r"'0\.weight' .* is another tensor now"):
            compiled[1 - which](x)


def test_models_that_share_their_first_weight_are_packed_once_each(builds: list[int]) -> None:
    models = [net(0), net(1), net(2)]
    for model in models[1:]:
        model[0] = models[0][0]
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled = [torch.compile(model, backend="bringup") for model in models]
        for _ in range(3):
            for call, model in zip(compiled, models, strict=True):
                torch.testing.assert_close(call(x), model(x))
    assert len(builds) == 3


def test_weights_of_one_model_that_go_on_changing_leave_the_other_packed(
    builds: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    changing, staying = net(0), net(1)
    x = torch.randn(2, 4)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        one, other = (torch.compile(m, backend="bringup") for m in (changing, staying))
        for _ in range(5):
            changing[0].weight.mul_(0.5)
            torch.testing.assert_close(one(x), changing(x))
            torch.testing.assert_close(other(x), staying(x))
    assert caplog.text.count("no longer frozen, since they go on changing: 0.weight") == 1
    assert len(builds) == 2 + 3


def test_a_model_that_is_built_again_is_frozen_again(builds: list[int]) -> None:
    x = torch.randn(2, 4)
    with torch.no_grad():
        for turn in range(12):
            model = net(turn)
            compiled = torch.compile(model, backend="bringup", options={"freeze": True})
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x))
            del model, compiled
    assert len(builds) == 12


def test_blocks_of_a_model_are_compiled_one_by_one(builds: list[int]) -> None:
    blocks = [Block(seed).eval() for seed in range(10)]
    for block in blocks:
        block.compile(backend="bringup", options={"freeze": True})
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(2):
            for block in blocks:
                torch.testing.assert_close(block(x), block.forward(x))
    assert len(builds) == 10


def test_sixteen_threads_pack_each_model_once(builds: list[int]) -> None:
    models = [net(seed) for seed in range(4)]
    x = torch.randn(2, 4)
    compiled = [torch.compile(model, backend="bringup") for model in models]
    with torch.no_grad():
        compiled[0](x)
        expected = [model(x) for model in models]
    wrong: list[object] = []
    start = threading.Barrier(16)

    def serve(number: int) -> None:
        start.wait()
        with torch.no_grad():
            for turn in range(20):
                index = (number + turn) % 4
                try:
                    torch.testing.assert_close(compiled[index](x), expected[index])
                except BaseException as error:
                    wrong.append(error)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(builds) == 4


@pytest.mark.parametrize("mode", [*MODES[:3], MODES[5]], ids=str)
def test_swapped_tensors_of_a_frozen_model_are_computed_with(mode: dict[str, Any]) -> None:
    model, x = net(0), torch.randn(2, 4)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", **mode)
        for _ in range(2):
            compiled(x)
            torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.randn(8, 4)))
            torch.testing.assert_close(compiled(x), model(x), **close(mode))


@pytest.fixture
def swapping() -> Any:
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("mode", [MODES[0], MODES[1]], ids=str)
def test_weights_are_converted_and_loaded_by_swapping(mode: dict[str, Any], swapping: Any) -> None:
    model = net(0)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", **mode)
        compiled(torch.randn(2, 4))
        model.load_state_dict(net(5).state_dict())
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), model(x))
        model.to(torch.float64)
        torch.testing.assert_close(compiled(x.double()), model(x.double()))


def test_swapped_tensor_of_a_frozen_model_raises_where_changes_do() -> None:
    model, x = net(0), torch.randn(2, 4)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options={"freeze": True})
        compiled(x)
        torch.utils.swap_tensors(model[2].bias, nn.Parameter(torch.randn(3)))
        with pytest.raises(ContractError, match=r"'2\.bias' .* is another tensor now"):
            compiled(x)
