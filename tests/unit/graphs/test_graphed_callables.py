"""Captured callables in a training loop: eager's losses, gradients and parameters."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bringup import devices, graphs
from bringup.errors import CaptureError, ContractError

DEVICES = ["cpu", "npu"]


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.fixture(autouse=True)
def _with_gradients(_without_gradients: None) -> Any:
    with torch.enable_grad():
        yield


class Block(nn.Module):
    """Attention, a norm, an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        y = (torch.softmax(q @ k.mT / 8**0.5, -1) @ v).transpose(1, 2).flatten(2)
        return x + self.mlp(self.norm(x + y))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(72, 4),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "attention": (Block, (2, 5, 16)),
    "convolution": (convolutional, (4, 3, 8, 8)),
    "recurrent": (lambda: nn.RNNCell(6, 6), (3, 6)),
}


def losses(model: nn.Module, inputs: list[Tensor], device: str) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for x in inputs:
        y = model(x.to(device))
        loss = y.square().mean()
        loss.backward()
        found.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_eagers(name: str, device: str) -> None:
    make, shape = MODELS[name]
    eager = make().to(device)
    model = copy.deepcopy(eager)
    inputs = [torch.randn(shape) for _ in range(6)]
    graphed = graphs.make_graphed_callables(model, (torch.randn(shape, device=device),))
    assert graphed is model
    torch.testing.assert_close(
        losses(graphed, inputs, device), losses(eager, inputs, device), rtol=1e-5, atol=1e-6
    )
    expected = eager.state_dict()
    for key, value in graphed.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_reach_inputs_parameters_and_what_comes_before(device: str) -> None:
    layer = nn.Linear(4, 4).to(device)
    twin = copy.deepcopy(layer)
    before, x = torch.randn(3, 4, device=device, requires_grad=True), torch.randn(3, 4).to(device)

    def run(layer: nn.Module) -> list[Tensor]:
        before.grad = None
        z = layer(before * x) * 3
        z.sum().backward()
        assert before.grad is not None
        return [z.detach(), before.grad, layer.weight.grad, layer.bias.grad]

    expected = run(twin)
    sample = torch.zeros(3, 4, device=device, requires_grad=True)
    graphs.make_graphed_callables(layer, (sample,))
    for ours, theirs in zip(run(layer), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert sample.grad is None
    assert not sample.any()


def test_gradients_accumulate_and_share_no_memory_with_the_graphs() -> None:
    layer = graphs.make_graphed_callables(nn.Linear(2, 1, bias=False), (torch.zeros(1, 2),))
    for x in ([1.0, 2.0], [10.0, 20.0]):
        layer(torch.tensor([x])).sum().backward()
    assert layer.weight.grad.tolist() == [[11, 22]]


def test_results_of_two_calls_are_kept_apart() -> None:
    double = graphs.make_graphed_callables(lambda x: x * 2, (torch.zeros(2),))
    one, two = double(torch.ones(2)), double(torch.full((2,), 5.0))
    assert one.tolist() == [2, 2]
    assert two.tolist() == [10, 10]


def test_backward_after_another_call_raises() -> None:
    weight = torch.randn(2, requires_grad=True)
    square = graphs.make_graphed_callables(lambda x: (x * x,), (weight,))
    first = square(weight)[0]
    second = square(weight)[0]
    with pytest.raises(CaptureError, match="another call has run since"):
        first.sum().backward()
    second.sum().backward()
    torch.testing.assert_close(weight.grad, 2 * weight.detach())


def test_nests_integers_and_unused_inputs() -> None:
    def run(pair: dict[str, Tensor], unused: Tensor) -> dict[str, Tensor]:
        return {"y": pair["a"] @ pair["b"], "n": pair["a"].argmax(-1)}

    def sample() -> tuple[dict[str, Tensor], Tensor]:
        a, b = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2)
        return {"a": a, "b": b}, torch.randn(1, requires_grad=True)

    with pytest.raises(RuntimeError, match="allow_unused=True"):
        graphs.make_graphed_callables(run, sample())
    graphed = graphs.make_graphed_callables(run, sample(), allow_unused_input=True)
    pair, unused = sample()
    result = graphed(pair, unused)
    assert torch.equal(result["n"], pair["a"].argmax(-1))
    assert not result["n"].requires_grad
    result["y"].sum().backward()
    torch.testing.assert_close(pair["a"].grad, torch.ones(2, 2) @ pair["b"].T)
    assert unused.grad is None


