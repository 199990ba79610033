"""Random numbers of the device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


def test_seeding_repeats_and_leaves_cpu_alone() -> None:
    cpu_state = torch.get_rng_state()
    torch.npu.manual_seed(3)
    first = torch.randn(5, device="npu"), torch.nn.functional.dropout(torch.ones(9, device="npu"))
    torch.npu.manual_seed(3)
    again = torch.randn(5, device="npu"), torch.nn.functional.dropout(torch.ones(9, device="npu"))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), cpu_state)


def test_torch_manual_seed_seeds_every_device() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(11)
        drawn.append([torch.rand(3, device=f"npu:{i}").cpu() for i in range(2)])
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
    assert torch.npu.initial_seed() == 11


def test_state_goes_there_and_back() -> None:
    state = torch.npu.get_rng_state()
    first = torch.rand(4, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="npu"), first)
    everything = torch.npu.get_rng_state_all()
    first = torch.rand(4, device="npu:1")
    torch.npu.set_rng_state_all(everything)
    assert torch.equal(torch.rand(4, device="npu:1"), first)
    torch.npu.seed_all()
    assert not torch.equal(torch.rand(4, device="npu:1"), first)


def test_own_generator_is_drawn_from() -> None:
    default = torch.npu.get_rng_state()
    generator = torch.Generator(device="npu").manual_seed(7)
    first = torch.randn(3, generator=generator, device="npu")
    assert torch.equal(torch.npu.get_rng_state(), default)
    assert torch.equal(torch.randn(3, generator=generator.manual_seed(7), device="npu"), first)
    clone = generator.clone_state()
    assert clone.device == torch.device("npu:0")


def test_generator_of_another_device_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"expected a generator of device 'npu:0' but got one of 'npu:1'"
    ):
        torch.randn(3, generator=torch.Generator(device="npu:1"), device="npu:0")


def test_fork_rng_restores_the_device() -> None:
    state = torch.npu.get_rng_state()
    with torch.random.fork_rng(devices=range(2), device_type="npu"):
        torch.randn(3, device="npu")
    assert torch.equal(torch.npu.get_rng_state(), state)


def test_random_call_takes_one_offset_and_a_state_is_seed_and_offset() -> None:
    torch.npu.manual_seed(5)
    torch.rand(3, device="npu")
    functional.dropout(torch.ones(1000, device="npu"))
    state = torch.npu.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.view(torch.int64).tolist() == [5, 2]
    generator = torch.npu.default_generators[0]
    assert generator.get_offset() == 2
    third = torch.rand(3, device="npu")
    generator.set_offset(2)
    assert torch.equal(torch.rand(3, device="npu"), third)
    torch.npu.set_rng_state(torch.tensor([5, 2]).view(torch.uint8))
    assert torch.equal(torch.rand(3, device="npu"), third)


def test_numbers_are_those_of_philox() -> None:
    # Of Random123's known answers: Philox4x32-10 with counter and key 0. The CPU's kernel tempers
    # what it is given and leaves the first word out.
    tempered = []
    for word in (0xE169C58D, 0xBC57AC4C, 0x9B00DBD8):
        word ^= word >> 11
        word ^= (word << 7) & 0x9D2C5680
        word ^= (word << 15) & 0xEFC60000
        word ^= word >> 18
        tempered.append(word & 0x7FFFFFFF)
    torch.npu.manual_seed(0)
    assert torch.empty(3, dtype=torch.int32, device="npu").random_().tolist() == tempered


def test_state_of_the_cpu_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"expected a random state of device 'npu', 16 bytes"):
        torch.npu.set_rng_state(torch.get_rng_state())


def test_copied_state_is_of_its_own_and_a_shared_one_is_not() -> None:
    generator = torch.Generator("npu").manual_seed(7)
    clone, shared = generator.clone_state(), generator.graphsafe_get_state()
    first = torch.rand(3, generator=generator, device="npu")
    assert (generator.get_offset(), clone.get_offset(), shared.get_offset()) == (1, 0, 1)
    assert torch.equal(torch.rand(3, generator=clone, device="npu"), first)
    other = torch.Generator("npu")
    other.graphsafe_set_state(shared)
    other.manual_seed(9)
    assert generator.initial_seed() == 9
    with pytest.raises(RuntimeError, match=r"expected a generator of device 'npu' to share"):
        other.graphsafe_set_state(torch.Generator())


def test_dropout_on_the_device_does_not_disturb_another_threads_cpu_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.stack([torch.rand(8) for _ in range(200)])
    torch.manual_seed(3)
    x, stop = torch.ones(64, device="npu"), threading.Event()

    def drop() -> None:
        while not stop.is_set():
            functional.dropout(x)

    thread = threading.Thread(target=drop)
    thread.start()
    drawn = torch.stack([torch.rand(8) for _ in range(200)])
    stop.set()
    thread.join()
    assert torch.equal(drawn, expected)


def test_threads_draw_different_numbers_from_one_device() -> None:
    torch.npu.manual_seed(3)
    drawn: list[Tensor] = []

    def draw() -> None:
        drawn.extend(torch.rand(4, device="npu").cpu() for _ in range(50))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(values.tolist()) for values in drawn}) == 200
    torch.npu.manual_seed(3)
    expected = {tuple(torch.rand(4, device="npu").tolist()) for _ in range(200)}
    assert {tuple(values.tolist()) for values in drawn} == expected


def test_evaluation_takes_no_offset() -> None:
    torch.npu.manual_seed(3)
    x = torch.linspace(-1, 1, 8).to("npu")
    functional.rrelu(x, training=False), functional.dropout(x, training=False)
    functional.scaled_dot_product_attention(
        x.view(1, 1, 2, 4), x.view(1, 1, 2, 4), x.view(1, 1, 2, 4)
    )
    assert torch.npu.default_generators[0].get_offset() == 0


@pytest.fixture
def noisy() -> Callable[..., Tensor]:
    @torch.library.custom_op("random_test::noisy", mutates_args=(), device_types="cpu")
    def noisy(x: Tensor) -> Tensor:
        return x + torch.randn(x.shape) * functional.dropout(torch.ones(x.shape))

    return noisy


def test_operator_that_draws_inside_its_kernel_draws_from_the_device(
    noisy: Callable[..., Tensor],
) -> None:
    x, host = torch.zeros(16), torch.get_rng_state()
    torch.npu.manual_seed(3)
    first, second = noisy(x.to("npu")), noisy(x.to("npu"))
    torch.npu.manual_seed(3)
    assert torch.equal(noisy(x.to("npu")), first)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), host)
    noisy(x)
    assert not torch.equal(torch.get_rng_state(), host)


class _Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_dropout_under_dispatch_modes_and_compilers_draws_from_the_device() -> None:
    x, host = torch.ones(64, device="npu"), torch.get_rng_state()

    def model() -> Tensor:
        return functional.dropout(x, 0.5)

    torch.npu.manual_seed(3)
    expected = model()
    with _Nothing(), _Nothing():
        torch.npu.manual_seed(3)
        assert torch.equal(model(), expected)
    for options in ({}, {"capture": True}):
        torch._dynamo.reset()
        torch.npu.manual_seed(3)
        compiled = torch.compile(model, backend="bringup", options=options)
        with torch.no_grad():
            assert torch.equal(compiled(), expected)
            torch.npu.manual_seed(3)
            assert torch.equal(compiled(), expected)
    assert torch.equal(torch.get_rng_state(), host)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_dropout_has_the_same_gradient(reentrant: bool) -> None:
    x = torch.linspace(-1, 1, 64).to("npu").requires_grad_()

    def block(x: Tensor) -> Tensor:
        return functional.dropout(torch.sin(x), 0.5) * functional.rrelu(x, training=True)

    gradients = []
    for checkpointed in (False, True):
        x.grad = None
        torch.npu.manual_seed(3)
        result = checkpoint(block, x, use_reentrant=reentrant) if checkpointed else block(x)
        torch.npu.manual_seed(99)
        (result * 2).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


SEEDED_BEFORE = """
import torch
from bringup import devices
torch.manual_seed(5)
devices.load_driver("sim")
first = torch.rand(4, device="npu")
torch.manual_seed(5)
assert torch.equal(torch.rand(4, device="npu"), first)
print(torch.npu.initial_seed())
"""


def test_seed_from_before_the_driver_was_loaded_holds(fresh_python: Callable[..., str]) -> None:
    assert fresh_python(SEEDED_BEFORE) == "5"
