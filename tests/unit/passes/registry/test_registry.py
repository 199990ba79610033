"""Registering passes: what is refused, and that the first stays."""

import hashlib
from pathlib import Path

import pytest
from tests.unit.passes.support import STAGE, registered_names

from bringup import passes


class Graph(passes.FusionBasePass):
    def run(self, graph, context):
        return None


class Decompose(passes.DecomposePass):
    pass


class Fusion(passes.PatternFusionPass):
    pass


def test_descriptor_says_what_was_registered():
    passes.register_fusion_pass(name="F", stage=STAGE, priority=3)(Fusion)
    passes.register_decompose_pass(name="D", stage=STAGE, op_types=["aten::gelu"])(Decompose)
    fusion, decompose = passes.get_registered_passes()
    assert (fusion.kind, fusion.stage, fusion.priority) == ("pattern_fusion", STAGE, 3)
    assert fusion.descriptor_key == f"{__name__}:Fusion:F"
    assert (decompose.kind, decompose.op_types) == ("decompose", ("aten::gelu",))
    assert Decompose.op_types == ("aten::gelu",)
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert fusion.source_digest == decompose.source_digest == digest


def test_taken_name_is_refused_and_the_first_stays():
    passes.register_fusion_pass(name="P", stage=STAGE)(Graph)
    with pytest.raises(
        ValueError, match=r"a pass named 'P' is registered already, by .*Graph; it stays"
    ):
        passes.register_fusion_pass(name="P", stage=STAGE)(Fusion)
    assert passes.get_registered_passes()[0].class_qualname == "Graph"


def test_same_class_of_the_same_file_again_changes_nothing():
    passes.register_fusion_pass(name="P", stage=STAGE)(Graph)
    passes.register_fusion_pass(name="P", stage=STAGE)(Graph)
    assert registered_names() == ["P"]


@pytest.mark.parametrize("base", [passes.PatternFusionPass, passes.DecomposePass])
def test_defining_run_in_a_driven_pass_is_a_type_error_at_class_definition(base):
    with pytest.raises(
        TypeError, match=f"must not define run: a {base.__name__} is driven by its hooks"
    ):
        type("Wrong", (base,), {"run": lambda self, graph, context: None})


def test_patterns_method_together_with_pattern_methods_is_a_type_error():
    with pytest.raises(TypeError, match=r"Both defines patterns\(\) and has @pattern methods"):

        class Both(passes.PatternFusionPass):
            def patterns(self):
                return []

            @passes.pattern
            def one(self, inputs):
                return inputs[0]


@pytest.mark.parametrize(
    ("register", "error", "text"),
    [
        (lambda: passes.register_fusion_pass(name="", stage=STAGE), TypeError, "non-empty string"),
        (
            lambda: passes.register_fusion_pass(name="P", stage="Never"),
            ValueError,
            "no stage 'Never'",
        ),
        (
            lambda: passes.register_fusion_pass(name="P", stage=STAGE)(int),
            TypeError,
            "a subclass of passes",
        ),
        (
            lambda: passes.register_fusion_pass(name="P", stage=STAGE)(Decompose),
            TypeError,
            "use register_decompose_pass",
        ),
        (
            lambda: passes.register_decompose_pass(name="P", stage=STAGE, op_types="aten::gelu"),
            TypeError,
            "got the string 'aten::gelu'",
        ),
        (
            lambda: passes.register_decompose_pass(name="P", stage=STAGE, op_types=[]),
            ValueError,
            "op_types is empty",
        ),
        (
            lambda: passes.register_decompose_pass(name="P", stage=STAGE, op_types=[3]),
            TypeError,
            "non-empty strings, got 3",
        ),
        (
            lambda: passes.register_decompose_pass(name="P", stage=STAGE, op_types=["a::b"])(Graph),
            TypeError,
            "a subclass of passes.DecomposePass",
        ),
    ],
)
def test_wrong_registration_is_refused_with_its_reason(register, error, text):
    with pytest.raises(error, match=text):
        register()
    assert registered_names() == []


def test_unregister_forgets_a_pass_and_refuses_an_unknown_one():
    passes.register_fusion_pass(name="P", stage=STAGE)(Graph)
    passes.unregister_pass("P")
    assert registered_names() == []
    with pytest.raises(KeyError, match="no pass named 'P' is registered"):
        passes.unregister_pass("P")


def test_hook_that_is_not_defined_says_so():
    with pytest.raises(NotImplementedError, match=r"defines neither patterns\(\) nor"):
        Fusion().patterns()
    with pytest.raises(NotImplementedError, match=r"Fusion does not define replacement"):
        Fusion().replacement(None)
    with pytest.raises(NotImplementedError, match=r"Decompose does not define replacement"):
        Decompose().replacement(None)
    with pytest.raises(NotImplementedError, match=r"does not define run"):
        passes.FusionBasePass().run(None, None)
