"""The command line: exit codes, errors without tracebacks, doctor and config."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked_python import run_forked

import bringup
from bringup import cli, devices, settings
from bringup.cli import _app, _doctor_checks, _doctor_views
from bringup.cli._doctor_checks import Finding, Health
from bringup.errors import DriverError, NativeLibraryError


def test_version_prints_the_version_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"bringup {bringup.__version__}"


def test_python_dash_m_bringup_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bringup", "config", "--includes"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (Path(done.stdout.strip().removeprefix("-I")) / "bringup" / "kernel.h").is_file()


def test_unknown_command_exits_2_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bogus"]) == 2
    assert "No such command 'bogus'" in capsys.readouterr().err


def test_config_without_an_option_exits_2_and_names_the_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config"]) == 2
    assert "give exactly one of --includes, --cflags, --cmake" in capsys.readouterr().err


def test_config_cmake_gives_a_folder_whose_config_finds_the_headers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config", "--cmake"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert (folder / "bringup-config.cmake").is_file()
    assert (folder.parent / "include" / "bringup" / "kernel.h").is_file()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake on PATH")
def test_config_cmake_serves_find_package(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["config", "--cmake"]) == 0
    folder = capsys.readouterr().out.strip()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\n"
        "project(theirs LANGUAGES NONE)\n"
        "find_package(bringup REQUIRED)\n"
        "get_target_property(found bringup::headers INTERFACE_INCLUDE_DIRECTORIES)\n"
        'message(STATUS "headers in <${found}>")\n'
    )
    done = subprocess.run(
        ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), f"-Dbringup_DIR={folder}"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    headers = Path(done.stdout.partition("headers in <")[2].partition(">")[0])
    assert (headers / "bringup" / "kernel.h").is_file()


def test_config_cflags_compile_a_kernel_by_hand(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["config", "--cflags"]) == 0
    flags = capsys.readouterr().out.split()
    source = tmp_path / "one.cpp"
    source.write_text(
        '#include "bringup/kernel.h"\n'
        "BRINGUP_EXPORT int32_t run(void**, int32_t, const bringup_ctx*) { return 0; }\n"
    )
    subprocess.run(["c++", *flags, str(source), "-o", str(tmp_path / "one.so")], check=True)


def test_config_cflags_without_a_compiler_exits_1_and_says_how_to_get_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", "no-such-compiler")
    assert cli.main(["config", "--cflags"]) == 1
    error = capsys.readouterr().err
    assert "MissingCompilerError" in error
    assert "no-such-compiler" in error
    assert "Traceback" not in error


def test_failure_shows_no_traceback_unless_debug_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", "no-such-compiler")
    assert cli.main(["--debug", "config", "--cflags"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_app, "app", interrupted)
    assert cli.main(["doctor"]) == 130


def only(subject: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]


def test_doctor_reports_missing_compiler_with_the_command_and_exits_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRINGUP_JIT_CXX", "no-such-compiler")
    assert cli.main(["doctor", "--json", "-"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["healthy"] is False
    found = next(item for item in result["findings"] if item["subject"] == "compiler")
    assert found["health"] == "missing"
    assert "no-such-compiler" in found["detail"]
    assert found["fix"] == "apt-get install g++"


def test_doctor_survives_a_check_that_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        raise DriverError("the board is gone")
        yield  # makes this a generator, as the checks are

    monkeypatch.setitem(_doctor_checks.CHECKS, "driver", (broken, "plug it in"))
    findings = _doctor_checks.run_checks()
    assert only("driver", findings) == [
        Finding("driver", Health.MISSING, "DriverError: the board is gone", "plug it in")
    ]
    assert only("headers", findings)[0].health is Health.OK


def test_doctor_names_a_driver_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_DRIVER", "/no/such/driver.so")
    (finding,) = only("driver", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert "/no/such/driver.so" in finding.detail
    assert finding.fix == "unset BRINGUP_DRIVER"


def test_doctor_names_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_LAUNCH_BLOCKING", "perhaps")
    (finding,) = only("settings", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert "BRINGUP_LAUNCH_BLOCKING='perhaps'" in finding.detail
    assert finding.fix == "unset BRINGUP_LAUNCH_BLOCKING"


def test_doctor_without_torch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    (finding,) = only("torch", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert finding.fix.startswith("pip install torch==2.13.0")


def test_doctor_without_native_libraries_says_to_install_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unloadable() -> None:
        raise NativeLibraryError("bringup's native core cannot be loaded")

    monkeypatch.setattr("bringup._native.core", unloadable)
    (finding,) = only("bringup", [f for f in _doctor_checks.run_checks() if f.fix])
    assert "bringup's native core cannot be loaded" in finding.detail
    assert finding.fix == "pip install --no-build-isolation ."


def test_doctor_names_a_plugin_that_cannot_be_loaded_and_lists_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_plugin.py").write_text("raise KeyError('oops')\n")
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    findings = _doctor_checks.run_checks()
    (finding,) = only("plugin", findings)
    assert finding.health is Health.MISSING
    assert "broken_plugin.py" in finding.detail
    assert only("passes", findings)[0].health is Health.OK


def test_doctor_names_a_driver_of_another_abi(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, library = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("const void* bringup_driver_get(unsigned v) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    monkeypatch.setenv("BRINGUP_DRIVER", str(library))
    (finding,) = only("driver", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert f"{library} does not speak driver ABI 1" in finding.detail


def test_doctor_says_when_the_cache_folder_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(blocker / "cache"))
    (finding,) = only("cache", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert "cannot be written" in finding.detail
    assert finding.fix.startswith("export BRINGUP_CACHE_DIR=")


def test_doctor_says_when_the_cache_folder_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Asked by writing, since root may write where the mode says no: /proc lets nobody."""
    monkeypatch.delenv("BRINGUP_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc")
    (finding,) = only("cache", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert re.fullmatch(r"/proc/.*bringup: /proc cannot be written \(.+\)", finding.detail)
    monkeypatch.setenv("HOME", str(tmp_path))
    (finding,) = only("cache", _doctor_checks.run_checks())
    assert finding == Finding(
        "cache", Health.OK, f"{tmp_path}/.cache/bringup (made on first use)", ""
    )
    assert not list(tmp_path.iterdir())  # what it tried is gone again


def test_doctor_says_when_a_store_is_there_that_is_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path))
    (tmp_path / "v1").symlink_to(tmp_path / "nowhere")
    (finding,) = only("cache", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert f"{tmp_path}: {tmp_path / 'v1'} cannot be written" in finding.detail


def test_doctor_says_when_a_cache_is_not_used_because_others_can_write_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    (folder / "v1").mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(folder))
    (finding,) = only("cache", _doctor_checks.run_checks())
    assert finding.health is Health.MISSING
    assert finding.detail.startswith(f"{folder} is not used: others can write it")
    assert finding.fix.startswith("export BRINGUP_CACHE_DIR=")


