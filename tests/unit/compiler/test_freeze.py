"""options={"freeze": True}: weights are constants, folded once and watched."""

import pytest
import torch
from torch import nn

from bringup import compiler, graphs
from bringup.errors import CaptureError, ContractError


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def _linear():
    return nn.Sequential(nn.Linear(4, 3)).eval()


def test_frozen_weights_fold_what_depends_on_them_alone():
    model, x = _linear(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options={"freeze": True})
        assert torch.allclose(compiled(x), model(x))
    assert compiler.last_report().folded == 1  # the transpose of the weight


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_frozen_weight_written_later_raises_at_the_next_call_and_names_it(inner):
    model, x = _linear(), torch.randn(2, 4)
    options = {"freeze": True, "inner": inner}
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options=options)
        compiled(x)
        model[0].weight.mul_(2)
        with pytest.raises(
            ContractError, match=r"the weight '0\.weight' was frozen .* was written"
        ):
            compiled(x)


def test_frozen_weight_exchanged_for_another_tensor_raises_and_names_it():
    model, x = _linear(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options={"freeze": True})
        compiled(x)
        model[0].bias = nn.Parameter(torch.zeros(3))
        with pytest.raises(ContractError, match=r"'0\.bias' was frozen .* is another tensor now"):
            compiled(x)


def test_folded_constant_that_is_returned_is_not_shared_between_calls():
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(3))
    model.forward = lambda x: (x + 1, model.weight * 2)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options={"freeze": True})
        compiled(torch.zeros(3))[1].fill_(7)
        assert torch.equal(compiled(torch.zeros(3))[1], torch.full((3,), 2.0))


def test_buffer_that_the_model_writes_is_not_frozen():
    model = nn.Module()
    model.register_buffer("steps", torch.zeros(3))

    def forward(x):
        model.steps.add_(1)
        return x + model.steps

    model.forward = forward
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options={"freeze": True})
        results = [compiled(torch.zeros(3))[0].item() for _ in range(3)]
    assert results == [1.0, 2.0, 3.0]


def test_refold_computes_with_the_new_weights_once_per_change():
    model, x = _linear(), torch.randn(2, 4)
    options = {"freeze": True, "on_weight_change": "refold"}
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options=options)
        compiled(x)
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        first = compiler.last_report()
        torch.testing.assert_close(compiled(x), model(x))
        assert compiler.last_report() is first
        model[0].bias = nn.Parameter(torch.ones(3))
        torch.testing.assert_close(compiled(x), model(x))


def test_refold_and_capture_go_together():
    model, x = _linear(), torch.randn(2, 4)
    options = {"freeze": True, "on_weight_change": "refold", "capture": True}
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options=options)
        torch.testing.assert_close(compiled(x), model(x))
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))


def test_exported_program_has_frozen_weights_and_is_saved_with_what_was_folded(tmp_path):
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return x * (self.weight.exp() + 1) + self.weight

    model, x = Norm(), torch.randn(2, 4)
    expected = model(x)
    program = torch.export.export(model, (x,)).run_decompositions({})
    before = len(program.graph.nodes)
    report = compiler.apply_passes(program)
    assert report.folded == 2  # exp and the addition
    assert not [n for n in program.graph.nodes if "exp" in str(n.target)]
    assert len(program.graph.nodes) == before - 1  # two operators less, one constant more
    file = tmp_path / "program.pt2"
    torch.export.save(program, file)
    module = torch.export.load(file).module()
    torch.testing.assert_close(module(x), expected)
    assert module.count.item() == 2  # the eager call counted once; a written buffer stays a buffer


class _Shifted(nn.Module):
    """Two weights in front of two inputs that share memory and are written."""

    def __init__(self):
        super().__init__()
        self.p, self.q = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x, y):
        z = self.p * 2 + self.q
        x.add_(1)
        y.mul_(z)
        return z - self.q


@pytest.mark.parametrize("on_change", ["raise", "refold"])
def test_weights_are_told_from_inputs_that_aot_autograd_put_in_front_of_them(on_change):
    """Inputs that share memory and are written become one input, the first of all."""
    model, base = _Shifted(), torch.randn(8)
    with torch.no_grad():
        options = {"freeze": True, "on_weight_change": on_change}
        compiled = torch.compile(model, backend="bringup", options=options)
        for _ in range(2):
            first, second = base.clone(), base.clone()
            assert torch.equal(compiled(first[:], first.view(8)), model(second[:], second.view(8)))
            assert torch.equal(first, second)
    assert compiler.last_report().folded >= 2  # what depends on p and q alone


