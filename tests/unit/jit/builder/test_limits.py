"""The compiler runs without a shell, under limits, and ends with everything that it started."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.jit.support import ADD

from bringup import jit, settings
from bringup.errors import CompileError, SettingError

SOURCE = jit.Source(text=ADD, name="add.cpp")


def test_a_compiler_is_stopped_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = jit.Source(
        text="template <int n> struct S { typedef typename S<n - 1>::T a; typedef typename "
        "S<n - 2>::T T; };\nconstexpr long f(long n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
        "static_assert(f(60) > 0);\n"
    )
    monkeypatch.setenv("BRINGUP_JIT_TIMEOUT", "0.5")
    start = time.monotonic()
    with pytest.raises(CompileError, match=r"(?s)stopped: it ran for 0\.5 s.*hint: BRINGUP_JIT_TI"):
        jit.compile(
            forever, flags=["-fconstexpr-ops-limit=9999999999", "-fconstexpr-loop-limit=99999999"]
        )
    assert time.monotonic() - start < 30


def test_a_compiler_may_not_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit holds for what the compiler's driver starts."""
    monkeypatch.setenv("BRINGUP_JIT_MEMORY", "48M")
    with pytest.raises(CompileError, match=r"hint: .*BRINGUP_JIT_MEMORY allows"):
        jit.compile(jit.Source(text=f"char big[] = {{ {'1,' * 3_000_000} }};\n{ADD}"))


def test_a_compiler_may_not_fill_the_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRINGUP_JIT_FILE_SIZE", "1M")
    big = jit.Source(text=f"extern const char big[4 << 20] = {{1}};\n{ADD}")
    with pytest.raises(CompileError, match=r"hint: .*larger than BRINGUP_JIT_FILE_SIZE allows"):
        jit.compile(big)
    monkeypatch.setenv("BRINGUP_JIT_FILE_SIZE", "0")
    assert jit.compile(big).path.stat().st_size > 2**22


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("BRINGUP_JIT_TIMEOUT", "soon"),
        ("BRINGUP_JIT_TIMEOUT", "-1"),
        ("BRINGUP_JIT_TIMEOUT", "inf"),
        ("BRINGUP_JIT_MEMORY", "1T"),
        ("BRINGUP_JIT_MEMORY", "G"),
        ("BRINGUP_JIT_FILE_SIZE", "-5"),
    ],
)
def test_a_limit_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError, match=f"{variable}='{text}': expected a number of"):
        jit.compile(jit.Source(text=f"{ADD}// {variable} {text}"))


@pytest.mark.parametrize(
    ("text", "size"), [("100", 100), ("3K", 3072), ("2m", 2**21), ("1G", 2**30), ("0", None)]
)
def test_sizes_have_units(monkeypatch: pytest.MonkeyPatch, text: str, size: int | None) -> None:
    monkeypatch.setenv("BRINGUP_JIT_MEMORY", text)
    assert settings.jit_memory() == size


def test_no_shell_reads_the_command(tmp_path: Path) -> None:
    """What a shell would run is a file name to us."""
    folder = tmp_path / "a; touch $(echo gotcha) `touch gotcha` 'b"
    folder.mkdir()
    path = folder / "k.cpp"
    path.write_text(ADD)
    assert jit.compile(jit.Source(path), flags=["-DX=$(touch gotcha)"]).path.is_file()
    assert not list(tmp_path.rglob("gotcha"))


def test_an_interrupt_ends_the_compiler(
    before_builds: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C does not leave a compiler behind."""
    import subprocess

    pids: list[int] = []
    real: Callable[..., object] = subprocess.Popen.communicate

    def interrupted(process: subprocess.Popen[bytes], **arguments: object) -> object:
        command = [str(word) for word in list(process.args)]  # type: ignore[arg-type]
        if "timeout" in arguments and any(word.endswith("stand-in-c++") for word in command):
            pids.append(process.pid)
            raise KeyboardInterrupt
        return real(process, **arguments)

    before_builds("exec sleep 600")
    jit.toolchain("cpu")  # asked before anything is interrupted
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jit.compile(SOURCE)
    assert len(pids) == 1
    assert not Path(f"/proc/{pids[0]}").exists()
