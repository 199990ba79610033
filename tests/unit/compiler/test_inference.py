"""What operators return is remembered for calls that look the same, and only for these."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from bringup import compiler, ir, ops, passes
from bringup.compiler import fake_results


@pytest.fixture(name="mode")
def _mode():
    return FakeTensorMode(shape_env=ShapeEnv())


@pytest.fixture(name="runs")
def _runs(monkeypatch):
    """The operators that really ran, in order."""
    ran = []
    call = fake_results.call

    def counted(overload, arguments):
        ran.append(overload.name())
        return call(overload, arguments)

    monkeypatch.setattr(fake_results, "call", counted)
    return ran


def builder_over(mode, *metas):
    graph = ir.Graph("g", compiler.AtenDialect(mode))
    values = [graph.add_input(meta=meta) for meta in metas]
    return graph.inserting_before(graph.output_node), values


def fake(mode, *shape, **options):
    with mode:
        return torch.empty(shape, **options)


def meta(holder):
    return holder.value.meta


def memory(tensor):
    return tensor.untyped_storage()._cdata


def test_call_that_looks_the_same_is_not_run_again_and_has_memory_of_its_own(mode, runs):
    builder, (x, y) = builder_over(mode, fake(mode, 2, 3), fake(mode, 2, 3))
    first, second = (meta(builder.op("aten::mul.Tensor", item, 2)) for item in (x, y))
    assert runs == ["aten::mul.Tensor"]
    assert first is not second
    assert memory(first) != memory(second)
    assert second.fake_mode is mode
    assert (second.shape, second.stride(), second.dtype, second.device) == (
        first.shape,
        first.stride(),
        first.dtype,
        first.device,
    )


@pytest.mark.parametrize(
    "look",
    [
        {"dtype": torch.float64},
        {"dtype": torch.int32},
        {"device": "meta"},
        {"requires_grad": True},
    ],
)
def test_input_that_looks_different_is_another_call(look, runs):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.allow_meta = True
    given = [fake(mode, 2, 3), fake(mode, 2, 3, **look)]
    builder, values = builder_over(mode, *given)
    made = [meta(builder.op("aten::div.Tensor", value, 2)) for value in values]
    assert len(runs) == 2
    with mode, torch.no_grad():
        expected = [tensor / 2 for tensor in given]
    for got, wanted in zip(made, expected, strict=True):
        assert (got.dtype, got.device, got.requires_grad) == (
            wanted.dtype,
            wanted.device,
            wanted.requires_grad,
        )


def test_strides_are_part_of_the_look(mode, runs):
    with mode:
        turned = torch.empty(3, 2).t()
    builder, values = builder_over(mode, fake(mode, 2, 3), turned)
    strides = [meta(builder.op("aten::relu", value)).stride() for value in values]
    assert strides == [(3, 1), (1, 2)]
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("overload", "given"),
    [
        (torch.ops.aten.sum.dim_IntList, [([0],), ([1],), ([0], True)]),
        (torch.ops.aten.add.Tensor, [(1,), (1.0,), (True,)]),
        (torch.ops.aten.new_full.default, [([2], 1), ([2], 1.0), ([3], 1)]),
    ],
)
def test_other_host_arguments_are_another_call(overload, given, mode):
    x = fake(mode, 2, 3, dtype=torch.bool)
    builder, (value,) = builder_over(mode, x)
    made = [meta(builder.op(overload.name(), value, *arguments)) for arguments in given]
    with mode:
        expected = [overload(x, *arguments) for arguments in given]
    assert [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in expected]


def test_default_dtype_is_part_of_the_call(mode):
    builder, (x,) = builder_over(mode, fake(mode, 2, dtype=torch.int64))
    assert meta(builder.op("aten::sqrt", x)).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert meta(builder.op("aten::sqrt", x)).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_views_keep_the_memory_of_their_input(mode, runs):
    builder, (x, y) = builder_over(mode, fake(mode, 2, 3), fake(mode, 2, 3))
    for value in (x, y):
        assert memory(meta(builder.op("aten::view", value, [6]))) == memory(value.meta)
        (left, right) = builder.op("aten::split", value, 1)
        assert memory(meta(left)) == memory(meta(right)) == memory(value.meta)
    assert len(runs) == 4


def test_alias_that_no_schema_tells_of_is_seen(mode, runs):
    """`aten::_unsafe_view` returns a view, and its schema does not say so."""
    builder, (x, y) = builder_over(mode, fake(mode, 2, 3), fake(mode, 2, 3))
    for value in (x, y):
        assert memory(meta(builder.op("aten::_unsafe_view", value, [6]))) == memory(value.meta)
    assert len(runs) == 2


def test_tensors_without_data_that_no_mode_made_are_remembered_too(mode, runs):
    tensors = [torch.empty(2, 3, device="meta") for _ in range(3)]
    builder, values = builder_over(mode, *tensors)
    made = [meta(builder.op("aten::mul.Tensor", value, 2)) for value in values[:2]]
    turned = meta(builder.op("aten::mul.Tensor", builder.op("aten::t", values[2]), 2))
    assert runs == ["aten::mul.Tensor", "aten::t", "aten::mul.Tensor"]
    assert [(item.shape, item.stride(), item.device.type) for item in (*made, turned)] == [
        ((2, 3), (3, 1), "meta"),
        ((2, 3), (3, 1), "meta"),
        ((3, 2), (1, 3), "meta"),
    ]
    assert memory(made[0]) != memory(made[1])


def test_alias_of_a_tensor_that_no_mode_made_is_seen(mode, runs):
    builder, (x,) = builder_over(mode, torch.empty(2, 2, device="meta"))
    first, second = (meta(builder.op("aten::contiguous", x)) for _ in range(2))
    assert runs == ["aten::contiguous"] * 2
    assert memory(first) == memory(second)


def test_writers_run_every_time(mode, runs):
    builder, (x,) = builder_over(mode, fake(mode, 2, 3))
    assert [meta(builder.op("aten::mul_.Tensor", x, 2)) for _ in range(2)] == [x.meta, x.meta]
    assert [builder.op("aten::_foreach_zero_", [x]) for _ in range(2)] == [(), ()]
    assert len(runs) == 4


def _repeated(x, times):
    return x.new_empty(times.item())


@pytest.fixture(name="library")
def _library():
    library = ops.Library("test_inference", "DEF")
    library.define("some(Tensor x) -> Tensor")
    library.define("repeated(Tensor x, Tensor times) -> Tensor")
    library.define("part(Tensor x, int row) -> Tensor")
    library.impl(
        "repeated", lambda x, times: x.new_empty(times.item()), "CompositeImplicitAutograd"
    )
    library.impl("part", lambda x, row: torch.empty_like(x)[row], "Meta")
    return library


def test_sizes_that_depend_on_data_are_new_symbols_every_time(mode, runs, library):
    @ops.register_fake("test_inference::some")
    def _(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    builder, (x,) = builder_over(mode, fake(mode, 8))
    first, second = (meta(builder.op("test_inference::some", x)).shape[0] for _ in range(2))
    assert str(first) != str(second)
    assert len(runs) == 2


def test_input_whose_size_depends_on_data_is_not_remembered(mode, runs):
    builder, (x,) = builder_over(mode, fake(mode, 8))
    places = builder.op("aten::nonzero", x)
    for _ in range(2):
        builder.op("aten::sum", places)
    assert runs == ["aten::nonzero", "aten::sum", "aten::sum"]


def test_tensor_whose_data_are_known_is_not_taken_for_another(mode, library):
    with mode:
        times = [torch.tensor(number) for number in (3, 5)]
    assert all(tensor.constant is not None for tensor in times)
    builder, (x, *values) = builder_over(mode, fake(mode, 2), *times)
    made = [meta(builder.op("test_inference::repeated", x, value)) for value in values]
    assert [tuple(tensor.shape) for tensor in made] == [(3,), (5,)]


def test_symbolic_sizes_are_told_apart_by_their_expressions_and_no_guard_is_added(mode, runs):
    """Sizes that are equal as numbers get one symbol; 5 and 7 get others."""
    metas = [mode.from_tensor(torch.empty(shape)) for shape in ((4, 6), (4, 6), (5, 7))]
    assert all(isinstance(size, torch.SymInt) for meta in metas for size in meta.shape)
    before = len(mode.shape_env.guards)
    builder, values = builder_over(mode, *metas)
    made = [meta(builder.op("aten::mul.Tensor", value, 2)) for value in values]
    assert len(runs) == 2
    for tensor, given in zip(made, metas, strict=True):
        for got, wanted in (
            *zip(tensor.shape, given.shape, strict=True),
            *zip(tensor.stride(), given.stride(), strict=True),
        ):
            assert str(got) == str(wanted)
    assert len(mode.shape_env.guards) == before


def test_autocast_of_a_hook_is_not_remembered(mode):
    builder, (x, y) = builder_over(mode, fake(mode, 4, 4), fake(mode, 4, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert meta(builder.op("aten::mm", x, y)).dtype is torch.bfloat16
    assert meta(builder.op("aten::mm", x, y)).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert meta(builder.op("aten::mm", x, y)).dtype is torch.bfloat16


@pytest.mark.parametrize("row", [0, 1])
def test_result_with_spare_memory_is_not_remembered(row, mode, runs, library):
    builder, (x, y) = builder_over(mode, fake(mode, 2, 3), fake(mode, 2, 3))
    made = [meta(builder.op("test_inference::part", value, row)) for value in (x, y)]
    assert [tensor.storage_offset() for tensor in made] == [3 * row, 3 * row]
    assert [tensor.untyped_storage().nbytes() for tensor in made] == [24, 24]
    assert len(runs) == 2


def rewritten(traced, function, op_type, replacement):
    """The FX graph of `function` of a tensor of 2 x 6, in which `op_type` was replaced."""

    @passes.register_decompose_pass(
        op_types=[op_type], name="P", stage=passes.PassStage.AFTER_INFER_SHAPE
    )
    class Replacing(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            return replacement(builder, builder.create_input(), node)

    x = torch.randn(2, 6)
    module = traced(function, x)
    assert compiler.apply_passes(module, ["P"])["P"].matches == 2
    module.graph.lint()
    return module


def vals(module, overload):
    return [
        node.meta["val"] for node in module.graph.find_nodes(op="call_function", target=overload)
    ]


def test_replacement_takes_over_the_fake_tensor_of_a_value_that_goes(traced):
    """So views of it still share its memory; the first of its kind is inferred."""
    module = rewritten(
        traced,
        lambda x: [x.relu().view(12), (x + 1).relu().view(12)],
        "aten::relu",
        lambda builder, x, node: builder.op("aten::tanh", x),
    )
    first, second = vals(module, torch.ops.aten.tanh.default)
    assert memory(first) != memory(second)
    assert memory(second) == memory(vals(module, torch.ops.aten.view.default)[1])


def test_replacement_of_a_view_has_memory_of_its_own(traced):
    module = rewritten(
        traced,
        lambda x: [x.view(12), (x + 1).view(12)],
        "aten::view",
        lambda builder, x, node: builder.op("aten::view_copy", x, [12]),
    )
    (added,) = vals(module, torch.ops.aten.add.Tensor)
    copies = vals(module, torch.ops.aten.view_copy.default)
    assert len({memory(tensor) for tensor in (added, *copies)}) == 3


def test_value_that_stays_keeps_its_fake_tensor_for_itself(traced):
    module = rewritten(
        traced,
        lambda x: [x.relu(), (x + 1).relu()],
        "aten::relu",
        lambda builder, x, node: builder.op("aten::neg", node.output),
    )
    relus, negatives = (
        vals(module, overload)
        for overload in (torch.ops.aten.relu.default, torch.ops.aten.neg.default)
    )
    assert len({memory(tensor) for tensor in (*relus, *negatives)}) == 4


def test_replacement_that_looks_different_is_refused_every_time(traced):
    @passes.register_decompose_pass(
        op_types=["aten::relu"],
        name="P",
        stage=passes.PassStage.AFTER_INFER_SHAPE,
        on_error="skip",
    )
    class Replacing(passes.DecomposePass):
        def replacement(self, node):
            builder = ir.GraphBuilder()
            return builder.op("aten::_to_copy", builder.create_input(), dtype=torch.int32)

    module = traced(lambda x: [x.relu(), (x + 1).relu()], torch.randn(2))
    result = compiler.apply_passes(module, ["P"])["P"]
    assert (result.matches, result.failures) == (0, 2)
    assert "expected dtype float32, got int32" in str(result.near_misses[0])


LOOKS = {
    "plain": lambda: torch.empty(2, 3),
    "strided": lambda: torch.empty(4, 6)[1:, ::2],
    "transposed": lambda: torch.empty(2, 3, dtype=torch.int32).t(),
    "number": lambda: torch.empty(()),
    "nothing": lambda: torch.empty(0, 3),
    "gradient": lambda: torch.empty(2, requires_grad=True),
    "complex": lambda: torch.empty(2, dtype=torch.complex64),
    "conjugate": lambda: torch.empty(2, dtype=torch.complex64).conj(),
    "negative": lambda: torch.empty(2, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("kind", ["fake", "meta"])
@pytest.mark.parametrize("name", LOOKS)
def test_what_is_read_at_once_is_what_torch_says_bit_by_bit(name, kind, mode):
    make = LOOKS[name]
    if kind == "fake":
        with mode:
            tensor = make()
    else:
        with torch.device("meta"):
            tensor = make()
    at_once, bit_by_bit = (fake_results.FakeInference(mode, None) for _ in range(2))
    bit_by_bit._read = lambda tensor: None
    assert at_once._looked_at(tensor)[1:] == bit_by_bit._looked_at(tensor)[1:]
