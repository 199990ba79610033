"""What a pass's return value or exception does: one cell a test, over every hook."""

import gc
import threading
import weakref

import pytest
from tests.unit.passes.small import STAGE, chain, run, run_one, swap, types

from bringup import ir, passes
from bringup.errors import PassError, PassFatalError, PassSkipException

HOOKS = ["run", "patterns", "pattern method", "meet_requirements", "replacement"]
NODE_HOOKS = ["node meet_requirements", "node replacement"]


def edit(graph):
    """An edit that must be gone when the pass failed."""
    (node,) = graph.find("demo::a")
    new = graph.inserting_before(node).op("demo::edited", node.inputs[0])
    graph.replace_all_uses(node.output, new)


def register(hook, act, **settings):
    """Register pass "P", whose `hook` edits where it can and then does `act`."""

    class Graph(passes.FusionBasePass):
        def run(self, graph, context):
            edit(graph)
            return act()

    class Pattern(passes.PatternFusionPass):
        def patterns(self):
            return act() if hook == "patterns" else chain("a")

        def meet_requirements(self, match_result):
            if hook != "meet_requirements":
                return True
            edit(match_result.get_matched_nodes()[0].graph)
            return act()

        def replacement(self, match_result):
            edit(match_result.get_matched_nodes()[0].graph)
            return act()

    class Method(passes.PatternFusionPass):
        @passes.pattern
        def one(self, inputs):
            return act()

    class Node(passes.DecomposePass):
        def meet_requirements(self, node):
            if hook == "node replacement":
                return True
            edit(node.graph)
            return act()

        def replacement(self, node):
            edit(node.graph)
            return act()

    if hook.startswith("node"):
        passes.register_decompose_pass(name="P", stage=STAGE, op_types=["demo::a"], **settings)(
            Node
        )
        return
    cls = {"run": Graph, "pattern method": Method}.get(hook, Pattern)
    passes.register_fusion_pass(name="P", stage=STAGE, **settings)(cls)


def raising(error):
    def act():
        raise error

    return act


def failed(graph):
    with pytest.raises(PassError) as failure:
        run(graph)
    assert types(graph) == ["a"]
    return failure.value


@pytest.mark.parametrize("status", [None, True, 0])
def test_success_of_run(status):
    register("run", lambda: status)
    graph = chain("a")
    result = run(graph)["P"]
    assert (result.status, result.code) == (passes.PassStatus.CHANGED, 0)
    assert "edited" in types(graph)


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (False, 1, "PassError: run of 'P' returned False"),
        (1, 1, "PassError: run of 'P' returned status 1"),
        (7, 7, "PassError: run of 'P' returned status 7"),
        (-3, -3, "PassError: run of 'P' returned status -3"),
        ("0", 1, "TypeError: run of 'P' must return None, a bool or an int status, got str '0'"),
        (0.0, 1, "TypeError: run of 'P' must return None, a bool or an int status, got float"),
        ([], 1, "TypeError: run of 'P' must return None, a bool or an int status, got list"),
    ],
)
def test_failure_of_run_keeps_its_status_and_no_edit(status, code, text):
    register("run", lambda: status)
    error = failed(chain("a"))
    assert text in str(error)
    assert (error.status, error.report["P"].code) == (code, code)


@pytest.mark.parametrize("hook", [*HOOKS, *NODE_HOOKS])
def test_other_exception_fails_with_message_and_traceback(hook):
    """A Python exception is a failure."""
    register(hook, raising(ZeroDivisionError("by hand")))
    error = failed(chain("a"))
    result = error.report["P"]
    assert "pass 'P' failed: ZeroDivisionError: by hand [" in str(error)
    assert "Traceback" in result.traceback
    assert result.traceback.endswith("ZeroDivisionError: by hand")
    assert (result.status, result.code, result.matches) == (passes.PassStatus.FAILED, 1, 0)


@pytest.mark.parametrize("hook", [*HOOKS, *NODE_HOOKS])
def test_error_of_the_engine_keeps_its_code(hook):
    register(hook, raising(PassError("no such edge", status=1343225857)))
    error = failed(chain("a"))
    assert (error.status, error.report["P"].code) == (1343225857, 1343225857)


@pytest.mark.parametrize("hook", [*HOOKS, *NODE_HOOKS])
def test_fatal_error_fails_and_stops_the_stage(hook):
    register(hook, raising(PassFatalError("stop", status=5)), on_error="skip")
    ran = []
    passes.register_custom_pass(name="Q", stage=STAGE)(
        lambda graph, context: ran.append(context.pass_name)
    )
    error = failed(chain("a"))
    assert isinstance(error, PassFatalError)
    assert error.status == 5
    assert ran == []