def test_doctor_counts_the_kernels_of_a_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from bringup import jit

    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))
    jit.compile(jit.Source(text="int run(void) { return 0; }", name="k.c"))
    (finding,) = only("cache", _doctor_checks.run_checks())
    assert finding == Finding("cache", Health.OK, f"{tmp_path / 'cache'}: 1 compiled kernels", "")


def test_doctor_prints_findings_settings_and_remedies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bringup.cli._doctor.run_checks",
        lambda: [
            Finding("torch", Health.OK, "2.13.0"),
            Finding("model", Health.OPTIONAL, "not installed", "pip install it"),
        ],
    )
    monkeypatch.setenv("BRINGUP_JIT_TIMEOUT", "77")
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Nothing is missing.\nmodel (optional): pip install it\n")
    for part in ("2.13.0", "BRINGUP_JIT_TIMEOUT", "now 77"):
        assert part in out
    assert "BRINGUP_PASS_PATH" not in out  # as it was


def test_doctor_begins_with_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [
        Finding("model", Health.OPTIONAL, "not installed", "pip install it"),
        Finding("compiler", Health.MISSING, "none", "get one"),
    ]
    monkeypatch.setattr("bringup.cli._doctor.run_checks", lambda: findings)
    assert cli.main(["doctor"]) == 1
    answer = "1 missing:\ncompiler (missing): get one\nmodel (optional): pip install it\n"
    assert capsys.readouterr().out.startswith(answer)


