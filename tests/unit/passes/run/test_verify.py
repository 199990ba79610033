"""Rewrites run against what they replace: a wrong one names itself, and nothing of it stays."""

import json

import pytest
import torch
from tests.unit.passes.plain import graph_of
from tests.unit.passes.small import STAGE, chain, run
from tests.unit.passes.support import register_swap

from bringup import compiler, ir, passes
from bringup.errors import PassError, SettingError, WrongRewriteError

X = torch.randn(4, 8)


def verified(module, **options):
    return compiler.apply_passes(module, options={"verify": True, **options})


def rewriting(found, replacement, meet=None, **settings):
    """Register pass "P" from two functions of (op, inputs)."""

    class Rewrite(passes.PatternFusionPass):
        @passes.pattern
        def match(self, inputs):
            return found(inputs[0].builder.op, inputs)

        def meet_requirements(self, match_result):
            return meet is None or meet(match_result)

        def replacement(self, inputs):
            return replacement(inputs[0].builder.op, inputs)

    passes.register_fusion_pass(name="P", stage=STAGE, **settings)(Rewrite)


def test_right_rewrite_is_verified_and_counted(traced):
    rewriting(
        lambda op, x: op("aten::neg", op("aten::neg", x[0])), lambda op, x: op("aten::clone", x[0])
    )
    module = traced(lambda x: torch.neg(torch.neg(x)), X)
    result = verified(module)["P"]
    assert (result.matches, result.verified, result.unverified) == (1, 1, [])
    assert torch.equal(module(X), X)


@pytest.mark.parametrize("policy", ["fail", "skip", "rollback"])
def test_wrong_rewrite_names_pass_match_and_difference_whatever_the_policy(traced, policy):
    rewriting(
        lambda op, x: op("aten::exp", op("aten::relu", x[0])),
        lambda op, x: op("aten::relu", op("aten::exp", x[0])),
        on_error=policy,
    )
    module = traced(lambda x: torch.exp(torch.relu(x)), X)
    with pytest.raises(
        WrongRewriteError,
        match=r"'P' is wrong at match \(relu, exp\): result 0 differs by [\d.]+ at most, "
        r"[\d.e-]+ is allowed \(draw 0\)",
    ):
        verified(module)
    assert torch.equal(module(X), torch.exp(torch.relu(X)))


