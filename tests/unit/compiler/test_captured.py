"""options={"capture": True}: one captured graph for each kind of call, results that are owned."""

import logging
import math

import pytest
import torch
from torch import nn

from bringup import compiler, ir, passes
from bringup.compiler import captured_calls
from bringup.errors import BringupError, CaptureError

CAPTURE = {"capture": True}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.fixture
def count_captures(caplog):
    """The number of captures made so far."""
    caplog.set_level(logging.INFO, logger="bringup.compiler")
    return lambda: sum(record.getMessage().startswith("captured ") for record in caplog.records)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()


@torch.no_grad()
def test_results_are_right_for_new_data_and_belong_to_the_caller(count_captures):
    model = network()
    compiled = torch.compile(model, backend="bringup", options=CAPTURE)
    inputs = [torch.randn(3, 8) for _ in range(4)]
    results = [compiled(x) for x in inputs]  # all kept while later calls replay the same graph
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, model(x))
    assert count_captures() == 1
    results[0].fill_(7)
    torch.testing.assert_close(compiled(inputs[0]), model(inputs[0]))


@torch.no_grad()
def test_input_is_copied_and_never_written(count_captures):
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend="bringup", options=CAPTURE)
    x = torch.tensor([-1.0, 2.0])
    compiled(x)
    y = torch.tensor([5.0, -6.0])
    assert compiled(y).tolist() == [6.0, 1.0]
    assert (x.tolist(), y.tolist()) == ([-1.0, 2.0], [5.0, -6.0])


@torch.no_grad()
def test_each_shape_is_captured_once_and_the_oldest_makes_room(count_captures):
    model = network()
    options = {**CAPTURE, "max_captures": 2}
    compiled = torch.compile(model, backend="bringup", options=options, dynamic=True)
    for rows in (2, 3, 2, 3, 4, 4, 3, 2):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    assert count_captures() == 4  # 2, 3, 4 pushes 2 out, 2 again


@torch.no_grad()
def test_strided_expanded_and_empty_inputs_and_results():
    def function(x):
        return torch.relu(x), x.sum(0, keepdim=True).expand(3, 4) + 0

    compiled = torch.compile(function, backend="bringup", options=CAPTURE, dynamic=False)
    base = torch.randn(4, 6)
    for x in (base.t()[::2], base[:1, :4].expand(3, 4), torch.randn(3, 4), torch.empty(0, 4)):
        for ours, expected in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(ours, expected)


@torch.no_grad()
def test_weights_are_read_in_place_and_their_changes_are_seen(count_captures):
    model, x = network(), torch.randn(3, 8)
    compiled = torch.compile(model, backend="bringup", options={**CAPTURE, "freeze": False})
    compiled(x)
    model[0].weight.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))
    assert count_captures() == 1


@torch.no_grad()
def test_passes_run_before_the_capture():
    @passes.register_fusion_pass(name="Swap", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Swap(passes.PatternFusionPass):
        @passes.pattern
        def gelu(self, inputs):
            return inputs[0].builder.op("aten::gelu", inputs[0])

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            return builder.op("aten::relu", *builder.create_inputs(1))

    model, x = network(), torch.randn(3, 8)
    compiled = torch.compile(model, backend="bringup", options={**CAPTURE, "freeze": True})
    torch.testing.assert_close(compiled(x), model[2](torch.relu(model[0](x))))
    assert compiler.last_report().matches == {"Swap": 1}


def test_training_graph_is_refused_by_name():
    with pytest.raises(Exception, match=r"takes inference graphs only, and the graph of Sequent"):
        torch.compile(network(), backend="bringup", options=CAPTURE)(torch.randn(3, 8))


@torch.no_grad()
def test_what_cannot_be_captured_is_named_and_the_next_call_tries_again():
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(
            lambda x: x * x.sum().item(), backend="bringup", options=CAPTURE, fullgraph=True
        )
        for _ in range(2):
            with pytest.raises(
                CaptureError, match=r"this graph cannot be captured: .* reads the value of a tensor"
            ):
                compiled(torch.ones(3, dtype=torch.int64))


@torch.no_grad()
def test_function_that_writes_its_input_still_does():
    def function(x):
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    compiled = torch.compile(function, backend="bringup", options=CAPTURE)
    assert compiled(x).tolist() == [2.0, 2.0, 2.0]
    assert compiled(x).tolist() == [4.0, 4.0, 4.0]
    assert x.tolist() == [2.0, 2.0, 2.0]


def test_operator_that_writes_a_placeholder_is_refused():
    from bringup.compiler.captured_calls import require_capturable

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.ops.aten.add_.Tensor, (x, 1))
    graph.output(x)
    module = torch.fx.GraphModule({}, graph)
    with pytest.raises(BringupError, match=r"aten\.add_\.Tensor writes input 'x' of the model"):
        require_capturable(module, "the model", frozenset())


@torch.no_grad()
def test_dropout_draws_anew_at_every_call():
    compiled = torch.compile(
        lambda x: nn.functional.dropout(x, 0.5), backend="bringup", options=CAPTURE
    )
    x = torch.ones(1000)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    assert 300 < (first == 0).sum() < 700


@torch.no_grad()
def test_factories_of_random_numbers_draw_what_the_model_draws():
    def noisy(x):
        return x * (torch.rand(64) < 0.5) + torch.randn_like(x) + torch.bernoulli(x)

    x = torch.linspace(0, 1, 64)
    compiled = torch.compile(noisy, backend="bringup", options=CAPTURE)
    drawn = {}
    for function in (noisy, compiled):
        torch.manual_seed(5)
        drawn[function] = [function(x) for _ in range(3)]
    assert all(map(torch.equal, drawn[noisy], drawn[compiled]))


@pytest.mark.parametrize("view", [torch.conj, lambda w: torch._neg_view(w)], ids=["conj", "neg"])
@torch.no_grad()
def test_conjugated_or_negated_view_of_a_weight_is_another_kind_of_call(view):
    x, weight = torch.ones(2, dtype=torch.complex64), torch.tensor([1 + 2j, 3 - 1j])
    run = _captured(torch.mul, static={1})
    for _ in range(2):
        assert torch.equal(*run([x, weight]), weight)
        assert torch.equal(*run([x, view(weight)]), view(weight))


@torch.no_grad()
def test_numbers_that_differ_in_one_bit_are_other_kinds_of_call(count_captures):
    x = torch.ones(2)
    numbers = [0.0, -0.0, math.nan, complex(1, 0.0), complex(1, -0.0), complex(-0.0, math.nan)]
    numbers += [0, False]  # equal to 0.0, but of other types
    run = _captured(lambda x, number: torch.full_like(x, number, dtype=torch.complex64))
    for _ in range(2):
        for number in numbers:
            expected = torch.full_like(x, number, dtype=torch.complex64)
            bits = torch.view_as_real(expected).view(torch.int32)
            (result,) = run([x, number])
            assert torch.equal(torch.view_as_real(result).view(torch.int32), bits), number
    assert count_captures() == len(numbers)


def _captured(function, static=()):
    """A compiled graph of one operator, which captures itself."""
    return captured_calls.captured(
        lambda arguments: [function(*arguments)], "f", frozenset(static), max_captures=9
    )


def test_graph_that_only_hands_its_inputs_on_is_not_captured():
    """There is nothing to record; each call has its own results."""
    torch.compiler.reset()

    def function(x):
        return x.view(-1), x

    with torch.no_grad():
        compiled = torch.compile(function, backend="bringup", options={"capture": True})
        for _ in range(2):
            x = torch.randn(2, 3)
            assert all(map(torch.equal, compiled(x), function(x)))
