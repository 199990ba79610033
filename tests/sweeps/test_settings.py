"""Every setting with a wrong value, an empty one, and a folder that cannot be used: one sentence
that names the variable, and no traceback on the command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sweeps.support import sized

from bringup import settings
from bringup.cli import main
from bringup.errors import SettingError

NAMES = [row["variable"] for row in settings.table()]
# What each of them cannot mean. A text that names something (a driver, a compiler, a URL) is read
# as it stands, and is wrong only when that is looked for.
WRONG = {
    "BRINGUP_CACHE_DIR": ["~nobody-of-this-name/x"],
    "BRINGUP_CACHE_MAX_BYTES": ["banana", "-1", "2T", "1e9", "١"],
    "BRINGUP_CACHE_MAX_ENTRIES": ["banana", "-1", "1.5", "²"],
    "BRINGUP_CACHE_REMOTE": [],
    "BRINGUP_CACHE_REMOTE_TIMEOUT": ["banana", "0", "-1", "nan", "inf"],
    "BRINGUP_JIT_CXX": [],
    "BRINGUP_JIT_DEBUG": ["banana", "assembly,banana"],
    "BRINGUP_JIT_TIMEOUT": ["banana", "0", "-1", "nan", "inf"],
    "BRINGUP_JIT_MEMORY": ["banana", "-1", "2T"],
    "BRINGUP_JIT_FILE_SIZE": ["banana", "-1", "2T"],
    "BRINGUP_JIT_PROGRESS": ["banana", "2"],
    "BRINGUP_JIT_AUTOTUNE": ["banana", "2"],
    "BRINGUP_DRIVER": [],
    "BRINGUP_WAIT_TIMEOUT": ["banana", "0", "-1", "nan", "inf"],
    "BRINGUP_WAIT_ABORT": ["banana", "2"],
    "BRINGUP_COLLECTIVES": ["banana", "1", "nccl"],
    "BRINGUP_DRIVER_PROBE": ["banana", "2"],
    "BRINGUP_FALLBACK": ["banana", "aten::mm=banana", "mm=allow", "=allow", "allow=warn"],
    "BRINGUP_DRIVER_TRACE": ["~nobody-of-this-name/x"],
    "BRINGUP_DRIVER_TRACE_PAYLOAD": ["banana", "2"],
    "BRINGUP_DRIVER_TRACE_LIMIT": ["banana", "-1", "2T"],
    "BRINGUP_DISPATCH_TRACE": ["banana", "2", "~nobody-of-this-name/x.json"],
    "BRINGUP_DOWNCAST_FLOAT64": ["banana", "0", "float32"],
    "BRINGUP_PASS_PATH": ["~nobody-of-this-name/x"],
    "ASCEND_GE_PY_PASS_PATH": ["~nobody-of-this-name/x"],
    "BRINGUP_PASS_SWITCH": ["banana", "Name:maybe", ":on", "/none/of/these.json"],
    "BRINGUP_PASS_LIBRARY": ["banana", "2"],
    "BRINGUP_FREEZE": ["banana", "2"],
    "BRINGUP_CAPTURE": ["banana", "2"],
    "BRINGUP_CAPTURE_MEMORY": ["banana", "-1", "2T"],
    "BRINGUP_PASS_VERIFY": ["banana", "2"],
    "BRINGUP_PASS_DUMP": ["~nobody-of-this-name/x"],
    "BRINGUP_PASS_LIMIT": ["banana", "-1", "²"],
    "BRINGUP_OPS_PATH": ["~nobody-of-this-name/x"],
    "BRINGUP_DRIVER_PATH": ["~nobody-of-this-name/x"],
    "BRINGUP_NATIVE": ["banana", "2"],
    "BRINGUP_LOG": ["banana", "jit:banana", "jit:", "jit:json:x"],
    "BRINGUP_LAUNCH_BLOCKING": ["banana", "2"],
    "BRINGUP_OPS_DEBUG": ["banana", "2"],
    "BRINGUP_OPS_POOL": ["banana", "2"],
    "BRINGUP_SIM_MEMORY": ["banana", "-1", "2T"],
    "BRINGUP_SIM_ISOLATED": ["banana", "2"],
    "BRINGUP_SIM_RECORDS": ["banana", "-1", "1.5"],
    "BRINGUP_SIM_FAULTS": [],
    "BRINGUP_SIM_ARCHS": [],
    "BRINGUP_SIM_HOST_CODE": ["banana", "2"],
    "BRINGUP_GRAPH_OPTIMIZE": ["banana", "3", "-1"],
    "BRINGUP_GRAPH_VERIFY": ["banana", "-1", "1.5"],
}
CASES = [(name, text) for name in NAMES for text in WRONG.get(name, ["banana"])]


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        if name != "BRINGUP_CACHE_DIR":
            monkeypatch.delenv(name, raising=False)


def problems() -> dict[str, str]:
    return {row["variable"]: row["problem"] for row in settings.table() if row["problem"]}


@pytest.mark.parametrize(("name", "text"), CASES)
def test_a_wrong_value_is_one_sentence_that_names_the_variable(
    name: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    sweep_counts: Counter[str],
) -> None:
    monkeypatch.setenv(name, text)
    assert list(problems()) == [name]
    assert problems()[name].startswith(f"{name}={text!r}: ")
    assert "\n" not in problems()[name]
    with pytest.raises(SettingError, match=name):
        settings.check()
    assert main(["cache", "ls"]) == 1
    shown = capfd.readouterr()
    assert shown.err.splitlines()[0] == f"SettingError: {problems()[name]}"
    assert "Traceback" not in shown.err
    sweep_counts["wrong values"] += 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_value_is_the_default_or_wrong_and_never_something_else(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, sweep_counts: Counter[str]
) -> None:
    def value() -> object:
        return next(one for one in settings.ALL if one.variable == name)()

    monkeypatch.delenv(name, raising=False)
    default = value()
    monkeypatch.setenv(name, text)
    assert value() == default
    sweep_counts["empty values"] += 1


COMPILE = """
from bringup import jit
jit.compile(jit.Source(text="int run(void) { return 0; }", name="k.c"))
"""
REPORT = "import sys; from bringup import passes, ops; sys.exit(str({}().errors))"
COMPILED = """
import torch
torch.compile(lambda x: torch.nn.functional.rms_norm(x, (8,)), backend="bringup")(torch.ones(2, 8))
"""
# What uses the place that a variable names, and whether the process then ends in an error.
USES = {
    "BRINGUP_CACHE_DIR": (COMPILE, False),  # kernels are kept elsewhere
    "BRINGUP_CACHE_REMOTE": (COMPILE, False),
    "BRINGUP_DRIVER": ("from bringup import devices; devices.load_driver()", True),
    "BRINGUP_DRIVER_PATH": ("from bringup import devices; devices.load_driver('nothing')", True),
    "BRINGUP_JIT_CXX": (COMPILE, True),
    "BRINGUP_PASS_PATH": (REPORT.format("passes.load_pass_plugins"), True),
    "ASCEND_GE_PY_PASS_PATH": (COMPILED, False),  # compiled with the passes that there are
    "BRINGUP_PASS_SWITCH": (COMPILED, True),
    "BRINGUP_PASS_DUMP": (COMPILED, True),
    "BRINGUP_OPS_PATH": (REPORT.format("ops.load_op_plugins"), True),
}
# In whatever folders the superuser may write, too.
WITHOUT_RIGHTS = ["--bounding-set=-dac_override,-dac_read_search"]
WITHOUT_RIGHTS += ["--inh-caps=-dac_override,-dac_read_search"]
SETPRIV = ["setpriv", *WITHOUT_RIGHTS] if os.geteuid() == 0 else []


def said(code: str, **variables: str) -> tuple[int, str]:
    """How a process that runs this code ends, and what it says last."""
    done = subprocess.run(
        [*SETPRIV, sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture(params=["inside a file", "without rights"])
def unusable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A place that nothing can be read from or written to."""
    if request.param == "inside a file":
        (tmp_path / "unusable").write_text("")
        yield tmp_path / "unusable" / "inside"
    else:
        folder = tmp_path / "unusable"
        folder.mkdir(0o000)
        yield folder / "inside"
        folder.chmod(0o700)


@pytest.mark.parametrize("name", list(USES)[: sized(2, len(USES))])
def test_a_place_that_cannot_be_used_is_told_with_its_variable(
    name: str, unusable: Path, tmp_path: Path, sweep_counts: Counter[str]
) -> None:
    code, fails = USES[name]
    url = "file://" if name == "BRINGUP_CACHE_REMOTE" else ""
    cache = {"BRINGUP_CACHE_DIR": str(tmp_path / "cache")}
    status, words = said(code, **{**cache, name: f"{url}{unusable}"})
    told = [line for line in words.splitlines() if name in line and "unusable" in line]
    assert told, words
    assert status == fails, words
    sweep_counts["places that cannot be used"] += 1


def test_every_setting_is_swept() -> None:
    assert set(NAMES) == set(WRONG)
