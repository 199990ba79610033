"""Nothing is registered before a driver is loaded, and Inductor's code for the cpu is the same with
one.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterable

import pytest
import torch
from tests.forked_python import DYNAMO, output_of

from bringup import jit
from bringup.compiler.inductor import launch, torch_private
from bringup.compiler.inductor.fallback import EagerNodes
from bringup.errors import DeviceError
from bringup.jit.source.cpp_writer import CppWriter

CODE_OF_THE_CPU = """
from contextlib import suppress
import torch
from torch._inductor import config
from torch._inductor.graph import GraphLowering

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(32, 64, 3)

    def forward(self, x):
        y = self.convolution(x).softmax(1)
        return y + y.var(0), y[:, :, y.sum((0, 1, 3)).argmax()]

def keep(graph):
    found.append(graph.codegen()[0].value)
    raise RuntimeError("nothing is compiled")

torch.manual_seed(0)
model, x, found = Model(), torch.randn(2, 32, 9, 9), []
config.force_disable_caches = True
GraphLowering.compile_to_module = keep
with torch.no_grad(), suppress(Exception):
    torch.compile(model)(x)
print("\\n".join(found))
"""
LOADED = "from bringup import compiler, devices\ndevices.load_driver('sim')\n"


def test_code_for_the_cpu_is_the_same_with_a_driver() -> None:
    programs = CODE_OF_THE_CPU, LOADED + CODE_OF_THE_CPU
    plain, loaded = (output_of(program, preload=DYNAMO) for program in programs)
    assert "cpp_fused" in plain
    assert loaded == plain


def test_nothing_is_registered_before_a_driver_is_loaded() -> None:
    code = """
import bringup
from bringup import compiler, devices, graphs
from torch._inductor.codegen import common
from torch._inductor.graph import GraphLowering
before = dict(common.device_codegens), GraphLowering.decide_layout_opt
print(sorted(set(before[0]) - {"cpu", "cuda", "xpu", "mps", "mtia", "tpu", "meta"}))
devices.load_driver("sim")
print(sorted(set(common.device_codegens) - set(before[0])), common.custom_backend_passes.keys())
"""
    assert output_of(code) == "[]\n['npu'] dict_keys(['npu'])"


def test_caches_know_the_generator_by_the_same_words_in_every_process() -> None:
    def unordered(value: object) -> bool:
        parts = vars(value).values() if hasattr(value, "__dict__") else value
        if isinstance(parts, (set, frozenset, dict)):
            return True
        return (
            not isinstance(parts, str)
            and isinstance(parts, Iterable)
            and any(unordered(part) for part in parts)
        )

    identity = EagerNodes("npu").uuid()
    assert identity == EagerNodes("npu").uuid()
    assert not unordered(identity)


@pytest.mark.parametrize("arch", ["sim-1", "unheard-1"])
def test_graphs_of_the_cpu_do_not_need_code_for_the_device(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CppWriter, "loops", None)
    monkeypatch.setattr(launch, "target_of", lambda device: jit.target_of_arch(arch))
    assert isinstance(EagerNodes("npu").uuid(), tuple)
    with pytest.raises(DeviceError, match=r"generates no code for device 'npu'"):
        launch.language_of(torch.device("npu", 0))


def test_a_member_of_torch_that_has_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_private.check()
    changed = ((torch.nn.functional.relu, "input inplace rounding"),)
    monkeypatch.setattr(torch_private, "EXPECTED", changed)
    with pytest.raises(DeviceError, match="relu has no parameter rounding"):
        torch_private.check.__wrapped__()


def test_a_member_of_torch_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._inductor.codegen.common.DeferredLine")
    with pytest.raises(DeviceError, match=r"torch 2.*'DeferredLine'.*use the version of torch"):
        runpy.run_path(torch_private.__file__)


def test_the_generator_may_be_imported_before_inductor() -> None:
    code = LOADED + "import bringup.compiler.inductor.nests as nests\nprint(nests.ENTRY)"
    assert output_of("import torch\n" + code) == "bringup_nest"
