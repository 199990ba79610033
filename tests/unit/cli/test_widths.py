"""What each command prints can be read in 80 and in 120 columns: no line is longer, and no word
that matters is folded or cropped. Not here: `demo` and `try`, which take long; `config`,
`driver trace` and `driver replay`, which print no table.
"""

from __future__ import annotations

import functools
import json

import pytest
from tests.forked_python import DYNAMO, run_forked

PROGRAM = '''
import contextlib, io, json, os, shlex, sys, tempfile
from pathlib import Path
from bringup import jit
from bringup.cli import main

shared, folder = os.environ.get("BRINGUP_CACHE_DIR"), tempfile.mkdtemp()
os.chdir(folder)
sys.path.insert(0, folder)
Path("wide_model.py").write_text("""
import torch
def make():
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)
    return torch.nn.Sequential(*layers).eval(), torch.randn(4, 8)
def gelu(x, bias):
    return torch.nn.functional.gelu(x + bias)
def linear():
    return torch.nn.Linear(8, 16).requires_grad_(False), torch.randn(4, 8)
""")
import torch, wide_model
model, x = wide_model.make()
torch.export.save(torch.export.export(model, (x,)), "wide.pt2")
specs = [jit.Spec(jit.Source(text='extern "C" int run() { return %d; }' % n, name="wide.cpp"))
         for n in (1, 2)]
jit.save_specs("specs.json", specs)
keys = {}
found = []
for width, command in json.loads(sys.argv[1]):
    os.environ["COLUMNS"] = str(width)
    if command.startswith("cache"):
        os.environ["BRINGUP_CACHE_DIR"] = folder + "/cache"
        entries = jit.Cache(Path(folder, "cache")).entries()
        keys = {name: entry.key for name, entry in zip("ab", entries)} or {"a": "", "b": ""}
    elif shared:
        os.environ["BRINGUP_CACHE_DIR"] = shared
    printed = io.StringIO()
    words = shlex.split(command.format(**keys, width=width))
    with contextlib.redirect_stdout(printed):
        code = main(words)
    found.append((int(code), printed.getvalue().replace(folder, "")))
print(json.dumps(found))
'''

# What is run, in this order: words that stand whole in what it prints, and its exit code.
COMMANDS = {
    "doctor": ("Nothing is missing. | torch", 0),
    "doctor --settings": ("BRINGUP_CACHE_REMOTE_TIMEOUT", 0),
    "doctor --op aten::add.Tensor --driver sim": ("PrivateUse1", 0),
    "doctor --stubs": ("REGISTER_PRIVATEUSE1_DISPATCH(stub, &function) | not exported", 0),
    "check bringup::rms_norm --in-process --skip compile --skip dtypes": ("pass | schema", 0),
    "bench bringup::bias_gelu --against wide_model:gelu --no-inductor --seconds 0 --shapes 4x512": (
        "of the memory peak at | eager | 4x512 | GB/s",
        0,
    ),
    "passes list": ("on | LibraryCollapseViews | AfterInferShape | -18", 0),
    "passes explain wide_model:make": ("passes changed it | LibraryPackLinear | changed", 0),
    "passes explain wide_model:make --all": ("LibraryMergeProjections | unchanged", 0),
    "passes mine wide_model:make": ("", 3),
    "compile wide.pt2 -o out.pt2": ("; no pass changed it", 3),
    "compile wide.pt2 -o out.pt2 --decompose": ("LibraryPackLinear | changed", 0),
    "driver check --list": ("memory.addresses | mem_alloc", 0),
    "driver check sim --only fills": ("0 fail, 3 pass, 0 skipped | fill_async×", 0),
    "coverage wide_model:make --no-operators": ("native_layer_norm_backward | fallback", 0),
    "coverage wide_model:linear": ("100% of the FLOPs | addmm | native | [4,8]", 0),
    "compare wide_model:make --no-operators": ("No operator is wrong | output 0 | equal", 0),
    "conformance --level 0 --filter driver/fills*": ("driver functions | skipped", 0),
    "cache prebuild specs.json": ("2 ", 0),
    "cache ls": ("2 kernels", 0),
    "cache show {a}": ("folder", 0),
    "cache why {a} {b}": ("source", 0),
    "cache export {width}.bundle": ("2 kernels in", 0),
    "cache import {width}.bundle": ("2 kernels of", 0),
    "cache prune": ("0 kernels removed", 0),
    "cache clear": ("2 kernels removed", 0),
    "new kernel wide{width}": ("Next: cd", 0),
    "new pass pass{width}": ("Next: cd", 0),
    "new driver driver{width}": ("Next: cd", 0),
}
WIDTHS = (80, 120)
TO_COPY = ("Next: ", "  /")  # commands and paths, which are not broken into lines


@functools.cache
def printed() -> dict[tuple[int, str], tuple[int, str]]:
    """Return the exit code and the output of each command at each width, of one process."""
    asked = [(width, command) for width in WIDTHS for command in COMMANDS]
    done = run_forked(PROGRAM, json.dumps(asked), preload=DYNAMO)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    return {key: tuple(result) for key, result in zip(asked, results, strict=True)}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_result_can_be_read(command: str, width: int) -> None:
    words, expected = COMMANDS[command]
    code, text = printed()[width, command]
    assert code == expected, text
    assert [word for word in words.split(" | ") if word not in text] == []
    rows = [line for line in text.splitlines() if not line.startswith(TO_COPY)]
    assert [row for row in rows if len(row) > width] == []
