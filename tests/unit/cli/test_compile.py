"""`bringup compile`: a model's file into another."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from tests.unit.compiler.onnx.support import model_of, op_types

from bringup import cli, compiler, passes
from bringup.errors import ModelError

PASSES = """
from bringup import ir, passes

def swap(name, old, new, stage=passes.PassStage.AFTER_INFER_SHAPE):
    @passes.register_decompose_pass(name=name, stage=stage, op_types=[old])
    class Swap(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            return new(builder.{dialect}, builder.create_input())

swap("Early", "{prefix}{relu}", lambda op, x: op.{neg}(x), passes.PassStage.BEFORE_INFER_SHAPE)
swap("Late", "{prefix}{abs}", lambda op, x: op.{neg}(op.{neg}(op.{abs}(x))))
"""
ON_ONNX = PASSES.format(dialect="onnx", prefix="onnx::", relu="Relu", abs="Abs", neg="Neg")
ON_ATEN = PASSES.format(dialect="aten", prefix="aten::", relu="relu", abs="abs", neg="neg")
MODEL = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Sin(a) y = Abs(b) }"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("BRINGUP_PASS_PATH", "ASCEND_GE_PY_PASS_PATH"):
        monkeypatch.delenv(name, raising=False)
    passes.shutdown()
    (tmp_path / "mine.py").write_text(ON_ONNX)
    onnx.save(model_of(MODEL), tmp_path / "model.onnx")
    yield tmp_path
    passes.shutdown()


def add_fields_of_the_future(proto):
    """Fields numbered 1000 to 1004 of every wire type, which no onnx knows, at every level."""
    data = b"\xc0\x3e\xac\x02" + b"\xc9\x3e12345678" + b"\xd2\x3e\x02\xff\x00" + b"\xdd\x3e1234"
    data += b"\xe3\x3e\xc0\x3e\x05\xe4\x3e"  # a group
    parts = (proto, proto.graph, proto.graph.node[0], proto.graph.input[0], proto.opset_import[0])
    for part in parts:
        part.MergeFromString(data)


def run(*arguments):
    return cli.main(["compile", *arguments])


def test_passes_of_a_path_run_over_a_model_and_the_report_says_what_they_did(folder, capsys):
    arguments = ("model.onnx", "-o", "out.onnx", "--pass-path", "mine.py", "--json", "-")
    assert run(*arguments, "--pass", "Early", "--pass", "Late") == 0
    assert op_types(onnx.load("out.onnx")) == ["Neg", "Sin", "Abs", "Neg", "Neg"]
    found = json.loads(capsys.readouterr().out)
    assert (found["output"], found["error"]) == ("out.onnx", None)
    matches = {item["name"]: item["matches"] for item in found["graphs"][0]["passes"]}
    assert matches == {"Early": 1, "Late": 1}


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("BeforeInferShape", ["Neg", "Sin", "Abs"]),
        ("AfterInferShape", ["Relu", "Sin", "Abs", "Neg", "Neg"]),
    ],
)
def test_only_passes_of_a_stage_run(folder, stage, expected):
    assert run("model.onnx", "-o", "out.onnx", "--pass-path", "mine.py", "--stage", stage) == 0
    assert op_types(onnx.load("out.onnx")) == expected


def test_passes_of_a_module_run_and_the_model_may_be_overwritten(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "passes_of_mine_for_compile.py").write_text(ON_ONNX)
    (folder / "model.onnx").chmod(0o640)
    module = ("--pass-module", "passes_of_mine_for_compile")
    assert run("model.onnx", "-o", "model.onnx", *module, "--pass", "Early") == 0
    assert op_types(onnx.load("model.onnx")) == ["Neg", "Sin", "Abs"]
    assert (folder / "model.onnx").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(("library", "said"), [((), "Written"), (("--no-library",), "No pass ran")])
def test_a_model_that_no_pass_changes_comes_back_equal(folder, capsys, library, said):
    proto = model_of(MODEL)
    proto.metadata_props.add(key="who", value="me")
    add_fields_of_the_future(proto)
    weight = onnx.numpy_helper.from_array(np.ones(4000, "float32"), "w")
    proto.graph.initializer.append(weight)
    onnx.save_model(
        proto, "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    assert run("model.onnx", "-o", "out.onnx", *library) == 3
    shown = capsys.readouterr().out
    assert said in shown
    assert shown.endswith("Written: out.onnx; no pass changed it\n")
    before, after = (
        onnx.load(name, load_external_data=False) for name in ("model.onnx", "out.onnx")
    )
    assert after == before
    assert after.SerializeToString(deterministic=True) == before.SerializeToString(
        deterministic=True
    )
    assert after.graph.initializer[0].external_data[0].value == "w.bin"


TWICE = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = Abs(b) }"


@pytest.mark.parametrize(
    ("arguments", "environment", "left"),
    [
        ((), {}, ["Relu", "Abs"]),
        (("--no-library",), {}, ["Relu", "Relu", "Abs"]),
        ((), {"BRINGUP_PASS_LIBRARY": "0"}, ["Relu", "Relu", "Abs"]),
        (("--pass", "OnnxLibraryMergeCasts"), {}, ["Relu", "Relu", "Abs"]),
        (("--pass", "OnnxLibraryMergeClips", "--verify"), {}, ["Relu", "Abs"]),
    ],
)
def test_the_library_runs_over_an_onnx_model_unless_it_is_left_out(
    folder, monkeypatch, arguments, environment, left
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    onnx.save(model_of(TWICE), "twice.onnx")
    assert run("twice.onnx", "-o", "out.onnx", *arguments) == (3 if len(left) == 3 else 0)
    assert op_types(onnx.load("out.onnx")) == left
    assert passes.get_registered_passes() == ()


def test_a_library_that_somebody_registered_stays_registered(folder):
    compiler.onnx.register_library(["MergeCasts"])
    compiler.compile_file("model.onnx", "out.onnx")
    (left,) = passes.get_registered_passes()
    assert left.pass_name == "OnnxLibraryMergeCasts"


def test_a_wrong_pass_leaves_the_output_as_it_was(folder, capsys):
    (folder / "wrong.py").write_text(
        ON_ONNX + '\nswap("Wrong", "onnx::Sin", lambda op, x: op.Cos(x))\n'
    )
    (folder / "out.onnx").write_bytes(b"before")
    arguments = ("model.onnx", "-o", "out.onnx", "--pass-path", "wrong.py", "--pass", "Wrong")
    assert run(*arguments, "--verify") == 4
    assert (folder / "out.onnx").read_bytes() == b"before"
    assert "out.onnx is not written: pass 'Wrong'" in capsys.readouterr().out
    assert sorted(item.name for item in folder.iterdir() if item.suffix == ".onnx") == [
        "model.onnx",
        "out.onnx",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("model.onnx", "-o", "out.pt2"), "must end in .onnx"),
        (("mine.py", "-o", "out.py"), "is of no known kind"),
        (("absent.onnx", "-o", "out.onnx"), "there is no file absent.onnx"),
        (("bad.onnx", "-o", "out.onnx"), "bad.onnx is no ONNX model"),
        (("model.onnx", "-o", "absent/out.onnx"), "absent does not exist"),
        (("model.onnx", "-o", "folder.onnx"), "folder.onnx"),
        (("model.onnx", "-o", "out.onnx", "--pass-path", "absent.py"), "absent.py"),
        (("model.onnx", "-o", "out.onnx", "--pass-path", "raises.py"), "out of luck"),
        (("model.onnx", "-o", "out.onnx", "--pass-module", "absent_module"), "absent_module"),
        (("model.onnx", "-o", "out.onnx", "--pass", "Absent"), "Absent"),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_left(folder, arguments, said, capsys):
    (folder / "bad.onnx").write_bytes(b"\x00\xff\xff")
    (folder / "raises.py").write_text("raise RuntimeError('out of luck')")
    (folder / "folder.onnx").mkdir()
    before = sorted(folder.iterdir())
    assert run(*arguments) == 1
    assert said in capsys.readouterr().err
    assert sorted(folder.iterdir()) == before


def test_an_exported_program_is_rewritten_and_written(folder):
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x).sin().abs()

    torch.export.save(torch.export.export(Model(), (torch.randn(3),)), "model.pt2")
    (folder / "mine.py").write_text(ON_ATEN)
    assert run("model.pt2", "-o", "out.pt2", "--pass-path", "mine.py", "--pass", "Early") == 0
    program = torch.export.load("out.pt2")
    x = torch.randn(3)
    torch.testing.assert_close(program.module()(x), (-x).sin().abs())


def test_an_exported_program_that_no_pass_changes_is_decomposed_on_request(folder, capsys):
    import torch

    model, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)
    torch.export.save(torch.export.export(model, (x,)), "model.pt2")
    assert run("model.pt2", "-o", "out.pt2") == 3
    shown = capsys.readouterr().out.splitlines()
    assert "--decompose" in " ".join(shown)
    assert shown[-1] == "Written: out.pt2; no pass changed it"
    assert run("model.pt2", "-o", "out.pt2", "--decompose") == 0
    assert "no pass changed it" not in capsys.readouterr().out
    torch.testing.assert_close(torch.export.load("out.pt2").module()(x), model(x))


@pytest.mark.parametrize("library", [True, False])
def test_the_library_of_torch_is_left_out_of_an_exported_program_too(folder, library):
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return x.view(2, 3).view(3, 2)

    torch.export.save(torch.export.export(Model(), (torch.randn(6),)), "model.pt2")
    report = compiler.compile_file("model.pt2", "out.pt2", library=library)
    ran = {result.name for result in report.results}
    assert ("LibraryCollapseViews" in ran) == library


def test_a_file_that_is_no_exported_program_says_which_torch_could_not_read_it(folder):
    (folder / "bad.pt2").write_bytes(b"no archive")
    with pytest.raises(ModelError, match="no exported program that this torch"):
        compiler.compile_file("bad.pt2", "out.pt2")


def test_an_onnx_model_is_compiled_without_importing_torch(folder):
    program = (
        "import sys; from bringup import cli\n"
        "code = cli.main(['compile', 'model.onnx', '-o', 'out.onnx', '--pass-path', 'mine.py'])\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False"
