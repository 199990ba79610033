"""What a driver says of itself, asked in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bringup import _native, devices


def test_the_simulator_is_described_as_torch_has_it() -> None:
    found = devices.describe_driver(_native.sim_driver_path())
    assert (found.device_name, found.failure) == ("npu", "")
    assert found.device_count == len(found.devices) == torch.npu.device_count()
    named = {name.rpartition("HAS_")[2] for name in found.capabilities}
    assert {"LIFECYCLE", "POINTERS", "PROFILER"} <= named
    props = torch.npu.get_device_properties(0)
    one = found.devices[0]
    assert (one.name, one.arch, one.total_memory) == (props.name, props.arch, props.total_memory)
    assert 0 < one.free_memory <= one.total_memory
    assert (one.alignment, one.uuid) == (props.alignment, props.uuid)
    assert (one.core_count, one.driver_version) == (props.core_count, props.driver_version)
    assert {getattr(torch, name) for name in one.dtypes} == props.dtypes
    assert one.host_visible_memory is props.host_visible_memory
    assert one.supports_int64
    assert one.runs_host_code


def test_a_driver_that_says_little_gets_what_the_header_promises(
    build_driver: Callable[..., Path],
) -> None:
    found = devices.describe_driver(build_driver())
    (one,) = found.devices
    assert (one.name, one.arch, one.alignment, one.uuid) == ("Minimal", "none", 64, None)
    assert "float64" in one.dtypes
    assert len(one.dtypes) == 22  # 0 stands for all
    assert not one.runs_host_code
    assert found.capabilities == ()


def test_a_device_without_float64_has_no_dtype_made_of_it(
    build_driver: Callable[..., Path],
) -> None:
    (one,) = devices.describe_driver(build_driver("NO_FLOAT64")).devices
    assert not {"float64", "complex128"} & set(one.dtypes)
    assert "float32" in one.dtypes


def test_a_driver_that_cannot_be_asked_is_described_as_far_as_it_goes(
    build_driver: Callable[..., Path],
) -> None:
    lost = devices.describe_driver(build_driver("BROKEN_START"))
    assert lost.failure == "device_count returned 5"
    assert lost.devices == ()
    assert lost.device_name  # which its table says


def test_what_is_no_driver_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"no library")
    found = devices.describe_driver(tmp_path / "x.so")
    assert "file too short" in found.failure or "invalid ELF header" in found.failure
    assert found.devices == ()


@pytest.mark.parametrize(("what", "words"), [("abort()", "SIGABRT"), ("for (;;)", "has not")])
def test_a_driver_that_crashes_or_hangs_is_told(what: str, words: str, tmp_path: Path) -> None:
    source = (Path(__file__).parent / "drivers" / "minimal.c").read_text()
    first = "  bringup_device_props all;\n"
    inside = source.replace(first, f"{first}  {what};\n", 1)
    assert inside != source
    (tmp_path / "bad.c").write_text(inside)
    library = tmp_path / "libbad.so"
    command = ["cc", "-shared", "-fPIC", f"-I{_native.include_dir()}", str(tmp_path / "bad.c")]
    subprocess.run([*command, "-o", str(library)], check=True, capture_output=True)
    found = devices.describe_driver(library, seconds=2)
    assert words in found.failure
    assert found.devices == ()


def test_what_a_driver_says_is_utf_8_where_it_can_be_read_as_that(tmp_path: Path) -> None:
    source = (Path(__file__).parent / "drivers" / "minimal.c").read_text()
    changed = source.replace('"a driver for tests"', '"Ger\\xc3\\xa4t \\xff \\"1\\""')
    (tmp_path / "d.c").write_text(changed)
    command = ["cc", "-shared", "-fPIC", f"-I{_native.include_dir()}"]
    subprocess.run([*command, str(tmp_path / "d.c"), "-o", str(tmp_path / "d.so")], check=True)
    assert devices.describe_driver(tmp_path / "d.so").description == 'Ger\u00e4t \ufffd "1"'
