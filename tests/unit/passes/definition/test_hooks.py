"""The forms of hooks: told apart when the class is defined, never while it runs."""

import inspect

import pytest
from tests.unit.passes.small import STAGE, chain, run, run_one, swap, types

from bringup import compiler, ir, passes


def one_op(inputs):
    return inputs[0].builder.op("demo::b", inputs[0])


def built():
    builder = ir.GraphBuilder()
    return builder.build_and_reset(builder.op("demo::b", *builder.create_inputs(1)))


def seen_by(replacement):
    """The class of names that a replacement of this form is given."""
    cls = swap(replacement=replacement)
    graph = chain("a")
    run_one(cls, graph)
    assert types(graph) == ["b"]


def test_expression_with_inputs_alone():
    def replacement(self, inputs):
        assert isinstance(inputs, passes.PatternInputs)
        return one_op(inputs)

    seen_by(replacement)


def test_expression_with_context():
    """A second parameter named `context` is the context."""

    def replacement(self, inputs, context):
        assert isinstance(context, passes.PassContext)
        return one_op(inputs)

    seen_by(replacement)


def test_expression_with_match_under_any_other_name():
    def replacement(self, inputs, whatever):
        assert isinstance(whatever, passes.MatchResult)
        return one_op(inputs)

    seen_by(replacement)


def test_expression_with_match_and_context():
    def replacement(self, inputs, match, context):
        assert isinstance(match, passes.MatchResult)
        assert context.pass_name == "P"
        return one_op(inputs)

    seen_by(replacement)


def test_expression_may_return_a_graph():
    seen_by(lambda self, inputs: built())


def test_plain_forms_with_and_without_context():
    def with_context(self, match, anything):
        assert isinstance(anything, passes.PassContext)
        return built()

    seen_by(lambda self, match: built())
    passes.clear_registered_passes()
    seen_by(with_context)


def test_parameter_with_a_default_is_left_alone_unless_it_is_the_context():
    asked = []

    def meet(self, match, least=3):
        asked.append(least)
        return True

    run_one(swap(meet_requirements=meet), chain("a"))

    def meet_with_context(self, match, context=None):
        asked.append(context.pass_name)
        return True

    passes.clear_registered_passes()
    run_one(swap(meet_requirements=meet_with_context), chain("a"), name="Q")
    assert asked == [3, "Q"]


@pytest.mark.parametrize(
    ("hook", "method"),
    [
        ("replacement", lambda self: None),
        ("replacement", lambda self, match, context, more: None),
        ("replacement", lambda self, inputs, match, more: None),
        ("replacement", lambda self, inputs, match, context, more: None),
        ("replacement", lambda self, inputs, context, match: None),
        ("meet_requirements", lambda self: None),
        ("meet_requirements", lambda self, match, context, more: None),
        ("meet_requirements", lambda self, match, *, context: None),
        ("patterns", lambda self, inputs: None),
    ],
)
def test_wrong_number_of_parameters_is_a_type_error_at_class_creation(hook, method):
    with pytest.raises(TypeError, match=f"Wrong.{hook} (must take|needs the keyword)"):
        type("Wrong", (passes.PatternFusionPass,), {hook: method})


@pytest.mark.parametrize("hook", ["meet_requirements", "replacement"])
def test_decompose_hook_with_extra_parameters_is_a_type_error(hook):
    with pytest.raises(
        TypeError, match=rf"Wrong.{hook} must take \(self, node\) or \(self, node, context\)"
    ):
        type("Wrong", (passes.DecomposePass,), {hook: lambda self, node, context, more: None})


def test_pattern_method_takes_its_inputs_alone():
    method = passes.pattern(lambda self, inputs, context: None)
    with pytest.raises(TypeError, match=r"Wrong.one must take \(self, inputs\)"):
        type("Wrong", (passes.PatternFusionPass,), {"one": method})


@pytest.mark.parametrize("run", [lambda self, graph: None, lambda self: None])
def test_run_takes_graph_and_context(run):
    with pytest.raises(TypeError, match=r"Wrong.run must take \(self, graph, context\)"):
        type("Wrong", (passes.FusionBasePass,), {"run": run})


@pytest.mark.parametrize("base", [passes.PatternFusionPass, passes.DecomposePass])
def test_overriding_run_of_a_driven_pass_is_a_type_error(base):
    with pytest.raises(TypeError, match="must not define run"):
        type("Wrong", (base,), {"run": lambda self, graph, context: None})


