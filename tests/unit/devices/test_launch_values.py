"""Device code with plain arguments: started over blocks of threads, without descriptors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import devices, graphs, jit, ops
from bringup.errors import KernelError, SchemaError, UpdateError

HEAD = '#include "bringup/device.h"\n'
SCALE = (
    HEAD
    + """
BRINGUP_EXPORT void scale(const bringup_position* at, float* out, const float* x, int64_t n,
                          float factor) {
  const int64_t i = (int64_t)at->block_idx.x * at->block_dim.x + at->thread_idx.x;
  if (i < n) out[i] = x[i] * factor;
}
"""
)
WHERE = (
    HEAD
    + """
// Each thread writes where it is, into a row of its own.
BRINGUP_EXPORT void where(const bringup_position* at, int32_t* out) {
  const bringup_index b = at->block_idx, t = at->thread_idx;
  const bringup_index grid = at->grid_dim, dim = at->block_dim;
  const int64_t block = ((int64_t)b.z * grid.y + b.y) * grid.x + b.x;
  const int64_t thread = ((int64_t)t.z * dim.y + t.y) * dim.x + t.x;
  int32_t* row = out + (block * (dim.x * dim.y * dim.z) + thread) * 7;
  row[0] = b.x; row[1] = b.y; row[2] = b.z;
  row[3] = t.x; row[4] = t.y; row[5] = t.z;
  row[6] += 1;
}
"""
)
# The sum of each block's 64 elements, in a tree: needs shared memory and barriers.
BLOCK_SUM = (
    HEAD
    + """
BRINGUP_EXPORT void block_sum(const bringup_position* at, float* out, const float* x, int64_t n) {
  float* shared = (float*)at->shared;
  const uint32_t t = at->thread_idx.x;
  const int64_t i = (int64_t)at->block_idx.x * at->block_dim.x + t;
  shared[t] = i < n ? x[i] : 0;
  for (uint32_t half = at->block_dim.x / 2; half > 0; half /= 2) {
    at->barrier(at);
    if (t < half) shared[t] += shared[t + half];
  }
  if (t == 0) out[at->block_idx.x] = shared[0];
}
"""
)
KINDS = (
    HEAD
    + """
