"""Building a library once into the cache, on a CMake project of a few lines."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.installed_package import link_other_packages, put_package

from bringup._native import _build, _find, _manifest
from bringup._native._build import Recipe
from bringup.errors import NativeLibraryError

pytestmark = pytest.mark.skipif(
    bool(_build.missing_tools()), reason=f"nothing can be built here: {_build.missing_tools()}"
)

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(tiny LANGUAGES CXX)
add_library(_torch MODULE tiny.cpp)
set_target_properties(_torch PROPERTIES PREFIX "")
"""


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_JIT_PROGRESS", "1")


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(PROJECT)
    (source / "tiny.cpp").write_text('extern "C" int answer() { return 42; }\n')
    return Recipe(
        name="the tiny library",
        source=source,
        target="_torch",
        product="_torch*.so",
        folder=tmp_path / "cache" / "torch-1.0-cp311" / "abc",
        basis={"torch": "1.0"},
        build_key="1" * 64,
        torch="1.0",
    )


def left_over(recipe: Recipe) -> list[str]:
    return sorted(path.name for path in recipe.folder.parent.iterdir())


def test_what_was_built_is_published_whole_and_found_the_next_time(
    recipe: Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    library = _build.obtain(recipe)
    assert library == recipe.folder / "_torch.so"
    (artifact,) = _manifest.read(recipe.folder)
    assert (artifact.file, artifact.torch, artifact.build_key) == ("_torch.so", "1.0", "1" * 64)
    assert left_over(recipe) == ["abc", "abc.lock"]
    assert not _find.distrust(recipe.folder)
    told = capfd.readouterr().err
    assert "bringup: building the tiny library, once: this takes minutes" in told
    assert "bringup: built the tiny library in" in told
    stamp = library.stat()
    assert _build.obtain(recipe).stat() == stamp
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("file", ["_torch.so", "manifest.json"])
def test_what_was_damaged_in_the_cache_is_built_again(recipe: Recipe, file: str) -> None:
    library = _build.obtain(recipe)
    (recipe.folder / file).write_bytes(b"cut off")
    assert recipe.published() is None
    assert _build.obtain(recipe) == library
    assert _manifest.read(recipe.folder)[0].damage(recipe.folder) == ""


def test_a_failure_has_the_error_and_is_not_repeated_until_something_changes(
    recipe: Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    (recipe.source / "tiny.cpp").write_text("int answer() { return nonsense; }\n")
    with pytest.raises(NativeLibraryError, match="the tiny library could not be built") as first:
        _build.obtain(recipe)
    assert "nonsense" in str(first.value)
    assert str(recipe.log_file) in str(first.value)
    assert "nonsense" in recipe.log_file.read_text()
    assert left_over(recipe) == ["abc.failed.json", "abc.lock", "abc.log"]
    capfd.readouterr()
    with pytest.raises(NativeLibraryError, match="is not tried again until compiler, torch"):
        _build.obtain(recipe)
    assert capfd.readouterr().err == ""  # nothing was started
    (recipe.source / "tiny.cpp").write_text("int answer() { return 42; }\n")
    changed = Recipe(**{**vars(recipe), "basis": {"torch": "1.1"}})
    assert _build.obtain(changed).is_file()
    assert left_over(recipe) == ["abc", "abc.lock", "abc.log"]


def test_progress_is_not_shown_where_it_is_switched_off_or_nobody_sees_it(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_PROGRESS", "0")
    _build.obtain(recipe)
    assert capfd.readouterr().err == ""
    shutil.rmtree(recipe.folder)
    monkeypatch.setenv("BRINGUP_JIT_PROGRESS", "1")
    monkeypatch.setattr(sys, "stderr", None)  # as in a program without a console
    assert _build.obtain(recipe).is_file()


def test_the_compiler_that_is_named_is_the_one_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(tmp_path / "no-compiler"))
    assert _build.missing_tools() == "a C++ compiler missing (apt-get install g++)"


def test_compiled_python_files_are_no_sources(tmp_path: Path) -> None:
    digests = []
    for name, folder in (("plain", ""), ("compiled", "__pycache__"), ("another", "more")):
        sources = tmp_path / name
        (sources / "native" / folder).mkdir(parents=True)
        (sources / "native" / "a.cpp").write_text("int a;")
        if folder:
            (sources / "native" / folder / "a.pyc").write_bytes(b"made")
        digests.append(_manifest.source_digest(sources))
    assert digests[0] == digests[1] != digests[2]


def test_removing_the_record_of_a_failure_tries_again(recipe: Recipe) -> None:
    (recipe.source / "CMakeLists.txt").write_text("message(FATAL_ERROR no)\n")
    with pytest.raises(NativeLibraryError, match="cmake failed"):
        _build.obtain(recipe)
    assert "reason" in json.loads(recipe.failure_file.read_text())
    (recipe.source / "CMakeLists.txt").write_text(PROJECT)
    recipe.failure_file.unlink()
    assert _build.obtain(recipe).is_file()


def test_a_build_that_makes_nothing_is_a_failure(recipe: Recipe) -> None:
    (recipe.source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(none NONE)\nadd_custom_target(_torch)\n"
    )
    with pytest.raises(NativeLibraryError, match=r"the build made no _torch\*\.so"):
        _build.obtain(recipe)


def test_a_folder_that_cannot_be_written_is_an_error_with_advice(recipe: Recipe) -> None:
    recipe.folder.parent.parent.mkdir(parents=True)
    recipe.folder.parent.write_text("in the way")
    with pytest.raises(NativeLibraryError, match=r"cannot be kept in .* set BRINGUP_CACHE_DIR"):
        _build.obtain(recipe)


def test_processes_that_need_it_at_once_build_it_once(recipe: Recipe, tmp_path: Path) -> None:
    (recipe.source / "CMakeLists.txt").write_text(
        PROJECT + f'file(APPEND "{tmp_path}/count" "built\\n")\n'
    )
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        found = pool.map(_build.obtain, [recipe] * 3)
    assert set(found) == {recipe.folder / "_torch.so"}
    assert (tmp_path / "count").read_text() == "built\n"


def test_a_cache_on_a_file_system_without_locks_is_built_into_all_the_same(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert _build.obtain(recipe).is_file()


def test_who_waits_for_a_build_is_told_which_process_builds(
    recipe: Recipe, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe.folder.parent.mkdir(parents=True)
    lock = recipe.folder.with_name("abc.lock")
    lock.write_text(json.dumps({"pid": 4711, "host": os.uname().nodename, "since": 0.0}))
    real, answers = fcntl.flock, [BlockingIOError(errno.EWOULDBLOCK, "held")]

    def busy_once(descriptor: int, operation: int) -> None:
        if answers:
            raise answers.pop()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", busy_once)
    _build.obtain(recipe)
    assert "waiting for process 4711, which builds the tiny library" in capfd.readouterr().err


def test_an_interrupted_build_leaves_nothing_and_is_no_failure(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(_build, "run_build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _build.obtain(recipe)
    assert left_over(recipe) == ["abc.lock"]


def draft_of(recipe: Recipe, builder: int | str, host: str = os.uname().nodename) -> Path:
    """The folder in which that process builds, or has built."""
    made = recipe.folder.parent / f".abc.{builder}@{host}.x1y2"
    (made / "build").mkdir(parents=True)
    return made


def test_what_a_killed_build_has_left_goes_with_the_next_one(recipe: Recipe) -> None:
    """kill -9 leaves a draft folder, which nobody would ever look for again."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    draft_of(recipe, ended.pid)
    draft_of(recipe, "no number")
    (recipe.folder.parent / ".other.draft").mkdir()
    _build.obtain(recipe)
    assert left_over(recipe) == [".other.draft", "abc", "abc.lock"]


def test_what_another_process_builds_just_now_is_left_alone(recipe: Recipe) -> None:
    """Without locks (a network file system) several build at once."""
    mine, another_host = draft_of(recipe, os.getpid()), draft_of(recipe, 1, "elsewhere")
    _build.obtain(recipe)
    assert mine.is_dir()
    assert another_host.is_dir()
    two_hours_ago = time.time() - 7200
    os.utime(another_host, (two_hours_ago, two_hours_ago))
    shutil.rmtree(recipe.folder)
    _build.obtain(recipe)
    assert mine.is_dir()
    assert not another_host.exists()


def test_what_is_built_under_a_generous_umask_is_nobody_elses_and_is_loaded(
    recipe: Recipe,
) -> None:
    before = os.umask(0)
    try:
        _build.obtain(recipe)
    finally:
        os.umask(before)
    assert _find.distrust(recipe.folder) == ""
    assert recipe.folder.parents[1].stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("said", ["No space left on device", "Disk quota exceeded"])
def test_a_full_disk_is_named_and_not_remembered_as_a_failure(recipe: Recipe, said: str) -> None:
    whole = (recipe.source / "CMakeLists.txt").read_text()
    text = f'cmake_minimum_required(VERSION 3.25)\nmessage(FATAL_ERROR "x.o: {said}")\n'
    (recipe.source / "CMakeLists.txt").write_text(text)
    with pytest.raises(NativeLibraryError, match=rf"cannot be kept in .*{said}.*BRINGUP_CACHE_DIR"):
        _build.obtain(recipe)
    assert left_over(recipe) == ["abc.lock"]
    (recipe.source / "CMakeLists.txt").write_text(whole)
    assert _build.obtain(recipe).is_file()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_cache_that_cannot_be_written_is_an_error_with_advice(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(NativeLibraryError, match=rf"{os.strerror(code)}; set BRINGUP_CACHE_DIR"):
        _build.obtain(recipe)
    assert left_over(recipe) == ["abc.lock"]


# One compiler that never ends, and says which process it is.
ENDLESS = """
cmake_minimum_required(VERSION 3.25)
project(endless NONE)
add_custom_target(_torch COMMAND sh -c "echo $$ > {pid} && exec sleep 1000" VERBATIM)
"""
BUILD = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
import sys
from pathlib import Path
from bringup._native._build import Recipe, obtain
obtain(Recipe("the endless library", Path(sys.argv[1]), "_torch", "_torch*.so", Path(sys.argv[2])))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_takes_its_compilers_along(recipe: Recipe, how: signal.Signals) -> None:
    """kill -9 runs nothing of ours, and ninja keeps each compiler in a process group of its own."""
    file = recipe.source / "pid"
    (recipe.source / "CMakeLists.txt").write_text(ENDLESS.format(pid=file))
    argv = [sys.executable, "-c", BUILD, str(recipe.source), str(recipe.folder)]
    builder = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        compiler = psutil.Process(int(_until(lambda: file.exists() and file.read_text().strip())))
        assert compiler.is_running()
        builder.send_signal(how)
        builder.wait(60)
    finally:
        builder.kill()
        builder.wait()
    gone, alive = psutil.wait_procs([compiler], timeout=240)
    for process in alive:
        process.kill()
    assert gone == [compiler]


def _until(condition: Callable[[], bool | str]) -> bool | str:
    """What the condition gives once that is true."""
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
    return found


@pytest.mark.slow
def test_the_real_library_is_built_into_the_cache_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes of compiling: run by `pytest -m slow` only, with BRINGUP_TEST_NATIVE_BUILD=1."""
    if "BRINGUP_TEST_NATIVE_BUILD" not in os.environ:
        pytest.skip("compiles for minutes: set BRINGUP_TEST_NATIVE_BUILD=1")
    root = Path(__file__).parents[3]
    site = tmp_path / "site packages, é"
    link_other_packages(site, without="nothing")
    put_package(site)
    sources = site / "bringup" / "source"
    for name in ("native", "cmake", "include"):
        shutil.copytree(root / name, sources / name)
    shutil.copy(root / "CMakeLists.txt", sources)
    program = """
import torch
from bringup import _native, devices
library = _native.torch_library()
print(library.__file__)
devices.load_driver("sim")
print(torch.ones(2, device="npu").sum().item())
"""
    environment = os.environ | {
        "PYTHONPATH": str(site),
        "BRINGUP_CACHE_DIR": str(tmp_path / "a cache, é"),
    }
    # -S leaves the editable install's finder out, which would answer for `bringup` first.
    argv = [sys.executable, "-S", "-P", "-c", program]
    for _ in range(2):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        path, total = done.stdout.splitlines()
        folder = tmp_path / "a cache, é" / "native" / str(_find.running_key())
        assert path.startswith(str(folder))
        assert total == "2.0"
    assert "building" not in done.stderr