def test_several_callables_in_order() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    twins = copy.deepcopy((first, second))
    x = torch.randn(2, 3, requires_grad=True)
    one, two = graphs.make_graphed_callables((first, second), ((x,), (x,)))
    two(one(x)).sum().backward()
    ours, x.grad = x.grad, None
    twins[1](twins[0](x)).sum().backward()
    torch.testing.assert_close(ours, x.grad)
    torch.testing.assert_close(first.weight.grad, twins[0].weight.grad)


def test_dropout_draws_new_numbers_and_backward_sees_the_same_mask() -> None:
    drop = graphs.make_graphed_callables(nn.Dropout(0.5), (torch.ones(64, requires_grad=True),))
    masks = []
    for _ in range(2):
        x = torch.ones(64, requires_grad=True)
        y = drop(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
        masks.append(y.detach())
    assert not torch.equal(*masks)


def test_other_mode_runs_eagerly_and_no_grad_replays() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    twin = copy.deepcopy(model)
    graphs.make_graphed_callables(model, (torch.randn(4, 2),))
    assert model[1].num_batches_tracked == 0  # the capture put it back
    x = torch.randn(4, 2)
    torch.testing.assert_close(model(x), twin(x))
    assert model[1].num_batches_tracked == 1
    with torch.no_grad():
        torch.testing.assert_close(model(x), twin(x))
        torch.testing.assert_close(model.eval()(x), twin.eval()(x))
        torch.testing.assert_close(model.eval()(x[:1]), twin(x[:1]))
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)


def test_calls_of_several_threads_give_their_own_results() -> None:
    layer = nn.Linear(8, 8)
    twin = copy.deepcopy(layer)
    graphs.make_graphed_callables(layer, (torch.zeros(1, 8),))

    def call(value: float) -> bool:
        x = torch.full((1, 8), value)
        return torch.equal(layer(x), twin(x))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, map(float, range(200))))


def graphed(function: Any, *sample: Any) -> Any:
    return graphs.make_graphed_callables(function, sample)


