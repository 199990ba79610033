"""`@pattern` expressions: evaluated once for a class, unless they use the instance."""

import gc
import threading
import weakref

import pytest
from tests.unit.passes.plain import PlainDialect
from tests.unit.passes.small import chain, run, run_one, swap, types

from bringup import ir, passes
from bringup.passes.definition.expressions import pattern_of, uses_instance


class Detachable(PlainDialect):
    """A dialect of which patterns may be kept."""

    def detached(self):
        return Detachable()


def counted(**members):
    """A pass class whose expression notes each of its evaluations in `evaluated`."""
    evaluated = []

    def found(self, inputs):
        evaluated.append(ir.current_dialect())
        return inputs[0].builder.op("demo::a", inputs[0])

    return swap(found=passes.pattern(found), **members), evaluated


def test_expression_is_evaluated_once_for_all_graphs_and_matches_in_each():
    cls, evaluated = counted()
    assert run_one(cls, chain("a", "a")).matches == 2
    graph = chain("c", "a")
    assert run(graph)["P"].matches == 1
    assert types(graph) == ["c", "b"]
    assert len(evaluated) == 1


def test_expression_that_uses_its_instance_is_evaluated_for_every_graph():
    """One session has one instance, and what the expression leaves on it is there for the
    hooks of this session.
    """

    def found(self, inputs):
        self.found_value = inputs[0].builder.op("demo::a", inputs[0])
        return self.found_value

    def meet_requirements(self, match):
        return match.value(self.found_value).node.op_type == "demo::a"

    cls = swap(found=passes.pattern(found), meet_requirements=meet_requirements)
    assert run_one(cls, chain("a")).matches == 1
    assert run(chain("a", "a"))["P"].matches == 2


def in_a_closure(self, inputs):
    return (lambda: self)()


def ignoring(self, inputs):
    return inputs[0]


class Parent:
    def stated(self, inputs):
        return super().__repr__()


@pytest.mark.parametrize(
    ("method", "uses"),
    [
        (ignoring, False),
        (in_a_closure, True),
        (Parent.stated, True),
        (lambda self, inputs: self.helper(inputs), True),
        (lambda *everything: everything, True),
        (staticmethod(ignoring), True),
    ],
)
def test_use_of_the_instance_is_seen(method, uses):
    assert uses_instance(method) is uses


def test_subclass_states_its_own_pattern():
    first, _ = counted()

    class Second(first):
        @passes.pattern
        def found(self, inputs):
            return inputs[0].builder.op("demo::c", inputs[0])

    assert run_one(first, chain("a", "c")).matches == 1
    passes.clear_registered_passes()
    graph = chain("a", "c")
    assert run_one(Second, graph).matches == 1
    assert types(graph) == ["a", "b"]


def test_pattern_is_kept_only_for_dialects_that_can_be_detached():
    cls, evaluated = counted()
    tied = PlainDialect()
    first = pattern_of(cls(), "found", tied)
    assert first.graph.dialect is tied
    assert pattern_of(cls(), "found", tied) is not first
    assert evaluated == [tied, tied]


def test_kept_pattern_serves_all_dialects_of_its_vocabulary_and_is_tied_to_none():
    cls, evaluated = counted()
    dialects = Detachable(), Detachable()
    kept = {pattern_of(cls(), "found", dialect) for dialect in dialects}
    assert len(kept) == len(evaluated) == 1
    assert kept.pop().graph.dialect not in dialects
    assert pattern_of(cls(), "found", None).graph.dialect is None


def test_instances_with_other_matcher_configs_have_patterns_of_their_own():
    cls, _ = counted()
    loose = passes.PatternMatcherConfigBuilder().build()
    strict = passes.PatternMatcherConfigBuilder().enable_ir_attr_match().build()
    one, other = (pattern_of(cls(config), "found", None) for config in (loose, strict))
    assert (one.attributes, other.attributes) == (False, True)


def test_expression_that_fails_is_evaluated_again():
    cls, evaluated = counted()
    sound, cls.found = cls.found, passes.pattern(lambda self, inputs: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            pattern_of(cls(), "found", None)
    cls.found = sound
    assert pattern_of(cls(), "found", None).nodes[0].op_type == "demo::a"
    assert len(evaluated) == 1


def test_many_threads_share_one_pattern():
    cls, _ = counted()
    passes.register_fusion_pass(name="P", stage=passes.PassStage.AFTER_INFER_SHAPE)(cls)
    together, matches = threading.Barrier(8), []

    def work():
        together.wait()
        matches.extend(run(chain(*"a" * size))["P"].matches for size in range(1, 9))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(matches) == sorted(8 * list(range(1, 9)))
    assert len({id(pattern_of(cls(), "found", None)) for _ in range(3)}) == 1


def test_kept_pattern_does_not_keep_its_class():
    cls, _ = counted()
    run_one(cls, chain("a"))
    passes.clear_registered_passes()
    gone = weakref.ref(cls)
    del cls
    gc.collect()
    assert gone() is None
