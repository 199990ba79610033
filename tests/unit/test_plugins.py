"""The one discovery: files, packages and entry points, without knowing what is in them."""

import sys

import pytest

from bringup import plugins
from bringup.errors import PluginError


def test_file_is_imported_under_a_private_name_and_forgotten_on_request(tmp_path):
    path = tmp_path / "vendor.py"
    path.write_text("answer = 42\n")
    (plugin,), errors = plugins.plugin_files([path, tmp_path])
    assert errors == []
    module = plugins.load_file(plugin)
    assert module.answer == 42
    assert module.__name__.startswith("bringup_plugin_vendor_")
    plugins.unload_file(plugin)
    assert plugin.module_name not in sys.modules


def test_failing_file_leaves_no_module_and_keeps_its_cause(tmp_path):
    path = tmp_path / "vendor.py"
    path.write_text("import sys\nsys.path.append('/nowhere')\n1 / 0\n")
    (plugin,), _ = plugins.plugin_files([path])
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
    (first,), _ = plugins.plugin_files([tmp_path])
    (package / "inner.py").write_text("x = 2\n")
    (second,), _ = plugins.plugin_files([package])
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
