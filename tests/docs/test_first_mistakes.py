"""What goes wrong first on each of the three ways: the pages say what the message is about."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.forked_python import DYNAMO, run_forked

DOCS = Path(__file__).parents[2] / "docs"
ATTEMPT = """
import json, logging, shutil, sys, torch
said = []
def attempt(action):
    try:
        action()
        said.append("")
    except Exception as error:
        said.append(f"{type(error).__name__}: {error}")
"""
PROGRAMS = {
    "devices/first-driver.md": """
from bringup import _native, devices
attempt(lambda: torch.ones(2, device="npu"))
attempt(lambda: devices.load_driver("simulator"))
attempt(lambda: devices.load_driver("build/libmine.so"))
attempt(lambda: devices.load_driver(_native.library_dir() / "libbringup_engine.so"))
devices.load_driver("sim")
shutil.copy(_native.sim_driver_path(), "libother.so")
attempt(lambda: devices.load_driver("./libother.so"))
attempt(lambda: torch.ones(2, device="npu") + torch.ones(2))
""",
    "ops/c-function.md": """
from bringup import ops
code = "void scale(float* out, const float* x, long n, float by) "
code += "{ for (long i = 0; i < n; ++i) out[i] = x[i] * by; }"
open("scale.c", "w").write(code)
open("wrong.c", "w").write(code.replace("out[i]", "ot[i]"))
def call(source="scale.c", entry="scale", args="ptr(out), ptr(x), numel(x), by", x=torch.ones(2)):
    name = f"first_mistakes::scale_{len(said)}(Tensor x, float by) -> Tensor"
    scale = ops.kernel_op(name, source=source, entry=entry, args=args, outputs=ops.empty_like("x"))
    scale(x, 2.0)
attempt(lambda: call(source="scael.c"))
attempt(lambda: call(entry="scal"))
attempt(lambda: call(args="ptr(out), ptr(x), numel(x)"))
attempt(lambda: call(args="ptr(out), ptr(x), by, numel(x)"))
attempt(lambda: call(x=torch.ones(2, dtype=torch.float64)))
attempt(lambda: call(args=None))
attempt(lambda: call(source="wrong.c"))
""",
    "serve.md": """
from bringup import graphs
model = torch.nn.Linear(8, 8).eval()
x = torch.ones(3)
def compiled(**options):
    return torch.compile(model, backend="bringup", **options)
def captured():
    with torch.no_grad(), graphs.capture(graphs.CapturedGraph()):
        x * x.sum().item()
attempt(lambda: compiled(mode="server"))
attempt(lambda: compiled(options={"freze": True}))
attempt(lambda: compiled(mode="serve", options={"freeze": True}))
attempt(captured)
warned = []
logging.getLogger("bringup.compiler").handle = lambda record: warned.append(record.getMessage())
compiled(mode="serve")(torch.ones(2, 8))
torch._dynamo.reset()
model.train()
with torch.no_grad():
    compiled(mode="serve")(torch.ones(2, 8))
said += warned
""",
}


def mistakes(page: str) -> list[str]:
    """Return what the messages of a page's table have in them, row by row."""
    section = (DOCS / page).read_text().partition("## When it does not work\n")[2]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    return [re.sub(r"[`*]", "", row[2]).strip() for row in rows[1:]]


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_message_of_each_mistake_is_the_one_of_the_page(page: str, tmp_path: Path) -> None:
    program = f"{ATTEMPT}{PROGRAMS[page]}print(json.dumps(said))"
    done = run_forked(program, folder=tmp_path, preload=DYNAMO)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    expected = mistakes(page)
    assert len(expected) == len(said) >= 5
    for words, message in zip(expected, said, strict=True):
        parts = words.split(" ... ")
        assert all(part in " ".join(message.split()) for part in parts), f"{words}\n{message}"