@pytest.mark.parametrize("hook", ["run", "patterns", "pattern method"])
def test_skip_outside_of_a_match_succeeds_with_all_edits_discarded(hook):
    register(hook, raising(PassSkipException("not here")))
    graph = chain("a")
    result = run(graph)["P"]
    assert (result.status, result.message) == (passes.PassStatus.SKIPPED, "not here")
    assert types(graph) == ["a"]


@pytest.mark.parametrize("hook", ["meet_requirements", "replacement", *NODE_HOOKS])
def test_skip_in_the_hook_of_a_match_skips_it_and_undoes_its_edits(hook):
    register(hook, raising(PassSkipException("not this one")))
    graph = chain("a")
    result = run(graph)["P"]
    assert (result.status, result.refused) == (passes.PassStatus.UNCHANGED, 1)
    assert result.near_misses[0].reason == "skipped: not this one"
    assert types(graph) == ["a"]


@pytest.mark.parametrize("hook", ["meet_requirements", "node meet_requirements"])
@pytest.mark.parametrize("answer", [False, None, 0])
def test_requirements_that_are_not_met_leave_the_match_alone(hook, answer):
    """Not met is no change."""
    register(hook, lambda: answer)
    graph = chain("a")
    result = run(graph)["P"]
    assert (result.status, result.refused) == (passes.PassStatus.UNCHANGED, 1)
    assert types(graph) == ["a"]


@pytest.mark.parametrize("hook", ["replacement", "node replacement"])
@pytest.mark.parametrize("answer", [None, "a graph", 3, ()])
def test_replacement_that_is_no_graph_is_an_error(hook, answer):
    register(hook, lambda: answer)
    error = failed(chain("a"))
    assert "replacement must return an ir.Graph or the TensorHolder(s)" in str(error)


def test_message_of_the_context_comes_first():
    @passes.register_custom_pass(name="P", stage=STAGE)
    def no_room(graph, context):
        context.set_error_message("no room on the chip")
        assert context.get_error_message() == "no room on the chip"
        return 4

    error = failed(chain("a"))
    assert "pass 'P' failed: no room on the chip (PassError: run of 'P' returned status 4)" in str(
        error
    )


def test_context_of_a_match_that_failed_holds_message_and_traceback():
    seen = []

    class Twice(passes.PatternFusionPass):
        def patterns(self):
            return chain("a")

        def meet_requirements(self, match_result, context):
            seen.append(context.get_error_message())
            raise ValueError("the first one")

    run_one(Twice, chain("a", "a"), on_error="skip")
    assert seen[0] == ""
    assert seen[1].startswith("ValueError: the first one [")
    assert "Traceback" in seen[1]


def test_context_is_valid_only_inside_the_call():
    kept = []
    passes.register_custom_pass(name="P", stage=STAGE)(lambda graph, context: kept.append(context))
    run(chain("a"), options={"level": 2})
    for use in (
        lambda: kept[0].get_pass_name(),
        lambda: kept[0].set_pass_name("Q"),
        lambda: kept[0].get_error_message(),
        lambda: kept[0].set_error_message("x"),
        lambda: kept[0].get_option_value("level"),
        lambda: kept[0].instance_id,
    ):
        with pytest.raises(passes.ExpiredHandleError, match="context of pass 'P' has expired"):
            use()


def test_context_says_and_takes_names_and_options():
    seen = []

    @passes.register_custom_pass(name="P", stage=STAGE)
    def look(graph, context):
        seen.append((context.get_pass_name(), context.stage, context.get_option_value("level")))
        context.set_pass_name("Renamed")
        seen.append(context.pass_name)
        with pytest.raises(KeyError, match=r"no option 'depth'; this compile has \['level'\]"):
            context.get_option_value("depth")
        with pytest.raises(TypeError, match="the error message must be a string, got 3"):
            context.set_error_message(3)

    run(chain("a"), options={"level": 2})
    assert seen == [("P", STAGE, 2), "Renamed"]


