"""Locks of files: one holder at a time, who is named; gone with it; none where there are none."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bringup._locks import Owner, exclusive, try_lock

HOLDER = """
import sys
from pathlib import Path
from bringup._locks import exclusive
with exclusive(Path(sys.argv[1]), 10, print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "some.lock"


@contextmanager
def held_elsewhere(lock: Path) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def nobody(_seconds: float, _owner: Owner) -> None:
    raise AssertionError("nobody holds it")


def test_who_waits_is_told_at_once_who_holds_the_lock(lock: Path) -> None:
    told: list[Owner] = []
    with held_elsewhere(lock) as holder:
        with exclusive(lock, 0.02, lambda _seconds, owner: told.append(owner)) as is_ours:
            assert not is_ours
        assert [pid for pid, _ in told] == [holder.pid]


def test_a_lock_goes_with_a_holder_that_is_killed(lock: Path) -> None:
    with held_elsewhere(lock) as holder:
        holder.kill()
        holder.wait()
        with exclusive(lock, 0, nobody) as is_ours:
            assert is_ours


def test_a_lock_is_free_again_after_its_block_also_with_an_error(lock: Path) -> None:
    with pytest.raises(KeyError), exclusive(lock, 0, nobody):
        raise KeyError
    with exclusive(lock, 0, nobody) as is_ours:
        assert is_ours


def test_a_forked_child_does_not_keep_its_parents_lock(lock: Path) -> None:
    """A `flock` belongs to what was opened, which a child shares."""
    ready, done = os.pipe(), os.pipe()
    with exclusive(lock, 0, nobody):
        child = os.fork()
        if not child:
            os.write(ready[1], b"!")
            os.close(done[1])
            os.read(done[0], 1)  # until the parent is done
            os._exit(0)
        os.read(ready[0], 1)  # it runs: what a fork does first is done
    try:
        with exclusive(lock, 0, nobody) as is_ours:
            assert is_ours
    finally:
        os.close(done[1])
        os.waitpid(child, 0)
        for descriptor in (*ready, done[0]):
            os.close(descriptor)


def test_a_lock_that_is_deleted_while_it_is_held_is_not_waited_for(lock: Path) -> None:
    with exclusive(lock, 0, nobody):
        lock.unlink()
        with exclusive(lock, 0, nobody) as is_ours:
            assert is_ours


def test_a_file_that_is_deleted_before_it_is_locked_locks_nothing(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    deleted: list[Path] = []

    def delete_first(descriptor: int, operation: int) -> None:
        if not deleted:
            lock.unlink()
            deleted.append(lock)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", delete_first)
    with exclusive(lock, 10, lambda *_: None) as is_ours:
        assert is_ours
        assert lock.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_nobody_waits_where_the_file_system_knows_no_locks(
    lock: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def none_here(_descriptor: int, _operation: int) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", none_here)
    with exclusive(lock, 0, nobody) as one, exclusive(lock, 0, nobody) as other:
        assert one
        assert other


def test_another_error_of_the_file_system_is_raised(
    lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", broken)
    with lock.open("w") as file, pytest.raises(OSError, match="broken"):
        try_lock(file.fileno())
