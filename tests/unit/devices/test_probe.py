"""The test of a driver in another process, before it is loaded into this one."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.devices.lies import LIES, Lie, markdown

from bringup import _native, devices
from bringup.devices import _probe
from bringup.errors import DriverError

Build = Callable[..., Path]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    return tmp_path / "drivers"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The libraries that were probed."""
    seen: list[Path] = []

    def counted(library: Path, **options: object) -> devices.DriverCheck:
        seen.append(library)
        return devices.check_driver(library, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(_probe, "check_driver", counted)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.macro)
@pytest.mark.usefixtures("cache")
def test_a_lie_is_refused_in_words(
    lie: Lie, build_driver: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence = lie.sentence
    if sentence.endswith(f"not returned after {_probe.CHECK_SECONDS:.0f} s"):
        monkeypatch.setattr(_probe, "CHECK_SECONDS", 2.0)
        sentence = sentence.replace(" 10 s", " 2 s")
    library = build_driver(f"LIE_{lie.macro}", source="lying")
    with pytest.raises(DriverError) as refused:
        _probe.require_probed(library)
    expected = f"the driver {library} cannot be used: {sentence}*(found in another process*"
    assert fnmatch.fnmatchcase(str(refused.value), expected), refused.value


def test_there_are_lies_about_everything() -> None:
    assert len({lie.macro for lie in LIES}) == len(LIES) >= 30


def test_the_documentation_shows_the_lies() -> None:
    page = Path(__file__).parents[3] / "docs" / "devices" / "check-a-driver.md"
    assert markdown() in page.read_text()


def test_what_lies_is_not_loaded(
    build_driver: Build, fresh_python: Callable[..., str], cache: Path
) -> None:
    code = """
import sys
import torch
from bringup import devices
try:
    devices.load_driver(sys.argv[1])
except devices._load.DriverError as error:
    print(error)
print(devices.loaded(), sys.argv[1] in open("/proc/self/maps").read())
"""
    library = build_driver("LIE_COPY_CRASHES", source="lying")
    said = fresh_python(code, str(library), BRINGUP_CACHE_DIR=str(cache.parent))
    assert "crashed with SIGSEGV in copy_async" in said
    assert said.splitlines()[-1] == "None False"


def test_without_a_probe_it_is_loaded_all_the_same(
    build_driver: Build, monkeypatch: pytest.MonkeyPatch, probes: list[Path]
) -> None:
    monkeypatch.setenv("BRINGUP_DRIVER_PROBE", "0")
    _probe.require_probed(build_driver("LIE_COPY_NOTHING", source="lying"))
    assert not probes


@pytest.mark.usefixtures("cache")
def test_a_driver_is_probed_once(build_driver: Build, probes: list[Path]) -> None:
    library = build_driver(source="twelve")
    first, *others = [_probe.require_probed(library) for _ in range(3)]
    assert first is not None
    assert others == [first, first]
    assert probes == [library]


@pytest.mark.usefixtures("cache")
def test_the_version_of_the_driver_is_remembered(probes: list[Path]) -> None:
    library = _native.sim_driver_path()
    first = _probe.require_probed(library)
    assert first is not None
    assert first.driver_version != ""
    assert _probe.require_probed(library) == first
    assert probes == [library]


@pytest.mark.usefixtures("cache")
def test_faults_of_the_simulator_are_not_for_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_SIM_FAULTS", "fail=copy_async")
    _probe.require_probed(_native.sim_driver_path())


@pytest.mark.usefixtures("cache")
def test_another_version_is_probed_anew(build_driver: Build, probes: list[Path]) -> None:
    library = build_driver(source="twelve")
    probed = _probe.require_probed(library)
    assert probed is not None
    _probe.require_same(library, probed, probed)
    assert probes == [library]
    _probe.require_same(library, probed, replace(probed, driver_version="firmware 2"))
    assert probes == [library, library]


@pytest.mark.usefixtures("cache")
def test_another_table_is_probed_anew(probes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    library = _native.sim_driver_path()
    visible = _probe.require_probed(library)
    assert visible is not None
    assert visible.host_visible_memory
    assert "host_view" in visible.functions.split()
    _probe.require_same(library, visible, replace(visible, functions="mem_alloc"))
    assert probes == [library, library]
    monkeypatch.setenv("BRINGUP_SIM_ISOLATED", "1")
    _probe.require_same(library, visible, replace(visible, host_visible_memory=False))
    assert probes == [library] * 3
    known = _probe.require_probed(library)
    assert known == replace(visible, host_visible_memory=False)
    assert probes == [library] * 3


@pytest.mark.usefixtures("cache")
def test_other_content_is_probed_anew(
    build_driver: Build, probes: list[Path], tmp_path: Path
) -> None:
    library = tmp_path / "libdriver.so"
    library.write_bytes(build_driver(source="twelve").read_bytes())
    _probe.require_probed(library)
    library.unlink()
    library.write_bytes(build_driver("LIE_COPY_NOTHING", source="lying").read_bytes())
    with pytest.raises(DriverError, match="copy_async to the device"):
        _probe.require_probed(library)
    assert probes == [library, library]


@pytest.mark.usefixtures("cache")
def test_a_library_that_it_loads_counts_too(
    build_driver: Build, probes: list[Path], cache: Path
) -> None:
    library = build_driver("LIE_LEAK", source="lying")
    _probe.require_probed(library)
    (record,) = cache.iterdir()
    files = json.loads(record.read_text())["files"]
    assert {str(library), str(_native.sim_driver_path())} <= set(files)
    files[str(_native.sim_driver_path())] = {"stat": [], "sha256": "another content"}
    record.write_text(json.dumps({**json.loads(record.read_text()), "files": files}))
    _probe.require_probed(library)
    assert probes == [library, library]


@pytest.mark.usefixtures("cache")
def test_another_time_of_the_same_content_needs_no_probe(
    build_driver: Build, probes: list[Path]
) -> None:
    library = build_driver(source="twelve")
    _probe.require_probed(library)
    os.utime(library, ns=(1, 1))
    _probe.require_probed(library)
    assert probes == [library]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"probed": {}, "files": []}'])
def test_a_damaged_record_is_written_anew(
    text: str, build_driver: Build, probes: list[Path], cache: Path
) -> None:
    library = build_driver(source="twelve")
    _probe.require_probed(library)
    (record,) = cache.iterdir()
    record.write_text(text)
    _probe.require_probed(library)
    _probe.require_probed(library)
    assert probes == [library, library]


def test_without_a_cache_it_is_probed_each_time(
    build_driver: Build, probes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "file" / "cache"))
    library = build_driver(source="twelve")
    _probe.require_probed(library)
    _probe.require_probed(library)
    assert probes == [library, library]
