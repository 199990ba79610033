"""What holds for every command: exit codes of one table, `--json`, 60 columns."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bringup import cli
from bringup.cli._app import app
from bringup.cli._exit_codes import ExitCode
from bringup.cli._help import SHORT, Panel

COLUMNS = 60
CHECK = ("check", "bringup::rms_norm", "--import", "bringup.kernels", "--in-process")
CHECK += ("--skip", "compile", "--skip", "dynamic shapes", "--skip", "dtypes")


def _commands(below: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, below
    for name, command in getattr(below, "commands", {}).items():
        yield from _commands(command, *path, name)


EVERY = dict(_commands(typer.main.get_command(app)))
RUNNABLE = {path: command for path, command in EVERY.items() if not hasattr(command, "commands")}


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def longest_line(text: str) -> str:
    return max(text.splitlines(), key=len)


def test_the_application_has_the_commands_that_are_looked_at() -> None:
    assert {("doctor",), ("check",), ("cache", "prune"), ("passes", "mine")} <= set(RUNNABLE)


def test_json_goes_to_standard_output_alone_while_the_table_is_still_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([*CHECK, "--json", "-"]) == ExitCode.DONE
    printed = capsys.readouterr()
    assert json.loads(printed.out)["operator"] == "bringup::rms_norm"
    assert "rms_norm" in printed.err


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
@pytest.mark.usefixtures("narrow")
def test_help_can_be_read_in_60_columns(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*path, "--help"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert "--help" in shown
    assert len(longest_line(shown)) <= COLUMNS


def test_help_names_every_command_whole_in_its_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for path in ([], *([name] for (name, *rest) in RUNNABLE if rest)):
        assert cli.main([*path, "--help"]) == ExitCode.DONE
        shown[tuple(path)] = capsys.readouterr().out
    panels = re.findall(r"^([A-Z].*):$", shown[()], re.MULTILINE)
    assert panels == ["Options", *Panel]
    for path, command in EVERY.items():
        if path:
            words = command.short_help or command.help
            assert len(words) <= SHORT
            assert f"{path[-1]} " in shown[path[:-1]]
            assert words in shown[path[:-1]]


@pytest.mark.parametrize("path", RUNNABLE, ids=" ".join)
def test_values_are_called_by_a_word_not_by_a_type(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*path, "--help"]) == ExitCode.DONE
    assert not re.search(r"<(?!=)", capsys.readouterr().out)  # 0<=x is a bound


def test_a_shell_completes_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_BRINGUP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "bringup passes e")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        cli.main([])
    assert capsys.readouterr().out.split() == ["explain"]


@pytest.mark.parametrize(
    "arguments",
    [("doctor",), ("cache", "ls"), ("passes", "list"), CHECK],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.usefixtures("narrow")
def test_tables_can_be_read_in_60_columns(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    cli.main(list(arguments))
    rows = [line for line in capsys.readouterr().out.splitlines() if not _is_to_copy(line)]
    assert rows
    assert len(max(rows, key=len)) <= COLUMNS


def _is_to_copy(line: str) -> bool:
    """What doctor says last: a command, which is not broken into lines."""
    return bool(re.match(r"[\w ]+ \((missing|optional)\): ", line))


# What these print is for a shell, cmake or a type checker, or another program's.
WITHOUT_RESULTS = {("config",), ("driver", "trace"), ("stubs",)}


@pytest.mark.parametrize("path", sorted(RUNNABLE.keys() - WITHOUT_RESULTS), ids=" ".join)
def test_every_command_writes_its_results_where_json_says(path: tuple[str, ...]) -> None:
    (option,) = [one for one in RUNNABLE[path].params if "--json" in one.opts]
    assert option.metavar == "FILE"
    assert not option.is_flag


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_exit_code_that_a_command_names_is_in_the_table(path: tuple[str, ...]) -> None:
    text = " ".join((EVERY[path].help or "").split())
    assert not re.search(r"[Ee]xits? with", text), "say: Exit code 0: ..., 1: ..."
    _, found, codes = text.partition("Exit code ")
    named = {int(number) for number in re.findall(r"(?:^|[,;:] )(\d+):", codes)}
    assert named <= set(ExitCode)
    assert bool(named) == (bool(found) and ":" in codes)


def test_no_command_ends_with_a_number_of_its_own() -> None:
    sources = sorted(Path(cli.__file__).parent.rglob("*.py"))
    numbers = [
        f"{source.name}:{node.lineno}"
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("Exit")
        and any(isinstance(given, ast.Constant) for given in node.args)
    ]
    assert sources
    assert numbers == []


def test_each_exit_code_says_what_it_means() -> None:
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 130]
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)
