"""Bundles: kernels in one file, used where there is no compiler, refused by name where they do not
fit or are damaged.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import forget, new_process, output_of, run

from bringup import jit
from bringup.errors import BundleError, MissingCompilerError


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """What makes this another machine: another cache, and no compiler."""

    def go() -> Path:
        root = tmp_path / "elsewhere"
        monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
        monkeypatch.setenv("PATH", str(tmp_path))
        forget()
        return root

    return go


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def test_a_bundle_is_used_where_there_is_no_compiler(
    root: Path, source: jit.Source, tmp_path: Path, elsewhere: Callable[[], Path]
) -> None:
    """AOT bundle, export and import, no toolchain."""
    built = jit.compile(source, macros={"N": 4})
    bundle = tmp_path / "kernels.zip"
    assert [entry.key for entry in jit.cache().export_bundle(bundle)] == [built.key]
    folder = elsewhere()
    with pytest.raises(MissingCompilerError):
        jit.compile(source, macros={"N": 4})
    (entry,) = jit.cache().import_bundle(bundle)
    assert entry.key == built.key
    found = jit.compile(source, macros={"N": 4})
    assert found.path.is_relative_to(folder)
    x = np.zeros(2, np.float32)
    run(found, x)
    assert x.tolist() == [4, 4]


def test_a_bundle_of_a_source_in_another_folder_is_found(
    root: Path, tmp_path: Path, elsewhere: Callable[[], Path]
) -> None:
    text = '#include "value.h"\nextern "C" int run() { return VALUE; }\n'
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "k.cpp").write_text(text)
        (tmp_path / name / "value.h").write_text("#define VALUE 1\n")
    jit.compile(jit.Source(tmp_path / "here" / "k.cpp"))
    jit.cache().export_bundle(tmp_path / "kernels.zip")
    elsewhere()
    jit.cache().import_bundle(tmp_path / "kernels.zip")
    assert jit.compile(jit.Source(tmp_path / "there" / "k.cpp")).path.is_file()
    (tmp_path / "there" / "value.h").write_text("#define VALUE 2\n")
    with pytest.raises(MissingCompilerError, match="it was built from other headers"):
        jit.compile(jit.Source(tmp_path / "there" / "k.cpp"))


def test_an_imported_kernel_goes_before_a_compile(
    root: Path,
    source: jit.Source,
    tmp_path: Path,
    counted: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jit.compile(source)
    jit.cache().export_bundle(tmp_path / "kernels.zip")
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("BRINGUP_JIT_CXX", "clang++")
    forget()
    jit.cache().import_bundle(tmp_path / "kernels.zip")
    with jit.frozen():
        assert jit.compile(source).path.is_file()
    assert counted() == 1


def test_chosen_kernels_are_exported(root: Path, source: jit.Source, tmp_path: Path) -> None:
    first = jit.compile(source)
    jit.compile(source, macros={"N": 2})
    (entry,) = jit.cache().export_bundle(tmp_path / "one.zip", [first.key[:12]])
    assert entry.key == first.key


def test_the_same_kernels_make_the_same_bundle(
    root: Path, source: jit.Source, tmp_path: Path
) -> None:
    jit.compile(source)
    for name in ("a", "b"):
        jit.cache().export_bundle(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_key_that_names_nothing_or_too_much_is_refused(
    root: Path, source: jit.Source, tmp_path: Path
) -> None:
    with pytest.raises(LookupError, match="has nothing to export"):
        jit.cache().export_bundle(tmp_path / "b.zip")
    jit.compile(source)
    with pytest.raises(LookupError, match=r"0 entries of the cache .* begin with 'xyz'"):
        jit.cache().export_bundle(tmp_path / "b.zip", ["xyz"])
    with pytest.raises(TypeError, match="expected a list of keys"):
        jit.cache().export_bundle(tmp_path / "b.zip", "abc")
    assert not (tmp_path / "b.zip").exists()


def damage_binary(files: dict[str, bytes]) -> None:
    name = next(name for name in files if name.endswith("kernel.so"))
    files[name] = files[name][:-1] + b"x"


def damage_meta(files: dict[str, bytes]) -> None:
    name = next(name for name in files if name.endswith("meta.json"))
    files[name] += b" "


def drop_binary(files: dict[str, bytes]) -> None:
    del files[next(name for name in files if name.endswith("kernel.so"))]


def later_format(files: dict[str, bytes]) -> None:
    files["bundle.json"] = json.dumps({"format": 2, "entries": []}).encode()


def escape(files: dict[str, bytes]) -> None:
    name = next(name for name in files if name.endswith("meta.json"))
    files[f"{name.partition('/')[0]}/../../evil"] = b"x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage_binary, r"kernels\.zip is not used: entry [0-9a-f]+: kernel\.so is damaged"),
        (damage_meta, r"meta\.json is damaged"),
        (drop_binary, "it has other files than its meta.json says"),
        (later_format, "it has format 2, this bringup reads format 1"),
        (escape, "it has other files than its meta.json says"),
        (dict.clear, "is no bundle, or a damaged one"),
    ],
)
def test_a_damaged_bundle_is_refused_whole(
    root: Path,
    source: jit.Source,
    tmp_path: Path,
    elsewhere: Callable[[], Path],
    change: Callable[[dict[str, bytes]], None],
    message: str,
) -> None:
    """Digests before anything is loaded."""
    jit.compile(source)
    bundle = tmp_path / "kernels.zip"
    jit.cache().export_bundle(bundle)
    rewrite(bundle, change)
    elsewhere()
    with pytest.raises(BundleError, match=message):
        jit.cache().import_bundle(bundle)
    assert jit.cache().entries() == []


def test_no_flipped_or_missing_byte_gets_through(
    root: Path, source: jit.Source, tmp_path: Path, elsewhere: Callable[[], Path]
) -> None:
    """Whatever zlib, zipfile and json make of it, it is a damaged bundle."""
    built = jit.compile(source)
    bundle = tmp_path / "kernels.zip"
    jit.cache().export_bundle(bundle)
    content = bundle.read_bytes()
    binary = built.path.read_bytes()
    elsewhere()
    for place in range(0, len(content), max(1, len(content) // 150)):
        flipped = bytes((content[place] ^ 0x55,))
        for damaged in (content[:place], content[:place] + flipped + content[place + 1 :]):
            bundle.write_bytes(damaged)
            try:
                (entry,) = jit.cache().import_bundle(bundle)
            except BundleError:
                continue
            # In a time, an attribute, or a place that nobody reads.
            assert (entry.path / "kernel.so").read_bytes() == binary


def test_a_damaged_entry_is_put_aside_and_the_others_are_exported(
    root: Path, source: jit.Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = (jit.compile(source, macros={"N": n}) for n in range(2))
    (bad.folder / "build.log").write_text("something else")
    bundle = tmp_path / "kernels.zip"
    assert [entry.key for entry in jit.cache().export_bundle(bundle)] == [good.key]
    assert "build.log is damaged; moved to" in caplog.text
    assert [entry.key for entry in jit.cache().entries()] == [good.key]
    (good.folder / "build.log").write_text("something else")
    with pytest.raises(BundleError, match=r"build\.log is damaged"):
        jit.cache().export_bundle(bundle, [good.key])


def test_a_kernel_that_is_named_twice_is_exported_once(
    root: Path, source: jit.Source, tmp_path: Path
) -> None:
    built = jit.compile(source)
    bundle = tmp_path / "kernels.zip"
    assert len(jit.cache().export_bundle(bundle, [built.key, built.key[:12]])) == 1


def test_a_file_that_is_no_bundle_is_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(BundleError, match=r"notes\.txt is no bundle, or a damaged one"):
        jit.cache().import_bundle(tmp_path / "notes.txt")
    with pytest.raises(FileNotFoundError):
        jit.cache().import_bundle(tmp_path / "gone.zip")


def test_a_bundle_for_another_processor_is_refused_by_name(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit.target import machine

    jit.compile(source)
    bundle = tmp_path / "kernels.zip"
    jit.cache().export_bundle(bundle)
    needed = jit.cache().entries()[0].meta()["origin"]["requires"]
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(machine, "features", lambda: frozenset(needed[:-1]))
    with pytest.raises(
        BundleError, match=rf"nothing in the bundle .* is for this machine: .* needs {needed[-1]}"
    ):
        jit.cache().import_bundle(bundle)
    monkeypatch.setattr(machine, "this_machine", lambda: "riscv64")
    with pytest.raises(BundleError, match=r"built for .*, this machine is riscv64"):
        jit.cache().import_bundle(bundle)


def test_what_does_not_fit_is_left_out_with_a_warning(
    root: Path,
    source: jit.Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from bringup.jit.target import machine

    jit.compile(source)
    aarch64 = jit.compile(jit.Source(text='extern "C" int run() { return 1; }'), target="aarch64")
    bundle = tmp_path / "kernels.zip"
    jit.cache().export_bundle(bundle)
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(machine, "features", lambda: frozenset())
    (entry,) = jit.cache().import_bundle(bundle)
    assert entry.key == aarch64.key
    assert f"1 entries of {bundle} are not for this machine: add.cpp" in caplog.text


def test_another_process_uses_the_bundle(
    root: Path, source: jit.Source, tmp_path: Path, elsewhere: Callable[[], Path]
) -> None:
    jit.compile(source)
    jit.cache().export_bundle(tmp_path / "kernels.zip")
    folder = elsewhere()
    jit.cache().import_bundle(tmp_path / "kernels.zip")
    assert Path(output_of(new_process(source))).is_relative_to(folder)


def test_a_bundle_cannot_be_written_where_there_is_no_folder(
    root: Path, source: jit.Source, tmp_path: Path
) -> None:
    jit.compile(source)
    with pytest.raises(FileNotFoundError):
        jit.cache().export_bundle(tmp_path / "no" / "folder.zip")
    assert not list(tmp_path.glob(".folder*"))
