"""The passes that bringup ships run where nobody asked for others, and are switched off by name,
by option and by setting.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn

from bringup import compiler, ir, passes
from bringup.kernels.patterns import LIBRARY

NAMES = [f"Library{item.__name__}" for item in LIBRARY]


@pytest.fixture(autouse=True)
def shipped(empty_registry, monkeypatch):
    monkeypatch.delenv("BRINGUP_PASS_LIBRARY")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)

    def forward(self, x):
        return nn.functional.silu(self.gate(x)) * self.up(x)


def compiled_and_checked(**options):
    model, x = Gated().eval(), torch.randn(3, 8)
    with torch.no_grad():
        compiled = torch.compile(model, backend="bringup", options=options or None)
        torch.testing.assert_close(compiled(x), model(x))
    return compiler.last_report().matches


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_compile_without_options_runs_the_library(inner):
    matches = compiled_and_checked(inner=inner)
    assert list(matches) == NAMES
    assert matches["LibrarySwiGlu"] == 1


def test_loading_names_the_library_among_what_is_loaded_once():
    first, second = passes.load_pass_plugins(), passes.load_pass_plugins()
    assert first.loaded == second.loaded
    (names,) = first.loaded.values()
    assert sorted(names) == sorted(NAMES)
    assert first.errors == []


def test_setting_0_leaves_the_library_out_and_takes_it_out_again(monkeypatch):
    passes.load_pass_plugins()
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "0")
    assert passes.load_pass_plugins().loaded == {}
    assert passes.get_registered_passes() == ()
    assert compiled_and_checked() == {}


def test_option_passes_and_switch_choose_without_the_library():
    assert compiled_and_checked(passes=[]) == {}
    assert compiled_and_checked(passes=["LibrarySwiGlu"]) == {"LibrarySwiGlu": 1}
    switched = compiled_and_checked(pass_switch={"ALL": False, "LibraryRmsNorm": True})
    assert switched == {"LibraryRmsNorm": 0}


def test_pass_of_the_users_own_sees_the_graph_before_the_library():
    @passes.register_fusion_pass(name="Mine", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Mine(passes.PatternFusionPass):
        @passes.pattern
        def gated(self, inputs):
            builder = inputs[0].builder
            return builder.op("aten::mul.Tensor", builder.op("aten::silu", inputs[0]), inputs[1])

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            gate, up = builder.create_inputs(2)
            return builder.op("aten::mul.Tensor", up, builder.op("aten::silu", gate))

    matches = compiled_and_checked()
    assert list(matches) == ["Mine", *NAMES]
    assert matches["Mine"] == 1


def test_name_that_somebody_else_took_is_an_error_of_the_library_and_nothing_of_it_is_there():
    @passes.register_fusion_pass(name="LibraryRotary", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Taken(passes.FusionBasePass):
        def run(self, graph, context):
            return None

    (error,) = passes.load_pass_plugins().errors
    assert "a pass named 'LibraryRotary' is registered already" in str(error)
    assert [item.pass_class for item in passes.get_registered_passes()] == [Taken]


def test_unloading_forgets_the_library_and_the_next_loading_brings_it_back():
    before = passes.load_pass_plugins()
    passes.unload_pass_plugins()
    assert passes.get_registered_passes() == ()
    assert passes.load_pass_plugins().loaded == before.loaded
    assert "bringup.kernels.patterns" in sys.modules


def test_onnx_graphs_are_not_given_patterns_of_aten():
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    assert compiler.apply_passes(model).matches == {}


def test_library_is_listed_without_importing_torch():
    program = (
        "import sys\nfrom bringup import passes\n"
        "print(len(passes.load_pass_plugins().loaded), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["1", "False"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.view_as_real(torch.sin(x).conj().resolve_conj()) * 2,
        lambda x: torch.view_as_real(torch.sin(x).conj().clone()) * 2,
        lambda x: (torch.view_as_real((y := torch.sin(x).conj()).resolve_conj()) * 2, y + 1),
        lambda x: torch.sin(x).conj().imag.clone().view(torch.int32) + 1,
        lambda x: torch.view_as_real(torch.sin(x).conj().view(24).clone().view(3, 8)) + 1,
        lambda x: torch.sin(x).conj().resolve_conj(),
    ],
)
def test_copy_that_resolves_a_conjugate_or_negative_stays(function):
    x = torch.randn(3, 8, dtype=torch.complex64)
    torch._dynamo.reset()
    with torch.no_grad():
        got, expected = torch.compile(function, backend="bringup")(x), function(x)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_constant_of_an_exported_program_that_a_later_pass_leaves_unread_is_gone():
    class TwiceNegated(nn.Module):
        def forward(self, x):
            return torch.neg(torch.neg(x))

    linear, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    compiler.register_replacement(
        lambda x: torch.neg(torch.neg(x)), lambda x: x, [x], name="TwiceNegated"
    )
    program = torch.export.export(nn.Sequential(linear, TwiceNegated()), (x,))
    program = program.run_decompositions()
    matches = compiler.apply_passes(program).matches
    assert matches["TwiceNegated"] == matches["LibraryPackLinear"] == 1
    torch.testing.assert_close(program.module()(x), linear(x))
