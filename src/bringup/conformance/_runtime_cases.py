"""Runtime points: what torch promises of a device beside its operators, as small cases.

A point is a function of the device's name that raises `AssertionError` where a promise is broken,
and `Skipped` where the device says that it does not make it.
"""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

POINTS: dict[str, Callable[[str], None]] = {}


class Skipped(Exception):
    """The device does not promise this."""


def _point(function: Callable[[str], None]) -> Callable[[str], None]:
    POINTS[function.__name__.removeprefix("_")] = function
    return function


_module: Callable[[str], ModuleType] = torch.get_device_module


def _equal(got: Tensor, expected: Tensor) -> None:
    assert got.cpu().equal(expected), f"got {got.cpu()}, expected {expected}"


def _raises(kinds: Any, function: Callable[[], object], what: str) -> None:
    try:
        function()
    except kinds:
        return
    raise AssertionError(f"{what}: no error")


@_point
def device_is_counted_and_current(device: str) -> None:
    module = _module(device)
    assert module.is_available()
    assert module.device_count() >= 1
    assert 0 <= module.current_device() < module.device_count()


@_point
def device_is_torchs_accelerator(device: str) -> None:
    assert torch.accelerator.current_accelerator() == torch.device(device)


@_point
def device_beyond_the_last_is_refused(device: str) -> None:
    count = _module(device).device_count()
    _raises(RuntimeError, lambda: torch.empty(1, device=f"{device}:{count}"), "a device too many")


@_point
def device_is_current_in_each_thread(device: str) -> None:
    module = _module(device)
    if module.device_count() < 2:
        raise Skipped("there is one device")
    seen: list[int] = []
    with torch.device(f"{device}:1"), module.device(1):
        thread = threading.Thread(target=lambda: seen.append(module.current_device()))
        thread.start()
        thread.join()
        assert module.current_device() == 1
    assert seen == [0], f"a new thread began on device {seen}"


@_point
def stream_keeps_its_order(device: str) -> None:
    module = _module(device)
    x = torch.zeros(1 << 16, device=device)
    stream = module.Stream()
    stream.wait_stream(module.current_stream())
    with stream:
        for _ in range(20):
            x = x * 2 + 1
    stream.synchronize()
    _equal(x[:4], torch.full((4,), float(2**20 - 1)))


@_point
def stream_waits_for_another(device: str) -> None:
    module = _module(device)
    one, two = module.Stream(), module.Stream()
    x = torch.zeros(1 << 16, device=device)
    module.synchronize()
    with one:
        for _ in range(20):
            x += 1
    two.wait_stream(one)
    with two:
        y = x * 2
    two.synchronize()
    _equal(y[:4], torch.full((4,), 40.0))


@_point
def event_is_done_after_its_stream(device: str) -> None:
    module = _module(device)
    event = module.Event()
    torch.ones(4, device=device).add_(1)
    event.record()
    event.synchronize()
    assert event.query()


@_point
def event_orders_streams(device: str) -> None:
    module = _module(device)
    one, two = module.Stream(), module.Stream()
    x = torch.zeros(1 << 16, device=device)
    module.synchronize()
    with one:
        x += 3
        event = one.record_event()
    two.wait_event(event)
    with two:
        y = x + 1
    two.synchronize()
    _equal(y[:4], torch.full((4,), 4.0))


@_point
def event_times_are_numbers_that_grow(device: str) -> None:
    module = _module(device)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    torch.ones(1 << 18, device=device).mul_(2)
    end.record()
    end.synchronize()
    try:
        took = start.elapsed_time(end)
    except (RuntimeError, NotImplementedError) as error:
        raise Skipped(f"no times: {error}") from None
    assert 0 <= took < 60_000, f"{took} ms"


@_point
def memory_is_counted(device: str) -> None:
    module = _module(device)
    module.empty_cache()
    before = module.memory_allocated()
    x = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    assert module.memory_allocated() - before >= x.nbytes
    del x
    assert module.memory_allocated() == before


@_point
def memory_has_a_peak_that_can_be_reset(device: str) -> None:
    module = _module(device)
    module.reset_peak_memory_stats()
    before = module.max_memory_allocated()
    x = torch.empty(1 << 20, device=device)
    peak = module.max_memory_allocated()
    assert peak >= before + x.nbytes
    del x
    assert module.max_memory_allocated() == peak
    module.reset_peak_memory_stats()
    assert module.max_memory_allocated() < peak


@_point
def memory_cache_is_given_back(device: str) -> None:
    module = _module(device)
    x = torch.empty(64 << 20, dtype=torch.uint8, device=device)
    held = module.memory_reserved()
    del x
    module.synchronize()
    module.empty_cache()
    assert module.memory_reserved() <= held - (64 << 20)


@_point
def memory_that_is_too_much_is_an_error(device: str) -> None:
    _raises(
        torch.OutOfMemoryError,
        lambda: torch.empty(1 << 50, dtype=torch.uint8, device=device),
        "a pebibyte",
    )
    _equal(torch.ones(2, device=device) + 1, torch.full((2,), 2.0))


@_point
def copies_of_any_layout_carry_values(device: str) -> None:
    base = torch.arange(60.0).reshape(3, 4, 5)
    for view in (base.transpose(0, 2), base[:, 1::2], base[..., 3], base.expand(2, 3, 4, 5)):
        there = view.to(device)
        _equal(there, view)
        target = torch.zeros(view.shape, device=device)
        target.copy_(view)
        _equal(target, view)
        _equal(there.clone(), view)


@_point
def copies_convert_dtypes(device: str) -> None:
    x = torch.tensor([-1.5, 0.0, 2.75])
    for dtype in (torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool):
        _equal(x.to(device).to(dtype), x.to(dtype))


