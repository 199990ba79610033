"""The dispatch stubs of the installed torch, and headers that are written here."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from bringup import devices
from bringup.errors import DeviceError

HEADERS = Path(torch.__file__).parent / "include"


@pytest.fixture(scope="module")
def installed() -> dict[str, devices.DispatchStub]:
    return {stub.name: stub for stub in devices.dispatch_stubs()}


def test_the_documented_stubs_are_there(installed: dict[str, devices.DispatchStub]) -> None:
    absolute = installed["abs_stub"]
    assert absolute.header == "ATen/native/UnaryOps.h"
    assert absolute.signature.replace(" ", "") == "void(*)(TensorIteratorBase&)"
    assert absolute.registrable
    choice = installed["_fused_sdp_choice_stub"]
    assert choice.header == "ATen/native/transformers/attention.h"
    assert choice.signature.startswith("int64_t (*)(const Tensor&")
    assert choice.registrable


def test_no_declaration_is_left_out(installed: dict[str, devices.DispatchStub]) -> None:
    lines = [
        line
        for header in (HEADERS / "ATen" / "native").rglob("*.h")
        for line in header.read_text().splitlines()
        if line.lstrip().startswith("DECLARE_DISPATCH")
    ]
    assert len(installed) == len(lines) > 400


def test_every_line_is_a_name_a_function_type_and_a_header(
    installed: dict[str, devices.DispatchStub],
) -> None:
    for stub in installed.values():
        assert re.fullmatch(r"(cpublas::)?\w+", stub.name), stub
        assert re.fullmatch(r"[\w:<>, &]+ ?\(\s?\*\s?\) ?\(.*\)", stub.signature), stub
        assert stub.signature.count("(") == stub.signature.count(")"), stub
        declared = (HEADERS / stub.header).read_text()
        assert stub.name.rpartition("::")[2] in declared, stub


def test_what_the_library_does_not_export_cannot_be_registered(
    installed: dict[str, devices.DispatchStub],
) -> None:
    assert not installed["mps_convolution_backward_stub"].registrable  # of another build
    assert installed["copy_stub"].registrable
    assert installed["cpublas::copy_stub"].registrable  # another one
    assert sum(not stub.registrable for stub in installed.values()) < 40


def headers(folder: Path, text: str, *, macro: bool = True) -> Path:
    native = folder / "ATen" / "native"
    native.mkdir(parents=True)
    define = "#define REGISTER_PRIVATEUSE1_DISPATCH(name, fn) x\n" if macro else ""
    declare = "#define DECLARE_DISPATCH(fn, name) \\\n  DECLARE_DISPATCH(wrong, wrong)\n"
    (native / "DispatchStub.h").write_text(define + declare)
    (native / "Ops.h").write_text(text)
    return folder


OPS = """
// DECLARE_DISPATCH(void(*)(), in_a_comment)
/* DECLARE_DISPATCH(void(*)(),
   in_another) */
namespace at::native {
using first = void (*)(int,
                       float);
using second = first;
DECLARE_DISPATCH(second, abs_stub)
namespace inner { struct X {}; DECLARE_DISPATCH(first, deep_stub) }
DECLARE_DISPATCH(
    int (*)(const std::pair<int, int>&, void (*)()),
    sum_stub)
DECLARE_DISPATCH(unknown_fn, other_stub)
}
"""


def test_comments_macros_aliases_and_namespaces_are_read_as_a_compiler_does(tmp_path: Path) -> None:
    found = devices.dispatch_stubs(headers(tmp_path, OPS))
    assert [(stub.name, stub.signature) for stub in found] == [
        ("abs_stub", "void (*)(int, float)"),
        ("inner::deep_stub", "void (*)(int, float)"),
        ("other_stub", "unknown_fn"),
        ("sum_stub", "int (*)(const std::pair<int, int>&, void (*)())"),
    ]
    assert [stub.registrable for stub in found] == [True, False, False, True]
    assert {stub.header for stub in found} == {"ATen/native/Ops.h"}


def test_a_torch_without_the_macro_registers_nothing(tmp_path: Path) -> None:
    found = devices.dispatch_stubs(headers(tmp_path, OPS, macro=False))
    assert not any(stub.registrable for stub in found)


@pytest.mark.parametrize(
    "text", ["DECLARE_DISPATCH(one)", "DECLARE_DISPATCH(a, b", "DECLARE_DISPATCH(a, b c)"]
)
def test_a_declaration_that_cannot_be_read_is_an_error_with_its_header(
    text: str, tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match=r"ATen/native/Ops\.h: expected DECLARE_DISPATCH\(type"):
        devices.dispatch_stubs(headers(tmp_path, text))


def test_missing_headers_are_told_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=rf"no headers in {tmp_path}/ATen/native: .*wheel"):
        devices.dispatch_stubs(tmp_path)


def test_headers_without_the_stubs_own_are_refused(tmp_path: Path) -> None:
    folder = headers(tmp_path, OPS)
    (folder / "ATen" / "native" / "DispatchStub.h").unlink()
    with pytest.raises(DeviceError, match=r"DispatchStub\.h cannot be read: No such file"):
        devices.dispatch_stubs(folder)


def test_without_torch_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DeviceError, match=r"torch is not installed.*pip install torch=="):
        devices.dispatch_stubs()


def test_a_torch_without_its_library_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location(
        "torch", headers(tmp_path / "include", OPS).parent / "t.py"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    with pytest.raises(DeviceError, match=rf"torch's library at {tmp_path}/lib/libtorch_cpu"):
        devices.dispatch_stubs()
