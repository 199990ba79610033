"""Traces of a driver's calls, and replaying them on a driver without torch. What single lines say
is tested in `native/test_traced_driver.cpp`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bringup import _native, cli, devices
from bringup.devices._driver_abi import FUNCTIONS, Table
from bringup.devices._trace import read_trace
from bringup.errors import DriverError

WORK = """
import sys
import torch
from bringup import devices
name = devices.load_driver(sys.argv[1]).device_name
x = torch.arange(256.0).to(name)
with torch.Stream(name) as stream:
    y = x * 2
    event = stream.record_event()
event.synchronize()
print((y + x).sum().item())
"""
KERNEL = """
import torch
from bringup import devices, jit, ops
devices.load_driver("sim")
scale = ops.kernel_op(
    "trace_test::scale(Tensor x, float factor, int[] more, str mode) -> Tensor",
    source=jit.Source(name="scale.cpp", text='''#include <bringup/kernel.h>
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float> x(args[0]), out(args[4]);
  const double factor = *static_cast<double*>(args[1]);
  const auto* more = static_cast<bringup_list*>(args[2]);
  if (static_cast<const char*>(args[3])[0] != 'm') return ctx->set_error(ctx, "another mode"), 1;
  for (int64_t i = 0; i < x.numel(); ++i)
    out.at(i) = x.at(i) * factor + static_cast<const int64_t*>(more->data)[1];
  return 0;
}'''),
    outputs=ops.empty_like("x"),
    checks=ops.dtype("x", torch.float32),
    kind="device",
    grid=2,
    work_items="2 * numel(x)",
)
print(scale(torch.arange(8.0, device="cpu").to("npu"), 0.1, [3, 4], "mul").cpu().tolist())
try:
    scale(torch.ones(8, device="npu"), 0.1, [3, 4], "add")
    torch.npu.synchronize()
except Exception as error:
    print(error)
