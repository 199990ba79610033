"""Drivers written in Python, and the ctypes side of `bringup/driver.h`."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.training_program import TRAIN

from bringup import _native, devices
from bringup.devices import _driver_abi as abi
from bringup.errors import DriverError

BOARD = """
import ctypes
import torch
from bringup import devices

class Board(devices.PythonDriver):
    device_name = "board"
    description = "ordinary memory, in Python"

    def __init__(self):
        super().__init__()
        self.memory = {}
        self.calls = []

    def device_props(self, device):
        return devices.DeviceProps(name="Board", arch="board-1", total_memory=1 << 30)

    def mem_alloc(self, device, size):
        buffer = ctypes.create_string_buffer(size + 63)
        address = (ctypes.addressof(buffer) + 63) // 64 * 64
        self.memory[address] = buffer
        return address

    def mem_free(self, device, address):
        del self.memory[address]

    def copy_async(self, kind, dst_device, dst, src_device, src, size, stream):
        ctypes.memmove(dst, src, size)
"""


def test_a_model_trains_on_a_driver_in_python(fresh_python: Callable[..., str]) -> None:
    code = f"""{BOARD}{TRAIN}
info = devices.load_driver(Board())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 2))
x = torch.randn(4, 8)

expected = train(copy.deepcopy(model), x, 3)
torch.testing.assert_close(train(model.to("board"), x.to("board"), 3), expected)
stream = torch.Stream("board")
stream.synchronize()
assert stream.query() and torch.board.mem_get_info()[1] == 1 << 30
print(info.device_name, info.path)
"""
    assert fresh_python(code) == "board <__main__.Board>"


def test_a_driver_in_python_with_host_visible_memory_copies_nothing(
    fresh_python: Callable[..., str],
) -> None:
    code = f"""{BOARD}
class Visible(Board):
    def device_props(self, device):
        return devices.DeviceProps("B", "b-1", 1 << 30, host_visible_memory=True, alignment=256)
    def mem_alloc(self, device, size):
        buffer = ctypes.create_string_buffer(size + 255)
        address = (ctypes.addressof(buffer) + 255) // 256 * 256
        self.memory[address] = buffer
        return address
    def host_view(self, device, address):
        return address
    def copy_async(self, *arguments):
        raise AssertionError("a copy")

assert devices.load_driver(Visible()).host_visible
print((torch.ones(3, device="board") + 1).tolist(), torch.board.get_device_properties().alignment)
"""
    assert fresh_python(code) == "[2.0, 2.0, 2.0] 256"


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        ("ValueError('the bus is down')", "ValueError: the bus is down", "RuntimeError"),
        ("MemoryError()", "out of memory", "OutOfMemoryError"),
        (
            "NotImplementedError('no such copy')",
            "NotImplementedError: no such copy",
            "RuntimeError",
        ),
        ("KeyboardInterrupt()", "KeyboardInterrupt", "RuntimeError"),
    ],
)
def test_an_exception_becomes_a_status_with_its_text(
    raised: str, status: str, kind: str, fresh_python: Callable[..., str]
) -> None:
    code = f"""{BOARD}
class Failing(Board):
    fails = False
    def mem_alloc(self, device, size):
        if self.fails:
            raise {raised}
        return super().mem_alloc(device, size)

driver = Failing()
devices.load_driver(driver)
torch.ones(3, device="board")
driver.fails = True
try:
    torch.empty(1 << 20, device="board")
except Exception as error:
    print(type(error).__name__, error)
