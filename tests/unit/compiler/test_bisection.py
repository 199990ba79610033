"""`compiler.bisect`: the pass, or the part of a compile, that makes a result differ."""

import pytest
import torch
from tests.unit.passes.support import STAGE, register_swap
from torch import nn

from bringup import compiler, ir, kernels, passes
from bringup._differences import leaves
from bringup.compiler import captured_calls
from bringup.compiler.bisection import PASSES, Attempt, difference, search
from bringup.errors import BringupError
from bringup.passes import Rewrite


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x))).relu().exp()


X = torch.linspace(-2, 2, 64).reshape(4, 16)


def register_decompose(name, op_type, new, **settings):
    """A pass that puts `new(op, x)` in the place of a unary operator."""

    @passes.register_decompose_pass(name=name, stage=STAGE, op_types=[op_type], **settings)
    class Pass(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            return new(builder.op, builder.create_input())


def spoil_captures(monkeypatch, change):
    """Let `change` make something else of the results of every replay."""
    capture = captured_calls.captured

    def spoilt(*given, **options):
        replay = capture(*given, **options)

        def run(arguments):
            return change(replay(arguments))

        run._boxed_call = True
        return run

    monkeypatch.setattr(captured_calls, "captured", spoilt)


def right_and_wrong():
    register_decompose("Right", "aten::relu", lambda op, x: op("aten::clamp_min", x, 0))
    register_decompose("Wrong", "aten::exp", lambda op, x: op("aten::expm1", x), priority=-1)


def test_right_model_has_no_culprit():
    register_decompose("Right", "aten::relu", lambda op, x: op("aten::clamp_min", x, 0))
    found = compiler.bisect(Model().eval(), X, mode="serve")
    assert (found.culprits, found.rewrites, found.runs) == ((), 1, 1)


def test_wrong_pass_is_found_among_right_ones_with_its_nodes():
    right_and_wrong()
    steps = []
    found = compiler.bisect(Model().eval(), X, on_step=steps.append)
    (culprit,) = found.culprits
    assert (culprit.part, culprit.pass_name, culprit.nodes) == ("pass", "Wrong", ("exp",))
    assert (culprit.match, culprit.rewrite, found.rewrites) == (1, 2, 2)
    assert "Greatest absolute difference" in culprit.reason
    assert "BRINGUP_PASS_SWITCH=Wrong:off" in culprit.switch
    assert steps[-1] == "freezing, passes without Wrong: right"


def test_first_wrong_match_is_counted_within_its_pass():
    """Of four matches of one pass the third changes the result: exp(-inf) where it was exp(x)."""
    matches = []

    @passes.register_fusion_pass(name="Scales", stage=STAGE)
    class Scales(passes.PatternFusionPass):
        @passes.pattern
        def scaled(self, inputs):
            return inputs[0].builder.op("aten::mul.Tensor", inputs[0], passes.any_value("by"))

        def replacement(self, inputs, match_result):
            matches.append(match_result["by"])
            by = match_result["by"] if match_result["by"] != 5.0 else 6.0
            return inputs[0].builder.op("aten::mul.Scalar", inputs[0], by)

    register_decompose(
        "Other",
        "aten::exp",
        lambda op, x: op("aten::exp2", op("aten::mul", x, 1.4426950408889634)),
        priority=1,
    )
    found = compiler.bisect(lambda x: (x * 2.0).exp() + x * 3.0 + x * 5.0 + x * 7.0, X)
    (culprit,) = found.culprits
    assert (culprit.pass_name, culprit.match, culprit.rewrite) == ("Scales", 4, 5)


def test_graph_pass_tells_what_it_replaced():
    @passes.register_custom_pass(name="Swaps", stage=STAGE)
    def swap(graph, context):
        for node in graph.find("aten::exp"):
            new = graph.inserting_before(node).op("aten::expm1", node.inputs[0])
            graph.replace_all_uses(node.output, new)
            passes.report_fuse([node], [new.value.node], context)

    (culprit,) = compiler.bisect(Model().eval(), X).culprits
    assert (culprit.pass_name, culprit.nodes) == ("Swaps", ("exp",))


def test_several_culprits_are_found_in_the_order_of_the_compile(monkeypatch):
    right_and_wrong()
    register_decompose("WrongToo", "aten::tanh", lambda op, x: op("aten::sigmoid", x), priority=-2)
    spoil_captures(monkeypatch, lambda results: tuple(2 * item for item in results))
    found = compiler.bisect(Model().eval(), X, mode="serve")
    assert [culprit.pass_name or culprit.part for culprit in found.culprits] == [
        "Wrong",
        "WrongToo",
        "capture",
    ]


def test_wrong_capture_is_found_at_inputs_other_than_those_of_the_capture(monkeypatch):
    """The first result is right; a replay gives it again whatever it is called with."""
    first = []

    def repeated(results):
        first.append(results)
        return first[0]

    spoil_captures(monkeypatch, repeated)
    (culprit,) = compiler.bisect(Model().eval(), X, mode="serve").culprits
    assert culprit.part == "capture"
    assert "BRINGUP_CAPTURE=0" in culprit.switch


def test_wrong_narrow_weights_are_found(monkeypatch):
    monkeypatch.setenv("BRINGUP_PASS_LIBRARY", "1")
    kernels.load()
    pack = kernels.pack_weight
    model = nn.Linear(16, 32).eval()
    x = torch.randn(4, 16)
    assert not compiler.bisect(model, x, mode="max").culprits
    monkeypatch.setattr(kernels, "pack_weight", lambda *given: 1.2 * pack(*given))
    # a wrong length, which has the cosine of the right one
    (culprit,) = compiler.bisect(model, x, mode="max").culprits
    assert (culprit.part, culprit.switch) == ("narrow weights", 'options={"weights": "float32"}')


def test_wrong_folding_is_found_as_freezing(monkeypatch):
    from bringup.compiler import inference_graph

    freeze = inference_graph.freeze_weights

    def scaled(graph, weights):
        names = freeze(graph, weights)
        for name in names:
            getattr(graph, name).data = getattr(graph, name) * 1.5
        return names

    monkeypatch.setattr(inference_graph, "freeze_weights", scaled)
    (culprit,) = compiler.bisect(Model().eval(), X).culprits
    assert (culprit.part, culprit.switch) == (
        "freezing",
        'options={"freeze": False} or BRINGUP_FREEZE=0',
    )


def test_model_that_differs_without_any_part_is_torchs():
    def tells(x):
        return x + (1 if torch.compiler.is_compiling() else 0)

    found = compiler.bisect(tells, X)
    (culprit,) = found.culprits
    assert culprit.part == "torch"
    assert str(culprit).startswith("torch: the result differs with every part switched off")


def test_pass_that_fails_is_found_by_what_it_raises():
    @passes.register_custom_pass(name="Fails", stage=STAGE)
    def fail(graph, context):
        raise OSError("no luck")

    (culprit,) = compiler.bisect(Model().eval(), X).culprits
    assert (culprit.part, culprit.pass_name, culprit.match) == ("pass", "Fails", 0)
    assert str(culprit).startswith(
        "pass Fails fails: PassError: pass 'Fails' failed: OSError: no luck"
    )


def test_options_that_are_off_are_never_switched_on():
    right_and_wrong()
    model = Model().eval()
    assert not compiler.bisect(model, X, options={"passes": []}).culprits
    assert not compiler.bisect(model, X, options={"pass_switch": {"Wrong": False}}).culprits


def test_tolerance_decides():
    register_decompose(
        "Nearly", "aten::relu", lambda op, x: op("aten::add", op("aten::relu", x), 1e-3)
    )
    model = Model().eval()
    assert not compiler.bisect(model, X, atol=0.1, rtol=0.0).culprits
    assert compiler.bisect(model, X).culprits
    with pytest.raises(ValueError, match="give both atol and rtol, or neither"):
        compiler.bisect(model, X, atol=1.0)


def test_unknown_option_is_refused_at_once():
    with pytest.raises(BringupError, match="has no option 'captures'"):
        compiler.bisect(Model().eval(), X, options={"captures": True})


def test_state_that_a_call_changes_is_no_difference():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x * self.count + torch.rand(())

    found = compiler.bisect(Counts().eval(), {"x": X})
    assert not found.culprits


def test_inputs_that_are_no_inputs_when_flipped_are_given_as_they_are():
    def sorted_only(x):
        if not torch.compiler.is_compiling() and bool((x.diff() < 0).any()):
            raise ValueError("must rise")
        return x.exp()

    register_swap("aten::exp", "aten::expm1")
    (culprit,) = compiler.bisect(sorted_only, torch.arange(4.0)).culprits
    assert culprit.pass_name == "P"


def test_dynamic_shapes_are_bisected_too():
    right_and_wrong()
    (culprit,) = compiler.bisect(Model().eval(), X, dynamic=True).culprits
    assert culprit.pass_name == "Wrong"


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ((X, 1), ""),
        ((X + 1, 1), r"the result\[0\] differs: Tensor-likes are not close"),
        ((X, 2), r"the result\[1\] differs: Scalars are not equal"),
        ((X, 1, 1), "the result differs in structure: 3 values where eager has 2"),
        (
            (X.double(), 1),
            r"the result differs in kind at \[0\]: float64.* eager has float32",
        ),
        ((None, 1), r"the result differs in kind at \[0\]: NoneType where eager has float32"),
    ],
)
def test_difference_names_the_value(ours, words):
    found = difference(leaves(ours), leaves((X, 1)), None)
    if not words:
        assert found == ""
    else:
        import re

        assert re.search(words, found), found


