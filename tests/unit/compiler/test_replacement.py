"""`compiler.register_replacement`: rewrites stated as two torch functions."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sweeps.support import examples
from torch import nn
from torch.nn import functional

from bringup import compiler, kernels, passes
from bringup.errors import PassError


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def named_rms_norm(x, weight):
    return functional.rms_norm(x, (x.shape[-1],), None, 1e-5) * weight


def split_heads(x):
    return x.view(x.shape[0], x.shape[1], 4, x.shape[2] // 4).transpose(1, 2).relu()


def relu_first(x):
    batch, length, width = x.shape
    return torch.relu(x).reshape(batch, length, 4, width // 4).transpose(1, 2)


def compiled_and_right(function, *calls, dynamic=False):
    """The report of a function that was compiled, and gave what eager gives at every call."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="bringup", dynamic=dynamic)
    with torch.no_grad():
        for inputs in calls:
            torch.testing.assert_close(compiled(*inputs), function(*inputs))
    return compiler.last_report()


def miss(report, name):
    """The text of the nearest miss of a pass."""
    return str(report[name].near_misses[0])


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_search_does_is_replaced_at_other_ranks_and_sizes(dynamic):
    compiler.register_replacement(rms_norm, named_rms_norm)

    def function(x, weight):
        return rms_norm(2 * rms_norm(x, weight), weight) + 1

    calls = [(torch.randn(2, n, 16), torch.rand(16)) for n in (3, 5)]
    assert compiled_and_right(function, *calls, dynamic=dynamic).matches["rms_norm"] == 2


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    width=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    dynamic=st.booleans(),
)
@examples(12, 200)
def test_results_are_those_of_eager_at_every_shape(shape, width, dtype, dynamic):
    passes.clear_registered_passes()
    compiler.register_replacement(rms_norm, named_rms_norm)
    inputs = (torch.randn(*shape, width, dtype=dtype), torch.rand(width, dtype=dtype))
    assert compiled_and_right(rms_norm, inputs, dynamic=dynamic).matches["rms_norm"] == 1


@given(sizes=st.tuples(*[st.integers(2, 6)] * 2), heads=st.integers(2, 4), dynamic=st.booleans())
@examples(12, 200)
def test_sizes_in_both_functions_are_those_of_the_match(sizes, heads, dynamic):
    passes.clear_registered_passes()
    compiler.register_replacement(split_heads, relu_first, [torch.empty(2, 3, 8)])
    calls = [(torch.randn(*sizes, 4 * heads),), (torch.randn(*sizes[::-1], 4 * heads),)]
    report = compiled_and_right(split_heads, *calls, dynamic=dynamic)
    assert report.matches["split_heads"] == 1