def test_weight_that_is_given_twice_is_frozen_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.randn(4))

        def forward(self, x, other):
            x.add_(1)
            return x * self.p + other

    model = Twice()
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options={"freeze": True})
        for other in (model.p, torch.randn(4)):
            x = torch.randn(4)
            assert torch.equal(compiled(x.clone(), other), model(x.clone(), other))


def _captured_by_hand(model, x, **options):
    compiled = torch.compile(model, backend="bringup", options={"freeze": True, **options})
    compiled(x)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        output = compiled(x)
    return compiled, graph, output


@pytest.mark.parametrize("on_change", ["raise", "refold"])
@torch.no_grad()
def test_replay_of_a_captured_frozen_function_names_the_weight_that_was_loaded_anew(on_change):
    model, x = _linear(), torch.randn(2, 4)
    _, graph, output = _captured_by_hand(model, x, on_weight_change=on_change)
    expected = model(x)
    graph.replay()
    torch.testing.assert_close(output, expected)
    model.load_state_dict(_linear().state_dict())
    with pytest.raises(
        CaptureError, match=r"the weight '0\.(weight|bias)' was frozen into .* and was written"
    ):
        graph.replay()
    torch.testing.assert_close(output, expected)


@torch.no_grad()
def test_replay_of_a_captured_frozen_function_sees_replaced_weights():
    model, x = _linear(), torch.randn(2, 4)
    _, graph, _ = _captured_by_hand(model, x)
    model[0].weight = nn.Parameter(torch.zeros(3, 4))
    with pytest.raises(CaptureError, match=r"'0\.weight' of Sequential is another tensor now"):
        graph.replay()


@torch.no_grad()
def test_refresh_accepts_the_same_content_and_finds_one_element_that_was_written():
    model, x = _linear(), torch.randn(2, 4)
    _, graph, output = _captured_by_hand(model, x)
    model.load_state_dict(model.state_dict())
    with pytest.raises(CaptureError, match="was written"):
        graph.replay()
    graph.refresh()
    graph.replay()
    torch.testing.assert_close(output, model(x))
    model[0].weight.data[1, 2] = 100
    with pytest.raises(CaptureError, match=r"the weight '0\.weight' was frozen .* was written"):
        graph.refresh()


@torch.no_grad()
def test_write_to_every_element_through_data_is_seen_and_refolded():
    model, x = _linear(), torch.randn(2, 4)
    options = {"freeze": True, "on_weight_change": "refold", "capture": True}
    compiled = torch.compile(model, backend="bringup", options=options)
    compiled(x)
    model[0].weight.data += 1
    torch.testing.assert_close(compiled(x), model(x))
    model[0].bias.data = torch.randn(3)
    torch.testing.assert_close(compiled(x), model(x))
    model[0].weight.set_(torch.randn(3, 4))
    torch.testing.assert_close(compiled(x), model(x))


@torch.no_grad()
def test_one_element_written_through_data_is_seen_once_its_turn_comes():
    model, x = _linear(), torch.randn(2, 4)
    compiled = torch.compile(model, backend="bringup", options={"freeze": True})
    compiled(x)
    model[0].weight.data[2, 1] = 100  # 12 elements, each of which is looked at in turn

    def call_twelve_times():
        for _ in range(12):
            compiled(x)

    with pytest.raises(ContractError, match=r"'0\.weight' was frozen .* was written"):
        call_twelve_times()


@torch.no_grad()
def test_limit_an_element_of_a_large_weight_written_through_data_goes_unseen():
    """What docs/graphs/capture.md states: only counted elements of a weight are looked at."""
    model, x = nn.Module(), torch.randn(2, 64)
    model.weight = nn.Parameter(torch.randn(64, 64))
    model.forward = lambda x: x @ model.weight.exp()
    compiled = torch.compile(model, backend="bringup", options={"freeze": True})
    before = compiled(x)
    model.weight.data[1, 1] = 100
    for _ in range(20):
        assert torch.equal(compiled(x), before)


@torch.no_grad()
def test_weights_of_inference_mode_are_frozen_only_when_asked_for():
    with torch.inference_mode():
        model = _linear()
    x = torch.randn(2, 4)
    with torch.inference_mode():
        compiled = torch.compile(model, backend="bringup", options={"freeze": True})
        with pytest.warns(UserWarning, match="2 of 2 weights of .* are inference tensors"):
            compiled(x)
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        torch.compiler.reset()
        options = {"freeze": True, "freeze_inference_tensors": True}
        compiled = torch.compile(model, backend="bringup", options=options)
        torch.testing.assert_close(compiled(x), model(x))
        model[0].weight.mul_(2)
        with pytest.raises(ContractError, match=r"'0\.weight' was frozen .* was written"):
            compiled(x)
