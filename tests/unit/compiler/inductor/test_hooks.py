"""Passes inside Inductor: hooks, stages, cache identity; subgraphs; guards; training."""

import pytest
import torch
from tests.unit.passes.support import register_swap
from torch._inductor import config

from bringup import compiler, ir, passes
from bringup.compiler import backend

STAGES = list(passes.PassStage)


def register_spy(name, stage, op_type="aten::relu"):
    """A pass that only notes what operators it sees."""
    seen = []

    @passes.register_fusion_pass(name=name, stage=stage)
    class Spy(passes.FusionBasePass):
        def run(self, graph, context):
            seen.append([node.op_type for node in graph.nodes])

    return seen


@torch.no_grad()
def test_every_stage_runs_with_the_vocabulary_that_the_table_names():
    seen = {stage: register_spy(stage.name, stage) for stage in STAGES}
    compiled = torch.compile(
        torch.nn.functional.gelu, backend="bringup", options={"inner": "inductor"}
    )
    compiled(torch.randn(5))
    for stage in STAGES[:2]:
        assert "aten::gelu" in seen[stage][0]
    for stage in STAGES[2:]:
        assert "aten::erf" in seen[stage][0]
        assert "aten::gelu" not in seen[stage][0]
    names = [result.name for result in compiler.last_report().results]
    assert names == [stage.name for stage in STAGES]


