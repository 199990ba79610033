"""The OpenCL driver: its contract in each setting, copies, streams, failures, its package."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.gpt_program import GPT
from tests.opencl.conftest import ROOT, SOURCES, build
from tests.opencl.driver_program import CALLS

from bringup import devices

# What OpenCL has not: pinned memory, a reset, kernels that report failures, streams that are
# captured, memory and collectives between processes. PoCL has no priorities.
ABSENT = {
    "streams.synchronize_device", "streams.priorities", "host.pinned_memory", "device.reset",
    "host.registered_memory", "copies.rows", "modules.failure", "capture.node", "capture.abort",
    "capture.waits", "capture.states", "capture.kernels",
    "ipc.both_ways", "ipc.unknown", "graphs.conditional",
    "collectives.ids", "collectives.reductions", "collectives.moves", "collectives.splits",
    "collectives.order", "collectives.absent", "collectives.abort",
}  # fmt: skip
CHECK_KERNELS = SOURCES / "bringup_opencl" / "check_kernels.cl"
SETTINGS = {
    "coarse": ({"BRINGUP_OPENCL_MEMORY": "coarse"}, {"host.view", "copies.between_devices"}),
    "fine": ({"BRINGUP_OPENCL_MEMORY": "fine"}, {"copies.between_devices"}),
    "two": ({"BRINGUP_OPENCL_MEMORY": "fine", "BRINGUP_OPENCL_DEVICES": "2"}, set()),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_driver_breaks_no_rule(
    library: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, skipped = SETTINGS[setting]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = devices.check_driver(library, device_kernels=CHECK_KERNELS)
    assert not found.failure
    assert [(failure.name, failure.reason) for failure in found.failures] == []
    assert {r.name for r in found.results if r.outcome == "skipped"} == ABSENT | skipped


def test_the_package_brings_the_device_code_of_the_checks(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "bringup_opencl"
    shutil.copytree(SOURCES / "bringup_opencl", package)
    shutil.copy(library, package / "libocl.so")
    about = tmp_path / "bringup_opencl-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bringup-opencl\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[bringup.drivers]\nopencl = bringup_opencl\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "bringup", "driver", "check", "opencl"]
    command += ["--only", "values", "--only", "modules.data", "--json", str(tmp_path / "found")]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    outcomes = {one["outcome"] for one in json.loads((tmp_path / "found").read_text())["results"]}
    assert outcomes == {"pass"}


def test_native_handles_are_those_of_opencl(library: Path) -> None:
    told = output_of(
        """
import ctypes as c
import sys
import torch
from bringup import devices
devices.load_driver(sys.argv[1])
opencl = c.CDLL("libOpenCL.so.1")
context, device, queue = (torch.ocl.native_handle(kind) for kind in ("context", "device", "queue"))
found = c.c_void_p()
for question, expected in ((0x1090, context), (0x1091, device)):  # CL_QUEUE_CONTEXT, _DEVICE
    asked = c.c_void_p(queue), question, c.c_size_t(8), c.byref(found), None
    assert opencl.clGetCommandQueueInfo(*asked) == 0
    assert found.value == expected
there = torch.ones(9, device="ocl")[1:].data_ptr()
asked = c.c_void_p(torch.ocl.native_handle("memory", address=there)), 0x1103, c.c_size_t(8)
assert opencl.clGetMemObjectInfo(*asked, c.byref(found), None) == 0  # CL_MEM_HOST_PTR
assert found.value < there < found.value + (1 << 21)
try:
    torch.ocl.native_handle("memory", address=torch.ones(1).data_ptr())
except Exception as error:
    print(error)
""",
        str(library),
    )
    assert "is in no allocation" in told


def test_what_others_give_a_queue_is_waited_for(library: Path) -> None:
    program = """
call("stream_synchronize", 0, None)
call("stream_wait_for", 0, None, 10**9)
queue, context = c.c_void_p(), c.c_void_p()
call("native_handle", 0, None, 3, c.byref(queue))
call("native_handle", 0, None, 1, c.byref(context))
opencl = c.CDLL("libOpenCL.so.1")
opencl.clCreateUserEvent.restype = c.c_void_p
for _ in range(2):  # also behind a former question
    event = c.c_void_p(opencl.clCreateUserEvent(context, None))
    assert opencl.clEnqueueBarrierWithWaitList(queue, 1, c.byref(event), None) == 0
    call("stream_query", 0, None, gives="NOT_READY")
    call("stream_wait_for", 0, None, 10**6, gives="TIMEOUT")
    assert opencl.clSetUserEventStatus(event, 0) == 0
    call("stream_wait_for", 0, None, 60 * 10**9)
    while table.function("stream_query")(0, None) != 0:
        pass
