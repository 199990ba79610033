"""Replays of traces that are written here, call by call: every function of the table on the
simulator, with bytes that are known beforehand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bringup import _native, devices
from bringup.errors import DriverError

DEVICE, HOST, STREAM, EVENT, MODULE, FUNCTION = "0x1000", "0x900000", "0x77", "0x88", "0x99", "0xaa"
TO_DEVICE, TO_HOST, WITHIN = 1, 2, 3


class Script:
    """A trace with payload."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: list[dict[str, Any]] = [{"bringup_driver_trace": 1, "payload": True}]
        self.payload = b""
        self.number = 0

    def keep(self, content: bytes) -> dict[str, Any]:
        place = len(self.payload)
        self.payload += content
        return {"sha256": hashlib.sha256(content).hexdigest(), "payload": place}

    def call(self, function: str, status: int = 0, **given: Any) -> int:
        """Adds a call; `outputs`, `facts` and `done` are what they are in a line, the rest
        arguments.
        """
        self.number += 1
        end = {"call": self.number, "status": status, "took": 1}
        end |= {"outputs": given.pop("outputs", {}), "done": given.pop("done", [])}
        begin = {"call": self.number, "at": 1, "thread": 1, "function": function}
        begin |= given.pop("facts", {})
        self.lines += [begin | {"arguments": given}, end]
        return self.number

    def replayed(self, driver: str | Path = "sim", timeout: float = 120.0) -> devices.ReplayReport:
        self.file.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        Path(f"{self.file}.payload").write_bytes(self.payload)
        return devices.replay_trace(self.file, driver, timeout)


@pytest.fixture
def script(tmp_path: Path) -> Script:
    made = Script(tmp_path / "script.jsonl")
    made.call("init")
    made.call("mem_alloc", device=0, bytes=4096, outputs={"address": DEVICE})
    made.call("stream_create", device=0, priority=0, outputs={"stream": STREAM})
    return made


def read(script: Script, address: str, expected: bytes) -> None:
    """Adds a copy to the host that brings these bytes, and the wait for it."""
    copy = script.call(
        "copy_async", kind=TO_HOST, dst_device=0, dst=HOST, src_device=0, src=address,
        bytes=len(expected), stream=STREAM,
    )  # fmt: skip
    done = [{"copy": copy, **script.keep(expected)}]
    script.call("stream_synchronize", device=0, stream=STREAM, done=done)


def fill(script: Script, value: int = 0) -> None:
    script.call("fill_async", device=0, dst=DEVICE, value=value, bytes=4096, stream=STREAM)


def test_a_wide_fill_repeats_its_pattern(script: Script) -> None:
    script.call(
        "fill_wide_async", device=0, dst=DEVICE, pattern="0x5", size=4, count=16, stream=STREAM,
        facts={"pattern_bytes": "01020304"},
    )  # fmt: skip
    read(script, DEVICE, b"\x01\x02\x03\x04" * 16)
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1


def test_rows_are_copied_with_their_pitches(script: Script) -> None:
    rows = [bytes([row] * 3) for row in range(1, 5)]
    fill(script, 9)
    script.call(
        "copy_2d_async", kind=TO_DEVICE, dst_device=0, dst=DEVICE, dst_pitch=8, src_device=0,
        src=HOST, src_pitch=5, width=3, height=4, stream=STREAM, facts=script.keep(b"".join(rows)),
    )  # fmt: skip
    read(script, DEVICE, b"".join(row + b"\x09" * 5 for row in rows))
    copy = script.call(
        "copy_2d_async", kind=TO_HOST, dst_device=0, dst=HOST, dst_pitch=16, src_device=0,
        src=DEVICE, src_pitch=8, width=4, height=2, stream=STREAM,
    )  # fmt: skip
    brought = {"copy": copy, **script.keep(rows[0] + b"\x09" + rows[1] + b"\x09")}
    script.call("stream_wait_for", device=0, stream=STREAM, nanoseconds=10**9, done=[brought])
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 2


def test_a_wrong_row_is_a_difference(script: Script) -> None:
    fill(script, 9)
    copy = script.call(
        "copy_2d_async", kind=TO_HOST, dst_device=0, dst=HOST, dst_pitch=16, src_device=0,
        src=DEVICE, src_pitch=8, width=4, height=2, stream=STREAM,
    )  # fmt: skip
    brought = {"copy": copy, **script.keep(b"\x09" * 7 + b"\x08")}
    number = script.call("stream_synchronize", device=0, stream=STREAM, done=[brought])
    found = script.replayed().difference
    assert found is not None
    assert found.call == number
    assert "; the first byte that differs is 7: expected 08, got 09" in found.got


