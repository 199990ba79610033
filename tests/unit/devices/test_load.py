"""Loading drivers: what is refused, with which words, and what is left as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bringup import _native, devices
from bringup.errors import DeviceError, DriverError

TRY_ALL = """
import json, os, sys
from bringup import devices
from bringup.errors import DriverError
said = []
for path, name, environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    try:
        devices.load_driver(path, name=name)
        said.append("loaded")
    except DriverError as error:
        said.append(str(error))
    for variable in environment:
        del os.environ[variable]
import torch
assert torch._C._get_privateuse1_backend_name() == "privateuseone"
assert devices.loaded() is None
info = devices.load_driver("sim", name="fresh")  # a refused driver left nothing behind
assert torch.ones(2, device="fresh").sum().item() == 2 and info.device_name == "fresh"
print(json.dumps(said))
"""

BROKEN = {
    "BROKEN_SYMBOL": "it exports no function 'bringup_driver_get'",
    "BROKEN_LANGUAGE": "it does not speak driver ABI 1",
    "BROKEN_SIZE": "its function table is too small: 24 bytes, at least",
    "BROKEN_ABI": "it is written for driver ABI 7, this is driver ABI 1",
    "BROKEN_FUNCTION": "its required function 'copy_async' is NULL",
    "BROKEN_COUNT=0": "it has no device",
    "BROKEN_COUNT=65": "it has 65 devices, at most 64 are supported",
    "BROKEN_START": "device_count returned BRINGUP_DEVICE_LOST",
}
NAMES = {
    "Npu": "expected lower case letters, digits and underscores, beginning with a letter",
    "cpu2": "torch cannot load tensors of a device whose name starts with 'cpu' or 'cuda'",
    "cuda_like": "torch cannot load tensors of a device whose name starts with 'cpu' or 'cuda'",
    "nn": "torch.nn already exists, choose another with load_driver(..., name=...)",
    "vulkan": "torch has a device of that name, choose another with load_driver(..., name=...)",
}
SETTINGS = {
    "BRINGUP_SIM_MEMORY=lots": "BRINGUP_SIM_MEMORY='lots': expected a number of bytes",
    "BRINGUP_SIM_MEMORY=0": "BRINGUP_SIM_MEMORY='0': expected a number of bytes",
    "BRINGUP_SIM_ISOLATED=maybe": "BRINGUP_SIM_ISOLATED='maybe': expected 1 or 0",
    "BRINGUP_SIM_RECORDS=few": "BRINGUP_SIM_RECORDS='few': expected a number from 0",
    "BRINGUP_SIM_ARCHS=sim-1": "BRINGUP_SIM_ARCHS='sim-1': expected 2 names",
}


@pytest.fixture(scope="module")
def refusals(
    build_driver: Callable[..., Path],
    fresh_python: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Path, str]]:
    """What one fresh process said to broken drivers, bad names and bad settings."""
    no_library = tmp_path_factory.mktemp("none") / "libtext.so"
    no_library.write_text("not ELF")
    tried: list[tuple[str, Path, str | None, dict[str, str]]] = [("text", no_library, None, {})]
    tried += [(macro, build_driver(macro), None, {}) for macro in BROKEN]
    tried += [(name, build_driver(), name, {}) for name in NAMES]
    tried += [(text, _native.sim_driver_path(), None, dict([text.split("=")])) for text in SETTINGS]
    said = json.loads(
        fresh_python(TRY_ALL, json.dumps([(str(path), *rest) for _, path, *rest in tried]))
    )
    return {what: (path, text) for (what, path, *_), text in zip(tried, said, strict=True)}


@pytest.mark.parametrize("macro", BROKEN)
def test_broken_driver_is_refused_by_path_and_reason(
    refusals: dict[str, tuple[Path, str]], macro: str
) -> None:
    path, text = refusals[macro]
    assert text.startswith(f"the driver {path} cannot be used: {BROKEN[macro]}")


@pytest.mark.parametrize("name", NAMES)
def test_bad_device_name_is_refused(refusals: dict[str, tuple[Path, str]], name: str) -> None:
    path, text = refusals[name]
    assert text == f"the driver {path} cannot be device {name!r}: {NAMES[name]}"


def test_driver_of_required_functions_only_trains_a_model(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import copy, sys, torch
from bringup import devices
info = devices.load_driver(sys.argv[1])
assert not info.host_visible
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3))
twin = copy.deepcopy(model).to("minimal")
x = torch.randn(5, 1, 4, 4)
for net, at in ((model, x), (twin, x.to("minimal"))):
    step = torch.optim.AdamW(net.parameters(), lr=0.1)
    for _ in range(3):
        step.zero_grad()
        net(at).square().mean().backward()
        step.step()
for ours, theirs in zip(twin.parameters(), model.parameters()):
    torch.testing.assert_close(ours.cpu(), theirs)
torch.minimal.synchronize()
print(torch.minimal.get_device_name(), x.pin_memory().is_pinned())
"""
    assert fresh_python(code, str(build_driver())) == "Minimal True"