def test_small_difference_of_an_approximation_is_found(traced):
    """tanh-GELU in the place of GELU differs by 5e-4: wrong, not rounding."""

    class Gelu(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            return builder.op("aten::gelu", *builder.create_inputs(1), approximate="tanh")

    passes.register_decompose_pass(name="D", stage=STAGE, op_types=["aten::gelu"])(Gelu)
    module = traced(torch.nn.functional.gelu, X)
    with pytest.raises(WrongRewriteError, match=r"'D' is wrong at aten::gelu \(gelu\)"):
        verified(module)


def is_float32(match_result):
    return match_result.inputs[0].desc.dtype == "float32"


def test_dtype_that_is_not_checked_is_found_in_another_dtype(traced):
    """What rounding hides in float32 shows in float64, which the pass would take too."""
    rewriting(
        lambda op, x: op("aten::add", x[0], 1e-7),
        lambda op, x: op("aten::clone", x[0]),
    )
    module = traced(lambda x: x + 1e-7, X)
    with pytest.raises(WrongRewriteError, match=r"\(dtype float64\)"):
        verified(module)


def test_dtype_that_is_checked_is_not_held_against_the_pass(traced):
    rewriting(
        lambda op, x: op("aten::add", x[0], 1e-7),
        lambda op, x: op("aten::clone", x[0]),
        is_float32,
    )
    result = verified(traced(lambda x: x + 1e-7, X))["P"]
    assert (result.matches, result.verified) == (1, 1)


def test_size_that_is_not_checked_is_found_in_another_size(traced):
    """mean over 8 elements as sum / 8: right here, wrong for any other size."""
    rewriting(
        lambda op, x: op("aten::mean", x[0], [-1]),
        lambda op, x: op("aten::mul", op("aten::sum", x[0], [-1]), 0.125),
    )
    module = traced(lambda x: torch.ops.aten.mean.dim(x, [-1]), X)
    with pytest.raises(WrongRewriteError, match=r"\(every size 1 larger\)"):
        verified(module)


def test_one_value_at_two_inputs_gets_the_same_data(traced):
    rewriting(
        lambda op, x: op("aten::mul", x[0], x[1]),
        lambda op, x: op("aten::mul", x[1], x[0]),
    )
    assert verified(traced(lambda x: x * x, X))["P"].verified == 1


def test_constants_keep_their_data(traced):
    """x - 0 -> x is right because of what the constant holds."""
    zero = torch.zeros(8)

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class DropZero(passes.PatternFusionPass):
        @passes.pattern
        def subtract(self, inputs):
            return inputs[0].builder.op("aten::sub", inputs[0], inputs[1])

        def meet_requirements(self, match_result):
            payload = match_result.inputs[1].node.payload
            return payload is not None and not payload.any()

        def replacement(self, inputs, match_result):
            assert len(inputs[0:2]) == 2
            return inputs[0].builder.op("aten::clone", inputs[0])

    graph = ir.Graph("g", compiler.AtenDialect())
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(X)
    graph = ir.Graph("g", compiler.AtenDialect(mode))
    x = graph.add_input(meta=fake)
    taken = graph.insert("aten::sub", (x, graph.add_constant(zero)))
    graph.set_outputs(taken.output)
    assert verified(graph)["P"].verified == 1


def test_symbolic_sizes_are_numbers_that_agree():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x):
        return torch.relu(x.view(x.shape[0] * x.shape[1])).view(x.shape[0], x.shape[1])

    module = make_fx(function, tracing_mode="symbolic")(X)

    def meet(match_result):
        return True

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class Views(passes.PatternFusionPass):
        @passes.pattern
        def match(self, inputs):
            op = inputs[0].builder.op
            return op("aten::relu", op("aten::view", inputs[0], passes.any_value("size")))

        def replacement(self, inputs, match_result):
            op = inputs[0].builder.op
            return op("aten::view", op("aten::relu", inputs[0]), match_result["size"])

    result = verified(module)["P"]
    assert (result.matches, result.verified, result.unverified) == (1, 1, [])


def test_graph_pass_is_verified_as_a_whole(traced):
    def edit(wrong):
        def work(graph, context):
            (node,) = graph.find("aten::relu")
            name = "aten::exp" if wrong else "aten::relu"
            new = graph.inserting_before(node).op(name, node.inputs[0])
            graph.replace_all_uses(node.output, new)
            graph.erase(node)

        return work

    module = traced(lambda x: torch.relu(x) + 1, X)
    passes.register_custom_pass(name="Right", stage=STAGE)(edit(False))
    assert verified(module)["Right"].verified == 1
    passes.clear_registered_passes()
    passes.register_custom_pass(name="Wrong", stage=STAGE)(edit(True))
    with pytest.raises(WrongRewriteError, match="'Wrong' is wrong at graph"):
        verified(module)


def test_what_cannot_be_run_is_said_and_not_counted(traced):
    """Indices beyond the table: neither side can be compared, and the report says so."""
    rewriting(
        lambda op, x: op("aten::embedding", x[0], x[1]),
        lambda op, x: op("aten::index_select", x[0], 0, x[1]),
    )
    table, ids = torch.randn(1, 4), torch.zeros(3, dtype=torch.int64)
    result = verified(traced(torch.ops.aten.embedding.default, table, ids))["P"]
    assert (result.matches, result.verified) == (1, 0)
    assert "aten::embedding ('embedding') raised" in result.unverified[0]


def test_random_and_writing_operators_are_refused_as_they_are(traced):
    rewriting(lambda op, x: op("aten::relu_", x[0]), lambda op, x: op("aten::exp", x[0]))
    result = verified(traced(lambda x: x.relu_(), X.clone()))["P"]
    assert (result.matches, result.verified) == (0, 0)
    assert "writes memory or is random" in result.near_misses[0].reason


