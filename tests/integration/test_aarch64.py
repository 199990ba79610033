"""driver.h and a minimal driver on aarch64, under qemu's user emulation: what they do here, they do
there. `make test-aarch64` runs the simulator, native tests and the driver check, too.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.tool_module import tool_module

from bringup import _native

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "aarch64_tests.py"
COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")
PROGRAM = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bringup/driver.h"

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define FIELD(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))
#define CHECK(call) do { int32_t status = (call); if (status != 0) { \
  printf(#call " returned %d\n", (int)status); return 1; } } while (0)

int main(int count, char** words) {
  void* library = count == 2 ? dlopen(words[1], RTLD_NOW) : NULL;
  if (library == NULL) { printf("no driver: %s\n", dlerror()); return 1; }
  bringup_driver_get_fn get = NULL;
  void* symbol = dlsym(library, "bringup_driver_get");
  memcpy(&get, &symbol, sizeof symbol);
  const bringup_driver* driver = get(1);
  SIZE(bringup_driver);
  SIZE(bringup_device_props);
  SIZE(bringup_launch);
  FIELD(bringup_driver, device_count);
  FIELD(bringup_driver, capabilities);
  FIELD(bringup_device_props, total_memory);
  FIELD(bringup_device_props, uuid);
  FIELD(bringup_device_props, max_shared_bytes);
  FIELD(bringup_launch, release);
  bringup_stream stream = NULL;
  void* memory = NULL;
  char here[] = "carried there and back", back[sizeof here] = "";
  CHECK(driver->stream_create(0, 0, &stream));
  CHECK(driver->mem_alloc(0, sizeof here, &memory));
  CHECK(driver->copy_async(BRINGUP_HOST_TO_DEVICE, 0, memory, -1, here, sizeof here, stream));
  CHECK(driver->copy_async(BRINGUP_DEVICE_TO_HOST, -1, back, 0, memory, sizeof here, stream));
  CHECK(driver->stream_synchronize(0, stream));
  CHECK(driver->mem_free(0, memory));
  printf("%s\n", back);
  return 0;
}
"""


def output(compiler: str, folder: Path, *emulator: str) -> str:
    """What the program says of the minimal driver, both built with this compiler."""
    minimal = ROOT / "tests" / "unit" / "devices" / "drivers" / "minimal.c"
    (folder / "program.c").write_text(PROGRAM)
    library, program = folder / f"lib{compiler}.so", folder / compiler
    strict = [compiler, f"-I{_native.include_dir()}", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*strict, "-shared", "-fPIC", str(minimal), "-o", str(library)], check=True)
    subprocess.run([*strict, str(folder / "program.c"), "-ldl", "-o", str(program)], check=True)
    command = [*emulator, str(program), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_minimal_driver_works_on_aarch64_as_here(tmp_path: Path) -> None:
    for needed in (COMPILER, EMULATOR[0]):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is missing: python tools/install_compilers.py")
    there = output(COMPILER, tmp_path, *EMULATOR)
    assert there == output("gcc" if shutil.which("gcc") else "cc", tmp_path)
    assert there.splitlines()[-1] == "carried there and back"
    assert len(there.splitlines()) == 10


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    return tool_module("aarch64_tests")


def test_without_the_emulator_the_target_says_so_and_succeeds(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(tool.shutil, "which", lambda _: None)
    monkeypatch.setattr(tool.install_compilers, "main", lambda: asked.append("packages"))
    assert tool.main([]) == 0
    assert asked == ["packages"]
    assert "AARCH64 IS NOT TESTED: aarch64-linux-gnu-gcc, qemu" in capsys.readouterr().err


def test_a_failed_check_and_a_driver_that_does_not_start_fail_the_target(
    tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ['{"failure": ""}', '{"check": "a.b", "outcome": "fail", "reason": "why"}']

    def ran(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], 0, "\n".join(lines), "")

    monkeypatch.setattr(tool.subprocess, "run", ran)
    assert tool.check(Path("x.so")) == ["x.so: no check passed", "x.so: a.b: why"]
    lines[:] = ['{"failure": "no library"}']
    assert tool.check(Path("x.so"))[0] == "x.so: no library"
    lines[:] = ['{"failure": ""}', '{"check": "a.b", "outcome": "pass", "reason": ""}']
    assert tool.check(Path("x.so")) == []
