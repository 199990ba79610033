"""The start of programs that call the driver's functions themselves, without torch."""

CALLS = '''
import ctypes as c
import sys
from bringup.devices import _driver_abi as abi

table = abi.open_table(sys.argv[1])
last_words = table.function("last_error")
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3


def call(name, *arguments, gives="OK"):
    """Calls it, compares the status, returns the words of a failure."""
    status = abi.Status(table.function(name)(*arguments))
    said = last_words().decode(errors="replace") if status else ""
    assert status.name == gives, f"{name}: {status.name}, {said}"
    return said


def made(name, *arguments):
    """What a function gives through its last parameter."""
    handle = c.c_void_p()
    call(name, *arguments, c.byref(handle))
    return handle.value


call("init")


def load(text, name="run", device=0):
    data = text.encode() if isinstance(text, str) else text
    module = made("module_load_data", device, c.cast(data, c.c_void_p), len(data))
    return made("get_function", module, name.encode())


def address(value):
    return abi.Value(1, 8, value or 0)


def integer(value, size):
    return abi.Value(2, size, value & (2 ** (8 * size) - 1))


def single(value):
    return abi.Value(3, 4, c.c_uint32.from_buffer_copy(c.c_float(value)).value)


def double(value):
    return abi.Value(3, 8, c.c_uint64.from_buffer_copy(c.c_double(value)).value)


def launch_of(fn, *values, grid=(1, 1, 1), block=(1, 1, 1), shared=0, name=b"test::run",
              cluster=(0, 0, 0), flags=0):
    launch = abi.LaunchValues()
    launch.struct_size, launch.nvalues = c.sizeof(launch), len(values)
    launch.values = (abi.Value * max(len(values), 1))(*values)
    launch.fn, launch.shared_bytes, launch.name = fn, shared, name
    launch.grid, launch.block = abi.Dim3(*grid), abi.Dim3(*block)
    launch.cluster, launch.flags = abi.Dim3(*cluster), flags
    return c.byref(launch)


def run(fn, *values, gives="OK", stream=None, **sizes):
    return call("launch_values", 0, stream, launch_of(fn, *values, **sizes), gives=gives)


class Ints:
    """int32 in device memory."""

    def __init__(self, *values, device=0):
        self.device, self.count = device, len(values)
        self.address = made("mem_alloc", device, 4 * len(values))
        host = (c.c_int32 * len(values))(*values)
        self.copy(TO_DEVICE, self.address, c.addressof(host))

    def copy(self, kind, to, source):
        call("copy_async", kind, self.device, to, self.device, source, 4 * self.count, None)
        call("stream_synchronize", self.device, None)

    def values(self):
        host = (c.c_int32 * self.count)()
        self.copy(TO_HOST, c.addressof(host), self.address)
        return list(host)


SCALE = """
kernel void run(global int* out, global const int* x, long count, int factor) {
  for (long i = get_global_id(0); i < count; i += get_global_size(0)) out[i] = x[i] * factor;
}
"""
'''
