"""A header that would be found before one that was read is a change; other files are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.jit.support import forget

from bringup import jit
from bringup.errors import CompileError

TEXT = '#include <sys/value.h>\nextern "C" int run() { return VALUE; }\n'


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    (second / "sys").mkdir()
    (second / "sys" / "value.h").write_text("#define VALUE 1\n")
    return first, second


@pytest.mark.parametrize("from_disk", [False, True])
def test_a_header_in_a_folder_that_is_searched_earlier_is_seen(
    root: Path, folders: tuple[Path, Path], counted: Callable[[], int], from_disk: bool
) -> None:
    """The key covers headers by content, also one that appears."""
    flags = [f"-I{folder}" for folder in folders]
    source = jit.Source(text=TEXT)
    built = jit.compile(source, flags=flags)
    shadow = folders[0] / "sys" / "value.h"
    (folders[0] / "unrelated.h").write_text("")
    shadow.parent.mkdir()
    if from_disk:
        forget()
    assert jit.compile(source, flags=flags) == built
    assert counted() == 1
    shadow.write_text("#define VALUE 2\n")
    if from_disk:
        forget()
    assert jit.compile(source, flags=flags).key != built.key
    shadow.unlink()
    if from_disk:
        forget()
    assert jit.compile(source, flags=flags) == built


def test_a_header_beside_the_source_goes_before_an_include_folder(
    root: Path, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "k.cpp"
    path.write_text('#include "sys/value.h"\nextern "C" int run() { return VALUE; }\n')
    flags = [f"-I{folders[1]}"]
    built = jit.compile(jit.Source(path), flags=flags)
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys" / "value.h").write_text("#define VALUE 2\n")
    assert jit.compile(jit.Source(path), flags=flags).key != built.key


def test_a_header_of_the_system_can_be_shadowed(
    root: Path, folders: tuple[Path, Path], counted: Callable[[], int]
) -> None:
    source = jit.Source(text='#include <stdint.h>\nextern "C" int32_t run() { return 0; }\n')
    flags = [f"-I{folders[0]}"]
    built = jit.compile(source, flags=flags)
    (folders[0] / "stdint.h").write_text("typedef long int32_t;\n")
    assert jit.compile(source, flags=flags).key != built.key
    assert counted() == 2


def test_a_header_that_goes_leaves_the_other_one_or_an_error(
    root: Path, folders: tuple[Path, Path]
) -> None:
    flags = [f"-I{folder}" for folder in folders]
    source = jit.Source(text=TEXT)
    jit.compile(source, flags=flags)
    (folders[1] / "sys" / "value.h").unlink()
    with pytest.raises(CompileError, match=r"value\.h: No such file"):
        jit.compile(source, flags=flags)