@torch.no_grad()
@pytest.mark.parametrize("stage", STAGES)
def test_rewrite_in_any_stage_changes_what_inductor_generates(stage):
    @passes.register_fusion_pass(name="P", stage=stage)
    class Swap(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            return inputs[0].builder.op("aten::sin", inputs[0])

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            return builder.op("aten::cos", *builder.create_inputs(1))

    x = torch.randn(7)
    compiled = torch.compile(torch.sin, backend="bringup", options={"inner": "inductor"})
    torch.testing.assert_close(compiled(x), torch.cos(x))
    assert compiler.last_report().matches == {"P": 1}


@torch.no_grad()
def test_plain_inductor_takes_the_hooks_as_options():
    register_swap("aten::sin", "aten::cos")
    hooks = compiler.inductor_hooks(["P"])
    assert list(hooks) == ["joint_custom_pre_pass"]
    x = torch.randn(7)
    torch.testing.assert_close(torch.compile(torch.sin, options=hooks)(x), torch.cos(x))
    assert compiler.last_report().matches == {"P": 1}
    torch._dynamo.reset()
    torch.compile(torch.sin, options=hooks)(x)
    assert compiler.last_report().matches == {"P": 1}  # a report of its own for each compile


@torch.no_grad()
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("stage", STAGES[1:])
def test_constants_of_replacements_reach_inductor(stage, plain):
    @passes.register_fusion_pass(name="P", stage=stage)
    class AddConstant(passes.FusionBasePass):
        def run(self, graph, context):
            (node,) = graph.find("aten::sin")
            constant = graph.add_constant(torch.full((7,), 2.0))
            new = graph.inserting_before(node).op("aten::mul.Tensor", node.inputs[0], constant)
            graph.replace_all_uses(node.output, new)
            graph.erase_dead(node)

    x = torch.randn(7)
    how = {"backend": "bringup", "options": {"inner": "inductor"}}
    if plain:
        how = {"options": compiler.inductor_hooks()}
    compiled = torch.compile(lambda x: torch.sin(x) + 1, **how)
    torch.testing.assert_close(compiled(x), x * 2 + 1)


def test_uuid_follows_source_order_and_options_of_the_passes(tmp_path, monkeypatch):
    text = """
from bringup import passes
@passes.register_fusion_pass(name="P", stage=passes.PassStage.AFTER_INFER_SHAPE)
class P(passes.FusionBasePass):
    def run(self, graph, context):
        return None
"""
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    (tmp_path / "plugin.py").write_text(text)

    def uuid(**options):
        return compiler.inductor_hooks(options=options)["joint_custom_pre_pass"].uuid()

    first = uuid()
    assert first is not None
    assert uuid() == first
    assert uuid(level=2) != first
    (tmp_path / "plugin.py").write_text(text.replace("None", "True"))
    assert uuid() != first


def test_pass_without_a_source_file_turns_inductors_cache_off():
    scope = {"passes": passes, "__name__": "nowhere"}
    exec(
        "@passes.register_fusion_pass(name='P', stage=passes.PassStage.AFTER_INFER_SHAPE)\n"
        "class P(passes.FusionBasePass):\n    pass\n",
        scope,
    )
    assert compiler.inductor_hooks()["joint_custom_pre_pass"].uuid() is None


@torch.no_grad()
def test_changed_pass_is_not_hidden_by_inductors_cache(tmp_path, monkeypatch):
    text = """
from bringup import ir, passes
@passes.register_fusion_pass(name="P", stage=passes.PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE)
class P(passes.PatternFusionPass):
    @passes.pattern
    def found(self, inputs):
        return inputs[0].builder.op("aten::sin", inputs[0])
    def replacement(self, match_result):
        builder = ir.GraphBuilder()
        return builder.op("aten::cos", *builder.create_inputs(1))
"""
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    x = torch.randn(5)
    with config.patch(fx_graph_cache=True):
        for operator, expected in (("aten::cos", torch.cos), ("aten::exp", torch.exp)):
            (tmp_path / "plugin.py").write_text(text.replace("aten::cos", operator))
            torch._dynamo.reset()
            compiled = torch.compile(torch.sin, backend="bringup", options={"inner": "inductor"})
            torch.testing.assert_close(compiled(x), expected(x))


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_training_graphs_are_rewritten_and_gradients_are_right(inner):
    register_swap("aten::sin", "aten::cos")
    x = torch.randn(6, requires_grad=True)
    compiled = torch.compile(
        lambda x: (torch.sin(x) * x).sum(), backend="bringup", options={"inner": inner}
    )
    (got,) = torch.autograd.grad(compiled(x), x)
    # the backward graph of sin has cos(x), which is saved as x: only the forward's sin is swapped
    expected = x * torch.cos(x) + torch.cos(x)
    torch.testing.assert_close(got, expected.detach())


@torch.no_grad()
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_branches_of_a_conditional_are_graphs_of_their_own(inner):
    register_swap("aten::sin", "aten::cos")

    def function(flag, x):
        return torch.cond(flag, lambda x: torch.sin(x) + 1, lambda x: torch.sin(x) - 1, (x,))

    compiled = torch.compile(function, backend="bringup", options={"inner": inner})
    x = torch.randn(4)
    for flag, step in ((True, 1), (False, -1)):
        torch.testing.assert_close(compiled(torch.tensor(flag), x), torch.cos(x) + step)
    assert compiler.last_report().matches == {"P": 2}


@torch.no_grad()
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_dynamic_shapes_compile_once_and_passes_add_no_guard(inner, monkeypatch):
    """Row: running all passes adds no ShapeEnv guard."""
    counts = []
    original = backend.rewrite

    def counting(module, *arguments, **keywords):
        fake = next(
            n.meta["val"]
            for n in module.graph.nodes
            if n.op == "placeholder" and isinstance(n.meta["val"], torch.Tensor)
        )
        environment = fake.fake_mode.shape_env
        before = len(environment.guards)
        report = original(module, *arguments, **keywords)
        counts.append((before, len(environment.guards)))
        return report

    monkeypatch.setattr(backend, "rewrite", counting)
    register_swap("aten::relu", "aten::tanh")

    @passes.register_fusion_pass(name="Sizes", stage=passes.PassStage.AFTER_INFER_SHAPE)
    class Sizes(passes.PatternFusionPass):
        @passes.pattern
        def found(self, inputs):
            op = inputs[0].builder.op
            return op("aten::view", op("aten::exp", inputs[0]), passes.any_value("size"))

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            (x,) = builder.create_inputs(1)
            return builder.op("aten::exp", builder.op("aten::view", x, match_result["size"]))

    def function(x):
        return torch.relu(x).exp().view(x.shape[0] * x.shape[1], 4)

    compiled = torch.compile(function, backend="bringup", options={"inner": inner}, dynamic=True)
    for shape in ((3, 5, 4), (7, 2, 4), (9, 11, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), torch.tanh(x).exp().view(-1, 4))
    assert counts
    assert all(before == after for before, after in counts)
    assert compiler.last_report()["Sizes"].matches == 1
    assert len(counts) == 1


@torch.no_grad()
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_custom_operators_are_matched_and_put_in(inner):
    with torch.library._scoped_library("bringup_hooked", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", torch.empty_like, "Meta")
        library.define("thrice(Tensor x) -> Tensor")
        library.impl("thrice", lambda x: x * 3, "CPU")
        library.impl("thrice", torch.empty_like, "Meta")
        register_swap("bringup_hooked::twice", "bringup_hooked::thrice")
        compiled = torch.compile(
            lambda x: torch.ops.bringup_hooked.twice(x) + 1,
            backend="bringup",
            options={"inner": inner},
        )
        assert compiled(torch.ones(3)).tolist() == [4.0, 4.0, 4.0]
