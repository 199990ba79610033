"""The store's bounds: what goes, what stays, and what a put costs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.jit.support import REPOSITORY, forget, new_process, output_of

from bringup import jit
from bringup.errors import SettingError
from bringup.jit.files.entry_usage import keys_in_use, mark_in_use, release_marks
from bringup.jit.files.layout import StoreLayout

LOAD_AND_WAIT = """
import sys
from bringup import jit
jit.compile(jit.Source(sys.argv[1])).kernel_id
print("loaded", flush=True)
sys.stdin.read()
"""

HOUR = 3600


def build(source: jit.Source, count: int, *, first: int = 0) -> list[jit.Binary]:
    """Kernels used an hour apart, the first one longest ago."""
    built = [jit.compile(source, macros={"N": first + n}) for n in range(count)]
    for age, binary in enumerate(reversed(built)):
        used_at(binary, age * HOUR + 60)
    return built


def used_at(binary: jit.Binary, ago: float) -> None:
    then = time.time() - ago
    os.utime(binary.path.parent / ".last_used", (then, then))


def keys() -> set[str]:
    return {entry.key for entry in jit.cache().entries()}


def age(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def test_the_kernels_used_longest_ago_go_first(root: Path, source: jit.Source) -> None:
    """Size and entry cap, LRU."""
    old, middle, new = build(source, 3)
    used_at(old, 10)
    report = jit.cache().prune(max_entries=2)
    assert keys() == {old.key, new.key}
    assert report.removed == (middle.key,)
    assert report.bytes > 0
    size = jit.cache().entries()[0].bytes
    assert jit.cache().prune(max_bytes=size + 10).removed == (new.key,)


def test_a_put_beyond_the_bound_prunes(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(source, 4)
    monkeypatch.setenv("BRINGUP_CACHE_MAX_ENTRIES", "4")
    added = jit.compile(source, macros={"N": 100})
    assert keys() == {built[2].key, built[3].key, added.key}  # nine tenths of four


def test_bytes_are_bounded_too(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(entry.bytes for entry in jit.cache().entries())
    built = build(source, 3)
    size = sum(entry.bytes for entry in jit.cache().entries())
    monkeypatch.setenv("BRINGUP_CACHE_MAX_BYTES", str(size + 10))
    jit.compile(source, macros={"N": 100})
    assert built[0].key not in keys()
    assert sum(entry.bytes for entry in jit.cache().entries()) <= size


@pytest.mark.parametrize(
    ("variable", "bound"), [("BRINGUP_CACHE_MAX_BYTES", "1"), ("BRINGUP_CACHE_MAX_ENTRIES", "1")]
)
def test_what_was_just_built_can_be_loaded_whatever_the_bound(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch, variable: str, bound: str
) -> None:
    """A cache that holds less than one kernel still serves the one that was asked for."""
    monkeypatch.setenv(variable, bound)
    for n in range(2):
        added = jit.compile(source, macros={"N": n})
        assert keys() == {added.key}
    assert added.kernel_id > 0


def test_a_put_below_the_bound_does_not_look_at_the_entries(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bringup.jit.store import prune

    build(source, 2)

    def scan(_layout: object) -> None:
        raise AssertionError("the store was scanned")

    monkeypatch.setattr(prune, "scan", scan)
    monkeypatch.setattr(prune, "tidy", scan)
    assert jit.compile(source, macros={"N": 100}).path.is_file()


def test_the_counters_agree_with_the_store(root: Path, source: jit.Source) -> None:
    from bringup.jit.files.entry_usage import Sizes

    build(source, 3)
    assert Sizes(jit.cache().layout).total()[1] == 3
    jit.cache().prune(max_entries=2)
    entries = jit.cache().entries()
    # A use is noted in an empty file.
    assert Sizes(jit.cache().layout).total() == (sum(entry.bytes for entry in entries), 2)


def test_two_that_prune_at_once_do_not_disturb_each_other(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another one takes away between the look and the removal is gone, not an error."""
    from bringup.jit.store import prune

    taken, left = build(source, 2)
    scan = prune.scan

    def scan_and_lose(layout: object) -> object:
        found = scan(layout)  # type: ignore[arg-type]
        shutil.rmtree(taken.folder)
        return found

    monkeypatch.setattr(prune, "scan", scan_and_lose)
    assert jit.cache().prune(max_entries=0).removed == (left.key,)


