"""Statuses, failures, skips, order, and that a failed pass leaves no trace."""

import pytest
import torch
from tests.unit.passes.support import STAGE, register_swap
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes
from bringup.errors import BringupError, PassError, PassFatalError, PassSkipException
from bringup.passes.run.host_session import HostDialect

X = torch.randn(4, 8)


def chain(x):
    return torch.exp(torch.relu(x))


def graph_pass(run, name="G", stage=STAGE, priority=0):
    @passes.register_fusion_pass(name=name, stage=stage, priority=priority)
    class GraphPass(passes.FusionBasePass):
        def run(self, graph, context):
            return run(graph, context)


def swap_exp(graph):
    """Edit the graph: tanh instead of exp."""
    (node,) = graph.find("aten::exp")
    new = graph.inserting_before(node).op("aten::tanh", node.inputs[0])
    graph.replace_all_uses(node.output, new)
    graph.erase(node)


@pytest.mark.parametrize("status", [None, True, 0])
def test_status_of_success_keeps_the_edits(traced, status):
    module = traced(chain, X)
    graph_pass(lambda graph, context: swap_exp(graph) or status)
    result = compiler.apply_passes(module)["G"]
    assert (result.status, result.matches, result.edits) == (passes.PassStatus.CHANGED, 1, 3)
    assert torch.equal(module(X), torch.tanh(torch.relu(X)))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (False, "PassError: run of 'G' returned False"),
        (3, "PassError: run of 'G' returned status 3"),
        (-1, "PassError: run of 'G' returned status -1"),
        ("done", "TypeError: run of 'G' must return None, a bool or an int status, got str 'done'"),
        (1.0, "TypeError: run of 'G' must return None, a bool or an int status, got float 1.0"),
    ],
)
def test_status_of_failure_undoes_the_edits_and_raises(traced, status, text):
    module = traced(chain, X)
    code = module.code

    def run(graph, context):
        swap_exp(graph)
        return status

    graph_pass(run)
    with pytest.raises(PassError) as failure:
        compiler.apply_passes(module)
    assert f"pass 'G' failed: {text}" in str(failure.value)
    assert failure.value.report["G"].status is passes.PassStatus.FAILED
    assert module.code == code
    assert torch.equal(module(X), chain(X))


def test_error_message_of_the_context_becomes_part_of_the_error(traced):
    def run(graph, context):
        context.set_error_message("no room on the chip")
        return False

    graph_pass(run)
    with pytest.raises(PassError, match="no room on the chip"):
        compiler.apply_passes(traced(chain, X))


def test_exception_undoes_the_edits_and_names_the_line_of_the_pass(traced):
    module = traced(chain, X)
    code = str(module.graph)

    def run(graph, context):
        swap_exp(graph)
        raise ZeroDivisionError("by hand")

    graph_pass(run)
    with pytest.raises(
        PassError, match=r"ZeroDivisionError: by hand \[.*test_executor\.py:\d+ in run\]"
    ) as failure:
        compiler.apply_passes(module)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert str(module.graph) == code


def test_edits_of_every_kind_are_undone(traced):
    builder = ir.GraphBuilder("g", compiler.AtenDialect())
    x, y = builder.create_inputs(2)
    first = builder.op("aten::relu", x)
    second = builder.op("aten::exp", y)
    graph = builder.build_and_reset([builder.op("aten::add", first, second, alpha=2), first])
    before = str(graph)

    def run(graph, context):
        add, relu, exp = (graph.find(f"aten::{name}")[0] for name in ("add.Tensor", "relu", "exp"))
        graph.move_before(exp, relu)
        graph.set_argument(add, "alpha", 3)
        new = graph.inserting_before(relu).op("aten::neg", exp.output)
        graph.replace_all_uses(relu.output, new)
        graph.erase(relu)
        assert str(graph) != before
        raise PassError("no")

    graph_pass(run)
    with pytest.raises(PassError):
        compiler.apply_passes(graph)
    assert str(graph) == before


def test_skip_in_run_discards_the_edits_and_succeeds(traced):
    module = traced(chain, X)

    def run(graph, context):
        swap_exp(graph)
        raise PassSkipException("not today")

    graph_pass(run)
    result = compiler.apply_passes(module)["G"]
    assert (result.status, result.message) == (passes.PassStatus.SKIPPED, "not today")
    assert torch.equal(module(X), chain(X))