class _Gives(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x + 1, 3


def hooked() -> nn.Module:
    layer = nn.Sequential(nn.Linear(2, 2))
    layer[0].register_forward_hook(lambda *_: None)
    return layer


def with_buffer() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_buffer("state", torch.zeros(2, requires_grad=True))
    return layer


def with_history() -> Callable[[Tensor], Tensor]:
    before = torch.ones(2, requires_grad=True) * 2
    return lambda x: x * before


X = torch.zeros(1, 2)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: graphed(lambda n: X * n, 3), TypeError, r"takes 3 \(int\); sample arguments are"),
        (lambda: graphed(_Gives(), X), CaptureError, r"_Gives gives 3 \(int\); results are"),
        (lambda: graphed(hooked(), X), CaptureError, "Linear has hooks"),
        (lambda: graphed(with_buffer(), X), CaptureError, "buffer 'state' requires a gradient"),
        (lambda: graphed(nn.LazyLinear(2), X), CaptureError, "'weight' has no shape yet"),
        (lambda: graphs.make_graphed_callables(nn.ReLU(), X), TypeError, "one entry for each arg"),
        (lambda: graphs.make_graphed_callables((abs,), (X, X)), TypeError, "1 callables take a"),
        (lambda: graphed(7, X), TypeError, "7 cannot be called"),
        (lambda: graphed(lambda x: x.add_(1), X), CaptureError, "writes its argument 0.*clone"),
        (lambda: graphed(with_history(), X), CaptureError, "uses a tensor that MulBackward0 gave"),
        (lambda: graphed(graphed(nn.Linear(2, 2), X), X), CaptureError, "Linear is graphed alr"),
        (lambda: graphed(lambda x: x * x.sum().item(), X), CaptureError, "item"),
    ],
)
def test_refusals(make: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
    assert not graphs.is_current_stream_capturing()


def test_call_that_differs_from_the_sample_is_refused() -> None:
    layer = graphed(nn.Linear(2, 2), X)
    for x, words in (
        (torch.zeros(3, 2), "shape"),
        (torch.zeros(1, 2, dtype=torch.float64), "float64"),
        (torch.zeros(1, 2, requires_grad=True), "argument 0 requires a gradient, and did not"),
        ([X], "takes the arguments that it was captured with"),
    ):
        with pytest.raises(ContractError, match=words):
            layer(x)
    layer.bias.requires_grad_(False)
    with pytest.raises(ContractError, match="'bias' of Linear requires no gradient, and did"):
        layer(X)
    layer.bias.requires_grad_(True)
    layer.weight = nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(CaptureError, match="parameter 'weight'"):
        layer(X)


def test_weights_written_before_backward_raise_as_in_eager() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    graphed(model, torch.ones(1, 1))
    y = model(torch.ones(1, 1))
    with torch.no_grad():
        model[1].weight.fill_(100)
    with pytest.raises(CaptureError, match=r"'1.weight' of Sequential, which it reads, was modif"):
        y.sum().backward()
    y = model(torch.ones(1, 1)).sum()
    y.backward(retain_graph=True)
    y.backward()  # nothing was written
    assert model[0].weight.grad.item() == 200


def test_buffers_arguments_and_closed_over_tensors_written_before_backward_raise() -> None:
    norm, scale, x = nn.BatchNorm1d(2).eval(), torch.ones(2), torch.ones(3, 2, requires_grad=True)
    call = graphed(lambda x: norm(x) * scale * x, x)
    for name, tensor in (("norm.running_var", norm.running_var), ("scale", scale)):
        y = call(x)
        tensor.mul_(2)
        with pytest.raises(CaptureError, match=rf"'{name}', which it reads, was modified"):
            y.sum().backward()
    y = call(x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(CaptureError, match="argument 0, which it reads, was modified"):
        y.sum().backward()


@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameters_that_a_function_closes_over_get_gradients(requires_grad: bool) -> None:
    weight, layer = nn.Parameter(torch.ones(2)), nn.Linear(2, 2)
    twin = copy.deepcopy(layer)
    x = torch.ones(1, 2, requires_grad=requires_grad)
    graphed(lambda x: layer(x * weight), x)(x).sum().backward()
    twin(x * torch.ones(2)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad)
    torch.testing.assert_close(weight.grad, twin.weight.detach().sum(0))


def test_a_frozen_parameter_that_a_function_closes_over_is_named_when_it_is_no_longer() -> None:
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    call = graphed(lambda x: x * weight, torch.ones(2, requires_grad=True))
    weight.requires_grad_(True)
    with pytest.raises(ContractError, match="'weight' requires a gradient, and did not"):
        call(torch.ones(2, requires_grad=True))


def _pickled(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, _pickled], ids=["deepcopy", "pickle"])
def test_copies_of_a_graphed_module_are_their_own(copied: Callable[[nn.Module], Any]) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU())
    graphed(model[0], torch.ones(1, 1))
    twin = copied(model)
    with torch.no_grad():
        model[0].weight.fill_(3)
        twin[0].weight.fill_(7)
    assert twin(torch.ones(1, 1)).item() == 7
    twin(torch.ones(1, 1)).sum().backward()
    assert twin[0].weight.grad.item() == 1
    assert model[0].weight.grad is None
    assert model(torch.ones(1, 1)).item() == 3
    assert copied(twin)(torch.ones(1, 1)).item() == 7
    del model[0].forward
    assert graphed(model, torch.ones(1, 1))(torch.ones(1, 1)).item() == 3


def test_arguments_may_be_given_by_name() -> None:
    layer = graphed(nn.Linear(2, 2), X)
    assert torch.equal(layer(input=X), layer(X))
    with pytest.raises(TypeError, match=r"takes its arguments by position.* got scale by name"):
        graphed(lambda x, *, scale=1: x * scale, X)(X, scale=2)