print("done")
"""
    assert output_of(CALLS + program, str(library), BRINGUP_OPENCL_MEMORY="coarse") == "done"


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    return build(tmp_path_factory.mktemp("sanitized") / "libocl.so", "gcc", flags)


@pytest.fixture
def _sanitizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaks are not looked for: OpenCL's own objects end with the process."""
    asked = ["gcc", "-print-file-name=libasan.so"]
    runtime = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setenv("LD_PRELOAD", runtime)
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    monkeypatch.setenv("BRINGUP_OPENCL_MEMORY", "coarse")


# Not of the checks that take all memory: it would be poisoned byte by byte.
SANITIZED = [
    "device", "errors", "memory.pointers", "memory.every_byte", "streams", "events", "graphs",
    "host", "profiler", "fills", "threads", "lifecycle",
]  # fmt: skip


@pytest.mark.usefixtures("_sanitizers")
def test_the_driver_breaks_no_rule_under_sanitizers(sanitized: Path) -> None:
    found = devices.check_driver(sanitized, only=SANITIZED)
    assert not found.failure
    assert [(failure.name, failure.reason) for failure in found.failures] == []
    assert sum(result.outcome == "pass" for result in found.results) >= 30


@pytest.mark.usefixtures("_sanitizers")
def test_device_code_is_loaded_and_launched_under_sanitizers(sanitized: Path) -> None:
    program = """
fn = load("BRINGUPCL1\\nsource\\n-D UNUSED\\n" + SCALE)
out = Ints(1, 2)
values = address(out.address), address(out.address), integer(2, 8), integer(3, 4)
run(fn, *values)
run(fn, *values[:3], gives="INVALID")
graph = made("graph_create", 0)
for _ in range(40):
    call("graph_add_values", graph, launch_of(fn, *values))
call("graph_update_values", graph, 39, launch_of(fn, *values[:3], integer(1, 4)))
call("profiler_start", 0)
call("graph_launch", graph, None)
call("stream_synchronize", 0, None)
call("profiler_start", 0)
call("profiler_stop", 0)
call("graph_destroy", graph)
assert out.values() == [3**40 % 2**32, 2 * 3**40 % 2**32], out.values()
print("done")
"""
    command = [sys.executable, "-c", CALLS + program, str(sanitized)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


TRAIN = f"""{GPT}
import sys
from bringup import devices
devices.load_driver(sys.argv[1])
assert torch.device("ocl").type == "ocl"

def losses(device):
    step = trainer(device)
    return [step().item() for _ in range(3)]

assert losses("ocl") == losses("cpu"), (losses("ocl"), losses("cpu"))
print(torch.ocl.get_device_properties().name != "")
"""


@pytest.mark.parametrize("memory", ["coarse", "fine"])
def test_training_by_fallback_equals_the_cpu_to_the_bit(library: Path, memory: str) -> None:
    assert output_of(TRAIN, str(library), BRINGUP_OPENCL_MEMORY=memory) == "True"


def test_the_trace_of_a_training_step_is_replayed_on_the_simulator(
    library: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "gpt.jsonl"
    variables = {"BRINGUP_DRIVER_TRACE": str(trace), "BRINGUP_DRIVER_TRACE_PAYLOAD": "1"}
    program = f"{GPT}\nimport sys\nfrom bringup import devices\ndevices.load_driver(sys.argv[1])\n"
    program += "print(trainer('ocl')().item())"
    output_of(program, str(library), BRINGUP_OPENCL_MEMORY="coarse", **variables)
    report = devices.replay_trace(trace, "sim")
    assert report.difference is None
    assert set(report.left_out) <= {"queries and waits that were not over"}
    assert report.compared_copies > 300


STREAMS = """
import sys
import torch
from bringup import devices
devices.load_driver(sys.argv[1])

x = torch.arange(1 << 16, dtype=torch.int32)
there = x.to("ocl:1")
assert torch.equal(there.to("ocl:0").cpu(), x) and there.device.index == 1
first, second = torch.Stream("ocl"), torch.Stream("ocl")
begun, ended = (torch.Event("ocl", enable_timing=True) for _ in range(2))
with first:
    begun.record()
    y = torch.full((1 << 20,), 3.0, device="ocl")
    ended.record()
with second:
    second.wait_event(ended)
    z = y.clone()
second.synchronize()
assert z.sum().item() == 3.0 * (1 << 20) and 0 <= begun.elapsed_time(ended) < 60_000
host = torch.zeros(5, 7)
host[:, 2:4] = x[:10].view(5, 2).to("ocl").float()
assert host[4].tolist() == [0, 0, 8, 9, 0, 0, 0]
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="ocl")
except torch.OutOfMemoryError as error:
    assert "ocl out of memory" in str(error)
    print("refused")
"""


def test_copies_streams_and_events_on_two_devices(library: Path) -> None:
    variables = {"BRINGUP_OPENCL_DEVICES": "2", "BRINGUP_OPENCL_MEMORY": "coarse"}
    assert output_of(STREAMS, str(library), **variables) == "refused"


def test_devices_say_what_they_are_and_unlike_ones_differ(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_OPENCL_DEVICES", "2")
    first, second = devices.describe_driver(library).devices
    assert first.arch == second.arch
    assert first.arch.startswith("opencl-")
    assert len(first.arch) == 23
    assert not first.runs_host_code
    monkeypatch.setenv("BRINGUP_OPENCL_DEVICES", "")
    (whole,) = devices.describe_driver(library).devices
    assert whole.arch == first.arch  # it tells nothing that differs from process to process
    assert whole.core_count >= first.core_count + second.core_count
    assert whole.driver_version


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("BRINGUP_OPENCL_MEMORY", "rough", "BRINGUP_OPENCL_MEMORY=rough: expected fine or coarse"),
        ("BRINGUP_OPENCL_DEVICES", "9999", "BRINGUP_OPENCL_DEVICES: expected 1 to the"),
        ("BRINGUP_OPENCL_PLATFORM", "nobody's", "BRINGUP_OPENCL_PLATFORM=nobody's"),
        (
            "OCL_ICD_VENDORS",
            "/nonexistent",
            "no OpenCL platform: expected a vendor's OpenCL driver",
        ),
    ],
)
def test_a_start_that_fails_says_what_was_expected(
    library: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    assert words in devices.check_driver(library, only=["device"]).failure


def test_failures_name_what_was_wrong_and_change_nothing(library: Path) -> None:
    program = """
out = Ints(1, 2)
other = c.c_void_p(made("stream_create", 1, 0))
said = call("fill_async", 0, out.address, 0, 8, other, gives="INVALID")
assert said.endswith("is of device 1, not of device 0"), said
said = call("fill_wide_async", 0, out.address, out.address, 3, 1, None, gives="INVALID")
assert "1, 2, 4, 8 or 16 bytes, not 3" in said
assert "no device 2: expected 0 to 1" in call("stream_synchronize", 2, None, gives="INVALID")
assert "no allocation of device 1" in call("mem_free", 1, out.address, gives="INVALID")
assert "no allocation" in call("mem_free", 0, out.address + 4, gives="INVALID")
said = call("mem_alloc", 0, 1 << 60, c.byref(c.c_void_p()), gives="OUT_OF_MEMORY")
assert "more than one allocation" in said
event = c.c_void_p(made("event_create", 0, 0))
call("event_record", event, 0, None)
milliseconds = c.c_double()
said = call("event_elapsed", event, event, c.byref(milliseconds), gives="INVALID")
assert "without timing" in said
view = c.c_void_p()
assert "coarse" in call("host_view", 0, out.address, c.byref(view), gives="UNSUPPORTED")
assert out.values() == [1, 2]
print("done")
"""
    variables = {"BRINGUP_OPENCL_DEVICES": "2", "BRINGUP_OPENCL_MEMORY": "coarse"}
    assert output_of(CALLS + program, str(library), **variables) == "done"


def test_a_process_that_has_pytorch_dlprims_device_is_told_so(library: Path) -> None:
    program = """
import sys
import torch
from bringup import devices
torch.utils.rename_privateuse1_backend("ocl")  # as that package does
try:
    devices.load_driver(sys.argv[1])
except Exception as error:
    print(error)
"""
    said = output_of(program, str(library))
    assert "device is already 'ocl', registered by another package, as pytorch_dlprim does" in said


@pytest.mark.slow
def test_the_package_is_found_by_its_name(tmp_path: Path) -> None:
    assert shutil.which("cmake") is not None, "the tests need cmake: pip install cmake"
    source, site = tmp_path / "opencl", tmp_path / "site"
    left = shutil.ignore_patterns("*.so", "build")
    shutil.copytree(ROOT / "drivers" / "opencl", source, ignore=left)
    options = ["--quiet", "--no-build-isolation", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    (package,) = importlib.metadata.distributions(path=[str(site)])
    groups = [(e.group, e.name) for e in package.entry_points]
    assert groups == [("bringup.drivers", "opencl"), ("bringup.targets", "opencl")]
    code = (
        "from bringup import devices, jit\n"
        "assert jit.Source(text='', name='k.cl').language == 'opencl'\n"
        "print(devices.driver_library('opencl'))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert Path(found.strip()) == site / "bringup_opencl" / "libocl.so"
