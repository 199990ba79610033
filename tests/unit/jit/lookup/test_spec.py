"""Specs as values, files of specs, and recording what a run needs."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD

from bringup import jit
from bringup.errors import CompileError
from bringup.jit import Source, Spec

SPECS = [
    Spec(Source(text=ADD), {"N": 2, "T": "float", "NEGATIVE": -1, "SCALE": 0.5, "ON": True}),
    Spec(Source("/somewhere/a b.cpp", entry="go", abi="params"), flags=["-O1", "-I/x"]),
    Spec(Source(text="int run;", name="k.c", kind="device"), target="sim"),
    Spec(Source("/somewhere/k.cpp", name="other.cpp")),
    Spec(Source(text=ADD), debug=jit.Debug(line_info=True, sanitize="address")),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_spec_survives_pickle_its_own_text_and_a_file(spec: Spec, tmp_path: Path) -> None:
    jit.save_specs(tmp_path / "specs.json", [spec])
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert eval(repr(spec), {"jit": jit}) == spec
    assert jit.load_specs(tmp_path / "specs.json") == [spec]
    assert len({spec, pickle.loads(pickle.dumps(spec))}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["specs.json"]


def test_macros_are_the_same_however_they_are_written() -> None:
    source = Source(text=ADD)
    assert Spec(source, {"B": 1, "A": True}) == Spec(source, ["A=1", "B=1"])


def test_a_spec_reads_as_a_line() -> None:
    spec = Spec(Source(text=ADD, name="add.cpp"), {"N": 2}, ["-O1"], "sim")
    assert str(spec) == "add.cpp N=2 -O1 for sim"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"source": "k.cpp"}, TypeError, r"expected a jit\.Source, got str \('k\.cpp'\)"),
        ({"macros": "N=1"}, TypeError, r"macros='N=1': expected a mapping or a sequence"),
        ({"macros": ["N"]}, ValueError, r"macro 'N': expected a text like NAME=value"),
        ({"macros": [3]}, ValueError, r"macro 3: expected a text like NAME=value"),
        ({"macros": {"N": "a;b"}}, ValueError, r"macro 'N': expected a type, a name"),
        ({"flags": ["-o x"]}, ValueError, r"flag '-o x': it changes what is written"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(
    arguments: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Spec(**{"source": Source(text=ADD), **arguments})  # type: ignore[arg-type]


def test_files_of_specs_are_read_together_each_spec_once(tmp_path: Path) -> None:
    jit.save_specs(tmp_path / "a.json", SPECS[:2])
    jit.save_specs(tmp_path / "b.json", SPECS[1:])
    assert jit.load_specs(tmp_path / "a.json", tmp_path / "b.json") == SPECS


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", r"bad\.json: expected a file of kernel specs, got "),
        ("[]", r"bad\.json: expected a file of kernel specs, written by jit\.record"),
        ('{"bringup_specs": 99}', r"bad\.json: expected a file of kernel specs"),
        ('{"bringup_specs": 1, "specs": [3]}', r"bad\.json: spec 0 cannot be read: "),
        (
            '{"bringup_specs": 1, "specs": [{"source": {"shell": "rm"}, "macros": [],'
            ' "flags": [], "target": "cpu", "debug": null}]}',
            r"bad\.json: spec 0 cannot be read: .*'shell'",
        ),
    ],
)
def test_a_file_of_something_else_is_refused_by_name(
    tmp_path: Path, content: str, text: str
) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ValueError, match=text):
        jit.load_specs(tmp_path / "bad.json")


def test_a_recording_has_each_kernel_once_hits_and_failures_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    source, bad = Source(text=ADD), Source(text="no")
    jit.compile(source)

    def fails() -> None:
        jit.compile(source)
        jit.compile(source, macros={"N": 2})
        jit.compile(source)
        jit.compile(bad)

    with jit.record(tmp_path / "needed.json") as recording, pytest.raises(CompileError):
        fails()
    expected = [Spec(source), Spec(source, {"N": 2}), Spec(bad)]
    assert list(recording.specs) == expected
    assert jit.load_specs(tmp_path / "needed.json") == expected
    jit.compile(source, macros={"N": 3})  # the recording is over
    assert list(recording.specs) == expected


def test_a_recorded_run_is_prebuilt_by_the_next_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded trace is prebuilt; then nothing is missing while frozen."""
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "first"))

    def run() -> None:
        jit.compile(Source(text=ADD))
        jit.compile(Source(text=ADD), macros={"N": 2})

    with jit.record(tmp_path / "needed.json"):
        run()
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "next"))
    report = jit.prebuild(jit.load_specs(tmp_path / "needed.json"))
    assert [outcome.status for outcome in report.outcomes] == ["built", "built"]
    with jit.frozen():
        run()


def test_a_file_of_specs_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "specs.json"
    jit.save_specs(path, SPECS)

    def broken() -> object:
        yield SPECS[0]
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        jit.save_specs(path, broken())  # type: ignore[arg-type]
    assert len(json.loads(path.read_text())["specs"]) == len(SPECS)