driver.fails = False
print(torch.ones(1 << 20, device="board").sum().item())
"""
    said = fresh_python(code)
    assert said.startswith(kind)
    assert status in said
    assert said.splitlines()[-1] == "1048576.0"


@pytest.mark.parametrize(
    ("props", "sentence"),
    [
        ("'Board'", "TypeError: device_props: expected a devices.DeviceProps, got 'Board'"),
        ("P('x' * 64, 'b', 1)", "ValueError: device_props: name has 64 bytes, at most 63 fit"),
        ("P('x', 'b', 1, uuid=b'7')", "expected a uuid of 16 bytes, got 1"),
        ("P('x', 'b', 1, dtypes=frozenset({'int65'}))", "unknown dtypes int65; known: "),
        ("P('x', 'b', 0)", "device_props says that the device has no memory"),
        ("P('x', 'b', 1, alignment=96)", "gave the alignment 96, which is no power of two"),
        ("P('x', 'b', 1, dtypes=frozenset({'float32'}))", "gave dtypes without int64 or bool"),
        ("P('x', 'b', 1, greatest_priority=1)", "from 1 (greatest) to 0 (least)"),
    ],
)
def test_properties_that_cannot_be_are_refused_when_the_driver_is_loaded(
    props: str, sentence: str, fresh_python: Callable[..., str]
) -> None:
    code = f"""{BOARD}
P = devices.DeviceProps
class Wrong(Board):
    ended = False
    def device_props(self, device):
        return {props}
    def shutdown(self):
        Wrong.ended = True
try:
    devices.load_driver(Wrong())
except Exception as error:
    print(type(error).__name__, error, Wrong.ended)
print(devices.load_driver(Board()).device_name)
"""
    first, last = fresh_python(code).splitlines()
    assert first.startswith("DriverError the driver <__main__.Wrong> cannot be used: device_props")
    assert sentence in first
    assert first.endswith("True")
    assert last == "board"


def test_a_driver_begins_and_ends_once_and_is_not_called_afterwards(
    fresh_python: Callable[..., str],
) -> None:
    code = f"""{BOARD}
import atexit
class Told(Board):
    def init(self):
        print("init")
    def device_count(self):
        print("count")
        return 1
    def shutdown(self):
        print("shutdown")
    def mem_free(self, device, address):
        print("free")
def late():
    try:
        torch.ones(1 << 20, device="board")
    except RuntimeError as error:
        print("driver was shut down" in str(error))
atexit.register(late)
devices.load_driver(Told())
x = torch.ones(1 << 20, device="board")
del x
"""
    assert fresh_python(code).splitlines() == ["init", "count", "shutdown", "True"]


def test_a_driver_refused_for_its_name_is_ended(fresh_python: Callable[..., str]) -> None:
    code = f"""{BOARD}
class Told(Board):
    def shutdown(self):
        print("shutdown")
try:
    devices.load_driver(Told(), name="cuda2")
except Exception as error:
    print(type(error).__name__)
print(devices.load_driver(Board()).device_name)
"""
    assert fresh_python(code).splitlines() == ["shutdown", "DriverError", "board"]


def test_the_loaded_object_is_given_again_and_another_is_refused(
    fresh_python: Callable[..., str],
) -> None:
    code = f"""{BOARD}
driver = Board()
first = devices.load_driver(driver)
assert devices.load_driver(driver) is first
try:
    devices.load_driver(Board())
except Exception as error:
    print(error)
"""
    assert "<__main__.Board> is already loaded as device 'board'" in fresh_python(code)


def test_a_forked_child_is_refused_in_words(fresh_python: Callable[..., str]) -> None:
    code = f"""{BOARD}
import os
driver = Board()
devices.load_driver(driver)
if os.fork() == 0:
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p)
    address = ctypes.c_void_p()
    status = call(driver._table.mem_alloc)(0, 64, ctypes.addressof(address))
    words = ctypes.CFUNCTYPE(ctypes.c_char_p)(driver._table.last_error)()
    print(status, words.decode(), flush=True)
    os._exit(0)