def test_pinned_and_registered_host_memory_is_used_for_copies(script: Script) -> None:
    script.call("host_alloc", bytes=64, outputs={"address": HOST})
    script.call(
        "copy_async", kind=TO_DEVICE, dst_device=0, dst=DEVICE, src_device=0, src="0x900010",
        bytes=4, stream=STREAM, facts=script.keep(b"abcd"),
    )  # fmt: skip
    read(script, DEVICE, b"abcd")
    script.call("host_free", address=HOST)
    script.call("host_register", address=HOST, bytes=64)
    script.call("host_unregister", address=HOST)
    info = {"kind": 1, "device": 0, "base": DEVICE, "bytes": 4096}
    script.call("pointer_info", address="0x1010", outputs={"info": info})
    script.call("pointer_info", address="0x123456", outputs={"info": {"kind": 0}})
    report = script.replayed()
    assert report.difference is None
    assert report.made == script.number


def test_knowledge_follows_copies_within_the_device(script: Script) -> None:
    fill(script)
    for target, source, size in (("0x1100", "0x1000", 256), ("0x1040", "0x1100", 8)):
        script.call(
            "copy_async", kind=WITHIN, dst_device=0, dst=target, src_device=0, src=source,
            bytes=size, stream=STREAM,
        )  # fmt: skip
    read(script, "0x1040", bytes(8))
    script.call(  # whose bytes the trace has not
        "copy_async", kind=TO_DEVICE, dst_device=0, dst="0x1100", src_device=0, src=HOST,
        bytes=1, stream=STREAM, facts={"sha256": "0" * 64},
    )  # fmt: skip
    script.call(
        "copy_async", kind=WITHIN, dst_device=0, dst="0x1200", src_device=0, src="0x1100",
        bytes=8, stream=STREAM,
    )  # fmt: skip
    read(script, "0x1200", b"not this")
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1
    assert report.not_compared == {"from memory that is not what was recorded": 1}


def test_rows_are_copied_within_the_device_between_two_pitches(script: Script) -> None:
    fill(script, 9)
    script.call("fill_async", device=0, dst="0x1100", value=1, bytes=4, stream=STREAM)
    script.call(
        "copy_2d_async", kind=WITHIN, dst_device=0, dst="0x1200", dst_pitch=4, src_device=0,
        src="0x1100", src_pitch=2, width=2, height=3, stream=STREAM,
    )  # fmt: skip
    read(script, "0x1200", b"\x01\x01\x09\x09" * 2 + b"\x09\x09")
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1


