"""`bringup passes explain` and `bisect` on ONNX files."""

import json

import onnx
import pytest
from tests.unit.compiler.onnx.support import model_of

from bringup import cli, passes

PASSES = """
from bringup import ir, passes

def swap(name, old, new):
    @passes.register_decompose_pass(
        name=name, stage=passes.PassStage.AFTER_INFER_SHAPE, op_types=[old]
    )
    class Swap(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            return new(builder.onnx, builder.create_input())

swap("Right", "onnx::Relu", lambda op, x: op.Max(x, op.Sub(x, x)))
swap("Absent", "onnx::Erf", lambda op, x: op.Neg(x))
"""

WRONG = """
swap("Wrong", "onnx::Tanh", lambda op, x: op.Sigmoid(x))
"""

MODEL = """g (float[N,2] x, bool c) => (float[N,2] y)
{
    t = Relu(x)
    y = If(c) <
        then_branch = a () => (float[N,2] r) { r = Relu(t) },
        else_branch = b () => (float[N,2] s) { s = Tanh(t) }
    >
}"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRINGUP_PASS_PATH", raising=False)
    monkeypatch.delenv("ASCEND_GE_PY_PASS_PATH", raising=False)
    passes.shutdown()
    (tmp_path / "mine.py").write_text(PASSES)
    onnx.save(model_of(MODEL), tmp_path / "model.onnx")
    yield tmp_path
    passes.shutdown()


def run(*arguments):
    return cli.main(["passes", *arguments])


def test_explain_names_the_graph_of_every_result_and_only_reads_the_file(folder, capsys):
    before = (folder / "model.onnx").read_bytes()
    assert run("explain", "model.onnx", "--path", "mine.py", "--verify", "--json", "-") == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    found = {(item["graph"], item["name"]): item["matches"] for item in graph["passes"]}
    assert found[("g", "Right")] == 1
    assert found[("g/y.then_branch", "Right")] == 1
    assert found[("g/y.else_branch", "Right")] == 0
    assert (folder / "model.onnx").read_bytes() == before


def test_explain_shows_the_inner_graphs(folder, capsys):
    assert run("explain", "model.onnx", "--path", "mine.py", "--pass", "Right") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 g/y.then_branch" in shown


def test_bisect_finds_the_wrong_rewrite_by_running_the_model(folder, capsys):
    (folder / "wrong.py").write_text(PASSES + WRONG)
    onnx.save(
        model_of("g (float[4] x) => (float[4] y) { a = Relu(x) b = Tanh(a) y = Relu(b) }"),
        folder / "small.onnx",
    )
    assert run("bisect", "small.onnx", "--path", "wrong.py") == 1
    assert "1. pass Wrong, match 1 (rewrite " in capsys.readouterr().out


def test_a_missing_and_a_broken_file_are_refused_by_name(folder, capsys):
    assert run("explain", "none.onnx", "--path", "mine.py") == 1
    assert "there is no file none.onnx" in capsys.readouterr().err
    (folder / "broken.onnx").write_bytes(b"no model")
    assert run("explain", "broken.onnx", "--path", "mine.py") == 1
    assert "broken.onnx is no ONNX model" in " ".join(capsys.readouterr().err.split())


def test_what_repeats_in_a_file_is_found_in_its_inner_graphs_too(folder, capsys):
    assert run("mine", "model.onnx", "--json", "-") in (0, 3)
    graphs = json.loads(capsys.readouterr().out)["graphs"]
    assert len(graphs) == 3
