"""The shared tier: read-through and write-behind through fsspec, and that nothing there can fail or
delay a call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.unit.jit.support import forget

from bringup import jit
from bringup.jit.files.layout import STAGING
from bringup.jit.lookup import publish
from bringup.jit.store import shared_tier as tier_module


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that machines share."""
    folder = tmp_path / "shared"
    monkeypatch.setenv("BRINGUP_CACHE_REMOTE", f"file://{folder}")
    tier_module.tier_at.cache_clear()
    yield folder
    tier_module.tier_at.cache_clear()


def flush() -> None:
    found = tier_module.tier()
    assert found is not None
    found.flush()


def another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str = "other") -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / name))
    forget()


def test_what_one_machine_builds_another_one_finds(
    root: Path,
    shared: Path,
    source: jit.Source,
    counted: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = jit.compile(source)
    flush()
    another_machine(tmp_path, monkeypatch)
    found = jit.compile(source)
    assert found.key == built.key
    assert found.path.is_relative_to(tmp_path / "other")
    assert counted() == 1
    shared.rename(tmp_path / "gone")  # from now on it is a local kernel like any other
    forget()
    assert jit.compile(source) == found
    assert counted() == 1


def test_frozen_looks_there_too(
    root: Path, shared: Path, source: jit.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = jit.compile(source)
    flush()
    another_machine(tmp_path, monkeypatch)
    with jit.frozen():
        assert jit.compile(source).key == built.key


def test_a_shared_kernel_that_cannot_be_kept_is_built_and_leaves_no_folder(
    root: Path,
    shared: Path,
    source: jit.Source,
    counted: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path, _: bytes) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    built = jit.compile(source)
    flush()
    another_machine(tmp_path, monkeypatch)
    monkeypatch.setattr(publish, "write_durably", full)
    assert jit.compile(source).key == built.key
    assert counted() == 2
    (staging,) = (tmp_path / "other").rglob(STAGING)
    assert not [*staging.iterdir()]


def test_other_headers_are_another_kernel(
    root: Path,
    shared: Path,
    counted: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    path = tmp_path / "k.cpp"
    path.write_text('#include "value.h"\nextern "C" int run() { return VALUE; }\n')
    first = jit.compile(jit.Source(path))
    flush()
    another_machine(tmp_path, monkeypatch)
    (tmp_path / "value.h").write_text("#define VALUE 2\n")
    assert jit.compile(jit.Source(path)).key != first.key
    assert counted() == 2


@pytest.mark.parametrize("damage", ["truncated", "empty", "bit", "foreign", "index"])
def test_a_damaged_entry_is_not_used_and_mended(
    root: Path,
    shared: Path,
    source: jit.Source,
    counted: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    jit.compile(source)
    flush()
    (stored,) = (shared / "v1" / "cas").iterdir()
    content = stored.read_bytes()
    if damage == "truncated":
        stored.write_bytes(content[:100])
    elif damage == "empty":
        stored.write_bytes(b"")
    elif damage == "bit":
        stored.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    elif damage == "foreign":
        stored.write_bytes(b"somebody else's file")
    else:
        next((shared / "v1" / "ac").iterdir()).write_bytes(b"{")
    another_machine(tmp_path, monkeypatch)
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        jit.compile(source)
    flush()
    assert counted() == 2
    assert [r.message.startswith("damaged entry in the shared") for r in caplog.records] == [True]
    another_machine(tmp_path, monkeypatch, "third")
    jit.compile(source)
    assert counted() == 2


class Broken(MemoryFileSystem):
    """A file system that fails, or is slow."""

    delay = 0.0
    asked = 0

    def cat_file(self, path: str, **options: Any) -> bytes:
        type(self).asked += 1
        if self.delay:
            time.sleep(self.delay)
        raise ConnectionError("the network is down")


@pytest.mark.parametrize(
    ("delay", "reason"), [(0.0, "ConnectionError: the network is down"), (5, "no answer in 0.1 s")]
)
def test_a_broken_or_slow_tier_is_left_alone_with_one_warning(
    root: Path,
    source: jit.Source,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    delay: float,
    reason: str,
) -> None:
    from fsspec import core

    monkeypatch.setattr(Broken, "delay", delay)
    monkeypatch.setattr(Broken, "asked", 0)
    monkeypatch.setattr(core, "url_to_fs", lambda _url: (Broken(), "/shared"))
    monkeypatch.setenv("BRINGUP_CACHE_REMOTE", f"broken://{delay}")
    monkeypatch.setenv("BRINGUP_CACHE_REMOTE_TIMEOUT", "0.1" if delay else "120")
    with caplog.at_level(logging.WARNING, "bringup.jit"):
        start = time.monotonic()
        for n in range(3):
            assert jit.compile(source, macros={"N": n}).path.is_file()
    assert Broken.asked == 1
    assert [r.message for r in caplog.records] == [
        f"the shared kernel cache broken://{delay} (BRINGUP_CACHE_REMOTE) is not used for 60 s, "
        f"and then tried again: {reason}"
    ]
    if delay:
        assert time.monotonic() - start < 60


def test_an_unknown_protocol_is_one_warning(
    root: Path,
    source: jit.Source,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_REMOTE", "nowhere://bucket")
    assert jit.compile(source).path.is_file()
    assert caplog.text.count("nowhere://bucket (BRINGUP_CACHE_REMOTE) is not used") == 1


def test_a_tier_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec import core

    monkeypatch.setattr(core, "url_to_fs", lambda _url: (Broken(), "/shared"))
    monkeypatch.setattr(Broken, "asked", 0)
    tier = tier_module.Tier("broken://", 1, pause_seconds=0.0)
    assert tier.fetch("a") is None
    assert tier.fetch("b") is None
    assert Broken.asked == 2


def test_writes_happen_behind_the_caller(
    root: Path, shared: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    gate = threading.Event()
    write = tier_module.Tier.write

    def gated(self: tier_module.Tier, name: str, content: bytes) -> None:
        assert gate.wait(240)
        write(self, name, content)

    monkeypatch.setattr(tier_module.Tier, "write", gated)
    monkeypatch.setenv("BRINGUP_CACHE_REMOTE_TIMEOUT", "30")
    assert jit.compile(source).path.is_file()
    assert not (shared / "v1" / "ac").exists()
    gate.set()
    flush()
    assert len(list((shared / "v1" / "ac").iterdir())) == 1
