"""The cuda target: nvcc for host entries, NVRTC for device code; nothing here needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit.jit.support import Call

from bringup import jit
from bringup.errors import CompileError, DeviceError, MissingCompilerError, TargetError
from bringup.jit.files.elf import DEVICE_CODE, FATBIN, machine_of
from bringup.jit.target.toolchain import KnownToolchain

HOST = """
#include "bringup/cuda.h"
template <typename Element>
__global__ void add(Element* x, int64_t n, float v) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < n) x[i] += v;
}
BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
  const bringup::View<float, 1> x(args[0]);
  add<<<1, 256, 0, bringup::cuda_stream(ctx)>>>(x.data(), x.size(0), V);
  return bringup::cuda_status(ctx);
}
"""
DEVICE = """
extern "C" __global__ void run(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += V;
}
"""


@pytest.fixture(scope="module")
def host_binary(nvcc: None) -> jit.Binary:
    """nvcc takes seconds, so one build serves several tests."""
    return jit.compile(jit.Source(text=HOST, name="add.cu"), macros={"V": 1.5}, target="cuda")


def device_source(text: str = DEVICE) -> jit.Source:
    return jit.Source(text=text, name="add.cu", kind="device")


@pytest.mark.usefixtures("nvcc")
def test_nvcc_builds_launches_and_templates_for_sm_90(host_binary: jit.Binary) -> None:
    """Prebuilt for an architecture that is not here."""
    assert b".nv_fatbin" in host_binary.path.read_bytes()
    assert "-gencode=arch=compute_90,code=sm_90" in (host_binary.folder / "build.log").read_text()
    assert jit.toolchain("cuda").isa == ("sm_90",)


@pytest.mark.usefixtures("nvcc")
def test_a_launch_without_a_gpu_says_what_cuda_says(host_binary: jit.Binary) -> None:
    call = Call()
    if call.run(host_binary.kernel_id, np.zeros(4, np.float32)) == 0:
        pytest.skip("there is a GPU")
    assert "CUDA" in call.message
    assert any(word in call.message for word in ("driver", "device"))


@pytest.mark.usefixtures("nvcc")
def test_headers_of_the_toolkit_belong_to_the_key(host_binary: jit.Binary) -> None:
    meta = json.loads((host_binary.folder / "meta.json").read_text())
    assert any(path.endswith("cuda_runtime.h") for path in meta["headers"])
    assert len(meta["record"]["inputs"]) >= 1  # libcudart_static.a


@pytest.mark.usefixtures("nvcc")
def test_half_and_bfloat16_are_numbers_in_device_code() -> None:
    text = """
    #include "bringup/cuda.h"
    __global__ void twice(ELEMENT* x) { x[threadIdx.x] = x[threadIdx.x] * 2; }
    BRINGUP_EXPORT int32_t run(void** args, int32_t, const bringup_ctx* ctx) {
      twice<<<1, 32, 0, bringup::cuda_stream(ctx)>>>(bringup::View<ELEMENT, 1>(args[0]).data());
      return bringup::cuda_status(ctx);
    }
    """
    for name in ("half", "bfloat16"):
        source = jit.Source(text=text, name=f"{name}.cu")
        jit.compile(source, macros={"ELEMENT": f"bringup::{name}"}, target="cuda")


@pytest.mark.usefixtures("nvcc")
def test_an_error_of_nvcc_is_shown_with_its_source_line() -> None:
    with pytest.raises(CompileError) as caught:
        jit.compile(jit.Source(text=HOST, name="bad.cu"), macros={"W": 1}, target="cuda")
    lines = caught.value.diagnostic.splitlines()
    assert 'bad.cu(10): error: identifier "V" is undefined' in lines[0]
    assert "add<<<1, 256" in lines[1]
    assert "parameters: W=1" in str(caught.value)


@pytest.mark.usefixtures("nvcc")
def test_a_macro_that_cudas_headers_use_is_named_as_the_cause() -> None:
    with pytest.raises(CompileError, match=r"hint: a macro is called like .* \(T, and the like\)"):
        jit.compile(
            jit.Source(text=HOST, name="t.cu"), macros={"V": 1, "T": "float"}, target="cuda"
        )


@pytest.mark.usefixtures("nvrtc")
def test_nvrtc_builds_device_code_with_its_headers_and_no_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that a header includes is part of the key."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "outer.h").write_text('#include "inner.h"\n')
    inner, keys = tmp_path / "inner.h", set()
    path = tmp_path / "add.cu"
    path.write_text(f'#include "outer.h"\n{DEVICE}')
    for value in (1, 2, 1):
        inner.write_text(f"#define V {value}\n")
        binary = jit.compile(jit.Source(path, kind="device"), target="cuda")
        assert machine_of(binary.path) == DEVICE_CODE
        keys.add(binary.key)
    assert len(keys) == 2


@pytest.mark.usefixtures("nvrtc")
def test_a_header_whose_name_is_a_macro_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC asks for it, and is given it."""
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "cache"))  # a former run built it, too
    (tmp_path / "value.h").write_text("#define V 3\n")
    source = device_source(f"#define HEADER <value.h>\n#include HEADER\n{DEVICE}")
    binary = jit.compile(source, target="cuda", flags=[f"-I{tmp_path}"])
    meta = json.loads((binary.folder / "meta.json").read_text())
    assert meta["headers"] == [str(tmp_path / "value.h")]


