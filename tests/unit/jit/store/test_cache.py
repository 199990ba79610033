"""The store: what counts as a change, damage, races, killed builds, folders that are no use."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD, REPOSITORY, forget, new_process, output_of

from bringup import jit
from bringup.errors import CompileError, MissingKernelError
from bringup.jit.files import headers

NOBODY = 65534


def test_memory_disk_and_another_process_find_the_build(
    root: Path, source: jit.Source, counted: Callable[[], int]
) -> None:
    first = jit.compile(source)
    assert jit.compile(source) is first
    forget()
    assert jit.compile(source) == first
    assert output_of(new_process(source)) == str(first.path)
    assert counted() == 1


def test_a_change_of_the_source_is_seen_and_a_touch_is_none(
    root: Path, source: jit.Source, counted: Callable[[], int]
) -> None:
    path = Path(str(source.path))
    text = path.read_text()
    first = jit.compile(source)
    path.write_text(text)
    os.utime(path, (1, 1))
    assert jit.compile(source) == first
    path.write_text(text.replace("+=", "-="))
    os.utime(path, (1, 1))  # same size, same time: the content decides
    assert jit.compile(source).key != first.key
    path.write_text(text)
    assert jit.compile(source) == first
    assert counted() == 2


def test_a_change_of_a_header_is_seen_and_a_touch_is_none(
    root: Path, tmp_path: Path, counted: Callable[[], int]
) -> None:
    outer, inner = tmp_path / "outer.h", tmp_path / "inner.h"
    outer.write_text('#include "inner.h"\n')
    inner.write_text("#define VALUE 1\n")
    path = tmp_path / "k.cpp"
    path.write_text('#include "outer.h"\nextern "C" int run() { return VALUE; }\n')
    first = jit.compile(jit.Source(path))
    inner.write_text("#define VALUE 1\n")
    assert jit.compile(jit.Source(path)) == first
    inner.write_text("#define VALUE 2\n")
    for again in (jit.compile(jit.Source(path)), forget() or jit.compile(jit.Source(path))):
        assert again.key != first.key
    inner.write_text("#define VALUE 1\n")
    forget()
    assert jit.compile(jit.Source(path)) == first
    assert counted() == 2


@pytest.mark.parametrize("name", ["a b=c $HOME #1 it's", "späß", "\udcff"])
def test_folders_and_headers_with_difficult_names_are_followed(
    root: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    header = folder / f"{name}.h"
    header.write_text("#define VALUE 1\n")
    path = folder / "k.cpp"
    text = f'#include "{header.name}"\nextern "C" int run() {{ return VALUE; }}\n'
    path.write_bytes(os.fsencode(text))
    first = jit.compile(jit.Source(path))
    header.write_text("#define VALUE 2\n")
    assert jit.compile(jit.Source(path)).key != first.key


def test_a_removed_header_is_a_compile_error_not_a_stale_hit(root: Path, tmp_path: Path) -> None:
    header, path = tmp_path / "gone.h", tmp_path / "k.cpp"
    header.write_text("#define VALUE 1\n")
    path.write_text('#include "gone.h"\nextern "C" int run() { return VALUE; }\n')
    jit.compile(jit.Source(path))
    header.unlink()
    with pytest.raises(CompileError, match=r"gone\.h: No such file"):
        jit.compile(jit.Source(path))


def test_a_source_that_changes_while_it_is_compiled_is_compiled_again(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = ADD.replace("+=", "-=")
    (tmp_path / "next.cpp").write_text(changed)
    wrapper = tmp_path / "meddling-c++"
    wrapper.write_text(
        '#!/bin/sh\nc++ "$@" || exit 1\n'
        f'case " $* " in *" -o "*) cp {tmp_path / "next.cpp"} {source.path};; esac\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))
    binary = jit.compile(source)
    meta = json.loads((binary.path.parent / "meta.json").read_text())
    assert (binary.path.parent / "add.cpp").read_text() == changed
    assert meta["record"]["source"] == [source.digest()]


@pytest.mark.parametrize(
    ("changing", "message"),
    [
        ("k.cpp", r"k\.cpp: it kept changing while it was compiled"),
        ("k.h", r"k\.cpp: its headers kept changing while it was compiled"),
    ],
)
@pytest.mark.parametrize("is_read", ["at once", "long after it changed"])
def test_a_file_that_never_stops_changing_is_a_compile_error(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changing: str,
    message: str,
    is_read: str,
) -> None:
    if is_read != "at once":
        monkeypatch.setattr(headers, "is_settled", lambda _stamp: True)
    (tmp_path / "k.h").write_text("")
    (tmp_path / "k.cpp").write_text('#include "k.h"\nextern "C" int run() { return 0; }\n')
    wrapper = tmp_path / "meddling-c++"
    wrapper.write_text(
        '#!/bin/sh\nc++ "$@" || exit 1\n'
        f'case " $* " in *" -o "*) echo // >> {tmp_path / changing};; esac\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))
    with pytest.raises(CompileError, match=message):
        jit.compile(jit.Source(tmp_path / "k.cpp"))
    assert jit.cache().entries() == []


def test_a_lock_that_is_held_too_long_is_not_waited_for(
    root: Path,
    source: jit.Source,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    binary = jit.compile(source)
    (lock,) = (root / "v1" / ".locks").iterdir()
    shutil.rmtree(binary.path.parent)
    monkeypatch.setattr("bringup.jit.lookup.building.lock_seconds", lambda: 0.05)
    with lock.open("r+") as held, caplog.at_level(logging.WARNING, "bringup.jit"):
        fcntl.flock(held, fcntl.LOCK_EX)
        assert jit.compile(source) == binary
    assert "add.cpp for too long: built here" in caplog.text


def test_the_entry_says_what_it_is(root: Path, source: jit.Source) -> None:
    binary = jit.compile(source, macros={"N": 2})
    meta = json.loads((binary.path.parent / "meta.json").read_text())
    assert meta["key"] == binary.key
    assert meta["record"]["macros"] == ["N=2"]
    assert meta["files"]["kernel.so"]["size"] == binary.path.stat().st_size
    assert "-DN=2" in (binary.path.parent / "build.log").read_text()
    assert (binary.path.parent / "add.cpp").read_text() == Path(str(source.path)).read_text()
    (entry,) = jit.cache().entries()
    assert (entry.key, entry.name, entry.path) == (binary.key, "add.cpp", binary.path.parent)
    assert entry.bytes == sum(file.stat().st_size for file in binary.path.parent.iterdir())
    assert jit.cache().root == root


def test_nothing_is_left_in_staging(root: Path, source: jit.Source) -> None:
    jit.compile(source)
    with pytest.raises(CompileError):
        jit.compile(jit.Source(text="no"))
    assert list((root / "v1" / ".staging").iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "bit", "empty", "gone", "foreign", "meta", "file"])
def test_a_damaged_entry_is_put_aside_and_built_again(
    root: Path, source: jit.Source, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    binary = jit.compile(source)
    entry, content = binary.path.parent, binary.path.read_bytes()
    if damage == "truncated":
        binary.path.write_bytes(content[:100])
    elif damage == "bit":
        binary.path.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    elif damage == "empty":
        binary.path.write_bytes(b"")
    elif damage == "gone":
        binary.path.unlink()
    elif damage == "foreign":
        other = jit.compile(source, macros={"N": 9})
        shutil.rmtree(entry)
        shutil.copytree(other.path.parent, entry)
    elif damage == "meta":
        (entry / "meta.json").write_text("{")
        binary.path.write_bytes(content[:100])
    else:
        shutil.rmtree(entry)
        entry.write_text("a file where a folder belongs")
    forget()
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        assert jit.compile(source) == binary
    assert binary.path.read_bytes() == content
    assert [record.message.count("damaged kernel cache entry") for record in caplog.records] == [1]
    assert (root / "v1" / ".quarantine" / binary.key).exists()


def test_damage_that_cannot_be_put_aside_leads_to_a_private_cache(
    root: Path, source: jit.Source, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = jit.compile(source).path
    damaged.write_bytes(b"damaged")
    (root / "v1" / ".quarantine").write_text("no folder")
    forget()
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        assert not jit.compile(source).path.is_relative_to(root)
    assert f"{damaged.parent} holds something that cannot be put aside" in caplog.text


def test_a_damaged_manifest_is_only_a_lost_index(
    root: Path, source: jit.Source, counted: Callable[[], int]
) -> None:
    binary = jit.compile(source)
    (manifest,) = (root / "v1" / ".manifests").iterdir()
    for text in ("", "{", '[["k", 1, "s", [["/nowhere", "d", null]]]]', "[[1, 2]]", '["x"]'):
        manifest.write_text(text)
        shutil.rmtree(root / "v1" / ".calls")  # which spare a call the manifest
        forget()
        assert jit.compile(source) == binary
    assert counted() == 6


def test_a_damaged_compiler_memo_is_asked_again(root: Path, source: jit.Source) -> None:
    built = output_of(new_process(source))  # this process may know the compiler already
    (memo,) = (root / "v1" / ".toolchains").iterdir()
    for text in ("", "{}", "[]", '{"booted": 1}'):
        memo.write_text(text)
        assert output_of(new_process(source)) == built


def test_a_new_compiler_is_a_new_build(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "my-c++"
    wrapper.write_text('#!/bin/sh\nexec c++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))
    first = jit.compile(source)
    wrapper.write_text('#!/bin/sh\n# upgraded\nexec c++ "$@"\n')
    assert jit.compile(source).key != first.key


def test_threads_build_once_and_other_keys_do_not_wait(
    root: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hit = jit.compile(source)
    gate, notes = tmp_path / "gate", tmp_path / "notes"
    os.mkfifo(gate)
    wrapper = tmp_path / "slow-c++"
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" -DN=7 "*) echo >> {notes}; read x < {gate};; esac\n'
        'exec c++ "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("BRINGUP_JIT_CXX", str(wrapper))
    found: list[jit.Binary] = []
    threads = [
        threading.Thread(target=lambda: found.append(jit.compile(source, macros={"N": 7})))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    with gate.open("w") as opened:  # returns once the build waits at the gate
        assert jit.compile(source, macros={"N": 8}).path.is_file()
        monkeypatch.delenv("BRINGUP_JIT_CXX")
        assert jit.compile(source) == hit
        assert found == []
        opened.write("go\n")
    for thread in threads:
        thread.join(timeout=240)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert len(notes.read_text().splitlines()) == 1


def test_a_build_that_was_killed_does_not_hinder_the_next(
    root: Path, source: jit.Source, tmp_path: Path, before_builds: Callable[[str], None]
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    before_builds(f"read x < {gate}")
    process = new_process(source)
    with gate.open("w"):  # returns once the build waits at the gate
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=240)
        before_builds("")
        assert jit.compile(source).path.is_file()
    (left,) = (root / "v1" / ".staging").iterdir()
    old = time.time() - 7200
    os.utime(left, (old, old))
    jit.cache().prune()
    assert not left.exists()


def test_a_compiler_that_hangs_is_stopped_with_its_children(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before_builds: Callable[[str], None],
    root: Path,
) -> None:
    child = tmp_path / "child"
    before_builds(f"sleep 600 & echo $! > {child}; wait")
    monkeypatch.setenv("BRINGUP_JIT_TIMEOUT", "3")
    with pytest.raises(CompileError, match="the compiler was stopped: it ran for 3 s"):
        jit.compile(jit.Source(text=ADD))
    pid = int(child.read_text())
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "\nState:\tZ" in status.read_text()


def test_the_store_is_for_its_owner_only(root: Path, source: jit.Source) -> None:
    jit.compile(source)
    assert stat.S_IMODE((root / "v1").stat().st_mode) == 0o700


def test_a_store_that_others_may_write_is_not_used(
    root: Path, source: jit.Source, caplog: pytest.LogCaptureFixture
) -> None:
    binary = jit.compile(source)
    (root / "v1").chmod(0o777)
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        elsewhere = jit.compile(source)
    assert elsewhere.key == binary.key
    assert not elsewhere.path.is_relative_to(root)
    assert "can be written by others (mode 777)" in caplog.text
    assert "set BRINGUP_CACHE_DIR" in caplog.text


def test_a_store_behind_a_link_is_not_used(
    root: Path, source: jit.Source, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    root.mkdir()
    (root / "v1").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        assert not jit.compile(source).path.is_relative_to(root)
    assert "is not a folder" in caplog.text


def test_a_folder_that_cannot_be_made_leads_to_a_private_cache(
    source: jit.Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        binary = jit.compile(source)
        forget()
        assert jit.compile(source) == binary
    assert caplog.text.count("the kernel cache cannot be used") == 1
    assert stat.S_IMODE(binary.path.parents[3].stat().st_mode) == 0o700


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can read, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="bringup-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def in_a_child_without_privileges(check: Callable[[], bool]) -> bool:
    """Whether `check` holds in a forked child; root could write anywhere, so it becomes nobody."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            status = 0 if check() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def make_read_only(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_a_read_only_cache_still_serves_and_new_kernels_are_private(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root, path = open_folder / "cache", open_folder / "add.cpp"
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
    path.write_text(ADD)
    shipped = jit.compile(jit.Source(path))
    make_read_only(root)
    forget()

    def serves_and_builds() -> bool:
        if jit.compile(jit.Source(path)) != shipped:
            return False
        private = jit.compile(jit.Source(path), macros={"N": 4})
        shutil.rmtree(private.path.parents[3])  # this child leaves without exit handlers
        return "cannot be written" in caplog.text and not private.path.is_relative_to(root)

    try:
        assert in_a_child_without_privileges(serves_and_builds)
    finally:
        for folder in (root, *(found for found in root.rglob("*") if found.is_dir())):
            folder.chmod(0o755)


