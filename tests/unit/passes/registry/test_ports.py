"""What passes of GE, and plugins in several files, count on."""

import logging
import os
import sys

import pytest
import torch
from tests.unit.passes.support import STAGE
from torch.fx.experimental.proxy_tensor import make_fx

from bringup import compiler, ir, passes
from bringup.errors import PassError, SchemaError
from bringup.passes import bootstrap
from bringup.passes.registry.loader import GE_ENTRY_POINT_GROUP

X = torch.randn(2, 3)

PASS = """
from bringup import passes
{imports}

@passes.register_custom_pass(name="{name}", stage=passes.PassStage.AFTER_INFER_SHAPE)
def run(graph, context):
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BRINGUP_PASS_PATH", str(tmp_path))
    yield tmp_path
    passes.unload_pass_plugins()


def write(folder, file, name, imports=""):
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(PASS.format(name=name, imports=imports))


def names():
    return sorted(item.pass_name for item in passes.get_registered_passes())


# Plugins


def test_plugin_imports_what_lies_beside_it_and_forgets_it_when_it_is_unloaded(folder):
    path = list(sys.path)
    (folder / "_helper_of_port.py").write_text("VALUE = 7\n")
    write(folder, "one.py", "One", "from _helper_of_port import VALUE\nassert VALUE == 7")
    report = passes.load_pass_plugins()
    assert (names(), report.errors) == (["One"], [])
    assert "_helper_of_port" in sys.modules
    assert sys.path == path
    passes.unload_pass_plugins()
    assert "_helper_of_port" not in sys.modules


def test_helpers_of_the_same_name_in_two_folders_are_two_modules(tmp_path, monkeypatch):
    for number, place in enumerate(("a", "b")):
        write(
            tmp_path / place,
            f"plugin_{place}.py",
            f"Of{place}",
            f"import _common_of_port\nassert _common_of_port.NUMBER == {number}",
        )
        (tmp_path / place / "_common_of_port.py").write_text(f"NUMBER = {number}\n")
    monkeypatch.setenv(
        "BRINGUP_PASS_PATH", os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")])
    )
    assert passes.load_pass_plugins().errors == []
    assert names() == ["Ofa", "Ofb"]
    passes.unload_pass_plugins()
    assert "_common_of_port" not in sys.modules


def test_helpers_of_a_plugin_that_fails_are_forgotten(folder):
    (folder / "_helper_of_port.py").write_text("VALUE = 7\n")
    write(folder, "one.py", "One", "import _helper_of_port\n1 / 0")
    assert len(passes.load_pass_plugins().errors) == 1
    assert "_helper_of_port" not in sys.modules


def test_plugins_are_loaded_again_after_all_passes_were_cleared(folder):
    write(folder, "one.py", "One")
    passes.load_pass_plugins()
    passes.clear_registered_passes()
    assert names() == []
    passes.load_pass_plugins()
    assert names() == ["One"]


def test_entry_points_of_ge_are_plugins(tmp_path, monkeypatch):
    package = tmp_path / "ported_passes"
    write(package, "__init__.py", "FromGe")
    metadata = tmp_path / "ported_passes-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ported-passes\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{GE_ENTRY_POINT_GROUP}]\nall = ported_passes\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert passes.load_pass_plugins().errors == []
        assert names() == ["FromGe"]
    finally:
        passes.unload_pass_plugins()


def test_bootstrap_has_the_names_of_ge(folder):
    write(folder, "one.py", "One")
    bootstrap.load_pass_plugins()
    assert bootstrap.ENV_PY_PASS_PATH == "ASCEND_GE_PY_PASS_PATH"
    (found,) = bootstrap.get_registered_passes()
    assert (found["pass_name"], found["kind"]) == ("One", "legacy_custom")
    assert passes.get_registered_passes()[0].pass_kind == "legacy_custom"


# Patterns


def relu_exp(inputs):
    return inputs[0].builder.op("aten::exp", inputs[0].builder.op("aten::relu", inputs[0]))


class Base(passes.PatternFusionPass):
    @passes.pattern
    def chain(self, inputs):
        return relu_exp(inputs)

    @passes.pattern
    def single(self, inputs):
        return inputs[0].builder.op("aten::tanh", inputs[0])

    def replacement(self, inputs):
        return inputs[0].builder.op("aten::neg", inputs[0])


def matches(cls, function=lambda x: torch.exp(torch.relu(x)) + torch.tanh(x) + torch.sin(x)):
    passes.register_fusion_pass(name="P", stage=STAGE)(cls)
    return compiler.apply_passes(make_fx(function)(X))["P"].matches


def test_patterns_are_inherited():
    class Inherits(Base):
        pass

    assert matches(Inherits) == 2


def test_inherited_patterns_come_first_and_own_ones_are_added():
    class Adds(Base):
        @passes.pattern
        def other(self, inputs):
            return inputs[0].builder.op("aten::sin", inputs[0])

    assert matches(Adds) == 3


def test_method_that_takes_the_place_of_a_pattern_is_one_only_if_marked():
    class Without(Base):
        def single(self, inputs):
            return None

    assert matches(Without) == 1


def test_pattern_methods_and_patterns_are_not_mixed_over_classes_either():
    with pytest.raises(TypeError, match=r"has @pattern methods, its own or inherited \(chain"):

        class Mixed(Base):
            def patterns(self):
                return []


def test_capture_tensor_is_a_function_too():
    builder = ir.GraphBuilder("g", ir.aten_schemas())
    x = builder.create_input()
    pattern = passes.create_pattern(builder.build_and_reset(builder.aten.relu(x)))
    assert passes.capture_tensor(pattern, x) is pattern
    assert len(pattern.get_captured_tensors()) == 1


# What is said


def test_events_tell_pass_graph_and_captures():
    seen = []
    with passes.subscribe(seen.append):
        matches(Base)
        compiler.apply_passes(make_fx(lambda x: torch.tanh(x))(X))
    matched = [event for event in seen if event.kind is passes.EventKind.MATCHED]
    assert [event.details["captures"] for event in matched][:2] == [["x_1", "exp"], ["x_1", "tanh"]]
    assert all(event.descriptor_key.endswith(":Base:P") for event in seen)
    assert len({event.graph_id for event in seen}) == 2
    assert {"descriptor_key", "graph_id", "captures"} <= matched[0].as_dict().keys()


def test_pass_of_which_every_match_fails_is_warned_about(caplog):
    class Fails(Base):
        def replacement(self, inputs):
            raise RuntimeError("broken")

    passes.register_fusion_pass(name="P", stage=STAGE, on_error="skip")(Fails)
    with caplog.at_level(logging.WARNING, logger="bringup.passes"):
        compiler.apply_passes(make_fx(lambda x: torch.tanh(x))(X))
    assert "pass 'P' failed at 1 matches, which were left alone" in caplog.text
    assert "broken" in caplog.text


def test_pass_that_runs_itself_is_refused_at_once():
    @passes.register_custom_pass(name="P", stage=STAGE)
    def again(graph, context):
        compiler.apply_passes(make_fx(torch.tanh)(X))

    with pytest.raises(PassError, match=r"a hook runs passes .* while \['P'\] run, and they are"):
        compiler.apply_passes(make_fx(torch.tanh)(X))


def test_pass_may_run_other_passes():
    inner = []

    @passes.register_custom_pass(name="Inner", stage=STAGE)
    def run_inner(graph, context):
        inner.append(graph.name)

    @passes.register_custom_pass(name="P", stage=STAGE)
    def outer(graph, context):
        compiler.apply_passes(make_fx(torch.tanh)(X), ["Inner"])

    compiler.apply_passes(make_fx(torch.tanh)(X), ["P"])
    assert len(inner) == 1


def test_near_miss_tells_that_the_pass_itself_took_what_it_looks_for():
    class Both(passes.PatternFusionPass):
        @passes.pattern
        def one(self, inputs):
            return inputs[0].builder.op("aten::tanh", inputs[0])

        @passes.pattern
        def other(self, inputs):
            op = inputs[0].builder.op
            return op("aten::tanh", op("aten::exp", inputs[0]))

        def replacement(self, inputs):
            return inputs[0].builder.op("aten::neg", inputs[0])

    passes.register_fusion_pass(name="P", stage=STAGE)(Both)
    result = compiler.apply_passes(make_fx(torch.tanh)(X))["P"]
    reason = "the graph has no aten::tanh, after this pass had rewritten 1"
    assert reason in [miss.reason for miss in result.near_misses]


@pytest.mark.parametrize("dialect", [None, ir.aten_schemas()])
def test_call_that_no_overload_takes_is_shown_with_its_keywords(dialect):
    builder = ir.GraphBuilder("g", dialect or compiler.AtenDialect())
    x = builder.create_input()
    with pytest.raises(SchemaError, match="foo"):
        builder.op("aten::relu", x, foo=1)
    with pytest.raises(SchemaError, match=r"takes \(%input_0, foo=1\)"):
        builder.op("aten::add", x, foo=1)


def test_shapes_cannot_be_inferred_from_schemas_alone():
    @passes.register_fusion_pass(name="P", stage=STAGE)
    class P(passes.PatternFusionPass):
        @passes.pattern
        def one(self, inputs):
            return inputs[0].builder.op("aten::tanh", inputs[0])

        def replacement(self, match_result):
            builder = ir.GraphBuilder()
            graph = builder.build_and_reset(builder.aten.neg(builder.create_input(shape=(9, 9))))
            passes.infer_shape(graph, match_result)
            return graph

    builder = ir.GraphBuilder("g", ir.aten_schemas())
    graph = builder.build_and_reset(builder.aten.tanh(builder.create_input(shape=(2, 3))))
    with pytest.raises(PassError, match='"ATen\'s schemas" knows none'):
        passes.run_passes(graph, passes.select_passes(["P"]))


def test_constant_whose_file_is_gone_does_not_stop_a_rewrite_that_needs_its_shape(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    from bringup.compiler import onnx as bringup_onnx

    weight = numpy_helper.from_array(X.numpy(), "w")
    shape = [2, 3]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [weight],
    )
    onnx.save(
        helper.make_model(graph),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    (tmp_path / "w.bin").unlink()

    @passes.register_fusion_pass(name="P", stage=STAGE)
    class P(passes.PatternFusionPass):
        @passes.pattern
        def chain(self, inputs):
            op = inputs[0].builder.op
            return op("onnx::Tanh", op("onnx::Add", inputs[0], inputs[1].where(shape=(2, 3))))

        def replacement(self, inputs):
            op = inputs[0].builder.op
            return op("onnx::Neg", op("onnx::Sub", inputs[0], inputs[1]))

    model = bringup_onnx.load(tmp_path / "m.onnx")
    assert compiler.apply_passes(model)["P"].matches == 1


def test_option_path_takes_several_places_at_once(tmp_path):
    from bringup.cli._passes_command import places_of

    assert places_of([f"a{os.pathsep}b", "c"]) == ["a", "b", "c"]
    assert places_of(None) == []
