"""Values, layouts and mixtures that OpInfo's samples lack, on the simulator's own kernels against
the CPU: infinities, NaN, signed zeros, integers beyond 2**53, results on top of operands, dtypes
that differ, no elements.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.sweeps.support import FULL, sized

import bringup_sim_ops
from bringup import devices

Call = Callable[..., Any]
NAN, INF = float("nan"), float("inf")
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 7.0, -88.7, 1e-4]
NUMBERS = [NAN, INF, -INF, 0.0, -0.0, 2.0, 0.5, -0.5, -1.0, -2.0, 3.0, 0, -1, 3]
# Every dtype is a kernel of its own, compiled where the cache lacks it.
FLOATING = [torch.float32, torch.bfloat16]
INTEGRAL = [torch.int64, torch.uint8]
if FULL:
    FLOATING += [torch.float64, torch.float16]
    INTEGRAL += [torch.int32, torch.int16, torch.int8]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    devices.load_driver("sim")
    bringup_sim_ops.load()
    yield
    bringup_sim_ops.unload()


def moved(value: Any, device: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [moved(item, device) for item in value] if isinstance(value, list) else value


def outcome(call: Call, args: tuple[Any, ...], device: str) -> list[torch.Tensor] | str:
    try:
        results = call(*(moved(arg, device) for arg in args))
        results = results if isinstance(results, tuple | list) else (results,)
        found = [r.cpu() for r in results]
        torch.npu.synchronize()
        return found
    except (RuntimeError, ValueError) as error:
        return f"refused: {type(error).__name__}"


def difference(call: Call, *args: Any) -> str:
    """Nothing where both devices agree: the same numbers, signs of zero and dtypes, or errors."""
    here, there = outcome(call, args, "cpu"), outcome(call, args, "npu")
    if isinstance(here, str) or isinstance(there, str):
        return "" if isinstance(here, str) and isinstance(there, str) else f"{here} / {there}"
    for want, got in zip(here, there, strict=True):
        try:
            torch.testing.assert_close(got, want, equal_nan=True)
        except AssertionError as error:
            return str(error)
        if want.dtype.is_floating_point:
            zeros = (want == 0) & (got == 0)
            if not torch.equal(want[zeros].signbit(), got[zeros].signbit()):
                return "signs of zeros"
    return ""


def told(calls: dict[str, tuple[Any, ...]]) -> dict[str, str]:
    return {
        name: text for name, (call, *args) in calls.items() if (text := difference(call, *args))
    }


def functions() -> dict[str, Call]:
    ops = torch.ops.aten
    names = "neg reciprocal sqrt rsqrt exp log tanh sigmoid relu silu"
    return {name: getattr(ops, name) for name in names.split()}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATING)
def test_functions_of_special_values(dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    assert told({name: (function, x) for name, function in functions().items()}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATING)
def test_special_values_of_two_operands(dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    a, b = torch.meshgrid(x, x, indexing="ij")
    ops = torch.ops.aten
    names = "add.Tensor sub.Tensor mul.Tensor div.Tensor pow.Tensor_Tensor tanh_backward "
    names += "sigmoid_backward silu_backward"
    calls: dict[str, tuple[Any, ...]] = {}
    for name in names.split():
        base, _, overload = name.partition(".")
        calls[name] = (getattr(getattr(ops, base), overload or "default"), a, b)
    calls["clamp"] = (lambda a, b: torch.clamp(a, b, a.t()) + 0.0, a, b)
    calls["where"] = (lambda a, b: torch.where(a > b, a, b), a, b)
    calls["threshold_backward"] = (lambda a, b: ops.threshold_backward(a, b, 0), a, b)
    assert told(calls) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("number", NUMBERS)
def test_special_values_and_a_number(dtype: torch.dtype, number: float) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    calls: dict[str, tuple[Any, ...]] = {
        "clamp": (lambda x: x.clamp(number, 1.0), x),
        "clamp max": (lambda x: x.clamp(max=number), x),
        "mul": (lambda x: x * number, x),
        "number to a power": (lambda x: number**x, x),
    }
    if dtype is not torch.float16 or abs(number) != 0.5:  # there the CPU takes no root
        calls["power"] = (lambda x: x**number, x)
    if number == number and abs(number) != INF:
        finite = x[x.isfinite()]
        calls["lerp"] = (lambda x: torch.lerp(x, x.flip(0), number), finite)
        calls["alpha"] = (lambda x: torch.add(x, x.flip(0), alpha=number), finite)
    assert told(calls) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGRAL)
def test_integers_at_their_limits(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    values = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3]
    values += [2**53 + 1] if dtype is torch.int64 else []
    x = torch.tensor(values, dtype=dtype)
    a, b = torch.meshgrid(x, x, indexing="ij")
    calls: dict[str, tuple[Any, ...]] = {
        "add": (torch.add, a, b),
        "sub": (torch.sub, a, b),
        "mul": (torch.mul, a, b),
        "sum": (lambda a: a.sum(0), a),
        "amax": (lambda a: a.amax(1), a),
        "max": (lambda a: a.max(1), a),
        "relu": (torch.relu, a),
        "neg": (torch.neg, a),
    }
    for number in (1, 3, -1, 2**31, 2**53 + 1, 0.5):
        calls |= {
            f"+ {number}": (lambda x, n=number: x + n, x),
            f"* {number}": (lambda x, n=number: x * n, x),
            f"clamp {number}": (lambda x, n=number: x.clamp(min=n), x),
            f"clamp max {number}": (lambda x, n=number: x.clamp(max=n), x),
            f"alpha {number}": (lambda a, b, n=number: torch.add(a, b, alpha=n), a, b),
        }
    assert told(calls) == {}


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("other", [torch.int16, torch.int32, torch.int64])
def test_operands_become_half_before_they_are_computed_with(
    half: torch.dtype, other: torch.dtype
) -> None:
    x = torch.tensor([[2049], [32767], [-32767], [4097]], dtype=other)
    y = torch.tensor([-2048.0, 32767, 1, 3], dtype=half)
    calls = {name: (getattr(torch, name), x, y) for name in ("add", "sub", "mul", "div")}
    assert told(calls) == {}


INDEX = torch.tensor([[3, 2, 1, 0]] * 4)


def test_a_result_on_top_of_an_operand() -> None:
    """What the CPU computes is computed, what it refuses is refused."""

    def into(call: Callable[[torch.Tensor, torch.Tensor], Any]) -> tuple[Call, torch.Tensor]:
        def run(x: torch.Tensor) -> Any:
            x = x.clone()
            return call(x, x.view(4, 4))

        return run, torch.linspace(-2, 3, 16).view(4, 4)

    numbers = torch.empty(4, 4, dtype=torch.int64)
    calls = {
        "sort": into(lambda x, o: torch.sort(x, 1, out=(o, numbers.to(x.device)))),
        "sort stable": into(
            lambda x, o: torch.sort(x, dim=0, stable=True, out=(o, numbers.to(x.device)))
        ),
        "topk": into(lambda x, o: torch.topk(x, 4, out=(o, numbers.to(x.device)))),
        "cumsum": into(lambda x, o: torch.cumsum(x, 0, out=o)),
        "cat": into(lambda x, o: torch.cat([x[2:], x[:2]], out=o)),
        "gather": into(lambda x, o: torch.gather(x, 0, INDEX.to(x.device), out=o)),
        "index_select": into(lambda x, o: torch.index_select(x, 0, INDEX[0].to(x.device), out=o)),
        "scatter_add": into(lambda x, o: torch.scatter_add(x, 0, INDEX.to(x.device), x, out=o)),
        "scatter_add_": into(lambda x, o: x.scatter_add_(0, INDEX.to(x.device), o)),
        "addmm_": into(lambda x, o: x.addmm_(x, x)),
        "addmm": into(lambda x, o: torch.addmm(x, x * 1, x * 2, out=o)),
    }
    assert told(calls) == {}


@pytest.mark.parametrize("others", [torch.float64, torch.int64, torch.float16, torch.bool])
def test_mixed_dtypes(others: torch.dtype) -> None:
    x = torch.tensor([[0.5, -1.25, 3.0], [2.0, 4.0, -8.0]])
    y = (x * 2).to(others)
    row = y[0].clone()
    index = torch.tensor([[0, 1, 0], [1, 0, 1]])
    # Plans for one dtype come first: those for two have to be others.
    assert difference(torch.cat, [x, x]) == ""
    assert difference(lambda x: torch.layer_norm(x, (3,), x[0], x[0]), x) == ""
    calls: dict[str, tuple[Any, ...]] = {
        "cat": (torch.cat, [x, y]),
        "cat of three": (torch.cat, [x, x, y]),
        "layer_norm": (lambda x, w: torch.layer_norm(x, (3,), w), x, row),
        "softmax gradient": (
            lambda x, y: torch.ops.aten._softmax_backward_data(x, y, 1, torch.float32), x, y
        ),
        "mm": (lambda x, y: torch.mm(x, y.t()), x, y),
        "addmm": (lambda x, w: torch.addmm(w, x, x[:, :3].t() @ x), x, row),
        "scatter_add": (lambda x, y, i: torch.scatter_add(x, 0, i, y), x, y, index),
        "nll_loss": (
            lambda x, w: torch.nn.functional.nll_loss(
                x, torch.tensor([1, 2], device=x.device), w
            ), x, row
        ),
        "add": (torch.add, x, y),
        "mul": (torch.mul, x, y),
        "lerp": (lambda x, y: torch.lerp(x, x, y), x, y),
    }  # fmt: skip
    assert told(calls) == {}


def test_no_elements() -> None:
    x = torch.randn(2, 3, 4)
    calls: dict[str, tuple[Any, ...]] = {}
    for size in ((0, 3, 2), (2, 0, 3), (2, 3, 0), (0, 0, 0)):
        a, b = torch.randn(size[0], size[1]), torch.randn(size[1], size[2])
        bias = torch.full((size[2],), 2.0)
        calls[f"mm {size}"] = (torch.mm, a, b)
        calls[f"bmm {size}"] = (lambda a, b: torch.bmm(a[None], b[None]), a, b)
        calls[f"addmm {size}"] = (lambda a, b, c: torch.addmm(c, a, b, beta=0.5), a, b, bias)
    for dim in (0, 2):
        shrunk = x.narrow(dim, 0, 0)
        calls[f"softmax {dim}"] = (lambda x: torch.softmax(x, 1), shrunk)
        calls[f"sum {dim}"] = (lambda x: x.sum(dim=(0, 2)), shrunk)
        calls[f"mean {dim}"] = (lambda x: x.mean(dim=(0, 2)), shrunk)
        calls[f"amax {dim}"] = (lambda x: x.amax(1), shrunk)
        calls[f"cumsum {dim}"] = (lambda x: x.cumsum(1), shrunk)
        calls[f"sort {dim}"] = (lambda x: x.sort(dim=1, stable=True), shrunk)
        calls[f"layer_norm {dim}"] = (
            lambda x: torch.native_layer_norm(x, x.shape[2:], None, None, 1e-5),
            shrunk,
        )
    calls["alpha 0"] = (lambda x: torch.addmm(x[0], x[0] * INF, x[1].t() @ x[1], alpha=0), x)
    calls["beta 0"] = (lambda x: torch.addmm(x[0] * NAN, x[0], x[1].t() @ x[1], beta=0), x)
    assert told(calls) == {}


def test_a_tensor_of_the_host_among_the_devices_is_refused_or_a_number() -> None:
    x = torch.randn(3, 4)
    there = x.to("npu")
    for call in (
        lambda: torch.cat([there, x]),
        lambda: torch.mm(there, x.t()),
        lambda: torch.index_select(there, 0, torch.tensor([1])),
        lambda: torch.layer_norm(there, (4,), x[0]),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()
    torch.testing.assert_close(torch.lerp(there, there, torch.tensor(0.5)).cpu(), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [(1, 1), (5, 37), (13, 70), (70, 13)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [1, 3])
def test_attention_and_its_gradients_at_the_edges_of_blocks(
    dtype: torch.dtype, lengths: tuple[int, int], causal: bool, shared: int
) -> None:
    torch.manual_seed(0)
    rows, keys = lengths
    shapes = [(2, 3, rows, 33), (2, 3 // shared, keys, 33), (2, 3 // shared, keys, 33)]
    given = [torch.randn(shape, dtype=dtype) for shape in shapes]
    mask = torch.randn(lengths, dtype=dtype)
    mask[0, : lengths[1] // 2] = -INF

    def both(*tensors: torch.Tensor) -> list[torch.Tensor]:
        leaves = [t.detach().transpose(1, 2).requires_grad_() for t in tensors[:3]]
        heads = [leaf.transpose(1, 2) for leaf in leaves]
        with_mask = None if causal else tensors[3]
        out = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=with_mask, is_causal=causal, enable_gqa=shared > 1
        )
        grads = torch.autograd.grad(out, leaves, torch.cos(out.detach()))
        return [t + 0.0 for t in (out.detach(), *grads)]  # zeros without a sign

    devices.fallback_report(reset=True)
    assert difference(both, *given, mask) == ""
    native = {row.operator for row in devices.fallback_report().native}
    assert "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in native


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(2, 4, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)], "do not divide"),
        ([(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 6, 8)], "keys and values differ"),
        ([(2, 4, 5, 8), (1, 4, 7, 8), (1, 4, 7, 8)], "batches differ"),
        ([(2, 4, 5, 8), (2, 4, 7, 6), (2, 4, 7, 8)], "differ in size"),
    ],
)
def test_attention_refuses_what_it_would_read_beside(
    shapes: list[tuple[int, ...]], words: str
) -> None:
    tensors = [torch.randn(shape, device="npu") for shape in shapes]

    def attend() -> None:
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*tensors)
        torch.npu.synchronize()

    with pytest.raises(RuntimeError, match=words):
        attend()


LAID_OUT: list[Call] = [
    torch.add,
    torch.maximum,
    lambda x, y: torch.addcmul(x, x, y, value=2),
    lambda x, y: x * 2,
    lambda x, y: 1 - x,
    lambda x, y: x < 0,
    lambda x, y: torch.where(x > 0, x, 2.0),
    lambda x, y: x.abs() ** 2.5,
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: torch.add(x, 2, out=torch.empty(0, device=x.device)),
    lambda x, y: x.half() + y,
]


def with_any_strides(draw: random.Random, shape: list[int]) -> torch.Tensor:
    """A permuted tensor, one with gaps, or one whose dimensions of size 1 have any strides."""
    order = draw.sample(range(len(shape)), len(shape))
    spread = [shape[d] + draw.choice((0, 0, 2)) for d in order]
    made = torch.randn(spread).permute([order.index(d) for d in range(len(shape))])
    made = made[tuple(slice(0, n) for n in shape)]
    if draw.random() < 0.3:
        made = made.contiguous()
        strides = [
            draw.choice((0, 1, 7)) if n == 1 else step
            for n, step in zip(shape, made.stride(), strict=True)
        ]
        made = made.as_strided(shape, strides)
    return made


def test_results_lie_as_the_cpus() -> None:
    for seed in range(sized(50, 5000)):
        draw = random.Random(seed)
        shape = [draw.choice((1, 1, 2, 3)) for _ in range(draw.randint(0, 4))]
        x = with_any_strides(draw, shape)
        y = with_any_strides(draw, [n if draw.random() < 0.7 else 1 for n in shape])
        there = [torch.empty_strided(t.shape, t.stride(), device="npu").copy_(t) for t in (x, y)]
        for number, call in enumerate(LAID_OUT):
            wanted, got = call(x, y), call(*there)
            assert got.stride() == wanted.stride(), (seed, number, x.shape, x.stride(), y.stride())
