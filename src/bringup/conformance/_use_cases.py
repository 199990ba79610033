"""What is done with a device as a whole, as small cases: compiling, mixed precision, captured
graphs and training on several ranks (level 3), and models that train to the CPU's losses (level 4).

A case is a function of the device's name, as a point of the runtime is. One of `RANKED` runs in
`RANKS` processes at once, each of which knows its number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bringup import graphs

RANKS = 2
RANKED = ("ddp", "fsdp2")
LEVELS: dict[int, dict[str, Callable[[str], None]]] = {3: {}, 4: {}}
Batch = tuple[Tensor, Tensor]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]

_ROWS = 8
_GROUP_SECONDS = 45


def _case(level: int, kind: str) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    def kept(function: Callable[[str], None]) -> Callable[[str], None]:
        LEVELS[level][f"{kind}/{function.__name__.lstrip('_')}"] = function
        return function

    return kept


class _Network(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Has a forward of its own: of torch's modules the compiler leaves some calls alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.norm(functional.gelu(self.up(x))))
        return y


def _network() -> _Network:
    torch.manual_seed(0)
    return _Network()


def _batch(seed: int, rows: int = _ROWS) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 8, generator=generator), torch.randn(rows, 4, generator=generator)


_BATCHES = [_batch(seed) for seed in range(4)]


def _squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss: Tensor = (model(x) - y).square().mean()
    return loss


def train(
    model: nn.Module,
    batches: Sequence[Batch],
    loss_of: Loss = _squares,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[float]:
    """Return the losses of training a step a batch, where the model's weights are."""
    device = next(model.parameters()).device
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model, x.to(device), y.to(device))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def _agree(got: Any, expected: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(
        got, expected, rtol=tolerance, atol=tolerance, check_device=False, check_stride=False
    )


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Raise `AssertionError` where nothing was compiled in the block: eager is no proof."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield
    assert counters["stats"]["unique_graphs"], "torch.compile ran nothing compiled"


@_case(3, "compile")
def a_network_trains(device: str) -> None:
    with _compiling():
        got = train(torch.compile(_network().to(device)), _BATCHES)
    _agree(got, train(_network(), _BATCHES))


@_case(3, "compile")
def a_network_runs_with_the_passes_of_the_kit(device: str) -> None:
    x = _BATCHES[0][0]
    with _compiling(), torch.no_grad():
        got = torch.compile(_network().eval().to(device), backend="bringup")(x.to(device))
    _agree(got.cpu(), _network().eval()(x).detach())


@_case(3, "compile")
def sizes_change(device: str) -> None:
    def scores(x: Tensor) -> Tensor:
        return torch.softmax(x * 2 + x.shape[0], -1).sum(0)

    with _compiling():
        compiled = torch.compile(scores, dynamic=True, fullgraph=True)
        for rows in (2, 5, 17):
            x = _batch(rows, rows)[0]
            _agree(compiled(x.to(device)).cpu(), scores(x))


def _mixed(dtype: torch.dtype, device: str) -> Loss:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device, dtype=dtype):
            got = model(x)
        assert got.dtype is dtype, f"autocast to {dtype} computed in {got.dtype}"
        return (got.float() - y).square().mean()

    return loss


@_case(3, "amp")
def a_network_trains_in_bfloat16(device: str) -> None:
    got = train(_network().to(device), _BATCHES, _mixed(torch.bfloat16, device))
    _agree(got, train(_network(), _BATCHES), 3e-2)


