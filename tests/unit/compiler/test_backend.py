"""torch.compile(backend="bringup"): plugins, options, errors, both inner compilers."""

import subprocess
import sys
import threading

import pytest
import torch
from tests.forked_python import output_of

from bringup import compiler, ir, passes
from bringup.compiler import CompileOptions
from bringup.errors import BringupError, PassError

STAGE = passes.PassStage.AFTER_INFER_SHAPE
PLUGIN = """
from bringup import ir, passes

@passes.register_fusion_pass(name="ReluRelu", stage=passes.PassStage.AFTER_INFER_SHAPE)
class ReluRelu(passes.PatternFusionPass):
    @passes.pattern
    def twice(self, inputs):
        builder = inputs[0].builder
        return builder.op("aten::relu", builder.op("aten::relu", inputs[0]))

    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        return builder.op("aten::relu", *builder.create_inputs(1))
"""


@pytest.fixture(autouse=True)
def _reset():
    torch._dynamo.reset()


def relu_twice(x):
    return torch.relu(torch.relu(x)) * 2


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_passes_are_found_through_the_pass_path_and_broken_ones_reported(
    tmp_path, monkeypatch, inner
):
    (tmp_path / "good.py").write_text(PLUGIN)
    (tmp_path / "broken.py").write_text("raise OSError('gone')")
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    x = torch.randn(5)
    compiled = torch.compile(relu_twice, backend="bringup", options={"inner": inner})
    assert torch.equal(compiled(x), relu_twice(x))
    report = compiler.last_report()
    assert report.matches == {"ReluRelu": 1}
    assert "broken.py raised OSError: gone" in str(report.plugin_errors[0])
    assert "ReluRelu: changed, 1 matches" in str(report)


def test_gradients_flow_through_rewritten_forward_and_backward_graphs():
    @passes.register_decompose_pass(name="D", stage=STAGE, op_types=["aten::sigmoid"])
    class Decompose(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            (x,) = builder.create_inputs(1)
            return builder.op("aten::reciprocal", builder.op("aten::exp", -x) + 1)

    x = torch.randn(5, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.sigmoid(x).sum(), x)
    compiled = torch.compile(lambda x: torch.sigmoid(x).sum(), backend="bringup")
    (got,) = torch.autograd.grad(compiled(x), x)
    assert torch.allclose(got, expected)


def test_failed_pass_raises_at_the_call_and_names_itself():
    @passes.register_fusion_pass(name="Bad", stage=STAGE)
    class Bad(passes.FusionBasePass):
        def run(self, graph, context):
            raise ValueError("by hand")

    with pytest.raises(
        Exception, match="PassError: pass 'Bad' failed: ValueError: by hand"
    ) as info:
        torch.compile(relu_twice, backend="bringup")(torch.randn(5))
    assert isinstance(info.value.inner_exception, PassError)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"iner": "eager"},
            r"has no option 'iner'; did you mean 'inner'\? Known are mode, inner, capture, ",
        ),
        ({"of_another": 1}, r"has no option 'of_another'\. Known are mode, inner, "),
        ({"weights": "bfloat"}, r"got 'bfloat'; did you mean 'bfloat16'\?"),
        ({"inner": "fast"}, r"option 'inner' must be one of \['eager', 'inductor'\], got 'fast'"),
        (
            {"mode": "fast"},
            r"option 'mode' must be one of \['default', 'serve', 'max'\], got 'fast'",
        ),
        ({"static_outputs": 1}, "option 'static_outputs' must be True or False, got 1"),
        ({"weights": "int4"}, r"must be one of \['float32', 'bfloat16', 'int8', 'w8a8'\], got"),
        ({"mode": "serve", "inner": "inductor"}, "option 'mode'='serve' needs inner='eager'"),
        ({"freeze": 1}, "option 'freeze' must be True or False, got 1"),
        ({"max_captures": 0}, "option 'max_captures' must be a number from 1, got 0"),
        ({"max_captures": True}, "option 'max_captures' must be a number from 1, got True"),
        ({"autotune": None}, "option 'autotune' must be True or False, got None"),
        ({"on_weight_change": "ignore"}, "must be one of \\['raise', 'refold'\\], got 'ignore'"),
        ({"on_weight_change": "refold", "inner": "inductor"}, "'refold' needs inner='eager'"),
    ],
)
def test_wrong_option_is_refused_by_name(options, text):
    with pytest.raises(BringupError, match=text):
        CompileOptions.parse(options)
    with pytest.raises(BringupError, match=text):
        torch.compile(relu_twice, backend="bringup", options=options)


def test_mode_that_is_not_ours_is_refused_when_compile_is_called():
    with pytest.raises(BringupError, match=r"has no mode 'max-autotune'\. Known are default, "):
        torch.compile(relu_twice, backend="bringup", mode="max-autotune")
    with pytest.raises(BringupError, match=r"has no mode 'server'; did you mean 'serve'\?"):
        torch.compile(relu_twice, backend="bringup", mode="server")


def test_the_first_use_of_the_backend_is_checked_too_where_only_torch_was_imported():
    program = """
import torch
try:
    torch.compile(torch.nn.Linear(2, 2), backend="bringup", mode="server")
except Exception as error:
    print(type(error).__name__, error)
"""
    said = output_of(program)
    assert said.startswith("BringupError backend 'bringup' has no mode 'server'; did you mean")


def test_mode_is_an_argument_of_torch_compile_too():
    x = torch.randn(5)
    for mode in ("default", "serve", "max"):
        compiled = torch.compile(relu_twice, backend="bringup", mode=mode)
        assert torch.equal(compiled(x), relu_twice(x))


def test_input_that_is_written_is_written_by_the_compiled_function_too():
    def function(x):
        x.add_(1)
        return torch.relu(torch.relu(x))

    x = torch.tensor([-3.0, 3.0])
    assert torch.equal(torch.compile(function, backend="bringup")(x), torch.tensor([0.0, 4.0]))
    assert torch.equal(x, torch.tensor([-2.0, 4.0]))


def test_zero_sized_strided_and_expanded_inputs():
    compiled = torch.compile(relu_twice, backend="bringup")
    base = torch.randn(6, 4)
    for x in (torch.empty(0, 3), base.t()[1:, ::2], base[:1].expand(3, 4), torch.tensor(2.0)):
        assert torch.equal(compiled(x), relu_twice(x))


def test_two_threads_compile_at_once_and_see_their_own_reports():
    @passes.register_fusion_pass(name="Count", stage=STAGE)
    class Count(passes.FusionBasePass):
        def run(self, graph, context):
            return None

    results = {}

    def work(size):
        compiled = torch.compile(relu_twice, backend="bringup", dynamic=False)
        x = torch.randn(size)
        results[size] = (torch.equal(compiled(x), relu_twice(x)), compiler.last_report())

    threads = [threading.Thread(target=work, args=(size,)) for size in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(right for right, _ in results.values())
    assert results[2][1] is not results[3][1]


def test_backend_is_announced_by_importing_the_compiler():
    assert "bringup" in torch._dynamo.list_backends()


def test_importing_the_compiler_leaves_out_what_only_torch_compile_needs():
    """AOT autograd brings networkx and half of Inductor."""
    text = "import sys, bringup.compiler; print('torch._functorch.aot_autograd' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
