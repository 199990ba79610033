"""Device code of the OpenCL driver: programs, what their kernels declare, launches, graphs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.forked_python import output_of
from tests.opencl.driver_program import CALLS


def check(library: Path, program: str, **variables: str) -> None:
    assert output_of(CALLS + program + "\nprint('done')", str(library), **variables) == "done"


def test_values_of_every_kind_reach_the_kernel(library: Path) -> None:
    check(
        library,
        '''
fn = load("""
kernel void run(global int* out, char a, ushort b, int c, ulong d, float e, double f) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = (int)(d >> 40); out[4] = (int)(e * 4);
  out[5] = (int)(f * 1000);
}
""")
out = Ints(*[0] * 6)
run(fn, address(out.address), integer(-5, 1), integer(40000, 2), integer(-70000, 4),
    integer(3 << 40, 8), single(1.5), double(0.125))
assert out.values() == [-5, 40000, -70000, 3, 6, 125], out.values()
''',
    )


def test_arguments_are_set_again_where_they_change_or_memory_was_freed(library: Path) -> None:
    check(
        library,
        """
fn = load(SCALE)
x, y, out = Ints(1, 2), Ints(5, 6), Ints(0, 0)
def scaled(given, count, factor):
    values = integer(count, 8), integer(factor, 4)
    run(fn, address(out.address), address(given.address), *values)
    return out.values()
calls = (x, 2, 0), (x, 2, 3), (x, 2, 3), (x, 2, 4), (y, 2, 4), (y, 1, 7), (x, 2, 0), (x, 2, 3)
seen = [scaled(*one) for one in calls]
assert seen == [[0, 0], [3, 6], [3, 6], [4, 8], [20, 24], [35, 24], [0, 0], [3, 6]], seen
call("mem_free", 0, x.address)
assert scaled(Ints(7, 8), 2, 3) == [21, 24]
""",
    )


def test_a_launch_has_its_grid_of_blocks_of_threads_and_their_shared_memory(library: Path) -> None:
    check(
        library,
        '''
fn = load("""
kernel void run(global int* out, local int* shared, int one) {
  const int at = get_local_id(1) * get_local_size(0) + get_local_id(0);
  shared[at] = at + one;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (at != 0) return;
  int sum = 0;
  for (int i = 0; i < get_local_size(0) * get_local_size(1); ++i) sum += shared[i];
  out[get_group_id(2) * get_num_groups(0) + get_group_id(0)] = sum + 100 * get_group_id(2);
}
""")
out = Ints(*[0] * 6)
run(fn, address(out.address), integer(1, 4), grid=(3, 1, 2), block=(4, 2, 1), shared=32)
assert out.values() == [36, 36, 36, 136, 136, 136], out.values()
said = run(fn, address(out.address), integer(1, 4), gives="INVALID")
assert "'int* shared', and the launch gives it no shared_bytes" in said, said
''',
    )


def test_an_argument_of_another_kind_is_refused_with_the_kernels_names(library: Path) -> None:
    check(
        library,
        """
fn = load(SCALE)
out, x = Ints(7, 7), Ints(1, 2)
right = (address(out.address), address(x.address), integer(2, 8), integer(3, 4))
for place, wrong, words in [
    (0, integer(5, 8), "parameter 0 of kernel 'run' is 'int* out', got an integer of 8 bytes"),
    (2, address(x.address), "parameter 2 of kernel 'run' is 'long count', got an address"),
    (3, integer(3, 8), "parameter 3 of kernel 'run' is 'int factor', got an integer of 8 bytes"),
    (3, single(3), "parameter 3 of kernel 'run' is 'int factor', got a floating number of 4"),
]:
    said = run(fn, *right[:place], wrong, *right[place + 1 :], gives="INVALID")
    assert said.startswith("test::run: ") and words in said, said
assert "takes 4 values, got 5" in run(fn, *right, integer(1, 4), gives="INVALID")
assert "more parameters than the 3 values" in run(fn, *right[:3], gives="INVALID")
Detail = abi.STRUCTURES["bringup_error_detail"]
detail = Detail(struct_size=c.sizeof(Detail))
call("error_detail", c.byref(detail))
assert detail.kernel == b"test::run" and detail.device == 0
assert out.values() == [7, 7]
run(fn, *right)
assert out.values() == [3, 6]
""",
    )


def test_sizes_beyond_the_limits_are_refused(library: Path) -> None:
    check(
        library,
        """