class Scripted:
    """Runs whose results are told by a set of culprits: numbers of rewrites, and parts."""

    parts = ("freezing", PASSES, "capture")

    def __init__(self, wrong, passes_of):
        self._wrong, self._names, self.attempts = wrong, passes_of, 0

    def attempt(self, parts, most, without):
        self.attempts += 1
        kept = [name for name in self._names if name not in set(without)] if PASSES in parts else []
        done = kept if most is None else kept[:most]
        differs = self._wrong & {*parts, *done}
        return Attempt("differs" if differs else "", [Rewrite(name, "g", ("n",)) for name in done])


@pytest.mark.parametrize("place", range(17))
def test_search_halves(place):
    names = [f"P{number}" for number in range(17)]
    runs = Scripted({names[place]}, names)
    found = search(runs)
    (culprit,) = found.culprits
    assert (culprit.pass_name, culprit.rewrite, culprit.match) == (names[place], place + 1, 1)
    assert found.runs == runs.attempts <= 10


def test_search_goes_on_until_nothing_differs():
    runs = Scripted({"capture", "freezing", "B", "D"}, ["A", "B", "B", "C", "D"])
    found = search(runs)
    assert [item.pass_name or item.part for item in found.culprits] == [
        "freezing",
        "B",
        "D",
        "capture",
    ]
    assert (found.culprits[1].match, found.culprits[2].rewrite, found.rewrites) == (1, 3, 5)
