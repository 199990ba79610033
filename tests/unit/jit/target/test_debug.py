"""Debug builds: dumps beside the binary, line information, sanitizers; each a build of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import ADD, run

from bringup import jit
from bringup.errors import SettingError, TargetError

REPOSITORY = Path(__file__).parents[4]
SOURCE = jit.Source(text=ADD, name="add.cpp")
WRITES_BEYOND = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<float, 1> x(args[0]);
  x.data()[x.size(0)] = 1;
  return 0;
}
"""
OVERFLOWS = """
#include "bringup/kernel.h"
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx*) {
  const bringup::View<int32_t, 1> x(args[0]);
  x(0) = x(0) + x(0);
  return 0;
}
"""
RUN_IN_A_NEW_PROCESS = """
import sys
import numpy as np
from bringup import jit
from tests.unit.jit.support import run
run(jit.compile(jit.Source(sys.argv[1])), np.zeros(16, np.float32))
"""


@pytest.fixture(params=["g++", "clang++"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        pytest.skip(f"no {name}: apt-get install {'clang' if name == 'clang++' else name}")
    monkeypatch.setenv("BRINGUP_JIT_CXX", name)
    return name


@pytest.fixture
def sanitizing_compiler(compiler: str) -> str:
    """A compiler with its sanitizers; those of clang++ are a package of their own."""
    if compiler == "clang++":
        asked = ["clang++", f"-print-file-name=libclang_rt.asan-{os.uname().machine}.so"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_absolute():
            pytest.skip("clang++ has no sanitizers: apt-get install libclang-rt-14-dev")
    return compiler


def test_each_debug_build_has_a_key_of_its_own() -> None:
    wanted = [
        jit.Debug(),
        jit.Debug(assembly=True),
        jit.Debug(preprocessed=True),
        jit.Debug(line_info=True),
        jit.Debug(sanitize="address"),
        jit.Debug(sanitize="undefined"),
        jit.Debug(sanitize=("undefined", "address")),
    ]
    keys = [jit.compile(SOURCE, debug=debug).key for debug in wanted]
    assert len(set(keys)) == len(wanted)
    assert jit.compile(SOURCE).key == keys[0]


def test_dumps_lie_beside_the_binary(compiler: str) -> None:
    """The source as it was compiled, its assembly, what the preprocessor made of it."""
    binary = jit.compile(
        SOURCE, macros={"N": 41}, debug=jit.Debug(assembly=True, preprocessed=True)
    )
    assert (binary.folder / "add.cpp").read_text() == ADD
    assert "run:" in (binary.folder / "kernel.s").read_text()
    assert "+= 41" in (binary.folder / "kernel.ii").read_text()
    x = np.zeros(2, np.float32)
    run(binary, x)
    assert x.tolist() == [41, 41]


def test_a_plain_build_keeps_its_source_and_log_but_no_dumps() -> None:
    left = {path.name for path in jit.compile(SOURCE, macros={"N": 42}).folder.iterdir()}
    assert {"add.cpp", "build.log", "kernel.so", "meta.json"} <= left
    assert not {"kernel.s", "kernel.ii", "kernel.d", "link.d"} & left


def test_the_setting_asks_for_debug_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a program whose calls cannot be changed."""
    asked = jit.compile(SOURCE, debug=jit.Debug(assembly=True, sanitize="undefined"))
    monkeypatch.setenv("BRINGUP_JIT_DEBUG", "undefined, assembly")
    assert jit.compile(SOURCE) == asked
    assert jit.compile(SOURCE, debug=jit.Debug()).key != asked.key


def test_a_wrong_word_in_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_JIT_DEBUG", "assembly,asm")
    with pytest.raises(
        SettingError, match=r"BRINGUP_JIT_DEBUG='assembly,asm': .*line_info.*got 'asm'"
    ):
        jit.compile(SOURCE)


def test_an_unknown_sanitizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected some of 'address', 'undefined', got 'memory'"):
        jit.Debug(sanitize=("address", "memory"))  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf: apt-get install binutils")
def test_line_information_is_in_the_binary_without_folders() -> None:
    binary = jit.compile(SOURCE, debug=jit.Debug(line_info=True))
    sections = subprocess.run(
        ["readelf", "--sections", "--wide", str(binary.path)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert ".debug_line" in sections
    assert str(jit.cache().root).encode() not in binary.path.read_bytes()
    assert b".debug_line" not in jit.compile(SOURCE).path.read_bytes()


def test_undefined_behaviour_is_reported_where_it_happens(
    sanitizing_compiler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    source = jit.Source(text=OVERFLOWS, name="overflows.cpp")
    x = np.array([2**31 - 1], np.int32)
    run(jit.compile(source, debug=jit.Debug(sanitize="undefined")), x)
    said = capfd.readouterr().err
    assert "overflows.cpp:5" in said
    assert "signed integer overflow" in said


def in_a_new_process(path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join((str(REPOSITORY / "src"), str(REPOSITORY)))
    return subprocess.run(
        [sys.executable, "-c", RUN_IN_A_NEW_PROCESS, str(path)],
        env={**os.environ, "PYTHONPATH": python_path, "BRINGUP_JIT_DEBUG": "address", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_wrong_access_is_reported_once_the_runtime_is_preloaded(
    sanitizing_compiler: str, tmp_path: Path
) -> None:
    """The error that refuses to load says what to preload."""
    path = tmp_path / "beyond.cpp"
    path.write_text(WRITES_BEYOND)
    refused = in_a_new_process(path)
    assert refused.returncode == 1
    assert TargetError.__name__ in refused.stderr
    library = refused.stderr.rpartition("run Python with LD_PRELOAD=")[2].strip()
    assert Path(library).is_file()
    reported = in_a_new_process(path, LD_PRELOAD=library, ASAN_OPTIONS="detect_leaks=0")
    assert "heap-buffer-overflow" in reported.stderr
    assert "beyond.cpp:5" in reported.stderr