BRINGUP_EXPORT void kinds(const bringup_position*, double* out, int8_t a, uint8_t b, int16_t c,
                          uint16_t d, int32_t e, uint32_t f, int64_t g, float h, double i, bool j,
                          const float* none, int64_t has, int64_t dtype) {
  const double all[] = {(double)a, (double)b, (double)c, (double)d, (double)e, (double)f, (double)g,
                        (double)h, i, (double)j, none == nullptr ? 1.0 : 0.0, (double)has,
                        (double)dtype};
  for (int k = 0; k < 13; ++k) out[k] = all[k];
}
"""
)
DEVICES = pytest.mark.parametrize("device", ["cpu", "npu"])


def source(text: str, name: str = "kernel.cpp") -> jit.Source:
    return jit.Source(text=text, name=name)


@pytest.fixture(scope="module")
def scale() -> ops.KernelOperator:
    return ops.kernel_op(
        "devices_values::scale(Tensor x, float factor) -> Tensor",
        source=source(SCALE),
        entry="scale",
        kind="device",
        args="ptr(out), ptr(x), numel(x), factor",
        grid="(numel(x) + 31) // 32",
        block=32,
        outputs=ops.empty_like("x"),
    )


@DEVICES
@pytest.mark.parametrize("count", [1, 31, 32, 1000])
def test_every_element_is_computed_once(scale: ops.KernelOperator, device: str, count: int) -> None:
    x = torch.randn(count, device=device)
    assert torch.equal(scale(x, 2.5), x * 2.5)


def test_the_same_source_in_c(npu: devices.DriverInfo) -> None:
    op = ops.kernel_op(
        "devices_values::scale_c(Tensor x, float factor) -> Tensor",
        source=source(SCALE.replace("BRINGUP_EXPORT ", ""), "scale.c"),
        entry="scale",
        kind="device",
        args="ptr(out), ptr(x), numel(x), factor",
        grid="(numel(x) + 31) // 32",
        block=32,
        outputs=ops.empty_like("x"),
    )
    x = torch.randn(100, device="npu")
    assert torch.equal(op(x, 3.0), x * 3)


@DEVICES
def test_a_thread_knows_its_block_and_its_place_in_three_dimensions(device: str) -> None:
    op = ops.kernel_op(
        "devices_values::where(Tensor(a!) out, int z) -> ()",
        source=source(WHERE),
        entry="where",
        kind="device",
        args="ptr(out)",
        grid=(2, 3, "z"),
        block=(4, 2, "z + 1"),
        redefine=True,
    )
    rows = torch.zeros(2 * 3 * 2 * 4 * 2 * 3, 7, dtype=torch.int32, device=device)
    op(rows, 2)
    expected = [
        [bx, by, bz, tx, ty, tz, 1]
        for bz in range(2)
        for by in range(3)
        for bx in range(2)
        for tz in range(3)
        for ty in range(2)
        for tx in range(4)
    ]
    assert rows.tolist() == expected


@DEVICES
def test_threads_of_a_block_share_memory_and_wait_for_each_other(device: str) -> None:
    op = ops.kernel_op(
        "devices_values::block_sum(Tensor x) -> Tensor",
        source=source(BLOCK_SUM),
        entry="block_sum",
        kind="device",
        args="ptr(out), ptr(x), numel(x)",
        grid="(numel(x) + 63) // 64",
        block=64,
        shared="64 * 4",
        outputs=ops.empty("(x.numel() + 63) // 64", dtype="x"),
        redefine=True,
    )
    x = torch.arange(1000.0, device=device)
    padded = torch.cat([x.cpu(), torch.zeros(24)]).view(-1, 64)
    assert torch.equal(op(x).cpu(), padded.sum(1))


def items(name: str, work_items: object, body: str) -> ops.KernelOperator:
    function = "BRINGUP_EXPORT void items(const bringup_position* at, int64_t* out)"
    return ops.kernel_op(
        f"devices_values::{name}(Tensor(a!) out, int n) -> ()",
        source=source(f"{HEAD}{function} {{ {body} }}"),
        entry="items",
        kind="device",
        args="ptr(out)",
        work_items=work_items,  # type: ignore[arg-type]
        redefine=True,
    )


@DEVICES
def test_as_many_threads_run_as_there_are_work_items_in_three_dimensions(device: str) -> None:
    op = items(
        "three",
        ("n", 3, 2),
        "const bringup_index &b = at->block_idx, &t = at->thread_idx, &dim = at->block_dim;"
        "const int64_t i = (int64_t)b.x * dim.x + t.x, n = (int64_t)at->grid_dim.x * dim.x;"
        "out[((b.z * dim.z + t.z) * 3 + b.y * dim.y + t.y) * n + i] += 1;",
    )
    for count in (1, 37, 64, 160):
        out = torch.zeros(6 * count + 64, dtype=torch.int64, device=device)
        op(out, count)
        assert out.tolist() == [1] * (6 * count) + [0] * 64
    with pytest.raises(KernelError, match="the work items 'n' must be from 1 to 4294967295, got 0"):
        op(out, 0)


@DEVICES
@pytest.mark.parametrize("count", [4, 7])  # blocks of 4 threads, and of 1
def test_work_items_do_not_wait_for_each_other(device: str, count: int) -> None:
    op = items("waits", "n", "at->barrier(at); out[0] = 1;")
    out = torch.zeros(1, dtype=torch.int64, device=device)

    def run() -> None:
        op(out, count)
        torch.npu.synchronize()

    with pytest.raises(KernelError, match="called by one of work_items=, which wait for nothing"):
        run()


def test_work_items_of_a_captured_graph_are_updated() -> None:
    op = items("counted", "n", "out[at->block_idx.x * at->block_dim.x + at->thread_idx.x] += 1;")
    out = torch.zeros(100, dtype=torch.int64, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        op(out, 2)
    for count in (64, 5, 37):
        out.zero_()
        graph.update({"counted.0.n": count})
        graph.replay()
        assert out.tolist() == [1] * count + [0] * (100 - count)


@DEVICES
def test_values_of_every_kind_and_size_arrive(device: str) -> None:
    op = ops.kernel_op(
        "devices_values::kinds(Tensor x, int n, float f, bool b, Tensor? w=None) -> Tensor",
        source=source(KINDS),
        entry="kinds",
        kind="device",
        args="ptr(out, float64), n, n + 300, n, n + 300, n, n + 300, n, f, f, b, ptr(w, float32), "
        "has(w), dtype(x)",
        block=1,
        outputs=ops.empty("13", dtype=torch.float64),
        checks=ops.kernel_checks(),
        redefine=True,
    )
    x = torch.zeros(1, device=device)
    with pytest.raises(KernelError, match=r"n \+ 300 is 293, outside 0 to 255"):
        op(x, -7, 0.1, True)
    got = op(x, -100, 0.1, True).tolist()
    single = torch.tensor(0.1).item()
    assert got == [-100, 200, -100, 200, -100, 200, -100, single, 0.1, 1, 1, 0, 6]


def test_tensors_are_read_in_stream_order(scale: ops.KernelOperator) -> None:
    target = torch.zeros(1 << 16, device="npu")
    with torch.npu.stream(torch.npu.Stream()):
        torch.npu.current_stream().wait_stream(torch.npu.default_stream())
        for value in range(1, 6):
            target.fill_(value)
            result = scale(target, 10.0)
        target.zero_()
        assert set(result.tolist()) == {50.0}


def test_a_gradient_and_torch_compile_see_an_ordinary_operator(scale: ops.KernelOperator) -> None:
    x = torch.randn(40, device="npu")
    compiled = torch.compile(lambda t: scale(t, 2.0) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), x * 2 + 1)
    assert scale(x.to("meta"), 2.0).shape == (40,)


# --- refusals


def define(schema: str = "bad(Tensor x, int[] l, str s) -> Tensor", **options: object) -> object:
    given: dict[str, object] = {
        "source": source(SCALE),
        "entry": "scale",
        "kind": "device",
        "args": "ptr(out), ptr(x), numel(x), 1.5",
        "block": 32,
        "outputs": ops.empty_like("x"),
    }
    return ops.kernel_op(f"devices_values::{schema}", **{**given, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": None}, "kind='device'"),
        ({"args": None}, "say in args="),
        ({"block": None, "shared": 4}, "needs block="),
        ({"block": None, "grid": (1, 2)}, "needs block="),
        ({"block": None, "args": None, "work_items": (1, 2)}, "needs block="),
        ({"work_items": 4}, "takes the place of grid=, block=, shared=, cluster= and cooperative="),
        ({"block": None, "work_items": 4, "cluster": 2}, "takes the place of grid="),
        ({"block": None, "work_items": 4, "cooperative": True}, "takes the place of grid="),
        ({"block": None, "cluster": 2}, "cluster=2: needs block="),
        ({"block": None, "cooperative": True}, "cooperative=True: needs block="),
        *(
            ({"cluster": wrong}, "expected a number of blocks of at least 1, or one to three")
            for wrong in (0, -2, (), (1, 2, 3, 4), (1, 0), ("2",), True, (2**16, 2**16))
        ),
        ({"block": None, "shared": 4, "work_items": 4}, "takes the place of grid="),
        ({"block": None, "work_items": "unknown(x)"}, "work_items"),
        ({"block": None, "work_items": 1.5}, "expected numbers or expressions"),
        ({"block": (1, 2, 3, 4)}, "one to three"),
        ({"block": 1.5}, "expected numbers or expressions"),
        ({"grid": "unknown(x)"}, "grid"),
        ({"shared": "x"}, "shared"),
        ({"args": "ptr(out), ptr(l), numel(x), 1.5"}, "a list is memory of the host's"),
        ({"args": "ptr(out), s, numel(x), 1.5"}, "a text is memory of the host's"),
        ({"args": "ptr(out), 'text', numel(x), 1.5"}, "a text is memory of the host's"),
        ({"args": "ptr(out), stream, numel(x), 1.5"}, "a stream is the host's to use"),
        ({"args": "ptr(out), workspace(8), numel(x), 1.5"}, "no workspace"),
        ({"args": "ptr(out), ref(numel(x)), numel(x), 1.5"}, "an address of the host's"),
        ({"args": "ptr(out), ptr(x), numel(x)"}, "takes 4 parameters, args= has 3"),
        ({"source": source(SCALE.replace("const bringup_position* at, ", ""))}, "its place in the"),
        ({"source": source(SCALE.replace("void scale", "int scale"))}, "returns int"),
    ],
)
def test_a_definition_that_cannot_be_says_why(options: dict[str, object], words: str) -> None:
    with pytest.raises(SchemaError) as raised:
        define(**options)
    assert words in str(raised.value)
    assert not hasattr(torch.ops.devices_values, "bad")


def test_no_block_and_too_many_are_refused_before_the_launch(scale: ops.KernelOperator) -> None:
    for device in ("cpu", "npu"):
        with pytest.raises(KernelError, match="must be from 1 to 4294967295, got 0"):
            scale(torch.empty(0, device=device), 1.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block": 1025}, "1025 threads a block in x: the device takes 1 to 1024"),
        ({"block": (64, 64)}, "4096 threads a block: the device takes up to 1024"),
        ({"block": (1, 1, 65)}, "65 threads a block in z"),
        ({"grid": (1, 65536)}, "65536 blocks in y"),
        ({"shared": 49153}, "49153 bytes of shared memory: a block has 49152"),
    ],
)
def test_what_is_beyond_the_devices_limits_is_refused_by_it(
    options: dict[str, object], words: str
) -> None:
    op = define("limits(Tensor x) -> Tensor", redefine=True, **options)
    with pytest.raises(RuntimeError) as raised:
        op(torch.ones(4, device="npu"))  # type: ignore[operator]
    assert words in str(raised.value)
    assert "devices_values::limits" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster": 2}, r"has clusters of 2 blocks \(cluster=\), and device 'npu' takes none"),
        (
            {"cluster": (1, 1)},
            r"has clusters of 1 blocks \(cluster=\), and device 'npu' takes none",
        ),
        ({"cooperative": True}, r"\(cooperative=\), which device 'npu' does not do"),
    ],
)
def test_clusters_and_cooperative_launches_are_refused_where_there_are_none(
    options: dict[str, object], words: str
) -> None:
    op: Any = define("together(Tensor x) -> Tensor", redefine=True, grid=4, **options)
    with pytest.raises(KernelError, match="are for devices that have them, not for the host"):
        op(torch.ones(4))
    x = torch.ones(4, device="npu")
    with pytest.raises(RuntimeError, match=words):
        op(x)
    with pytest.raises(RuntimeError, match=words), graphs.capture(graphs.CapturedGraph()):
        op(x)


def test_a_launch_without_options_is_as_it_was() -> None:
    op: Any = define("plainly(Tensor x) -> Tensor", redefine=True, cooperative=False)
    assert op(torch.ones(4, device="npu")).tolist() == op(torch.ones(4)).tolist()


def test_the_limits_are_properties_of_the_device() -> None:
    properties = torch.npu.get_device_properties()
    assert properties.max_grid == (2**31 - 1, 65535, 65535)
    assert properties.max_block == (1024, 1024, 64)
    assert (properties.max_block_threads, properties.max_shared_bytes) == (1024, 49152)


def test_what_the_kernel_throws_is_raised_where_somebody_waits() -> None:
    text = HEAD + (
        "#include <stdexcept>\nBRINGUP_EXPORT void scale(const bringup_position* at, float*, "
        "const float*, int64_t, float) { at->barrier(at); if (at->thread_idx.x == 3) throw "
        'std::runtime_error("no room"); at->barrier(at); }'
    )
    op = define("throws(Tensor x) -> Tensor", source=source(text))
    op(torch.ones(4, device="npu"))  # type: ignore[operator]
    with pytest.raises(KernelError, match=r"'devices_values::throws' failed in stream 0.*no room"):
        torch.npu.synchronize()
    with pytest.raises(KernelError, match="no room"):
        op(torch.ones(4))  # type: ignore[operator]


def test_a_launch_that_fails_later_names_the_operator(scale: ops.KernelOperator) -> None:
    x = torch.ones(4, device="npu")
    with devices.sim.faults(fail="launch_values", fail_async=True) as faults:
        scale(x, 1.0)
        with pytest.raises(KernelError, match="devices_values::scale"):
            torch.npu.synchronize()
    assert faults.count == 1
    with (
        devices.sim.faults(fail="launch_values"),
        pytest.raises(RuntimeError, match=r"devices_values::scale.*injected"),
    ):
        scale(x, 1.0)
    assert scale(x, 2.0).tolist() == [2, 2, 2, 2]


def test_a_driver_without_launch_values_says_what_to_do(
    fresh_python: Callable[..., str], build_driver: Callable[..., Path]
) -> None:
    code = """
