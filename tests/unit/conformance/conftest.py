"""What the conformance tests share: the simulated NPU, and kernels on it that are wrong."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forked_commands import stand_ins
from tests.forked_python import OPINFO

from bringup import devices
from bringup.conformance import _worker_pool

WORKER = (
    "import runpy, warnings; warnings.simplefilter('ignore')\n"
    "runpy.run_module('bringup.conformance._worker', run_name='__main__', alter_sys=True)"
)
Register = Callable[[str, Callable[..., Any]], None]


@pytest.fixture(scope="session", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture
def device_kernel() -> Iterator[Register]:
    """Registers a kernel of an aten operator on the device, until the end of the test. It is called
    with tensors on cpu, and gives some.
    """
    library = torch.library.Library("aten", "IMPL")

    def register(name: str, function: Callable[..., Any]) -> None:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            given = torch.utils._pytree.tree_map(on_cpu, (args, kwargs))
            result = function(*given[0], **given[1])
            return torch.utils._pytree.tree_map_only(torch.Tensor, on_device, result)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that a kernel is replaced
            library.impl(name, kernel, "PrivateUse1")

    yield register
    library._destroy()


@pytest.fixture
def forked_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes that run cases from a server that has torch's own tests."""
    folder = tmp_path / "commands"
    folder.mkdir()
    variables, number = stand_ins(folder, OPINFO)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(subprocess, "Popen", partial(subprocess.Popen, pass_fds=[number]))
    monkeypatch.setattr(_worker_pool, "PROGRAM", (str(folder / "python"), "-c", WORKER))


def on_cpu(leaf: object) -> object:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("npu")