os.wait()
"""
    said = fresh_python(code)
    assert said == "7 RuntimeError: the driver <__main__.Board> cannot be used in a forked process"


def test_a_class_without_a_required_method_is_no_driver() -> None:
    class Half(devices.PythonDriver):
        def mem_free(self, device: int, address: int) -> None: ...

    with pytest.raises(TypeError, match="mem_alloc"):
        Half()  # type: ignore[abstract]


def test_a_constructor_that_forgets_its_base_is_told() -> None:
    class Forgetful(devices.PythonDriver):
        def __init__(self) -> None: ...
        def device_props(self, device: int) -> devices.DeviceProps:
            raise AssertionError

        def mem_alloc(self, device: int, size: int) -> int:
            raise AssertionError

        def mem_free(self, device: int, address: int) -> None: ...
        def copy_async(self, *arguments: object) -> None: ...

    with pytest.raises(DriverError, match=r"has to call super\(\).__init__\(\)"):
        Forgetful().table_address()


# --- the same numbers as in the header

STRUCTURES = {
    "DLTensor": abi.Tensor,
    "bringup_driver": abi.Table,
    "bringup_list": abi.List,
    **abi.STRUCTURES,
}


def _place(name: str, field: str) -> str:
    """The field in C: those of the structures within DLTensor are its own in Python."""
    within = {"device_type": "device.", "device_id": "device.", "code": "dtype.", "bits": "dtype."}
    within["lanes"] = "dtype."
    prefix = within.get(field, "") if name == "DLTensor" else ""
    return f"offsetof({name}, {prefix}{field})"


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Sizes, offsets and constants of the header, as a C compiler has them."""
    names = [f"sizeof({name})" for name in STRUCTURES]
    for name, structure in STRUCTURES.items():
        names += [_place(name, field[0]) for field in structure._fields_]
    names += [f"BRINGUP_{status.name}" for status in abi.Status]
    names += [f"BRINGUP_DTYPE_{dtype.upper()}" for dtype in abi.DTYPES]
    names += ["BRINGUP_HAS_LIFECYCLE", "BRINGUP_DRIVER_ABI"]
    lines = "".join(f'  printf("%llu\\n", (unsigned long long)({name}));\n' for name in names)
    folder = tmp_path_factory.mktemp("header")
    (folder / "print.c").write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "bringup/driver.h"\n'
        f"int main(void) {{\n{lines}  return 0;\n}}\n"
    )
    compiler = shutil.which("cc") or "gcc"
    program = folder / "print"
    subprocess.run(
        [compiler, f"-I{_native.include_dir()}", str(folder / "print.c"), "-o", str(program)],
        check=True,
    )
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(names, map(int, said), strict=True))


@pytest.mark.parametrize("name", STRUCTURES)
def test_offsets_are_those_of_the_header(name: str, header: dict[str, int]) -> None:
    structure = STRUCTURES[name]
    for field in structure._fields_:
        offset = getattr(structure, field[0]).offset
        assert offset == header[_place(name, field[0])], field[0]
    assert ctypes.sizeof(structure) == header[f"sizeof({name})"]


def test_constants_are_those_of_the_header(header: dict[str, int]) -> None:
    for status in abi.Status:
        assert int(status) == header[f"BRINGUP_{status.name}"]
    for bit, dtype in enumerate(abi.DTYPES):
        assert 1 << bit == header[f"BRINGUP_DTYPE_{dtype.upper()}"]
    assert header["BRINGUP_HAS_LIFECYCLE"] == abi.LIFECYCLE
    assert header["BRINGUP_DRIVER_ABI"] == abi.ABI


