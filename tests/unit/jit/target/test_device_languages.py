"""Targets of devices: languages of their own, binaries that only a driver reads, unlike devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked_python import output_of

from bringup import jit
from bringup._language.c_call import parse_call
from bringup.errors import CompileError
from bringup.jit.source.declaration import as_declared
from bringup.jit.target.target import find_target, temporary_targets

# A language of a device and its compiler, as a package brings them. For the simulator it is C
# behind macros; the binary is not opened by the kit.
PACKAGE = """
from bringup import jit

WORDS = {"kernel": "", "global": "", "uint": "unsigned int", "ulong": "unsigned long"}


class Own(jit.Target):
    languages = {".own": "own"}
    words = WORDS
    host_library = False
    models = True

    def __init__(self, name="own"):
        self.name = name

    def variant(self, text):
        return Own(f"own:{text}")

    def toolchain(self, memo, kind="host"):
        return jit.targets()["sim"].toolchain(memo, kind)

    def flags(self, toolchain, language, debug):
        model = self.name.partition(":")[2] or "0"
        words = [f"-D{word}={meaning}" for word, meaning in WORDS.items()]
        return ("-x", "c", "-shared", "-fPIC", *words, f"-DMODEL={model}")

    def command(self, job):
        options = self.flags(job.toolchain, "own", job.debug)
        macros = [f"-D{macro}" for macro in job.macros]
        written = ["-MD", "-MF", job.headers, "-o", job.output]
        return [job.toolchain.compiler, *options, *macros, *jit.include_flags(), *written,
                *job.flags, job.file]

    def check_loadable(self, path, debug):
        pass


jit.register_target(Own())
"""
SCALE = """
#include "bringup/device.h"
kernel void scale(const bringup_position* at, global float* out, global const float* x, ulong n,
                  float factor) {
  const ulong i = (ulong)at->block_idx.x * at->block_dim.x + at->thread_idx.x;
  if (i < n) out[i] = x[i] * factor + MODEL;
}
"""
DOUBLE = """
#include "bringup/kernel.h"
int run(void** args, int32_t count, const bringup_ctx* ctx) {
  const DLTensor* x = (const DLTensor*)args[0];
  const DLTensor* out = (const DLTensor*)args[1];
  int64_t n = 1;
  for (int32_t i = 0; i < x->ndim; ++i) n *= x->shape[i];
  if (ctx->block_index != 0) return 0;
  for (int64_t i = 0; i < n; ++i) ((T*)out->data)[i] = ((const T*)x->data)[i] * 2 + MODEL;
  return 0;
}
"""
ON_TWO_DEVICES = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from bringup import devices, jit, ops
scale_text, double_text = sys.argv[2:]
devices.load_driver("sim")
print(*(torch.npu.get_device_properties(i).arch for i in range(2)))
scale = ops.kernel_op(
    "own::scale(Tensor x, float factor) -> Tensor",
    source=jit.Source(text=scale_text, name="scale.own"), entry="scale", kind="device",
    args="ptr(out), ptr(x, float32), numel(x), factor", grid="(numel(x) + 3) // 4", block=4,
    outputs=ops.empty_like("x"))
devices.kernel("aten::neg", source=jit.Source(text=double_text, name="double.own"), kind="raw",
               supports=(torch.float32,))
for index in (1, 0, 1):
    x = torch.arange(5.0, device=f"npu:{index}")
    print(scale(x, 10.0).tolist(), torch.neg(x).tolist())
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package that brings the target, and a broken one."""
    folder = tmp_path_factory.mktemp("packages")
    for name, text in (("own_target", PACKAGE), ("broken_target", "raise ImportError('no SDK')")):
        (folder / f"{name}.py").write_text(text)
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[bringup.targets]\n{name} = {name}\n")
    return folder


def test_unlike_devices_run_binaries_of_their_own(packages: Path) -> None:
    """Found by entry point, with natural words; never opened here; one binary for each arch."""
    said = output_of(ON_TWO_DEVICES, str(packages), SCALE, DOUBLE, BRINGUP_SIM_ARCHS="own-1,own-2")
    shown = "[{0}.0, 1{0}.0, 2{0}.0, 3{0}.0, 4{0}.0] [{0}.0, {1}.0, {2}.0, {3}.0, {4}.0]"
    first, second = shown.format(1, 3, 5, 7, 9), shown.format(2, 4, 6, 8, 10)
    assert said.splitlines()[0] == "own-1 own-2"
    assert said.splitlines()[1:4] == [second, first, second]


