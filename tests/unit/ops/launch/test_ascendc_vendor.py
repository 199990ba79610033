"""`ascendc_load` with the vendor's compiler: a stand-in that notes its arguments and builds with
the host's compiler.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bringup import devices, ops
from bringup.errors import MissingCompilerError

ADD_CUSTOM = Path(__file__).parents[4] / "examples/ascendc/add_custom.cpp"


@pytest.fixture(scope="module", autouse=True)
def npu() -> devices.DriverInfo:
    return devices.load_driver("sim")


BISHENG = """\
#!/bin/bash
if [ "$1" = --version ]; then echo "bisheng stand-in 1"; exit; fi
echo "$@" >> "$0.log"
for argument in "$@"; do file="$argument"; case "$argument" in *.cpp) break ;; esac; done
sed -E 's/(\\w+)<<<(.*), nullptr, stream>>>\\(/launch(\\1, \\2, /' "$file" > staged.cpp
cat > shim.h <<'END'
#include <cstdint>
#define __global__
#define __aicore__
#define __gm__
#define GM_ADDR uint8_t*
template <class F, class... A> void launch(F f, uint32_t, A... a) { f(a...); }
END
args=(); skip=
for argument in "$@"; do
  case "$skip$argument" in
    -x) skip=x ;;
    xasc) skip= ;;
    --npu-arch=*) ;;
    *.cpp) args+=(-include ./shim.h -x c++ staged.cpp) ;;
    *) args+=("$argument") ;;
  esac
done
exec c++ "${args[@]}"
"""


@pytest.fixture
def bisheng(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "cann"
    compiler = home / "bin" / "bisheng"
    compiler.parent.mkdir(parents=True)
    compiler.write_text(BISHENG)
    compiler.chmod(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    return compiler


KERNEL_FOR_VENDOR = """
extern "C" __global__ __aicore__ void f(GM_ADDR x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) ((__gm__ float*)x)[i] += 1;
}
"""


def test_vendor_compiler_is_called_as_its_manual_says(tmp_path: Path, bisheng: Path) -> None:
    (tmp_path / "kernel.cpp").write_text(KERNEL_FOR_VENDOR)
    launcher = ops.ascendc_load("k", tmp_path / "kernel.cpp", target="ascend:dav-3510")
    said = bisheng.with_name("bisheng.log").read_text()
    assert "-x asc -std=c++17 -O2 -shared -fPIC --npu-arch=dav-3510" in said
    assert "bringup/ascendc" not in said  # its kernel_operator.h is the vendor's own
    x = torch.zeros(2)
    launcher.launch("f", block_dim=1, args=[x, ops.u32(2)])
    assert x.tolist() == [1, 1]


def test_simulated_npu_builds_for_itself_whatever_else_is_there(bisheng: Path) -> None:
    ops.ascendc_load("adder", ADD_CUSTOM)
    assert not bisheng.with_name("bisheng.log").exists()


def test_vendor_compiler_is_chosen_without_a_simulated_device(
    tmp_path: Path, bisheng: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel.cpp").write_text(KERNEL_FOR_VENDOR)
    monkeypatch.setattr(devices, "loaded", lambda: None)
    ops.ascendc_load("k", tmp_path / "kernel.cpp")
    assert "--npu-arch=dav-2201" in bisheng.with_name("bisheng.log").read_text()


def test_missing_vendor_compiler_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel.cpp").write_text(KERNEL_FOR_VENDOR + "// built by nobody")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    with pytest.raises(MissingCompilerError, match=r"no bisheng.*install the CANN toolkit"):
        ops.ascendc_load("k", tmp_path / "kernel.cpp", target="ascend")


def test_architecture_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernel.cpp").write_text(KERNEL_FOR_VENDOR)
    with pytest.raises(ValueError, match=r"'ascend:910b': expected an architecture like dav-2201"):
        ops.ascendc_load("k", tmp_path / "kernel.cpp", target="ascend:910b")