@pytest.mark.usefixtures("nvrtc")
def test_two_headers_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.h").write_text("#define V 1\n")
        (tmp_path / folder / f"{folder}.h").write_text('#include "same.h"\n')
    source = device_source(f'#include "a/a.h"\n#include "b/b.h"\n{DEVICE}')
    with pytest.raises(CompileError, match=r"one header of a name, but 'same\.h' is .*/[ab]/same"):
        jit.compile(source, target="cuda", flags=[f"-I{tmp_path}"])


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DEVICE, 'identifier "V" is undefined'),
        (f'#include "none.h"\n{DEVICE}', r"hint: none\.h is in no searched folder"),
        (
            DEVICE.replace("run", "go").replace("V", "1"),
            r"kernel 'run', declared extern",
        ),
    ],
)
def test_an_error_of_nvrtc_has_diagnostic_and_hint(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        jit.compile(device_source(text), target="cuda")


@pytest.mark.usefixtures("nvrtc")
def test_device_code_is_not_loaded_as_a_host_entry() -> None:
    binary = jit.compile(device_source(), macros={"V": 1}, target="cuda")
    with pytest.raises(TargetError, match=r"device code for an NVIDIA GPU .*jit\.CudaKernel"):
        _ = binary.kernel_id


@pytest.mark.usefixtures("nvrtc")
def test_starting_device_code_without_a_gpu_says_why() -> None:
    binary = jit.compile(device_source(), macros={"V": 1}, target="cuda")
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match=r"kernel 'run' cannot be started on this GPU: .*driver"):
        jit.CudaKernel(binary)


def test_only_device_code_of_cuda_is_a_cuda_kernel() -> None:
    binary = jit.Binary(Path("x"), "key", "run", "args", "host", "cpu")
    with pytest.raises(TargetError, match="expected device code of target 'cuda', got host code"):
        jit.CudaKernel(binary)


@pytest.mark.usefixtures("nvrtc")
def test_the_default_architecture_has_one_key_whatever_it_is_called() -> None:
    binaries = [
        jit.compile(device_source(), macros={"V": 1}, target=name)
        for name in ("cuda", "cuda:sm_90", "cuda:sm_80")
    ]
    assert binaries[0] == binaries[1]
    assert binaries[2].key != binaries[0].key


@pytest.mark.usefixtures("nvrtc")
def test_device_code_leaves_its_ptx() -> None:
    binary = jit.compile(
        device_source(), macros={"V": 7}, target="cuda", debug=jit.Debug(assembly=True)
    )
    assert ".visible .entry run" in (binary.folder / "kernel.ptx").read_text()


@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize("debug", [jit.Debug(sanitize="address")])
def test_sanitizers_are_refused_with_what_to_use(debug: jit.Debug) -> None:
    with pytest.raises(ValueError, match=r"is for compilers of the host; .* compute-sanitizer"):
        jit.compile(jit.Source(text=HOST, name="add.cu"), target="cuda", debug=debug)


@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize(
    "flag", ["-DX=$(touch gotcha)", "-I/x`touch gotcha`", "-Xcompiler=-Wall;touch gotcha", "-la|b"]
)
def test_no_flag_reaches_the_shell_behind_nvcc(flag: str) -> None:
    with pytest.raises(ValueError, match=r"nvcc runs its parts through a shell, which would take"):
        jit.compile(jit.Source(text=HOST, name="add.cu"), target="cuda", flags=[flag])