def test_doctor_shows_the_dispatch_table_of_an_operator(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "table.json"
    assert cli.main(["doctor", "--op", "aten::add.Tensor", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "aten::add.Tensor(Tensor self" in out
    assert re.search(r"CPU +kernel +build/aten/src/ATen/RegisterCPU_0\.cpp:\d+", out)
    table = json.loads(file.read_text())
    (cpu,) = [entry for entry in table["entries"] if entry["key"] == "CPU"]
    assert cpu["kind"] == "kernel"
    assert cpu["where"] == f"{cpu['file']}:{cpu['line']}"
    assert len(table["entries"]) > 100
    assert any(one["key"] == "MkldnnCPU" for one in table["registrations"])


def test_doctor_folds_no_place_of_a_kernel_where_lines_are_short(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "table.json"
    assert cli.main(["doctor", "--op", "aten::add.Tensor", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    entries = json.loads(file.read_text())["entries"]
    places = {Path(entry["where"]).name for entry in entries if entry["where"]}
    assert len(places) > 20
    assert [place for place in places if not any(place in line for line in lines)] == []
    assert "CPU: kernel" in [line.strip() for line in lines]


def test_doctor_refuses_an_operator_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--op", "aten::nothing_like_it"]) == 1
    assert "no operator of this name is registered" in capsys.readouterr().err


def test_doctor_lists_the_stubs_of_the_installed_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["doctor", "--stubs", "--json", "-"]) == 0
    shown = capsys.readouterr()
    stubs = {stub["name"]: stub for stub in json.loads(shown.out)["stubs"]}
    assert stubs["abs_stub"]["registrable"]
    assert re.search(r"^ATen/native/UnaryOps\.h", shown.err, re.MULTILINE)
    assert re.search(r"^  mps_convolution_backward_stub .* not", shown.err, re.MULTILINE)
    can = sum(stub["registrable"] for stub in stubs.values())
    assert f"{can} of {len(stubs)} stubs can be registered" in shown.err


def test_doctor_shows_the_devices_of_a_named_driver_without_loading_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    cli.main(["doctor", "--driver", "sim", "--json", "-"])
    shown = capsys.readouterr()
    driver = json.loads(shown.out)["driver"]
    assert driver["device_name"] == "npu"
    assert driver["devices"][0]["alignment"] >= 64
    assert re.search(r"memory +[\d,]+ MiB of 4,096 MiB free, visible to the host", shown.err)
    assert re.search(r"capabilities +LIFECYCLE, .*PROFILER", shown.err, re.DOTALL)
    assert driver["devices"][0]["uuid"] in shown.err
    assert "float32" in shown.err
    compiler = driver["devices"][0]["torch_compile"]
    assert re.match(r"Inductor, in c for target 'sim': .+ at /", compiler)


def test_doctor_says_what_torch_compile_lacks() -> None:
    def said(arch: str, *capabilities: str) -> str:
        one = dataclasses.replace(described.devices[0], arch=arch)
        return _doctor_views.code_generator(one, capabilities)

    described = devices.describe_driver(devices.driver_library("sim"))
    assert said("unheard-1") == "not with Inductor: no package here brings target 'unheard'"
    assert "'triton' has no language of loop nests" in said("triton-1")
    assert said("sim-1") == "not with Inductor: the driver has no launch_values"


def test_doctor_asks_the_driver_of_the_setting_and_none_otherwise(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BRINGUP_DRIVER", raising=False)
    cli.main(["doctor", "--json", "-"])
    shown = capsys.readouterr()
    assert json.loads(shown.out)["driver"] is None
    assert "No driver is named: --driver NAME shows its devices." in shown.err
    monkeypatch.setenv("BRINGUP_DRIVER", "sim")
    cli.main(["doctor", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["driver"]["device_count"] >= 1


def test_doctor_fails_where_the_named_driver_cannot_be_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "libbad.so").write_bytes(b"no library")
    assert cli.main(["doctor", "--driver", str(tmp_path / "libbad.so")]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "devices (missing): bringup driver check" in out
    assert "not described" in out
    assert cli.main(["doctor", "--driver", "nothing-of-this-name"]) == 1
    assert "there is no driver named" in " ".join(capsys.readouterr().out.split())


def test_stubs_go_with_no_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--stubs", "--op", "aten::abs"]) == 2
    assert cli.main(["doctor", "--stubs", "--driver", "sim"]) == 2
    assert "neither --op nor --driver" in " ".join(capsys.readouterr().err.split())


def test_doctor_loads_the_driver_that_it_is_told_to() -> None:
    command = ["doctor", "--op", "aten::relu", "--json", "-"]
    program = "import sys\nfrom bringup.cli import main\nsys.exit(main(sys.argv[1:]))"
    without = {key: text for key, text in os.environ.items() if key != "BRINGUP_DRIVER"}
    asked = run_forked(program, *command, "--driver", "sim", environment=without)
    table = json.loads(asked.stdout)
    kinds = {entry["key"]: entry["kind"] for entry in table["entries"]}
    assert kinds["PrivateUse1"] == "host fallback"
    assert table["driver"]["device"] == "npu"
    plain = run_forked(program, *command, environment=without)
    assert json.loads(plain.stdout)["driver"] is None


@pytest.mark.parametrize(
    "command",
    [["demo", "--quick"], ["try", "module:factory"], ["doctor", "--op", "aten::relu"]],
)
def test_command_that_needs_torch_says_how_to_get_it(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(command) == 1
    words = (
        "ModuleNotFoundError: this command needs torch, which is not installed: pip install torch=="
    )
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "is a folder: give the name"), ("no/x.json", "does not exist: make it first")],
)
def test_results_that_cannot_be_written_are_refused_before_the_work(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["try", "nowhere", "--json", str(tmp_path / name)]) == 2
    assert words in " ".join(capsys.readouterr().err.replace("\u2502", " ").split())


def test_place_without_the_right_to_write_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    assert cli.main(["demo", "--json", str(tmp_path / "x.json")]) == 2
    assert "cannot be written: give another place" in " ".join(
        capsys.readouterr().err.replace("\u2502", " ").split()
    )


def test_settings_keep_their_names_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cli.main(["doctor", "--settings"])
    printed = capsys.readouterr().out.split()
    assert {row["variable"] for row in settings.table()} <= set(printed)


def test_every_command_takes_the_file_that_its_json_is_written_to() -> None:
    import typer

    def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, f"{path}{name} ")
            else:
                yield f"{path}{name}", command

    found = dict(commands(typer.main.get_command(_app.app)))
    del found["config"]  # prints what a shell or cmake reads
    del found["driver trace"]  # runs another program
    del found["stubs"]  # prints what a type checker reads
    assert len(found) > 12
    for name, command in found.items():
        (option,) = [one for one in command.params if "--json" in one.opts]
        assert (option.metavar, option.is_flag) == ("FILE", False), name


@pytest.mark.parametrize("place", ["-", "doctor.json"])
def test_json_goes_where_it_is_told_and_the_tables_out_of_its_way(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["doctor", "--json", place])
    output = capsys.readouterr()
    json_text, tables = output.out, output.err
    if place != "-":
        json_text, tables = Path(place).read_text(), output.out
        assert f"Written: {place}" in tables
    assert isinstance(json.loads(json_text)["healthy"], bool)
    assert "What is there" in tables


def test_check_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "torch" else found(name, *rest),
    )
    assert cli.main(["check", "a::b"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "this command needs torch, which is not installed: pip install torch==" in error


def test_doctor_keeps_its_columns_apart_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    cli.main(["doctor", "--settings"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[: lines.index("Settings")])) <= 60
    (row,) = [line for line in lines if "BRINGUP_CACHE_MAX_ENTRIES" in line]
    assert row.split()[1:4] == ["how", "many", "kernels"]
