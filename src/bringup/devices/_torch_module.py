"""`torch.<device>`, mostly `torch.accelerator`'s functions as `torch.cuda` has them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias
from uuid import UUID

import torch

from bringup import _device_attributes, _native
from bringup.devices import _submodules
from bringup.errors import DeviceError, KernelError

DeviceLike: TypeAlias = int | str | torch.device | None
# bringup_native_kind
_NATIVE_KINDS = {"context": 1, "device": 2, "queue": 3, "memory": 4}


@dataclass(frozen=True)
class DeviceProperties:
    """What a driver says about one device.

    Attributes:
        name: for people.
        arch: for compilers.
        total_memory: bytes.
        core_count: how many blocks can run at once.
        supports_float64: whether kernels may use 64-bit floats.
        supports_int64: whether kernels may use 64-bit integers.
        host_visible_memory: whether the host can read and write its memory.
        dtypes: that its tensors may have.
        alignment: of what the driver allocates, in bytes.
        uuid: the same for this device in every process; None where the driver gives none.
        driver_version: the driver's own.
        least_priority: of streams; lower is more urgent. Where both are 0 the device has none.
        greatest_priority: the most urgent.
        max_grid: of a launch with plain values, in blocks; 0 is no limit, here and below.
        max_block: the same in threads.
        max_block_threads: of one block.
        max_shared_bytes: of one block.
        max_allocation: the most bytes of one allocation; 0 where the driver says nothing of it.
    """

    name: str
    arch: str
    total_memory: int
    core_count: int
    supports_float64: bool
    supports_int64: bool
    host_visible_memory: bool
    dtypes: frozenset[torch.dtype]
    alignment: int
    uuid: UUID | None
    driver_version: str
    least_priority: int
    greatest_priority: int
    max_grid: tuple[int, int, int]
    max_block: tuple[int, int, int]
    max_block_threads: int
    max_shared_bytes: int
    max_allocation: int

    @property
    def multi_processor_count(self) -> int:
        """Return `core_count`: what Inductor asks a device for."""
        return self.core_count


class StreamContext(AbstractContextManager["torch.Stream | None"]):
    """Makes a stream current within a `with` block; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> torch.Stream | None:
        return None if self.stream is None else self.stream.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


class ExternalStream(torch.Stream):  # type: ignore[misc]
    """A stream that other code made with the driver, e.g. a vendor's library: torch's work can be
    put in it. Its maker keeps it alive, and ends it after torch's last use.

    Args:
        stream_ptr: the driver's handle, as in `stream.native_handle`.
        device: whose stream it is; None for the current device.

    Raises:
        DeviceError: `stream_ptr` is 0 (that is `torch.npu.default_stream()`), or there is no such
            device.
    """

    def __new__(cls, stream_ptr: int, device: DeviceLike = None) -> ExternalStream:
        if stream_ptr == 0:
            raise DeviceError("no stream has the handle 0: the default stream is default_stream()")
        module: Any = torch.get_device_module(torch._C._get_privateuse1_backend_name())
        made: ExternalStream = super().__new__(
            cls,
            stream_id=stream_ptr,
            device_index=module._index(device),
            device_type=int(torch._C._autograd.DeviceType.PrivateUse1),
        )
        return made


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event)


class Event(torch.Event, metaclass=_EventType):  # type: ignore[misc]
    """`torch.Event`, which a call gives; with `external` a `graphs.ExternalEvent`, which captured
    code waits for or records as a node, as CUDA's external events are.

    Args:
        device: whose; None for the current one.
        external: whether captured code and what is outside of it meet there.
        options: of `torch.Event`, which an external one has none of.

    Raises:
        TypeError: an external event is given options.
    """

    def __new__(cls, device: DeviceLike = None, *, external: bool = False, **options: Any) -> Any:
        if not external:
            return torch.Event(device, **options)
        if any(options.values()):
            raise TypeError(f"an external event is an order alone, got {', '.join(options)}")
        made: Any = _device_attributes.resolve("ExternalEvent")
        return made()


