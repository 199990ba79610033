"""Drivers that lie to a process that has loaded them: each lie becomes an error with a sentence.
What the checks see is tested one by one in `native/test_checked_driver.cpp`; here it reaches
whoever calls torch. Lies that are found before are in test_probe.py, so there is no probe here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CODE = """
import sys
import torch
from bringup import devices
devices.load_driver(sys.argv[1])
try:
    kept = [torch.empty(n, device="minimal") for n in (1000, 2_000_000, 3_000_000)]
    kept[0].copy_(torch.ones(1000))
    torch.Stream("minimal").synchronize()
    torch.minimal.synchronize()
    print("believed")
except Exception as error:
    print(type(error).__name__, error)
"""
UNPROBED = {"BRINGUP_DRIVER_PROBE": "0"}
BROKEN = "the driver breaks the contract of bringup/driver.h: "


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        ("LIE_NOTHING", BROKEN + "mem_alloc returned BRINGUP_OK and no address"),
        ("LIE_ALIGNED", "which is not 64-byte aligned"),
        ("LIE_TWICE", "that are still in use"),
        ("LIE_STREAM", BROKEN + "stream_create returned BRINGUP_OK and no handle"),
        ("LIE_STATUS", BROKEN + "copy_async returned the status 57, which there is not"),
    ],
)
def test_a_lie_becomes_an_error(
    lie: str,
    sentence: str,
    build_driver: Callable[..., Path],
    fresh_python: Callable[..., str],
) -> None:
    said = fresh_python(CODE, str(build_driver(lie)), **UNPROBED)
    assert sentence in said
    assert "on device 'minimal'" in said


def test_an_honest_driver_is_believed(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    assert fresh_python(CODE, str(build_driver())) == "believed"


def test_a_wait_has_a_limit(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    said = fresh_python(
        CODE, str(build_driver("LIE_PENDING")), BRINGUP_WAIT_TIMEOUT="0.3", **UNPROBED
    )
    assert "has not ended after 0.3 s (BRINGUP_WAIT_TIMEOUT)" in said


def test_a_call_that_does_not_return_is_told(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = f"import os; os.dup2(1, 2)\n{CODE}"
    driver = str(build_driver("LIE_HANG"))
    said = fresh_python(code, driver, BRINGUP_WAIT_TIMEOUT="0.5", **UNPROBED)
    assert "bringup: the driver's copy_async has not returned for " in said
    assert said.splitlines()[-1] == "believed"


def test_a_call_that_does_not_return_ends_the_process_where_that_is_wanted(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import os, subprocess, sys
done = subprocess.run([sys.executable, "-c", os.environ["CODE"], sys.argv[1]], capture_output=True)
print(done.returncode, b"copy_async has not returned" in done.stderr)
"""
    limits = {"BRINGUP_WAIT_TIMEOUT": "0.5", "BRINGUP_WAIT_ABORT": "1", **UNPROBED}
    said = fresh_python(code, str(build_driver("LIE_HANG")), CODE=CODE, **limits)
    assert said == "-6 True"


def test_words_that_do_not_end_are_cut(
    build_driver: Callable[..., Path], fresh_python: Callable[..., str]
) -> None:
    code = """
import sys
import torch
from bringup import devices
devices.load_driver(sys.argv[1])
try:
    torch.empty(200_000_000, device="npu")
except RuntimeError as error:
    print(error)
"""
    said = fresh_python(code, str(build_driver("LIE_WORDS", source="lying")), **UNPROBED)
    assert "xxx... (the text of last_error() does not end)" in said
    assert len(said) < 2000