def test_failure_lets_the_rest_of_its_stage_run_and_no_later_stage(traced):
    ran = []

    def failing(graph, context):
        ran.append("failing")
        raise ValueError("first")

    graph_pass(failing, "a")
    graph_pass(lambda graph, context: ran.append("same stage"), "b")
    graph_pass(
        lambda graph, context: ran.append("later"), "c", passes.PassStage.AFTER_BUILTIN_FUSION_PASS
    )
    with pytest.raises(PassError, match="pass 'a' failed: ValueError: first"):
        compiler.apply_passes(traced(chain, X))
    assert ran == ["failing", "same stage"]


def test_fatal_failure_stops_its_stage_at_once(traced):
    ran = []

    def failing(graph, context):
        raise PassFatalError("stop")

    graph_pass(failing, "a")
    graph_pass(lambda graph, context: ran.append("same stage"), "b")
    with pytest.raises(PassFatalError, match="pass 'a' failed: PassFatalError: stop"):
        compiler.apply_passes(traced(chain, X))
    assert ran == []


def test_edits_of_a_pass_that_succeeded_stay_when_a_later_one_fails(traced):
    module = traced(chain, X)

    def failing(graph, context):
        raise ValueError("late")

    graph_pass(lambda graph, context: swap_exp(graph), "a")
    graph_pass(failing, "b")
    with pytest.raises(PassError):
        compiler.apply_passes(module)
    assert torch.equal(module(X), torch.tanh(torch.relu(X)))


def test_passes_run_by_stage_then_priority_then_name(traced):
    ran = []
    for name, stage, priority in [
        ("z", STAGE, 5),
        ("b", STAGE, 0),
        ("a", STAGE, 0),
        ("last", passes.PassStage.AFTER_ORIGIN_GRAPH_OPTIMIZE, 9),
        ("first", passes.PassStage.BEFORE_INFER_SHAPE, -9),
    ]:
        graph_pass(lambda graph, context: ran.append(context.pass_name), name, stage, priority)
    compiler.apply_passes(traced(chain, X))
    assert ran == ["first", "z", "a", "b", "last"]


def test_every_run_has_a_fresh_instance_that_lasts_through_its_hooks(traced):
    instances = []

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Fusion(passes.PatternFusionPass):
        def patterns(self):
            self.seen = 0
            builder = ir.GraphBuilder()
            return builder.build_and_reset(builder.op("aten::relu", *builder.create_inputs(1)))

        def meet_requirements(self, match_result):
            self.seen += 1
            instances.append((self, self.seen))
            return False

    module = traced(lambda x: torch.relu(torch.relu(x)), X)
    compiler.apply_passes(module)
    compiler.apply_passes(module)
    assert [seen for _, seen in instances] == [1, 2, 1, 2]
    assert len({id(instance) for instance, _ in instances}) == 2


@pytest.mark.parametrize("hook", ["patterns", "meet_requirements", "replacement"])
def test_error_in_any_hook_of_a_pattern_pass_is_raised_not_swallowed(traced, hook):
    class Fusion(passes.PatternFusionPass):
        def patterns(self):
            if hook == "patterns":
                raise ValueError("in patterns")
            builder = ir.GraphBuilder()
            return builder.build_and_reset(builder.op("aten::relu", *builder.create_inputs(1)))

        def meet_requirements(self, match_result):
            if hook == "meet_requirements":
                raise ValueError("in meet_requirements")
            return True

        def replacement(self, match_result):
            raise ValueError("in replacement")

    passes.register_fusion_pass(name="P", stage=STAGE)(Fusion)
    with pytest.raises(PassError, match=f"pass 'P' failed: ValueError: in {hook}"):
        compiler.apply_passes(traced(chain, X))