class DeviceModule(ModuleType):
    """The module `torch.<name>` of a loaded driver.

    Wherever a device is asked for, an index, a string, a `torch.device` or None (the current one)
    will do; `DeviceError` when there is no such device.
    """

    Stream = torch.Stream
    Event = Event
    StreamContext = StreamContext
    ExternalStream = ExternalStream
    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, name: str) -> None:
        super().__init__(f"torch.{name}", f"Device {name!r}, brought up by bringup.")
        self._name = name
        self._native = _native.torch_library().devices
        self._fractions: dict[int, float] = {}
        self._lent: dict[int, torch.Tensor] = {}
        self._pools: weakref.WeakSet[Any] = weakref.WeakSet()
        self.default_generators = tuple(
            self._native.default_generator(index) for index in range(self.device_count())
        )
        _submodules.add_submodules(self, name)

    def __getattr__(self, name: str) -> object:
        try:
            value = _device_attributes.resolve(name)
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_device_attributes.names()})

    def _index(self, device: DeviceLike) -> int:
        index = device if device is None or isinstance(device, int) else self._index_of(device)
        if index is None or index == -1:
            return self.current_device()
        count = self.device_count()
        if not 0 <= index < count:
            raise DeviceError(
                f"there is no device '{self._name}:{index}':"
                f" this driver has {count} (0 to {count - 1})"
            )
        return index

    def _index_of(self, device: str | torch.device) -> int | None:
        named = torch.device(device)
        if named.type != self._name:
            raise DeviceError(f"expected a device of type {self._name!r}, got {str(device)!r}")
        return None if named.index is None else int(named.index)

    # --- devices

    def is_available(self) -> bool:
        """Return whether there is a device: always, once a driver is loaded."""
        return self.device_count() > 0

    def is_initialized(self) -> bool:
        """Return whether a driver is loaded, and this is not a forked child."""
        return not self._is_in_bad_fork()

    @property
    def _initialized(self) -> bool:
        # torch.utils.checkpoint keeps no random state of a device where this is not true.
        return self.is_initialized()

    def init(self) -> None:
        """Do nothing, for the devices are ready, or raise `DeviceError` in a forked child."""
        if self._is_in_bad_fork():
            raise DeviceError(
                f"device {self._name!r} cannot be used in a forked child: its driver's threads and"
                " queues stayed in the parent. Start the process with multiprocessing's 'spawn' or"
                " 'forkserver' method, or load the driver after the fork"
            )

    _lazy_init = init

    def _is_in_bad_fork(self) -> bool:
        return bool(self._native.in_forked_child())

    def device_count(self) -> int:
        """Return number of devices."""
        return int(self._native.device_count())

    def current_device(self) -> int:
        """Index of this thread's current device."""
        return int(torch.accelerator.current_device_index())

    def set_device(self, device: DeviceLike) -> None:
        """Make `device` this thread's current device."""
        torch.accelerator.set_device_index(self._index(device))

    def device(self, device: DeviceLike) -> AbstractContextManager[Any]:
        """Return a context in which `device` is this thread's current device."""
        return torch.accelerator.device_index(self._index(device))  # type: ignore[no-any-return]

    def get_device_properties(self, device: DeviceLike = None) -> DeviceProperties:
        """Return what the driver says about a device."""
        facts = self._native.device_props(self._index(device))
        dtypes, uuid = facts.pop("dtypes"), facts.pop("uuid")
        return DeviceProperties(
            dtypes=frozenset(getattr(torch, name) for name in dtypes),
            uuid=UUID(bytes=uuid) if any(uuid) else None,
            **facts,
        )

    def get_device_name(self, device: DeviceLike = None) -> str:
        """Return the device's name for people."""
        return self.get_device_properties(device).name

    def can_device_access_peer(self, device: DeviceLike, peer_device: DeviceLike) -> bool:
        """Return whether a device's kernels reach another's memory: no driver can say so.

        Copies between devices work all the same.
        """
        self._index(device), self._index(peer_device)
        return False

    def get_device_capability(self, device: DeviceLike = None) -> dict[str, Any]:
        """Return `{"supported_dtypes": {...}}`, as `torch.accelerator` has it."""
        return torch.accelerator.get_device_capability(self._index(device))  # type: ignore[no-any-return]

    # --- streams

    def synchronize(self, device: DeviceLike = None) -> None:
        """Wait for all work of a device.

        Raises:
            KernelError: a kernel failed; the text names operator and stream.
            DeviceError: the device failed otherwise.
        """
        # The current device is asked for natively: Python takes as long for it as for the wait.
        status, message = self._native.synchronize(-1 if device is None else self._index(device))
        if status == self._native.KERNEL_FAILED:
            raise KernelError(message)
        if status != 0:
            where = f"{self._name}:{self._index(device)}"
            raise DeviceError(f"waiting for device '{where}' failed: {message}")

    def reset_device(self, device: DeviceLike = None) -> None:
        """Make a device usable again after a failure that it does not get over by itself.

        Pending work is dropped, unreported failures are forgotten, and events that were pending are
        done. Tensors, streams, events, generators and captured graphs stay valid; what the device's
        tensors hold is undefined until it is written anew. Raises `DeviceError`: the driver cannot
        reset a device, or the reset failed.
        """
        index = self._index(device)
        try:
            status, message = self._native.reset_device(index)
        except RuntimeError as error:
            raise DeviceError(str(error).split("\n", 1)[0]) from None
        if status != 0:
            raise DeviceError(f"resetting device '{self._name}:{index}' failed: {message}")

    def native_handle(
        self,
        kind: str,
        *,
        stream: torch.Stream | None = None,
        address: int = 0,
        device: DeviceLike = None,
    ) -> int:
        """Return the vendor's own object behind a device, a stream or memory, as a number.

        It is what the vendor's libraries take: a `cl_context`, a `cl_command_queue`, a `CUstream`.

        Args:
            kind: "context", "device", "queue" (of `stream`) or "memory" (that holds `address`).
            stream: whose queue; None for the current one.
            address: of device memory, `tensor.data_ptr()`.
            device: whose; None for the current one.

        Raises:
            DeviceError: the driver has no such object, or no native_handle.
            ValueError: another kind.
        """
        if kind not in _NATIVE_KINDS:
            raise ValueError(f"expected one of {', '.join(_NATIVE_KINDS)}, got {kind!r}")
        index = self._index(device)
        of = self.current_stream(index) if stream is None else stream
        status, message, handle = self._native.native_handle(
            index, of.native_handle or 0, _NATIVE_KINDS[kind], address
        )
        if status != 0:
            raise DeviceError(f"device '{self._name}:{index}' has no native {kind}: {message}")
        return int(handle)

    def stream_priority_range(self, device: DeviceLike = None) -> tuple[int, int]:
        """Return the least and the greatest priority of a stream, as
        `torch.cuda.Stream.priority_range`.

        `torch.Stream(device, priority=...)` takes a number beyond them as the nearer of the two.
        """
        properties = self.get_device_properties(device)
        return properties.least_priority, properties.greatest_priority

    def current_stream(self, device: DeviceLike = None) -> torch.Stream:
        """This thread's current stream of a device."""
        return torch.accelerator.current_stream(torch.device(self._name, self._index(device)))

    def default_stream(self, device: DeviceLike = None) -> torch.Stream:
        """Return the stream that is current unless another was chosen."""
        return torch.Stream(
            stream_id=0,
            device_index=self._index(device),
            device_type=int(torch._C._autograd.DeviceType.PrivateUse1),
        )

    def set_stream(self, stream: torch.Stream) -> None:
        """Make `stream` this thread's current stream, and its device the current device."""
        torch.accelerator.set_stream(stream)

    def stream(self, stream: torch.Stream | None) -> AbstractContextManager[torch.Stream | None]:
        """Return a context in which `stream` is current; None changes nothing."""
        return StreamContext(stream)

    # --- random numbers

    def _generator(self, device: DeviceLike) -> torch.Generator:
        return self.default_generators[self._index(device)]

    _get_generator = _generator  # torch's name for it

    def manual_seed(self, seed: int) -> None:
        """Seed the current device."""
        self._generator(None).manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        """Seed every device."""
        for generator in self.default_generators:
            generator.manual_seed(int(seed))

    def seed(self) -> None:
        """Seed the current device with a random number."""
        self._generator(None).seed()

    def seed_all(self) -> None:
        """Seed every device with one random number."""
        self.manual_seed_all(self._generator(None).seed())

    def initial_seed(self) -> int:
        """Return the seed of the current device."""
        return int(self._generator(None).initial_seed())

    def get_rng_state(self, device: DeviceLike = None) -> torch.Tensor:
        """Return the state of a device's random numbers: a ByteTensor on cpu."""
        return self._generator(device).get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """Return the state of every device."""
        return [generator.get_state() for generator in self.default_generators]

    def set_rng_state(self, new_state: torch.Tensor, device: DeviceLike = None) -> None:
        """Put a state of `get_rng_state` back."""
        self._generator(device).set_state(new_state)

    def set_rng_state_all(self, new_states: list[torch.Tensor]) -> None:
        """Put the states of `get_rng_state_all` back."""
        for generator, state in zip(self.default_generators, new_states, strict=True):
            generator.set_state(state)

    # --- memory, in bytes

    def empty_cache(self) -> None:
        """Give unused cached memory back to the driver."""
        torch.accelerator.empty_cache()

    def mem_get_info(self, device: DeviceLike = None) -> tuple[int, int]:
        """Free and total bytes of a device."""
        free, total = torch.accelerator.get_memory_info(self._index(device))
        return int(free), int(total)

    def memory_stats(self, device: DeviceLike = None) -> dict[str, Any]:
        """Return the allocator's statistics, with the keys of `torch.accelerator.memory_stats`."""
        return dict(torch.accelerator.memory_stats(self._index(device)))

    def memory_allocated(self, device: DeviceLike = None) -> int:
        """Return bytes that tensors hold."""
        return int(torch.accelerator.memory_allocated(self._index(device)))

    def max_memory_allocated(self, device: DeviceLike = None) -> int:
        """Return the most bytes that tensors held since the peak was reset."""
        return int(torch.accelerator.max_memory_allocated(self._index(device)))

    def memory_reserved(self, device: DeviceLike = None) -> int:
        """Return bytes that the allocator holds, used or cached."""
        return int(torch.accelerator.memory_reserved(self._index(device)))

    def max_memory_reserved(self, device: DeviceLike = None) -> int:
        """Return the most bytes that the allocator held since the peak was reset."""
        return int(torch.accelerator.max_memory_reserved(self._index(device)))

    def memory_summary(self, device: DeviceLike = None, abbreviated: bool = False) -> str:
        """Return the allocator's statistics as a table; `abbreviated` changes nothing."""
        index = self._index(device)
        free, total = self.mem_get_info(index)
        return _submodules.memory_summary(
            self.memory_stats(index), f"{self._name}:{index}", free, total
        )

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """Return the allocator's segments of all devices, in the form of
        `torch.cuda.memory_snapshot`.

        Returns:
            For each segment a dict with `device`, `address`, `stream`, `segment_type` ("small" or
            "large"), `total_size`, `allocated_size`, `active_size` and `requested_size` in bytes,
            and `blocks`: address, size, requested_size and state ("active_allocated",
            "active_pending_free" while another stream may use it, or "inactive"), by address.
        """
        return list(self._native.memory_snapshot())

    def set_per_process_memory_fraction(self, fraction: float, device: DeviceLike = None) -> None:
        """Let this process's allocator take no more than a part of a device's memory: what does not
        fit into it raises `OutOfMemoryError`, after what is cached was given back. Raises
        `ValueError`: `fraction` is not from 0 to 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction is from 0 to 1, got {fraction!r}")
        index = self._index(device)
        self._native.set_memory_limit(index, int(fraction * self.mem_get_info(index)[1]))
        self._fractions[index] = float(fraction)

    def get_per_process_memory_fraction(self, device: DeviceLike = None) -> float:
        """Return what `set_per_process_memory_fraction` was given, 1.0 where it was not."""
        return self._fractions.get(self._index(device), 1.0)

    @contextmanager
    def use_mem_pool(self, pool: Any, device: DeviceLike = None) -> Iterator[None]:
        """Let this thread make the device's tensors in memory of a `MemPool` alone; what the pool
        has becomes everybody's when there is no such pool any more.

        Raises:
            TypeError: `pool` is none.
        """
        _, number = getattr(pool, "id", (None, None))
        if type(number) is not int:
            raise TypeError(f"use_mem_pool takes a MemPool, got {pool!r}")
        if pool not in self._pools:
            self._pools.add(pool)
            weakref.finalize(pool, self._native.release_memory_pool, number).atexit = False
        index = self._index(device)
        former = self._native.set_memory_pool(index, number)
        try:
            yield
        finally:
            self._native.set_memory_pool(index, former)

    def caching_allocator_alloc(
        self, size: int, device: DeviceLike = None, stream: torch.Stream | None = None
    ) -> int:
        """Return the address of `size` bytes, until `caching_allocator_delete`: for code that works
        in `stream`, by default the current one.
        """
        with torch.accelerator.device_index(self._index(device)), StreamContext(stream):
            memory = torch.empty(size, dtype=torch.uint8, device=self._name)
        self._lent[memory.data_ptr()] = memory
        return int(memory.data_ptr())

    def caching_allocator_delete(self, mem_ptr: int) -> None:
        """Give memory of `caching_allocator_alloc` back. Raises `DeviceError`: it is none, or was
        given back.
        """
        if self._lent.pop(mem_ptr, None) is None:
            raise DeviceError(f"caching_allocator_alloc gave no memory at {mem_ptr:#x}")

    def host_memory_stats(self) -> dict[str, int]:
        """Return statistics of pinned memory, with the keys of `torch.cuda.host_memory_stats`."""
        return dict(self._native.host_memory_stats())

    def reset_peak_host_memory_stats(self) -> None:
        """Make the present the new peak of pinned memory."""
        self._native.reset_peak_host_memory_stats()

    def reset_accumulated_host_memory_stats(self) -> None:
        """Set the sums and counters of pinned memory back to 0."""
        self._native.reset_accumulated_host_memory_stats()

    def host_empty_cache(self) -> None:
        """Give unused pinned memory back."""
        torch.accelerator.empty_host_cache()

    def reset_peak_memory_stats(self, device: DeviceLike = None) -> None:
        """Make the present the new peak."""
        torch.accelerator.reset_peak_memory_stats(self._index(device))

    def reset_accumulated_memory_stats(self, device: DeviceLike = None) -> None:
        """Set the sums and counters back to 0."""
        torch.accelerator.reset_accumulated_memory_stats(self._index(device))

    # --- autocast

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the dtypes that autocast may use."""
        has = self.get_device_capability()["supported_dtypes"]
        return [dtype for dtype in (torch.float16, torch.bfloat16) if dtype in has]

    def is_bf16_supported(self) -> bool:
        """Return whether bfloat16 works, through the fallback at least."""
        return torch.bfloat16 in self.get_amp_supported_dtype()