props = abi.DevicePropsStruct(struct_size=c.sizeof(abi.DevicePropsStruct))
call("device_props", 0, c.byref(props))
fn, out = load(SCALE), Ints(7)
values = (address(out.address), address(out.address), integer(1, 8), integer(3, 4))
for sizes in [
    {"grid": (0, 1, 1)},
    {"block": (1, 0, 1)},
    {"block": (1, 1, props.max_block[2] + 1)},
    {"block": (props.max_block_threads // 2 + 1, 2, 1)},
    {"shared": props.max_shared_bytes + 1},
]:
    assert run(fn, *values, gives="INVALID", **sizes).startswith("test::run: "), sizes
for more in {"cluster": (1, 1, 1)}, {"flags": 1}, {"flags": 2}:
    assert "which this device has not" in run(fn, *values, gives="UNSUPPORTED", **more), more
assert out.values() == [7]
""",
    )


def test_programs_come_as_text_or_behind_a_header_of_three_lines(library: Path) -> None:
    check(
        library,
        """
binary = '''
kernel void run(global int* out) { out[0] = VALUE; }'''
fn = load("BRINGUPCL1\\nsource\\n-D VALUE=42\\n" + binary)
out = Ints(0)
run(fn, address(out.address))
assert out.values() == [42]

def refused(text, gives="INVALID"):
    data = text if isinstance(text, bytes) else text.encode()
    module = c.c_void_p()
    arguments = 0, c.cast(data, c.c_void_p), len(data), c.byref(module)
    return call("module_load_data", *arguments, gives=gives)

assert "expression" in refused("kernel void run() { int x = ; }", gives="ERROR")
assert "not 'text'" in refused("BRINGUPCL1\\ntext\\n\\nx")
assert "the third line" in refused("BRINGUPCL1\\nsource\\nx")
assert "without a program" in refused("BRINGUPCL1\\nsource\\n\\n")
assert "a library for the host?" in refused(b"\\x7fELF\\0\\0")
assert "SPIR-V" in refused(b"BRINGUPCL1\\nspirv\\n\\n\\x03\\x02\\x23\\x07", gives="UNSUPPORTED")
assert "clCreateProgramWithBinary" in refused(b"BRINGUPCL1\\nbinary\\n\\nnonsense")
module = made("module_load_data", 0, c.cast(SCALE.encode(), c.c_void_p), len(SCALE))
fn = c.c_void_p()
said = call("get_function", module, b"nothing", c.byref(fn), gives="INVALID")
assert "no kernel 'nothing': it has 'run'" in said
call("module_unload", module)
none = c.byref(c.c_void_p())
assert "/nowhere.cl" in call("module_load", 0, b"/nowhere.cl", none, gives="INVALID")
""",
    )


BINARY = """
cl = c.CDLL("libOpenCL.so.1")


def pointer(function, *arguments):
    found = getattr(cl, function)
    found.restype = c.c_void_p
    return c.c_void_p(found(*arguments))


platform, device, status = c.c_void_p(), c.c_void_p(), c.c_int()
assert cl.clGetPlatformIDs(1, c.byref(platform), None) == 0
assert cl.clGetDeviceIDs(platform, c.c_uint64(0xFFFFFFFF), 1, c.byref(device), None) == 0
context = pointer("clCreateContext", None, 1, c.byref(device), None, None, c.byref(status))
text = c.c_char_p(SCALE.encode())
program = pointer("clCreateProgramWithSource", context, 1, c.byref(text), None, c.byref(status))
assert cl.clBuildProgram(program, 1, c.byref(device), b"-cl-kernel-arg-info", None, None) == 0
size = c.c_size_t()
assert cl.clGetProgramInfo(program, 0x1165, c.c_size_t(8), c.byref(size), None) == 0
content = c.create_string_buffer(size.value)
contents = (c.c_void_p * 1)(c.addressof(content))
assert cl.clGetProgramInfo(program, 0x1166, c.c_size_t(8), contents, None) == 0
"""


def test_a_program_binary_is_loaded_and_its_arguments_are_checked(library: Path) -> None:
    check(
        library,
        BINARY
        + """
fn = load(b"BRINGUPCL1\\nbinary\\n\\n" + content.raw)
out, x = Ints(0, 0, 0), Ints(1, 2, 3)
run(fn, address(out.address), address(x.address), integer(3, 8), integer(-2, 4))
assert out.values() == [-2, -4, -6], out.values()
values = address(out.address), integer(5, 8), integer(3, 8), integer(-2, 4)
assert "'int* x', got an integer" in run(fn, *values, gives="INVALID")
""",
    )


def test_graphs_keep_the_values_that_their_launches_were_made_with(library: Path) -> None:
    check(
        library,
        """
import threading
fn = load(\"\"\"
kernel void run(global int* out, int more) { out[get_global_id(0)] += more; }
\"\"\")
out, copy = Ints(0, 0), Ints(0, 0)
streams = [made("stream_create", 0, 0), made("stream_create", 0, 0)]
graph = made("graph_create", 0)
call("graph_add_values", graph, launch_of(fn, address(out.address), integer(1, 4), grid=(2, 1, 1)))
call("graph_add_copy", graph, ON_DEVICE, copy.address, out.address, 8)
ran = []
host = c.CFUNCTYPE(None, c.c_void_p)(lambda _: ran.append(1))
call("graph_add_host_func", graph, c.cast(host, c.c_void_p), None)
opened = threading.Event()
held = c.CFUNCTYPE(None, c.c_void_p)(lambda _: opened.wait(20) or None)
call("host_func", 0, streams[0], c.cast(held, c.c_void_p), None)
call("graph_launch", graph, streams[0])
update = launch_of(fn, address(out.address), integer(10, 4))
call("graph_update_values", graph, 0, update)
call("graph_launch", graph, streams[1])  # behind the former launch, though in another stream
call("stream_wait_for", 0, streams[1], 30_000_000, gives="TIMEOUT")
opened.set()
for stream in streams:
    call("stream_synchronize", 0, stream)
assert out.values() == [11, 1] and copy.values() == [11, 1], (out.values(), copy.values())
assert ran == [1, 1]
assert "no kernel 1" in call("graph_update_values", graph, 1, update, gives="INVALID")
call("graph_destroy", graph)
""",
    )


def test_the_profiler_tells_kernels_and_graphs_with_their_numbers(library: Path) -> None:
    check(
        library,
        """
import time
fn, out = load(SCALE), Ints(1, 2)
values = address(out.address), address(out.address), integer(2, 8), integer(3, 4)
run(fn, *values)  # compiled for this size of blocks
graph = made("graph_create", 0)
call("graph_add_values", graph, launch_of(fn, *values))
call("graph_add_values", graph, launch_of(fn, *values))
stream = made("stream_create", 0, 0)
call("profiler_start", 0)
begun = time.time_ns()
call("fill_async", 0, out.address, 1, 8, stream)
run(fn, *values, stream=stream, name=b"test::scale")
call("graph_launch", graph, stream)
call("stream_synchronize", 0, stream)
ended = time.time_ns()
call("profiler_stop", 0)
records = (abi.Record * 8)(*[abi.Record(struct_size=c.sizeof(abi.Record))] * 8)
count, lost = c.c_int32(), c.c_uint64()
call("profiler_read", 0, records, 8, c.byref(count), c.byref(lost))
told = [(r.kind, r.number, r.stream, r.name) for r in records[: count.value]]
assert told == [(3, 0, stream, b""), (1, 1, stream, b"test::scale"), (4, 2, stream, b"")], told
slack = 50_000_000
for record in records[: count.value]:
    assert begun - slack <= record.begin <= record.end <= ended + slack
""",
    )


def test_one_kernel_is_launched_by_several_threads_at_a_time(library: Path) -> None:
    check(
        library,
        """
import threading
fn = load(SCALE)
x, outs = Ints(*range(64)), [Ints(*[0] * 64) for _ in range(4)]
wrong = []

def work(number):
    stream = made("stream_create", 0, 0)
    for factor in range(1, 60):
        values = integer(64, 8), integer(factor * 10 + number, 4)
        run(fn, address(outs[number].address), address(x.address), *values, stream=stream)
    call("stream_synchronize", 0, stream)

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for number, out in enumerate(outs):
    assert out.values() == [i * (590 + number) for i in range(64)], number
""",
    )


# What NVIDIA's OpenCL does: an argument that is set to no address keeps what it was set to before.
KEEPS_THE_FORMER = """
#define CL_TARGET_OPENCL_VERSION 300
#define _GNU_SOURCE
#include <CL/cl.h>
#include <dlfcn.h>
cl_int clSetKernelArgSVMPointer(cl_kernel kernel, cl_uint number, const void* address) {
  cl_int (*next)(cl_kernel, cl_uint, const void*) = dlsym(RTLD_NEXT, "clSetKernelArgSVMPointer");
  return address == NULL ? CL_SUCCESS : next(kernel, number, address);
}
"""


def test_an_address_that_is_none_reaches_the_kernel_as_none(library: Path, tmp_path: Path) -> None:
    (tmp_path / "keeps.c").write_text(KEEPS_THE_FORMER)
    shim = tmp_path / "keeps.so"
    command = ["cc", "-shared", "-fPIC", str(tmp_path / "keeps.c"), "-o", str(shim)]
    command += ["-Wl,--no-as-needed", "-lOpenCL", "-ldl"]
    subprocess.run(command, check=True)
    program = """
fn = load("kernel void run(global int* out, global const int* x) { out[0] = x ? x[0] : -1; }")
out, x = Ints(0), Ints(7)
for given, wanted in ((None, -1), (x.address, 7), (None, -1)):
    run(fn, address(out.address), address(given))
    assert out.values() == [wanted], (given, out.values())
print("done")
"""
    command = [sys.executable, "-c", CALLS + program, str(library)]
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
