"""Whole numbers among the arguments of C functions: the native evaluator, the generated C and
Python's give the same numbers and the same words.
"""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.expressions import EXPRESSIONS
from tests.unit.jit.support import Call

from bringup import _native, jit
from bringup._language.signature import SCALAR_TYPES, dtype_number
from bringup.errors import ContractError

TAKE = "#include <stdint.h>\nint take(int64_t* out, int64_t given) { *out = given; return 0; }\n"
SIGNATURE = [
    jit.Argument("x", "Tensor"),
    jit.Argument("n", "int"),
    jit.Argument("flag", "bool"),
    jit.Argument("sizes", "int[]"),
    jit.Argument("y", "Tensor", optional=True),
    jit.Argument("out", "Tensor"),
]


def in_python(template: jit.Template, values: list[Any]) -> object:
    try:
        return template.bind(SIGNATURE).parameters[1].evaluate(values)
    except ContractError as error:
        return str(error)


@pytest.fixture(scope="module")
def take(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], jit.Template]:
    """The template of the function in a library, called with an expression."""
    folder = tmp_path_factory.mktemp("take")
    built = jit.compile(jit.Source(text=TAKE, name="take.c", entry="take", abi="function"))
    library = folder / "libtake.so"
    library.write_bytes(Path(built.path).read_bytes())

    def template(text: str) -> jit.Template:
        return jit.Template(library, abi="function", params=f"ptr(out), {text}", entry="take")

    return template


def by_the_native_library(template: jit.Template, values: list[Any]) -> object:
    binding = template.bind(SIGNATURE).binding
    assert binding is not None
    core = _native.core()
    kernel = core.bind_c_function(str(template.path), "take", *binding.native())
    try:
        call = Call()
        status = call.run(kernel, *(int(v) if isinstance(v, bool) else v for v in values))
        return call.message if status else int(values[-1][0])
    finally:
        core.release_kernel(kernel)


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    text=EXPRESSIONS,
    shape=st.lists(st.integers(0, 4), max_size=3),
    n=st.one_of(st.integers(-5, 5), st.sampled_from([2**40, 2**63 - 1, -(2**63)])),
    flag=st.booleans(),
    has_y=st.booleans(),
    sizes=st.lists(st.integers(0, 3), max_size=3),
)
def test_a_function_gets_what_python_says_or_the_call_is_refused_with_its_words(
    take: Callable[[str], jit.Template],
    text: str,
    shape: list[int],
    n: int,
    flag: bool,
    has_y: bool,
    sizes: list[int],
) -> None:
    values: list[Any] = [np.ones(shape), n, flag, sizes, np.ones(1) if has_y else None]
    values.append(np.zeros(1, "int64"))
    template = take(text)
    assert by_the_native_library(template, values) == in_python(template, values)


def by_generated_c(template: jit.Template, values: list[Any]) -> object:
    glued = template.bind(SIGNATURE).glued
    binary = jit.compile(glued.source, flags=glued.flags)
    call = Call()
    pointers = (ctypes.c_void_p * 6)(
        *(call._argument(int(v) if isinstance(v, bool) else v) for v in values)
    )
    refuse = ctypes.CDLL(str(binary.path)).bringup_can_implement
    refuse.restype = ctypes.c_char_p
    reason = refuse(pointers, 6, None)
    if reason is not None:
        return reason.decode()
    assert call.run(binary.kernel_id, *(int(v) if isinstance(v, bool) else v for v in values)) == 0
    return int(values[-1][0])


@pytest.mark.parametrize(
    "text",
    [
        "n * n",
        "n * n // 0",
        "(n // 0) + n * n",
        "n // -1",
        "(n + 1) % -1 + x.shape[-1] % -7 * 2",
        "-(n // 2 + 1) // 3",
        "x.shape[2] + n * n",
        "not (n < 0 and flag) or 1 // len(sizes) > has(y)",
        "stride(x,0) - numel(x) * ndim(x) - -9223372036854775808 // 2",
        "dtype(x) + dtype_bits(x) * dtype_code(x) == 71 + 128",
        "2 <= size(x,0) != 3",
        "size(x,2,n // 3) + stride(x,-2,n) - size(y,0,min(n, 9, x.shape[0]))",
    ],
)
@pytest.mark.parametrize("n", [7, -(2**63)])
def test_generated_c_gives_what_python_says(text: str, n: int) -> None:
    template = jit.Template(
        text=TAKE, name="take.c", abi="function", params=f"ptr(out), {text}", entry="take"
    )
    values = [np.ones((4, 5), "float32"), n, True, [], None, np.zeros(1, "int64")]
    assert by_generated_c(template, values) == in_python(template, values)


def test_the_generated_c_numbers_dtypes_as_torch_does(tmp_path: Path) -> None:
    (tmp_path / "number.c").write_text(
        "#include <bringup/kernel.h>\n#include <bringup/glue.h>\n"
        "int number(int code, int bits) {\n"
        "  DLTensor x = {.dtype = {code, bits, 1}};\n  return bringup_glue_dtype(&x);\n}\n"
    )
    command = ["cc", "-shared", "-fPIC", f"-I{_native.include_dir()}", str(tmp_path / "number.c")]
    subprocess.run([*command, "-o", str(tmp_path / "number.so")], check=True)
    number = ctypes.CDLL(str(tmp_path / "number.so")).number
    expected = {
        (dtype_number(name, "dtype_code"), dtype_number(name, "dtype_bits")): place
        for place, name in enumerate(SCALAR_TYPES.split())
        if dtype_number(name, "dtype") == place
    }
    assert len(expected) == 21
    for kind in itertools.product(range(16), (1, 4, 8, 16, 32, 64, 128)):
        assert number(*kind) == expected.get(kind, -1), kind
