"""Functions of libraries: which build of a library an operator has, and when it is loaded and
closed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.ops.c_functions import (
    CONTRACT,
    LIBRARY_ARGS,
    RMS,
    SIGNATURE,
    Build,
    expected,
)
from tests.unit.ops.conftest import Define

from bringup import jit, ops
from bringup.errors import CompileError

pytestmark = pytest.mark.usefixtures("simulator")


def test_a_library_with_an_entry_of_kernel_h_needs_no_args(define: Define, build: Build) -> None:
    library = build(
        "#include <stdint.h>\ntypedef struct { double* data; } tensor;\n"
        "int32_t one(void** args, int32_t n, const void* ctx) {\n"
        "  ((tensor*)args[1])->data[0] = 1 + ((tensor*)args[0])->data[0] + n;\n  return 0;\n}\n"
    )
    one = define(
        "one(Tensor x) -> Tensor", source=library, entry="one", outputs=ops.empty_like("x")
    )
    assert one(torch.ones(1, dtype=torch.float64)).item() == 4
    assert one(torch.ones(1, dtype=torch.float64).to("npu")).item() == 4


def test_a_library_needs_no_compiler(
    define: Define, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with kernels and without a compiler is the one that libraries are for."""
    library = build(RMS)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "unused"))
    rms = define(SIGNATURE, source=library, args=LIBRARY_ARGS, **CONTRACT)
    with jit.frozen():
        x, w = torch.randn(3, 4), torch.randn(4)
        torch.testing.assert_close(rms(x, w), expected(x, w))
    assert not (tmp_path / "unused").exists()


SEVEN = "int seven(long* out) {{ *out = {0}; return 0; }}\n"
SEVEN_OPTIONS: dict[str, Any] = {
    "entry": "seven",
    "args": "ptr(out)",
    "outputs": ops.empty(1, dtype=torch.int64),
}


def test_a_new_build_of_a_library_is_another_one(define: Define, build: Build) -> None:
    """The content of a library is its identity; the loader would take the path for it."""
    library = build(SEVEN.format(7), "renamed.so")
    first = define("a(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    x = torch.ones(1)
    assert first(x).item() == 7
    build(SEVEN.format(8), "new.so").rename(library)
    second = define("b(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    assert second(x).item() == 8
    assert first(x).item() == 7


def test_a_library_that_is_written_over_while_loaded_is_refused(
    define: Define, build: Build
) -> None:
    """Its old code would go on running, or half of it."""
    library = build(SEVEN.format(17), "over.so")
    assert define("a(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)(torch.ones(1)) == 17
    other = build(SEVEN.format(18), "other.so").read_bytes()
    with library.open("r+b") as file:
        file.write(other)
    late = define("b(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    with pytest.raises(CompileError, match="was written over while this process had it loaded"):
        late(torch.ones(1))


def test_a_library_that_does_not_load_says_why(define: Define, build: Build) -> None:
    library = build("int absent(void);\nint seven(long* out) { return absent(); }\n")
    operator = define("a(Tensor x) -> Tensor", source=library, **SEVEN_OPTIONS)
    with pytest.raises(CompileError, match=r"cannot be loaded: .*undefined symbol: absent"):
        operator(torch.ones(1))
    library.unlink()
    with pytest.raises(FileNotFoundError, match="no such kernel source"):
        operator(torch.ones(1))


def test_entries_of_functions_are_used_again(build: Build) -> None:
    """A kernel's entry has no room for whose it is, so there is a fixed number of them."""
    from bringup import _native

    template = jit.Template(build(SEVEN.format(7)), abi="function", params="n", entry="seven")
    binding = template.bind([jit.Argument("n", "int")]).binding
    assert binding is not None
    for _ in range(3000):
        kernel = _native.core().bind_c_function(str(template.path), "seven", *binding.native())
        assert _native.core().release_kernel(kernel)
    held: list[int] = []

    def hold_all() -> None:
        for _ in range(3000):
            kernel = _native.core().bind_c_function(str(template.path), "seven", *binding.native())
            held.append(kernel)

    with pytest.raises(RuntimeError, match="has bound 2048 functions, more than there are"):
        hold_all()
    for kernel in held:
        _native.core().release_kernel(kernel)


def test_an_unused_function_is_closed_by_unload(build: Build) -> None:
    template = jit.Template(build(SEVEN.format(9)), abi="function", params="ptr(x)", entry="seven")
    params = jit.params(template, x=torch.ones(1))
    binary = template.compile(params)
    assert binary.kernel_id == binary.kernel_id
    assert binary.key in jit.cache().unload().closed


def test_a_library_has_nothing_to_prebuild(define: Define, build: Build) -> None:
    """The kernels of a run as values, libraries among them."""
    rms = define(SIGNATURE, source=build(RMS), args=LIBRARY_ARGS, **CONTRACT)
    params = rms.params(torch.randn(2, 4), torch.randn(4))
    assert [field.item for field in params.fields][3:] == [
        "size(x,0)",
        "size(x,1)",
        "f32(eps)",
        "stream",
    ]
    report = jit.prebuild([params])
    assert (len(report.hits), len(report.failed)) == (1, 0)
    with pytest.raises(ValueError, match="is built already: macros and flags cannot change it"):
        jit.compile(params.template.source, macros={"N": 1})
