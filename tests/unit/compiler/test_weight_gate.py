"""Mode "max": packed weights in fewer bits, layer by layer, where results stay close."""

import logging

import pytest
import torch
from torch import nn

from bringup import compiler
from bringup.compiler.weight_gate import choose_layers, narrow

DTYPES = ["bfloat16", "int8", "w8a8"]


@pytest.fixture(autouse=True)
def shipped(empty_registry, monkeypatch):
    monkeypatch.delenv("BRINGUP_PASS_LIBRARY")
    torch._dynamo.reset()


class Layers(nn.Module):
    """Two layers; the second may have a few weights that are out of proportion."""

    def __init__(self, outlier=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 24)
        with torch.no_grad():
            self.second.weight[:, 0] += outlier

    def forward(self, x):
        return self.second(self.first(x).relu())


def said(caplog):
    (line,) = [text for text in caplog.messages if "packed weights in" in text]
    return line


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_become_narrow_where_results_stay_close(dtype, caplog):
    model, x = Layers().eval(), torch.randn(5, 32)
    run = torch.compile(model, backend="bringup", options={"weights": dtype})
    expected = model(x)
    for _ in range(2):
        got = run(x)
        assert torch.cosine_similarity(got, expected).min() > 0.999
        assert not torch.equal(got, expected)
    assert f"2 of 2 packed weights in {dtype}" in said(caplog)
    assert "the same top-1" in said(caplog)


@torch.no_grad()
def test_layer_that_is_not_close_stays_in_float32(caplog):
    """A column of large weights takes the steps of int8 from all others; its input is zero."""
    model, x = Layers(outlier=3e4).eval(), torch.randn(5, 32)
    model.first.weight[0], model.first.bias[0] = 0, -1.0
    run = torch.compile(model, backend="bringup", options={"weights": "int8"})
    got, expected = run(x), model(x)
    assert torch.cosine_similarity(got, expected).min() > 0.999
    assert "1 of 2 packed weights in int8" in said(caplog)
    assert "in float32 stay 1: cosine" in said(caplog)


@torch.no_grad()
def test_max_is_bfloat16_captured_and_other_inputs_are_close_too(caplog):
    caplog.set_level(logging.INFO, logger="bringup.compiler")
    model = Layers().eval()
    run = torch.compile(model, backend="bringup", mode="max")
    for _ in range(4):
        x = torch.randn(5, 32)
        assert torch.cosine_similarity(run(x), model(x)).min() > 0.999
    assert "2 of 2 packed weights in bfloat16" in said(caplog)
    assert sum(text.startswith("captured ") for text in caplog.messages) == 1


@torch.no_grad()
def test_weights_that_change_are_packed_in_float32(caplog):
    model, x = Layers().eval(), torch.randn(5, 32)
    run = torch.compile(model, backend="bringup", mode="max")
    run(x)
    model.first.weight.mul_(-2)
    torch.testing.assert_close(run(x), model(x))


@torch.no_grad()
def test_cache_that_the_model_writes_is_written_once_by_the_first_call():
    """The gate runs the graph several times; only the call itself may leave a trace."""

    class Counting(Layers):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return super().forward(x) + self.calls

    model, x = Counting().eval(), torch.randn(5, 32)
    run = torch.compile(model, backend="bringup", mode="max")
    for count in range(1, 4):
        run(x)
        assert model.calls.item() == count


def packed_module(model, x):
    """The compiled graph before its weights became narrow."""
    graphs = []
    import bringup.compiler.inference_graph as owner

    original = owner.run_eagerly
    owner.run_eagerly = lambda graph, inputs: graphs.append(graph) or original(graph, inputs)
    try:
        with torch.no_grad():
            torch.compile(model, backend="bringup")(x)
    finally:
        owner.run_eagerly = original
    return graphs[-1], [*model.parameters(), x]


def two_columns():
    """A layer whose two columns give nearly the same for every row, by one large element."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 2, bias=False)).eval(), torch.randn(4000, 32)
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(2, 32) * 0.1)
        model[0].weight[:, 0] = 0.1
        x[:, 0] = 50
    return packed_module(model, x)


def test_top_1_that_would_differ_keeps_float32():
    """The large element leaves few steps of int8 for the others, which decide."""
    found = choose_layers(*two_columns(), "w8a8")
    assert found.layers == ()
    assert found.refused == {0: "top-1 differs"}


def test_top_1_of_a_tie_may_differ():
    """Rounding the weights to bfloat16 changes the order of columns that are a rounding apart."""
    module, arguments = two_columns()
    rounded = arguments[0].bfloat16().float()
    exact, near = arguments[-1] @ arguments[0].t(), arguments[-1] @ rounded.t()
    assert not torch.equal(exact.argmax(-1), near.argmax(-1))
    assert choose_layers(module, arguments, "bfloat16").layers == (0,)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_are_not_finite_keep_float32_unless_nothing_differs(dtype):
    model, x = nn.Sequential(nn.Linear(4, 16, bias=False)).eval(), torch.ones(2, 4)
    with torch.no_grad():
        model[0].weight[3, 2] = torch.inf
    module, arguments = packed_module(model, x)
    assert choose_layers(module, arguments, dtype).layers == ()
    narrow(module, [], dtype)
    torch.testing.assert_close(module(*arguments)[0], model(x))


def test_other_modes_say_nothing(caplog):
    model, x = Layers().eval(), torch.randn(5, 32)
    with torch.no_grad():
        torch.compile(model, backend="bringup", mode="serve")(x)
    assert not [text for text in caplog.messages if "packed weights in" in text]
    assert compiler.last_report().matches["LibraryPackLinear"] == 2
