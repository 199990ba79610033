"""Kernel operators without the library that links libtorch: defined and traced as always, and one
sentence where a kernel would run.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from tests.forked_python import DYNAMO, run_forked

PLUGIN = """
import torch
from bringup import jit, ops

KERNEL = '''
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) { return 0; }
'''
twice = ops.kernel_op("without::twice(Tensor x) -> Tensor", outputs=ops.empty_like("x"),
                      source=jit.Source(text=KERNEL, name="k.cpp"))
back = ops.kernel_op("without::back(Tensor grad) -> Tensor", outputs=ops.empty_like("grad"),
                     source=jit.Source(text=KERNEL, name="k.cpp"))
twice.register_backward("without::back")
twice.register_jvp(lambda ctx, tangent: tangent)
"""

PROGRAM = """
import copy, json, pickle, sys
import torch
from bringup import jit, ops
from bringup.errors import NativeLibraryError
from torch.fx.experimental.proxy_tensor import make_fx

sys.path.insert(0, sys.argv[1])
report = ops.load_op_plugins()
from operators import KERNEL, twice

said = {"loaded": sorted(sum(report.loaded.values(), ())), "errors": [*map(str, report.errors)]}
x = torch.ones(3)

def refusal(use):
    try:
        return str(use())
    except NativeLibraryError as error:
        return str(error)

compiled = torch.compile(lambda x: twice(x) + 1, backend="aot_eager", fullgraph=True)
said["refused"] = [refusal(use) for use in (
    lambda: twice(x),
    lambda: torch.ops.without.twice(x),
    lambda: twice(x.clone().requires_grad_()),
    lambda: compiled(x),
    lambda: torch.func.vmap(twice)(torch.ones(2, 3)),
    lambda: torch.func.jvp(twice, (x,), (x,)),
)]
said["meta"] = str(twice(torch.ones(2, 3, device="meta")).shape)
said["traced"] = str(make_fx(lambda x: twice(x), tracing_mode="fake")(x).graph)
said["same"] = pickle.loads(pickle.dumps(twice)) is twice and copy.deepcopy(twice) is twice
said["facts"] = [twice.qualified_name, twice.schema, twice.__text_signature__]
try:
    twice(3)
except RuntimeError as error:
    said["wrong"] = str(error)
twice.register_kernel("cpu")(lambda x: x * 2)
said["own kernel"] = twice(x).tolist()
twice.undefine()
said["gone"] = refusal(lambda: hasattr(torch.ops.without, "twice"))
print(json.dumps(said))
"""

MODEL = """
import json
import torch
from bringup import compiler

def model(x, weight):
    return torch.nn.functional.gelu(torch.nn.functional.rms_norm(x, (8,), weight) @ weight)

x, weight = torch.randn(4, 8), torch.randn(8)
compiled = torch.compile(model, backend="bringup")
with torch.no_grad():
    torch.testing.assert_close(compiled(x, weight), model(x, weight))
print(json.dumps([result.name for result in compiler.last_report().results]))
"""


def without_library(program: str, *arguments: str, **environment: str) -> Any:
    """What a program prints as JSON in such a process, which says once in which mode it is."""
    variables = {**os.environ, "BRINGUP_NATIVE": "0", **environment}
    done = run_forked(program, *arguments, environment=variables, preload=DYNAMO)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("bringup runs without its native torch library") == 1, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process says that loads a plugin with operators and uses them."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "operators.py").write_text(PLUGIN)
    found: dict[str, Any] = without_library(PROGRAM, str(folder), BRINGUP_OPS_PATH=str(folder))
    return found


def test_a_module_that_defines_operators_is_imported_and_its_plugin_loads(
    said: dict[str, Any],
) -> None:
    assert (said["loaded"], said["errors"]) == (["without::back", "without::twice"], [])
    assert said["facts"] == ["without::twice", "without::twice(Tensor x) -> Tensor", "(x)"]
    assert said["same"]


def test_every_call_that_would_run_the_kernel_says_what_is_missing_why_and_what_to_do(
    said: dict[str, Any],
) -> None:
    sentence = (
        "without::twice needs bringup's native torch library, and this process runs without it: "
        "BRINGUP_NATIVE=0 asks for that (`bringup doctor` says how to get it)"
    )
    assert said["refused"] == [sentence] * 6


def test_what_runs_no_kernel_works(said: dict[str, Any]) -> None:
    """Shapes, traces, the schema's errors, and a kernel of one's own in Python."""
    assert said["meta"] == "torch.Size([2, 3])"
    assert "torch.ops.without.twice.default" in said["traced"]
    assert "but expected" in said["wrong"] or "Expected" in said["wrong"]
    assert said["own kernel"] == [2.0, 2.0, 2.0]
    assert said["gone"] == "False"


def test_a_compiled_model_does_without_the_shipped_passes() -> None:
    """What they put into a graph are kernel operators."""
    assert not [name for name in without_library(MODEL) if name.startswith("Library")]
