"""Cache folders that are hard to use: full, noexec, read-only, somebody else's, without locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import ADD, REPOSITORY, run

from bringup import jit


@contextlib.contextmanager
def mounted(options: str, folder: Path) -> Iterator[Path]:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"this machine does not let tests mount anything: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_folder_that_nothing_may_be_executed_from_is_loaded_through_memory(
    tmp_path: Path,
    source: jit.Source,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Noexec cache."""
    with mounted("noexec,size=8m,mode=0700", tmp_path / "noexec") as folder:
        monkeypatch.setenv("BRINGUP_CACHE_DIR", str(folder / "cache"))
        for n in range(1, 4):  # as many libraries at the same descriptor
            x = np.zeros(2, np.float32)
            run(jit.compile(source, macros={"N": n}), x)
            assert x.tolist() == [n, n]
        assert caplog.text.count("(noexec): kernels are loaded through memory") == 1
        jit.cache().unload()


def test_a_full_folder_leads_to_a_private_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from bringup.jit.store import active_cache as private_module

    with mounted("size=64k,mode=0700", tmp_path / "full") as folder:
        root = folder / "cache"
        monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
        jit.compile(jit.Source(text='extern "C" int run() { return 1; }'))
        with (folder / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        private_module.warn_private.cache_clear()
        binary = jit.compile(jit.Source(text=ADD))
        assert not binary.path.is_relative_to(folder)
        assert "No space left on device" in caplog.text
        assert caplog.text.count("the kernel cache cannot be used") == 1


def test_a_limit_on_file_sizes_is_no_crash(tmp_path: Path, source: jit.Source) -> None:
    script = (
        "import resource, sys\nfrom bringup import jit, errors\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "try:\n    jit.compile(jit.Source(sys.argv[1]))\n"
        "except errors.CompileError as error:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(source.path)],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "src"),
            "BRINGUP_CACHE_DIR": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "refused\n", done.stderr


def test_a_file_system_without_locks_is_used_without_them(
    root: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS-safe, no flock dependence."""

    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    binary = jit.compile(source)
    assert binary.path.is_relative_to(root)
    _ = binary.kernel_id
    assert jit.cache().prune(max_entries=0).in_use == (binary.key,)  # this process lives
    jit.cache().unload()
    assert jit.cache().prune(max_entries=0).removed == (binary.key,)


def test_a_rename_that_fails_on_a_network_keeps_what_was_built(
    root: Path,
    source: jit.Source,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The loser keeps its own copy."""
    from bringup.jit.store import active_cache as private_module

    def stale(_self: Path, target: Path) -> Path:
        raise OSError(errno.ESTALE, "Stale file handle", str(target))

    builds: list[object] = []
    end = jit.lookup.events.subscribe(builds.append, jit.lookup.events.CompileStarted)  # type: ignore[attr-defined]
    private_module.warn_private.cache_clear()
    private = private_module.private_cache()
    rename = Path.rename
    monkeypatch.setattr(
        Path,
        "rename",
        lambda self, target: (
            rename(self, target) if self.is_relative_to(private.root) else stale(self, target)
        ),
    )
    try:
        binary = jit.compile(source, macros={"N": 77})
    finally:
        end()
    assert binary.path.is_relative_to(private.root)
    assert len(builds) == 1
    assert "Stale file handle" in caplog.text


def test_a_parent_that_others_may_write_is_not_used(
    tmp_path: Path, source: jit.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0700 and owner check, also of what the store could be replaced in."""
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(root))
    assert not jit.compile(source).path.is_relative_to(root)
    root.chmod(0o1777)  # as /tmp: others cannot rename what is ours
    assert jit.compile(source, macros={"N": 5}).path.is_relative_to(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_store_of_another_user_is_not_used(root: Path, source: jit.Source) -> None:
    first = jit.compile(source)
    os.chown(root / "v1", 65534, 65534)
    assert not jit.compile(source).path.is_relative_to(root)
    os.chown(root / "v1", 0, 0)
    assert jit.compile(source) == first


def test_a_private_folder_is_in_the_temporary_folder() -> None:
    from bringup.jit.store import active_cache as private_module

    assert private_module.private_cache().root.is_relative_to(tempfile.gettempdir())


def test_a_folder_with_an_impossible_name_leads_to_a_private_one(
    source: jit.Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", "/tmp/" + 300 * "a")
    assert jit.compile(source).path.is_file()
    assert "the kernel cache cannot be used: [Errno 36] File name too long" in caplog.text
