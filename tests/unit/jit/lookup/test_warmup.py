"""Kernels at the wrong time: what a miss while frozen and a compile after warm-up say."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD

from bringup import jit
from bringup.errors import MissingKernelError
from bringup.jit import Source, Spec
from bringup.jit.lookup import compilation, warmup
from bringup.jit.lookup.difference import differences
from bringup.jit.store.cache import StoreUnwritableError

REPOSITORY = Path(__file__).parents[4]
ADDER = Source(text=ADD, name="add.cpp")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
    return root


def missing(source: Source, **macros: jit.Macro) -> MissingKernelError:
    with jit.frozen(), pytest.raises(MissingKernelError) as raised:
        jit.compile(source, macros=macros)
    return raised.value


def in_a_shell(command: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("BRINGUP_")}
    subprocess.run(
        ["sh", "-c", command],
        env={**clean, "PATH": path, "PYTHONPATH": str(REPOSITORY / "src")},
        check=True,
        capture_output=True,
    )


def test_a_miss_while_frozen_carries_the_spec_and_names_the_nearest_kernel() -> None:
    near = jit.compile(ADDER, macros={"N": 2})
    jit.compile(ADDER, macros={"N": 2, "M": 1, "O": 1})
    error = missing(ADDER, N=3)
    assert error.spec == Spec(ADDER, {"N": 3})
    assert pickle.loads(pickle.dumps(error)).spec == error.spec
    assert "add.cpp, entry 'run', target 'cpu', macros N=3" in str(error)
    assert f"Nearest is {near.key[:12]}" in str(error)
    assert "differs in: macros: N=3 instead of N=2." in str(error)


def test_a_miss_in_an_empty_cache_says_that_there_is_no_other() -> None:
    assert "The cache has no other kernel of add.cpp." in str(missing(ADDER))


def test_a_miss_because_of_a_header_says_so(tmp_path: Path) -> None:
    (tmp_path / "v.h").write_text("#define V 1\n")
    (tmp_path / "k.cpp").write_text('#include "v.h"\nextern "C" int run() { return V; }\n')
    jit.compile(Source(tmp_path / "k.cpp"))
    (tmp_path / "v.h").write_text("#define V 2\n")
    error = missing(Source(tmp_path / "k.cpp"))
    assert "differs in: another content of a header or library." in str(error)


def test_the_command_of_a_miss_builds_exactly_what_is_missing() -> None:
    """The exact command that prebuilds it, run in a shell without our variables."""
    error = missing(ADDER, N=3)
    assert error.command in str(error)
    in_a_shell(error.command)
    with jit.frozen():
        jit.compile(ADDER, macros={"N": 3})


def test_the_command_needs_no_file_where_the_cache_takes_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = jit.cache()

    def unwritable(name: str) -> Path:
        raise StoreUnwritableError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(store.layout, "folder", unwritable)
        error = missing(ADDER, N=4)
    assert " -c " in error.command
    in_a_shell(error.command)
    with jit.frozen():
        jit.compile(ADDER, macros={"N": 4})


@pytest.fixture
def warm() -> Iterator[None]:
    """This process has ended its warm-up until the test ends."""
    jit.end_warmup()
    yield
    warmup.resume_warmup()


def test_a_compile_after_warm_up_says_what_was_different(
    caplog: pytest.LogCaptureFixture, warm: None
) -> None:
    """The compile-after-warm-up warning."""
    near = jit.compile(ADDER, macros={"N": 2})
    caplog.clear()
    jit.end_warmup()  # saying it again changes nothing
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        jit.compile(ADDER, macros={"N": 2})
        assert caplog.text == ""
        jit.compile(ADDER, macros={"N": 3}, flags=["-O1"])
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("compiled after warm-up, in ")
    assert "add.cpp, entry 'run', target 'cpu', macros N=3, flags -O1" in text
    assert f"Nearest is {near.key[:12]}" in text
    assert "flags: -O1 instead of none; macros: N=3 instead of N=2." in text
    assert "jit.record" in text


def test_a_compile_after_warm_up_because_of_a_header_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, warm: None
) -> None:
    (tmp_path / "v.h").write_text("#define V 1\n")
    (tmp_path / "k.cpp").write_text('#include "v.h"\nextern "C" int run() { return V; }\n')
    jit.compile(Source(tmp_path / "k.cpp"))
    (tmp_path / "v.h").write_text("#define V 2\n")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        jit.compile(Source(tmp_path / "k.cpp"))
    assert "differs in: another content of a header or library." in caplog.text


def test_differences_name_the_field_and_both_values() -> None:
    ours = {"macros": ["A=1", "B=2"], "target": ["cpu"], "source": ["x"], "flags": ["-a", "-b"]}
    theirs = {"macros": ["A=1"], "target": ["sim"], "source": ["y"], "flags": ["-b", "-a"]}
    assert [str(found) for found in differences(ours, theirs)] == [
        "flags: another order",
        "macros: B=2 instead of none",
        "another content of the source",
        "target: cpu instead of sim",
    ]
    assert differences(ours, ours) == ()


def test_a_damaged_entry_is_no_nearest_kernel() -> None:
    binary = jit.compile(ADDER, macros={"N": 2})
    meta = binary.path.parent / "meta.json"
    meta.write_text('{"name": "add.cpp", "record": 3}')
    compilation.forget()
    assert "The cache has no other kernel of add.cpp." in str(missing(ADDER, N=3))


def test_a_miss_while_frozen_is_the_same_error_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A serving image has no compiler."""
    jit.compile(ADDER, macros={"N": 2})
    monkeypatch.setenv("PATH", str(tmp_path))
    compilation.forget()
    error = missing(ADDER, N=3)
    assert error.spec == Spec(ADDER, {"N": 3})
    assert "differs in: macros: N=3 instead of N=2." in str(error)
