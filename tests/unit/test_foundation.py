"""The foundation: what importing costs, how settings and native libraries fail."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import bringup
from bringup import _native, errors, settings


def run_python(program: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_import_bringup_loads_neither_torch_nor_a_native_library() -> None:
    done = run_python(
        "import sys, bringup\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith('bringup._native')])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("package", ["ir", "passes", "jit", "settings", "errors", "plugins"])
def test_package_imports_where_torch_cannot_be_imported(package: str) -> None:
    done = run_python(f"import sys; sys.modules['torch'] = None\nimport bringup.{package}")
    assert done.returncode == 0, done.stderr


def test_import_bringup_does_not_claim_the_privateuse1_slot() -> None:
    done = run_python(
        "import bringup, torch\n"
        "from bringup import compiler, devices, graphs, ir, jit, kernels, ops, passes\n"
        "print(torch._C._get_privateuse1_backend_name())"
    )
    assert done.stdout.strip() == "privateuseone", done.stderr


def test_unknown_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'bringup' has no attribute 'nonsense'"):
        _ = bringup.nonsense


def test_every_package_named_in_all_can_be_reached() -> None:
    for name in bringup.__all__:
        assert getattr(bringup, name) is not None
    assert isinstance(bringup.ir, types.ModuleType)


def test_every_error_is_a_bringup_error() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.BringupError), name


def test_compile_error_carries_command_and_diagnostic() -> None:
    error = errors.CompileError("no", command=["c++", "x.cpp"], diagnostic="x.cpp:1", log="all")
    assert (error.command, error.diagnostic, error.log) == (["c++", "x.cpp"], "x.cpp:1", "all")


def test_setting_with_a_wrong_value_names_variable_value_and_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_LAUNCH_BLOCKING", "perhaps")
    with pytest.raises(errors.SettingError, match=r"BRINGUP_LAUNCH_BLOCKING='perhaps': expected 1"):
        settings.launch_blocking()


def test_a_folder_of_nobody_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", "~no_such_user/kernels")
    with pytest.raises(errors.SettingError, match=r"expected a path, and there is no user '~no_su"):
        settings.cache_dir()


@pytest.mark.parametrize(("text", "value"), [("1", True), ("off", False), ("", False)])
def test_switch_settings_take_the_usual_words(
    monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    monkeypatch.setenv("BRINGUP_LAUNCH_BLOCKING", text)
    assert settings.launch_blocking() is value


def test_pass_path_reads_ours_before_the_ascend_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_PASS_PATH", "/a:/b")
    monkeypatch.setenv("ASCEND_GE_PY_PASS_PATH", "/c")
    assert [*settings.pass_path()] == [Path("/a"), Path("/b"), Path("/c")]


def test_prepending_to_the_pass_path_keeps_the_others_and_adds_no_folder_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_PASS_PATH", "/a:/b")
    settings.prepend_pass_path(Path("/c"))
    settings.prepend_pass_path(Path("/b"))
    assert [*settings.pass_path()][:3] == [Path("/b"), Path("/c"), Path("/a")]


def test_log_setting_gives_packages_their_levels_and_shows_them() -> None:
    program = (
        "import logging\n"
        "from bringup import settings\n"
        "settings.logger('jit').debug('seen')\n"
        "settings.logger('passes').debug('not seen')\n"
    )
    environment = os.environ | {"BRINGUP_LOG": "jit:debug,passes:info"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip() == "seen"


def test_log_setting_with_an_unknown_level_lists_the_levels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_LOG", "jit:loud")
    with pytest.raises(errors.SettingError, match=r"BRINGUP_LOG='jit:loud': expected debug, info"):
        settings.logger("jit")


def test_settings_table_documents_every_variable_once() -> None:
    variables = [row["variable"] for row in settings.table()]
    assert len(variables) == len(set(variables))
    assert {"BRINGUP_CACHE_DIR", "BRINGUP_JIT_CXX", "BRINGUP_DRIVER"} <= set(variables)
    assert all(row["meaning"] and row["default"] for row in settings.table())


def test_no_package_reads_the_environment_but_settings() -> None:
    package = Path(bringup.__file__).parent
    readers = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "os.environ.get(" in path.read_text() or "os.getenv(" in path.read_text()
    ]
    # `import torch` calls _autoload.py, which is to cost nothing where the variable is not set.
    assert sorted(readers) == ["_autoload.py", "_settings.py", "settings.py"]


def test_headers_and_libraries_are_where_config_says() -> None:
    assert (_native.include_dir() / "bringup" / "kernel.h").is_file()
    assert (_native.library_dir() / "libbringup_runtime.so").is_file()
    assert _native.sim_driver_path().is_file()


@pytest.mark.parametrize("home", ["/somewhere", "/with/slash/", "", "relative", None])
@pytest.mark.parametrize(
    "xdg", ["/caches", "/caches/", "", " ", "relative", "~/c", " /caches", None]
)
def test_the_default_cache_is_where_platformdirs_puts_it(
    monkeypatch: pytest.MonkeyPatch, home: str | None, xdg: str | None
) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.delenv("BRINGUP_CACHE_DIR", raising=False)
    for variable, value in (("HOME", home), ("XDG_CACHE_HOME", xdg)):
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    expected = Path(platformdirs.user_cache_dir("bringup", appauthor=False))
    assert settings.cache_dir() == expected


def test_the_core_binds_the_engine_when_it_is_asked_for() -> None:
    """In a new process: loading kernels does not pay for the engine."""
    program = (
        "from bringup import _native\n"
        "core = _native.core()\n"
        "assert 'GraphCore' not in vars(core) and 'load_kernel' in vars(core)\n"
        "assert core.Opcode is core.Opcode and 'GraphCore' not in vars(core)\n"
        "try:\n    core.no_such_name\n"
        "except AttributeError as error:\n    print(error)\n"
        "assert core.GraphCore is core.GraphCore and 'GraphCore' in vars(core)\n"
    )
    assert run_python(program).stdout.strip() == (
        "module 'bringup._native._core' has no attribute 'no_such_name'"
    )


def test_missing_core_says_how_to_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    _native.core.cache_clear()
    monkeypatch.setitem(sys.modules, "bringup._native._core", None)
    with pytest.raises(
        errors.NativeLibraryError, match=r"native core cannot be loaded.*pip install"
    ):
        _native.core()


def test_missing_torch_says_which_torch_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _native.forget_torch_library()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(errors.NativeLibraryError, match=r"pip install torch==2\.13\.0"):
        _native.torch_library()
