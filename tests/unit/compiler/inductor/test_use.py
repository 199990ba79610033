"""What a user does with torch.compile on a device beyond calling a function: mixed precision,
training, random numbers, other devices, streams, threads, processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_python import PACKAGES, run_forked
from torch._inductor import config
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bringup import conformance
from bringup.compiler.inductor.kernel import LoopKernel


class Model(torch.nn.Module):
    """A token's next token: an embedding, a block with dropout that may be computed again."""

    def __init__(self, dropout: float = 0.0, *, again: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(11, 16)
        self.inner, self.norm = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32)
        self.head, self.dropout, self.again = torch.nn.Linear(32, 11), dropout, again

    def block(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.gelu(self.norm(self.inner(x)))
        return functional.dropout(x, self.dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        x = checkpoint(self.block, x, use_reentrant=False) if self.again else self.block(x)
        return self.head(x).flatten(0, 1)


def trained(model: Model, compiled: bool, steps: int = 2) -> list[torch.Tensor]:
    """Return the losses and what the parameters became."""
    model = model.to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    called = torch.compile(model) if compiled else model
    tokens = torch.arange(24, device="npu").reshape(4, 6) * 7 % 11
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(called(tokens), tokens.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def test_training_with_dropout_is_eagers_under_fallback_random() -> None:
    with config.patch(fallback_random=True):
        got, expected = (trained(Model(0.3, again=True), compiled) for compiled in (True, False))
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-4)


def test_a_checkpoint_draws_the_same_numbers_again() -> None:
    got, expected = (trained(Model(0.3, again=again), True, steps=1) for again in (True, False))
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-4)


def test_random_numbers_begin_again_at_a_state_that_was_kept() -> None:
    drawn = torch.compile(lambda x: (torch.rand_like(x), functional.dropout(x, 0.3)))
    x = torch.ones(40, device="npu:1")
    state, other = torch.npu.get_rng_state(1), torch.npu.get_rng_state(0)
    first, second = drawn(x), drawn(x)
    assert not torch.equal(first[0], second[0])
    torch.npu.set_rng_state(state, 1)
    torch.testing.assert_close(drawn(x), first, atol=0, rtol=0)
    assert torch.equal(torch.npu.get_rng_state(0), other)


def test_autocast_inside_and_around() -> None:
    layer = torch.nn.Linear(16, 8).to("npu")

    def both(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("npu", enabled=False):
            y = functional.gelu(layer(x))
        assert y.dtype is x.dtype
        return layer(torch.cat([y, y], -1)).exp()

    x = torch.linspace(-1, 1, 80, device="npu").reshape(5, 16)
    results = []
    for called in (torch.compile(both, fullgraph=True), both):
        with torch.autocast("npu", dtype=torch.bfloat16):
            y = called(x)
        results.append((y, *torch.autograd.grad(y.float().square().mean(), layer.parameters())))
    assert y.dtype is torch.float32  # of exp
    torch.testing.assert_close(*results, atol=2e-2, rtol=2e-2)


def test_frozen_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    model = model.to("npu").eval()
    x = torch.randn(2, 3, 6, 6, device="npu")
    with torch.no_grad(), config.patch(freezing=True):
        torch.testing.assert_close(torch.compile(model)(x), model(x), atol=1e-5, rtol=1e-4)


def test_a_miscompiled_kernel_is_found_with_its_module_and_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = LoopKernel.codegen_kernel

    def wrong(self: LoopKernel, name: str | None = None) -> str:
        return right(self, name).replace("erff(", "1.02f * erff(")

    monkeypatch.setattr(LoopKernel, "codegen_kernel", wrong)
    inner = torch.nn.Sequential(torch.nn.GELU(), torch.nn.LayerNorm(8))
    model = torch.nn.Sequential(torch.nn.Tanh(), inner)
    with config.patch(force_disable_caches=True):
        found = conformance.compare(model, (torch.randn(4, 8),), a="compiled", b="npu")
    assert [one.place.module for one in found.watched.differences] == ["1.0"]
    (one,) = found.watched.differences
    assert "generated aten.erf.default of aten.gelu.default" in one.place.operator


def test_what_stays_eager_is_in_the_coverage() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0e(x) * 2 + x.tanh()

    found = conformance.coverage(Model(), (torch.rand(4),), compiled=True)
    reason = "aten.special_i0e.default: generated code has no such function"
    assert found.eager_nodes == {reason: 1}


def _in_threads(works: list[Callable[[], Any]]) -> list[Any]:
    found: list[Any] = [None] * len(works)
    together = threading.Barrier(len(works))

    def run(place: int) -> None:
        together.wait()
        try:
            found[place] = works[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_threads_compile_and_call_one_function_on_several_devices() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) * x.exp()).sum(0) + torch.ones(x.shape[1], device=x.device)

    inputs = [torch.randn(3 + n, 7 + n, device=f"npu:{n % 2}") for n in range(3)]
    compiled = torch.compile(function)
    found = _in_threads([lambda x=x: [compiled(x), compiled(x)] for x in inputs])
    torch.testing.assert_close(found, [[function(x)] * 2 for x in inputs])
    assert torch.npu.current_device() == 0


def test_kernels_are_started_in_the_users_stream() -> None:
    compiled = torch.compile(lambda x: (x * 2 + 1).sin())
    x = torch.randn(1 << 20, device="npu")
    expected, stream = compiled(x), torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        x = x + 0  # what follows is wrong elsewhere
        got = compiled(x)
    torch.npu.current_stream().wait_stream(stream)
    assert torch.equal(got, expected)


USER = """
import os, sys
import torch
from torch._dynamo.utils import counters
from bringup import devices
devices.load_driver("sim")
layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)).to("npu")
compiled, x = torch.compile(layer), torch.randn(3, 4, device="npu")
torch.testing.assert_close(compiled(x), layer(x))
compiled(x).sum().backward()
torch.npu.synchronize()
counted = counters["inductor"]
print(counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"], flush=True)
if sys.argv[1:] and not (child := os.fork()):
    torch.compile(lambda x: x @ x)(torch.ones(3, 3))  # on cpu nothing has changed
    for attempt in (lambda: compiled(x), lambda: torch.compile(lambda x: x - 5)(x)):
        try:
            attempt()
        except RuntimeError as error:
            print("forked process" in str(error), flush=True)
    os._exit(0)
elif sys.argv[1:]:
    print(os.waitpid(child, 0)[1])
"""


def test_processes_share_what_they_compiled(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "BRINGUP_CACHE_DIR": str(tmp_path / "kernels"),
    }

    def run(*arguments: str) -> str:
        done = run_forked(USER, *arguments, environment=environment, preload=PACKAGES)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def files() -> dict[Path, int]:
        return {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}

    assert {sum(map(int, said.split())) for said in _in_threads([run, run])} == {2}
    before = files()
    assert run("fork") == "2 0\nTrue\nTrue\n0"
    added = {file for file, time in files().items() if before.get(file) != time}
    assert not [file for file in added if "kernels" in file.parts]