def test_instance_is_made_for_one_run_and_gone_after_it():
    """State lasts through the matches of one run, and not into the next."""
    seen, instances = [], []

    class Counting(passes.PatternFusionPass):
        def patterns(self):
            self.count = 0
            instances.append(weakref.ref(self))
            return chain("a")

        def meet_requirements(self, match_result, context):
            self.count += 1
            seen.append((self.count, self.instance_id == context.instance_id))
            return False

    passes.register_fusion_pass(name="P", stage=STAGE)(Counting)
    first, second = run(chain("a", "a"))["P"], run(chain("a", "a"))["P"]
    assert seen == [(1, True), (2, True), (1, True), (2, True)]
    assert first.instance_id != second.instance_id
    gc.collect()
    assert [item() for item in instances] == [None, None]


def test_error_in_the_constructor_fails_the_pass():
    """A class that cannot be made is a failure of its pass."""

    class Broken(passes.FusionBasePass):
        def __init__(self):
            raise OSError("no licence")

        def run(self, graph, context):
            return None

    with pytest.raises(PassError, match="pass 'P' failed: OSError: no licence"):
        run_one(Broken, chain("a"))


def test_replacement_that_holds_its_own_pattern_ends():
    """A replacement is not fed to the pass that made it."""

    def grow(self, inputs):
        op = inputs[0].builder.op
        return op("demo::a", op("demo::a", inputs[0]))

    graph = chain("a", "a")
    assert run_one(swap(replacement=grow), graph).matches == 2
    assert types(graph) == ["a"] * 4


def test_repeating_until_stable_ends_at_a_budget_and_says_so():
    def grow(self, inputs):
        op = inputs[0].builder.op
        return op("demo::a", op("demo::a", inputs[0]))

    graph = chain("a")
    with pytest.raises(PassError, match="'P' does not become stable: after 1030 rewrites"):
        run_one(swap(replacement=grow), graph, repeat_until_stable=True)
    assert types(graph) == ["a"]


def test_repeating_until_stable_finds_what_earlier_rewrites_made():
    def peel(self, inputs):
        return inputs[0].builder.op("demo::a", inputs[0])

    class Peel(passes.PatternFusionPass):
        @passes.pattern
        def pair(self, inputs):
            op = inputs[0].builder.op
            return op("demo::c", op("demo::a", inputs[0]))

        replacement = peel

    graph = chain("a", "c", "c", "c")
    once = run_one(Peel, chain("a", "c", "c", "c"), name="once")
    passes.clear_registered_passes()
    result = run_one(Peel, graph, repeat_until_stable=True)
    assert types(graph) == ["a"]
    assert result.matches == 3 >= once.matches


def test_rewrite_budget_stops_the_pass_and_is_told():
    graph = chain("a", "a", "a")
    result = run_one(swap(), graph, max_rewrites=2)
    assert types(graph) == ["b", "b", "a"]
    assert result.message == "stopped after 2 rewrites (max_rewrites)"


def failing_on_second(self, inputs, match_result):
    name = match_result.get_matched_nodes()[0].name
    if name == "a_1":
        raise ValueError("not the second")
    return inputs[0].builder.op("demo::b", inputs[0])


def test_policy_skip_undoes_and_skips_the_failed_match_alone():
    graph = chain("a", "a", "a")
    result = run_one(swap(replacement=failing_on_second), graph, on_error="skip")
    assert types(graph) == ["b", "a", "b"]
    assert (result.matches, result.failures, result.status) == (2, 1, passes.PassStatus.CHANGED)
    assert "ValueError: not the second" in result.near_misses[0].reason


def test_policy_rollback_undoes_the_pass_and_the_compile_goes_on():
    graph = chain("a", "a", "a")
    passes.register_fusion_pass(name="Q", stage=STAGE)(swap("a", "later"))
    result = run_one(swap(replacement=failing_on_second), graph, on_error="rollback", priority=1)
    assert (result.status, result.tolerated) == (passes.PassStatus.FAILED, True)
    assert types(graph) == ["later"] * 3


def test_policy_fail_undoes_the_pass_and_raises():
    graph = chain("a", "a", "a")
    with pytest.raises(PassError, match="ValueError: not the second"):
        run_one(swap(replacement=failing_on_second), graph)
    assert types(graph) == ["a"] * 3


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_tolerant_policies_undo_a_graph_pass_that_fails(policy):
    register("run", lambda: False, on_error=policy)
    graph = chain("a")
    assert run(graph)["P"].tolerated
    assert types(graph) == ["a"]


def test_wrong_shape_of_one_replacement_is_undone_under_skip():
    """A rewrite that fails half way, after its first edits, leaves nothing of them."""

    def two(self, inputs, match_result):
        op = inputs[0].builder.op
        if match_result.get_matched_nodes()[0].name == "a":
            return op("demo::b", inputs[0]), op("demo::c", inputs[0])
        return op("demo::b", inputs[0])

    graph = chain("a", "a")
    result = run_one(swap(replacement=two), graph, on_error="skip")
    assert types(graph) == ["a", "b"]
    assert "has 2 outputs, what it replaces has 1" in result.near_misses[0].reason


