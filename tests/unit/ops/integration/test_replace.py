"""`replace`: layers that run other functions, counted, until it is undone."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from bringup import ops


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        return x * self.weight + shift


class SpecialNorm(Norm):
    pass


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Norm()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), Norm()) for _ in range(2)])
        self.special = SpecialNorm()
        self.shared = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.shared(self.special(x, shift=1.0))


def negated(layer: Norm, x: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
    return -(x * layer.weight + shift)


X = torch.ones(4)


def test_every_layer_of_the_class_runs_the_function_and_is_counted() -> None:
    model = Model()
    done = ops.replace_modules(model, {"Norm": negated})
    assert done.counts == {"Norm": 3}
    assert done.total == 3
    assert done.names == ("first", "blocks.0.1", "blocks.1.1")
    assert torch.equal(model.first(X), -2 * X)
    assert torch.equal(model.blocks[0][1](X, shift=1.0), -3 * X)
    assert torch.equal(model.special(X), 2 * X)  # a subclass is another class
    assert repr(done) == "<Replacement of Norm x 3>"


def test_undo_gives_back_what_was_there() -> None:
    model = Model()
    expected, before = model(X), dict(model.first.__dict__)
    done = ops.replace_modules(model, {"Norm": negated, SpecialNorm: negated})
    assert done.counts == {"Norm": 3, "SpecialNorm": 1}
    assert not torch.equal(model(X), expected)
    assert done.active
    done.undo()
    assert not done.active
    assert torch.equal(model(X), expected)
    assert model.first.__dict__.keys() == before.keys()
    done.undo()
    assert repr(done) == "<Replacement of Norm x 3, SpecialNorm x 1, undone>"


def test_block_ends_the_replacement_also_after_an_error() -> None:
    model = Model()
    with (
        pytest.raises(ZeroDivisionError),
        ops.replace_modules(model, {"Norm": lambda layer, x: 1 / 0}),
    ):
        model.first(X)
    assert torch.equal(model.first(X), 2 * X)


def test_forward_that_was_replaced_before_comes_back() -> None:
    model = Model()
    with ops.replace_modules(model, {"Norm": negated}):
        with ops.replace_modules(model, {"Norm": lambda layer, x: x * 0}):
            assert torch.equal(model.first(X), 0 * X)
        assert torch.equal(model.first(X), -2 * X)


def test_undo_in_the_wrong_order_is_refused_and_changes_nothing() -> None:
    model = Model()
    outer = ops.replace_modules(model, {"Norm": negated})
    inner = ops.replace_modules(model, {Norm: lambda layer, x: x * 0})
    with pytest.raises(RuntimeError, match="replacement of a Norm: its forward was replaced again"):
        outer.undo()
    assert torch.equal(model.first(X), 0 * X)
    inner.undo()
    outer.undo()
    assert torch.equal(model.first(X), 2 * X)


def test_names_weights_and_hooks_stay() -> None:
    model = Model()
    seen: list[str] = []
    model.first.register_forward_hook(lambda *_: seen.append("hook"))
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    with ops.replace_modules(model, {"Norm": negated}):
        after = {name: value.data_ptr() for name, value in model.state_dict().items()}
        assert after == before
        assert str(model) == str(Model())
        model.first(X)
    assert seen == ["hook"]


def test_gradients_flow_through_the_function() -> None:
    model = Model()
    with ops.replace_modules(model, {"Norm": negated}):
        model.first(X).sum().backward()
    assert torch.equal(model.first.weight.grad, -X)


def test_copy_of_the_model_runs_the_function_with_its_own_weights() -> None:
    model = Model()
    with ops.replace_modules(model, {"Norm": negated}):
        twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.first.weight.fill_(3)
    assert torch.equal(twin.first(X), -3 * X)
    assert torch.equal(model.first(X), 2 * X)


def test_replaced_model_can_be_pickled() -> None:
    model = Model()
    ops.replace_modules(model, {"Norm": negated})
    twin = pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(X), model(X))


def test_model_that_is_compiled_already_takes_the_function() -> None:
    torch._dynamo.reset()
    model = Model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    expected = compiled(X)
    with ops.replace_modules(compiled, {"Norm": negated}) as done:
        assert done.total == 3
        assert torch.equal(compiled(X), model(X))
        assert not torch.equal(compiled(X), expected)
    assert torch.equal(compiled(X), expected)


def test_operator_reaches_the_graph_of_a_compiled_model() -> None:
    torch._dynamo.reset()
    library = torch.library.Library("bringup_test_replace", "DEF")
    library.define("scale(Tensor x, Tensor w) -> Tensor")
    library.impl("scale", lambda x, w: x * w, "CompositeExplicitAutograd")
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    model = Model()
    op = torch.ops.bringup_test_replace.scale
    with ops.replace_modules(model, {"Norm": lambda layer, x: op(x, layer.weight)}):
        torch.compile(model, backend=backend, fullgraph=True)(X)
    assert (
        sum(
            op in (n.target, getattr(n.target, "overloadpacket", None))
            for n in graphs[0].graph.nodes
        )
        == 4
    )


def test_layer_of_transformers_is_replaced_by_name() -> None:
    """The issue's own example."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, intermediate_size=16,
    )  # fmt: skip
    model = transformers.LlamaModel(config).eval()
    ids = torch.arange(5).unsqueeze(0)
    expected = model(input_ids=ids).last_hidden_state

    def rms_norm(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], layer.weight, layer.variance_epsilon)

    with ops.replace_modules(model, {"LlamaRMSNorm": rms_norm}) as done:
        assert done.counts == {"LlamaRMSNorm": 5}
        torch.testing.assert_close(model(input_ids=ids).last_hidden_state, expected)


def test_unknown_class_suggests_and_replaces_nothing() -> None:
    model = Model()
    with pytest.raises(ValueError, match="a Model has no layer of class 'Nrom'; did you mean 'Nor"):
        ops.replace_modules(model, {"Norm": negated, "Nrom": negated})
    assert torch.equal(model.first(X), 2 * X)


def test_class_that_is_nowhere_lists_what_is_there() -> None:
    with pytest.raises(ValueError, match="no layer of class 'Conv3d'; it has Linear, Model, Modu"):
        ops.replace_modules(Model(), {nn.Conv3d: negated})


def test_two_keys_for_one_class_are_refused() -> None:
    with pytest.raises(ValueError, match="two keys mean the same class, 'Norm'"):
        ops.replace_modules(Model(), {"Norm": negated, Norm: negated})


@pytest.mark.parametrize(
    ("model", "functions", "message"),
    [
        (3, {}, "expected a torch.nn.Module, got int"),
        (Model(), {"Norm": 3}, r"'Norm': expected a function of the layer .* got int \(3\)"),
        (Model(), {3: negated}, "expected the name of a class of modules, or the class, got 3"),
        (Model(), {int: negated}, "or the class, got <class 'int'>"),
    ],
)
def test_wrong_argument_is_refused(model: Any, functions: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ops.replace_modules(model, functions)


def test_failure_half_way_leaves_no_trace() -> None:
    class Stubborn(Norm):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "forward":
                raise AttributeError("no")
            super().__setattr__(name, value)

    model = nn.Sequential(Norm(), Stubborn())
    with pytest.raises(AttributeError, match="no"):
        ops.replace_modules(model, {"Norm": negated, Stubborn: negated})
    assert torch.equal(model[0](X), 2 * X)