@pytest.mark.parametrize("hook", ["meet_requirements", "replacement"])
def test_skip_in_a_hook_skips_this_match_alone(traced, hook):
    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Fusion(passes.PatternFusionPass):
        def patterns(self):
            self.asked = 0
            builder = ir.GraphBuilder("relu")
            return builder.build_and_reset(builder.op("aten::relu", *builder.create_inputs(1)))

        def meet_requirements(self, match_result):
            self.asked += 1
            if hook == "meet_requirements" and self.asked == 1:
                raise PassSkipException("the first one stays")
            return True

        def replacement(self, match_result):
            if hook == "replacement" and self.asked == 1:
                raise PassSkipException("the first one stays")
            builder = ir.GraphBuilder()
            return builder.op("aten::tanh", *builder.create_inputs(1))

    module = traced(lambda x: torch.relu(torch.relu(x)), X)
    result = compiler.apply_passes(module)["P"]
    assert (result.matches, result.refused) == (1, 1)
    assert result.near_misses[0].reason == "skipped: the first one stays"
    assert torch.equal(module(X), torch.tanh(torch.relu(X)))


def test_replacement_that_returns_nothing_is_a_type_error(traced):
    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Fusion(passes.PatternFusionPass):
        @passes.pattern
        def relu(self, inputs):
            return inputs[0].builder.op("aten::relu", inputs[0])

        def replacement(self, match_result):
            return None

    with pytest.raises(PassError, match=r"Fusion\.replacement must return an ir\.Graph or"):
        compiler.apply_passes(traced(chain, X))


def test_decompose_pass_replaces_every_node_of_its_types(traced):
    @passes.register_decompose_pass(name="D", stage=STAGE, op_types=["aten::sigmoid", "aten::silu"])
    class Decompose(passes.DecomposePass):
        def meet_requirements(self, node):
            return node.op_type == "aten::silu"

        def replacement(self, node):
            builder = ir.GraphBuilder()
            (x,) = builder.create_inputs(1)
            return x * builder.op("aten::sigmoid", x)

    module = traced(lambda x: torch.sigmoid(torch.nn.functional.silu(x)), X)
    expected = module(X)
    result = compiler.apply_passes(module)["D"]
    assert (result.matches, result.refused) == (1, 1)
    assert torch.allclose(module(X), expected)
    assert torch.ops.aten.silu.default not in {node.target for node in module.graph.nodes}


def test_options_reach_the_context_and_an_unknown_one_names_the_others(traced):
    seen = []

    def run(graph, context):
        seen.append(context.get_option_value("level"))
        with pytest.raises(KeyError, match=r"no option 'depth'; this compile has \['level'\]"):
            context.get_option_value("depth")

    graph_pass(run)
    compiler.apply_passes(traced(chain, X), options={"level": 2})
    assert seen == [2]


def test_unknown_pass_name_suggests_the_nearest(traced):
    graph_pass(lambda graph, context: None, "FuseGelu")
    with pytest.raises(ValueError, match=r"no pass named 'FuseGeul' .*; did you mean 'FuseGelu'\?"):
        compiler.apply_passes(traced(chain, X), passes=["FuseGeul"])
    with pytest.raises(
        TypeError, match="must be a list of names or None, got the string 'FuseGelu'"
    ):
        compiler.apply_passes(traced(chain, X), passes="FuseGelu")


def test_only_the_named_passes_run(traced):
    ran = []
    graph_pass(lambda graph, context: ran.append("a"), "a")
    graph_pass(lambda graph, context: ran.append("b"), "b")
    compiler.apply_passes(traced(chain, X), passes=["b"])
    assert ran == ["b"]


def test_producers_that_come_too_late_are_moved_in_front_of_their_reader(traced):
    def function(x, w1, w2):
        q = x @ w1.t()
        early = torch.relu(q)
        return early, x @ w2.t()

    def merge(graph, context):
        first, second = graph.find("aten::mm")
        builder = graph.inserting_before(first)
        weight = builder.op("aten::cat", [first.argument("mat2"), second.argument("mat2")], 1)
        joined = builder.op("aten::mm", first.argument("self"), weight)
        parts = builder.op("aten::split_with_sizes", joined, [3, 5], 1)
        for node, part in zip((first, second), parts, strict=True):
            graph.replace_all_uses(node.output, part)
            graph.erase(node)

    graph_pass(merge)
    w1, w2 = torch.randn(3, 8), torch.randn(5, 8)
    module = traced(function, X, w1, w2)
    expected = module(X, w1, w2)
    compiler.apply_passes(module)
    module.graph.lint()
    for got, wanted in zip(module(X, w1, w2), expected, strict=True):
        assert torch.allclose(got, wanted, atol=1e-6)


