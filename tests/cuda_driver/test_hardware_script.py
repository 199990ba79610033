"""tools/cuda_on_hardware.py on the library in the place of libcuda, which runs few kernels: its
programs are right where they can run, and its table says what did not hold.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.forked_python import output_of
from tests.tool_module import tool_module

from bringup import jit

script = tool_module("cuda_on_hardware")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("operator", "as on the CPU"),
        ("fills", "1,000 of random sizes, places and dtypes: as on the CPU"),
        ("failing kernel", "the launch raises, and names the operator: bringup_hardware::wild"),
        ("GPT", "losses equal the CPU's to the bit"),
    ],
)
def test_a_program_of_the_script_holds(name: str, told: str, package: Path) -> None:
    if problem := jit.toolchain("cuda", kind="device").problem:
        pytest.skip(problem)
    variables = {"BRINGUP_LAUNCH_BLOCKING": "1"} if name == "failing kernel" else {}
    found = f"import sys; sys.path.insert(0, {str(package)!r})\n"
    assert output_of(found + script.program_of(name), **variables).startswith(told)


def test_the_table_has_a_row_for_each_step_also_for_those_that_fail(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(name: str, text: str, seconds: float = 20) -> object:
        return script.Step(name, (sys.executable, "-Sc", text), seconds)

    steps = [
        step("good", "print('no'); print('a | b'); print()"),
        step("bad", "print('no'); raise SystemExit('why')"),
        step("silent", "raise SystemExit(3)"),
        step("absent", "raise SystemExit('skipped: nothing there')"),
        step("late", "import time; time.sleep(20)", 0.2),
    ]
    monkeypatch.setattr(script, "steps_in", lambda folder: steps)
    monkeypatch.setattr(sys, "argv", ["cuda_on_hardware", str(tmp_path / "table.md")])
    monkeypatch.setattr(sys, "path", [str(package), *sys.path])
    monkeypatch.delitem(sys.modules, "bringup_cuda", raising=False)
    assert script.main() == 3
    first, _, head, _, *rows = (tmp_path / "table.md").read_text().splitlines()
    machine = r"1 x Recorded GPU \(nv-sm_90, CUDA 13\.0\), torch \S+, \d{4}-\d\d-\d\d:"
    assert re.match(machine, first)
    assert head == "| what | result |"
    assert [row.rpartition(" (")[0] for row in rows] == [
        r"| good | holds: a \| b",
        "| bad | fails: why",
        "| silent | fails: exit status 3",
        "| absent | skipped: skipped: nothing there",
        "| late | fails: no end within 0 s",
    ]


def test_steps_fit_into_their_time_and_hide_no_module(tmp_path: Path) -> None:
    steps = script.steps_in(tmp_path)
    assert {Path(step.command[1]).stem for step in steps}.isdisjoint(sys.stdlib_module_names)
    assert {"driver check", "GPT", "replay", "tests/cuda"} < {step.name for step in steps}
    assert script._run(steps[0], 0.0) == ("skipped", "no time was left")
    assert script._SECONDS < 600
