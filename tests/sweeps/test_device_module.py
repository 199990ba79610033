"""Every attribute that torch reads off a device module has the right meaning on `torch.npu`, or
stands in a list of reasons. Which they are is read from the installed torch's sources.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.sweeps.device_module_reads import Read, all_reads

from bringup import devices

MEANINGS: dict[str, Callable[[], None]] = {}

REASONS = {
    "Scheduling": "Inductor has no code generator for the device",
    "PythonWrapperCodegen": "Inductor has no code generator for the device",
    "CppWrapperCodegen": "Inductor has no code generator for the device",
    "WrapperFxCodegen": "Inductor has no code generator for the device",
    "set_rng_ctx": "asked of device type 'hpu' only",
    "unset_rng_ctx": "asked of device type 'hpu' only",
    "sparse": "asked for sparse tensors only, which the device has not",
    "rsplit": "storage.py calls a string `module`, too",
}
UNNAMED = {
    "distributed/_local_tensor/__init__.py": "hands on what its users read",
    "distributed/fsdp/_common_utils.py": "hands on what its users read",
    "storage.py": "torch.npu.FloatStorage and the like: only asked whether they exist",
    "utils/backend_registration.py": "_get_custom_mod_func: its callers name the function",
}
KNOWN = [
    *("_initialized", "_is_in_bad_fork", "current_device", "device_count", "get_rng_state"),
    *("set_rng_state", "manual_seed_all", "is_available", "is_initialized", "current_stream"),
    *("Event", "Stream", "synchronize", "get_amp_supported_dtype", "default_generators"),
    *("memory_stats", "set_device", "get_device_properties", "_get_generator", "_utils"),
]


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture(scope="module")
def reads() -> dict[str | None, list[Read]]:
    found: dict[str | None, list[Read]] = defaultdict(list)
    for read in all_reads():
        found[read.name].append(read)
    return found


def test_the_search_finds_the_attributes_that_we_know_of(
    reads: dict[str | None, list[Read]],
) -> None:
    assert set(KNOWN) - reads.keys() == set()
    assert "utils/checkpoint.py" in {read.place.split(":")[0] for read in reads["_initialized"]}


def test_every_attribute_that_torch_reads_has_its_meaning_or_a_reason(
    reads: dict[str | None, list[Read]], sweep_counts: Counter[str]
) -> None:
    unexplained = {
        name: [read.place for read in found]
        for name, found in reads.items()
        if name is not None and name not in MEANINGS and name not in REASONS
    }
    assert unexplained == {}
    assert {read.place.split(":")[0] for read in reads[None]} == UNNAMED.keys()
    sweep_counts["reads in torch"] += sum(map(len, reads.values()))
    sweep_counts["attributes"] += len(reads.keys() - {None})
    sweep_counts["meanings"] += len(MEANINGS)


def test_no_reason_outlives_its_attribute(reads: dict[str | None, list[Read]]) -> None:
    assert set(REASONS) - reads.keys() == set()
    for name in REASONS:
        assert not hasattr(torch.npu, name), f"torch.npu has {name} now: check what it means"


def means(check: Callable[[], None]) -> Callable[[], None]:
    """Registers the check of the attribute that the function is named after."""
    MEANINGS[check.__name__.removeprefix("check_")] = check
    return check


@contextmanager
def restored_random_state() -> Iterator[None]:
    with torch.random.fork_rng(devices=[0, 1], device_type="npu"):
        yield


def drawn(device: str) -> torch.Tensor:
    return torch.rand(5, device=device).cpu()


@means
def check__initialized() -> None:
    assert torch.npu._initialized is True


@means
def check__is_in_bad_fork() -> None:
    assert torch.npu._is_in_bad_fork() is False


@means
def check_is_initialized() -> None:
    assert torch.npu.is_initialized() is True


@means
def check_is_available() -> None:
    assert torch.npu.is_available() is True
    assert torch.utils.backend_registration._get_custom_mod_func("is_available")() is True


@means
def check_device_count() -> None:
    info = devices.loaded()
    assert info is not None
    assert torch.npu.device_count() == info.device_count == torch.accelerator.device_count() == 2


@means
def check_current_device() -> None:
    assert torch.npu.current_device() == 0
    with torch.npu.device(1):
        assert torch.npu.current_device() == torch.empty(1, device="npu").get_device() == 1
        assert torch._utils._get_current_device_index() == 1


@means
def check_device() -> None:
    for named in (1, "npu:1", torch.device("npu", 1)):
        with torch.npu.device(named):
            assert torch.empty(1, device="npu").get_device() == 1
        assert torch.npu.current_device() == 0
    with pytest.raises(RuntimeError, match="no device 'npu:2'"):
        torch.npu.device(2)


@means
def check_set_device() -> None:
    torch.npu.set_device(1)
    try:
        assert torch.empty(1, device="npu").get_device() == 1
    finally:
        torch.npu.set_device("npu:0")
    assert torch.npu.current_device() == 0


@means
def check_get_device_properties() -> None:
    for index in range(2):
        properties = torch.npu.get_device_properties(index)
        assert properties.total_memory == torch.npu.mem_get_info(index)[1]
        assert properties.supports_float64
    assert len(torch._utils._get_all_device_indices()) == 2


@means
def check_get_device_name() -> None:
    assert torch.npu.get_device_name() == torch.npu.get_device_properties(0).name != ""


@means
def check_default_generators() -> None:
    with restored_random_state():
        torch.npu.default_generators[1].manual_seed(5)
        first = drawn("npu:1")
        assert torch.equal(
            first, torch.rand(5, device="npu:1", generator=seeded(torch.Generator("npu:1"))).cpu()
        )
        assert torch.npu.default_generators[1].device == torch.device("npu:1")


def seeded(generator: torch.Generator) -> torch.Generator:
    return generator.manual_seed(5)


@means
def check__get_generator() -> None:
    for index in range(2):
        generator = torch.npu._get_generator(torch.device("npu", index))
        assert generator is torch.npu.default_generators[index]


@means
def check_manual_seed_all() -> None:
    with restored_random_state():
        host = torch.get_rng_state()
        torch.npu.manual_seed_all(9)
        assert [generator.initial_seed() for generator in torch.npu.default_generators] == [9, 9]
        first = drawn("npu:0"), drawn("npu:1")
        torch.npu.manual_seed_all(9)
        assert torch.equal(first[0], drawn("npu:0"))
        assert torch.equal(first[1], drawn("npu:1"))
        assert torch.equal(torch.get_rng_state(), host)


@means
def check_get_rng_state() -> None:
    with restored_random_state():
        state = torch.npu.get_rng_state("npu:1")
        assert state.device.type == "cpu"
        assert state.dtype == torch.uint8
        drawn("npu:0")
        assert torch.equal(torch.npu.get_rng_state(1), state)
        drawn("npu:1")
        assert not torch.equal(torch.npu.get_rng_state(torch.device("npu:1")), state)
        with torch.npu.device(1):
            assert torch.equal(torch.npu.get_rng_state(), torch.npu.get_rng_state(1))


@means
def check_set_rng_state() -> None:
    with restored_random_state():
        state, other = torch.npu.get_rng_state(1), torch.npu.get_rng_state(0)
        first = drawn("npu:1")
        torch.npu.set_rng_state(state, "npu:1")
        assert torch.equal(drawn("npu:1"), first)
        assert torch.equal(torch.npu.get_rng_state(0), other)
        with torch.npu.device(1):
            torch.npu.set_rng_state(state)
        assert torch.equal(drawn("npu:1"), first)


@means
def check_Stream() -> None:
    default = torch.npu.current_stream()
    for stream in (torch.npu.Stream(), torch.npu.Stream(priority=-1), torch.npu.Stream("npu:1")):
        assert stream != default
        with stream:
            assert torch.npu.current_stream(stream.device) == stream
    assert torch.npu.Stream("npu:1").device == torch.device("npu:1")


@means
def check_Event() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    torch.ones(1000, device="npu").add_(1)
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    stream = torch.npu.Stream()
    stream.wait_event(end)
    stream.record_event(torch.npu.Event())
    stream.synchronize()


@means
def check_current_stream() -> None:
    stream = torch.npu.Stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == torch.npu.current_stream("npu") == stream
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert torch.npu.current_stream(1).device == torch.device("npu:1")


@means
def check_stream() -> None:
    outside, stream = torch.npu.current_stream(), torch.npu.Stream()
    with torch.npu.stream(stream):
        with torch.npu.stream(None):
            assert torch.npu.current_stream() == stream
        assert torch.npu.current_stream() == stream
    assert torch.npu.current_stream() == outside
    with pytest.raises(ZeroDivisionError), torch.npu.stream(stream):
        1 / 0  # noqa: B018
    assert torch.npu.current_stream() == outside
    assert isinstance(torch.npu.stream(stream), torch.npu.StreamContext)


@means
def check_synchronize() -> None:
    for device in (None, 1, "npu:1", torch.device("npu:1")):
        event = torch.npu.Event()
        with torch.npu.device(device), torch.npu.stream(torch.npu.Stream(device)):
            pinned = torch.ones(100_000).pin_memory()
            pinned.to("npu", non_blocking=True)
            event.record()
        torch.npu.synchronize(device)
        assert event.query()


@means
def check_memory_allocated() -> None:
    before = torch.npu.memory_allocated(), torch.npu.memory_allocated(1)
    held = torch.empty(1 << 16, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() - before[0] == held.nbytes
    assert torch.npu.memory_allocated(1) == before[1]
    del held
    assert torch.npu.memory_allocated() == before[0]


@means
def check_memory_reserved() -> None:
    held = torch.empty(1 << 16, dtype=torch.uint8, device="npu:1")
    assert torch.npu.memory_reserved(1) >= torch.npu.memory_allocated(1) >= held.nbytes


@means
def check_empty_cache() -> None:
    held = torch.empty(1 << 24, dtype=torch.uint8, device="npu")
    reserved = torch.npu.memory_reserved()
    del held
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() <= reserved - (1 << 24)


@means
def check_memory_stats() -> None:
    held = torch.empty(1 << 16, dtype=torch.uint8, device="npu")
    stats = torch.npu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.npu.memory_allocated() >= held.nbytes
    for key in ("num_alloc_retries", "active_bytes.all.current"):  # memory_tracker.py reads these
        assert key in stats


@means
def check_memory_summary() -> None:
    held = torch.empty(1 << 16, dtype=torch.uint8, device="npu:1")
    summary = torch.npu.memory_summary("npu:1")
    assert "npu:1" in summary
    assert f"{torch.npu.memory_allocated(1):,}" in summary
    assert held.nbytes <= torch.npu.memory_allocated(1)


@means
def check_get_amp_supported_dtype() -> None:
    x = torch.ones(2, 2, device="npu")
    assert torch.npu.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    for dtype in torch.npu.get_amp_supported_dtype():
        with torch.autocast("npu", dtype):
            assert (x @ x).dtype == dtype


@means
def check__utils() -> None:
    index_of = torch.npu._utils._get_device_index
    assert index_of("npu:1", True) == index_of(torch.device("npu:1")) == index_of(1) == 1
    with torch.npu.device(1):
        assert index_of("npu", True) == index_of(None, True) == 1
    with pytest.raises(ValueError, match="with an index"):
        index_of("npu")
    with pytest.raises(RuntimeError, match="no device 'npu:2'"):
        index_of("npu:2", True)


@means
def check___name__() -> None:
    assert torch.npu.__name__ == torch.get_device_module("npu").__name__ == "torch.npu"


@means
def check__lazy_init() -> None:  # read by torch's C++: torch/csrc/utils/device_lazy_init.cpp
    library = Path(torch.__file__).parent / "lib/libtorch_python.so"
    assert b"_lazy_init" in library.read_bytes()
    assert torch.npu._lazy_init() is None


@pytest.mark.parametrize("name", sorted(MEANINGS))
@pytest.mark.usefixtures("settled")
def test_attribute_means_what_torch_takes_it_for(name: str) -> None:
    MEANINGS[name]()


def test_a_location_without_index_is_loaded_to_the_current_device(tmp_path: Path) -> None:
    torch.save(torch.arange(3), tmp_path / "t.pt")
    with torch.npu.device(1):
        assert torch.load(tmp_path / "t.pt", map_location="npu").get_device() == 1
    assert torch.load(tmp_path / "t.pt", map_location="npu:1").get_device() == 1
    with pytest.raises(RuntimeError, match="no device 'npu:7'"):
        torch.load(tmp_path / "t.pt", map_location="npu:7")


def test_distributed_checkpoint_overlaps_copies_from_the_device(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with torch.npu.device(1):  # torch waits for the current device's stream only
        state = {f"layer.{i}": torch.randn(100, device="npu") for i in range(4)}
        dcp.save(state, checkpoint_id=str(tmp_path))
    loaded = {name: torch.zeros(100, device="npu:0") for name in state}
    dcp.load(loaded, checkpoint_id=str(tmp_path))
    for name, tensor in state.items():
        assert torch.equal(tensor.cpu(), loaded[name].cpu())
