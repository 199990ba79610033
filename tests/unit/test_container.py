"""Files of sections: written whole, read only where every byte is what was written."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.forked_python import output_of, run_forked

from bringup._container import Section, write
from bringup._container import read as read_sections
from bringup.errors import BundleError

MADE_FOR = {"torch": "2.13"}
VERSIONS = {"small": 2, "large": 1, "empty": 1}
SECTIONS = {
    "small": Section(2, [b"some", b" text"]),
    "large": Section(1, [bytes(range(100))], large=True),
    "empty": Section(1, []),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("container") / "whole"
    write(path, "thing", MADE_FOR, SECTIONS)
    return path.read_bytes()


def read(path: Path, here: dict[str, str] = MADE_FOR) -> dict[str, bytes]:
    return {k: bytes(v) for k, v in read_sections(path, "thing", here, VERSIONS).items()}


def read_bytes(folder: Path, content: bytes) -> dict[str, bytes]:
    path = folder / "changed"
    path.write_bytes(content)
    return read(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed")


def test_what_is_read_is_what_was_written(whole: bytes, folder: Path) -> None:
    expected = {"small": b"some text", "large": bytes(range(100)), "empty": b""}
    assert read_bytes(folder, whole) == expected


@given(st.data())
def test_a_file_with_one_other_byte_is_refused(
    whole: bytes, folder: Path, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(1, 255))
    changed = whole[:place] + bytes([whole[place] ^ other]) + whole[place + 1 :]
    with pytest.raises(BundleError, match="changed"):
        read_bytes(folder, changed)


@given(st.data())
def test_a_part_of_a_file_is_refused(whole: bytes, folder: Path, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BundleError, match="changed"):
        read_bytes(folder, whole[:size])


@given(st.binary(max_size=300))
def test_other_files_are_refused(whole: bytes, folder: Path, content: bytes) -> None:
    for one in (content, whole + content + b"x", whole[:48] + content):
        with pytest.raises(BundleError, match="changed"):
            read_bytes(folder, one)


TABLES: list[tuple[Callable[[str], str], str]] = [
    (lambda t: t.replace('"size": 9', '"size": 900000000'), "do not fill"),
    (lambda t: t.replace('"size": 9', '"size": -9'), "do not fill"),
    (lambda t: t.replace('"size": 9', '"size": 9.0'), "do not fill"),
    (
        lambda t: t.replace('"format": 1', '"format": 2'),
        "in format 2, and this bringup reads 'thing'",
    ),
    (lambda t: t.replace('"kind": "thing"', '"kind": "other"'), "has 'other' in format 1"),
    (lambda t: t.replace('"version": 2', '"version": 3'), "'small' of version 3, which this"),
    (lambda t: t.replace('"small"', '"../../x"'), "section '../../x' of version 2"),
    (lambda t: t.replace('"torch"', '"driver"'), "was made for driver 2.13, and here is none"),
    (lambda t: "[" * 60000, "its table is none"),
    (lambda t: "{}", "its table is none"),
    (lambda t: t.replace('"sections"', '"others"'), "its table is none"),
]


@pytest.mark.parametrize(("change", "message"), TABLES)
def test_a_table_of_another_form_is_refused(
    whole: bytes, folder: Path, change: Callable[[str], str], message: str
) -> None:
    size = int.from_bytes(whole[8:16], "little")
    table = change(whole[-size:].decode()).encode()
    head = b"bringup\n" + len(table).to_bytes(8, "little") + hashlib.sha256(table).digest()
    with pytest.raises(BundleError, match=message):
        read_bytes(folder, head + whole[48:-size] + table)


def test_what_it_was_made_for_is_compared_before_sections_are(whole: bytes, folder: Path) -> None:
    path = folder / "damaged"
    path.write_bytes(whole[:70] + b"x" + whole[71:])
    with pytest.raises(BundleError, match=r"was made for torch 2\.13, and here is 2\.14$"):
        read(path, {"torch": "2.14"})


def test_what_is_no_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for path in (folder / "pipe", Path("/dev/null"), folder):
        with pytest.raises((BundleError, IsADirectoryError)):
            read(path)
    with pytest.raises(FileNotFoundError):
        read(folder / "nothing")


def test_a_file_that_cannot_be_written_leaves_the_one_before(whole: bytes, folder: Path) -> None:
    path = folder / "kept"
    path.write_bytes(whole)
    with pytest.raises(TypeError):
        write(path, "thing", {}, {"small": Section(1, ["no bytes"])})  # type: ignore[list-item]
    assert path.read_bytes() == whole
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == []


def test_two_writers_of_one_path_leave_a_whole_file_of_one(folder: Path) -> None:
    path = folder / "shared"

    def slow() -> Iterator[bytes]:
        yield b"first" * 1000
        write(path, "thing", MADE_FOR, SECTIONS)  # as another thread or process would
        assert read(path)["small"] == b"some text"
        yield b"more"

    write(path, "thing", MADE_FOR, SECTIONS | {"small": Section(2, slow())})
    assert read(path)["small"] == b"first" * 1000 + b"more"


def test_a_writer_that_is_killed_leaves_the_file_before(whole: bytes, folder: Path) -> None:
    path = folder / "kept"
    path.write_bytes(whole)
    program = """
import os, signal, sys
from bringup._container import Section, write
def dies():
    yield bytes(1 << 20)
    os.kill(os.getpid(), signal.SIGKILL)
write(sys.argv[1], "thing", {}, {"small": Section(2, dies())})
"""
    assert run_forked(program, str(path)).returncode == -signal.SIGKILL
    assert path.read_bytes() == whole


def test_a_full_or_missing_disk_is_an_error_and_leaves_nothing(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(folder / "none" / "x", "thing", {}, SECTIONS)
    program = """
import resource, sys
from bringup._container import Section, write
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write(sys.argv[1], "thing", {}, {"small": Section(2, [bytes(10000)])})
except OSError as error:
    print(error.strerror)
"""
    (folder / "full").mkdir()
    assert output_of(program, str(folder / "full" / "x")) == "File too large"
    assert list((folder / "full").iterdir()) == []


def test_a_write_to_a_section_does_not_reach_the_file(whole: bytes, folder: Path) -> None:
    path = folder / "mapped"
    path.write_bytes(whole)
    section = read_sections(path, "thing", MADE_FOR, VERSIONS)["large"]
    section[0] = 99
    assert path.read_bytes() == whole
