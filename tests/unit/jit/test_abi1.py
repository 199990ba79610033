"""Kernel ABI 1 stays: a binary of the first days runs, the structures keep their layout."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit import support
from tests.unit.jit.support import Call

from bringup import _native, jit

BINARY = Path(__file__).parent / "data" / "abi1_add_x86_64.so"

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the checked-in binary is for x86-64"
)


@pytest.fixture
def kernel_id() -> int:
    loaded: int = _native.core().load_kernel(str(BINARY), "run")
    return loaded


def test_the_first_binary_still_runs(kernel_id: int) -> None:
    x = np.arange(20, dtype=np.float32)[::2]
    y = np.arange(10, dtype=np.float32)[::-1]
    out = np.zeros(10, np.float32)
    more = [np.zeros(1, np.float32), np.array([0.5], np.float32)]
    call = Call()
    status = call.run(kernel_id, x, y, 2.0, -3, [7, 100], [0.25], more, "name", None, out)
    assert (status, call.message) == (0, "")
    np.testing.assert_allclose(out, 2 * x - 3 * y + 100 + 0.25 + 0.5 + 4)
    assert call.chunks == [(0, 4), (4, 8), (8, 10)]


def test_the_first_binary_still_fails_with_words(kernel_id: int) -> None:
    call = Call()
    assert call.run(kernel_id, np.zeros(1, np.float32)) == 3
    assert call.message == "abi1_add: expected nine inputs and one output"


def test_the_binary_names_its_abi() -> None:
    assert ctypes.c_int32.in_dll(ctypes.CDLL(str(BINARY)), "bringup_abi").value == 1


def test_the_structures_keep_their_layout() -> None:
    members = {
        "bringup_ctx": [name for name, _ in support.Context._fields_],
        "DLTensor": [name for name, _ in support.DLTensor._fields_],
        "bringup_list": [name for name, _ in support.List._fields_],
    }
    mirrors = {
        "bringup_ctx": support.Context,
        "DLTensor": support.DLTensor,
        "bringup_list": support.List,
    }
    checks = [
        f"_Static_assert(offsetof(struct_{struct}, {name}) == "
        f'{getattr(mirrors[struct], name).offset}, "{struct}.{name}");'
        for struct, names in members.items()
        for name in names
    ]
    typedefs = [f"typedef {struct} struct_{struct};" for struct in members]
    body = ["int run(void);", "int run(void) { return 0; }"]
    text = "\n".join(['#include "bringup/kernel.h"', *typedefs, *checks, *body])
    assert jit.compile(jit.Source(text=text, name="layout.c")).path.is_file()
