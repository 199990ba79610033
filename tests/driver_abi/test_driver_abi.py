"""Drivers that were built with older headers run on the kit as it is."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from tests import training_program
from tests.forked_python import output_of

from bringup import devices, jit
from bringup.devices._driver_check import KERNELS as KERNELS_OF_CHECKS

HERE = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "include").is_dir())

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64",
    reason=f"the prebuilt drivers are for x86-64, this is {platform.machine()}",
)

TRAIN = f"""{training_program.TRAIN}
info = devices.load_driver(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
x = torch.randn(4, 8)

expected = train(copy.deepcopy(model), x, 4)
got = train(model.to("board"), x.to("board"), 4)
torch.testing.assert_close(torch.tensor(got), torch.tensor(expected))

stream, start, end = torch.Stream("board"), *(torch.Event("board", enable_timing=True),) * 2
with torch.accelerator.stream(stream) if hasattr(torch.accelerator, "stream") else stream:
    y = torch.full((1000,), 3.0, device="board")
stream.synchronize()
assert y.sum().item() == 3000
properties = torch.board.get_device_properties()
assert properties.alignment == 64 and properties.uuid is None and properties.driver_version == ""
assert torch.float8_e5m2 in properties.dtypes and torch.board.stream_priority_range() == (0, 0)
assert torch.board.mem_get_info()[1] == 2**28
print(info.description)
"""

KERNELS = """
import sys
import torch
from bringup import devices, graphs, jit, ops

devices.load_driver(sys.argv[1])
TEXT = '''#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float> x(args[0]), out(args[1]);
  if (x.numel() == 7) return ctx->set_error(ctx, "seven is refused"), 5;
  for (int64_t i = 0; i < out.numel(); ++i) out.at(i) = x.at(i) * x.at(i);
  return 0;
}'''
square = ops.kernel_op(
    "old_driver::square(Tensor x) -> Tensor",
    source=jit.Source(name="square.cpp", text=TEXT),
    outputs=ops.empty_like("x"),
    checks=ops.dtype("x", torch.float32),
)
x = torch.arange(4.0, device="board")
assert square(x).tolist() == [0, 1, 4, 9]
captured = graphs.CapturedGraph()
with graphs.capture(captured):
    y = square(x)
captured.replay()
assert y.tolist() == [0, 1, 4, 9]
x.copy_(torch.tensor([5.0, 6.0, 7.0, 8.0]))
captured.replay()
assert y.tolist() == [25, 36, 49, 64]
assert torch.ones(3).pin_memory("board").is_pinned("board")
try:
    square(torch.ones(7, device="board"))
    torch.board.synchronize()
except Exception as error:
    assert "seven is refused" in str(error), error
    print("told")
"""


def test_there_are_older_drivers() -> None:
    assert {"1.0", "1.2", "1.3", "1.4"} <= set(VERSIONS)
    for version in VERSIONS:
        assert {"libfull.so", "librefused.so", "librequired.so"} <= {
            file.name for file in (HERE / version).iterdir()
        }


@pytest.mark.parametrize("version", ["1.2", "1.3", "1.4"])
def test_a_driver_since_1_2_has_native_handles_and_captures_streams(version: str) -> None:
    groups = ["native", "capture", "device", "modules.launch"]
    library = HERE / version / "libfull.so"
    found = devices.check_driver(library, only=groups, kernels=host_kernels())
    assert not found.failure
    outcomes = {one.name: one.outcome for one in found.results}
    assert outcomes.pop("native.memory") == outcomes.pop("device.reset") == "skipped"
    assert set(outcomes.values()) == {"pass"}, found.failures


def test_a_driver_since_1_4_has_collectives() -> None:
    code = """
import sys, torch, torch.distributed as dist
from bringup import devices, graphs
devices.load_driver(sys.argv[1], name="board")
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3, device="board")
dist.all_reduce(x)
wide = torch.ones(3, dtype=torch.float64, device="board")  # by gloo
dist.all_reduce(wide)
whole = torch.zeros(3, device="board")
dist.all_gather_into_tensor(whole, x)
assert x.tolist() == wide.tolist() == whole.tolist() == [1, 1, 1]
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    dist.all_reduce(x)  # gloo's would be refused here
graph.replay()
assert x.tolist() == [1, 1, 1]
print([node.op for node in graph.nodes])
"""
    said = output_of(code, str(HERE / "1.4" / "libfull.so"))
    assert said == "['c10d::allreduce_']"


def host_kernels() -> Path:
    return jit.compile(jit.Source(KERNELS_OF_CHECKS, entry="check_accumulate"), target="cpu").path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("librequired.so", "the required functions of ABI {version}"),
        ("libfull.so", "the optional functions of ABI {version} too"),
    ],
)
def test_a_model_trains_on_an_older_driver(version: str, name: str, says: str) -> None:
    assert output_of(TRAIN, str(HERE / version / name)) == says.format(version=version)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_driver_launches_kernels_and_graphs(version: str) -> None:
    assert output_of(KERNELS, str(HERE / version / "libfull.so")) == "told"


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_driver_without_a_required_function_is_refused_in_words(version: str) -> None:
    library = HERE / version / "librefused.so"
    code = """
import os, sys
os.environ["BRINGUP_DRIVER_PROBE"] = "0"  # it would refuse first
from bringup import devices
from bringup.errors import DriverError
try:
    devices.load_driver(sys.argv[1])
except DriverError as error:
    print(error)
"""
    assert output_of(code, str(library)) == (
        f"the driver {library} cannot be used: its required function 'copy_async' is NULL"
        " (bringup/driver.h says which functions are required)"
    )
