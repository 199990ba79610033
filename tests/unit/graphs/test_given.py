"""What a captured graph takes as given: a replay equals the model or names what is different."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.graphs.support import captured
from torch import nn

from bringup import graphs
from bringup.errors import CaptureError


class Tied(nn.Module):
    """A parameter, a buffer, a plain tensor and a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))
        self.mask = torch.tensor([1.0, 0.0, 1.0, 1.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale * self.mask + self.shift


def _other_parameter(model: Tied) -> None:
    model.linear.weight = nn.Parameter(torch.zeros(4, 4))


def _data(model: Tied) -> None:
    model.scale.data = torch.zeros(4)


def _set(model: Tied) -> None:
    model.shift.set_(torch.zeros(4))


def _attribute(model: Tied) -> None:
    model.mask = torch.zeros(4)


def _submodule(model: Tied) -> None:
    model.linear = nn.Linear(4, 4)


def _assign(model: Tied) -> None:
    model.load_state_dict(Tied().state_dict(), assign=True)


def _no_bias(model: Tied) -> None:
    model.linear.bias = None


def _deleted(model: Tied) -> None:
    del model.scale


def _transposed(model: Tied) -> None:
    model.linear.weight.data = model.linear.weight.data.t()


def _resized(model: Tied) -> None:
    model.shift.resize_(2)


def _half(model: Tied) -> None:
    model.half()


def _train(model: Tied) -> None:
    model.train()


REPLACED: dict[str, tuple[Callable[[Tied], None], str]] = {
    "parameter": (_other_parameter, "parameter 'linear.weight' of Tied is another tensor now"),
    "data": (_data, "parameter 'scale' of Tied has other memory now"),
    "set_": (_set, "buffer 'shift' of Tied has other memory now"),
    "attribute": (_attribute, "attribute 'mask' of Tied is another tensor now"),
    "submodule": (_submodule, "submodule 'linear' of Tied is another Linear now"),
    "assign": (_assign, "parameter 'scale' of Tied is another tensor now"),
    "bias": (_no_bias, "parameter 'linear.bias' of Tied is None now"),
    "deleted": (_deleted, "parameter 'scale' of Tied is gone"),
    "transposed": (
        _transposed,
        "parameter 'linear.weight' of Tied reads its memory in another way now",
    ),
    "resized": (_resized, "buffer 'shift' of Tied has another shape now"),
    "half": (_half, "buffer 'shift' of Tied is another tensor now"),
    "train": (_train, "'training' of module Tied was False and is True now"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_a_module_holds_is_replaced_and_replay_names_it(name: str) -> None:
    change, text = REPLACED[name]
    model, x = Tied().eval(), torch.randn(2, 4)
    graph, output = captured(model, x)
    before = output.clone()
    change(model)
    with pytest.raises(CaptureError) as refused:
        graph.replay()
    assert str(refused.value).startswith(f"since the graph was captured, {text}: a replay would")
    assert "capture again (reset() first)" in str(refused.value)
    assert torch.equal(output, before)


def test_weights_written_in_place_are_what_replay_computes_with() -> None:
    model, x = Tied().eval(), torch.randn(2, 4)
    graph, output = captured(model, x)
    model.load_state_dict(Tied().state_dict())
    model.scale.data.mul_(2)
    model.linear.weight.copy_(torch.randn(4, 4))
    graph.replay()
    assert torch.equal(output, model(x))


def test_what_was_replaced_can_be_put_back() -> None:
    model, x = Tied().eval(), torch.randn(2, 4)
    graph, output = captured(model, x)
    former = model.scale
    model.scale = nn.Parameter(torch.zeros(4))
    with pytest.raises(CaptureError, match="'scale'"):
        graph.replay()
    model.scale = former
    graph.replay()
    assert torch.equal(output, model(x))


def test_another_tensor_object_over_the_same_memory_is_no_change() -> None:
    model, x = Tied().eval(), torch.randn(2, 4)
    graph, output = captured(model, x)
    model.scale = nn.Parameter(model.scale.detach())
    graph.replay()
    model.scale.fill_(3)
    graph.replay()
    assert torch.equal(output, model(x))
    model.scale.data = torch.ones(4)
    with pytest.raises(CaptureError, match="parameter 'scale' of Tied has other memory now"):
        graph.replay()


def test_what_modules_hold_and_the_graph_does_not_read_may_change() -> None:
    model, x = Tied().eval(), torch.randn(2, 4)
    model.register_buffer("unused", torch.ones(3))
    model.other = nn.Linear(2, 2)
    graph, output = captured(model, x)
    model.unused = torch.zeros(5)
    model.other = nn.Linear(3, 3).train()
    graph.replay()
    assert torch.equal(output, model(x))


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda x: setattr(x, "data", torch.zeros(5)), "has other memory now"),
        (lambda x: x.set_(torch.zeros(3)), "has other memory now"),
        (lambda x: x.resize_(2), "has another shape now"),
        (lambda x: x.unsqueeze_(0), "has another shape now"),
    ],
    ids=["data", "set_", "resize_", "unsqueeze_"],
)
@pytest.mark.parametrize("read", [lambda x: x * 2, lambda x: x[1:] * 2], ids=["whole", "view"])
def test_input_that_was_swapped_or_reshaped_is_refused(
    change: Callable[[torch.Tensor], None], how: str, read: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.ones(3)
    graph, _ = captured(read, x)
    change(x)
    with pytest.raises(CaptureError, match=rf"the tensor .*float32\[3\].* {how}"):
        graph.replay()


def test_freed_input_keeps_its_content() -> None:
    inputs = [torch.ones(3)]
    graph, output = captured(lambda: inputs[0] * 2)
    inputs.clear()
    graph.replay()
    assert output.tolist() == [2, 2, 2]


def test_memory_swapped_by_the_run_itself_is_refused_by_the_capture() -> None:
    x = torch.ones(3)

    def run() -> torch.Tensor:
        y = x * 2
        x.data = torch.zeros(3)
        return y

    with pytest.raises(CaptureError, match=r"the run itself changed .*float32\[3\] of aten::mul"):
        captured(run)


class Recurrent(nn.Module):
    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(3))
        self.last = torch.zeros(3)
        self._in_place = in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = self.state * 2 + x
        if self._in_place:
            self.state.copy_(new)
        else:
            self.state = new
        self.last = new  # never read
        return new


def test_state_that_a_module_keeps_in_python_is_refused_by_the_capture() -> None:
    with pytest.raises(CaptureError, match=r"the run reads '\w+\.state' and puts another tensor"):
        captured(Recurrent(in_place=False), torch.ones(3))


def test_state_that_a_module_writes_in_place_goes_on() -> None:
    model, x = Recurrent(in_place=True), torch.ones(3)
    graph, output = captured(model, x)
    for expected in (3, 7):
        graph.replay()
        assert output.tolist() == [expected] * 3


def test_replay_moves_the_versions_of_what_it_writes_and_backward_notices() -> None:
    x, p = torch.ones(3), torch.ones(3, requires_grad=True)
    graph, output = captured(lambda: x * 2)
    with torch.enable_grad():
        loss = (output * p).sum()
    x.fill_(5)
    graph.replay()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_replay_moves_the_versions_of_tensors_from_before_and_of_views() -> None:
    cache, x, untouched = torch.zeros(4, 2), torch.ones(2), torch.ones(2)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        cache[1].copy_(x)
        return (untouched @ cache.t()).reshape(2, 2), untouched.view(1, 2)

    graph, (result, _) = captured(step)
    before = [tensor._version for tensor in (cache, result, x, untouched)]
    graph.replay()
    after = [tensor._version for tensor in (cache, result, x, untouched)]
    assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1, 0, 0]


