"""Actions that wait for a module's import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from bringup import _after_import
from bringup._after_import import after_import


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "awaited_module.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "awaited_module", raising=False)
    return "awaited_module"


def test_actions_run_in_order_right_after_the_import_and_once(module: str) -> None:
    ran: list[tuple[str, int]] = []
    for name in ("first", "second"):
        after_import(module, lambda name=name: ran.append((name, sys.modules[module].value)))
    assert ran == []
    importlib.import_module(module)
    assert ran == [("first", 3), ("second", 3)]
    importlib.reload(sys.modules[module])
    assert len(ran) == 2


def test_action_for_an_imported_module_runs_at_once(module: str) -> None:
    importlib.import_module(module)
    ran: list[int] = []
    after_import(module, lambda: ran.append(1))
    assert ran == [1]


def test_nothing_stays_in_the_import_system_once_nobody_waits(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_after_import, "waiting", {})
    before = list(sys.meta_path)
    after_import(module, lambda: None)
    assert len(sys.meta_path) >= len(before)
    importlib.import_module(module)
    assert not any(isinstance(finder, _after_import.Finder) for finder in sys.meta_path)
    sys.meta_path[:] = before
