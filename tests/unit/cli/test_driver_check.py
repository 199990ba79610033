"""`bringup driver check` on the simulator, on the smallest driver, and on broken ones."""

from __future__ import annotations

import html
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bringup import _native, cli, devices
from bringup.cli._exit_codes import ExitCode

DRIVERS = Path(__file__).parents[1] / "devices" / "drivers"
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a driver of tests/unit/devices/drivers."""
    folder = tmp_path_factory.mktemp("drivers")

    def build_one(source: str, macro: str = "HONEST") -> Path:
        library = folder / f"lib{source}_{macro}.so"
        command = [shutil.which("cc") or "gcc", "-shared", "-fPIC", f"-I{_native.include_dir()}"]
        command += [f'-DSIM="{_native.sim_driver_path()}"', f"-D{macro}"]
        command += [str(DRIVERS / f"{source}.c"), "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True)
        return library

    return build_one


def results_of(path: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(path.read_text())
    return {result["name"]: result for result in found["results"]}


@pytest.mark.slow
@pytest.mark.parametrize("isolated", ["0", "1"])
def test_the_simulator_keeps_every_rule(
    isolated: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BRINGUP_SIM_ISOLATED", isolated)
    code = cli.main(["driver", "check", "sim", "--json", str(tmp_path / "found.json")])
    assert code == ExitCode.DONE, capsys.readouterr().out
    results = results_of(tmp_path / "found.json")
    skipped = {name for name, result in results.items() if result["outcome"] == "skipped"}
    assert skipped == ({"host.view"} if isolated == "1" else set())
    assert len(results) == len(devices.list_checks())


@pytest.mark.slow
def test_the_smallest_driver_keeps_every_rule(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    code = cli.main(["driver", "check", str(build("twelve")), "--json", str(file)])
    assert code == ExitCode.DONE, capsys.readouterr().out
    outcomes = [result["outcome"] for result in results_of(file).values()]
    assert outcomes.count("pass") >= 20
    assert "fail" not in outcomes


@pytest.mark.slow
@pytest.mark.parametrize("faults", ["reorder=random", "copy_latency_us=1000"])
def test_what_a_driver_may_do_breaks_no_rule(
    faults: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BRINGUP_SIM_FAULTS", faults)
    only = [part for group in ("events", "ordering", "streams") for part in ("--only", group)]
    assert cli.main(["driver", "check", "sim", *only]) == ExitCode.DONE, capsys.readouterr().out


@pytest.mark.slow
def test_the_driver_that_new_writes_keeps_every_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["new", "driver", "fresh", "--into", str(tmp_path)]) == ExitCode.DONE
    library = tmp_path / "libfresh.so"
    command = [shutil.which("cc") or "gcc", "-shared", "-fPIC", f"-I{_native.include_dir()}"]
    command += [str(tmp_path / "fresh" / "driver.c"), "-pthread", "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    capsys.readouterr()
    assert cli.main(["driver", "check", str(library)]) == ExitCode.DONE, capsys.readouterr().out


@pytest.mark.parametrize(
    ("macro", "only", "broken"),
    [
        ("LIE_COPY_NOTHING", "copies.both_ways", "copy_async to the device of 1 bytes"),
        ("LIE_EVENT_EARLY", "events.follow_a_function", "event_query returned BRINGUP_OK while"),
        ("LIE_WAIT_NOTHING", "event_wait", "event_wait did not hold the stream back"),
        ("LIE_WAIT_LATEST", "events.wait_keeps_its_record", "made after the wait"),
        ("LIE_VALUES_BLOCKS", "values.launch", "launch_values over a grid of 5 x 1 x 1 blocks"),
        ("LIE_VALUES_SURPLUS", "values.work_items", "launch_values with 37 x 1 x 1 work items"),
        ("LIE_VALUES_STALE", "values.graphs", "graph_update_values between two launches"),
        ("LIE_VALUES_LIMITS", "values.limits", "launch_values returned BRINGUP_OK"),
        ("LIE_IPC_COPY", "ipc.both_ways", "memory that another process wrote: "),
        ("LIE_IPC_ANY", "ipc.unknown", "ipc_open returned BRINGUP_OK for bytes that are no handle"),
        ("LIE_FILL_SHORT", "fills", "fill_async of 1 bytes at offset 0"),
        ("LIE_ALLOC_OVERLAP", "memory.addresses", "which overlap the"),
        ("LIE_LEAK", "memory.leaks", "mem_free gives nothing back: after 20 times"),
        ("LIE_LEAK", "memory.used_up", "mem_alloc returned BRINGUP_OUT_OF_MEMORY"),
        ("LIE_COPY_CRASHES", "copies.default_stream", "crashed with SIGSEGV in copy_async"),
    ],
)
def test_a_broken_driver_is_told_with_its_calls(
    macro: str,
    only: str,
    broken: str,
    build: Build,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library, page = str(build("lying", macro)), tmp_path / "page.html"
    command = ["driver", "check", library, "--only", only, "--html", str(page)]
    assert cli.main(command) == ExitCode.FAILED
    assert broken in html.unescape(page.read_text())
    assert f"bringup {shlex.join(command)}" in page.read_text()
    shown = capsys.readouterr().out
    assert broken in shown
    header, failure, *_ = shown.split("\n\n")
    assert " fail, " in header
    assert failure.startswith("FAIL ")
    assert "  calls" in shown
    assert "(device=0, " in shown
    assert " -> BRINGUP_OK" in shown


def test_a_hang_costs_one_check(build: Build, tmp_path: Path) -> None:
    library = str(build("lying", "LIE_COPY_HANGS"))
    file = tmp_path / "found.json"
    only = ("--only", "copies.default_stream", "--only", "streams.handles")
    options = ("--limit", "0.5", "--json", str(file))
    assert cli.main(["driver", "check", library, *only, *options]) == ExitCode.FAILED
    results = results_of(file)
    assert results["copies.default_stream"]["reason"] == "copy_async has not returned after 0.5 s"
    assert results["copies.default_stream"]["calls"][-1].endswith(" has not returned")
    assert results["streams.handles"]["outcome"] == "pass"


def test_a_driver_that_does_not_start_is_told(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["driver", "check", str(build("lying", "LIE_INIT"))]) == ExitCode.FAILED
    assert "init returned BRINGUP_DEVICE_LOST" in capsys.readouterr().out


def test_the_checks_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["driver", "check", "--list"]) == ExitCode.DONE
    assert "copies.both_ways" in capsys.readouterr().out


def test_no_driver_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["driver", "check"]) == ExitCode.USAGE
    assert "name a driver's library" in capsys.readouterr().err


def test_an_unknown_check_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["driver", "check", "sim", "--only", "copies.never"]) == ExitCode.USAGE
    assert "no check, group or function 'copies.never'" in " ".join(
        capsys.readouterr().err.replace("│", " ").split()
    )


def test_torch_is_not_needed(build: Build) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from bringup import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    command = ["driver", "check", str(build("twelve")), "--only", "device"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "The checks that launch" not in done.stdout
