"""Random numbers of the device."""

from __future__ import annotations

import pytest
import torch


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
