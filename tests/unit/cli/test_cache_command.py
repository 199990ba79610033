"""`bringup cache`: what it prints, what it changes, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bringup import cli, jit

KERNEL = '#include "value.h"\nextern "C" int run() { return VALUE; }\n'


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[jit.Binary, jit.Binary]:
    """Two kernels that differ in a macro and a header."""
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    header, path = tmp_path / "value.h", tmp_path / "k.cpp"
    path.write_text(KERNEL)
    header.write_text("#define VALUE 1\n")
    first = jit.compile(jit.Source(path))
    header.write_text("#define VALUE 2\n")
    return first, jit.compile(jit.Source(path), macros={"N": 2})


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main(["cache", *words, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["cache", *words]) == 0
    return capsys.readouterr().out


def test_ls_lists_the_kernels(
    two: tuple[jit.Binary, jit.Binary], capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "ls")
    assert all(binary.key[:12] in text for binary in two)
    assert "2 kernels" in text
    listed = asked(capsys, "ls")
    assert {entry["key"] for entry in listed["entries"]} == {binary.key for binary in two}
    assert listed["bytes"] == sum(entry["bytes"] for entry in listed["entries"])


def test_show_says_what_a_kernel_was_built_from(
    two: tuple[jit.Binary, jit.Binary], capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "show", two[1].key[:12])
    assert "N=2" in text
    for place in (two[1].folder, two[1].folder.parents[3] / "value.h"):
        assert f"\n  {place}\n" in text  # whole, to be copied
    assert "-DN=2" in text
    assert asked(capsys, "show", two[1].key)["meta"]["record"]["macros"] == ["N=2"]


def test_why_names_what_differs(
    two: tuple[jit.Binary, jit.Binary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "why", two[0].key, two[1].key)
    assert "N=2 instead of none" in text
    assert "another content of a header" in text
    found = asked(capsys, "why", two[0].key, two[1].key)
    assert found["files"] == [str(tmp_path / "value.h")]
    assert {one["field"] for one in found["differences"]} == {"headers", "macros"}
    assert "Nothing differs" in printed(capsys, "why", two[0].key, two[0].key)


def test_an_unknown_key_exits_1_and_says_how_to_find_one(
    two: tuple[jit.Binary, jit.Binary], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cache", "show", "xyz"]) == 1
    assert "begin with 'xyz'; `bringup cache ls` lists them" in capsys.readouterr().err
    assert cli.main(["cache", "why", two[0].key]) == 2


def test_prune_and_clear_remove_and_say_what_stays(
    two: tuple[jit.Binary, jit.Binary], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "1 kernels removed" in printed(capsys, "prune", "--max-entries", "1")
    (left,) = jit.cache().entries()
    _ = next(binary for binary in two if binary.key == left.key).kernel_id
    text = printed(capsys, "clear")
    assert "0 kernels removed" in text
    assert f"1 stay, for running processes have them loaded: {left.key[:12]}" in text
    jit.cache().unload()
    assert asked(capsys, "prune", "--max-entries", "1")["removed"] == []
    assert asked(capsys, "clear")["removed"] == [left.key]
    assert "0 kernels removed" in printed(capsys, "prune", "--max-bytes", "1G")
    assert cli.main(["cache", "prune", "--max-bytes", "1T"]) == 2
    assert "expected a number of bytes, also with K, M or G" in capsys.readouterr().err


def test_export_and_import_carry_kernels(
    two: tuple[jit.Binary, jit.Binary],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = tmp_path / "kernels.zip"
    assert "1 kernels in" in printed(capsys, "export", str(bundle), two[1].key[:16])
    assert len(asked(capsys, "export", str(bundle))["entries"]) == 2
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert "2 kernels of" in printed(capsys, "import", str(bundle))
    assert len(asked(capsys, "import", str(bundle))["entries"]) == 2
    assert len(jit.cache().entries()) == 2


def test_a_damaged_bundle_exits_1_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.zip").write_text("no")
    assert cli.main(["cache", "import", str(tmp_path / "b.zip")]) == 1
    assert "is no bundle, or a damaged one" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("ls",), ("prune",), ("clear",), ("import", "kernels.zip")])
def test_a_cache_that_is_not_used_exits_1_with_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    """Not the private cache that stands in for it, which is gone when the command ends."""
    folder = tmp_path / "cache" / "v1"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    assert cli.main(["cache", *words]) == 1
    assert "is not used: " in (said := capsys.readouterr().err)
    assert "can be written by others (mode 777). Mend that, or set BRINGUP_CACHE_DIR" in said


def test_an_entry_whose_facts_are_damaged_is_shown_as_such(
    two: tuple[jit.Binary, jit.Binary], capsys: pytest.CaptureFixture[str]
) -> None:
    (two[0].folder / "meta.json").write_text('{"name": "k.cpp"}')
    for words in (["show", two[0].key], ["why", two[0].key, two[1].key]):
        assert cli.main(["cache", *words]) == 1
        assert "meta.json is damaged: it lacks command, compiler" in capsys.readouterr().err