def test_what_the_host_wrote_through_a_view_is_not_compared_on_a_driver_without_views(
    script: Script, build_driver: Callable[..., Path]
) -> None:
    del script.lines[1:3]  # init, which the smallest driver has not
    fill(script)
    script.call("host_view", device=0, address=DEVICE, outputs={"host_address": HOST})
    read(script, DEVICE, b"written")
    report = script.replayed(build_driver())
    assert report.difference is None
    assert report.not_compared == {"from memory that is not what was recorded": 1}
    assert report.left_out == {"host_view": 1}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adds its integer to every byte of its tensor; with plain values, each thread to one."""
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "k.c").write_text("""#include <bringup/device.h>
int32_t add(void** args, int32_t n, const bringup_ctx* ctx) {
  DLTensor* x = args[0];
  (void)n, (void)ctx;
  for (int64_t i = 0; i < x->shape[0]; ++i) ((char*)x->data)[i] += *(int64_t*)args[1];
  return 0;
}
void add_values(const bringup_position* at, char* x, int32_t by) {
  x[at->block_idx.x * at->block_dim.x + at->thread_idx.x] += by;
}""")
    library = folder / "k.so"
    compiler = shutil.which("cc") or "gcc"
    command = [compiler, "-shared", "-fPIC", f"-I{_native.include_dir()}"]
    subprocess.run([*command, str(folder / "k.c"), "-o", str(library)], check=True)
    return library


def launch(address: str = DEVICE, size: int = 4) -> dict[str, Any]:
    tensor = {"data": address, "device": [12, 0], "dtype": [0, 8, 1], "shape": [size]}
    tensor |= {"strides": [1], "byte_offset": 0}
    arguments = [{"tensor": tensor}, {"int": 5}]
    return {"name": "test::add", "fn": FUNCTION, "grid": 1, "args": arguments}


def load(script: Script, kernel: Path, *, from_memory: bool, function: str = "add") -> None:
    content = kernel.read_bytes()
    if from_memory:
        script.call(
            "module_load_data", device=0, data="0x5", bytes=len(content),
            outputs={"module": MODULE}, facts=script.keep(content),
        )  # fmt: skip
    else:
        facts = {"sha256": hashlib.sha256(content).hexdigest()}
        script.call(
            "module_load", device=0, library=str(kernel), outputs={"module": MODULE}, facts=facts
        )
    script.call("get_function", module=MODULE, name=function, outputs={"fn": FUNCTION})


@pytest.mark.parametrize("from_memory", [False, True])
def test_kernels_of_a_file_and_of_memory_are_launched(
    script: Script, kernel: Path, from_memory: bool
) -> None:
    load(script, kernel, from_memory=from_memory)
    fill(script, 1)
    script.call("launch", device=0, stream=STREAM, launch=launch())
    read(script, DEVICE, b"\x06\x06\x06\x06\x01")
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1


def test_device_code_that_is_another_file_now_is_left_out_and_told(
    script: Script, kernel: Path
) -> None:
    changed = kernel.with_name("changed.so")
    changed.write_bytes(kernel.read_bytes())
    load(script, changed, from_memory=False)
    changed.write_bytes(b"another")
    fill(script, 1)
    script.call("launch", device=0, stream=STREAM, launch=launch())
    report = script.replayed()
    assert report.difference is None
    reason = f"a module that cannot be loaded: {changed} is another file now"
    assert report.left_out[reason] == 2  # module_load, get_function
    assert report.left_out[f"a launch of {reason}"] == 1


def test_a_graph_runs_its_kernels_and_copies(script: Script, kernel: Path) -> None:
    load(script, kernel, from_memory=False)
    fill(script, 1)
    graph = "0xbb"
    script.call("graph_create", device=0, outputs={"graph": graph})
    script.call("graph_add_kernel", graph=graph, launch=launch())
    script.call("graph_add_host_func", graph=graph, fn="0x5", user="0x0")
    script.call("graph_launch", graph=graph, stream=STREAM)
    script.call("host_func", device=0, stream=STREAM, fn="0x5", user="0x0")
    script.call("graph_update_kernel", graph=graph, kernel=0, launch=launch("0x1002", 1))
    script.call("graph_launch", graph=graph, stream=STREAM)
    read(script, DEVICE, b"\x06\x06\x0b\x06\x01")
    script.call("graph_add_copy", graph=graph, kind=WITHIN, dst="0x1100", src=DEVICE, bytes=4)
    script.call("graph_launch", graph=graph, stream=STREAM)
    read(script, "0x1100", b"????")
    script.call("graph_destroy", graph=graph)
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1
    assert report.not_compared == {"from memory that is not what was recorded": 1}


def test_events_and_times_are_asked_for(script: Script) -> None:
    for event in (EVENT, "0x89"):
        script.call("event_create", device=0, timing=1, outputs={"event": event})
        script.call("event_record", event=event, device=0, stream=STREAM)
    script.call("event_wait", event=EVENT, device=0, stream="0x0")
    script.call("event_query", status=3, event=EVENT)
    script.call("event_query", event="0x89")
    script.call("event_wait_for", event="0x89", nanoseconds=1000)
    script.call("event_synchronize", event="0x89")
    script.call("event_elapsed", start=EVENT, end="0x89", outputs={"milliseconds": 0.5})
    script.call("event_destroy", event=EVENT)
    script.call("stream_query", device=0, stream=STREAM)
    script.call("device_synchronize", device=0)
    script.call("stream_destroy", stream=STREAM)
    report = script.replayed()
    assert report.difference is None
    assert report.left_out == {"queries and waits that were not over": 1}


def test_calls_that_were_refused_are_refused_again(script: Script) -> None:
    script.call("mem_alloc", status=1, device=99, bytes=64)
    script.call(
        "copy_async", status=1, kind=TO_DEVICE, dst_device=0, dst=HOST, src_device=0, src=HOST,
        bytes=4, stream=STREAM, facts={"sha256": "0" * 64},
    )  # fmt: skip
    script.call("mem_free", status=1, device=0, address="0x5555")
    report = script.replayed()
    assert report.difference is None
    assert report.left_out == {"refused calls on what was not live": 1}


@pytest.mark.parametrize(
    ("function", "arguments", "got"),
    [
        ("mem_free", {"device": 0, "address": "0x5555"}, "address=0x5555 lies in no memory"),
        ("stream_synchronize", {"device": 0, "stream": "0x5555"}, "stream=0x5555 is no stream"),
    ],
)
def test_what_no_call_gave_is_a_difference(
    script: Script, function: str, arguments: dict[str, Any], got: str
) -> None:
    script.call(function, **arguments)
    found = script.replayed().difference
    assert found is not None
    assert found.got.startswith(got)


def test_a_call_without_an_argument_is_no_fault_of_the_driver(script: Script) -> None:
    script.call("fill_async", device=0, dst=DEVICE, value=1, stream=STREAM)
    with pytest.raises(DriverError, match=r"call #4 fill_async\(.*\) -> status 0 cannot be made: "):
        script.replayed()


def test_memory_that_is_freed_is_gone(script: Script) -> None:
    script.call("mem_free", device=0, address=DEVICE)
    fill(script)
    found = script.replayed().difference
    assert found is not None
    assert found.function == "fill_async"


def test_profiles_and_other_questions_are_asked_again(script: Script) -> None:
    script.call("device_count", outputs={"count": 1})
    script.call("device_props", device=0, outputs={"props": {"name": "another"}})
    script.call("mem_info", device=0, outputs={"free_bytes": 1, "total_bytes": 2})
    script.call("profiler_start", device=0)
    fill(script)
    script.call("profiler_stop", device=0)
    script.call("profiler_read", device=0, capacity=8, outputs={"count": 1, "lost": 0})
    script.call("error_detail", outputs={"detail": {"code": 0}})
    script.call("device_reset", device=0)
    script.call("device_synchronize", device=7)
    script.call("shutdown")
    report = script.replayed()
    assert report.difference is None
    assert report.left_out == {"questions to device 7, which the driver has not": 1}


GRAPH = "0xbb"


def test_captured_work_runs_with_the_graph_and_claims_no_content(script: Script) -> None:
    fill(script, 1)
    script.call("graph_create", device=0, outputs={"graph": GRAPH})
    script.call("stream_capture_begin", device=0, stream=STREAM)
    fill(script, 7)
    script.call("stream_capture_query", device=0, stream=STREAM, outputs={"state": 1})
    script.call("stream_capture_end", device=0, stream=STREAM, graph=GRAPH)
    script.call("graph_launch", graph=GRAPH, stream=STREAM)
    read(script, DEVICE, b"whatever")
    fill(script, 2)
    read(script, DEVICE, bytes([2, 2]))
    script.call("native_handle", device=0, stream=STREAM, kind=3, outputs={"handle": "0x1"})
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1
    assert report.left_out == {"native_handle, whose objects are the runtime's own": 1}


def values_launch(address: str = DEVICE, by: int = 5, blocks: int = 2) -> dict[str, Any]:
    values = [
        {"kind": 1, "size": 8, "address": address},
        {"kind": 2, "size": 4, "bytes": by.to_bytes(8, "little", signed=True).hex()},
    ]
    given = {"name": "test::add", "fn": FUNCTION, "grid": [blocks, 1, 1], "block": [2, 1, 1]}
    return given | {"shared_bytes": 0, "values": values}


def test_launches_with_plain_values_reach_the_driver(script: Script, kernel: Path) -> None:
    load(script, kernel, from_memory=False, function="add_values")
    fill(script, 1)
    script.call("launch_values", device=0, stream=STREAM, launch=values_launch())
    read(script, DEVICE, b"\x06\x06\x06\x06\x01")
    script.call("launch_values", status=1, device=99, stream=STREAM, launch=values_launch())
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1


def test_a_graph_runs_plain_values_and_gets_new_ones(script: Script, kernel: Path) -> None:
    load(script, kernel, from_memory=False, function="add_values")
    fill(script, 1)
    graph = "0xbb"
    script.call("graph_create", device=0, outputs={"graph": graph})
    script.call("graph_add_values", graph=graph, launch=values_launch())
    script.call("graph_launch", graph=graph, stream=STREAM)
    update = values_launch("0x1002", by=-2, blocks=1)
    script.call("graph_update_values", graph=graph, kernel=0, launch=update)
    script.call("graph_launch", graph=graph, stream=STREAM)
    read(script, DEVICE, b"\x06\x06\x04\x04\x01")
    script.call("graph_destroy", graph=graph)
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1


def test_what_plain_values_may_have_written_from_unknown_memory_is_not_compared(
    script: Script, kernel: Path
) -> None:
    load(script, kernel, from_memory=False, function="add_values")
    fill(script, 1)
    lost = {"kind": TO_DEVICE, "dst_device": 0, "dst": "0x1fff", "src_device": 0, "src": HOST}
    script.call("copy_async", **lost, bytes=1, stream=STREAM)  # without its bytes
    script.call("launch_values", device=0, stream=STREAM, launch=values_launch("0x1002"))
    read(script, DEVICE, b"\x01\x01")
    read(script, "0x1002", b"????")
    report = script.replayed()
    assert report.difference is None
    assert report.compared_copies == 1
    assert report.not_compared == {"from memory that is not what was recorded": 1}
