"""Operator plugins: found by path and entry point, defined whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from bringup import ops, plugins

CUSTOM = """
from torch import Tensor
from bringup import ops

@ops.custom_op("plugin_test::{name}", mutates_args=())
def {name}(x: Tensor) -> Tensor:
    return x * {factor}
"""
KERNEL = """
from bringup import jit, ops
twice = ops.kernel_op(
    "plugin_test::kernel(Tensor x) -> Tensor",
    source=jit.Source(text="int run(void** a, int n, const void* c) { return 0; }", name="k.c"),
    outputs=ops.empty_like("x"),
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BRINGUP_OPS_PATH", str(tmp_path))
    yield tmp_path
    ops.unload_op_plugins()


def write(path: Path, name: str, factor: int = 2) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(CUSTOM.format(name=name, factor=factor))
    return path


def is_defined(name: str) -> bool:
    return hasattr(torch.ops.plugin_test, name)


def test_operators_of_a_file_and_of_a_kernel_are_defined_and_named(folder: Path) -> None:
    write(folder / "a.py", "twice")
    (folder / "b.py").write_text(KERNEL)
    report = ops.load_op_plugins()
    assert report.errors == []
    assert report.loaded == {
        str(folder / "a.py"): ("plugin_test::twice",),
        str(folder / "b.py"): ("plugin_test::kernel",),
    }
    assert torch.ops.plugin_test.twice(torch.ones(2)).tolist() == [2, 2]


def test_loading_twice_defines_nothing_again(folder: Path) -> None:
    write(folder / "a.py", "twice")
    ops.load_op_plugins()
    first = torch.ops.plugin_test.twice.default
    assert ops.load_op_plugins().errors == []
    assert torch.ops.plugin_test.twice.default is first


def test_changed_file_is_loaded_anew_and_a_removed_one_undefines(folder: Path) -> None:
    path = write(folder / "a.py", "twice", 2)
    ops.load_op_plugins()
    write(path, "twice", 3)
    ops.load_op_plugins()
    assert torch.ops.plugin_test.twice(torch.ones(1)).tolist() == [3]
    path.unlink()
    assert ops.load_op_plugins().loaded == {}
    with pytest.raises((AttributeError, RuntimeError)):
        torch.ops.plugin_test.twice(torch.ones(1))


def test_broken_plugin_defines_nothing_shows_its_traceback_and_the_others_load(
    folder: Path,
) -> None:
    """Half of a plugin is defined when it raises: that half goes again."""
    write(folder / "a.py", "before")
    (folder / "broken.py").write_text(
        CUSTOM.format(name="half", factor=1) + KERNEL + "\nraise OSError('no board')\n"
    )
    write(folder / "c.py", "after")
    report = ops.load_op_plugins()
    (error,) = report.errors
    assert f"plugin {folder / 'broken.py'} raised OSError: no board" in str(error)
    assert "Traceback" in str(error)
    assert "raise OSError('no board')" in str(error)
    assert is_defined("before")
    assert is_defined("after")
    assert not is_defined("half")
    (folder / "broken.py").write_text(CUSTOM.format(name="half", factor=1) + KERNEL)
    assert ops.load_op_plugins().errors == []
    assert is_defined("half")


def test_name_that_another_plugin_took_is_an_error_and_the_first_stays(folder: Path) -> None:
    write(folder / "a.py", "same", 2)
    write(folder / "b.py", "same", 5)
    (error,) = ops.load_op_plugins().errors
    assert "plugin_test::same is defined already" in str(error)
    assert torch.ops.plugin_test.same(torch.ones(1)).tolist() == [2]


def test_explicit_places_stay_until_unloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRINGUP_OPS_PATH", raising=False)
    path = write(tmp_path / "a.py", "twice")
    assert list(ops.load_op_plugins(path).loaded) == [str(path)]
    assert list(ops.load_op_plugins().loaded) == [str(path)]
    ops.unload_op_plugins()
    assert ops.load_op_plugins().loaded == {}


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> EntryPoint:
    """An installed package `plugin_package` whose entry point leads to its module `ops`."""
    root = tmp_path / "plugin_package"
    root.mkdir(exist_ok=True)
    (root / "__init__.py").write_text("")
    write(root / "inner.py", "inner")
    (root / "ops.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    entry = EntryPoint("mine", "plugin_package.ops", "bringup.ops")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    return entry


def test_entry_point_defines_its_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, "from plugin_package import inner\n")
    report = ops.load_op_plugins()
    assert report.loaded == {"mine = plugin_package.ops": ("plugin_test::inner",)}
    ops.unload_op_plugins()
    for name in [name for name in sys.modules if name.startswith("plugin_package")]:
        del sys.modules[name]


def test_broken_entry_point_is_tried_again_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module that could be imported has defined an operator, which is taken back: the next
    attempt must run that module again.
    """
    entry = package(tmp_path, monkeypatch, "from plugin_package import inner\n1 / 0\n")
    (error,) = ops.load_op_plugins().errors
    assert "entry point 'mine' = plugin_package.ops of group 'bringup.ops' raised Zero" in str(
        error
    )
    assert not is_defined("inner")
    assert "plugin_package.inner" not in sys.modules
    package(tmp_path, monkeypatch, "from plugin_package import inner\n")
    assert list(ops.load_op_plugins().loaded) == [f"{entry.name} = {entry.value}"]
    assert is_defined("inner")
    ops.unload_op_plugins()


def test_missing_place_is_an_error_and_the_others_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = write(tmp_path / "a.py", "twice")
    monkeypatch.setenv("BRINGUP_OPS_PATH", f"{tmp_path / 'nowhere'}{os.pathsep}{good}")
    (error,) = ops.load_op_plugins().errors
    assert "nowhere (from BRINGUP_OPS_PATH): no such file or folder" in str(error)
    assert is_defined("twice")
    ops.unload_op_plugins()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys; sys.exit(3)", "raised SystemExit: 3"),
        ("class Stop(BaseException): pass\nraise Stop('now')", "raised Stop: now"),
        (
            "class Odd(Exception):\n    def __str__(self): raise OSError\nraise Odd",
            "raised Odd, whose text raised OSError",
        ),
    ],
    ids=["exit", "base", "without text"],
)
def test_plugin_that_ends_the_program_is_isolated_like_any_broken_one(
    folder: Path, text: str, told: str
) -> None:
    """It would take every other plugin, `bringup doctor` and the user's program with it."""
    write(folder / "a.py", "twice")
    broken = folder / "b.py"
    broken.write_text(f"{CUSTOM.format(name='half', factor=2)}\n{text}\n")
    write(folder / "c.py", "thrice", 3)
    report = ops.load_op_plugins()
    (error,) = report.errors
    assert str(error).startswith(f"plugin {broken} {told}\n")
    assert list(report.loaded) == [str(folder / "a.py"), str(folder / "c.py")]
    assert not is_defined("half")


def test_ctrl_c_in_a_plugin_reaches_the_user_and_leaves_nothing(folder: Path) -> None:
    (folder / "a.py").write_text(f"{CUSTOM.format(name='half', factor=2)}\nraise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        ops.load_op_plugins()
    assert not is_defined("half")
    assert not [name for name in sys.modules if name.startswith("bringup_plugin_a_")]


def test_entry_point_that_exits_is_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch, "raise SystemExit('no licence')\n")
    (error,) = ops.load_op_plugins().errors
    assert "= plugin_package.ops of group 'bringup.ops' raised SystemExit: no licence" in str(error)


def test_file_that_cannot_be_read_does_not_hide_those_after_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "a.py", "twice")
    write(folder / "b.py", "thrice", 3)
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "a.py":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    report = ops.load_op_plugins()
    (error,) = report.errors
    assert f"plugin '{folder / 'a.py'}': [Errno 13] Permission denied" in str(error)
    assert list(report.loaded) == [str(folder / "b.py")]
