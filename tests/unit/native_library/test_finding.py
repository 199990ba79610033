"""The library that links libtorch: which one fits, and what happens where none does."""

from __future__ import annotations

import importlib.machinery
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bringup import _native, cli, errors, graphs
from bringup._native import _build, _find
from bringup._native._find import Key, LibraryCandidate

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
OTHER = Key("2.99", "cp311")


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that has decided nothing, with an empty package folder and cache; what it finds is
    not left to other tests.
    """
    _native.forget_torch_library()
    monkeypatch.setattr(_native, "library_dir", lambda: tmp_path / "package")
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("BRINGUP_NATIVE", raising=False)
    monkeypatch.delitem(sys.modules, _find.MODULE, raising=False)
    (tmp_path / "package").mkdir()
    yield
    _native.forget_torch_library()
    sys.modules.pop(_find.MODULE, None)  # monkeypatch brings back what was there


def put_library(folder: Path, built_with: str = "") -> Path:
    """A file that looks like a library and is none."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"_torch{SUFFIX}"
    library.write_bytes(b"not ELF")
    if built_with:
        (folder / _find.VERSION_FILE).write_text(built_with)
    return library


def compiled_library(folder: Path, built_with: str) -> Path:
    """A module called `_torch` that says with which torch it was built."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "fake.c"
    source.write_text(
        "#include <Python.h>\n"
        'static struct PyModuleDef def = {PyModuleDef_HEAD_INIT, "_torch", 0, -1, 0};\n'
        "PyMODINIT_FUNC PyInit__torch(void) {\n"
        "  PyObject* module = PyModule_Create(&def);\n"
        f'  PyModule_AddStringConstant(module, "torch_version", "{built_with}");\n'
        "  return module;\n}\n"
    )
    import sysconfig

    library = folder / f"_torch{SUFFIX}"
    include = sysconfig.get_path("include")
    argv = ["cc", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)]
    subprocess.run(argv, check=True)
    source.unlink()
    return library


def test_the_key_is_torch_minor_and_python_tag() -> None:
    major, minor = torch.__version__.split(".")[:2]
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert str(_find.running_key()).startswith(f"torch-{major}.{minor}-{tag}")


def test_a_folder_of_the_key_comes_first_and_other_keys_are_not_looked_at(tmp_path: Path) -> None:
    put_library(tmp_path / "torch-2.98-cp311")
    flat = put_library(tmp_path, "2.13.0+cpu")
    keyed = put_library(tmp_path / str(OTHER))
    found = list(_find.candidates(OTHER, tmp_path))
    assert found == [LibraryCandidate(keyed, "2.99"), LibraryCandidate(flat, "2.13")]
    assert found[0].incompatibility_reason(OTHER) == ""
    reason = found[1].incompatibility_reason(OTHER)
    assert reason == f"{flat} was built for torch 2.13, this is torch 2.99"


def test_a_library_of_the_cache_is_found_for_these_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    sources = _find.source_folder()
    assert sources is not None
    put_library(_find.cache_folder(OTHER, "0" * 64))
    assert list(_find.candidates(OTHER, tmp_path / "package")) == []
    mine = put_library(_find.cache_folder(OTHER, _find.source_digest(sources)))
    assert list(_find.candidates(OTHER, tmp_path / "package")) == [LibraryCandidate(mine, "2.99")]
    mine.parent.chmod(0o777)
    assert "others than you may write" in _find.distrust(mine.parent)
    assert list(_find.candidates(OTHER, tmp_path / "package")) == []


@pytest.mark.usefixtures("undecided")
def test_a_fitting_library_is_loaded(tmp_path: Path) -> None:
    compiled_library(tmp_path / "package" / str(_find.running_key()), torch.__version__)
    assert _native.torch_library().torch_version == torch.__version__
    assert _native.torch_library_status().module is _native.torch_library()


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize("told", [True, False], ids=["version file", "only loading tells"])
def test_a_library_for_another_torch_is_refused_by_both_versions_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, told: bool
) -> None:
    library = compiled_library(tmp_path / "package", "2.99.0")
    if told:
        (library.parent / _find.VERSION_FILE).write_text("2.99.0+cpu\n")
    with caplog.at_level(logging.WARNING, logger="bringup.native"):
        assert not _native.has_torch_library()
        assert not _native.has_torch_library()
    assert len(caplog.records) == 1
    assert "was built for torch 2.99, this is torch 2." in caplog.text
    assert _find.MODULE not in sys.modules
    with pytest.raises(
        errors.NativeLibraryError,
        match=r"graphs\.capture needs bringup's native torch library, and this process runs",
    ):
        graphs.capture(graphs.CapturedGraph()).__enter__()


@pytest.mark.usefixtures("undecided")
def test_a_damaged_library_is_named_and_done_without(tmp_path: Path) -> None:
    library = put_library(tmp_path / "package", torch.__version__)
    status = _native.torch_library_status()
    assert status.module is None
    assert f"{library} cannot be loaded" in status.reason


@pytest.mark.usefixtures("undecided")
def test_demanding_the_library_is_an_error_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRINGUP_NATIVE", "1")
    with pytest.raises(errors.NativeLibraryError, match="BRINGUP_NATIVE=1 demands it"):
        _native.has_torch_library()


@pytest.mark.usefixtures("undecided")
def test_without_compiler_and_sources_the_reason_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = Path(_native.__file__).resolve().parents[1]
    monkeypatch.setattr(_find, "source_folder", lambda: package)  # as in an installed package
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    reason = _native.torch_library_status().reason
    assert "it cannot be built here: cmake, ninja, a C++ compiler missing" in reason
    assert "apt-get install g++; pip install cmake ninja" in reason
    assert not _native.has_torch_library()
    monkeypatch.setattr(_find, "source_folder", lambda: None)
    assert "has no sources" in _native.recipe_for(_find.running_key())[1]


@pytest.mark.usefixtures("undecided")
def test_an_installed_package_builds_once_and_loads_what_it_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = Path(_native.__file__).resolve().parents[1]
    monkeypatch.setattr(_find, "source_folder", lambda: package)
    monkeypatch.setattr(_find, "source_digest", lambda sources: "1" * 64)
    builds: list[str] = []

    def build(recipe: _build.Recipe) -> Path:
        builds.append(recipe.target)
        library = compiled_library(recipe.folder, torch.__version__)
        recipe.folder.chmod(0o700)
        return library

    monkeypatch.setattr(_build, "obtain", build)
    assert "it is built at first use" in _native.torch_library_status().reason
    assert builds == []
    assert _native.torch_library().torch_version == torch.__version__
    _native.forget_torch_library()
    sys.modules.pop(_find.MODULE)
    assert _native.torch_library_status().module is not None  # found in the cache
    assert builds == ["_torch"]


def test_doctor_says_which_library_or_mode_is_in_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def found() -> dict[str, str]:
        cli.main(["doctor", "--json", str(tmp_path / "found.json")])
        findings = json.loads((tmp_path / "found.json").read_text())["findings"]
        (finding,) = [f for f in findings if f["subject"] == "native torch library"]
        return finding

    monkeypatch.delenv("BRINGUP_NATIVE", raising=False)
    finding = found()
    assert (finding["health"], str(_find.running_key()) in finding["detail"]) == ("ok", True)
    _native.forget_torch_library()
    monkeypatch.setenv("BRINGUP_NATIVE", "0")
    finding = found()
    assert finding["health"] == "optional"
    assert "BRINGUP_NATIVE=0 asks for that" in finding["detail"]
    assert finding["fix"] == "unset BRINGUP_NATIVE"
    monkeypatch.setenv("BRINGUP_NATIVE", "perhaps")
    assert "expected auto, 1 or 0" in found()["detail"]


def test_nothing_breaks_at_import_and_what_needs_the_library_says_so_in_one_sentence() -> None:
    program = """
import torch, bringup
from bringup import devices, graphs, ops, compiler, kernels
print(torch._C._get_privateuse1_backend_name())
for use in (devices.load_driver, lambda: graphs.capture(graphs.CapturedGraph()).__enter__()):
    try:
        use()
    except bringup.errors.NativeLibraryError as error:
        print(error)
"""
    environment = os.environ | {"BRINGUP_NATIVE": "0"}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    without = "needs bringup's native torch library, and this process runs without it: "
    asked = "BRINGUP_NATIVE=0 asks for that"
    assert done.stdout.splitlines() == [
        "privateuseone",
        f"devices.load_driver {without}{asked}",
        f"graphs.capture {without}{asked}",
    ]
    assert done.stderr.count("bringup runs without its native torch library") == 1