import sys, torch
from bringup import devices, jit, ops
devices.load_driver(sys.argv[1])
op = ops.kernel_op(
    "v::scale(Tensor x) -> Tensor", source=jit.Source(text=sys.argv[2], name="k.cpp"),
    entry="scale", kind="device", args="ptr(out), ptr(x), numel(x), 1.5", block=8,
    outputs=ops.empty_like("x"))
assert op(torch.ones(4)).tolist() == [1.5] * 4
try:
    op(torch.ones(4, device=devices.loaded().device_name))
except RuntimeError as error:
    print(error)
"""
    driver = build_driver("LIE_VALUES_NONE", source="lying")
    said = fresh_python(code, str(driver), SCALE)
    assert "operator 'v::scale' is device code with plain arguments (block=)" in said
    assert "BRINGUP_HAS_LAUNCH_VALUES" in said


# --- captured graphs


def captured(op: ops.KernelOperator, x: torch.Tensor) -> tuple[graphs.CapturedGraph, torch.Tensor]:
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = op(op(x, 2.0) + 1, 3.0)
    return graph, y


@DEVICES
def test_a_captured_graph_replays_and_is_updated_as_eager_computes(
    scale: ops.KernelOperator, device: str
) -> None:
    x = torch.randn(100, device=device)
    graph, y = captured(scale, x)
    for step in range(4):
        x.copy_(torch.randn(100))
        first, last = 0.5 * step, 1.5 - step
        graph.update({"scale.0.factor": first, "scale.1.factor": last})
        graph.replay()
        assert torch.equal(y, scale(scale(x, first) + 1, last))


def test_updates_between_launches_that_have_not_begun_keep_their_own_values(
    scale: ops.KernelOperator,
) -> None:
    x = torch.ones(8, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = scale(x, 1.0)
    graph.replay()
    results = []
    with devices.sim.faults(reorder="late"):
        for factor in range(5):
            graph.update({"scale.0.factor": float(factor)})
            graph.replay()
            results.append(y.clone())
    assert [result[0].item() for result in results] == [0, 1, 2, 3, 4]


def test_a_grid_that_an_update_changes_is_the_new_one() -> None:
    op = ops.kernel_op(
        "devices_values::first(Tensor(a!) out, int n) -> ()",
        source=source(
            HEAD
            + "BRINGUP_EXPORT void first(const bringup_position* at, int64_t* out, int64_t n) {"
            " out[at->block_idx.x] = n; }"
        ),
        entry="first",
        kind="device",
        args="ptr(out), n",
        grid="n",
        block=1,
    )
    out = torch.zeros(6, dtype=torch.int64, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        op(out, 2)
    for count in (4, 1, 3):
        out.zero_()
        graph.update({"first.0.n": count})
        graph.replay()
        assert out.tolist() == [count] * count + [0] * (6 - count)
    with pytest.raises(UpdateError, match="must be from 1 to"):
        graph.update({"first.0.n": 0})
    graph.replay()
    assert out.tolist() == [3, 3, 3, 0, 0, 0]


def test_a_refused_update_changes_nothing(scale: ops.KernelOperator) -> None:
    x = torch.ones(8, device="npu")
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = scale(x, 1.0)
    with devices.sim.faults(fail="graph_update_values", fail_count=1) as faults:
        graph.update({"scale.0.factor": 4.0})
        with pytest.raises(RuntimeError, match="injected"):
            graph.replay()
        graph.replay()
    assert faults.count == 1
    assert y.tolist() == [4.0] * 8


def test_a_driver_with_launch_values_alone_has_captured_graphs(
    fresh_python: Callable[..., str], build_driver: Callable[..., Path]
) -> None:
    code = """
import sys, torch
from bringup import devices, graphs, jit, ops
devices.load_driver(sys.argv[1])
op = ops.kernel_op(
    "v::scale(Tensor x, float factor) -> Tensor", entry="scale", kind="device", block=8,
    source=jit.Source(text=sys.argv[2], name="k.cpp"),
    args="ptr(out), ptr(x), numel(x), f32(factor)", grid="4", outputs=ops.empty_like("x"))
x = torch.ones(20, device=devices.loaded().device_name)
graph = graphs.CapturedGraph()
with graphs.capture(graph):
    y = op(x, 3.0)
x.fill_(2)
graph.replay()
print(y.sum().item())
"""
    assert fresh_python(code, str(build_driver(source="values")), SCALE) == "120.0"


def test_a_capture_that_the_driver_refuses_leaves_nothing_behind(
    scale: ops.KernelOperator,
) -> None:
    x = torch.ones(8, device="npu")
    graph = graphs.CapturedGraph()
    with (
        devices.sim.faults(fail="graph_add_values"),
        pytest.raises(RuntimeError, match="injected"),
        graphs.capture(graph),
    ):
        scale(x, 2.0)
    assert scale(x, 2.0).tolist() == [2.0] * 8