def test_passes_run_in_subgraphs_with_an_instance_each():
    """Subgraphs are visited, orphans are not; a failure in one fails the stage."""
    graph, branch, orphan = chain("a", "if"), chain("a"), chain("a")
    branch.name, orphan.name = "branch", "orphan"
    graph.add_subgraph("then", branch, graph.find("demo::if")[0])
    graph.add_subgraph("left over", orphan)
    passes.register_fusion_pass(name="P", stage=STAGE)(swap())
    report = run(graph)
    assert [(r.graph, r.matches) for r in report.results] == [("g", 1), ("branch", 1)]
    assert len({result.instance_id for result in report.results}) == 2
    assert report.matches == {"P": 2}
    assert (types(graph), types(branch), types(orphan)) == (["b", "if"], ["b"], ["a"])


def test_failure_in_a_subgraph_fails_the_stage_and_undoes_that_graph():
    graph, branch = chain("if"), chain("a")
    branch.name = "branch"
    graph.add_subgraph("then", branch, graph.find("demo::if")[0])
    register("replacement", raising(ValueError("in the branch")))
    with pytest.raises(PassError, match="in the branch"):
        run(graph)
    assert types(branch) == ["a"]


def test_pass_is_a_node_of_one_graph_only():
    """A graph that was built for one session cannot be edited through another's handles."""
    other = chain("a")
    with pytest.raises(ValueError, match="belongs to another graph"):
        chain("a").erase(other.find("demo::a")[0])


def test_custom_pass_may_be_a_function_or_a_class():
    """Kind `legacy_custom`."""

    @passes.register_custom_pass(name="F", stage=STAGE)
    def function(graph, context):
        edit(graph)

    @passes.register_custom_pass(name="C", stage=STAGE)
    class Plain:
        def run(self, graph, context):
            assert context.pass_name == "C"
            return True

    assert function.__name__ == "function"
    assert [item.kind for item in passes.get_registered_passes()] == ["legacy_custom"] * 2
    keys = [item.descriptor_key for item in passes.get_registered_passes()]
    assert keys[1].endswith("<locals>.function:F")
    graph = chain("a")
    report = run(graph)
    assert report["F"].status is passes.PassStatus.CHANGED
    assert report["C"].status is passes.PassStatus.UNCHANGED


@pytest.mark.parametrize(
    ("custom", "text"),
    [
        (3, "expected a function"),
        (lambda graph: None, r"must take \(graph, context\), got \(graph\)"),
        (type("NoRun", (), {}), r"NoRun has no method run\(graph, context\)"),
        (type("Pat", (passes.PatternFusionPass,), {}), "use register_fusion_pass"),
        (type("One", (), {"run": lambda self: None}), r"must take \(self, graph, context\)"),
    ],
)
def test_wrong_custom_pass_is_refused(custom, text):
    with pytest.raises(TypeError, match=text):
        passes.register_custom_pass(name="X", stage=STAGE)(custom)


def test_graph_of_a_builder_is_not_edited_outside_of_a_transaction_by_savepoints():
    with (
        pytest.raises(RuntimeError, match="no open transaction to make a savepoint in"),
        ir.Graph("g").savepoint(),
    ):
        pass


def test_sessions_of_two_graphs_run_in_parallel():
    """Two callbacks wait for each other: no lock is held while a pass runs."""
    both = threading.Barrier(2, timeout=240)
    seen = []

    @passes.register_custom_pass(name="P", stage=STAGE)
    def meet(graph, context):
        both.wait()
        seen.append((graph.name, context.instance_id))

    threads = [
        threading.Thread(target=run, args=(chain("a", graph_name=name),)) for name in ("g", "h")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(name for name, _ in seen) == ["g", "h"]
    assert len({number for _, number in seen}) == 2


def test_words_of_a_failure_are_not_those_of_the_one_before_it():
    heard = []

    def failing(self, match_result):
        raise ValueError(match_result.get_matched_nodes()[0].name)

    with passes.subscribe(heard.append):
        run_one(swap(replacement=failing), chain("a", "a"), on_error="skip")
    failed = [event.details["message"] for event in heard if event.kind.value == "failed"]
    assert [message.partition(" [")[0] for message in failed] == [
        "ValueError: a",
        "ValueError: a_1",
    ]
