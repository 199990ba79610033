"""The driver of NVIDIA GPUs on a library that records: its contract, and its calls of CUDA."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cuda_driver.conftest import SOURCES, Recorded
from tests.forked_python import output_of
from tests.gpt_program import GPT

from bringup import devices, jit

# What CUDA has not: host views, a reset that keeps memory, kernels that fail alone. What the driver
# leaves out: the runtime's own times, NCCL. The kit has a loop in the place of waits with a limit.
ABSENT = {
    "host.view", "modules.failure", "streams.timed_waits", "device.reset", "profiler.records",
    "native.memory", "collectives.ids", "collectives.reductions", "collectives.moves",
    "collectives.splits", "collectives.order", "collectives.absent", "collectives.abort",
    "graphs.conditional",
}  # fmt: skip
PTX = SOURCES / "bringup_cuda" / "check_kernels.ptx"
LOAD = f"""
fn = load(open({str(PTX)!r}).read(), "check_values")
out, x = Ints(1, 2, 3), Ints(10, 20, 30)
def values(factor, number=0.0):
    return (address(out.address), address(x.address), integer(3, 8), integer(1, 8),
            integer(factor, 4), single(1.0), double(number))
"""


@pytest.mark.parametrize("count", [1, 2])
def test_the_driver_breaks_no_rule(
    library: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_STAND_IN_DEVICES", str(count))
    only = None if count == 1 else ["device", "copies", "memory.pointers", "errors"]
    found = devices.check_driver(library, device_kernels=PTX, only=only)
    assert not found.failure
    assert [(failure.name, failure.reason) for failure in found.failures] == []
    skipped = {r.name for r in found.results if r.outcome == "skipped"}
    assert skipped == (ABSENT | {"copies.between_devices"} if count == 1 else {"device.reset"})


def numbers_of(line: str) -> list[int]:
    """The values of a recorded launch."""
    return [int(value, 16) for value in line.partition("values=")[2].split(",") if value]


def test_a_launch_has_the_geometry_the_stream_and_the_values_that_were_given(
    recorded: Recorded,
) -> None:
    lines = recorded(
        LOAD
        + """
stream = c.c_void_p(made("stream_create", 0, -3))
run(fn, *values(-7, 2.0), stream=stream, grid=(5, 3, 2), block=(32, 2, 1), shared=200_000)
call("stream_synchronize", 0, stream)
assert out.values() == [1 - 70 + 2 if i == 0 else v for i, v in enumerate(out.values())]
"""
    )
    (stream,) = (line for line in lines if "priority=-3" in line)
    (launch,) = (line for line in lines if line.startswith("launch"))
    assert stream.split()[2] == "device=0"
    begin = f"launch stream={stream.split()[1]} check_values grid=5,3,2 block=32,2,1 shared=200000"
    assert launch.startswith(begin)
    assert numbers_of(launch)[2:] == [3, 1, 2**32 - 7, 0x3F800000, 0x4000000000000000]


def test_what_does_not_fit_a_kernel_is_refused_and_never_reaches_cuda(recorded: Recorded) -> None:
    lines = recorded(
        LOAD
        + """
said = run(fn, *values(2)[:6], gives="INVALID")
assert said == "test::run: kernel 'check_values' takes 7 values, got 6", said
said = run(fn, *values(2)[:6], single(1.0), gives="INVALID")
assert said.endswith("parameter 6 of kernel 'check_values' has 8 bytes, the value for it has 4")
said = run(fn, *values(2), block=(1025, 1, 1), gives="INVALID")
assert "1025 threads in dimension 0: expected at least 1, and at most 2147483647 blocks" in said
said = run(fn, *values(2), block=(64, 32, 1), gives="INVALID")
assert said.endswith("a block of 64 x 32 x 1 threads: kernel 'check_values' can have 1024 at most")
assert "232449 bytes of shared" in run(fn, *values(2), shared=232_449, gives="INVALID")
other = c.c_void_p(made("stream_create", 1, 0))
said = run(fn, *values(2), stream=other, gives="INVALID")
assert said.endswith("is of device 1, not of device 0"), said
module = c.c_void_p()
data = c.create_string_buffer(b"no kernel")
said = call("module_load_data", 0, data, 9, c.byref(module), gives="ERROR")
assert "(CUDA_ERROR_INVALID_IMAGE): expected a cubin, a fatbin or PTX" in said and "no PTX" in said
said = call("stream_create", 0, 1, c.byref(module), gives="INVALID")
assert said.endswith("no stream priority 1: the device has those from -5 to 0"), said
"""
    )
    assert not [line for line in lines if line.startswith("launch")]


def test_a_graph_is_one_row_of_cudas_nodes_whose_values_change_without_another_one(
    recorded: Recorded,
) -> None:
    lines = recorded(
        LOAD
        + """
