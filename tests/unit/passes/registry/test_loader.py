"""Pass plugins: found by path, identified by content, isolated when broken."""

import os
import sys
import threading

import pytest
from tests.unit.passes.support import registered_names

from bringup import passes, plugins

PLUGIN = """
from bringup import passes

@passes.register_fusion_pass(name={name!r}, stage=passes.PassStage.AFTER_INFER_SHAPE)
class {name}(passes.FusionBasePass):
    def run(self, graph, context):
        return None
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    return tmp_path


def write(path, name):
    path.parent.mkdir(exist_ok=True)
    path.write_text(PLUGIN.format(name=name))
    return path


def test_folder_gives_its_files_and_packages_but_no_private_ones(folder):
    write(folder / "b.py", "B")
    write(folder / "_hidden.py", "Hidden")
    write(folder / "pack" / "__init__.py", "Pack")
    (folder / "notes.txt").write_text("no plugin")
    report = passes.load_pass_plugins()
    assert registered_names() == ["B", "Pack"]
    assert report.loaded == {
        str(folder / "b.py"): ("B",),
        str(folder / "pack" / "__init__.py"): ("Pack",),
    }
    assert report.errors == []


def test_package_may_import_its_own_modules(folder):
    write(folder / "pack" / "inner.py", "Inner")
    (folder / "pack" / "__init__.py").write_text("from . import inner")
    assert passes.load_pass_plugins().errors == []
    assert registered_names() == ["Inner"]


def test_second_variable_is_read_after_the_first(tmp_path, monkeypatch):
    first, second = write(tmp_path / "x.py", "X"), write(tmp_path / "y.py", "Y")
    monkeypatch.setenv("ASCEND_GE_PY_PASS_PATH", str(second))
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(first))
    assert list(passes.load_pass_plugins().loaded) == [str(first), str(second)]


def test_broken_plugin_is_reported_with_its_traceback_and_the_others_load(folder):
    write(folder / "a.py", "A")
    (folder / "broken.py").write_text(
        PLUGIN.format(name="Half") + "\nraise RuntimeError('no luck')\n"
    )
    write(folder / "c.py", "C")
    (error,) = passes.load_pass_plugins().errors
    assert registered_names() == ["A", "C"]
    text = str(error)
    assert f"plugin {folder / 'broken.py'} raised RuntimeError: no luck" in text
    assert "Traceback" in text
    assert "raise RuntimeError('no luck')" in text
    assert not [name for name in sys.modules if name.startswith("bringup_plugin_broken")]


def test_syntax_error_in_a_plugin_is_isolated(folder):
    (folder / "broken.py").write_text("def (:\n")
    (error,) = passes.load_pass_plugins().errors
    assert "SyntaxError" in str(error)


def test_taken_name_in_a_second_plugin_is_its_error_and_the_first_stays(folder):
    write(folder / "a.py", "Same")
    write(folder / "b.py", "Same")
    (error,) = passes.load_pass_plugins().errors
    assert "a pass named 'Same' is registered already" in str(error)
    assert registered_names() == ["Same"]


def test_unchanged_file_is_not_run_again_and_a_changed_one_is(folder):
    path = write(folder / "a.py", "First")
    passes.load_pass_plugins()
    (first,) = passes.get_registered_passes()
    os.utime(path)  # a new time, the same content
    passes.load_pass_plugins()
    assert passes.get_registered_passes()[0].pass_class is first.pass_class
    stamp = path.stat()
    write(path, "Other")  # the same size and time, another content
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    passes.load_pass_plugins()
    assert registered_names() == ["Other"]


def test_removed_file_and_left_path_are_unloaded(folder, monkeypatch):
    write(folder / "a.py", "A")
    write(folder / "b.py", "B")
    passes.load_pass_plugins()
    (folder / "a.py").unlink()
    passes.load_pass_plugins()
    assert registered_names() == ["B"]
    monkeypatch.delenv("BRINGUP_PASS_PATH")
    passes.load_pass_plugins()
    assert registered_names() == []


def test_missing_place_is_an_error_and_the_others_load(tmp_path, monkeypatch):
    good = write(tmp_path / "a.py", "A")
    text = tmp_path / "notes.txt"
    text.write_text("")
    paths = [str(tmp_path / "nowhere"), str(text), str(good)]
    monkeypatch.setenv("BRINGUP_PASS_PATH", os.pathsep.join(paths))
    first, second = passes.load_pass_plugins().errors
    assert "nowhere (from BRINGUP_PASS_PATH): no such file or folder" in str(first)
    assert "notes.txt (from BRINGUP_PASS_PATH): expected a .py or .so file, a folder" in str(second)
    assert registered_names() == ["A"]


def test_sys_path_is_left_as_found_and_no_bytecode_is_written(folder):
    (folder / "a.py").write_text("import sys\nsys.path.insert(0, '/nowhere')\n")
    before = list(sys.path)
    passes.load_pass_plugins()
    assert sys.path == before
    assert [item.name for item in folder.iterdir()] == ["a.py"]


def test_entry_points_load_modules_and_call_callables(monkeypatch, tmp_path):
    class Entry:
        def __init__(self, name, loaded):
            self.name, self.value, self.group, self._loaded = name, f"package:{name}", "g", loaded

        def load(self):
            return self._loaded() if self.name == "raises" else self._loaded

    def register():
        exec(PLUGIN.format(name="FromEntry"), {"__name__": "entry"})

    def fail():
        raise OSError("not installed well")

    found = {"bringup.passes": [Entry("function", register), Entry("raises", fail)]}
    monkeypatch.setattr(plugins, "entry_points", lambda group: found.get(group, []))
    (error,) = passes.load_pass_plugins().errors
    assert registered_names() == ["FromEntry"]
    assert "entry point 'raises' = package:raises of group 'g' raised OSError" in str(error)


def test_unloading_twice_is_harmless_and_keeps_explicit_passes(folder):
    @passes.register_fusion_pass(name="Mine", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Mine(passes.FusionBasePass):
        pass

    write(folder / "a.py", "A")
    passes.load_pass_plugins()
    passes.unload_pass_plugins()
    passes.unload_pass_plugins()
    assert registered_names() == ["Mine"]


def test_many_threads_load_every_plugin_once(folder):
    (folder / "count.py").write_text(
        "import builtins\nbuiltins.bringup_loads = getattr(builtins, 'bringup_loads', 0) + 1\n"
    )
    write(folder / "a.py", "A")
    import builtins

    try:
        threads = [threading.Thread(target=passes.load_pass_plugins) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert builtins.bringup_loads == 1
        assert registered_names() == ["A"]
    finally:
        del builtins.bringup_loads


def test_env_variable_naming_a_file_or_a_folder_loads_what_is_there(tmp_path, monkeypatch):
    write(tmp_path / "one.py", "One")
    write(tmp_path / "two.py", "Two")
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path / "one.py"))
    passes.load_pass_plugins()
    assert registered_names() == ["One"]
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    passes.load_pass_plugins()
    assert registered_names() == ["One", "Two"]


def test_two_versions_of_a_pass_in_two_plugins_stand_side_by_side(folder):
    for version in ("1", "2"):
        text = PLUGIN.format(name="Same").replace("stage=", f"version={version!r}, stage=")
        (folder / f"v{version}.py").write_text(text)
    report = passes.load_pass_plugins()
    assert report.errors == []
    assert list(report.loaded.values()) == [("Same",), ("Same@2",)]
    (folder / "v2.py").unlink()
    passes.load_pass_plugins()
    assert [item.version for item in passes.get_registered_passes()] == ["1"]


def test_duplicate_in_a_plugin_takes_all_of_its_passes_back(folder):
    """A duplicate name rolls all registrations of its plugin back."""
    write(folder / "a.py", "Taken")
    text = PLUGIN.format(name="Mine") + PLUGIN.format(name="Taken")
    (folder / "b.py").write_text(text)
    (error,) = passes.load_pass_plugins().errors
    assert registered_names() == ["Taken"]
    assert "a pass named 'Taken' is registered already" in str(error)


def test_plugin_that_loads_plugins_itself_is_loaded_once(folder):
    """A nested load neither hangs nor runs the plugin again."""
    (folder / "a.py").write_text(
        "from bringup import passes\n"
        "report = passes.load_pass_plugins()\n" + PLUGIN.format(name="Outer")
    )
    write(folder / "b.py", "B")
    report = passes.load_pass_plugins()
    assert report.errors == []
    assert registered_names() == ["B", "Outer"]
    assert sorted(report.loaded.values()) == [("B",), ("Outer",)]


def entry_point_package(tmp_path, monkeypatch, text):
    package = tmp_path / "site" / "vendor_passes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(package.parent))
    from importlib.metadata import EntryPoint

    entry = EntryPoint("vendor", "vendor_passes", passes.registry.loader.ENTRY_POINT_GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])


def test_entry_point_module_is_forgotten_and_registers_again(tmp_path, monkeypatch):
    """Unloading clears registry and modules, so that a later load finds the passes again."""
    entry_point_package(tmp_path, monkeypatch, PLUGIN.format(name="Vendor"))
    for _ in range(2):
        assert passes.load_pass_plugins().errors == []
        assert registered_names() == ["Vendor"]
        assert "vendor_passes" in sys.modules
        passes.unload_pass_plugins()
        assert registered_names() == []
        assert "vendor_passes" not in sys.modules


def test_thread_that_imports_a_plugin_while_it_is_loaded_does_not_hang(tmp_path, monkeypatch):
    """Registering waits for no load: one thread holds the loader and waits for the import, the
    other holds the import and registers.
    """
    text = "import time\nprint(end='')\ntime.sleep(0.2)\n" + PLUGIN.format(name="Vendor")
    entry_point_package(tmp_path, monkeypatch, text)
    threads = [
        threading.Thread(target=lambda: __import__("vendor_passes"), daemon=True),
        threading.Thread(target=passes.load_pass_plugins, daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert [thread.is_alive() for thread in threads] == [False, False]
    assert registered_names() == ["Vendor"]
    sys.modules.pop("vendor_passes", None)


def test_shutdown_forgets_everything_and_is_harmless_twice(folder):
    """Shutdown and reset twice."""

    @passes.register_fusion_pass(name="Mine", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Mine(passes.FusionBasePass):
        pass

    write(folder / "a.py", "A")
    passes.load_pass_plugins()
    passes.shutdown()
    passes.shutdown()
    assert registered_names() == []
    assert not [name for name in sys.modules if name.startswith("bringup_plugin_a")]
    passes.load_pass_plugins()
    assert registered_names() == ["A"]


def test_passes_of_a_plugin_are_seen_when_all_of_it_has_loaded(folder):
    """A plugin becomes visible in one step: nobody runs half of it."""
    (folder / "a.py").write_text(
        PLUGIN.format(name="First")
        + "seen = [item.pass_name for item in passes.get_registered_passes()]\n"
        + PLUGIN.format(name="Second")
        + "assert seen == [], seen\n"
    )
    assert passes.load_pass_plugins().errors == []
    assert registered_names() == ["First", "Second"]