def test_graph_without_a_dialect_names_the_missing_provider():
    passes.register_custom_pass(name="P", stage=STAGE)(lambda graph, context: None)
    with pytest.raises(PassError, match="verifying needs a provider of 'sample'; there is no"):
        run(chain("a"), options={"verify": True})
    with pytest.raises(TypeError, match="option 'verify' must be True or False, got 'yes'"):
        run(chain("a"), options={"verify": "yes"})


def test_dialect_that_makes_no_data_is_named():
    passes.register_custom_pass(name="P", stage=STAGE)(lambda graph, context: None)
    graph = graph_of(lambda b, x: b.relu(x))
    with pytest.raises(PassError, match="needs a provider of 'sample'; there is the dialect 'pla"):
        run(graph, options={"verify": True})


def test_setting_verifies_and_the_option_goes_before_it(traced, monkeypatch):
    register_swap("aten::relu", "aten::exp")
    monkeypatch.setenv("BRINGUP_PASS_VERIFY", "1")
    with pytest.raises(WrongRewriteError):
        compiler.apply_passes(traced(torch.relu, X))
    report = compiler.apply_passes(traced(torch.relu, X), options={"verify": False})
    assert report["P"].matches == 1


def test_compiled_function_is_verified():
    register_swap("aten::relu", "aten::exp")
    compiled = torch.compile(torch.relu, backend="bringup", options={"verify": True})
    with pytest.raises(Exception, match="'P' is wrong at"), torch.no_grad():
        compiled(X)
    torch.compiler.reset()


# Limit, dump and events


def swap_relu(graph, context):
    for node in graph.find("aten::relu"):
        new = graph.inserting_before(node).op("aten::tanh", node.inputs[0])
        graph.replace_all_uses(node.output, new)


def test_limit_lets_the_first_rewrites_happen_and_lists_them(traced):
    register_swap("aten::relu", "aten::tanh")
    module = traced(lambda x: torch.relu(torch.relu(torch.relu(x))), X)
    with passes.limit_rewrites(2) as limit:
        result = compiler.apply_passes(module)["P"]
    assert (result.matches, result.refused) == (2, 1)
    assert limit.log == [f"P on {result.graph} at relu", f"P on {result.graph} at relu_1"]
    assert result.near_misses[0].reason == "beyond the limit of rewrites"


def test_limit_counts_a_graph_pass_once_and_skips_it_beyond(traced):
    passes.register_custom_pass(name="G", stage=STAGE)(swap_relu)
    module = traced(lambda x: torch.relu(torch.relu(x)), X)
    with passes.limit_rewrites(0):
        result = compiler.apply_passes(module)["G"]
    assert (result.status, result.message) == (
        passes.PassStatus.SKIPPED,
        "beyond the limit of rewrites",
    )
    with passes.limit_rewrites(None) as limit:
        assert compiler.apply_passes(module)["G"].matches == 1
    assert len(limit.log) == 1


def test_graph_pass_that_changes_nothing_is_no_rewrite(traced):
    looks = passes.register_custom_pass(name="Looks", stage=STAGE, priority=1)
    looks(lambda graph, context: None)
    register_swap("aten::relu", "aten::tanh")
    module = traced(lambda x: torch.relu(x), X)
    with passes.limit_rewrites(1) as limit:
        report = compiler.apply_passes(module)
    assert limit.log == [f"P on {report.graph} at relu"]


def test_limit_of_the_environment(traced, monkeypatch):
    register_swap("aten::relu", "aten::tanh")
    monkeypatch.setenv("BRINGUP_PASS_LIMIT", "0")
    assert compiler.apply_passes(traced(torch.relu, X))["P"].matches == 0
    monkeypatch.setenv("BRINGUP_PASS_LIMIT", "many")
    with pytest.raises(SettingError, match="expected a number from 0 on"):
        compiler.apply_passes(traced(torch.relu, X))


