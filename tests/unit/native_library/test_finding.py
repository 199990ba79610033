"""The library that links libtorch: which one fits, and what happens where none does."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bringup import _native, cli, errors, graphs
from bringup._native import _build, _find, _manifest
from bringup._native._find import Key

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
BUILD_KEY = "1" * 64
HERE = _manifest.interpreter()
OTHER = Key("2.99", HERE.abi)


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


def put_library(folder: Path, built_with: str, name: str = f"_torch{SUFFIX}") -> Path:
    """A file that looks like a library and is none, and its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / name
    library.write_bytes(b"\x7fELF of " + built_with.encode())
    _manifest.write(folder, BUILD_KEY, built_with)
    return library


def change_manifest(folder: Path, **changes: str) -> None:
    """The manifest of a folder with one library, with other entries."""
    record = json.loads((folder / _manifest.MANIFEST).read_text())
    record["artifacts"][0].update(changes)
    (folder / _manifest.MANIFEST).write_text(json.dumps(record))


def paths(found: list[_find.LibraryCandidate]) -> list[Path]:
    return [candidate.path for candidate in found]


def compiled_library(folder: Path, built_with: str, listed_with: str = "") -> Path:
    """A module called `_torch` that says with which torch it was built, as its manifest does."""
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
    _manifest.write(folder, BUILD_KEY, listed_with or built_with)
    return library


def test_the_key_is_torch_minor_and_python_tag() -> None:
    major, minor = torch.__version__.split(".")[:2]
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert str(_find.running_key()).startswith(f"torch-{major}.{minor}-{tag}")


def test_of_several_side_by_side_the_one_of_the_key_comes_first(tmp_path: Path) -> None:
    older = put_library(tmp_path / f"torch-2.13-{HERE.abi}", "2.13.0+cpu")
    keyed = put_library(tmp_path / str(OTHER), "2.99.1+cpu")
    found = list(_find.candidates(OTHER, tmp_path))
    assert paths(found) == [keyed, older]
    assert found[0].incompatibility_reason(OTHER, BUILD_KEY) == ""
    reason = found[1].incompatibility_reason(OTHER)
    assert reason == f"{older} was built for torch 2.13, this is torch 2.99"


def test_two_interpreters_libraries_may_share_a_folder(tmp_path: Path) -> None:
    mine = put_library(tmp_path / str(OTHER), "2.99.0")
    other = put_library(tmp_path / str(OTHER), "2.99.0", "_torch.a-other.so")
    change_manifest(tmp_path / str(OTHER), python="cp399", abi="cp399")
    found = list(_find.candidates(OTHER, tmp_path))
    assert paths(found) == [other, mine]
    reasons = [candidate.incompatibility_reason(OTHER) for candidate in found]
    assert reasons == [f"{other} was built for Python cp399, this is {HERE.abi}", ""]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"platform": "linux_s390x"}, f"was built for linux_s390x, this is {HERE.platform}"),
        ({"python": "cp39", "abi": "cp39"}, f"was built for Python cp39, this is {HERE.abi}"),
        ({"abi": "cp311t"}, f"was built for Python cp311t, this is {HERE.abi}"),
        ({"torch": "2.98.0"}, "was built for torch 2.98, this is torch 2.99"),
        ({"build_key": "2" * 64}, f"was built from other sources ({'2' * 12}) than the native"),
        ({"sha256": "3" * 64}, "is damaged: its SHA-256 is"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    library = put_library(tmp_path / str(OTHER), "2.99.0")
    (candidate,) = _find.candidates(OTHER, tmp_path)
    assert candidate.incompatibility_reason(OTHER, BUILD_KEY) == ""
    change_manifest(library.parent, **changes)
    (candidate,) = _find.candidates(OTHER, tmp_path)
    assert candidate.incompatibility_reason(OTHER, BUILD_KEY).startswith(f"{library} {reason}")


def test_a_library_that_no_manifest_lists_is_refused(tmp_path: Path) -> None:
    library = put_library(tmp_path / str(OTHER), "2.99.0")
    (library.parent / _manifest.MANIFEST).unlink()
    (candidate,) = _find.candidates(OTHER, tmp_path)
    assert candidate.incompatibility_reason(OTHER) == (
        f"{library} is not in a manifest.json beside it"
    )


def test_a_manifest_lists_native_files_with_what_each_is_for(tmp_path: Path) -> None:
    (tmp_path / "torch-2.99-cp311").mkdir()
    (tmp_path / "_core.so").write_bytes(b"\x7fELF core")
    (tmp_path / "libengine.so").write_bytes(b"\x7fELF engine")
    (tmp_path / "_core.pyi").write_text("text")
    _manifest.write(tmp_path, BUILD_KEY)
    core, engine = _manifest.read(tmp_path)
    assert dataclasses.astuple(core)[:5] == ("_core.so", HERE.python, HERE.abi, HERE.platform, "")
    assert dataclasses.astuple(engine)[:4] == ("libengine.so", "", "none", HERE.platform)
    for artifact in (core, engine):
        assert artifact.damage(tmp_path) == ""
        (tmp_path / artifact.file).write_bytes(b"\x7fELF something else")
        assert "is damaged" in artifact.damage(tmp_path)
        (tmp_path / artifact.file).unlink()
        assert artifact.damage(tmp_path) == "cannot be read (No such file or directory)"
    assert _find.core_build_key(tmp_path) == BUILD_KEY
    assert _find.core_build_key(tmp_path / "nothing here") == ""
    another_python = dataclasses.replace(HERE, python="cp399", abi="cp399")
    assert engine.incompatibility_reason(another_python, "", "") == ""
    assert "cp399" in core.incompatibility_reason(another_python, "", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read: "),
        ("[]", "has format list, expected 1: reinstall bringup"),
        ('{"format": 2}', "has format 2, expected 1: reinstall bringup"),
        ('{"format": 1}', "has no list of artifacts: reinstall bringup"),
        ('{"format": 1, "artifacts": [{"file": "x"}]}', "has an artifact without abi, build_key"),
        ("[" * 100_000, "cannot be read: "),
        (" " * 1_000_001, "cannot be read: "),
        ("\0", "cannot be read: "),
    ],
    ids=lambda value: value[:12].replace("\0", "NUL"),
)
def test_a_manifest_that_cannot_be_used_is_named(tmp_path: Path, text: str, reason: str) -> None:
    library = put_library(tmp_path / str(OTHER), "2.99.0")
    manifest = library.parent / _manifest.MANIFEST
    manifest.write_text(text)
    (candidate,) = _find.candidates(OTHER, tmp_path)
    assert candidate.incompatibility_reason(OTHER).startswith(f"{manifest} {reason}")
    with pytest.raises(errors.NativeLibraryError, match=str(manifest)):
        _find.core_build_key(library.parent)