def test_signatures_are_those_of_the_header(tmp_path: Path) -> None:
    """A C compiler accepts each as the type of the function in the table."""
    c_names = {
        ctypes.c_char_p: "char*",
        ctypes.c_int32: "int32_t",
        ctypes.c_int64: "int64_t",
        ctypes.c_uint32: "uint32_t",
        ctypes.c_uint8: "uint8_t",
        ctypes.c_size_t: "size_t",
    }
    lines = []
    for name, parameters in abi.FUNCTIONS.items():
        if name == "capabilities":
            continue
        arguments = parameters.values()
        sizes = [f"sizeof({c_names.get(argument, 'void*')})" for argument in arguments]
        given = ", ".join(f"A{i}" for i in range(len(arguments)))
        types = "".join(f", class A{i}" for i in range(len(arguments)))
        checks = " && ".join(["true", *(f"sizeof(A{i}) == {size}" for i, size in enumerate(sizes))])
        lines.append(
            f"template <class R{types}> constexpr bool {name}_fits(R (*)({given})) "
            f"{{ return {checks}; }}\n"
            f'static_assert({name}_fits(decltype(bringup_driver::{name})(nullptr)), "{name}");\n'
        )
    source = tmp_path / "fits.cpp"
    source.write_text('#include "bringup/driver.h"\n' + "".join(lines))
    compiler = shutil.which("c++") or "g++"
    done = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", f"-I{_native.include_dir()}", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("profiler_start", "a thread with the GIL could wait while its holder waits for the GIL"),
        ("launch", "which a driver in Python cannot have: expected no methods of bringup/driver.h"),
        ("last_error", "has last_error, which a driver in Python cannot have"),
        ("capabilities", "has capabilities, which a driver in Python cannot have"),
    ],
)
def test_a_function_that_a_driver_in_python_cannot_have_is_refused_when_it_is_loaded(
    method: str, sentence: str, fresh_python: Callable[..., str]
) -> None:
    code = f"""{BOARD}
class More(Board):
    def {method}(self, *arguments):
        raise AssertionError
try:
    devices.load_driver(More())
except Exception as error:
    print(type(error).__name__, error)
print(devices.load_driver(Board()).device_name)
"""
    first, last = fresh_python(code).splitlines()
    assert first.startswith(f"DriverError the driver <__main__.More> has {method}")
    assert sentence in first
    assert "bringup new driver" in first
    assert last == "board"


# A thread that waits for a lock with the GIL stops everybody: the process ends with a traceback.
THREADS = f"""{BOARD}
import faulthandler
import sys
import threading
faulthandler.dump_traceback_later(60, exit=True)
"""


def test_a_thread_that_makes_a_stream_does_not_wait_with_the_gil_for_one_that_makes_one(
    fresh_python: Callable[..., str],
) -> None:
    code = f"""{THREADS}
inside, tried = threading.Event(), threading.Event()
class Slow(Board):
    def stream_create(self, device, priority):
        if not inside.is_set():
            inside.set()
            tried.wait()
        return super().stream_create(device, priority)
devices.load_driver(Slow())
first = threading.Thread(target=torch.Stream, args=("board",))
first.start()
inside.wait()
sys.setswitchinterval(1000)  # the first thread goes on when this one gives up the GIL
tried.set()
streams = {{torch.Stream("board").stream_id for _ in range(64)}}
first.join()
print(len(streams))
"""
    assert fresh_python(code) == "32"


def test_threads_that_use_a_driver_in_python_at_once_do_not_stop_each_other(
    fresh_python: Callable[..., str],
) -> None:
    code = f"""{THREADS}
devices.load_driver(Board())
sys.setswitchinterval(1e-6)
right = []
def work(number):
    for step in range(30):
        x = torch.full((100,), float(number), device="board")
        stream, event = torch.Stream("board"), torch.Event("board")
        with stream:
            y = x * 2 + torch.rand(100, device="board")
            x.record_stream(stream)
        event.record(stream)
        event.synchronize()
        pinned = torch.ones(100).pin_memory()
        y.add_(pinned.to("board", non_blocking=True))
        torch.board.manual_seed(step)
        torch.board.memory_stats()
        if step % 10 == 9:
            torch.board.empty_cache()
            torch.accelerator.empty_host_cache()
        right.append(bool(((y.cpu() - 2 * number - 1).abs() <= 1).all()))
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(right), all(right))
"""
    assert fresh_python(code) == "120 True"
