"""What device code with plain values says of calls that it cannot compute: fault() in `args=`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.forked_python import ROOT, output_of

from bringup import graphs, jit, ops
from bringup.errors import KernelError, SchemaError

PICK = """
#include "bringup/device.h"
BRINGUP_EXPORT void pick(const bringup_position* at, float* out, const float* x,
                         const int64_t* index, int64_t n, int64_t size, int32_t* fault) {
  const int64_t i = (int64_t)at->block_idx.x * at->block_dim.x + at->thread_idx.x;
  if (i >= n) return;
  if (index[i] < 0) *fault = 1;
  else if (index[i] >= size) *fault = 2;
  else out[i] = x[index[i]];
}
"""
ARGS = (
    "ptr(out), ptr(x), ptr(index), numel(index), numel(x), "
    "fault('index: it has a negative element', 'index: an element is beyond x')"
)


def define(name: str, args: str = ARGS, **options: object) -> ops.KernelOperator:
    settings: dict[str, object] = {"kind": "device", "grid": 2, "block": 8, **options}
    return ops.kernel_op(
        f"fault_words::{name}(Tensor x, Tensor index) -> Tensor",
        source=jit.Source(text=PICK, name="pick.cpp"),
        entry="pick",
        args=args,
        outputs=ops.empty("index.shape[0]", dtype="x"),
        checks=[ops.rank("x", 1), ops.rank("index", 1)],
        redefine=True,
        **settings,
    )


@pytest.fixture(scope="module")
def pick() -> ops.KernelOperator:
    return define("pick")


def indices(*values: int, device: str = "npu") -> torch.Tensor:
    return torch.tensor(values, device=device)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(4.0, device="npu")


def test_each_rule_is_said_where_somebody_waits_and_once(
    pick: ops.KernelOperator, x: torch.Tensor
) -> None:
    for index, rule in ((-1, "index: it has a negative element"), (4, "an element is beyond x")):
        pick(x, indices(0, index))
        with pytest.raises(KernelError, match=f"operator 'fault_words::pick' failed .*{rule}"):
            torch.npu.synchronize()
        torch.npu.synchronize()
        assert pick(x, indices(3, 0)).tolist() == [3, 0]


def test_on_the_host_it_is_raised_where_it_was_called(pick: ops.KernelOperator) -> None:
    x = torch.arange(4.0)
    assert pick(x, indices(2, device="cpu")).tolist() == [2]
    with pytest.raises(KernelError, match=r"fault_words::pick.*beyond x"):
        pick(x, indices(4, device="cpu"))


@pytest.mark.parametrize("wait", ["cpu", "item", "stream", "event", "event of another stream"])
def test_every_wait_tells_of_it(pick: ops.KernelOperator, x: torch.Tensor, wait: str) -> None:
    stream = torch.npu.current_stream()
    out = pick(x, indices(4))
    event = stream.record_event()
    other = torch.Stream("npu")
    waits = {
        "cpu": out.cpu,
        "item": out.item,
        "stream": stream.synchronize,
        "event": event.synchronize,
        "event of another stream": lambda: (other.wait_event(event), other.synchronize()),
    }
    with pytest.raises(RuntimeError, match="an element is beyond x"):
        waits[wait]()
    torch.npu.synchronize()


def test_several_operators_that_failed_are_all_named(x: torch.Tensor) -> None:
    beyond, negative = indices(4), indices(-1)
    define("one")(x, beyond)
    define("two")(x, negative)
    with pytest.raises(KernelError, match=r"'fault_words::one' .*beyond x; .*::two' .* negative"):
        torch.npu.synchronize()


def test_a_replay_of_a_captured_graph_tells_of_it(
    pick: ops.KernelOperator, x: torch.Tensor
) -> None:
    index = indices(0, 1)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        out = pick(x, index)
    graph.replay()
    assert out.tolist() == [0, 1]
    index.copy_(indices(4, 1))
    graph.replay()
    with pytest.raises(RuntimeError, match=r"fault_words::pick.*an element is beyond x"):
        out.cpu()
    index.copy_(indices(3, 1))
    graph.replay()
    assert out.tolist() == [3, 1]


def test_a_reset_forgets_it(pick: ops.KernelOperator, x: torch.Tensor) -> None:
    pick(x, indices(4))
    torch.npu.reset_device()
    torch.npu.synchronize()


def test_what_no_launch_can_give_is_refused_at_definition() -> None:
    for args, words in (
        (ARGS.replace("fault('index: it has a negative element', '", "fault(7, '"), "takes texts"),
        (f"{ARGS}, fault('again')", "stands once"),
        (ARGS.partition("fault")[0] + "fault('a') + 1", "is no whole number"),
    ):
        with pytest.raises((SchemaError, ValueError), match=words):
            define("refused", args)
    with pytest.raises((SchemaError, ValueError), match="device code with block="):
        define("refused", kind="host", grid=None, block=None)


COPIES = """
import json
import sys
import torch
from bringup import devices
devices.load_driver("sim")
from tests.unit.devices.test_fault_words import define, indices
pick = define("traced")
x, index, y = torch.arange(4.0, device="npu"), indices(1, 2), torch.ones(3, device="npu")

def copies(work):
    before = sum('"copy_async"' in line for line in open(sys.argv[1]))
    work()
    torch.npu.synchronize()
    torch.npu.synchronize()
    return sum('"copy_async"' in line for line in open(sys.argv[1])) - before

copies(lambda: pick(x, index))
print([copies(work) for work in (lambda: None, lambda: pick(x, index), lambda: y.fill_(2))])
"""


def test_a_wait_copies_words_only_behind_kernels_that_may_fail(tmp_path: Path) -> None:
    trace = tmp_path / "calls.trace"
    said = output_of(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{COPIES}",
        str(trace),
        BRINGUP_DRIVER_TRACE=str(trace),
        BRINGUP_SIM_ISOLATED="1",
    )
    assert said.splitlines()[-1] == "[0, 1, 0]"