@pytest.mark.parametrize("file", [f"../_torch{SUFFIX}", "..", ".", "", "/etc/passwd", "a\0b"])
def test_a_manifest_cannot_lead_out_of_its_folder(tmp_path: Path, file: str) -> None:
    library = put_library(tmp_path / str(OTHER), "2.99.0")
    change_manifest(library.parent, file=file)
    (candidate,) = _find.candidates(OTHER, tmp_path)
    assert "which is not in its folder" in candidate.incompatibility_reason(OTHER)


def test_a_manifest_as_large_as_they_may_be_is_read(tmp_path: Path) -> None:
    library = put_library(tmp_path / str(OTHER), "2.99.0")
    manifest = library.parent / _manifest.MANIFEST
    manifest.write_text(manifest.read_text().ljust(1_000_000))
    assert [artifact.file for artifact in _manifest.read(library.parent)] == [library.name]


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_cache_that_others_may_write_is_not_built_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """It would be built for minutes and then not loaded."""
    package = Path(_native.__file__).resolve().parents[1]
    monkeypatch.setattr(_find, "source_folder", lambda: package)
    monkeypatch.setattr(_find, "source_digest", lambda sources: "1" * 64)
    monkeypatch.setattr(_build, "missing_tools", lambda: "")
    monkeypatch.setattr(_build, "obtain", lambda recipe: pytest.fail("a build was begun"))
    assert _native.recipe_for(_find.running_key())[0] is not None
    (tmp_path / "cache" / "native").mkdir(parents=True)
    (tmp_path / "cache" / "native").chmod(mode)
    reason = _native.torch_library_status().reason
    assert f"others than you may write {tmp_path}/cache/native; set BRINGUP_CACHE_DIR" in reason
    assert not _native.has_torch_library()