def test_no_folder_at_all_is_a_compile_error(
    source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit.lookup import building, lookups
    from bringup.jit.store import active_cache as private_module

    (tmp_path / "file").write_text("")
    nowhere = jit.Cache(tmp_path / "file" / "private")
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    for module in (building, private_module):
        monkeypatch.setattr(module, "private_cache", lambda: nowhere)
    monkeypatch.setattr(lookups, "made_private_cache", lambda: nowhere)
    with pytest.raises(CompileError, match=r"no folder to build it in: .*Set BRINGUP_CACHE_DIR"):
        jit.compile(source)


def test_a_private_cache_goes_with_its_process(source: jit.Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = new_process(source, BRINGUP_CACHE_DIR=str(tmp_path / "file" / "cache"))
    path = Path(output_of(process))
    assert path.name == "kernel.so"
    assert not path.parents[3].exists()


def test_frozen_counts_what_is_on_disk_as_known(root: Path, source: jit.Source) -> None:
    binary = jit.compile(source)
    forget()
    with jit.frozen():
        assert jit.compile(source) == binary
        Path(str(source.path)).write_text(ADD.replace("+=", "-="))
        with pytest.raises(MissingKernelError, match=r"add\.cpp, entry 'run', target 'cpu'"):
            jit.compile(source)


def test_freeze_lasts(root: Path, source: jit.Source) -> None:
    script = (
        "from bringup import jit, errors\n"
        "jit.freeze()\n"
        "try:\n"
        "    jit.compile(jit.Source(text='int run;'))\n"
        "except errors.MissingKernelError as error:\n"
        "    print('refused')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "refused\n"


def test_a_library_that_cannot_be_loaded_is_a_compile_error(root: Path) -> None:
    text = 'extern "C" int run() { return 0; }'
    hidden = jit.compile(jit.Source(text=text), flags=["-fvisibility=hidden"])
    with pytest.raises(CompileError, match=r"built but cannot be loaded: .* no symbol 'run'"):
        _ = hidden.kernel_id


def test_one_kernel_is_loaded_once(root: Path, source: jit.Source) -> None:
    binary = jit.compile(source)
    assert binary.kernel_id == jit.compile(source).kernel_id
    assert jit.compile(source, macros={"N": 2}).kernel_id != binary.kernel_id


def test_a_forked_child_compiles_on_its_own(root: Path, source: jit.Source) -> None:
    jit.compile(source)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if jit.compile(source, macros={"N": 3}).path.is_file() else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0


def test_a_removed_entry_is_built_again(root: Path, source: jit.Source) -> None:
    binary = jit.compile(source)
    shutil.rmtree(binary.path.parent)
    assert jit.compile(source) == binary
    assert binary.path.is_file()