@pytest.mark.usefixtures("nvcc")
def test_no_name_of_a_folder_reaches_the_shell_behind_nvcc(tmp_path: Path) -> None:
    """Spaces are fine."""
    bad, good = tmp_path / "a $(touch gotcha)", tmp_path / "a b;c"
    for folder in (bad, good):
        folder.mkdir()
        (folder / "add.cu").write_text(HOST)
    with pytest.raises(ValueError, match=r"add\.cu: nvcc .* would take '\$' in the name"):
        jit.compile(jit.Source(bad / "add.cu"), macros={"V": 1}, target="cuda")
    assert jit.compile(jit.Source(good / "add.cu"), macros={"V": 1}, target="cuda").path.is_file()


@pytest.mark.parametrize("name", ["cuda:90", "cuda:", "cuda:sm_90,sm_80", "cuda:sm_x"])
def test_a_bad_architecture_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected architectures like sm_90 or sm_80\+sm_90"):
        jit.compile(device_source(), target=name)


def compiled_for(model: str, value: int = 1) -> jit.Binary:
    return jit.compile(device_source(), macros={"V": value}, target=f"cuda:{model}")


@pytest.fixture(scope="module")
def fatbin(nvcc: None) -> jit.Binary:
    return compiled_for("sm_80+sm_90")


def test_device_code_for_several_models_is_a_fatbin(fatbin: jit.Binary) -> None:
    content = fatbin.path.read_bytes()
    assert content[:4] == FATBIN
    models = [content[at + 49] for at in range(len(content)) if content[at : at + 4] == b"\x7fELF"]
    assert sorted(models) == [80, 90]  # the second byte of e_flags
    with pytest.raises(TargetError, match=r"is device code for .* jit\.CudaKernel"):
        fatbin.kernel_id  # noqa: B018
    with pytest.raises(DeviceError, match="cannot be started"):
        jit.CudaKernel(fatbin)


def test_a_bundles_fatbin_answers_for_each_of_its_models_without_a_compiler(
    fatbin: jit.Binary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit.cache().export_bundle(tmp_path / "kernels", [fatbin.key])
    monkeypatch.setenv("BRINGUP_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert len(jit.cache().import_bundle(tmp_path / "kernels")) == 1

    def absent(*_: object) -> None:
        raise MissingCompilerError("absent")

    for method in ("toolchain", "_nvcc"):
        monkeypatch.setattr(jit.CudaTarget, method, absent)
    for model in ("sm_80", "sm_90", "sm_80+sm_90"):
        assert compiled_for(model).key == fatbin.key
    with pytest.raises(MissingCompilerError):
        compiled_for("sm_75")
    with pytest.raises(MissingCompilerError):
        compiled_for("sm_90", value=2)


@pytest.mark.usefixtures("nvcc")
def test_device_code_without_nvrtc_is_nvccs(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> None:
        raise MissingCompilerError("no NVRTC")

    monkeypatch.setattr("bringup.jit.target.nvrtc.Nvrtc.toolchain", absent)
    binary = jit.compile(device_source(), macros={"V": 3}, target="cuda:sm_90")
    assert binary.path.read_bytes()[:4] == FATBIN
    monkeypatch.setattr("bringup.jit.target.cuda.on_path", lambda name, also=(): None)
    monkeypatch.setattr(jit.targets()["cuda"], "known_toolchain", KnownToolchain())
    with pytest.raises(MissingCompilerError, match="no NVRTC"):
        jit.compile(device_source(), macros={"V": 4}, target="cuda:sm_90")


def test_a_missing_nvcc_says_how_to_get_it_and_what_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bringup.jit.target.cuda.on_path", lambda name, also=(): None)
    monkeypatch.setattr(jit.targets()["cuda"], "known_toolchain", KnownToolchain())
    with pytest.raises(MissingCompilerError, match=r"no nvcc .*pip install 'bringup\[cuda\]'"):
        jit.compile(jit.Source(text=HOST, name="add.cu"), target="cuda")


def test_a_cuda_source_for_the_host_is_refused_with_the_target_that_can() -> None:
    with pytest.raises(ValueError, match=r"target 'cpu' builds c, c\+\+, not cuda; 'cuda' can"):
        jit.compile(jit.Source(text=HOST, name="add.cu"))