@pytest.mark.usefixtures("undecided")
def test_a_cache_that_cannot_be_looked_into_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_folder = Path.is_dir

    def refuse(path: Path) -> bool:
        if path.is_relative_to(tmp_path / "cache"):
            raise PermissionError(13, "Permission denied", str(path))
        return is_folder(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert list(_find.candidates(OTHER, tmp_path / "package")) == []


def test_fields_of_fx_nodes_are_members_that_the_engine_reads_in_place() -> None:
    """A torch whose nodes are written in Python would be right all the same, and slower."""
    node = torch.fx.Node
    fields = (node.op, node.target, node._args, node._kwargs)
    assert {type(field).__name__ for field in fields} == {"member_descriptor"}


def test_what_make_build_installed_is_what_its_manifests_say() -> None:
    folder = _native.library_dir()
    (candidate,) = _find.in_folder(folder / str(_find.running_key()))
    build_key = _find.core_build_key(folder)
    assert candidate.incompatibility_reason(_find.running_key(), build_key) == ""
    listed = _manifest.read(folder)
    assert {"libbringup_engine.so", "libbringup_runtime.so", "libbringup_sim.so"} < {
        artifact.file for artifact in listed
    }
    assert [artifact.damage(folder) for artifact in listed] == [""] * len(listed)


def test_a_library_of_the_cache_is_found_for_these_sources_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    sources = _find.source_folder()
    assert sources is not None
    put_library(_find.cache_folder(OTHER, "0" * 64), "2.99.0")
    assert list(_find.candidates(OTHER, tmp_path / "package")) == []
    mine = put_library(_find.cache_folder(OTHER, _find.source_digest(sources)), "2.99.0")
    assert paths(list(_find.candidates(OTHER, tmp_path / "package"))) == [mine]
    mine.parent.chmod(0o777)
    assert "others than you may write" in _find.distrust(mine.parent)
    assert list(_find.candidates(OTHER, tmp_path / "package")) == []


def test_the_cache_is_asked_only_where_there_are_sources_and_something_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digest reads all sources."""
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_find, "source_digest", lambda sources: pytest.fail("digested"))
    assert list(_find.candidates(OTHER, tmp_path / "package")) == []
    put_library(_find.cache_folder(OTHER, "0" * 64), "2.99.0")
    monkeypatch.setattr(_find, "source_folder", lambda: None)
    assert list(_find.candidates(OTHER, tmp_path / "package")) == []


@pytest.mark.usefixtures("undecided")
def test_a_fitting_library_is_loaded(tmp_path: Path) -> None:
    compiled_library(tmp_path / "package" / str(_find.running_key()), torch.__version__)
    assert _native.torch_library().torch_version == torch.__version__
    assert _native.torch_library_status().module is _native.torch_library()


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize("told", [True, False], ids=["manifest", "only loading tells"])
def test_a_library_for_another_torch_is_refused_by_both_versions_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, told: bool
) -> None:
    listed_with = "" if told else torch.__version__
    compiled_library(tmp_path / "package" / str(_find.running_key()), "2.99.0", listed_with)
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
    library = put_library(tmp_path / "package" / str(_find.running_key()), torch.__version__)
    status = _native.torch_library_status()
    assert status.module is None
    assert f"{library} cannot be loaded" in status.reason
    _native.forget_torch_library()
    library.write_bytes(b"\x7fELF cut off")
    status = _native.torch_library_status()
    assert status.module is None
    assert f"{library} is damaged: its SHA-256 is" in status.reason


@pytest.mark.usefixtures("undecided")
def test_a_torch_that_no_library_was_built_for_is_named_with_the_one_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compiled_library(tmp_path / "package" / str(_find.running_key()), torch.__version__)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    reason = _native.torch_library_status().reason
    built = _manifest.minor(torch.version.__version__)
    assert f"{library} was built for torch {built}, this is torch 2.99;" in reason
    assert f"its sources use private members of torch {built}, this is torch 2.99: pip" in reason
    assert "\n" not in reason


@pytest.mark.usefixtures("undecided")
def test_a_torch_that_the_sources_are_not_written_for_starts_no_build(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would compile for minutes and then end in a static_assert."""
    sources = _find.source_folder()
    assert sources is not None
    header = Path("native", "torch", "common", "torch_private.h")
    installed = tmp_path / "source"
    (installed / header.parent).mkdir(parents=True)
    shutil.copy(sources / header, installed / header)
    monkeypatch.setattr(_find, "source_folder", lambda: installed)
    monkeypatch.setattr(_native, "__file__", str(tmp_path / "_native" / "__init__.py"))
    monkeypatch.setattr(_build, "missing_tools", lambda: "")
    assert _native.recipe_for(_find.running_key())[0] is not None
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(_build, "obtain", lambda recipe: pytest.fail("a build was begun"))
    with caplog.at_level(logging.WARNING, logger="bringup.native"):
        assert not _native.has_torch_library()
    (record,) = caplog.records
    assert "its sources use private members of torch 2.13, this is torch 2.99" in record.message
    monkeypatch.setenv("BRINGUP_NATIVE", "1")
    _native.forget_torch_library()
    with pytest.raises(errors.NativeLibraryError, match=r"private members of torch 2\.13"):
        _native.has_torch_library()


def test_sources_that_do_not_say_for_which_torch_they_are_are_left_to_the_compiler(
    tmp_path: Path,
) -> None:
    assert _find.torch_of(tmp_path) == ""
    header = tmp_path / "native" / "torch" / "common" / "torch_private.h"
    header.parent.mkdir(parents=True)
    header.write_text("#pragma once\n")
    assert _find.torch_of(tmp_path) == ""


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
    asked = "BRINGUP_NATIVE=0 asks for that (`bringup doctor` says how to get it)"
    assert done.stdout.splitlines() == [
        "privateuseone",
        f"devices.load_driver {without}{asked}",
        f"graphs.capture {without}{asked}",
    ]
    assert done.stderr.count("bringup runs without its native torch library") == 1