def test_device_that_fails_without_words_is_named_by_status(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import sys, torch
from bringup import devices
devices.load_driver(sys.argv[1])
try:
    torch.minimal.synchronize()
except Exception as error:
    print(type(error).__module__, type(error).__name__)
    print(error)
"""
    assert fresh_python(code, str(build_driver("BROKEN_END"))).splitlines() == [
        "bringup.errors DeviceError",
        "waiting for device 'minimal:0' failed: device lost (status 5)",
    ]


def test_loading_the_loaded_driver_again_changes_nothing(npu: devices.DriverInfo) -> None:
    assert devices.load_driver("sim") is npu
    assert devices.load_driver(_native.sim_driver_path(), name="npu") is npu
    assert devices.loaded() is npu


def test_a_second_driver_is_refused(build_driver: Callable[..., Path]) -> None:
    path = build_driver()
    with pytest.raises(
        DriverError, match=r"is already loaded as device 'npu', so .* cannot be"
    ) as refused:
        devices.load_driver(path)
    assert str(path) in str(refused.value)


def test_another_name_for_the_loaded_driver_is_refused() -> None:
    with pytest.raises(
        DriverError, match="already loaded as device 'npu', so it cannot become 'tpu'"
    ):
        devices.load_driver("sim", name="tpu")


def test_missing_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DriverError, match=f"there is no driver at {tmp_path / 'libnone.so'}"):
        devices.load_driver(tmp_path / "libnone.so")
    monkeypatch.setenv("BRINGUP_DRIVER", "smi")
    with pytest.raises(DriverError, match="no driver named 'smi': expected the path"):
        devices.load_driver()


def test_file_that_is_no_library_is_refused(refusals: dict[str, tuple[Path, str]]) -> None:
    path, text = refusals["text"]
    assert text.startswith(f"the driver {path} cannot be used: {path}: ")


@pytest.mark.parametrize("setting", SETTINGS)
def test_bad_setting_of_the_simulator_is_named(
    refusals: dict[str, tuple[Path, str]], setting: str
) -> None:
    _, text = refusals[setting]
    assert f"cannot be used: init: {SETTINGS[setting]}" in text


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (
            "torch.utils.rename_privateuse1_backend('other')",
            "PrivateUse1 device is already 'other'",
        ),
        (
            "from torch.utils import backend_registration as registration\n"
            "registration._setup_privateuseone_for_python_backend()",
            "another backend has already registered itself for torch's PrivateUse1 device",
        ),
    ],
)
def test_backend_of_another_package_is_left_alone(
    fresh_python: Callable[..., str], claim: str, words: str
) -> None:
    code = f"""
import torch
{claim}
from bringup import devices
from bringup.errors import DriverError
try:
    devices.load_driver("sim")
except DriverError as error:
    print(error)
assert devices.loaded() is None
"""
    assert words in fresh_python(code)


def test_importing_bringup_claims_nothing(fresh_python: Callable[..., str]) -> None:
    code = """
import torch, bringup
from bringup import _native, devices, ops
_native.torch_library()
print(torch._C._get_privateuse1_backend_name(), torch.accelerator.current_accelerator())
"""
    assert fresh_python(code) == "privateuseone None"


def test_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        DeviceError, match=r"there is no device 'npu:5': this driver has 2 \(0 to 1\)"
    ):
        torch.npu.set_device(5)
    with pytest.raises(DeviceError, match="expected a device of type 'npu', got 'cpu'"):
        torch.npu.synchronize("cpu")
    with pytest.raises(RuntimeError, match=r"there is no device 'npu:7': this driver has 2"):
        torch.empty(1, device="npu:7")


GRAPH_NAMES = """
import sys
import torch
from bringup import _device_attributes, devices

devices.load_driver("sim")
assert "bringup.graphs" not in sys.modules
for name in _device_attributes.GRAPHS:
    assert name in dir(torch.npu), name
    assert name.startswith("_") or name in torch.npu.graphs.__all__, name
assert torch.npu.ExternalEvent and torch.npu.graph_pool_handle()
from bringup import graphs
for name, ours in _device_attributes.GRAPHS.items():
    assert getattr(torch.npu, name) is getattr(torch.npu.graphs, name), name
    assert getattr(torch.npu, name) is getattr(graphs, ours), name
"""


def test_names_of_captured_graphs_are_there_before_anybody_imports_them() -> None:
    run = subprocess.run([sys.executable, "-c", GRAPH_NAMES], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_module_attributes_are_made_when_asked_for() -> None:
    made = []
    devices.register_module_attribute("lazily_made", lambda: made.append(1) or "value")
    assert not made
    assert torch.npu.lazily_made == "value"
    assert torch.npu.lazily_made == "value"
    assert made == [1]
    assert "lazily_made" in dir(torch.npu)
    with pytest.raises(AttributeError, match=r"module 'torch.npu' has no attribute 'never_made'"):
        _ = torch.npu.never_made
    with pytest.raises(ValueError, match="'lazily_made' is already registered"):
        devices.register_module_attribute("lazily_made", lambda: None)
    with pytest.raises(
        ValueError, match="'not a name' cannot be an attribute of the device module"
    ):
        devices.register_module_attribute("not a name", lambda: None)


LATE_DRIVER = """
import torch
from bringup import devices
torch.ones(2, requires_grad=True).sum().backward()
devices.load_driver("sim")
x = torch.ones(2, device="npu:1", requires_grad=True)
(3 * x).sum().backward()
print(x.grad.tolist(), x.grad.device)
"""


def test_driver_loaded_after_a_backward_still_gets_backwards(
    fresh_python: Callable[..., str],
) -> None:
    assert fresh_python(LATE_DRIVER) == "[3.0, 3.0] npu:1"


FALLBACK = """
import torch
from bringup import devices, errors
library = torch.library.Library("_", "IMPL")
def mine(op, *args, **kwargs):
    raise NotImplementedError
"""


def test_a_fallback_of_somebody_elses_is_refused_and_the_driver_loads_without_it(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(
        FALLBACK
        + """
library.fallback(mine, "PrivateUse1")
try:
    devices.load_driver("sim")
except errors.DriverError as error:
    print(error)
library._destroy()
devices.load_driver("sim")
print((torch.ones(2, device="npu") + 1).tolist())
"""
    )
    refusal, worked = told.splitlines()
    assert "a fallback of all operators for PrivateUse1" in refusal
    assert "take that one out" in refusal
    assert "devices.set_fallback_policy" in refusal
    assert worked == "[2.0, 2.0]"


def test_a_fallback_behind_the_driver_is_told_what_to_write_instead(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(
        FALLBACK
        + """
devices.load_driver("sim")
try:
    library.fallback(mine, "PrivateUse1")
except RuntimeError as error:
    print(str(error).replace("\\n", " "))
"""
    )
    assert "register boxed kernels for single ones instead" in told
    assert "devices.set_fallback_policy" in told


def test_a_fallthrough_for_autocast_of_somebody_elses_stays(
    fresh_python: Callable[..., str],
) -> None:
    told = fresh_python(
        FALLBACK
        + """
library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
devices.load_driver("sim")
x = torch.ones(2, 2, device="npu")
with torch.autocast("npu", dtype=torch.bfloat16):
    print((x @ x).dtype, (x + x).dtype)
"""
    )
    assert told == "torch.bfloat16 torch.float32"