def test_decompose_hooks_with_and_without_context():
    seen = []

    class Decompose(passes.DecomposePass):
        def meet_requirements(self, node, context):
            seen.append((node.op_type, context.pass_name))
            return True

        def replacement(self, node):
            return built()

    passes.register_decompose_pass(name="D", stage=STAGE, op_types=["demo::a"])(Decompose)
    graph = chain("a", "c", "a")
    assert run(graph)["D"].matches == 2
    assert types(graph) == ["b", "c", "b"]
    assert seen == [("demo::a", "D")] * 2


def test_no_signature_is_inspected_while_passes_run(monkeypatch):
    passes.register_fusion_pass(name="P", stage=STAGE)(swap())

    @passes.register_decompose_pass(name="D", stage=STAGE, op_types=["demo::c"])
    class Decompose(passes.DecomposePass):
        def replacement(self, node, context):
            return built()

    def refuse(*arguments, **keywords):
        raise AssertionError("a signature was inspected at run time")

    monkeypatch.setattr(inspect, "signature", refuse)
    graph = chain("a", "c")
    assert run(graph).matches == {"D": 1, "P": 1}


def test_captures_come_in_order_inputs_first_then_outputs_as_returned():
    seen = []

    class Two(passes.PatternFusionPass):
        @passes.pattern
        def two(self, inputs):
            op = inputs[0].builder.op
            first = op("demo::a", inputs[0])
            return op("demo::c", first), first

        def meet_requirements(self, match_result):
            seen.extend(match_result.get_captured_tensor(index).node.op_type for index in range(3))
            return False

    run_one(Two, chain("a", "c"))
    assert seen == ["ir::input", "demo::c", "demo::a"]


def test_two_pattern_methods_are_two_patterns():
    class Either(passes.PatternFusionPass):
        @passes.pattern
        def first(self, inputs):
            return inputs[0].builder.op("demo::a", inputs[0])

        @passes.pattern
        def second(self, inputs):
            return inputs[0].builder.op("demo::c", inputs[0])

        def meet_requirements(self, match_result):
            names.append(match_result.get_pattern_graph_name())
            return True

        def replacement(self, inputs):
            return one_op(inputs)

    names = []
    graph = chain("a", "c", "a")
    run_one(Either, graph)
    assert types(graph) == ["b", "b", "b"]
    assert names == ["first", "first", "second"]


def test_pattern_method_that_returns_a_list_of_graphs_is_a_type_error():
    class Several(passes.PatternFusionPass):
        @passes.pattern
        def both(self, inputs):
            return [built(), built()]

    with pytest.raises(passes.PassError, match=r"got a list of Graphs; .* a single pattern only"):
        run_one(Several, chain("a"))


def test_patterns_may_return_several_graphs():
    class Several(passes.PatternFusionPass):
        def patterns(self):
            return [chain("a", graph_name="one"), chain("c", graph_name="other")]

        def replacement(self, inputs):
            return one_op(inputs)

    graph = chain("a", "c")
    assert run_one(Several, graph).matches == 2
    assert types(graph) == ["b", "b"]


def test_matcher_config_is_read_back_and_builds_are_separate():
    builder = passes.PatternMatcherConfigBuilder()
    plain = builder.build()
    assert not plain.is_enable_const_value_match()
    assert not plain.is_enable_ir_attr_match()
    config = builder.enable_const_value_match().enable_ir_attr_match().build()
    assert config.is_enable_const_value_match()
    assert config.is_enable_ir_attr_match()
    assert swap()(config).matcher_config is config
    assert swap()().matcher_config is None
    with pytest.raises(TypeError, match=r"call build\(\) on its builder"):
        swap()(builder)


def power(exponent):
    builder = ir.GraphBuilder("power", compiler.AtenDialect())
    return builder.build_and_reset(builder.op("aten::pow", *builder.create_inputs(1), exponent))


@pytest.mark.parametrize(("compare", "matches"), [(None, 0), (True, 0), (False, 1)])
def test_host_arguments_are_compared_as_the_config_says(compare, matches):
    """The matcher config takes effect."""

    class Square(passes.PatternFusionPass):
        def __init__(self):
            if compare is not None:
                builder = passes.PatternMatcherConfigBuilder()
                super().__init__((builder.enable_ir_attr_match() if compare else builder).build())

        def patterns(self):
            return power(2)

        def replacement(self, inputs):
            return inputs[0].builder.op("aten::neg", inputs[0])

    assert run_one(Square, power(3)).matches == matches
