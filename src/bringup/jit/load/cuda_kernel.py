"""Starting device code. `bringup[cuda]`'s cuda-core does the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bringup.errors import BringupError, DeviceError, TargetError
from bringup.jit.files.elf import FATBIN
from bringup.jit.load.binary import Binary


class CudaKernel:
    """A kernel of a `cuda` binary of kind `"device"`, loaded onto a GPU.

    Args:
        binary: what `jit.compile(..., target="cuda")` made of device code.
        device: the GPU's number.

    Raises:
        TargetError: the binary is no device code for CUDA.
        DeviceError: there is no such GPU or it cannot load the binary, in CUDA's words.
    """

    def __init__(self, binary: Binary, *, device: int = 0) -> None:
        if binary.kind != "device" or binary.target.partition(":")[0] != "cuda":
            raise TargetError(
                f"jit.CudaKernel: expected device code of target 'cuda', got {binary.kind} code of "
                f"target {binary.target!r}; that one is started through its kernel_id"
            )
        self._entry = binary.entry
        with _translate_cuda_errors(binary.entry):
            from cuda import core

            self._core: Any = core
            self._device = core.Device(device)
            self._device.set_current()
            form = core.ObjectCode
            several = binary.path.read_bytes()[:4] == FATBIN
            load = form.from_fatbin if several else form.from_cubin
            self._kernel = load(str(binary.path)).get_kernel(binary.entry)

    def launch(
        self,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *arguments: Any,
        stream: Any = None,
        shared_bytes: int = 0,
    ) -> None:
        """Start the kernel; it runs when the stream gets to it.

        Args:
            grid: the number of blocks, in up to three dimensions.
            block: the number of threads of a block, in up to three dimensions.
            arguments: the kernel's arguments as `cuda.core.launch` takes them: buffers, integers
                for pointers, numpy scalars for the rest.
            stream: a stream of cuda-core or anything with `__cuda_stream__`; the default stream
                when it is None.
            shared_bytes: dynamic shared memory of a block.

        Raises:
            DeviceError: CUDA refused the launch, in its words.
        """
        with _translate_cuda_errors(self._entry):
            config = self._core.LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)
            on = self._device.default_stream if stream is None else stream
            self._core.launch(on, config, self._kernel, *arguments)


@contextmanager
def _translate_cuda_errors(entry: str) -> Iterator[None]:
    """cuda-core raises errors of many classes; here they are one."""
    try:
        yield
    except BringupError:
        raise
    except ImportError as error:
        raise DeviceError(
            f"kernel {entry!r} cannot be started: {error}. Get cuda-core with: "
            "pip install 'bringup[cuda]'"
        ) from error
    except Exception as error:
        raise DeviceError(f"kernel {entry!r} cannot be started on this GPU: {error}") from error
