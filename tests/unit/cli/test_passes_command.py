"""`bringup passes list | explain | bisect`: what they say, and their exit codes."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bringup import cli, passes
from bringup.kernels.patterns import LIBRARY

PASSES = """
from bringup import ir, passes

def swap(name, old, new, **settings):
    @passes.register_decompose_pass(
        name=name, stage=passes.PassStage.AFTER_INFER_SHAPE, op_types=[old], **settings
    )
    class Swap(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            (x,) = builder.create_inputs(1)
            return new(builder.op, x)

swap("Right", "aten::relu", lambda op, x: op("aten::clamp_min", x, 0), priority=5, version="2")
swap("Absent", "aten::erf", lambda op, x: op("aten::neg", x))
"""

WRONG = """
swap("Wrong", "aten::tanh", lambda op, x: op("aten::sigmoid", x))
"""

FACTORY = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.tanh(torch.relu(torch.relu(x) + 1))

def make():
    return Model(), torch.linspace(-2, 2, 8)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("BRINGUP_PASS_PATH", raising=False)
    monkeypatch.delenv("ASCEND_GE_PY_PASS_PATH", raising=False)
    passes.shutdown()
    (tmp_path / "mine.py").write_text(PASSES)
    (tmp_path / "explained_model.py").write_text(FACTORY)
    yield tmp_path
    passes.shutdown()


def run(*arguments: str) -> int:
    return cli.main(["passes", *arguments])


def test_list_shows_every_pass_with_its_switch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRINGUP_PASS_SWITCH", "Absent:off")
    assert run("list", "--path", "mine.py", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    rows = [(row["pass_name"], row["version"], row["on"]) for row in found["passes"]]
    assert rows[:2] == [("Right", "2", True), ("Absent", "1", False)]
    assert [name for name, _, _ in rows[2:]] == [f"Library{item.__name__}" for item in LIBRARY]
    assert run("list", "--path", "mine.py") == 0
    assert "Registered passes" in capsys.readouterr().out


def test_list_of_a_broken_plugin_exits_3_and_shows_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text("raise OSError('no luck')")
    assert run("list", "--path", "mine.py", "--path", "broken.py") == 1
    output = capsys.readouterr()
    assert "Right" in output.out
    assert "raised OSError: no luck" in output.err


def test_explain_shows_matches_and_the_near_miss_of_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = "explained_model:make"
    assert run("explain", target, "--path", "mine.py", "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"Absent", "LibraryRmsNorm"} <= set(found["unmatched"])
    (graph,) = found["graphs"]
    right, absent, *library = graph["passes"]
    assert [row["name"] for row in library] == [f"Library{item.__name__}" for item in LIBRARY]
    assert (right["name"], right["matches"], right["status"]) == ("Right", 2, "changed")
    assert absent["near_misses"][0]["reason"] == "the graph has no aten::erf"
    assert run("explain", target, "--path", "mine.py") == 0
    shown = capsys.readouterr().out
    assert "1 pattern needs aten::erf\n" in shown
    assert "Absent" not in shown
    assert "0 of " not in shown
    assert run("explain", target, "--path", "mine.py", "--all") == 0
    assert "Absent: aten::erf: the graph has no aten::erf" in capsys.readouterr().out
    assert run("explain", target, "--path", "mine.py", "--pass", "Right@2") == 0
    assert run("explain", target, "--path", "mine.py", "--pass", "Right", "--pass", "Absent") == 3


def test_explain_names_the_pass_that_took_an_operator_and_shows_the_nearest_miss_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = """
swap("Late", "aten::relu", lambda op, x: op("aten::neg", x), priority=1)

@passes.register_fusion_pass(name="Near", stage=passes.PassStage.AFTER_INFER_SHAPE, priority=1)
class Near(passes.PatternFusionPass):
    @passes.pattern
    def far(self, inputs):
        op = inputs[0].builder.op
        return op("aten::tanh", op("aten::exp", op("aten::exp", inputs[0])))

    @passes.pattern
    def near(self, inputs):
        op = inputs[0].builder.op
        return op("aten::tanh", op("aten::clamp_min", inputs[0], 7))

    def replacement(self, inputs):
        return inputs[0]
"""
    (folder / "mine.py").write_text(PASSES + later)
    assert run("explain", "explained_model:make", "--path", "mine.py", "--html", "page.html") == 0
    page = html.unescape((folder / "page.html").read_text())
    assert " passes changed it" in page
    assert page.index("Near: near, 2 of 2") < page.index("Near: far, 1 of 3")
    shown = capsys.readouterr().out
    assert "1 pattern needs aten::relu (taken by Right)\n" in shown
    near, far = shown.index("  Near: near, 2 of 2"), shown.index("  Near: far, 1 of 3")
    assert near < far
    assert "expected 7, got 0" in shown


def test_a_page_of_explain_has_the_graph_before_and_after(folder: Path) -> None:
    assert run("explain", "explained_model:make", "--path", "mine.py", "--html", "page.html") == 0
    before, after = re.findall(
        '<svg width="360".*?</svg>', (folder / "page.html").read_text(), re.S
    )
    words = [re.findall(r'fill="([^"]+)">([^<]+)</text>', one) for one in (before, after)]
    assert [(name, "went" in fill) for fill, name in words[0]] == [
        ("aten::relu  relu", True),
        ("aten::add.Tensor  add", False),
        ("aten::relu  relu_1", True),
        ("aten::tanh  tanh", False),
        ("... 1 more", False),
    ]
    assert [name for fill, name in words[1] if "came" in fill] == [
        "aten::clamp_min  clamp_min",
        "aten::clamp_min  clamp_min_1",
    ]
    assert before.count("<path") == after.count("<path") == 3
    assert not list(folder.glob("*.txt"))


def test_explain_without_a_path_explains_the_shipped_library(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("explain", "explained_model:make", "--json", "-") == 3
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert [row["name"] for row in graph["passes"]] == [
        f"Library{item.__name__}" for item in LIBRARY
    ]


def test_unknown_pass_where_there_are_none_says_so_in_words(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    assert run("explain", "explained_model:make", "--pass", "NoSuch") == 1
    assert (
        "no pass named 'NoSuch' is registered; there are no passes at all"
        in capsys.readouterr().err
    )


def test_explain_of_an_exported_program_with_verify_and_dump(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import explained_model

    model, example = explained_model.make()
    torch.export.save(torch.export.export(model, (example,)), folder / "model.pt2")
    arguments = ["model.pt2", "--path", "mine.py", "--pass", "Right", "--verify", "--dump", "out"]
    assert run("explain", *arguments, "--json", "-") == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert graph["passes"][0]["verified"] == 2
    assert len(list((folder / "out").iterdir())) == 3


def test_explain_exits_4_for_a_wrong_rewrite(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(PASSES + WRONG)
    arguments = ["explained_model:make", "--path", "mine.py", "--pass", "Wrong"]
    assert run("explain", *arguments) == 0
    assert run("explain", *arguments, "--verify") == 4
    assert "'Wrong' is wrong at aten::tanh (tanh)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["explained_model:make", "--path", "mine.py", "--pass", "Rihgt"], "did you mean 'Right'"),
        (["nowhere.pt2", "--path", "mine.py"], "there is no file nowhere.pt2"),
        (["nowhere:make", "--path", "mine.py"], "there is no module 'nowhere'"),
    ],
)
@pytest.mark.parametrize(("command", "status"), [("explain", 1), ("bisect", 2)])
def test_what_cannot_be_asked_is_refused_with_a_reason(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    status: int,
    arguments: list[str],
    text: str,
) -> None:
    """`bisect` has 1 for what it found, as `diff` and `git bisect run` have."""
    assert run(command, *arguments) == status
    assert text in _joined(capsys.readouterr().err)


@pytest.mark.parametrize(("command", "status"), [("explain", 1), ("bisect", 2)])
def test_switches_that_leave_no_pass_are_named(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    status: int,
) -> None:
    monkeypatch.setenv("BRINGUP_PASS_SWITCH", "ALL:off")
    assert run(command, "explained_model:make") == status
    words = _joined(capsys.readouterr().err)
    assert "there are no passes to run: BRINGUP_PASS_SWITCH" in words


def _joined(text: str) -> str:
    """What an error says, where it was broken into lines of a box."""
    return " ".join(text.replace("│", " ").split())


def test_bisect_finds_the_wrong_rewrite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(PASSES + WRONG)
    assert run("bisect", "explained_model:make", "--path", "mine.py", "--json", "-") == 1
    found = json.loads(capsys.readouterr().out)
    (culprit,) = found["culprits"]
    assert (found["rewrites"], culprit["rewrite"], culprit["match"]) == (3, 3, 1)
    assert (culprit["pass_name"], culprit["nodes"]) == ("Wrong", ["tanh"])
    assert "Greatest absolute difference" in culprit["reason"]
    assert run("bisect", "explained_model:make", "--path", "mine.py") == 1
    said = capsys.readouterr().out
    assert "1. pass Wrong, match 1 (rewrite 3 of all) on " in said
    assert "BRINGUP_PASS_SWITCH=Wrong:off" in said


def test_bisect_finds_what_only_a_mode_has(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bringup.compiler import captured_calls

    def nothing(*given: object, **options: object) -> Callable[[list[Any]], Any]:
        def run_boxed(arguments: list[Any]) -> Any:
            return (arguments[-1] * 0,)

        run_boxed._boxed_call = True  # type: ignore[attr-defined]
        return run_boxed

    monkeypatch.setattr(captured_calls, "captured", nothing)
    arguments = ["explained_model:make", "--path", "mine.py"]
    assert run("bisect", *arguments) == 0
    assert run("bisect", *arguments, "--mode", "serve", "--dynamic") == 1
    assert "1. capture: the result differs" in capsys.readouterr().out


def test_bisect_of_a_right_model_exits_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("default", "serve", "max"):
        assert run("bisect", "explained_model:make", "--path", "mine.py", "--mode", mode) == 0
        assert "Nothing differs from eager, with all 2 rewrites" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "fast"], "backend 'bringup' has no mode 'fast'"),
        (["--atol", "1"], "--atol and --rtol go together"),
    ],
)
def test_bisect_refuses_what_it_cannot_do(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run("bisect", "explained_model:make", *arguments) == 2
    assert words in _joined(capsys.readouterr().err)


def test_bisect_of_an_exported_program_finds_the_rewrite(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import explained_model

    (folder / "mine.py").write_text(PASSES + WRONG)
    model, example = explained_model.make()
    torch.export.save(torch.export.export(model, (example,)), folder / "model.pt2")
    arguments = ["model.pt2", "--path", "mine.py"]
    assert run("bisect", *arguments, "--json", "-") == 1
    (culprit,) = json.loads(capsys.readouterr().out)["culprits"]
    assert (culprit["pass_name"], culprit["rewrite"]) == ("Wrong", 3)
    assert run("bisect", *arguments, "--atol", "2", "--rtol", "0") == 0
    capsys.readouterr()
    assert run("bisect", *arguments, "--mode", "serve") == 2
    assert "are for what torch.compile takes" in _joined(capsys.readouterr().err)


FUNCTIONS = """
import torch
from bringup import compiler

def softplus(x):
    return torch.log(torch.exp(x) + 1)

compiler.register_replacement(softplus, lambda x: torch.nn.functional.softplus(x))
"""

SOFTPLUS = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.log(torch.exp(x) + 1)

def make():
    return Model(), torch.linspace(-2, 2, 8)
"""


def test_pass_of_two_functions_is_listed_and_explained_like_any(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "softplus_model.py").write_text(SOFTPLUS)
    assert run("list", "--path", "functions.py", "--json", "-") == 0
    rows = json.loads(capsys.readouterr().out)["passes"]
    (row,) = (row for row in rows if row["pass_name"] == "softplus")
    assert row["class_qualname"] == "softplus(5) -> <lambda>(8)"
    assert row["kind"] == "pattern_fusion"
    only = ["--path", "functions.py", "--pass", "softplus"]
    assert run("explain", "softplus_model:make", *only, "--verify") == 0
    assert run("explain", "explained_model:make", *only) == 3
    assert "Not near" in capsys.readouterr().out
    assert run("explain", "explained_model:make", *only, "--all") == 3
    assert "softplus, 0 of 3 nodes matched" in _joined(capsys.readouterr().out)


REPEATING = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(torch.relu(x) + 1)
        return x

def make():
    return Model(), torch.linspace(-2, 2, 8)
"""


def test_mine_shows_what_repeats_with_a_pattern(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "repeating_model.py").write_text(REPEATING)
    assert run("mine", "repeating_model:make") == 0
    said = capsys.readouterr().out
    assert "3 x 3 nodes (6 fewer if fused): aten::relu aten::add.Tensor aten::tanh" in said
    assert 'add = op("aten::add.Tensor", relu, 1)' in said
    assert run("mine", "repeating_model:make", "--json", "-", "--max-nodes", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["graphs"][0]["repeats"][0]["saved"] == 3


def test_mine_of_a_model_in_which_nothing_repeats_exits_3(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("mine", "explained_model:make") == 3
    assert "nothing repeats" in capsys.readouterr().out


def test_mine_names_a_number_that_is_out_of_bounds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("mine", "explained_model:make", "--max-nodes", "99") == 1
    assert "max_nodes must be from 2 to 16, got 99" in capsys.readouterr().err
