"""What a call was answered with is recalled in a new process as long as nothing that the answer
depends on has changed. `forget` stands for the new process here.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.jit.support import ADD, forget, new_process, output_of, run

from bringup import _native, jit
from bringup.jit.files import headers, identity
from bringup.jit.lookup import compilation, events
from bringup.jit.store import call_records
from bringup.jit.target import gnu

WITH_HEADER = '#include "n.h"\n' + ADD


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources for which somebody had to look for the compiler."""
    seen: list[str] = []
    original = compilation.with_compiler

    def noted(request: Any, store: jit.Cache) -> Any:
        seen.append(request.source.name)
        return original(request, store)

    monkeypatch.setattr(compilation, "with_compiler", noted)
    return seen


@pytest.fixture
def kernel(tmp_path: Path) -> jit.Source:
    """A source with a header of its own, neither of them young."""
    folder = tmp_path / "kernel"
    folder.mkdir()
    (folder / "n.h").write_text("#define N 1\n")
    path = folder / "add.cpp"
    path.write_text(WITH_HEADER)
    while not headers.is_settled(identity.stamp(path)):
        time.sleep(0.01)
    return jit.Source(path)


@pytest.fixture(autouse=True)
def nothing_stays_loaded() -> Iterator[None]:
    """Other tests load kernels with the same keys."""
    yield
    jit.cache().unload()


@pytest.fixture
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stamps prove something at once, without waiting for the file system's clock."""
    monkeypatch.setattr(headers, "is_settled", lambda _stamp: True)


def records(root: Path) -> list[Path]:
    folder = root / "v1" / ".calls"
    return sorted(folder.iterdir()) if folder.exists() else []


def folder_of(source: jit.Source) -> Path:
    return Path(source.directory)


def added(binary: jit.Binary) -> float:
    """What the kernel adds."""
    x = np.zeros(1, np.float32)
    run(binary, x)
    return float(x[0])


def test_a_new_process_needs_neither_the_compiler_nor_the_manifest(
    root: Path, kernel: jit.Source, asked: list[str]
) -> None:
    binary = jit.compile(kernel)
    assert len(records(root)) == 1
    for path in (*root.glob("v1/.manifests/*"), *root.glob("v1/.toolchains/*")):
        path.unlink()
    asked.clear()
    forget()
    assert jit.compile(kernel) == binary
    assert asked == []
    assert output_of(new_process(kernel)) == str(binary.path)
    assert list(root.glob("v1/.toolchains/*")) == []
    assert added(binary) == 1


def test_a_text_is_recalled_by_its_content(root: Path, asked: list[str]) -> None:
    binary = jit.compile(jit.Source(text=ADD))
    asked.clear()
    forget()
    assert jit.compile(jit.Source(text=ADD)) == binary
    assert asked == []
    assert jit.compile(jit.Source(text=ADD + "\n")).key != binary.key


@pytest.mark.parametrize("name", ["add.cpp", "n.h"])
def test_a_changed_file_is_another_build(
    root: Path, kernel: jit.Source, asked: list[str], name: str
) -> None:
    binary = jit.compile(kernel)
    changed = folder_of(kernel) / name
    before = changed.stat()
    changed.write_text(changed.read_text().replace("N 1", "N 2").replace("+= N", "+= 2"))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    forget()
    other = jit.compile(kernel)
    assert other.key != binary.key
    assert added(other) == 2


def test_what_another_process_noted_meanwhile_is_checked_whole(
    root: Path, kernel: jit.Source
) -> None:
    binary = jit.compile(kernel)
    assert jit.compile(kernel) is binary
    (folder_of(kernel) / "n.h").write_text("#define N 2\n")
    other = Path(output_of(new_process(kernel)))
    found = jit.compile(kernel)
    assert found.path == other != binary.path
    assert added(found) == 2