graph = made("graph_create", 0)
call("graph_add_copy", graph, ON_DEVICE, out.address, x.address, 12)
call("graph_add_values", graph, launch_of(fn, *values(2)))
call("graph_add_values", graph, launch_of(fn, *values(3)))
call("graph_add_copy", graph, ON_DEVICE, out.address, x.address, 0)
call("graph_launch", graph, None)
call("graph_update_values", graph, 1, launch_of(None, *values(5), grid=(2, 1, 1)))
call("graph_launch", graph, None)
call("graph_add_values", graph, launch_of(fn, *values(7)))
call("graph_launch", graph, None)
assert out.values() != [10, 20, 30]
call("graph_update_values", graph, 3, launch_of(fn, *values(5)), gives="INVALID")
call("graph_destroy", graph)
"""
    )
    assert [line for line in lines if line.startswith("instantiate")] == [
        "instantiate nodes=4",
        "instantiate nodes=5",
    ]
    kernels = [line for line in lines if line.startswith("graph kernel")]
    assert [numbers_of(line)[4] for line in kernels] == [2, 3, 2, 5, 2, 5, 7]
    assert [re.search(r"grid=(\d)", line)[1] for line in kernels] == list("1112121")  # type: ignore[index]


def test_launches_with_attributes_keep_them_in_a_graph(recorded: Recorded) -> None:
    lines = recorded(
        LOAD
        + """
together = dict(grid=(4, 2, 1), cluster=(2, 2, 1), flags=1)
run(fn, *values(2), **together)
graph = made("graph_create", 0)
call("graph_add_values", graph, launch_of(fn, *values(3), **together))
call("graph_launch", graph, None)
call("graph_update_values", graph, 0, launch_of(None, *values(5), **together | {"grid": (2, 2, 1)}))
call("graph_launch", graph, None)
for other in ({"cluster": (2, 1, 1)}, {"flags": 0}):
    said = call("graph_update_values", graph, 0, launch_of(None, *values(7), **together | other),
                gives="INVALID")
    assert said == "test::run: kernel 0 of the graph keeps its cluster and flags", said
said = call("graph_add_values", graph, launch_of(fn, *values(3), grid=(200, 1, 1), flags=1),
            gives="INVALID")
assert "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" in said, said
call("graph_launch", graph, None)  # without the refused one
older = launch_of(fn, *values(2), **together)._obj
older.struct_size = abi.LaunchValues.flags.offset
call("launch_values", 0, None, c.byref(older))
"""
    )
    kernels = [line for line in lines if line.startswith(("launch", "graph kernel"))]
    together = "shared=0 cluster=2,2,1 cooperative"
    assert [line.partition("block=1,1,1 ")[2].partition(" values")[0] for line in kernels] == [
        *[together] * 4,
        "shared=0",
    ]
    assert [numbers_of(line)[4] for line in kernels] == [2, 3, 5, 5, 2]


def test_clusters_that_do_not_fit_are_refused_and_never_reach_cuda(recorded: Recorded) -> None:
    lines = recorded(
        LOAD
        + """
for grid, cluster in (((3, 1, 1), (2, 1, 1)), ((4, 3, 1), (2, 2, 1)), ((4, 4, 3), (1, 1, 2)),
                      ((9, 1, 1), (9, 1, 1)), ((4, 4, 1), (2, 0, 1)),
                      ((1, 65535, 65535), (1, 65535, 65535))):
    said = run(fn, *values(2), grid=grid, cluster=cluster, gives="INVALID")
    assert "blocks in a grid of " + " x ".join(map(str, grid)) in said, said
    assert said.endswith("expected 8 blocks at most, and a grid of whole clusters"), said
said = run(fn, *values(2), flags=4, gives="UNSUPPORTED")
assert said.endswith(": a cooperative launch, or one in a native queue, which this device has not")
"""
    )
    assert not [line for line in lines if line.startswith("launch")]


def test_a_gpu_that_has_no_clusters_says_so(
    recorded: Recorded, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_STAND_IN_MODELS", "80")
    recorded(
        LOAD
        + """
said = run(fn, *values(2), grid=(2, 1, 1), cluster=(2, 1, 1), gives="UNSUPPORTED")
assert said == "test::run: a launch in clusters, which this device has not", said
"""
    )
    assert "are not run on hardware" in devices.describe_driver(library).description


def test_fills_of_more_than_four_bytes_are_columns_of_words(recorded: Recorded) -> None:
    lines = recorded(
        """
out = Ints(*range(8))
for pattern in (b"\\1\\2\\3\\4\\5\\6\\7\\x08", b"\\1\\2\\3\\4" * 4, b"\\1\\2"):
    call("fill_wide_async", 0, out.address, pattern, len(pattern), 2, None)
