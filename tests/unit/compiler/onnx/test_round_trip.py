"""ONNX files in and out: what no pass touched comes back as the file said it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.unit.compiler.onnx.node_tests import node_tests
from tests.unit.compiler.onnx.support import model_of

from bringup import ir
from bringup.compiler import onnx as bringup_onnx
from bringup.errors import ModelError

SHIPPED = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("*.onnx"))


def test_the_wheel_of_onnx_brings_models() -> None:
    assert len(SHIPPED) > 100


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_model_that_onnx_ships_survives(path, tmp_path):
    proto = onnx.load(path)
    model = bringup_onnx.load(path)
    assert model.to_proto() == proto
    assert onnx.load(model.save(tmp_path / "copy.onnx")) == proto


@pytest.mark.slow
def test_every_node_test_of_onnx_survives_and_its_shapes_are_inferred(kernel_cache):
    """Over 1,800 models: every operator, attributes of every type, functions, control flow."""
    cases = node_tests(kernel_cache)
    assert len(cases) > 1000
    for name, (data, _) in cases.items():
        proto = onnx.ModelProto.FromString(data)
        model = bringup_onnx.from_proto(proto)
        assert model.to_proto() == proto, name
        stated = [value.meta for value in model.graph.outputs]
        ir.infer_shapes(model.graph)
        for before, value in zip(stated, model.graph.outputs, strict=True):
            assert model.graph.dialect.difference(before, value.meta) is None, name


def rich_model():
    """One model with everything that passes do not look at."""
    then_branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["r"])],
        "then",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["N"])],
        doc_string="taken",
    )
    else_branch = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["r2"], doc_string="a node")],
        "else",
        [],
        [helper.make_tensor_value_info("r2", TensorProto.FLOAT, ["N"])],
    )
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sparse", TensorProto.FLOAT, [1], [3.0]),
        helper.make_tensor("places", TensorProto.INT64, [1], [2]),
        [4],
    )
    custom = helper.make_node(
        "Custom",
        ["x", "", "table"],
        ["c", "", "d"],
        domain="com.example",
        number=3,
        share=0.1,
        text="plain",
        data=b"\xff\xfe",
        numbers=[1, 2],
        shares=[0.5, 1.5],
        texts=["a", "b"],
        tensor=numpy_helper.from_array(np.arange(3, dtype=np.int16), "t"),
        tensors=[numpy_helper.from_array(np.zeros(1, np.float32))],
        body=then_branch,
        sparse=sparse,
        kind=helper.make_tensor_type_proto(TensorProto.FLOAT, [1]),
    )
    custom.metadata_props.add(key="by", value="hand")
    nodes = [
        custom,
        helper.make_node("If", ["flag"], ["y"], then_branch=then_branch, else_branch=else_branch),
        helper.make_node("Clip", ["y", "", "one"], ["z"], name="clip"),
        helper.make_node("Constant", [], ["unread"], value_floats=[1.0, 2.0]),
        helper.make_node("Dropout", ["z", "", ""], ["w", ""]),
    ]
    graph = helper.make_graph(
        nodes,
        "rich",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"], doc_string="an input"),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
            helper.make_tensor_value_info("table", TensorProto.FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("w", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"]),
            helper.make_tensor_value_info("table", TensorProto.FLOAT, [2]),
        ],
        initializer=[
            numpy_helper.from_array(np.zeros(2, np.float32), "table"),  # an input's default
            numpy_helper.from_array(np.float32(1), "one"),
            helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]),
        ],
        doc_string="a graph",
        value_info=[helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])],
        sparse_initializer=[sparse],
    )
    graph.metadata_props.add(key="graph", value="data")
    note = graph.quantization_annotation.add(tensor_name="y")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="one")
    function = helper.make_function(
        "com.example",
        "Scale",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["k"]),
            helper.make_node("Mul", ["a", "k"], ["b"]),
        ],
        [helper.make_opsetid("", 17)],
        ["factor"],
    )
    reference = function.node[0].attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT)
    reference.ref_attr_name = "factor"
    proto = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.example", 3)],
        functions=[function],
        producer_name="a test",
        doc_string="a model",
        ir_version=10,
    )
    proto.metadata_props.add(key="model", value="data")
    return proto


def test_everything_that_passes_do_not_look_at_survives():
    proto = rich_model()
    assert bringup_onnx.from_proto(proto).to_proto() == proto


def test_the_graph_of_a_file_is_read_as_passes_see_it():
    graph = bringup_onnx.from_proto(rich_model()).graph
    (custom,) = graph.find("com.example::Custom")
    inputs, attributes, captures = custom.arguments
    assert [None if value is None else value.name for value in inputs] == ["x", None, "table"]
    assert attributes["share"] == float(np.float32(0.1))
    assert attributes["text"] == "plain"
    assert attributes["data"] == b"\xff\xfe"
    assert attributes["numbers"] == (1, 2)
    assert [value.name for value in captures] == ["x"]
    (clip,) = graph.find("onnx::Clip")
    assert clip.name == "clip"
    assert clip.argument("min") is None
    assert clip.argument("max").node.op_type == ir.CONSTANT
    assert [value.name for value in graph.inputs] == ["x", "flag", "table"]
    assert str(graph.inputs[0].desc) == "float32[N]"
    (branch,) = graph.find("onnx::If")
    bodies = [body for body in graph.get_all_subgraphs() if body.get_parent_node() is branch]
    assert {body.name for body in bodies} == {"rich/y.then_branch", "rich/y.else_branch"}


def test_an_omitted_attribute_and_its_default_are_the_same_argument():
    proto = model_of("g (float[2,2] x) => (float[2,2] y) { y = Gemm<alpha = 1.0>(x, x) }")
    other = model_of("g (float[2,2] x) => (float[2,2] y) { y = Gemm<transA = 0>(x, x) }")
    found = [bringup_onnx.from_proto(item).graph.find("onnx::Gemm")[0] for item in (proto, other)]
    assert dict(found[0].attributes) == dict(found[1].attributes)
    assert bringup_onnx.from_proto(proto).to_proto() == proto
    assert bringup_onnx.from_proto(other).to_proto() == other


def test_constant_nodes_of_every_form_hold_their_data():
    proto = model_of(
        """g () => (float a, int64[2] b) {
            a = Constant<value_float = 0.5>()
            b = Constant<value_ints = [3, 4]>()
            c = Constant<value = float[1] {2}>()
        }"""
    )
    graph = bringup_onnx.from_proto(proto).graph
    held = [node.payload.numpy().tolist() for node in graph.find(ir.CONSTANT)]
    assert held == [0.5, [3, 4], [2.0]]
    assert bringup_onnx.from_proto(proto).to_proto() == proto


def test_a_sparse_initializer_has_its_dense_elements():
    (sparse,) = [
        node.payload
        for node in bringup_onnx.from_proto(rich_model()).graph.find(ir.CONSTANT)
        if node.payload.is_sparse
    ]
    assert sparse.numpy().tolist() == [0.0, 0.0, 3.0, 0.0]


# Files


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.onnx"):
        bringup_onnx.load(tmp_path / "none.onnx")


@pytest.mark.parametrize("data", [b"", b"not a model at all", b"\x00\xff" * 400, b"\x08\x0a"])
def test_a_file_that_is_no_model_is_refused_by_name(tmp_path, data):
    (tmp_path / "bad.onnx").write_bytes(data)
    with pytest.raises(ModelError, match=r"bad\.onnx.*no ONNX model"):
        bringup_onnx.load(tmp_path / "bad.onnx")


@pytest.mark.parametrize("suffix", ["json", "textproto", "onnxtxt"])
@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
def test_models_as_text_survive_and_broken_ones_are_refused(tmp_path, suffix):
    proto = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    path = bringup_onnx.from_proto(proto).save(tmp_path / f"model.{suffix}")
    assert bringup_onnx.load(path).to_proto() == proto
    path.write_text("{ nonsense")
    with pytest.raises(ModelError, match=rf"model\.{suffix} is no ONNX model"):
        bringup_onnx.load(path)


def test_a_truncated_file_is_refused(tmp_path):
    data = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }").SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(data[:-7])
    with pytest.raises(ModelError, match=r"cut\.onnx"):
        bringup_onnx.load(tmp_path / "cut.onnx")


def broken(change):
    proto = model_of("g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }")
    change(proto.graph)
    return proto


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: g.node[1].input.__setitem__(0, "lost"), r"'y' \(Neg\).*reads 'lost'"),
        (lambda g: g.node[1].output.__setitem__(0, "t"), r"defines 't' twice"),
        (lambda g: g.output[0].__setattr__("name", "lost"), r"output 'lost'.*reads 'lost'"),
        (lambda g: g.node[0].input.append("x"), r"Relu takes at most 1 inputs, got 2"),
        (lambda g: g.node[0].input.pop(), r"Relu needs an argument for 'X'"),
        (
            lambda g: g.node[0].attribute.append(helper.make_attribute("alpha", 1.0)),
            r"'t' \(Relu\).*no parameter 'alpha'",
        ),
    ],
)
def test_a_broken_model_is_refused_with_the_node_that_is_wrong(change, words):
    with pytest.raises(ModelError, match=words):
        bringup_onnx.from_proto(broken(change))


def test_an_attribute_of_another_type_is_refused():
    proto = model_of("g (float[2,2] x) => (float[2,2] y) { y = Transpose<perm = [1, 0]>(x) }")
    del proto.graph.node[0].attribute[:]
    proto.graph.node[0].attribute.append(helper.make_attribute("perm", 1))
    with pytest.raises(ModelError, match=r"'perm' must be of type INTS, got INT"):
        bringup_onnx.from_proto(proto)


def test_a_domain_that_is_imported_twice_is_refused():
    proto = model_of("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.opset_import.add(domain="", version=18)
    with pytest.raises(ModelError, match=r"imported twice: in version 17 and in version 18"):
        bringup_onnx.from_proto(proto)


# External data


def external_model(folder):
    weight = np.arange(600, dtype=np.float32).reshape(20, 30)
    proto = model_of("g (float[2,20] x, float[20,30] w) => (float[2,30] y) { y = MatMul(x, w) }")
    del proto.graph.input[1]
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save_model(
        proto,
        folder / "model.onnx",
        save_as_external_data=True,
        location="w.data",
        size_threshold=0,
    )
    return weight


def test_external_data_are_read_when_somebody_asks(tmp_path):
    weight = external_model(tmp_path)
    model = bringup_onnx.load(tmp_path / "model.onnx")
    (constant,) = model.graph.find(ir.CONSTANT)
    assert constant.payload.is_external
    assert str(constant.output.desc) == "float32[20, 30]"
    np.testing.assert_array_equal(constant.payload.numpy(), weight)
    saved = model.save(tmp_path / "again.onnx")
    assert onnx.load(saved, load_external_data=False) == onnx.load(
        tmp_path / "model.onnx", load_external_data=False
    )
    (tmp_path / "w.data").unlink()
    with pytest.raises(ModelError, match=r"elements of 'w' cannot be read from"):
        constant.payload.numpy()


def test_external_data_follow_a_model_into_another_folder(tmp_path):
    weight = external_model(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    saved = bringup_onnx.load(tmp_path / "model.onnx").save(other / "moved.onnx")
    assert sorted(path.name for path in other.iterdir()) == ["moved.onnx", "moved.onnx.data"]
    loaded = onnx.load(saved)
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.initializer[0]), weight)


def test_external_data_of_a_proto_need_their_folder(tmp_path):
    weight = external_model(tmp_path)
    proto = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    (lost,) = bringup_onnx.from_proto(proto).graph.find(ir.CONSTANT)
    with pytest.raises(ModelError, match=r"'w' lie in another file.*folder="):
        lost.payload.numpy()
    (found,) = bringup_onnx.from_proto(proto, folder=tmp_path).graph.find(ir.CONSTANT)
    np.testing.assert_array_equal(found.payload.numpy(), weight)


def test_a_failed_save_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    model = bringup_onnx.from_proto(rich_model())
    path.write_bytes(b"before")

    def fail(*_args, **_kwargs):
        raise OSError("no room")

    monkeypatch.setattr(onnx, "save_model", fail)
    with pytest.raises(OSError, match="no room"):
        model.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"before"


def test_the_package_onnx_is_asked_for_by_its_extra():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from bringup import compiler\n"
        "try:\n    compiler.onnx\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'bringup[onnx]'" in done.stdout
