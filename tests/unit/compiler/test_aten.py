"""The ATen dialect: overloads, canonical arguments, facts of operators, equality."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bringup import compiler, ir, passes
from bringup.compiler import aten
from bringup.errors import PassError, PassSkipException, SchemaError

DIALECT = compiler.AtenDialect()


def graph_over(*tensors):
    """A builder whose inputs have the shapes of `tensors`, and those inputs."""
    mode = FakeTensorMode()
    graph = ir.Graph("g", compiler.AtenDialect(mode))
    values = [graph.add_input(meta=mode.from_tensor(tensor)) for tensor in tensors]
    return graph.inserting_before(graph.output_node), values


@pytest.mark.parametrize(
    ("op_type", "arguments", "expected"),
    [
        ("aten::add", (torch.ones(1), 2), "aten::add.Tensor"),
        ("aten::pow", (torch.ones(1), 2), "aten::pow.Tensor_Scalar"),
        ("aten::mean", (torch.ones(1), [-1], True), "aten::mean.dim"),
        ("aten::addmm", (torch.ones(1), torch.ones(1, 1), torch.ones(1, 1)), "aten::addmm"),
        ("aten::gelu", (torch.ones(1),), "aten::gelu"),
        ("aten::add.Scalar", (torch.ones(1), 2), "aten::add.Scalar"),
    ],
)
def test_overload_is_chosen_as_torch_chooses_it(op_type, arguments, expected):
    tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
    builder, values = graph_over(*tensors)
    given = iter(values)
    called = [next(given) if isinstance(item, torch.Tensor) else item for item in arguments]
    assert builder.op(op_type, *called).value.node.op_type == expected


def test_open_arguments_do_not_hinder_the_choice_of_the_overload():
    builder = ir.GraphBuilder(dialect=DIALECT)
    (x,) = builder.create_inputs(1)
    view = builder.op("aten::view", x, passes.any_value("size"))
    mean = builder.op("aten::mean", x, passes.any_value(), True)
    assert (view.value.node.op_type, mean.value.node.op_type) == ("aten::view", "aten::mean.dim")


@pytest.mark.parametrize("name", ["add", "copysign", "eq", "mul", "remainder", "sub"])
def test_a_tensor_beside_an_open_argument_takes_no_overload_on_numbers(name):
    (x,) = ir.GraphBuilder(dialect=DIALECT).create_inputs(1)
    given = x.value, passes.any_value("other")
    operator, _ = DIALECT.bind(f"aten::{name}", given, {})
    shipped, _ = ir.aten_schemas().bind(f"aten::{name}", given, {})
    assert operator.type == shipped.type == f"aten::{name}.Tensor"


def test_arguments_are_brought_into_one_form():
    builder, (x,) = graph_over(torch.ones(2, 3))
    left = builder.op("aten::sum", x, -1, keepdim=True, dtype="float64").value.node
    right = builder.op("aten::sum.dim_IntList", x, [-1], True, dtype=torch.float64).value.node
    assert left.arguments == right.arguments == (x, (-1,), True, torch.float64)
    assert left.attributes == {"dim": (-1,), "keepdim": True, "dtype": torch.float64}
    assert left.argument("self") is x
    with pytest.raises(KeyError, match=r"aten::sum.dim_IntList has no parameter 'dims'; it has"):
        left.argument("dims")


@pytest.mark.parametrize(
    ("op_type", "arguments", "keywords", "text"),
    [
        ("aten::nonsense", (1,), {}, "there is no operator aten::nonsense"),
        ("relu", (1,), {}, "reads namespace::name"),
        ("aten::relu.Nope", (1,), {}, "has no overload 'Nope'; it has"),
        ("aten::add.Tensor", (1, 2, 3), {}, "takes at most 2 positional arguments, got 3"),
        ("aten::add.Tensor", (1,), {}, "needs an argument for 'other'"),
        ("aten::add.Tensor", (1, 2), {"beta": 3}, "has no parameter 'beta'"),
        ("aten::add.Tensor", (1, 2), {"other": 3}, "got 'other' twice"),
        ("aten::add", ("text", 2), {}, "no overload of aten::add takes"),
        ("aten::view", (), {"size": passes.any_value()}, "no overload of aten::view takes 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(op_type, arguments, keywords, text):
    with pytest.raises(SchemaError, match=text):
        DIALECT.bind(op_type, arguments, keywords)


def test_shapes_are_inferred_and_a_wrong_one_is_refused_at_the_call():
    builder, (x, y) = graph_over(torch.ones(2, 3), torch.ones(4, 5))
    assert str(builder.op("aten::t", x).value.desc) == "float32[3, 2]"
    with pytest.raises(PassError, match=r"aten::mm cannot take these arguments: a and b must"):
        builder.op("aten::mm", x, y)


def test_facts_come_from_the_schema():
    view = aten.operator_of(torch.ops.aten.view.default)
    assert (view.pure, view.aliases, view.output_count) == (True, frozenset({0}), 1)
    write = aten.operator_of(torch.ops.aten.add_.Tensor)
    assert (write.pure, write.mutates) == (False, frozenset({0}))
    assert aten.operator_of(torch.ops.aten.split.Tensor).output_count is None
    assert aten.operator_of(torch.ops.aten.native_layer_norm.default).output_count == 3
    assert not aten.operator_of(torch.ops.aten.bernoulli.default).pure
    assert not aten.operator_of(torch.ops.aten._assert_async.msg).pure


def test_number_of_a_list_of_outputs_is_known_once_shapes_are():
    builder, (x,) = graph_over(torch.ones(2, 6))
    assert len(builder.op("aten::split", x, 2, 1)) == 3
    unknown = ir.GraphBuilder(dialect=DIALECT)
    with pytest.raises(ValueError, match=r"how many outputs aten::split.Tensor has depends on the"):
        unknown.op("aten::split", *unknown.create_inputs(1), 2, 1)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (1, True, False),
        (float("nan"), float("nan"), True),
        (torch.float32, torch.float32, True),
        (torch.float32, torch.float64, False),
        (None, None, True),
    ],
)
def test_host_arguments_are_equal_by_type_and_value(left, right, same):
    assert DIALECT.same(left, right) is same


def test_support_is_asked_of_the_kernels_of_the_device():
    builder, (x,) = graph_over(torch.ones(2, 3))
    assert DIALECT.supports(builder.op("aten::relu", x).value.node) == (True, "")
    with torch.library._scoped_library("bringup_tests", "DEF") as library:
        library.define("shapes_only(Tensor x) -> Tensor")
        library.impl("shapes_only", torch.empty_like, "Meta")
        node = builder.op("bringup_tests::shapes_only", x).value.node
        reason = "bringup_tests::shapes_only has no kernel for cpu"
        assert DIALECT.supports(node) == (False, reason)


def test_operator_without_a_kernel_on_a_gpu_is_no_replacement_there():
    mode = FakeTensorMode()
    graph = ir.Graph("g", compiler.AtenDialect(mode))
    with mode:
        x, y = (graph.add_input(meta=torch.empty(3, device=name)) for name in ("cuda", "cpu"))
    builder = graph.inserting_before(graph.output_node)
    with torch.library._scoped_library("bringup_tests", "DEF") as library:
        for name, key in (("host_only", "CPU"), ("anywhere", "CompositeExplicitAutograd")):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, torch.empty_like, "Meta")
            library.impl(name, torch.clone, key)
            assert builder.op(f"bringup_tests::{name}", y).value.meta.device.type == "cpu"
        assert builder.op("bringup_tests::anywhere", x).value.meta.device.type == "cuda"
        with pytest.raises(
            PassSkipException, match="bringup_tests::host_only has no kernel for cu"
        ):
            builder.op("bringup_tests::host_only", x)


def test_constant_must_be_a_tensor():
    with pytest.raises(TypeError, match=r"a constant must be a torch\.Tensor, got int"):
        DIALECT.constant_meta(3)