def test_tensors_of_inference_mode_have_no_version_to_move() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
        graph, output = captured(lambda: x * 2)
        x.fill_(4)
    graph.replay()
    assert output.tolist() == [8, 8, 8]


def test_graph_that_its_model_holds_is_collected_with_it() -> None:
    model, x = Tied().eval(), torch.randn(2, 4)
    outer = nn.Sequential(model)
    outer.graph, _ = captured(outer, x)
    alive = weakref.ref(model)
    del model, outer
    gc.collect()
    assert alive() is None


def test_compiled_module_is_watched_through_its_original() -> None:
    torch._dynamo.reset()
    model, x = Tied().eval(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    graph, output = captured(compiled, x)
    model.linear.weight.mul_(2)
    graph.replay()
    assert torch.equal(output, model(x))
    model.linear.weight = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(CaptureError, match=r"parameter 'linear\.weight' of Tied is another tensor"):
        graph.replay()


class Dropping(nn.Module):
    """What TorchScript keeps in C++: parameters, a buffer, an attribute, modules."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.randn(4))
        self.mask = torch.tensor([1.0, 0.0, 1.0, 1.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.linear(x) * self.mask + self.shift, 0.5, self.training)


def _script_parameter(model: Any) -> None:
    model.linear.weight = nn.Parameter(torch.zeros(4, 4))


def _script_data(model: Any) -> None:
    model.linear.bias.data = torch.zeros(4)


def _script_attribute(model: Any) -> None:
    model.mask = torch.zeros(4)


def _script_submodule(model: Any) -> None:
    model._modules["linear"] = torch.jit.script(nn.Linear(4, 4))


IN_SCRIPT: dict[str, tuple[Callable[[Any], None], str]] = {
    "parameter": (_script_parameter, r"attribute 'linear\.weight' of \w+ is another tensor now"),
    "data": (_script_data, r"attribute 'linear\.bias' of \w+ has other memory now"),
    "attribute": (_script_attribute, r"attribute 'mask' of \w+ is another tensor now"),
    "submodule": (_script_submodule, r"submodule 'linear' of \w+ is another \w+ now"),
    "train": (lambda model: model.train(), r"'training' of module \w+ was False and is True"),
}


@pytest.mark.parametrize("name", IN_SCRIPT)
def test_what_a_torchscript_module_holds_is_replaced_and_replay_names_it(name: str) -> None:
    change, text = IN_SCRIPT[name]
    model, x = torch.jit.script(Dropping().eval()), torch.randn(2, 4)
    graph, output = captured(model, x)
    model.linear.weight.mul_(2)
    graph.replay()
    assert torch.equal(output, model(x))
    change(model)
    with pytest.raises(CaptureError, match=text):
        graph.replay()


@pytest.mark.parametrize("make", [lambda m: m, lambda m: nn.Sequential(nn.ReLU(), m)])
def test_traced_module_is_captured_and_watched(make: Callable[[nn.Module], nn.Module]) -> None:
    x = torch.randn(2, 4)
    traced = torch.jit.trace(Dropping().eval(), x)
    model = make(traced)
    graph, output = captured(model, x)
    x.copy_(torch.randn(2, 4))
    graph.replay()
    assert torch.equal(output, model(x))
    other = torch.randn(2, 4)
    assert torch.equal(graph.run(other), model(other))
    traced.linear.weight = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(CaptureError, match=r"'[\w.]*linear\.weight' of \w+ is another tensor now"):
        graph.replay()


def test_refresh_takes_nothing_that_moved_for_given() -> None:
    model, x = Tied().eval(), torch.randn(2, 4)
    graph, output = captured(model, x)
    graph.refresh()
    graph.replay()
    assert torch.equal(output, model(x))
    model.scale = nn.Parameter(torch.zeros(4))
    with pytest.raises(CaptureError, match="'scale' of Tied is another tensor now"):
        graph.refresh()
    with pytest.raises(CaptureError, match=r"CapturedGraph\.refresh: nothing is captured"):
        graphs.CapturedGraph().refresh()