"""
    )
    fills = [line.split(maxsplit=2)[2] for line in lines if line.startswith("fill")]
    assert fills == [
        "size=4 pitch=8 count=2 value=4030201",
        "size=4 pitch=8 count=2 value=8070605",
        "size=4 pitch=4 count=8 value=4030201",
        "size=2 pitch=2 count=2 value=201",
    ]


def test_a_device_has_a_context_when_it_is_used_and_copies_between_two_run_at_the_source(
    recorded: Recorded,
) -> None:
    lines = recorded(
        """
count = c.c_int32()
call("device_count", c.byref(count))
source = Ints(4, 5)
there = Ints(0, 0, device=1)
call("copy_async", ON_DEVICE, 1, there.address, 0, source.address, 8, None)
call("device_synchronize", 0)
call("stream_synchronize", 0, None)
assert there.values() == [4, 5]
"""
    )
    contexts = [line for line in lines if line.startswith(("retain", "alloc"))]
    assert contexts == [
        "retain device=0",
        "alloc device=0 bytes=8",
        "retain device=1",
        "alloc device=1 bytes=8",
    ]
    (between,) = (line for line in lines if "from=0 to=1" in line)
    (first,) = (line for line in lines if line.startswith("stream") and "device=0" in line)
    assert between.split()[1] == f"stream={first.split()[1]}"


def test_a_kernel_that_fails_is_the_end_of_cuda_which_every_call_says(recorded: Recorded) -> None:
    recorded(
        """
wild = load(".version 6.3\\n.visible .entry wild(\\n)", "wild")
out = Ints(1)
run(wild)
said = call("device_synchronize", 0, gives="DEVICE_LOST")
assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said and "BRINGUP_LAUNCH_BLOCKING=1" in said, said
for stream in (None, c.c_void_p(made("stream_create", 0, 0))):
    call("stream_synchronize", 0, stream, gives="DEVICE_LOST")
    run(wild, stream=stream, gives="DEVICE_LOST")
Detail = abi.STRUCTURES["bringup_error_detail"]
detail = Detail(struct_size=c.sizeof(Detail))
call("error_detail", c.byref(detail))
assert (detail.code, detail.device, detail.kernel) == (700, 0, b"test::run"), detail.code
"""
    )


def test_a_start_that_fails_says_what_was_expected(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_STAND_IN_DEVICES", "0")
    assert "CUDA_ERROR_NO_DEVICE" in devices.check_driver(library, only=["device"]).failure
    monkeypatch.setenv("BRINGUP_CUDA_LIBRARY", str(library))  # a library, but not CUDA
    said = devices.check_driver(library, only=["device"]).failure
    assert "has no cuInit: expected a driver for CUDA 12.4 or later" in said
    monkeypatch.setenv("BRINGUP_CUDA_LIBRARY", "libnone.so")
    said = devices.check_driver(library, only=["device"]).failure
    assert "there is no CUDA: expected NVIDIA's driver (libnone.so" in said


HEADER = Path("/usr/local/cuda/include/cuda.h")


@pytest.mark.skipif(not HEADER.is_file(), reason="there is no CUDA toolkit")
def test_the_declarations_are_those_of_cuda_h(tmp_path: Path) -> None:
    """Numbers of both, sizes and places of structures, and how many parameters of which size."""
    text = (SOURCES / "cuda_api.h").read_text()
    names = re.findall(r"\b(CU\w+) = (\d+)", text)
    structures = re.findall(r"typedef struct (CUDA_\w+) \{(.*?)\} ", text, re.DOTALL)
    functions = re.findall(r"NEW\((\w+), \w*\s*, ?(\(.*?\))\)", re.sub(r"\s*\\\n\s*", " ", text))
    assert min(len(names), 10 * len(structures), len(functions)) >= 40
    own = "\n".join(f'  {{"{name}", {name} == {value}}},' for name, value in names)
    program = f"""
