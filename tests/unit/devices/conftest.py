"""What the device tests share: the simulated NPU, drivers built on the spot, fresh processes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.forked_python import output_of
from tests.unit.devices.gate import HELD, Gate

from bringup import _native, devices, jit, ops


@pytest.fixture(scope="session", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


@pytest.fixture(scope="session")
def build_driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Builds a driver of drivers/, minimal.c if nothing is said, with these macros defined, and
    returns the library's path. SIM is the path of the simulator.
    """
    folder = tmp_path_factory.mktemp("drivers")
    compiler = shutil.which("cc") or "gcc"

    def build(*macros: str, source: str = "minimal") -> Path:
        library = folder / f"lib{'_'.join((source, *macros))}.so".replace("=", "")
        file = Path(__file__).parent / "drivers" / f"{source}.c"
        command = [compiler, "-shared", "-fPIC", f"-I{_native.include_dir()}", str(file)]
        command.append(f'-DSIM="{_native.sim_driver_path()}"')
        command += [f"-D{macro}" for macro in macros] + ["-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return library

    return build


@pytest.fixture(scope="session")
def fresh_python() -> Callable[..., str]:
    """Runs code in a process that has loaded torch and nothing else; its output, stripped."""
    return output_of


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.release()
    torch.npu.synchronize()


@pytest.fixture(scope="session")
def held_write() -> Callable[[torch.Tensor, int], None]:
    """Returns an operator that writes 1 into a tensor once the gate at an address is open."""
    return ops.kernel_op(
        "test_devices::held_write(Tensor(a!) x, int gate) -> ()",
        source=jit.Source(text=HELD, name="held.c"),
    )