def test_pass_that_makes_a_cycle_fails_and_names_a_node(traced):
    def run(graph, context):
        (relu,), (exp,) = graph.find("aten::relu"), graph.find("aten::exp")
        graph.set_argument(relu, "self", exp.output)

    module = traced(chain, X)
    graph_pass(run)
    with pytest.raises(PassError, match="the graph cannot be ordered so that %relu"):
        compiler.apply_passes(module)
    assert torch.equal(module(X), chain(X))


def test_move_across_a_write_of_what_the_node_reads_fails(traced):
    def function(x, y):
        first = torch.relu(y)
        x.add_(1)
        return first, torch.exp(x)

    def run(graph, context):
        (relu,), (exp,) = graph.find("aten::relu"), graph.find("aten::exp")
        graph.set_argument(relu, "self", exp.output)

    graph_pass(run)
    with pytest.raises(PassError, match=r"'exp' would have to run before 'add_'"):
        compiler.apply_passes(traced(function, X.clone(), X))


def test_result_that_would_become_an_alias_of_an_input_is_copied(traced):
    register_swap("aten::clone", "aten::alias")
    module = traced(torch.clone, X)
    assert compiler.apply_passes(module)["P"].matches == 1
    assert module(X).data_ptr() != X.data_ptr()
    inner = traced(lambda x: torch.relu(torch.clone(x)), X)
    assert compiler.apply_passes(inner)["P"].matches == 1


def test_replacement_that_writes_its_input_is_refused(traced):
    register_swap("aten::relu", "aten::relu_")
    with pytest.raises(PassError, match="the replacement writes 'x_1', which it did not make"):
        compiler.apply_passes(traced(lambda x: (torch.relu(x), x * 2), X))


def test_interrupt_undoes_the_edits_and_goes_through(traced):
    def run(graph, context):
        swap_exp(graph)
        raise KeyboardInterrupt

    module = make_fx(chain)(X)  # traced for real: every node has a fake mode of its own
    code = module.code
    graph_pass(run)
    with pytest.raises(KeyboardInterrupt):
        compiler.apply_passes(module)
    assert module.code == code
    passes.clear_registered_passes()
    graph_pass(lambda graph, context: swap_exp(graph))
    compiler.apply_passes(module)
    assert torch.equal(module(X), torch.tanh(torch.relu(X)))


def test_another_kind_of_target_is_a_type_error():
    with pytest.raises(TypeError, match=r"apply_passes takes .* got Linear"):
        compiler.apply_passes(torch.nn.Linear(2, 2))


def test_folder_that_cannot_be_written_fails_before_the_first_pass(traced, tmp_path):
    """A file stands where the folder should be: nothing is rewritten."""
    register_swap("aten::relu", "aten::tanh")
    module = traced(torch.relu, torch.ones(2))
    code = module.code
    (tmp_path / "taken").write_text("")
    with pytest.raises(BringupError, match=r"graphs cannot be dumped \(option 'dump_passes'"):
        compiler.apply_passes(module, options={"dump_passes": str(tmp_path / "taken")})
    assert module.code == code


def test_pass_with_a_long_name_is_dumped(traced, tmp_path):
    class Long(passes.FusionBasePass):
        def run(self, graph, context):
            graph.set_outputs(graph.insert("aten::neg", graph.outputs).output)

    passes.register_fusion_pass(name="ä" * 300, stage=STAGE)(Long)
    compiler.apply_passes(traced(torch.relu, torch.ones(2)), options={"dump_passes": str(tmp_path)})
    assert len(list(tmp_path.iterdir())) == 3


def test_option_that_is_nearly_a_known_one_is_refused(traced):
    module = traced(torch.relu, torch.ones(2))
    with pytest.raises(ValueError, match="no option 'pass_swich'; did you mean 'pass_switch'"):
        compiler.apply_passes(module, options={"pass_swich": {}})
    with pytest.raises(TypeError, match=r"options must map names to values, got \[1\]"):
        compiler.apply_passes(module, options=[1])
    compiler.apply_passes(module, options={"my_own": 1})


def test_a_value_of_a_program_that_is_not_described_may_take_any_place():
    dialect = HostDialect(None)
    desc, other = (ir.TensorDesc(ir.Shape((size,)), "float32") for size in (2, 3))
    assert dialect.difference(None, desc) is None
    assert dialect.difference(desc, None) is None
    assert dialect.difference(desc, other) == "shape is [3] where it was [2]"