def test_graphs_before_and_after_a_pass_are_written(traced, tmp_path):
    register_swap("aten::relu", "aten::tanh")
    passes.register_custom_pass(name="Idle", stage=STAGE)(lambda graph, context: None)
    folder = tmp_path / "dumps"
    compiler.apply_passes(traced(torch.relu, X), options={"dump_passes": str(folder)})
    names = sorted(path.name.partition("_P.")[2] for path in folder.iterdir())
    assert names == ["after.dot", "after.txt", "before.txt"]
    (before,) = folder.glob("*before.txt")
    (after,) = folder.glob("*after.txt")
    assert "aten::relu" in before.read_text()
    assert "aten::tanh" in after.read_text()


def test_failed_pass_dumps_its_graph_and_traceback(traced, tmp_path, monkeypatch):
    @passes.register_custom_pass(name="Bad", stage=STAGE)
    def bad(graph, context):
        raise ValueError("no")

    monkeypatch.setenv("BRINGUP_PASS_DUMP", str(tmp_path))
    with pytest.raises(PassError):
        compiler.apply_passes(traced(torch.relu, X))
    assert sorted(path.suffixes[-2] for path in tmp_path.iterdir()) == [".before", ".error"]


def test_events_tell_what_happens_in_order():
    seen = []
    passes.register_fusion_pass(name="P", stage=STAGE, version="2")(
        type(
            "Swap",
            (passes.PatternFusionPass,),
            {
                "patterns": lambda self: chain("a"),
                "replacement": lambda self, inputs: inputs[0].builder.op("demo::b", inputs[0]),
            },
        )
    )
    with passes.subscribe(seen.append):
        run(chain("a"))
    run(chain("a"))
    assert [item.kind.value for item in seen] == ["created", "matched", "replaced", "executed"]
    assert {(item.pass_name, item.version, item.graph) for item in seen} == {("P", "2", "g")}
    assert len({item.instance_id for item in seen}) == 1
    told = {"pattern": "g", "nodes": ["a"], "captures": [], "new_nodes": ["b"]}
    assert seen[2].details == told
    assert seen[3].details["status"] == "changed"


def test_events_of_a_failure(traced):
    seen = []

    @passes.register_custom_pass(name="Bad", stage=STAGE)
    def bad(graph, context):
        raise ValueError("no")

    with passes.subscribe(seen.append), pytest.raises(PassError):
        run(chain("a"))
    assert [item.kind.value for item in seen] == ["created", "failed", "executed"]
    assert seen[1].details["message"].startswith("ValueError: no")


def test_events_are_logged_as_json_lines_with_shapes(traced, monkeypatch, capfd):
    import logging

    monkeypatch.setenv("BRINGUP_LOG", "passes:json")
    register_swap("aten::relu", "aten::tanh")
    package = logging.getLogger("bringup")
    before = list(package.handlers)
    try:
        compiler.apply_passes(traced(torch.relu, X))
    finally:
        package.handlers[:] = before
        logging.getLogger("bringup.passes.events").setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line[:1] == "{"]
    assert [line["event"] for line in lines] == ["created", "matched", "replaced", "executed"]
    assert lines[-1]["inputs"] == ["float32[4, 8]"]
    assert lines[-1]["pass"] == "P"


def test_every_pass_is_a_range_of_the_profiler(traced):
    register_swap("aten::relu", "aten::tanh")
    module = traced(torch.relu, X)
    with torch.profiler.profile() as profile:
        compiler.apply_passes(module)
    assert "bringup::pass::P" in {event.key for event in profile.key_averages()}


def test_rewrite_without_elements_to_compare_is_not_called_verified(traced):
    register_swap("aten::relu", "aten::tanh")
    module = traced(torch.relu, torch.ones(0, 3))
    result = compiler.apply_passes(module, options={"verify": True})["P"]
    assert result.verified == 0
    assert "no elements" in result.unverified[0]