@_point
def copies_from_pinned_memory_may_be_asynchronous(device: str) -> None:
    x = torch.arange(1000.0).pin_memory()
    assert x.is_pinned()
    y = x.to(device, non_blocking=True)
    _module(device).synchronize()
    _equal(y, torch.arange(1000.0))


@_point
def random_numbers_repeat_with_their_seed(device: str) -> None:
    torch.manual_seed(3)
    first = torch.randn(100, device=device)
    second = torch.randn(100, device=device)
    torch.manual_seed(3)
    _equal(torch.randn(100, device=device), first.cpu())
    assert not first.cpu().equal(second.cpu())


@_point
def random_state_is_kept_and_put_back(device: str) -> None:
    module = _module(device)
    state = module.get_rng_state()
    first = torch.rand(16, device=device)
    module.set_rng_state(state)
    _equal(torch.rand(16, device=device), first.cpu())
    with torch.random.fork_rng(device_type=device):
        torch.rand(16, device=device)
    module.set_rng_state(state)
    _equal(torch.rand(16, device=device), first.cpu())


@_point
def random_generators_are_their_own(device: str) -> None:
    one = torch.Generator(device).manual_seed(1)
    two = torch.Generator(device).manual_seed(1)
    x = torch.rand(8, device=device, generator=one)
    torch.rand(8, device=device)
    _equal(torch.rand(8, device=device, generator=two), x.cpu())


@_point
def autocast_computes_in_the_lower_dtype(device: str) -> None:
    x = torch.randn(4, 4, device=device)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(device, dtype=dtype):
            assert (x @ x).dtype is dtype
            assert torch.softmax(x @ x, -1).dtype is torch.float32
            with torch.autocast(device, enabled=False):
                assert (x @ x).dtype is torch.float32


@_point
def autocast_gives_gradients_of_the_parameters_dtype(device: str) -> None:
    layer = torch.nn.Linear(4, 4).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = layer(torch.randn(2, 4, device=device)).float().sum()
    loss.backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype is torch.float32


@_point
def gradients_are_scaled_and_unscaled(device: str) -> None:
    weight = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device, init_scale=4.0)
    scaler.scale((weight * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    _equal(weight.detach(), torch.full((3,), -1.0))


@_point
def storage_is_shared_by_views(device: str) -> None:
    x = torch.zeros(4, 4, device=device)
    x[1:, ::2].fill_(1)
    x.t()[0] += 1
    expected = torch.zeros(4, 4)
    expected[1:, ::2].fill_(1)
    expected.t()[0] += 1
    _equal(x, expected)
    assert x.view(16).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@_point
def storage_grows_and_keeps_its_content(device: str) -> None:
    x = torch.arange(4.0, device=device)
    x.resize_(1024)
    _equal(x[:4], torch.arange(4.0))
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


@_point
def tensors_are_saved_and_loaded(device: str) -> None:
    x = torch.randn(3, 5, device=device).t()
    file = io.BytesIO()
    torch.save({"x": x, "y": x[1]}, file)
    for place in (device, "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        assert loaded["x"].device.type == place
        _equal(loaded["x"], x.cpu())
        loaded["x"][1, 0] = 9.0
        assert float(loaded["y"][0]) == 9.0, "views no longer share memory"


@_point
def tensors_are_copied_deeply(device: str) -> None:
    layer = torch.nn.Linear(2, 2).to(device)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
    assert bool(other.weight.cpu().any())
    assert other.weight.device.type == device


@_point
def tensors_go_through_dlpack(device: str) -> None:
    x = torch.arange(6.0, device=device).reshape(2, 3)
    y = torch.from_dlpack(x)
    assert y.device == x.device
    y[0, 0] = 7.0
    _equal(x[0], torch.tensor([7.0, 1.0, 2.0]))


@_point
def tensors_are_no_arrays_of_the_host(device: str) -> None:
    _raises(TypeError, lambda: torch.ones(2, device=device).numpy(), "numpy() of the device's")


@_point
def tensors_print_and_convert(device: str) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert x[1, 0].item() == 3.0
    assert f"device='{device}" in repr(x)


@_point
def tensors_of_two_devices_do_not_mix(device: str) -> None:
    x = torch.ones(2, device=device)
    _raises(RuntimeError, lambda: x + torch.ones(2), "a sum with the CPU's")
    _equal(x + torch.tensor(1.0), torch.full((2,), 2.0))  # but a number is one anywhere


@_point
def gradients_are_computed_in_threads(device: str) -> None:
    def train(seed: int) -> None:
        w = torch.full((4,), float(seed), device=device, requires_grad=True)
        (w * w).sum().backward()
        assert w.grad is not None
        found[seed] = w.grad.cpu()

    found: dict[int, Tensor] = {}
    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [1, 2, 3, 4]
    for seed, gradient in found.items():
        _equal(gradient, torch.full((4,), 2.0 * seed))


@_point
def gradients_of_a_checkpoint_are_those_without_one(device: str) -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).to(device)
    results = []
    for kept in (False, True):
        x = torch.ones(4, 8, device=device, requires_grad=True)
        torch.manual_seed(1)
        y = checkpoint(layers, x, use_reentrant=False) if kept else layers(x)
        y.sum().backward()
        assert x.grad is not None
        results.append(x.grad.cpu())
    _equal(results[1], results[0])


@_point
def errors_of_shapes_are_those_of_torch(device: str) -> None:
    x = torch.ones(2, 3, device=device)
    _raises(RuntimeError, lambda: x @ x, "a product of shapes that do not fit")
    _equal(x + 1, torch.full((2, 3), 2.0))