def test_a_broken_package_is_named_where_a_target_is_not_known(packages: Path) -> None:
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from bringup import jit
print(sorted(jit.targets()))
for use in (lambda: jit.compile(jit.Source(text="", name="k.c"), target="missing"),
            lambda: jit.Source(text="", name="k.missing")):
    try:
        use()
    except ValueError as error:
        print(error)
"""
    said = output_of(code, str(packages))
    assert "'own'" in said.splitlines()[0]
    assert "target 'missing': expected one of 'cpu', " in said
    assert said.count("ImportError: no SDK") >= 2
    assert "expected a file ending in one of .c, " in said
    assert "broken_target" in said


# --- declarations


class Words(jit.Target):
    """A language with words of its own, whose kernels know their place in the grid."""

    name = "words"
    languages = {".words": "words"}  # noqa: RUF012
    words = {"kernel": "", "global": "", "uint": "unsigned int"}  # noqa: RUF012
    takes_position = False

    def toolchain(self, memo: jit.Memo, kind: str = "host") -> jit.Toolchain:
        raise NotImplementedError

    def flags(self, toolchain: jit.Toolchain, language: str, debug: jit.Debug) -> tuple[str, ...]:
        raise NotImplementedError

    def command(self, job: jit.Job) -> list[str]:
        raise NotImplementedError


@pytest.fixture
def words() -> Iterator[None]:
    with temporary_targets():
        jit.register_target(Words())
        yield


def declared(text: str, items: str) -> tuple[str, ...]:
    source = jit.Source(text=text, name="k.words", entry="f", abi="values", kind="device")
    signature = [jit.Argument("x", "Tensor"), jit.Argument("n", "int"), jit.Argument("s", "float")]
    parameters = parse_call(items, signature, "here")
    found = as_declared(source, Words().declaration(source, "f"), parameters, "here", signature)
    return tuple(f"{one.dtype or one.c_type}" for one in found)


@pytest.mark.usefixtures("words")
def test_words_of_a_language_are_read_as_what_c_says() -> None:
    text = "kernel void f(global const float* x, uint n, float s) {}"
    assert declared(text, "ptr(x), n, s") == ("float32", "uint32_t", "float")
    typed = "typedef uint count;\nkernel void f(global const uint *restrict x, const count n) {}"
    assert declared(typed, "ptr(x), n") == ("uint32", "uint32_t")


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize(
    ("text", "items", "message"),
    [
        ("kernel int f(uint n) {}", "n", "f returns int, which nothing reads"),
        ("kernel void f(global float* x, uint n) {}", "n, ptr(x)", "n is a whole number"),
        ("kernel void f(global float* x, uint n) {}", "ptr(x), s", "would lose what stands"),
        ("kernel void f(global double* x) {}", "const(ptr(x, float32))", "its elements are float"),
        ("kernel void f(global float* x) {}", "ptr(x), n", "takes 1 parameters, args= has 2"),
        ("kernel void g(uint n) {}", "n", "has no function 'f' \\(it has g\\)"),
    ],
)
def test_what_the_function_would_read_as_something_else_is_refused(
    text: str, items: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        declared(text, items)


def test_a_target_with_models_has_one_for_each_arch() -> None:
    with temporary_targets():
        jit.register_target(Words())
        assert jit.target_of_arch("words-7") == "words"
        Words.models = True
        try:
            assert jit.target_of_arch("words-7-b") == "words:7-b"
            assert jit.target_of_arch("words") == "words"
        finally:
            Words.models = False
        assert jit.target_of_arch("unknown-1") == "unknown"
        with pytest.raises(ValueError, match="'words' has no variants"):
            find_target("words:7")


@pytest.mark.usefixtures("root")
def test_a_binary_without_the_entry_is_refused_when_it_is_built() -> None:
    class Own(jit.GnuTarget):
        host_library = False
        asked = "there"

        def check_symbol(self, path: Path, name: str) -> None:
            super().check_symbol(path, self.asked)

    with temporary_targets():
        target = Own("own", ["g++"], march="native", get="")
        jit.register_target(target)
        text = "int there(void) { return 0; }"
        source = jit.Source(text=text, name="k.c", entry="there", kind="device")
        assert jit.compile(source, target="own").kernel_id > 0
        target.asked = "gone"
        with pytest.raises(CompileError, match="target 'own' has no entry 'gone'"):
            jit.compile(source, target="own", macros={"N": 2})
