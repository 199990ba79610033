"""A C++ program, a process of its own, that runs passes written in Python (`host.cpp`): lives of
the interpreter, rounds, failures, pairs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.host.programs import (
    BRIDGE,
    ENGINE,
    NATIVE,
    STAGE,
    environment,
    needs_shared_python,
    output,
    twice,
    whole,
)

import bringup
from bringup._native import core
from bringup._native._compatibility import key_in

pytestmark = needs_shared_python


def test_the_engine_and_the_program_need_no_python_and_no_torch(program):
    for file in (ENGINE, program):
        listed = subprocess.run(
            ["readelf", "--dynamic", "--dyn-syms", "--wide", file],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        needed = re.findall(r"NEEDED.*\[(.*)\]", listed)
        assert not [name for name in needed if "python" in name or "torch" in name], file
        undefined = re.findall(r" UND (\S+)", listed)
        assert not [name for name in undefined if re.match(r"_?Py|_ZN(2at|3c10|5torch)", name)]


def test_the_engine_shows_programs_its_table_and_key_and_its_own_module_the_engine_alone():
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", ENGINE], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    assert "bringup_engine_get" in names
    others = {name for name in names if "7bringup6engine" not in name}
    assert others == {"bringup_engine_get", "bringup_engine_build_key", "BRINGUP_ENGINE_1"}


def test_a_program_without_an_interpreter_runs_passes_of_python(program, passes_file):
    said = output(program, "once", BRINGUP_PASS_PATH=passes_file("twice.py", twice()))
    assert [line for line in said.splitlines() if not line.startswith("near miss")] == [
        "state 0",
        "loaded 1",
        "state 1",
        "pass Twice outcome=1 matches=3 status=0",
        "run succeeded",
        "graph: ir::input ir::constant demo::once demo::once demo::once demo::scale ir::output",
        "state 3",
        "end",
    ]


def test_a_program_with_an_interpreter_of_its_own_keeps_it(program, passes_file):
    said = output(program, "borrowed", TEST_PASS_PATH=passes_file("twice.py", twice()))
    assert "state 2" in said
    assert "matches=2" in said
    assert said.splitlines()[-3:] == ["still mine", "finalized 0", "end"]


def test_a_program_may_end_its_interpreter_before_it_tells_the_engine(program, passes_file):
    said = output(program, "ended_under_us", TEST_PASS_PATH=passes_file("twice.py", twice()))
    lines = said.splitlines()
    after = lines.index("finalized 0")
    assert lines[after + 1 : after + 4] == [
        "state 3",
        "run succeeded",  # without the passes of the interpreter that is gone
        "graph: ir::input ir::constant demo::relu demo::relu demo::scale ir::output",
    ]
    assert re.search(r"load again 7: .*do not start twice", said)


def test_an_interpreter_that_ended_before_passes_were_asked_for_does_no_harm(program, passes_file):
    said = output(program, "ended_before", TEST_PASS_PATH=passes_file("twice.py", twice()))
    assert "finalized 0" in said
    assert "state 1" in said
    assert "matches=3" in said


def test_unload_and_shutdown_without_any_load_do_nothing(program):
    said = output(program, "never_started")
    assert "state 0" in said
    assert "run succeeded" in said


def test_ten_rounds_of_loading_and_unloading_do_not_grow(program, passes_file):
    said = output(program, "rounds", TEST_PASS_PATH=passes_file("twice.py", twice()))
    objects = [int(count) for count in re.findall(r"objects (\d+)", said)]
    assert len(objects) == 12
    assert max(objects[2:]) - objects[1] <= 20, objects  # a leak of one object a round is 10
    (growth,) = map(int, re.findall(r"growth (-?\d+) KiB", said))
    if STAGE is None:  # sanitizers keep what was freed
        assert growth < 2048


def test_each_round_finds_what_the_environment_names_then(program, passes_file):
    said = output(
        program,
        "environment",
        FIRST=passes_file("first.py", twice("First")),
        SECOND=passes_file("second.py", twice("Second", "demo::other")),
    )
    assert re.findall(r"loaded (\d)", said) == ["1", "1", "0"]
    assert re.findall(r"pass (\w+)", said) == ["First", "Second"]
    assert re.findall(r"demo::(\w+) demo::scale", said) == ["once", "other", "relu"]


def test_the_path_of_ge_is_read_too(program, passes_file):
    said = output(program, "once", ASCEND_GE_PY_PASS_PATH=passes_file("twice.py", twice()))
    assert "pass Twice" in said


def test_modules_with_passes_are_imported_from_the_path_that_is_named(program, passes_file):
    folder = Path(passes_file("module_of_passes.py", twice())).parent
    said = output(program, "once", TEST_MODULES="module_of_passes", TEST_SYS_PATH=str(folder))
    assert "loaded 1" in said


def test_a_pass_that_raises_fails_with_its_message_and_traceback(program, passes_file):
    file = passes_file("wrong.py", whole("raise ValueError('no such thing')"))
    said = output(program, "failing", TEST_PASS_PATH=file)
    assert "pass Whole outcome=3" in said
    assert "message: ValueError: no such thing" in said
    assert re.search(r"traceback: Traceback .*wrong\.py.*in run.*ValueError: no such thing", said)
    assert "run failed" in said
    assert "loaded again 1" in said


def test_a_failed_pass_leaves_the_programs_graph_as_it_was(program, passes_file):
    file = passes_file(
        "half.py",
        whole(
            "first, second = graph.find('demo::relu')",
            "graph.replace_all_uses(second.output, first.output)",
            "graph.erase(second)",
            "raise ValueError('after an edit')",
        ),
    )
    said = output(program, "failing", TEST_PASS_PATH=file)
    whole_graph = "graph: ir::input ir::constant demo::relu demo::relu demo::scale ir::output"
    assert said.count(whole_graph) == 2


def test_python_sees_the_descriptions_and_data_of_the_program(program, passes_file):
    file = passes_file(
        "look.py",
        whole(
            "import struct",
            "(x,) = graph.inputs",
            "(weight,) = graph.find('ir::constant')",
            "data = struct.unpack('2f', bytes(weight.payload.data))",
            "raise ValueError(f'{x.known_desc} {x.known_desc.device} {data}')",
        ),
    )
    said = output(program, "failing", TEST_PASS_PATH=file)
    assert "ValueError: float32[2, 4] cpu (1.0, 2.0)" in said


def test_an_object_of_python_as_an_argument_is_refused(program, passes_file):
    file = passes_file(
        "object.py",
        whole(
            "scale = graph.find('demo::scale')[0]",
            "made = graph.insert('demo::keep', (scale.inputs[0], object()), before=scale)",
        ),
    )
    said = output(program, "failing", TEST_PASS_PATH=file)
    assert re.search(r"message: .*reads <object object.*arguments are values, numbers", said)


def test_a_handle_that_a_pass_keeps_expires_with_the_run(program, passes_file):
    file = passes_file(
        "keeps.py",
        "KEPT = []\n"
        + whole(
            "if KEPT:",
            "    KEPT[0].op_type",
            "KEPT.extend([*graph.find('demo::relu'), graph])",
        ),
    )
    said = output(program, "failing", TEST_PASS_PATH=file)
    assert said.count("run succeeded") == 1
    assert "ExpiredHandleError: graph handle has expired" in said


def test_a_pass_that_hangs_is_interrupted_and_named(program, passes_file):
    file = passes_file("hangs.py", whole("while True:", "    pass"))
    said = output(program, "failing", TEST_PASS_PATH=file, TEST_TIME_LIMIT="0.3")
    assert "pass 'Whole' took longer than its time limit of 0.3 s" in said
    assert "run failed" in said
    assert "loaded again 1" in said


def test_two_threads_compile_two_graphs_at_once_and_four_shut_down(program, passes_file):
    said = output(program, "threads", TEST_PASS_PATH=passes_file("twice.py", twice()))
    found = [line.count("demo::once") for line in said.splitlines() if line.startswith("graph")]
    assert found == [10, 11]
    assert "state 3" in said


def test_a_process_may_end_with_everything_alive(program, passes_file):
    said = output(program, "exits", TEST_PASS_PATH=passes_file("twice.py", twice()))
    assert said.endswith("end\n")


def test_python_is_not_shut_down_under_a_run(program, passes_file, tmp_path):
    mark = str(tmp_path / "mark")
    file = passes_file(
        "waits.py",
        whole(
            "import os, pathlib",
            f"pathlib.Path({mark!r} + '.began').touch()",
            f"while not os.path.exists({mark!r} + '.go'):",
            "    pass",
        ),
    )
    said = output(program, "shutdown_meanwhile", TEST_PASS_PATH=file, TEST_MARK=mark)
    assert re.search(r"shutdown 7: .*threads use Python just now", said)
    assert "run succeeded" in said


def test_a_pass_that_cannot_be_loaded_is_an_error_and_nothing_is_registered(program, passes_file):
    file = passes_file("broken.py", twice() + "\nraise RuntimeError('half way')\n")
    said = output(program, "load_only", code=3, TEST_PASS_PATH=file)
    assert "error: PluginError:" in said
    assert "half way" in said


def test_a_bridge_of_another_build_is_refused_by_its_key(program, tmp_path):
    key = key_in(next(NATIVE.glob("_core*.so"))).encode()
    other = tmp_path / "libbringup_bridge.so"
    other.write_bytes(BRIDGE.read_bytes().replace(key, b"f" * len(key)))
    said = output(program, "load_only", code=3, TEST_BRIDGE=str(other))
    assert f"built with the key {'f' * 16}" in said
    assert key.decode() in said


def test_a_bridge_that_is_not_there_says_where_it_was_looked_for(program, tmp_path):
    said = output(program, "load_only", code=3, TEST_BRIDGE=str(tmp_path / "none.so"))
    assert "the bridge to Python cannot be loaded" in said
    assert str(tmp_path / "none.so") in said


def test_a_python_library_that_is_none_is_refused(program, tmp_path):
    (tmp_path / "libpython3.11.so").write_bytes(b"not a library")
    said = output(
        program, "load_only", code=3, TEST_PYTHON_LIBRARY=str(tmp_path / "libpython3.11.so")
    )
    assert "the Python library cannot be loaded" in said


def import_beside(engine: Path) -> str:
    """What an import of the package says in a process that has this engine already."""
    code = f"import ctypes; ctypes.CDLL({str(engine)!r}); import bringup.ir"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(), "PYTHONPATH": str(Path(bringup.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.skipif(STAGE is not None, reason="Python itself has no sanitizer")
def test_the_module_and_the_engine_of_the_process_must_be_one_pair(tmp_path):
    key = core().build_key().encode()
    other = tmp_path / "libbringup_engine.so"
    other.write_bytes(ENGINE.read_bytes().replace(key, b"f" * len(key)))
    shutil.copy(NATIVE / "libbringup_runtime.so", tmp_path)
    said = import_beside(other)
    assert f"{key.decode()}, the libbringup_engine.so of this process with {'f' * 16}" in said
    assert "take both from one package" in said


@pytest.mark.skipif(STAGE is not None, reason="Python itself has no sanitizer")
def test_an_engine_without_the_symbols_of_the_module_is_refused_by_its_key_too(tmp_path):
    source = tmp_path / "engine.c"
    source.write_text('const char* bringup_engine_build_key(void) { return "0123456789abcdef"; }\n')
    other = tmp_path / "libbringup_engine.so"
    compiler = ("cc", "-shared", "-fPIC", f"-Wl,-soname,{other.name}")
    subprocess.run([*compiler, "-o", other, source], check=True)
    said = import_beside(other)
    assert "the libbringup_engine.so of this process with 0123456789abcdef" in said
    assert "undefined symbol" not in said


@pytest.mark.skipif(STAGE is not None, reason="Python itself has no sanitizer")
def test_an_engine_that_knows_no_key_is_refused(tmp_path):
    source = tmp_path / "engine.c"
    source.write_text("int nothing;\n")
    other = tmp_path / "libbringup_engine.so"
    compiler = ("cc", "-shared", "-fPIC", f"-Wl,-soname,{other.name}")
    subprocess.run([*compiler, "-o", other, source], check=True)
    assert "of this process with none, as engines of older builds" in import_beside(other)
