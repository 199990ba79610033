"""Every random operator draws from the generator of its tensors' device, or from the one that it is
given, and from no other; a replay draws what a call would draw.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.sweeps.random_calls import (
    SIZE,
    Call,
    function_calls,
    operator_calls,
    random_operators,
    reason_against,
)
from tests.sweeps.support import sized
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bringup import devices, graphs
from bringup.errors import CaptureError

# What reads random numbers or bounds on the host, which a capture refuses.
NOT_CAPTURED = ("aten::randint_like.Tensor", "nn.init.trunc_normal_", "distributions.VonMises")
DEVICES = ("cpu", "npu:0", "npu:1")
REPLAYS = sized(3, 40)
SEEDS = sized(1, 20)
DRAWN = 100
CALLS = sized(100, 2000)


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _generators(explicit: torch.Generator | None) -> dict[str, torch.Generator]:
    found = {"cpu": torch.default_generator}
    found |= {f"npu:{i}": generator for i, generator in enumerate(torch.npu.default_generators)}
    return found if explicit is None else found | {"explicit": explicit}


def _states(generators: dict[str, torch.Generator]) -> dict[str, bytes]:
    return {
        name: bytes(generator.get_state().numpy().tobytes())
        for name, generator in generators.items()
    }


def _values(result: Any) -> list[Tensor]:
    results = result if isinstance(result, (tuple, list)) else [result]
    return [value.cpu().clone() for value in results if isinstance(value, Tensor)]


def _same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(
        torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(left, right, strict=True)
    )


class Trial:
    """One call, with the generator that it shall draw from and no other."""

    def __init__(self, call: Call, device: str, explicit: torch.Generator | None) -> None:
        self.call = call
        self.explicit = explicit
        self.expected = "explicit" if explicit is not None else device
        self.generators = _generators(explicit)

    def seed(self, seed: int) -> None:
        self.generators[self.expected].manual_seed(seed)

    def sequence(self, seed: int, length: int) -> list[list[Tensor]]:
        self.call.reset()
        self.seed(seed)
        return [_values(self.call.run(self.explicit)) for _ in range(length)]

    def check_calls(self) -> None:
        """The one generator advances; seeds repeat; other seeds and later calls differ."""
        before = _states(self.generators)
        self.sequence(1, 1)
        after = _states(self.generators)
        moved = {name for name in before if before[name] != after[name]}
        assert moved <= {self.expected}, self._where(f"moved {moved}")
        if not self.call.draws:
            return
        state = self.generators[self.expected].get_state()
        seeded = self.generators[self.expected].manual_seed(1).get_state()
        assert not torch.equal(state, seeded), self._where("the generator did not advance")
        first, second = self.sequence(1, 2)
        assert _same(self.sequence(1, 1)[0], first), self._where("a seed does not repeat")
        assert not _same(self.sequence(2, 1)[0], first), self._where("seeds do not differ")
        assert not _same(first, second), self._where("calls do not differ")

    def check_state(self) -> None:
        """A state that was read and set again, and `fork_rng`, repeat the numbers."""
        generator = self.generators[self.expected]
        self.seed(3)
        state = generator.get_state()
        self.call.reset()
        first = _values(self.call.run(self.explicit))
        generator.set_state(state)
        self.call.reset()
        assert _same(_values(self.call.run(self.explicit)), first), self._where("state")
        before = _states(self.generators)
        with torch.random.fork_rng(devices=range(2), device_type="npu"):
            self.call.run(None)
        assert _states(self.generators) == before, self._where("fork_rng leaves a trace")

    def check_replays(self, seed: int) -> None:
        """A capture leaves no trace; replays give what calls give, and advance as they do."""
        self.call.reset()
        self.seed(7)
        before = _states(self.generators)
        graph = graphs.CapturedGraph()
        with graphs.capture(graph):
            result = self.call.run(self.explicit)
        assert _states(self.generators) == before, self._where("the capture moved a generator")
        expected = self.sequence(seed, REPLAYS)
        left = _states(self.generators)
        self.call.reset()
        self.seed(seed)
        for number, values in enumerate(expected):
            graph.replay()
            assert _same(_values(result), values), self._where(f"replay {number} differs")
        assert _states(self.generators) == left, self._where("replays advance differently")

    def check_refusal(self) -> None:
        """A capture is refused and leaves no trace."""
        before = _states(self.generators)
        with pytest.raises(CaptureError), graphs.capture(graphs.CapturedGraph()):
            self.call.run(self.explicit)
        assert _states(self.generators) == before, self._where("the capture moved a generator")

    def _where(self, what: str) -> str:
        return f"{self.call.name} drawing from {self.expected}: {what}"


def _trials(device: str) -> Iterator[Trial]:
    for call in (*operator_calls(device), *function_calls(device)):
        yield Trial(call, device, None)
        if call.takes_generator:
            yield Trial(call, device, torch.Generator(device))


def test_every_random_operator_is_called_or_has_a_reason(sweep_counts: Counter[str]) -> None:
    for name in random_operators():
        sweep_counts["operators" if reason_against(name) is None else "left out"] += 1
    assert sweep_counts["operators"] > 100


@pytest.mark.parametrize("device", DEVICES)
def test_one_generator_advances_and_seeds_repeat(device: str, sweep_counts: Counter[str]) -> None:
    for trial in _trials(device):
        trial.check_calls()
        trial.check_state()
        sweep_counts["calls"] += 1


@pytest.mark.parametrize("device", DEVICES)
def test_replays_draw_what_calls_draw(device: str, sweep_counts: Counter[str]) -> None:
    for trial in _trials(device):
        if not trial.call.draws:
            continue
        if trial.call.name.startswith(NOT_CAPTURED):
            trial.check_refusal()
            sweep_counts["refusals"] += 1
            continue
        for seed in range(SEEDS):
            trial.check_replays(seed)
            sweep_counts["captures"] += 1


BLOCKS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: functional.dropout(torch.sin(x)),
    "dropout2d": lambda x: functional.dropout2d(x.reshape(1, SIZE, 1, 1) * x.sum()),
    "alpha_dropout": lambda x: functional.alpha_dropout(x * x, training=True),
    "rrelu": lambda x: functional.rrelu(-x * x, training=True),
    "attention": lambda x: functional.scaled_dot_product_attention(
        *[x.reshape(1, 1, 8, 8)] * 3, dropout_p=0.5
    ),
    "noise": lambda x: x * torch.randn_like(x) + x * torch.bernoulli(torch.full_like(x, 0.5)),
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x * x),
    "poisson": lambda x: x * torch.poisson(torch.full_like(x, 3)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_functions_have_the_gradients_of_plain_ones(
    device: str, reentrant: bool, sweep_counts: Counter[str]
) -> None:
    x = torch.linspace(0.2, 2, SIZE).to(device).requires_grad_()
    module = torch if device == "cpu" else torch.npu
    for name, block in BLOCKS.items():
        if name == "rrelu" and not reentrant:
            continue  # torch stops where rrelu saves its noise, before the noise is drawn
        for seed in range(SEEDS):
            gradients = []
            for checkpointed in (False, True):
                with torch.enable_grad(), torch.device(device):
                    torch.manual_seed(seed)
                    middle = (
                        checkpoint(block, x, use_reentrant=reentrant) if checkpointed else block(x)
                    )
                    result = middle * torch.rand_like(middle)
                    module.manual_seed(99)
                    x.grad = None
                    result.sum().backward()
                    gradients.append(x.grad)
            assert torch.equal(*gradients), f"{name} on {device}"
            sweep_counts["checkpoints"] += 1


def _empty() -> Tensor:
    return torch.empty(DRAWN, device="npu")


CONTINUOUS: dict[str, tuple[Callable[[], Tensor], torch.distributions.Distribution]] = {
    "uniform_": (lambda: _empty().uniform_(), torch.distributions.Uniform(0.0, 1.0)),
    "normal_": (lambda: _empty().normal_(), torch.distributions.Normal(0.0, 1.0)),
    "exponential_": (lambda: _empty().exponential_(), torch.distributions.Exponential(1.0)),
    "cauchy_": (lambda: _empty().cauchy_(), torch.distributions.Cauchy(0.0, 1.0)),
    "log_normal_": (lambda: _empty().log_normal_(0, 1), torch.distributions.LogNormal(0.0, 1.0)),
    "standard_gamma": (
        lambda: torch._standard_gamma(_empty().fill_(2.0)),
        torch.distributions.Gamma(2.0, 1.0),
    ),
}
DISCRETE: dict[str, tuple[Callable[[], Tensor], float, float]] = {  # mean and variance
    "bernoulli_": (lambda: _empty().bernoulli_(0.3), 0.3, 0.21),
    "dropout": (lambda: functional.dropout(_empty().fill_(1), 0.25), 1.0, 1 / 3),
    "geometric_": (lambda: _empty().geometric_(0.25), 4.0, 12.0),
    "poisson": (lambda: torch.poisson(_empty().fill_(12)), 12.0, 12.0),
    "binomial": (lambda: torch.binomial(_empty().fill_(20), _empty().fill_(0.5)), 10.0, 5.0),
    "randint": (lambda: torch.randint(10, (DRAWN,), device="npu").float(), 4.5, 8.25),
    "randperm": (lambda: torch.randperm(DRAWN, device="npu")[:1].float(), (DRAWN - 1) / 2, 0.0),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([1.0, 2, 1]).to("npu"), DRAWN, True).float(),
        1.0,
        0.5,
    ),
}


def test_numbers_of_many_calls_have_their_distribution(sweep_counts: Counter[str]) -> None:
    torch.npu.manual_seed(11)
    count = CALLS * DRAWN
    for name, (draw, law) in CONTINUOUS.items():
        drawn = torch.cat([draw().cpu() for _ in range(CALLS)]).double().sort().values
        steps = torch.arange(1, count + 1, dtype=torch.float64) / count
        distance = (law.cdf(drawn).double() - steps).abs().max() * math.sqrt(count)
        assert distance < 2.2, f"{name}: Kolmogorov's distance is {distance:.2f}"  # 1 in 8,000
        sweep_counts["numbers"] += count
    for name, (draw, mean, variance) in DISCRETE.items():
        drawn = torch.cat([draw().cpu() for _ in range(CALLS)]).double()
        variance = variance or (DRAWN**2 - 1) / 12
        error = (drawn.mean() - mean).abs() * math.sqrt(drawn.numel() / variance)
        assert error < 4, f"{name}: the mean is {error:.1f} standard errors away"
        assert abs(drawn.var() / variance - 1) < 20 / math.sqrt(drawn.numel()), name
        sweep_counts["numbers"] += drawn.numel()


def test_neighbouring_seeds_and_offsets_are_not_correlated() -> None:
    rows = []
    for seed in range(4):
        torch.npu.manual_seed(seed)
        rows += [torch.randn(5000, device="npu").cpu() for _ in range(sized(4, 50))]
    correlation = torch.corrcoef(torch.stack(rows)).fill_diagonal_(0).abs().max()
    assert correlation < 5.5 / math.sqrt(5000)
