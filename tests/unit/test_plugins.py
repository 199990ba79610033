"""The one discovery: files, packages and entry points, without knowing what is in them."""

import importlib.metadata
import os
import shutil
import sys
import types

import pytest

from bringup import plugins
from bringup.errors import PluginError


def test_file_is_imported_under_a_private_name_and_forgotten_on_request(tmp_path):
    path = tmp_path / "vendor.py"
    path.write_text("answer = 42\n")
    (plugin,), errors = plugins.plugin_files({path: "a", tmp_path: "b"})
    assert errors == []
    module = plugins.load_file(plugin)
    assert module.answer == 42
    assert module.__name__.startswith("bringup_plugin_vendor_")
    plugins.unload_file(plugin)
    assert plugin.module_name not in sys.modules


def test_failing_file_leaves_no_module_and_keeps_its_cause(tmp_path):
    path = tmp_path / "vendor.py"
    path.write_text("import sys\nsys.path.append('/nowhere')\n1 / 0\n")
    (plugin,), _ = plugins.plugin_files({path: "a"})
    before = list(sys.path)
    with pytest.raises(
        PluginError, match=r"plugin .*vendor\.py raised ZeroDivisionError"
    ) as failure:
        plugins.load_file(plugin)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert plugin.module_name not in sys.modules
    assert sys.path == before


def test_content_is_the_identity_of_a_package_with_all_its_files(tmp_path):
    package = tmp_path / "vendor"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("x = 1\n")
    (first,), _ = plugins.plugin_files({tmp_path: "a"})
    (package / "inner.py").write_text("x = 2\n")
    (second,), _ = plugins.plugin_files({package: "a"})
    assert first.path == second.path
    assert first.digest != second.digest


def test_entry_point_that_cannot_be_imported_is_a_plugin_error():
    from importlib.metadata import EntryPoint

    entry = EntryPoint("gone", "bringup_no_such_module:register", "bringup.passes")
    text = "entry point 'gone' = bringup_no_such_module:register of group 'bringup.passes' raised"
    with pytest.raises(PluginError, match=text):
        plugins.load_entry_point(entry)


def test_broken_entry_point_leaves_no_module_of_its_package(tmp_path, monkeypatch):
    (tmp_path / "half_package").mkdir()
    (tmp_path / "half_package" / "__init__.py").write_text("from half_package import good\n1 / 0\n")
    (tmp_path / "half_package" / "good.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from importlib.metadata import EntryPoint

    with pytest.raises(PluginError, match="ZeroDivisionError"):
        plugins.entry_object(EntryPoint("half", "half_package", "bringup.ops"))
    assert not [name for name in sys.modules if name.startswith("half_package")]


def install(folder, name):
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[bringup.test_group]\n{name} = {name}\n")


def settle(folder):
    os.utime(folder, (1_000_000_000, 1_000_000_000))


def names_of_group():
    return [entry.name for entry in plugins.entry_points("bringup.test_group")]


def test_entry_points_are_read_again_only_when_a_package_came_or_went(monkeypatch, tmp_path):
    install(tmp_path, "first")
    settle(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    reads = []
    read = plugins.read_entry_points
    monkeypatch.setattr(plugins, "read_entry_points", lambda g: reads.append(g) or read(g))
    assert names_of_group() == names_of_group() == ["first"]
    assert len(reads) == 1
    install(tmp_path, "second")
    assert names_of_group() == ["first", "second"]
    shutil.rmtree(tmp_path / "first-1.0.dist-info")
    assert names_of_group() == ["second"]


def test_entry_points_are_kept_beside_the_backport_of_importlib_metadata(monkeypatch, tmp_path):
    class MetadataPathFinder(importlib.metadata.DistributionFinder):
        __module__ = "importlib_metadata"

        def find_distributions(self, context):
            return []

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, MetadataPathFinder()])
    test_entry_points_are_read_again_only_when_a_package_came_or_went(monkeypatch, tmp_path)


def test_entry_points_that_another_finder_gives_are_not_kept(monkeypatch):
    class Finder:
        @staticmethod
        def find_distributions(context):
            return found

    found = []
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert names_of_group() == []
    entry = importlib.metadata.EntryPoint("late", "late", "bringup.test_group")
    points = importlib.metadata.EntryPoints([entry])
    found.append(types.SimpleNamespace(_normalized_name="late", entry_points=points))
    assert names_of_group() == ["late"]