"""


VALUES = """
import torch
from bringup import devices, graphs, jit, ops
devices.load_driver("sim")
add = ops.kernel_op(
    "trace_test::add_(Tensor(a!) x, int n, float by) -> ()",
    source=jit.Source(name="add.cpp", text='''#include <bringup/device.h>
BRINGUP_EXPORT void add(const bringup_position* at, float* x, int64_t n, float by) {
  const uint32_t i = at->block_idx.x * at->block_dim.x + at->thread_idx.x;
  if (i < n) x[i] += by;
}'''),
    entry="add", kind="device", args="ptr(x, float32), n, by", grid="(n + 3) // 4", block=4,
)
put = ops.kernel_op(
    "trace_test::put_(Tensor(a!) x, int n) -> ()",
    source=jit.Source(name="put.cpp", text='''#include <bringup/device.h>
BRINGUP_EXPORT void put(const bringup_position* at, float* x) {
  const uint32_t i = at->block_idx.x * at->block_dim.x + at->thread_idx.x;
  x[i] = i;
}'''),
    entry="put", kind="device", args="ptr(x, float32)", work_items="n",
)
x = torch.empty(10, device="npu")
put(x, 10)
add(x, 10, 0.5)
print(x.tolist())
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    add(x, 5, 1.0)
graph.replay()
graph.update({"add_.0.by": -2.0, "add_.0.n": 9})
graph.replay()
print(x.tolist())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def exact(
    folder: Path, build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> Path:
    """A trace of WORK on the minimal driver, with payload."""
    file = folder / "exact.jsonl"
    asked = {"BRINGUP_DRIVER_TRACE": str(file), "BRINGUP_DRIVER_TRACE_PAYLOAD": "1"}
    assert fresh_python(WORK, str(build_driver()), **asked) == "97920.0"
    return file


def test_a_trace_has_what_the_program_did(exact: Path, build_driver: Callable[..., Path]) -> None:
    trace = read_trace(exact)
    assert trace.end == ""
    assert trace.header["library"] == str(build_driver())
    assert [call.number for call in trace.calls][:3] == [1, 2, 3]
    assert {"mem_alloc", "copy_async", "event_record", "stream_create"} <= {
        call.function for call in trace.calls
    }
    copy = next(call for call in trace.calls if call.function == "copy_async")
    assert copy.arguments["bytes"] == 1024
    assert str(copy).startswith(f"#{copy.number} copy_async(kind=1, dst_device=0, dst=0x")
    content = trace.payload(copy.facts, 1024)
    assert content is not None
    assert content[4:8] == b"\x00\x00\x80\x3f"


def test_a_replay_on_the_same_driver_finds_no_difference(
    exact: Path, build_driver: Callable[..., Path]
) -> None:
    report = devices.replay_trace(exact, build_driver())
    assert report.difference is None
    assert report.made == report.calls > 20
    assert report.compared_copies >= 3
    assert report.left_out == {}


def test_a_replay_on_another_driver_maps_addresses_and_handles(exact: Path) -> None:
    report = devices.replay_trace(exact, _native.sim_driver_path())
    assert report.difference is None
    assert report.compared_copies >= 3


def test_a_replay_imports_no_torch(exact: Path) -> None:
    code = (
        "import sys; sys.argv = ['replay', *sys.argv[1:]]\n"
        "from bringup.devices import _replay\n"
        "_replay.main()\n"
        "assert 'torch' not in sys.modules"
    )
    result, progress = exact.with_name("result"), exact.with_name("progress")
    progress.write_bytes(bytes(16))
    command = [sys.executable, "-c", code, str(exact), str(_native.sim_driver_path())]
    subprocess.run([*command, str(result), str(progress), "30"], check=True)
    assert json.loads(result.read_text())["difference"] is None


@pytest.mark.parametrize(
    ("lie", "expected", "got"),
    [
        ("LIE_STATUS", "BRINGUP_OK", "the status 57, which there is not"),
        ("LIE_NOTHING", "address that is not NULL", "NULL"),
        ("LIE_STREAM", "stream that is not NULL", "NULL"),
        ("LIE_CRASH", "status 0", "the process ended with SIGABRT in the call"),
        ("LIE_FOREVER", "status 0", "the call has not returned"),
        ("BROKEN_START", "BRINGUP_OK", "BRINGUP_DEVICE_LOST"),
        ("BROKEN_FUNCTION", "a function", "the driver has none of that name"),
    ],
)
def test_the_first_answer_that_differs_is_reported(
    lie: str,
    expected: str,
    got: str,
    exact: Path,
    build_driver: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bringup.devices._replay_process.SLACK", 0.0)
    limit = 1.0 if lie == "LIE_FOREVER" else 120.0  # a loaded machine's calls take their time
    report = devices.replay_trace(exact, build_driver(lie), timeout=limit)
    found = report.difference
    assert found is not None
    assert (found.expected, found.got) == (expected, got)
    trace = read_trace(exact)
    index = [call.number for call in trace.calls].index(found.call)
    assert found.text == str(trace.calls[index])
    assert found.function == trace.calls[index].function
    assert list(found.before) == [str(call) for call in trace.calls[max(0, index - 8) : index]]


def test_bytes_that_differ_are_shown_where_they_begin_to(
    exact: Path, build_driver: Callable[..., Path]
) -> None:
    found = devices.replay_trace(exact, build_driver("LIE_BYTE")).difference
    assert found is not None
    copy = next(call for call in read_trace(exact).calls if call.arguments.get("kind") == 2)
    size = copy.arguments["bytes"]
    assert found.expected.startswith(f"the bytes of copy #{copy.number} ({size} bytes) with digest")
    assert f"; the first byte that differs is {size - 1}: expected " in found.got


def test_a_query_that_is_never_over_is_a_difference(
    exact: Path, build_driver: Callable[..., Path]
) -> None:
    text = exact.read_text().replace('"function":"stream_synchronize"', '"function":"stream_query"')
    altered = exact.with_name("altered.jsonl")
    altered.write_text(text)
    altered.with_name("altered.jsonl.payload").write_bytes(
        exact.with_name("exact.jsonl.payload").read_bytes()
    )
    found = devices.replay_trace(altered, build_driver("LIE_PENDING"), timeout=0.2).difference
    assert found is not None
    assert found.function == "stream_query"
    assert found.got == "not done after 0.2 s"


def test_without_payload_only_statuses_are_compared(
    folder: Path, build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    file = folder / "digests.jsonl"
    fresh_python(WORK, str(build_driver()), BRINGUP_DRIVER_TRACE=str(file))
    assert not file.with_name("digests.jsonl.payload").exists()
    report = devices.replay_trace(file, build_driver("LIE_BYTE"))
    assert report.difference is None
    assert report.compared_copies == 0
    assert report.not_compared["from memory that is not what was recorded"] >= 3


def test_memory_that_the_host_wrote_itself_is_not_compared(
    folder: Path, fresh_python: Callable[..., str]
) -> None:
    file = folder / "views.jsonl"
    fresh_python(WORK, "sim", BRINGUP_DRIVER_TRACE=str(file))
    report = devices.replay_trace(file, _native.sim_driver_path())
    assert report.difference is None
    assert report.left_out["host_view"] > 0


@pytest.fixture(scope="module")
def launches(folder: Path, fresh_python: Callable[..., str]) -> Path:
    file = folder / "launches.jsonl"
    asked = {"BRINGUP_DRIVER_TRACE": str(file), "BRINGUP_DRIVER_TRACE_PAYLOAD": "1"}
    said = fresh_python(KERNEL, BRINGUP_CACHE_DIR=str(folder / "cache"), **asked)
    assert "another mode" in said
    return file


def test_launches_with_plain_values_are_made_again(
    folder: Path, fresh_python: Callable[..., str]
) -> None:
    file = folder / "values.jsonl"
    asked = {"BRINGUP_DRIVER_TRACE": str(file), "BRINGUP_DRIVER_TRACE_PAYLOAD": "1"}
    said = fresh_python(VALUES, BRINGUP_CACHE_DIR=str(folder / "cache"), **asked).splitlines()
    first = [i + 0.5 for i in range(10)]
    last = [i + 0.5 + (i < 5) - 2 * (i < 9) for i in range(10)]
    assert [json.loads(line) for line in said] == [first, last]
    made = [call for call in read_trace(file).calls if call.function.endswith("_values")]
    functions = [call.function for call in made]
    # The capture runs once, and then as if it had not.
    assert functions == [*["launch_values"] * 3, "graph_add_values", "graph_update_values"]
    put, given = (call.arguments["launch"] for call in made[:2])
    assert (put["work_items"], put["grid"], put["block"]) == ([10, 1, 1], [5, 1, 1], [2, 1, 1])
    assert (given["name"], given["grid"]) == ("trace_test::add_", [3, 1, 1])
    assert (given["block"], given["work_items"]) == ([4, 1, 1], [0, 0, 0])
    assert [(x["kind"], x["size"]) for x in given["values"]] == [(1, 8), (2, 8), (3, 4)]
    report = devices.replay_trace(file, _native.sim_driver_path())
    assert report.difference is None
    assert report.left_out == {}
    assert report.compared_copies >= 2


def test_launches_are_made_with_their_arguments(launches: Path) -> None:
    calls = [call for call in read_trace(launches).calls if call.function == "launch"]
    first = calls[0].arguments["launch"]
    assert (first["name"], first["grid"], first["work_items"]) == ("trace_test::scale", 2, 16)
    assert first["args"][0]["tensor"]["shape"] == [8]
    assert first["args"][1:4] == [{"float": 0.1}, {"ints": [3, 4]}, {"string": "mul"}]
    report = devices.replay_trace(launches, _native.sim_driver_path())
    assert report.difference is None
    assert report.left_out == {}
    assert report.compared_copies >= 1


def test_a_last_line_that_is_cut_is_told_and_the_rest_is_read(exact: Path) -> None:
    cut = exact.with_name("cut.jsonl")
    cut.write_bytes(exact.read_bytes()[:-20])
    whole, partial = read_trace(exact), read_trace(cut)
    assert "its last line is cut" in partial.end
    assert len(partial.calls) == len(whole.calls)
    assert partial.calls[-1].status is None


def test_a_call_that_had_not_returned_is_made_and_told(
    exact: Path, build_driver: Callable[..., Path]
) -> None:
    cut = exact.with_name("cut2.jsonl")
    lines = exact.read_text().splitlines(keepends=True)
    cut.write_text("".join(lines[:-1]))
    Path(f"{cut}.payload").write_bytes(Path(f"{exact}.payload").read_bytes())
    found = devices.replay_trace(cut, build_driver()).difference
    assert found is not None
    assert (found.expected, found.got) == ("the call had not returned", "BRINGUP_OK")
    assert found.text.endswith("-> did not return")


def test_a_trace_over_its_limit_says_so(
    folder: Path, build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    file = folder / "limit.jsonl"
    asked = {"BRINGUP_DRIVER_TRACE": str(file), "BRINGUP_DRIVER_TRACE_LIMIT": "4K"}
    assert fresh_python(WORK, str(build_driver()), **asked) == "97920.0"
    assert read_trace(file).end == "it had reached BRINGUP_DRIVER_TRACE_LIMIT"
    assert file.stat().st_size <= 4096 + 20


def test_a_trace_that_cannot_be_written_refuses_the_driver(
    tmp_path: Path, build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = (
        "import sys\nfrom bringup import devices\nfrom bringup.errors import DriverError\n"
        "try: devices.load_driver(sys.argv[1])\n"
        "except DriverError as error: print(error)"
    )
    trace = tmp_path / "missing" / "t"
    said = fresh_python(code, str(build_driver()), BRINGUP_DRIVER_TRACE=str(trace))
    assert f"the trace {trace} cannot be written: No such file or directory" in said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no trace of a driver"),
        ("hello\n", "is no trace of a driver"),
        ('{"bringup_driver_trace":2}\n', 'with "bringup_driver_trace":1'),
        ('{"bringup_driver_trace":1}\n{"call":1,"status":0}\n', r":2 is no line of a trace"),
        ('{"bringup_driver_trace":1}\n[]\n', r":2 is no line of a trace"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(DriverError, match=reason):
        read_trace(file)


def test_payload_of_another_trace_is_refused(
    exact: Path, build_driver: Callable[..., Path]
) -> None:
    other = exact.with_name("foreign.jsonl")
    other.write_bytes(exact.read_bytes())
    Path(f"{other}.payload").write_bytes(bytes(1 << 16))
    with pytest.raises(DriverError, match="does not belong to this trace"):
        devices.replay_trace(other, build_driver())


def test_a_library_that_is_no_driver_is_refused(exact: Path, tmp_path: Path) -> None:
    library = tmp_path / "libnone.so"
    library.write_text("no library")
    with pytest.raises(DriverError, match="cannot be loaded"):
        devices.replay_trace(exact, library)


def test_the_command_says_what_it_found_and_exits_1_for_a_difference(
    exact: Path, build_driver: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    library = str(build_driver("LIE_STATUS"))
    assert cli.main(["driver", "replay", str(exact), library, "--json", "-"]) == 1
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert found["difference"]["function"] == "copy_async"
    assert f"> {found['difference']['text']}" in err
    assert "  got:      the status 57" in err
    replayed = ["driver", "replay", str(exact), str(build_driver())]
    assert cli.main(replayed) == 0
    assert "no difference" in capfd.readouterr().out
    assert cli.main([*replayed, "--timeout", "0"]) == 2
    assert "expected more than 0 seconds" in capfd.readouterr().err


def test_the_command_traces_what_it_runs(
    tmp_path: Path, build_driver: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.jsonl"
    command = ["driver", "trace", str(file), "--payload", "--", sys.executable, "-c", WORK]
    assert cli.main([*command, str(build_driver())]) == 0
    assert capfd.readouterr().out == "97920.0\n"
    assert read_trace(file).header["payload"] is True
    assert cli.main(["driver", "trace", str(file), "--", sys.executable, "-c", "exit(7)"]) == 7
    assert "loaded no driver" in capfd.readouterr().err


def test_the_functions_and_parameters_are_those_of_the_header_in_its_order() -> None:
    header = (_native.include_dir() / "bringup" / "driver.h").read_text()
    table = header[
        header.index("typedef struct bringup_driver {") : header.index("} bringup_driver;")
    ]
    found = {
        name: re.findall(r"(\w+)(?:\)\([^()]*\))?(?:,|$)", "" if given == "void" else given)
        for name, given in re.findall(r"\(\*(\w+)\)\(((?:[^()]|\([^()]*\))*)\);", table)
    }
    assert list(found) == [name for name in FUNCTIONS if name != "capabilities"]
    for name, parameters in found.items():
        assert parameters == list(FUNCTIONS[name]), name
    assert Table.capabilities.offset < Table.init.offset  # type: ignore[attr-defined]


def test_streams_and_modules_go_back_before_the_driver_ends(launches: Path, exact: Path) -> None:
    functions = [call.function for call in read_trace(launches).calls]
    made = functions.count("stream_create"), functions.count("module_load_data")
    assert made[1] >= 1
    assert functions[-1] == "shutdown"
    assert (functions.count("stream_destroy"), functions.count("module_unload")) == made
    # The minimal driver has no shutdown: its streams live as long as the process.
    assert "stream_destroy" not in [call.function for call in read_trace(exact).calls]