@_case(3, "amp")
def a_network_trains_in_float16_with_scaled_gradients(device: str) -> None:
    model = _network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    loss_of, got = _mixed(torch.float16, device), []
    for x, y in _BATCHES:
        optimizer.zero_grad()
        loss = loss_of(model, x.to(device), y.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        got.append(loss.item())
    _agree(got, train(_network(), _BATCHES), 1e-2)
    assert scaler.get_scale() == 2.0**10


@_case(3, "amp")
def an_overflow_costs_its_step_and_half_the_scale(device: str) -> None:
    weight = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    _agree(weight.detach().cpu(), torch.ones(3))
    assert scaler.get_scale() == 2.0


@_case(3, "graph")
def a_replay_computes_what_its_input_holds_then(device: str) -> None:
    model = _network().eval().to(device)
    x = _BATCHES[0][0].to(device)
    graph = torch.get_device_module(device).graph
    captured = graphs.CapturedGraph()
    with torch.no_grad():
        model(x)
        with graph(captured):
            y = model(x)
        for given, _ in _BATCHES[1:]:
            x.copy_(given)
            captured.replay()
            _agree(y.cpu(), _network()(given).detach())


@_case(3, "graph")
def a_step_of_training_is_replayed(device: str) -> None:
    model = _network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    expected = train(_network(), _BATCHES)
    got = train(model, _BATCHES[:1], optimizer=optimizer)
    x, y = (part.to(device) for part in _BATCHES[1])
    optimizer.zero_grad()
    captured = graphs.CapturedGraph()
    with graphs.capture(captured):
        loss = _squares(model, x, y)
        loss.backward()
        optimizer.step()
    for new_x, new_y in _BATCHES[1:]:
        x.copy_(new_x), y.copy_(new_y)
        captured.replay()
        got.append(loss.item())
    _agree(got, expected)


def join(rank: int, folder: str) -> None:
    import torch.distributed as dist

    torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
    dist.init_process_group(
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=_GROUP_SECONDS),
    )


def _mine(batches: Sequence[Batch]) -> list[Batch]:
    """Return this rank's part of each batch."""
    rank, rows = torch.distributed.get_rank(), _ROWS // RANKS
    return [(x.split(rows)[rank], y.split(rows)[rank]) for x, y in batches]


def _trains_as_one(device: str, model: nn.Module, by: float = 1e-4) -> None:
    """Train on the ranks' parts, and compare losses and weights with those of one process."""
    from torch.distributed import tensor

    losses = torch.tensor(train(model, _mine(_BATCHES)), device=device)
    torch.distributed.all_reduce(losses, torch.distributed.ReduceOp.AVG)
    alone = _network()
    _agree(losses.tolist(), train(alone, _BATCHES), by)
    for got, expected in zip(model.parameters(), alone.parameters(), strict=True):
        whole = got.full_tensor() if isinstance(got, tensor.DTensor) else got
        _agree(whole.detach().cpu(), expected.detach(), by)


@_case(3, "ddp")
def replicas_train_as_one_process(device: str) -> None:
    _trains_as_one(device, nn.parallel.DistributedDataParallel(_network().to(device)))


@_case(3, "ddp")
def compiled_replicas_train_as_one_process(device: str) -> None:
    with _compiling():
        replica = nn.parallel.DistributedDataParallel(_network().to(device))
        _trains_as_one(device, torch.compile(replica))


def _sharded(device: str, **options: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = _network().to(device)
    for layer in (model.up, model.down, model):
        fully_shard(layer, **options)
    return model


@_case(3, "fsdp2")
def shards_train_as_one_process(device: str) -> None:
    _trains_as_one(device, _sharded(device))


@_case(3, "fsdp2")
def shards_train_in_bfloat16(device: str) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    _trains_as_one(device, _sharded(device, mp_policy=policy), by=5e-2)


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class _Gpt(nn.Module):  # type: ignore[misc]
    def __init__(self, words: int = 32, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(_Block(width, 4), _Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        logits: Tensor = self.head(self.norm(self.blocks(self.word(words) + self.place(places))))
        return logits


def _cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x).flatten(0, -2), y.flatten())


def _trains_to_the_cpus_losses(
    device: str, make: Callable[[], nn.Module], batches: list[Batch]
) -> None:
    found = []
    for where in (device, "cpu"):
        torch.manual_seed(0)
        model = make().to(where)
        steps = torch.optim.AdamW(model.parameters(), lr=1e-2)
        found.append(train(model, batches * 5, _cross_entropy, steps))
    got, expected = found
    assert expected[-1] < 0.8 * expected[0], f"the CPU learns nothing: {expected}"
    _agree(got, expected, 2e-3)


@_case(4, "train")
def a_gpt(device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(32, (4, 8, 17), generator=generator)
    _trains_to_the_cpus_losses(device, _Gpt, [(one[:, :-1], one[:, 1:]) for one in words])


@_case(4, "train")
def a_convolutional_network(device: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
        )

    generator = torch.Generator().manual_seed(1)
    pictures = torch.randn(4, 8, 3, 16, 16, generator=generator)
    kinds = torch.randint(10, (4, 8), generator=generator)
    _trains_to_the_cpus_losses(device, make, list(zip(pictures, kinds, strict=True)))
