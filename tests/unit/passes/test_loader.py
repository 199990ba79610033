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
    assert "nowhere: no such file or folder" in str(first)
    assert "notes.txt: expected a .py file, a folder or a package" in str(second)
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

    found = [Entry("function", register), Entry("raises", fail)]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)
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