def test_view_to_other_sizes_than_those_of_search_is_left_alone():
    compiler.register_replacement(split_heads, relu_first, [torch.empty(2, 3, 8)])
    report = compiled_and_right(
        lambda x: x.view(x.shape[0], x.shape[1], 2, x.shape[2] // 2).transpose(1, 2).relu(),
        [torch.randn(2, 3, 8)],
    )
    assert not report.matches["split_heads"]
    assert "is something else on inputs like these: 'size' of aten::view is [2, 3, 4, 2], of " in (
        miss(report, "split_heads")
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_several_results_replace_several(dynamic):
    def search(x, y):
        total = x + y
        return total.relu(), total.sigmoid()

    def replace(x, y):
        total = torch.add(y, x)
        return total.clamp_min(0), 1 / (1 + torch.exp(-total))

    compiler.register_replacement(search, replace)
    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    report = compiled_and_right(search, inputs, dynamic=dynamic)
    assert report.matches["search"] == 1


def test_numbers_are_matched_as_they_are_and_as_defaults():
    compiler.register_replacement(
        lambda x, slope=0.25: x * slope + 1, lambda x, slope=0.25: x / 4 + 1, name="Scaled"
    )
    report = compiled_and_right(lambda x: (x * 0.25 + 1, x * 0.5 + 1), [torch.randn(3)])
    assert report.matches["Scaled"] == 1


def test_named_number_is_that_of_the_match():
    def search(x, slope):
        return x * slope + 1

    def replace(x, slope):
        return torch.add(torch.ones_like(x), x, alpha=slope)

    seen = []
    compiler.register_replacement(
        search,
        replace,
        scalar_workaround={"slope": 0.123},
        extra_check=lambda match: seen.append(match["slope"]) or True,
    )
    report = compiled_and_right(lambda x: (x * 0.25 + 1) * (x * 0.5 + 1), [torch.randn(3)])
    assert (report.matches["search"], seen) == (2, [0.25, 0.5])


def test_number_that_only_a_call_tells_is_left_alone():
    """With dynamic shapes Dynamo makes an input of a float that the function does not state."""
    number = 0.25

    def shifted(x):
        return torch.sigmoid(x + number)

    def search(x, shift):
        return torch.sigmoid(x + shift)

    compiler.register_replacement(search, search, scalar_workaround={"shift": 0.5})
    report = compiled_and_right(shifted, [torch.randn(3)], dynamic=True)
    assert not report.matches["search"]
    assert "'shift' is no number before the graph runs" in miss(report, "search")


def test_named_number_that_no_operator_takes_is_refused():
    with pytest.raises(PassError, match=r"no operator takes the number 'slope' as it is \(3\.0\)"):
        compiler.register_replacement(
            lambda x, slope: x * (slope + 1),
            lambda x, slope: x * slope + x,
            scalar_workaround={"slope": 3.0},
        )


def test_extra_check_decides_and_gives_the_reason():
    def is_wide(match):
        if match.inputs[0].desc.shape[-1] < 8:
            raise passes.PassSkipException("too narrow")
        return True

    compiler.register_replacement(rms_norm, named_rms_norm, extra_check=is_wide)
    wide, narrow = ((torch.randn(2, n), torch.rand(n)) for n in (8, 4))
    assert compiled_and_right(rms_norm, wide).matches["rms_norm"] == 1
    report = compiled_and_right(rms_norm, narrow)
    assert (report.matches["rms_norm"], "too narrow" in miss(report, "rms_norm")) == (0, True)


def test_search_that_is_other_operators_at_another_dtype_is_left_alone():
    compiler.register_replacement(lambda x: x.float().exp(), lambda x: x.float().exp(), name="Exp")
    report = compiled_and_right(lambda x: x.exp(), [torch.randn(3).bfloat16()])
    assert not report.matches["Exp"]
    assert "inputs like these: aten::_to_copy, aten::exp" in miss(report, "Exp")


def test_replacement_of_another_dtype_is_left_alone_where_it_differs():
    def search(x):
        return x.exp()

    compiler.register_replacement(search, lambda x: x.exp().float(), [torch.empty(3)])
    assert compiled_and_right(search, [torch.randn(3)]).matches["search"] == 1
    report = compiled_and_right(search, [torch.randn(3).double()])
    assert not report.matches["search"]
    assert "result 0: expected dtype float64, got float32" in miss(report, "search")


def test_replacement_that_does_not_run_on_such_inputs_is_left_alone():
    def replace(x):
        if x.dim() != 2:
            raise ValueError("matrices only")
        return x.relu()

    compiler.register_replacement(lambda x: x.clamp_min(0), replace, name="Clamp")
    report = compiled_and_right(lambda x: x.clamp_min(0), [torch.randn(3)])
    assert not report.matches["Clamp"]
    assert "replace (replace) cannot be traced: ValueError: matrices only" in miss(report, "Clamp")


def test_replacement_that_branches_on_a_size_is_left_alone_where_sizes_are_symbols():
    def replace(x):
        return x.clamp_min(0) if x.shape[0] % 2 else x.clamp(min=0)

    compiler.register_replacement(torch_relu, replace)
    calls = [[torch.randn(n, 4)] for n in (4, 5)]
    assert compiled_and_right(torch_relu, calls[0]).matches["torch_relu"] == 1
    report = compiled_and_right(torch_relu, *calls, dynamic=True)
    assert not report.matches["torch_relu"]
    assert "depends on sizes that differ from call to call" in miss(report, "torch_relu")


def torch_relu(x):
    return torch.relu(x)


def test_one_tensor_may_be_several_inputs():
    def search(x, y):
        return x * y + x

    compiler.register_replacement(search, lambda x, y: x * (y + 1))
    report = compiled_and_right(lambda x: x * x + x, [torch.randn(4)])
    assert report.matches["search"] == 1


def test_functions_are_traced_once_for_matches_that_look_the_same():
    traces = []

    def replace(x, weight):
        traces.append(tuple(x.shape))
        return named_rms_norm(x, weight)

    compiler.register_replacement(rms_norm, replace)
    traces.clear()
    model = nn.Sequential(*[nn.RMSNorm(4) for _ in range(3)])
    layers = [functools.partial(rms_norm, weight=layer.weight.detach()) for layer in model]

    def function(x, y):
        for layer in layers:
            x = layer(x) + 1
        return x, layers[0](y)

    report = compiled_and_right(function, [torch.randn(2, 4), torch.randn(3, 4)])
    assert (report.matches["rms_norm"], sorted(traces)) == (4, [(2, 4), (3, 4)])


def test_rewrites_are_verified_as_those_of_other_passes():
    compiler.register_replacement(torch_relu, lambda x: x.abs())
    with pytest.raises(Exception, match="WrongRewriteError"):
        torch.compile(torch_relu, backend="bringup", options={"verify": True})(torch.randn(5))


def test_registered_pass_tells_where_it_comes_from():
    cls = compiler.register_replacement(rms_norm, named_rms_norm, priority=3, version="1.2")
    (found,) = passes.get_registered_passes()
    assert (found.pass_class, found.pass_name) == (cls, "rms_norm")
    assert (found.version, found.priority, found.kind) == ("1.2", 3, "pattern_fusion")
    lines = [item.__code__.co_firstlineno for item in (rms_norm, named_rms_norm)]
    where = "rms_norm({}) -> named_rms_norm({})".format(*lines)
    assert (found.module_name, found.class_qualname) == (__name__, where)


def test_lambda_is_named_by_its_file_and_line():
    compiler.register_replacement(lambda x: x.exp(), lambda x: torch.exp(x))
    (found,) = passes.get_registered_passes()
    assert found.pass_name.startswith("test_replacement.py:")


def test_the_same_functions_again_change_nothing_and_others_are_refused():
    def times(number):
        return lambda x: x * number

    compiler.register_replacement(times(2.0), times(2.0), name="Times")
    compiler.register_replacement(times(2.0), times(2.0), name="Times")
    for others in ((times(3.0), times(3.0)), (times(2.0), lambda x: x + x)):
        with pytest.raises(ValueError, match="'Times'"):
            compiler.register_replacement(*others, name="Times")
    assert compiled_and_right(lambda x: x * 2.0, [torch.randn(3)]).matches["Times"] == 1


def test_gradients_are_those_of_eager():
    def search(x, y):
        return x * y + x

    compiler.register_replacement(search, lambda x, y: x * (y + 1))
    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    expected = torch.autograd.grad(search(x, y).sum(), (x, y))
    compiled = torch.compile(search, backend="bringup")
    torch.testing.assert_close(torch.autograd.grad(compiled(x, y).sum(), (x, y)), expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_operators_of_a_kernel_library_may_take_the_place(dynamic):
    kernels.load()

    def search(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    def replace(x, weight):
        return kernels.rms_norm(x, weight, 1e-6)

    compiler.register_replacement(search, replace, [torch.empty(2, 4), torch.empty(4)])
    calls = [(torch.randn(2, n, 16), torch.rand(16)) for n in (3, 5)]
    assert compiled_and_right(search, *calls, dynamic=dynamic).matches["search"] == 1
    report = compiled_and_right(search, (torch.randn(2, 16), torch.rand(2, 1)))
    assert "replace (replace) cannot be traced: ContractError" in miss(report, "search")


def own_tensor(x):
    return x + torch.tensor(2.0)


def writes(x):
    x.mul_(2)
    return x + 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (writes, r"\(writes\) writes 'x': return what is new instead"),
        (own_tensor, r"\(own_tensor\) uses a tensor of its own"),
        (lambda x: x[x > 0], r"depends on data"),
        (lambda x: x if x.sum() > 0 else -x, r"depends on data"),
        (lambda x: x + x.sum().item(), r"depends on data"),
        (lambda x: (x + 1, 3), r"must return a tensor or a tuple of tensors, got \[%.*, 3\]"),
        (lambda x: None, r"must return a tensor or a tuple of tensors, got None"),
        (lambda x: x.numpy(), r"cannot be traced: "),
        (lambda x: functional.conv2d(x, x), r"cannot be traced: "),
    ],
)
@pytest.mark.parametrize("role", ["search", "replace"])
def test_functions_that_are_no_rewrite_are_refused_when_they_are_registered(function, words, role):
    fine = torch_relu
    functions = (function, fine) if role == "search" else (fine, function)
    with pytest.raises(PassError, match=rf"(?s){role} .*{words}.*traced on 1 float32 matrices"):
        compiler.register_replacement(*functions, name="Refused")
    assert not passes.get_registered_passes()


def test_input_that_search_reads_for_its_size_only_is_refused():
    with pytest.raises(PassError, match=r"search \(<lambda>\) does not use the values of 'y'"):
        compiler.register_replacement(
            lambda x, y: x.reshape(y.shape).exp(), lambda x, y: x.exp().reshape(y.shape)
        )


def test_same_result_twice_is_refused():
    with pytest.raises(PassError, match="returns the same tensor twice"):
        compiler.register_replacement(lambda x: (x.exp(),) * 2, lambda x: (x.exp(), x.exp()))


@pytest.mark.parametrize(
    "replace",
    [
        lambda y, x: x - y,
        lambda x: x,
        lambda x, y, z: x - y,
        lambda x, y=1: x - y,
        lambda x, other: x - other,
    ],
)
def test_replacement_with_other_parameters_is_refused(replace):
    with pytest.raises(TypeError, match="the same parameters, by name, order and default: got"):
        compiler.register_replacement(lambda x, y: x - y, replace)


def test_parameters_that_cannot_be_told_are_refused():
    for function in (lambda *x: x[0], lambda x, **more: x, lambda x, *, y: x, torch.relu, 3):
        with pytest.raises(TypeError, match=r"^search (has the parameter|must be a function)"):
            compiler.register_replacement(function, function)
    with pytest.raises(TypeError, match=r"search \(<lambda>\) takes no tensor"):
        compiler.register_replacement(lambda: torch.ones(3), lambda: torch.ones(3))


def test_examples_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match=r"takes the 2 tensors \['x', 'weight'\], got 1"):
        compiler.register_replacement(rms_norm, named_rms_norm, [torch.ones(2, 3)])
    with pytest.raises(TypeError, match="example_inputs must be tensors"):
        compiler.register_replacement(rms_norm, named_rms_norm, [torch.ones(2, 3), 1])
    with pytest.raises(TypeError, match=r"search has no parameter 'eps'"):
        compiler.register_replacement(rms_norm, named_rms_norm, scalar_workaround={"eps": 1e-5})


def test_results_that_differ_in_number_or_shape_are_refused():
    for replace, words in (
        (lambda x: (x, x + 1), "expected 1 tensors, got 2"),
        (lambda x: x.relu().sum(0), r"result 0: expected shape"),
    ):
        with pytest.raises(PassError, match=f"returns something else than search .*{words}"):
            compiler.register_replacement(torch_relu, replace)


def test_graph_without_shapes_is_left_alone():
    from bringup import ir

    compiler.register_replacement(
        torch_relu, lambda x: x.clamp_min(0), stage=passes.PassStage.BEFORE_INFER_SHAPE
    )
    builder = ir.GraphBuilder()
    graph = builder.build_and_reset([builder.op("aten::relu", builder.create_input())])
    report = compiler.apply_passes(graph)
    assert not report.matches["torch_relu"]
    assert "'x' is no tensor, or its shape is not known yet" in miss(report, "torch_relu")


def test_autocast_around_the_compile_does_not_change_what_is_put_there():
    compiler.register_replacement(
        lambda x, y: (x @ y).relu(), lambda x, y: (x @ y).clamp_min(0), name="Product"
    )
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    with torch.autocast("cpu", enabled=True, dtype=torch.bfloat16):
        report = compiled_and_right(lambda x, y: (x @ y).relu(), (x, y))
    assert report.matches["Product"] == 1


def test_zeros_of_either_sign_are_two_numbers():
    """`x + -0.0` is x, and `x + 0.0` is not."""
    compiler.register_replacement(
        lambda x: x + (-0.0), lambda x: x.clone(), [torch.ones(4)], name="Z"
    )
    report = compiled_and_right(lambda x: x + 0.0, [torch.tensor([-0.0])])
    assert report.matches["Z"] == 0
    result = torch.compile(lambda x: x + 0.0, backend="bringup")(torch.tensor([-0.0]))
    assert not result.signbit().any()


def test_a_scalar_is_matched_by_value_where_its_kind_makes_no_difference():
    """As Inductor does for `addmm(beta=1)`; torch gives other dtypes for `x + 1` and `x + 1.0`."""

    def search(x, y, z):
        return torch.addmm(x, y, z, beta=1)

    def program(x, y, z):
        return [torch.addmm(x, y, z, beta=beta) for beta in (1, 1.0)] + [torch.addmm(x, y, z)]

    found = []
    compiler.register_replacement(
        search, lambda x, y, z: y @ z + x, [torch.ones(4, 4)] * 3, extra_check=found.append
    )
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program, backend="bringup")(*[torch.randn(4, 4) for _ in range(3)])
    assert len(found) == 3


def test_a_scalar_of_an_integer_tensor_is_matched_with_its_kind():
    def search(x):
        return torch.eq(x, 2**24 + 1)

    compiler.register_replacement(search, lambda x: ~torch.ne(x, 2**24 + 1), name="E")
    x = torch.tensor([2**24, 2**24 + 1])
    report = compiled_and_right(lambda x: torch.eq(x, 2.0**24 + 1), [x])
    assert report.matches["E"] == 0