#include <cuda.h>
#include <cstdio>
#include <cstddef>
struct {{ const char* name; bool same; }} found[] = {{\n{own}
"""
    for name, body in structures:
        fields = re.findall(r"[\w]+(?=[,;])", body)
        program += "".join(
            f'  {{"{name}.{field}", offsetof({name}, {field}) == own_{name}_{field}}},\n'
            for field in fields
        )
    ours = "#include <stdio.h>\n#include <cuda_api.h>\nint main(void) {\n"
    for name, body in structures:
        for field in re.findall(r"[\w]+(?=[,;])", body):
            ours += (
                f'  printf("enum {{ own_{name}_{field} = %zu }};\\n", offsetof({name}, {field}));\n'
            )
        ours += f'  printf("enum {{ own_{name} = %zu }};\\n", sizeof({name}));\n'
        program += f'  {{"{name}", sizeof({name}) == own_{name}}},\n'
    (tmp_path / "ours.c").write_text(ours + "}\n")
    command = ["cc", f"-I{SOURCES}", str(tmp_path / "ours.c"), "-o", str(tmp_path / "ours")]
    subprocess.run(command, check=True)
    sizes = subprocess.run([str(tmp_path / "ours")], check=True, capture_output=True, text=True)
    (tmp_path / "own.h").write_text(sizes.stdout)
    checks = ""
    for name, parameters in functions:
        kinds = [size_of(one) for one in parameters.strip("()").split(", ") if one != "void"]
        checks += f'  {{"{name}", takes<{", ".join(map(str, kinds))}>({name})}},\n'
    own_header = '#include <cstddef>\n#include "own.h"\n'
    program = program.replace("#include <cstddef>", own_header + TAKES)
    program += checks + "};\nint main() { for (auto one : found) if (!one.same) puts(one.name); }\n"
    (tmp_path / "theirs.cpp").write_text(program)
    command = ["c++", "-std=c++17", f"-I{HEADER.parent}", f"-I{tmp_path}"]
    command += [str(tmp_path / "theirs.cpp"), "-o", str(tmp_path / "theirs")]
    subprocess.run(command, check=True)
    told = subprocess.run([str(tmp_path / "theirs")], check=True, capture_output=True, text=True)
    assert told.stdout == ""


TAKES = """
template <size_t... Sizes, class... Types>
constexpr bool takes(CUresult (*)(Types...)) {
  if constexpr (sizeof...(Sizes) == sizeof...(Types)) return ((sizeof(Types) == Sizes) && ...);
  return false;
}
"""


def size_of(parameter: str) -> int:
    """Of a parameter as cuda_api.h declares it."""
    if "CUipcMemHandle" in parameter and "*" not in parameter:
        return 64
    small = ("unsigned", "int", "CUdevice", "CUresult", "uint32_t", "float")
    sizes = {"unsigned long long": 8, "unsigned char": 1, "unsigned short": 2}
    kind = parameter.rpartition(" ")[0]
    return sizes.get(kind, 4 if kind in small else 8)


TWICE = """
import sys
import torch
from bringup import devices, graphs, jit, ops
import bringup_cuda._target
devices.load_driver(sys.argv[1])
text = '''extern "C" __global__ void twice(float* __restrict__ out, const float* x, long long n) {
  const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2 * x[i];
}'''
twice = ops.kernel_op(
    "bringup_test_nv::twice(Tensor x) -> Tensor",
    source=jit.Source(text=text, name="twice.cu", kind="device"),
    entry="twice",
    args="ptr(out), ptr(x), numel(x)",
    grid="(numel(x) + 127) // 128",
    block=128,
    outputs=ops.empty_like("x"),
)
x = torch.arange(1000.0, device="nv")
with torch.Stream("nv"):
    assert torch.equal(twice(x).cpu(), 2 * x.cpu())
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y = twice(x)
x.add_(1)
graph.replay()
assert torch.equal(y.cpu(), 2 * x.cpu())
try:
    twice(x[:0])
except Exception as error:
    print(type(error).__name__)

def losses(device):
    step = trainer(device)
    return [step().item() for _ in range(2)]

assert losses("nv") == losses("cpu")  # all operators fall back
"""


def test_device_code_is_an_operator_and_others_fall_back_to_train_as_the_cpu(
    library: Path, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    if problem := jit.toolchain("cuda", kind="device").problem:
        pytest.skip(problem)
    variables = {"CUDA_STAND_IN_LOG": str(log), "PYTHONPATH": str(SOURCES)}
    program = f"import sys; sys.path.insert(0, {str(SOURCES)!r})\n" + GPT + TWICE
    assert output_of(program, str(library), **variables) == "KernelError"
    launches = [line for line in log.read_text().splitlines() if "twice" in line]
    assert {line.partition(" twice ")[2][:28] for line in launches} == {
        "grid=8,1,1 block=128,1,1 sha"
    }
    begins = [line.partition(" twice ")[0] for line in launches]
    assert begins[0].startswith("launch stream=")
    assert begins[0] != "launch stream=1"  # torch's stream, not the default one
    assert begins[-1] == "graph kernel"


def test_the_package_is_found_by_its_name_with_the_device_code_of_the_checks(
    package: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "bringup", "driver", "check", "cuda"]
    command += ["--only", "modules.data", "--json", str(tmp_path / "found")]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    outcomes = {one["outcome"] for one in json.loads((tmp_path / "found").read_text())["results"]}
    assert outcomes == {"pass"}


def test_a_package_without_its_library_says_how_it_is_built(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(package / "bringup_cuda", tmp_path / "bringup_cuda", ignore=ignored)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bringup_cuda", raising=False)
    with pytest.raises(FileNotFoundError, match=r"libnv\.so is not built"):
        importlib.import_module("bringup_cuda").driver_path()