def test_an_entry_that_is_cleared_as_it_is_published_is_no_broken_cache(
    root: Path,
    source: jit.Source,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from bringup.jit.files.entry_usage import Sizes

    add = Sizes.add

    def add_and_lose(sizes: Sizes, key: str, size: int, entries: int) -> None:
        add(sizes, key, size, entries)
        shutil.rmtree(jit.cache().layout.entry(key))

    monkeypatch.setattr(Sizes, "add", add_and_lose)
    assert jit.compile(source, macros={"N": 3}).path.is_relative_to(root)
    assert not caplog.text


def test_what_this_process_has_loaded_stays(root: Path, source: jit.Source) -> None:
    loaded, other = build(source, 2)
    _ = loaded.kernel_id
    report = jit.cache().prune(max_entries=0)
    assert report.in_use == (loaded.key,)
    assert report.removed == (other.key,)
    (entry,) = jit.cache().entries()
    assert entry.in_use


def test_what_another_process_has_loaded_stays_until_it_is_gone(
    root: Path, source: jit.Source
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD_AND_WAIT, str(source.path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loaded\n"
    (entry,) = jit.cache().entries()
    assert entry.in_use
    assert jit.cache().clear().in_use == (entry.key,)
    assert keys() == {entry.key}
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=240)
    assert jit.cache().clear().removed == (entry.key,)
    assert list((root / "v1" / ".inuse").iterdir()) == []


def test_a_process_that_ends_leaves_no_mark(root: Path, source: jit.Source) -> None:
    output_of(new_process(source))
    assert list((root / "v1" / ".inuse").iterdir()) == []


def test_a_forked_child_holds_what_its_parent_has_loaded(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "k.cpp"
    path.write_text('extern "C" int run() { return 0; }\n')
    script = (
        "import os, sys\nfrom bringup import jit\n"
        "jit.compile(jit.Source(sys.argv[1])).kernel_id\n"
        "if os.fork():\n    os._exit(0)\n"
        "print('child', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "child\n"
    process.wait(timeout=240)
    assert len(jit.cache().prune(max_entries=0).in_use) == 1
    process.communicate(timeout=240)


def test_a_pruned_kernel_is_built_again(root: Path, source: jit.Source) -> None:
    (binary,) = build(source, 1)
    jit.cache().prune(max_entries=0)
    assert not binary.path.exists()
    assert jit.compile(source, macros={"N": 0}) == binary
    assert binary.path.is_file()


def test_a_use_is_noted_at_most_once_an_hour(root: Path, source: jit.Source) -> None:
    (binary,) = build(source, 1)
    noted = binary.path.parent / ".last_used"
    before = noted.stat().st_mtime_ns
    forget()
    jit.compile(source, macros={"N": 0})
    assert noted.stat().st_mtime_ns == before
    used_at(binary, 2 * HOUR)
    forget()
    jit.compile(source, macros={"N": 0})
    assert time.time() - noted.stat().st_mtime < HOUR / 2


def test_whatever_is_left_behind_goes_by_age(root: Path, source: jit.Source) -> None:
    (binary,) = build(source, 1)
    with pytest.raises(jit_error()):
        jit.compile(jit.Source(text="no"))
    store = root / "v1"
    damaged = binary.path.read_bytes()
    binary.path.write_bytes(b"")
    forget()
    jit.compile(source, macros={"N": 0})
    assert binary.path.read_bytes() == damaged
    for folder in (".staging", ".inuse"):
        (store / folder).mkdir(exist_ok=True)
    stale = {
        "staging": age(_touched(store / ".staging" / "1-2-3"), 2 * HOUR),
        "mark": _touched(store / ".inuse" / f"{os.uname().nodename}-999999-1"),
        "damaged": age(next((store / ".quarantine").iterdir()), 48 * HOUR),
        **{
            f"failure{i}": age(path, 8 * 24 * HOUR)
            for i, path in enumerate((store / ".failed").iterdir())
        },
        **{f"lock{i}": age(path, 2 * HOUR) for i, path in enumerate((store / ".locks").iterdir())},
    }
    assert len([name for name in stale if name.startswith("failure")]) == 2  # record and log
    jit.cache().prune()
    assert [name for name, path in stale.items() if path.exists()] == []
    assert keys() == {binary.key}
    assert len(list((store / ".manifests").iterdir())) == 1


def jit_error() -> type[Exception]:
    from bringup.errors import CompileError

    return CompileError


def _touched(path: Path) -> Path:
    path.touch()
    return path


def test_what_is_young_or_needed_stays(root: Path, source: jit.Source) -> None:
    build(source, 1)
    store = root / "v1"
    running = store / ".staging" / "1-2-3"
    running.mkdir()
    before = {path for path in store.rglob("*") if path.name != ".tidied"}
    jit.cache().prune()
    assert before <= set(store.rglob("*"))


def test_an_index_of_a_pruned_entry_goes_too(root: Path, source: jit.Source) -> None:
    build(source, 1)
    store = root / "v1"
    for folder in (".manifests", ".portable"):
        for path in (store / folder).iterdir():
            age(path, 120)
    jit.cache().prune(max_entries=0)
    assert list((store / ".manifests").iterdir()) == []
    assert list((store / ".portable").iterdir()) == []


def test_clear_removes_everything_else(root: Path, source: jit.Source) -> None:
    built = build(source, 2)
    with pytest.raises(jit_error()):
        jit.compile(jit.Source(text="no"))
    report = jit.cache().clear()
    assert set(report.removed) == {binary.key for binary in built}
    assert keys() == set()
    assert list((root / "v1" / ".failed").iterdir()) == []


def test_a_cache_that_was_never_used_is_pruned_without_a_word(root: Path) -> None:
    assert jit.cache().prune(max_entries=0).removed == ()
    assert jit.cache().entries() == []


@pytest.mark.parametrize("bound", ["max_bytes", "max_entries"])
def test_a_negative_bound_is_refused(root: Path, bound: str) -> None:
    with pytest.raises(ValueError, match=rf"prune\({bound}=-1\): expected a number that is not"):
        jit.cache().prune(**{bound: -1})


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("BRINGUP_CACHE_MAX_BYTES", "2X", "expected a number of bytes, also with K, M or G"),
        ("BRINGUP_CACHE_MAX_BYTES", "-1", "expected a number of bytes"),
        ("BRINGUP_CACHE_MAX_ENTRIES", "many", "expected a number"),
    ],
)
def test_a_bound_that_is_no_number_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError, match=f"{variable}='{text}': {message}"):
        jit.cache().prune()


def test_what_is_loaded_stays_though_the_store_was_deleted_meanwhile(
    root: Path, source: jit.Source
) -> None:
    _ = jit.compile(source, macros={"N": 9001}).kernel_id
    shutil.rmtree(root)
    loaded = jit.compile(source, macros={"N": 9002})
    _ = loaded.kernel_id
    assert jit.cache().clear().in_use == (loaded.key,)


def test_each_entry_that_is_marked_is_in_use_until_it_is_released(tmp_path: Path) -> None:
    layout = StoreLayout(tmp_path)
    mark_in_use(layout, "first")
    mark_in_use(layout, "second")
    assert keys_in_use(layout) == {"first", "second"}
    release_marks(layout, {"other"})
    release_marks(layout, {"first"})
    assert keys_in_use(layout) == {"second"}
    release_marks(StoreLayout(tmp_path / "another"), {"first"})