@pytest.mark.parametrize("name", ["add.cpp", "n.h"])
def test_a_touched_file_costs_one_look_at_contents(
    root: Path,
    kernel: jit.Source,
    asked: list[str],
    counted: Callable[[], int],
    old_files: None,
    name: str,
) -> None:
    binary = jit.compile(kernel)
    asked.clear()
    os.utime(folder_of(kernel) / name)
    for looked in (1, 1):
        forget()
        assert jit.compile(kernel) == binary
        assert len(asked) == looked
    assert counted() == 1


def test_a_header_that_would_be_found_first_is_seen(
    root: Path, tmp_path: Path, asked: list[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (second / "sys").mkdir()
    (second / "sys" / "n.h").write_text("#define N 1\n")
    source = jit.Source(text="#include <sys/n.h>\n" + ADD)
    flags = [f"-I{first}", f"-I{second}"]
    binary = jit.compile(source, flags=flags)
    asked.clear()
    (first / "other.h").write_text("")
    forget()
    assert jit.compile(source, flags=flags) == binary
    assert asked == []  # a file of another name is none
    (first / "sys").mkdir()
    (first / "sys" / "n.h").write_text("#define N 2\n")
    forget()
    assert added(jit.compile(source, flags=flags)) == 2


def test_a_header_is_seen_in_a_folder_that_came_after_the_build(
    root: Path, tmp_path: Path, old_files: None
) -> None:
    """The folder above does not change a second time."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second / "sys"):
        folder.mkdir(parents=True)
    (second / "sys" / "n.h").write_text("#define N 1\n")
    source = jit.Source(text="#include <sys/n.h>\n" + ADD)
    flags = [f"-I{first}", f"-I{second}"]
    jit.compile(source, flags=flags)
    (first / "sys").mkdir()
    os.utime(first / "sys", ns=(0, 0))  # the next change shows, however coarse the clock
    for _ in range(2):
        jit.compile(source, flags=flags)
    (first / "sys" / "n.h").write_text("#define N 2\n")
    assert added(jit.compile(source, flags=flags)) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"macros": {"N": 2}},
        {"flags": ["-DN=2"]},
        {"flags": ["-O1"]},
        {"target": "sim"},
        {"debug": jit.Debug(line_info=True)},
    ],
)
def test_another_call_is_not_answered_with_it(
    root: Path, asked: list[str], changed: dict[str, Any]
) -> None:
    source = jit.Source(text=ADD)
    binary = jit.compile(source)
    asked.clear()
    assert jit.compile(source, **changed).key != binary.key
    assert len(asked) == 1


@pytest.mark.parametrize("given", [{"entry": "go"}, {"abi": "params"}, {"kind": "device"}])
def test_another_form_of_the_entry_is_another_call(root: Path, given: dict[str, Any]) -> None:
    def name(source: jit.Source) -> str:
        return call_records.call_name(
            compilation.request_without_compiler(source, {}, "cpu", (), None)
        )

    assert name(jit.Source(text=ADD)) != name(jit.Source(text=ADD, **given))
    assert name(jit.Source(text=ADD)) == name(jit.Source(text=ADD, name="other.cpp"))


def test_an_upgraded_compiler_is_asked(root: Path, tmp_path: Path, asked: list[str]) -> None:
    compiler = tmp_path / "my-c++"
    compiler.write_text('#!/bin/sh\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    source = jit.Source(text=ADD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRINGUP_JIT_CXX", str(compiler))
        binary = jit.compile(source)
        compiler.write_text('#!/bin/sh\n# upgraded\nexec c++ "$@"\n')
        forget()
        asked.clear()
        assert jit.compile(source).key != binary.key
    forget()
    assert jit.compile(source).key != binary.key  # another compiler was chosen
    assert len(asked) == 2


def test_a_compiler_that_comes_earlier_on_the_path_is_found(
    root: Path, tmp_path: Path, kernel: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = tmp_path / "bin"
    early.mkdir()
    monkeypatch.setenv("PATH", f"{early}:{os.environ['PATH']}")
    binary = jit.compile(kernel)
    compiler = early / "c++"
    compiler.write_text('#!/bin/sh\nexec /usr/bin/c++ "$@"\n')
    compiler.chmod(0o755)
    assert output_of(new_process(kernel)) != str(binary.path)


@pytest.mark.parametrize("variable", ["PATH", "LD_LIBRARY_PATH"])
def test_another_environment_is_another_call(
    root: Path, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    source = jit.Source(text=ADD)
    jit.compile(source)
    monkeypatch.setenv(variable, f"{os.environ.get(variable, '')}:{tmp_path}")
    forget()
    asked.clear()
    jit.compile(source)
    assert len(asked) == 1


def test_another_installation_of_bringup_is_another_call(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = compilation.request_without_compiler(jit.Source(text=ADD), {}, "cpu", (), None)
    name = call_records.call_name(request)
    monkeypatch.setattr(gnu, "bringup_includes", lambda: ("/elsewhere",))
    assert call_records.call_name(request) != name


def test_another_machine_or_boot_asks_for_itself(
    root: Path, kernel: jit.Source, asked: list[str]
) -> None:
    """The same files may lie on a machine with another processor."""
    binary = jit.compile(kernel)
    (record,) = records(root)
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    assert boot in record.read_bytes()
    record.write_bytes(record.read_bytes().replace(boot, boot[::-1]))
    asked.clear()
    forget()
    assert jit.compile(kernel) == binary
    assert len(asked) == 1


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "replaced", "gone"])
def test_a_damaged_binary_is_never_loaded(
    root: Path,
    kernel: jit.Source,
    counted: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    binary = jit.compile(kernel)
    content = binary.path.read_bytes()
    if damage == "gone":
        binary.path.unlink()
    else:
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        replaced = jit.compile(kernel, macros={"OTHER": 1}).path.read_bytes() + b"\0"
        now = {
            "truncated": content[:-1], "flipped": bytes(flipped), "empty": b"", "replaced": replaced
        }  # fmt: skip
        binary.path.write_bytes(now[damage])
    before = counted()
    forget()
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        assert jit.compile(kernel) == binary
    assert binary.path.read_bytes() == content
    assert counted() == before + 1
    assert [entry.message.count("damaged kernel cache entry") for entry in caplog.records] == [1]


def test_a_pruned_entry_is_built_again(
    root: Path, kernel: jit.Source, counted: Callable[[], int]
) -> None:
    binary = jit.compile(kernel)
    jit.cache().prune(max_entries=0)
    assert len(records(root)) == 1  # a young one may belong to an entry that is just coming
    forget()
    assert jit.compile(kernel) == binary
    assert binary.path.exists()
    assert counted() == 2


def test_an_entry_that_is_pruned_while_the_process_lives_is_built_again(
    root: Path, kernel: jit.Source, counted: Callable[[], int]
) -> None:
    binary = jit.compile(kernel)
    assert jit.compile(kernel) is binary
    jit.cache().prune(max_entries=0)
    assert jit.compile(kernel) == binary
    assert counted() == 2


@pytest.mark.parametrize("which", ["", "v1"])
def test_nothing_is_recalled_from_a_folder_that_others_may_write(
    root: Path, kernel: jit.Source, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    jit.compile(kernel)
    folder = root / which
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IWOTH)
    forget()
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        assert not jit.compile(kernel).path.is_relative_to(root)
    assert f"{folder} can be written by others" in caplog.text


def test_what_was_recalled_and_loaded_is_in_use(root: Path, kernel: jit.Source) -> None:
    """A prune never takes what is loaded."""
    key = jit.compile(kernel).key
    forget()
    binary = jit.compile(kernel)
    assert [entry.in_use for entry in jit.cache().entries()] == [False]
    assert added(binary) == 1
    assert [entry.in_use for entry in jit.cache().entries()] == [True]
    assert jit.cache().prune(max_entries=0).in_use == (key,)


def test_a_damaged_record_is_only_a_lost_one(
    root: Path, kernel: jit.Source, asked: list[str]
) -> None:
    binary = jit.compile(kernel)
    (record,) = records(root)
    whole = record.read_bytes()
    fields = whole.split(b"\0")
    damaged = [b"\0".join(fields[:n]) for n in range(len(fields))]
    damaged += [b"\0".join(fields[:n]) + b"\0" for n in range(len(fields) - 1)]
    damaged += [whole + b"\0", whole + b"x", bytes(len(whole)), whole.replace(b"\0", b"\n")]
    for position in range(4, 8):  # how many files and places there are, and how many for each call
        for wrong in (b"-1", b"", b"x", b"99999999999999999999", b"%d" % sys.maxsize):
            damaged.append(b"\0".join([*fields[:position], wrong, *fields[position + 1 :]]))
    for content in damaged:
        record.write_bytes(content)
        assert _native.core().recall_call(os.fsencode(record)) is None, content[-80:]
    asked.clear()
    forget()
    assert jit.compile(kernel) == binary
    assert len(asked) == 1
    assert record.read_bytes().split(b"\0")[:3] == fields[:3]


def test_there_is_no_record_where_stamps_prove_nothing_yet(
    root: Path, kernel: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = folder_of(kernel) / "n.h"
    later = time.time_ns() + 10**12
    os.utime(header, ns=(later, later))
    jit.compile(kernel)
    assert records(root) == []


def test_there_is_no_record_where_the_path_depends_on_the_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"bin:{os.environ['PATH']}")
    jit.compile(jit.Source(text=ADD))
    assert records(root) == []


def test_a_target_of_somebody_elses_class_is_always_asked(root: Path, asked: list[str]) -> None:
    class Mine(jit.GnuTarget):
        """Asks for more than its base, perhaps."""

    jit.register_target(Mine("mine", ["c++"], march="native", get=""))
    for _ in range(2):
        forget()
        jit.compile(jit.Source(text=ADD), target="mine")
    assert len(asked) == 2
    assert records(root) == []


def test_another_target_of_the_same_name_is_another_call(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit.register_target(jit.GnuTarget("twice", ["c++"], march="native", get=""), replace=True)
    binary = jit.compile(jit.Source(text=ADD), target="twice")
    plain = "x86-64" if os.uname().machine == "x86_64" else "armv8-a"
    jit.register_target(jit.GnuTarget("twice", ["c++"], march=plain, get=""), replace=True)
    forget()
    assert jit.compile(jit.Source(text=ADD), target="twice").key != binary.key


def test_who_listens_hears_of_a_call_that_could_be_recalled(root: Path, kernel: jit.Source) -> None:
    jit.compile(kernel)
    heard: list[Any] = []
    stop = events.subscribe(heard.append, events.Asked)
    try:
        forget()
        jit.compile(kernel)
    finally:
        stop()
    assert [event.request.toolchain.version != "" for event in heard] == [True]


def test_a_cache_that_cannot_be_written_is_recalled_from(
    root: Path, kernel: jit.Source, asked: list[str]
) -> None:
    """Read-only cache."""
    binary = jit.compile(kernel)
    (root / "v1" / ".calls").rename(root / "v1" / ".calls-before")
    (root / "v1" / ".calls").write_text("no folder")
    forget()
    assert jit.compile(kernel) == binary  # nothing can be noted
    (root / "v1" / ".calls").unlink()
    (root / "v1" / ".calls-before").rename(root / "v1" / ".calls")
    asked.clear()
    forget()
    assert jit.compile(kernel) == binary
    assert asked == []


def test_records_go_with_their_entries_and_by_age(root: Path, kernel: jit.Source) -> None:
    jit.compile(kernel)
    (record,) = records(root)
    now = time.time()
    os.utime(record, (now - 120, now - 120))
    jit.cache().prune()
    assert records(root) == [record]
    jit.cache().prune(max_entries=0)
    assert records(root) == []
    forget()
    jit.compile(kernel)
    os.utime(record, (now - 8 * 86_400, now - 8 * 86_400))
    jit.cache().prune()
    assert records(root) == []
    forget()
    jit.compile(kernel)
    assert records(root) == [record]
    jit.cache().clear()
    assert records(root) == []
