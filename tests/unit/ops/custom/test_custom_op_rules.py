"""Rules of `ops.custom_op`: batching, autocast, sharding, effects, structured arguments, views."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from bringup import ops
from bringup.errors import ContractError, SchemaError

Custom = Callable[..., ops.CustomOperator]


def add(x: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
    return torch.from_numpy(x.detach().numpy() + factor * y.detach().numpy())


# ---------------------------------------------------------------- vmap


def test_a_batching_rule_is_used_and_may_be_replaced(custom: Custom) -> None:
    operator = custom(add)

    @operator.register_vmap
    def rule(info: Any, in_dims: Any, x: Tensor, y: Tensor, factor: float = 1.0) -> Any:
        assert (info.batch_size, in_dims) == (3, (0, None, None))
        return operator(x, y.expand_as(x), factor), 0

    x, y = torch.arange(3.0), torch.tensor(10.0)
    assert torch.vmap(operator, (0, None))(x, y).tolist() == [10, 11, 12]
    operator.register_vmap(lambda info, dims, x, y, factor=1.0: (x * 0, 0))
    assert torch.vmap(operator, (0, None))(x, y).tolist() == [0, 0, 0]


@pytest.mark.parametrize("rule", ["pointwise", "loop"])
@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (None, 1), (0, None)])
def test_a_generated_rule_is_right_and_gives_no_warning(
    custom: Custom, rule: Any, dims: Any
) -> None:
    """A generated rule."""
    operator = custom(add)
    operator.register_vmap(rule)
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.vmap(operator, dims)(x, y)
    assert torch.equal(found, torch.vmap(torch.add, dims)(x, y))


def test_a_pointwise_rule_aligns_ranks_behind_the_batch(custom: Custom) -> None:
    operator = custom(add)
    operator.register_vmap("pointwise")
    x, y = torch.randn(5, 2, 3), torch.randn(5, 3)
    assert torch.equal(torch.vmap(operator)(x, y), x + y[:, None])


def test_a_looping_rule_takes_lists_and_several_outputs(custom: Custom) -> None:
    def both(xs: list[Tensor], n: int) -> tuple[Tensor, list[Tensor]]:
        return torch.stack(xs).sum(0), [x * n for x in xs]

    operator = custom(both)
    operator.register_vmap("loop")
    x, y = torch.randn(4, 2), torch.randn(2)
    total, parts = torch.vmap(lambda x: operator([x, y], 3))(x)
    assert torch.allclose(total, x + y)
    assert torch.equal(parts[0], x * 3)
    assert torch.equal(parts[1], (y * 3).expand(4, 2))


def test_without_a_rule_samples_run_one_by_one(custom: Custom) -> None:
    """Also lists and keyword-only tensors, which torch has no fallback for."""
    seen: list[tuple[int, ...]] = []

    def weighted(xs: list[Tensor], *, weight: Tensor, n: int = 2) -> list[Tensor]:
        seen.append(tuple(weight.shape))
        return [x * weight * n for x in xs]

    operator = custom(weighted)
    weights = torch.arange(3.0)
    for call in (operator, operator.overload):
        (found,) = torch.vmap(lambda w: call([torch.ones(2)], weight=w))(weights)  # noqa: B023
        assert torch.equal(found, weights[:, None].expand(3, 2) * 2)
    assert seen == [()] * 6


def test_samples_are_written_one_by_one(custom: Custom) -> None:
    def fill(x: Tensor, value: float) -> None:
        x.fill_(value)

    operator = custom(fill, mutates_args=("x",))
    x = torch.zeros(3, 2)

    def run(row: Tensor) -> Tensor:
        operator(row, 2.0)
        return row.clone()

    assert torch.vmap(run)(x).tolist() == [[2, 2]] * 3
    assert x.tolist() == [[2, 2]] * 3


def test_gradients_of_samples_go_through_the_rule(custom: Custom) -> None:
    def square(x: Tensor) -> Tensor:
        return x * x

    operator = custom(square)
    operator.register_vmap("pointwise")
    operator.register_autograd(
        lambda ctx, grad: grad * 2 * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    x = torch.randn(5, 3)
    found = torch.vmap(torch.func.grad(lambda x: operator(x).sum()))(x)
    assert torch.allclose(found, 2 * x)
    leaf = x.clone().requires_grad_()
    torch.vmap(operator)(leaf).sum().backward()
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad, 2 * x)
    operator.register_jvp(lambda ctx, tangent: tangent * 2 * ctx.saved_tensors[0])
    hessian = torch.func.hessian(lambda x: operator(x).sum())(x[0])
    assert torch.allclose(hessian, 2 * torch.eye(3))


def test_an_unknown_generated_rule_is_refused(custom: Custom) -> None:
    with pytest.raises(SchemaError, match=r"register_vmap\('best'\): expected a function \(info"):
        custom(add).register_vmap("best")


# ---------------------------------------------------------------- autocast, sharding, effects


def test_autocast_casts_what_is_floating_point_on_its_device(custom: Custom) -> None:
    def kinds(xs: list[Tensor], *, y: Tensor) -> str:
        return " ".join(str(x.dtype).removeprefix("torch.") for x in (*xs, y))

    operator = custom(kinds)
    operator.register_autocast("cpu", torch.bfloat16)
    values = [torch.ones(1), torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.int32)]
    assert operator(values, y=torch.ones(1)) == "float32 float64 int32 float32"
    with torch.autocast("cpu"):
        assert operator(values, y=torch.ones(1)) == "bfloat16 float64 int32 bfloat16"
        assert operator.overload(values, y=torch.ones(1)).startswith("bfloat16")


def test_gradients_under_autocast_have_the_inputs_dtype(custom: Custom) -> None:
    def double(x: Tensor) -> Tensor:
        assert x.dtype == torch.bfloat16
        return x * 2

    operator = custom(double)
    operator.register_autocast("cpu", torch.bfloat16)
    operator.register_autograd(lambda ctx, grad: grad * 2)
    for call in (operator, operator.overload):
        x = torch.ones(2, requires_grad=True)
        with torch.autocast("cpu"):
            y = call(x)
        y.sum().backward()
        assert x.grad is not None
        assert (x.grad.dtype, x.grad.tolist()) == (torch.float32, [2, 2])


@pytest.mark.parametrize(
    ("device", "dtype", "text"),
    [
        ("meta", torch.bfloat16, "device 'meta' has no autocast; expected cpu, cuda"),
        ("cpu", torch.int32, "expected a floating-point torch.dtype"),
        ("gpu", torch.bfloat16, "'gpu' is no device"),
    ],
)
def test_a_wrong_autocast_rule_is_refused(
    custom: Custom, device: str, dtype: torch.dtype, text: str
) -> None:
    with pytest.raises(SchemaError, match=text):
        custom(add).register_autocast(device, dtype)


def test_a_sharding_rule_runs_the_operator_on_dtensors(custom: Custom) -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import (
        DTensor,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def double(x: Tensor) -> Tensor:
        return x * 2

    operator = custom(double)
    operator.register_fake(torch.empty_like)

    @operator.register_sharding
    def strategy(x: Any) -> Any:
        return [([Replicate()], [Replicate()]), ([Shard(0)], [Shard(0)])]

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        y = operator(x)
        assert isinstance(y, DTensor)
        assert y.placements == (Shard(0),)
        assert y.to_local().tolist() == [[2, 2, 2]] * 2
    finally:
        dist.destroy_process_group()


def test_an_unknown_effect_is_refused(custom: Custom) -> None:
    with pytest.raises(SchemaError, match=r"register_effect\('io'\): expected 'ordered' or None"):
        custom(add).register_effect("io")  # type: ignore[arg-type]


def test_an_effect_may_be_declared_for_an_operator_with_a_result(custom: Custom) -> None:
    seen: list[int] = []

    def count(x: Tensor) -> Tensor:
        seen.append(1)
        return x + 1

    operator = custom(count)
    operator.register_fake(torch.empty_like)
    operator.register_effect("ordered")

    def run(x: Tensor) -> Tensor:
        operator(x)
        return x * 2

    torch.compile(run, fullgraph=True, backend="aot_eager")(torch.ones(2))
    assert seen == [1]


# ---------------------------------------------------------------- structured arguments


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclasses.dataclass
class Config:
    weight: Tensor
    scale: float
    axes: tuple[int, ...]


def structured(
    pair: Pair, config: Config, mixed: tuple[Tensor, int], *, named: Mapping[str, Tensor]
) -> Tensor:
    assert isinstance(pair, Pair)
    assert isinstance(config, Config)
    assert config.axes == (0,)
    tensor, number = mixed
    total = pair.left + pair.right * config.weight * config.scale + tensor * number
    for name, value in named.items():
        total = total + value * len(name)
    return total


def example(requires_grad: bool = False) -> Any:
    tensors = [torch.full((1,), float(i), requires_grad=requires_grad) for i in range(1, 7)]
    a, b, c, d, e, f = tensors
    values = (Pair(a, b), Config(c, 0.5, (0,)), (d, 10))
    return values, {"named": {"yy": e, "x": f}}, tensors


def test_structured_arguments_become_several_of_the_schema(custom: Custom) -> None:
    assert ops.infer_schema(structured) == (
        "(Tensor pair_left, Tensor pair_right, Tensor config_weight, float config_scale, "
        "int[] config_axes, Tensor mixed_0, int mixed_1, *, str[] named_keys, "
        "Tensor[] named_values) -> Tensor"
    )
    operator = custom(structured)
    args, kwargs, _ = example()
    assert operator(*args, **kwargs).item() == structured(*args, **kwargs).item() == 60


def test_structured_arguments_have_structured_gradients(custom: Custom) -> None:
    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        pair, config, (_, ctx.number) = inputs
        ctx.save_for_backward(pair.right, config.weight)
        ctx.scale = config.scale
        ctx.names = list(keyword_only_inputs["named"])

    def backward(ctx: Any, grad: Tensor) -> Any:
        right, weight = ctx.saved_tensors
        return (
            Pair(grad, grad * weight * ctx.scale),
            (grad * right * ctx.scale, None, None),
            (grad * ctx.number, None),
            {name: grad * len(name) for name in ctx.names},
        )

    operator = custom(structured)
    operator.register_autograd(backward, setup_context=setup)
    args, kwargs, tensors = example(requires_grad=True)
    found = torch.autograd.grad(operator(*args, **kwargs), tensors)
    expected = torch.autograd.grad(structured(*args, **kwargs), tensors)
    assert found == expected


def test_structured_arguments_compile_in_one_graph(custom: Custom) -> None:
    operator = custom(structured)
    operator.register_fake(lambda pair, config, mixed, *, named: torch.empty_like(pair.left))
    args, kwargs, _ = example()
    compiled = torch.compile(
        lambda: operator(*args, **kwargs) + 1, fullgraph=True, backend="aot_eager"
    )
    assert compiled().item() == 61


def test_a_call_that_does_not_fit_a_structured_signature_is_refused(custom: Custom) -> None:
    def f(pair: Pair, n: int = 1) -> Tensor:
        return pair.left * n

    operator = custom(f)
    pair = Pair(torch.ones(1), torch.ones(1))
    assert operator(pair).item() == 1
    assert operator(n=2, pair=pair).item() == 2
    for call, text in (
        (lambda: operator(pair, 1, 2), "takes 2 positional arguments but 3 were given"),
        (lambda: operator(pair, m=1), "got an unexpected keyword argument 'm'"),
        (lambda: operator(pair, pair=pair), "got multiple values for argument 'pair'"),
        (lambda: operator(n=1), "is missing the argument 'pair'"),
    ):
        with pytest.raises(TypeError, match=text):
            call()


def test_defaults_that_no_schema_can_write_are_filled_in(custom: Custom) -> None:
    """List defaults of str, infinite floats."""

    def f(x: Tensor, names: list[str] = ["a", "b"], top: float = float("inf")) -> Tensor:  # noqa: B006
        return x.clamp(max=top) * len(names)

    assert ops.infer_schema(f) == "(Tensor x, str[]? names=None, float? top=None) -> Tensor"
    operator = custom(f)
    x = torch.full((1,), 5.0)
    assert operator(x).item() == operator.overload(x).item() == 10
    assert operator(x, ["a"], top=2.0).item() == 2


# ---------------------------------------------------------------- memory


def test_a_view_operator_is_tracked_as_a_view(custom: Custom) -> None:
    operator = custom(lambda x: x[1:], schema="(Tensor(a) x) -> Tensor(a)")
    x = torch.zeros(3)
    view = operator(x)
    assert view._base is x
    view.add_(1)
    assert x.tolist() == [0, 1, 1]
    assert x._version == view._version == 1


def test_an_output_that_shares_memory_is_refused(custom: Custom) -> None:
    """The check is always on."""
    for function in (lambda x: x, lambda x: x[1:], lambda x: x.view(-1)):
        operator = custom(function)
        with pytest.raises(
            ContractError, match="shares memory with the argument 'x'; return a clone"
        ):
            operator(torch.ones(2))

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y[:1]

    with pytest.raises(ContractError, match="two outputs share memory; return a clone of one"):
        custom(twice)(torch.ones(2))
    assert custom(lambda x: x * 2)(torch.ones(2).to_sparse()).is_sparse


def test_a_written_argument_gets_a_new_version_once(custom: Custom) -> None:
    def fill(xs: list[Tensor], y: Tensor) -> None:
        for x in (*xs, y):
            x.numpy().fill(1)

    operator = custom(fill, mutates_args=("xs", "y"))
    a, b, y = torch.zeros(1), torch.zeros(1), torch.zeros(1)
    operator([a, b], y)
    assert [t._version for t in (a, b, y)] == [1, 1, 1]
    assert [t.item() for t in (a, b, y)] == [1, 1, 1]
    with torch.inference_mode():
        operator([torch.zeros(1)], torch.zeros(1))


WRONG_RESULTS: list[tuple[Any, str, str]] = [
    (None, "Tensor", "the function returned NoneType; its schema says Tensor"),
    ("no", "Tensor", "the function returned str; its schema says Tensor"),
    (1, "()", "the function returned int; its schema says None"),
    (
        (None, 1),
        "(Tensor, int)",
        "the function returned NoneType, int; its schema says Tensor, int",
    ),
    ((1,), "(int, int)", "the function returned a tuple of one int; its schema says int, int"),
]


@pytest.mark.parametrize(("result", "returns", "text"), WRONG_RESULTS)
def test_a_result_that_the_schema_does_not_say_is_refused(
    custom: Custom, result: Any, returns: str, text: str
) -> None:
    operator = custom(lambda x: result, schema=f"(Tensor x) -> {returns}")
    with pytest.raises(ContractError, match=f"{operator.qualified_name}: {text}"):
        operator(torch.ones(1))


def test_a_copy_of_an_operator_is_the_operator(custom: Custom) -> None:
    operator = custom(add)
    assert copy.deepcopy(operator) is operator
    assert pickle.loads(pickle.dumps(operator)) is operator


def test_a_factory_dispatches_by_its_device(custom: Custom) -> None:
    def make(n: int, device: torch.device) -> Tensor:
        return torch.full((n,), 3.0, device=device)

    operator = custom(make, device_types="cpu")
    operator.register_kernel("meta", lambda n, device: torch.empty(n, device="meta"))
    assert operator(2, torch.device("cpu")).tolist() == [3, 3]
    assert operator(2, torch.device("meta")).is_meta
    with pytest.raises(NotImplementedError, match="CUDA"):
        operator(2, torch.device("cuda"))
    with pytest.raises(SchemaError, match="has no tensor argument, so kernels for devices need"):
        custom(lambda: torch.ones(1), schema="(int n) -> Tensor", device_types="cpu")


def test_a_batch_of_none_has_the_shape_of_a_result(custom: Custom) -> None:
    def halves(x: Tensor, n: int) -> tuple[Tensor, list[Tensor]]:
        return x[:n].clone(), [x.sum(), x.to(torch.int64)]

    operator = custom(halves)
    operator.register_fake(
        lambda x, n: (x.new_empty(n), [x.new_empty(()), x.new_empty(3, dtype=torch.int64)])
    )
    first, (second, third) = torch.vmap(operator, in_dims=(0, None))(torch.ones(0, 3), 2)
    assert (first.shape, second.shape, third.shape) == ((0, 2), (0,), (0, 3))
    assert third.dtype is torch.int64


def test_a_batch_of_none_runs_no_kernel(custom: Custom) -> None:
    """Modes that a rule enters do not count below functorch's keys: the fake has to run above."""
    ran = []

    def longer(x: Tensor) -> Tensor:
        ran.append(x.shape)
        return torch.ones(x.shape[0] + 2)

    operator = custom(longer)
    operator.register_fake(lambda x: x.new_empty(x.shape[0] + 1))
    none, two = torch.ones(0, 3), torch.ones(2, 0, 3)
    assert torch.vmap(operator)(none).shape == (0, 4)
    assert torch.vmap(torch.vmap(operator))(two).shape == (2, 0, 4)
    assert torch.vmap(torch.vmap(operator), in_dims=1)(two).shape == (0, 2, 4)
    assert torch.func.vjp(torch.vmap(operator.overload), none)[0].shape == (0, 4)
    assert ran == []


def test_a_batch_of_none_without_a_fake_is_an_error_and_runs_no_kernel(custom: Custom) -> None:
    operator = custom(lambda x: pytest.fail("the kernel ran"), schema="(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError, match="has no fake"):
        torch.vmap(operator)(torch.ones(0, 3))
