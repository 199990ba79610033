"""Drivers by name: on the driver path and from entry points."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bringup import _native, cli, devices, plugins
from bringup.errors import DriverError


def offer(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, value: str) -> None:
    """An installed package with a module `board_driver` and an entry point."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (folder / "board_driver.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "board_driver", raising=False)
    entry = EntryPoint("board", value, "bringup.drivers")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("board_driver:PATH", "PATH = {path!r}"),
        ("board_driver:find", "def find(): return {path!r}"),
        ("board_driver", "from pathlib import Path\ndriver_path = Path({path!r})"),
    ],
    ids=["attribute", "function", "module"],
)
def test_entry_point_gives_the_library_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, text: str
) -> None:
    library = tmp_path / "libboard.so"
    library.write_bytes(b"")
    offer(monkeypatch, tmp_path, text.format(path=str(library)), value)
    assert devices.driver_library("board") == library
    assert devices.installed_drivers() == {"sim": _native.sim_driver_path(), "board": library}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", r"(?s)raised ZeroDivisionError: .*Traceback"),
        ("def find(): raise OSError('no card')", r"(?s)raised OSError: no card.*Traceback"),
        ("find = 3", r"expected the path of a shared library, .* got 3"),
        ("find = '/nowhere/libboard.so'", r"there is no file /nowhere/libboard\.so"),
    ],
)
def test_broken_driver_package_is_named_with_its_reason_and_shown_by_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    offer(monkeypatch, tmp_path, text, "board_driver:find")
    with pytest.raises(DriverError, match=reason) as raised:
        devices.load_driver("board")
    assert "the driver 'board' of entry point board_driver:find" in str(raised.value)
    cli.main(["doctor", "--json", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())["findings"]
    ours = [f for f in found if "board_driver:find" in f["detail"]]
    assert ("plugin", "missing") in [(f["subject"], f["health"]) for f in ours]
    (usable,) = [f for f in found if f["subject"] == "drivers"]
    assert (usable["health"], usable["detail"]) == ("ok", "sim")


def test_unknown_name_lists_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libboard.so").write_bytes(b"")
    monkeypatch.setenv("BRINGUP_DRIVER_PATH", f"/nowhere:{tmp_path}")
    assert devices.driver_library("board") == tmp_path / "libboard.so"
    with pytest.raises(DriverError, match=r"no driver named 'bord': .* one of 'sim', 'board'"):
        devices.load_driver("bord")


def test_driver_of_the_path_is_loaded_by_its_name(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import os, sys
from pathlib import Path
from bringup import devices
library = Path(sys.argv[1])
folder = library.parent / "named"
folder.mkdir(exist_ok=True)
if not (folder / "libboard.so").exists():
    (folder / "libboard.so").symlink_to(library)
os.environ["BRINGUP_DRIVER_PATH"] = str(folder)
os.environ["BRINGUP_DRIVER"] = "board"
print(devices.load_driver().device_name)
"""
    assert fresh_python(code, str(build_driver())) == "minimal"
