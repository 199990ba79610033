"""OpInfo on the simulator's own kernels (drivers/sim_ops): the CPU's results and gradients."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.sweeps import indexed_calls
from tests.sweeps.support import part
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

import bringup_sim_ops
from bringup import devices, errors, graphs
from bringup.conformance._opinfo import operators, sweep

# By the names of torch's OpInfos. `native`: the kernel that they have to reach in float32.
OPERATORS = {
    "add": "add.Tensor",
    "sub": "sub.Tensor",
    "mul": "mul.Tensor",
    "neg": "neg",
    "addcmul": "addcmul",
    "where": "where.self",
    "clamp": "clamp.Tensor",
    "nn.functional.relu": "relu",
    "div": "div.Tensor",
    "pow": "pow.Tensor_Tensor",
    "reciprocal": "reciprocal",
    "addcdiv": "addcdiv",
    "lerp": "lerp.Tensor",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "exp": "exp",
    "log": "log",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "nn.functional.silu": "silu",
    "nn.functional.gelu": "gelu",
    "native_dropout_backward": "native_dropout_backward",
    "nn.functional.rms_norm": "rsqrt",
    "abs": "abs.out",
    "maximum": "maximum",
    "minimum": "minimum",
    "eq": "eq.Tensor",
    "ne": "ne.Tensor",
    "lt": "lt.Tensor",
    "le": "le.Tensor",
    "gt": "gt.Tensor",
    "ge": "ge.Tensor",
    "exp2": "exp2",
    "expm1": "expm1",
    "log1p": "log1p",
    "log2": "log2",
    "log10": "log10",
    "sin": "sin",
    "cos": "cos",
    "erf": "erf",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "nn.functional.leaky_relu": "leaky_relu",
    "nn.functional.logsigmoid": "log_sigmoid_forward",
    "nn.functional.prelu": "_prelu_kernel",
    "sum": "sum.dim_IntList",
    "mean": "mean.dim",
    "amax": "amax",
    "max": "max",
    "argmax": "argmax",
    "linalg.vector_norm": "linalg_vector_norm",
    "mm": "mm",
    "bmm": "bmm",
    "addmm": "addmm",
    "nn.functional.linear": "addmm",
    "softmax": "_softmax",
    "log_softmax": "_log_softmax",
    "nn.functional.layer_norm": "native_layer_norm",
    "native_layer_norm": "native_layer_norm",
    "nn.functional.nll_loss": "nll_loss_forward",
    "nn.functional.cross_entropy": "nll_loss2d_forward",
    "nn.functional.scaled_dot_product_attention": "_scaled_dot_product_flash_attention_for_cpu",
    "index_select": "index_select",
    "gather": "gather",
    "__getitem__": "index.Tensor",
    "scatter_add": "scatter_add",
    "nn.functional.embedding": "index_select",
    "cumsum": "cumsum",
    "sort": "sort.stable",
    "topk": "topk",
    "cat": "cat",
}
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64")


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    devices.load_driver("sim")
    bringup_sim_ops.load()
    yield
    bringup_sim_ops.unload()


def cases() -> list[Any]:
    chosen = []
    for name in DTYPES:
        dtype = getattr(torch, name)
        for op in part([op for op in operators(dtype) if op.name in OPERATORS]):
            chosen.append(pytest.param(op, dtype, id=f"{name}-{op.full_name}"))
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), cases())
def test_a_kernel_gives_the_cpus_results_and_gradients(
    op: Any, dtype: torch.dtype, sweep_counts: Counter[str]
) -> None:
    assert list(sweep(op, dtype, sweep_counts, "npu")) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", part(list(OPERATORS)))
def test_the_samples_reach_the_kernel(name: str) -> None:
    reached = set()
    for op in operators(torch.float32):
        if op.name == name:
            devices.fallback_report(reset=True)
            list(sweep(op, torch.float32, Counter(), "npu"))
            reached |= {row.operator for row in devices.fallback_report().native}
    assert f"aten::{OPERATORS[name]}" in reached


def _turned(x: torch.Tensor, device: str) -> torch.Tensor:
    """Return a copy whose last dimension lies farthest apart in memory."""
    order = range(x.dim())[::-1]
    made = torch.empty([x.shape[d] for d in order], dtype=x.dtype, device=device)
    return made.permute(tuple(order)).copy_(x.detach()).requires_grad_(x.requires_grad)


def _results_and_gradients(info: Any, sample: Any, device: str) -> list[torch.Tensor]:
    values = (sample.input, sample.args, sample.kwargs)
    values = tree_map_only(torch.Tensor, functools.partial(_turned, device=device), values)
    results = tree_leaves(info.op(values[0], *values[1], **values[2]))
    leaves = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor) and x.requires_grad]
    outs = [x for x in results if x.requires_grad]
    grads = [_turned(torch.arange(1.0, x.numel() + 1).sin().reshape(x.shape), device) for x in outs]
    found = torch.autograd.grad(outs, leaves, grads, allow_unused=True) if outs and leaves else ()
    return [x.detach().cpu() for x in (*results, *found) if x is not None]


@pytest.mark.parametrize("name", part(list(OPERATORS), always=["nn.functional.layer_norm"]))
def test_memory_in_another_order_changes_nothing(name: str) -> None:
    """Nor in that of a gradient that comes back."""
    for info in op_db:
        if info.name != name or not info.supports_autograd:
            continue
        for sample in itertools.islice(info.sample_inputs("cpu", torch.float32, True), 6):
            if sample.kwargs.get("dropout_p"):
                continue
            want, found = (_results_and_gradients(info, sample, d) for d in ("cpu", "npu"))
            torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def draws(name: str) -> bool:
    operator = getattr(torch.ops.aten, name.removeprefix("aten::"))
    forms = [getattr(operator, overload) for overload in operator.overloads()]
    return any(torch.Tag.nondeterministic_seeded in form.tags for form in forms)


def test_the_samples_are_of_every_kernel() -> None:
    """But for gradients, which the backward passes of these reach, and random numbers, which have
    tests of their own.
    """
    covered = {f"aten::{native}".partition(".")[0] for native in OPERATORS.values()}
    tabled = {operator.name.partition(".")[0] for operator in bringup_sim_ops.OPERATORS}
    left = {name for name in tabled - covered if "backward" not in name}
    assert {name for name in left if not draws(name)} == set()


def test_indices_of_every_form_choose_what_they_choose_on_the_cpu() -> None:
    assert indexed_calls.compare("npu") > 0


def test_an_index_outside_is_named() -> None:
    x, index = torch.ones(3, 4, device="npu"), torch.tensor([0, -5]).to("npu")
    x[:, index]
    words = "'aten::index.Tensor' .* index -5 is outside dimension 1 of size 4"
    with pytest.raises(errors.KernelError, match=words):
        torch.npu.synchronize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("exponent", [-1, 0, 1, 2, 3, 0.5, -0.5, 2.5])
def test_powers_of_numbers_are_the_cpus(dtype: torch.dtype, exponent: float) -> None:
    x = torch.tensor([-3, -1, 0, 1, 2, 7, float("nan"), float("inf")])
    x = x[:6].to(dtype) if dtype is torch.int64 else x.to(dtype)
    there = x.to("npu")
    if dtype is torch.int64 and exponent == -1:
        with pytest.raises(RuntimeError, match="negative integer powers"):
            there**exponent
        return
    devices.fallback_report(reset=True)
    torch.testing.assert_close((there**exponent).cpu(), x**exponent, equal_nan=True)
    if dtype.is_floating_point:
        assert devices.fallback_report().rows == ()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8])
def test_powers_of_integers_wrap_and_negative_exponents_cut(dtype: torch.dtype) -> None:
    least = 0 if dtype is torch.uint8 else -3
    x, y = torch.meshgrid(
        torch.arange(least, 6, dtype=dtype), torch.arange(least, 40, dtype=dtype), indexing="ij"
    )
    assert torch.equal((x.to("npu") ** y.to("npu")).cpu(), x**y)


@pytest.mark.parametrize("name", ["silu", "nll_loss2d"])
def test_a_gradient_reaches_its_own_kernel(name: str) -> None:
    x = torch.randn(2, 3, 4, 4).to("npu").requires_grad_()
    devices.fallback_report(reset=True)
    if name == "silu":
        torch.nn.functional.silu(x).sum().backward()
    else:
        target = torch.zeros(2, 4, 4, dtype=torch.int64, device="npu")
        torch.nn.functional.nll_loss(x, target).backward()
    report = devices.fallback_report()
    assert f"aten::{name}_backward" in {row.operator for row in report.native}
    assert f"aten::{name}_backward" not in {row.operator for row in report.rows}


def test_a_gradient_of_silus_gradient_is_the_cpus() -> None:
    """torch makes it of operators that have gradients, not of `silu_backward`."""
    found = []
    for device in ("cpu", "npu"):
        x = torch.linspace(-3, 3, 9).to(device).requires_grad_()
        (grad,) = torch.autograd.grad(torch.nn.functional.silu(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), x)[0].cpu())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_as_exact_as_the_cpus(causal: bool) -> None:
    """Scores of 30, whose exponentials magnify what float32 rounds: measured against float64."""
    torch.manual_seed(0)
    given = [torch.randn(2, 4, n, 8) * 6 for n in (3, 6, 6)]
    found = {}
    for device, dtype in (("cpu", torch.float64), ("cpu", torch.float32), ("npu", torch.float32)):
        leaves = [t.to(device, dtype).requires_grad_() for t in given]
        result = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        grads = torch.autograd.grad(result.square().sum(), leaves)
        found[device, dtype] = [t.detach().cpu().double() for t in (result, *grads)]
    for exact, theirs, ours in zip(*found.values(), strict=True):
        bound = 3 * (theirs - exact).abs().max() + 1e-6 * exact.abs().max()
        assert (ours - exact).abs().max() <= bound


def _attention(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    query, key, value = torch.nn.functional.linear(x, weight).chunk(3, dim=-1)
    heads = [t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (query, key, value)]
    out = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    out = torch.nn.functional.layer_norm(x + out.transpose(1, 2).flatten(2), (8,), scale)
    return torch.nn.functional.gelu(out).square().mean()


def _with_gradients(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    loss = _attention(*leaves)
    return (loss.detach(), *torch.autograd.grad(loss, leaves))


def test_a_captured_graph_of_the_kernels_replays_on_changed_inputs() -> None:
    """Products, attention, layer_norm, gelu and their gradients: nothing of them on the host."""
    torch.manual_seed(0)
    shapes = [(2, 5, 8), (24, 8), (8,)]
    leaves = [torch.randn(shape).to("npu").requires_grad_() for shape in shapes]
    _with_gradients(*leaves)  # compiles
    torch.npu.synchronize()
    devices.fallback_report(reset=True)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        captured = _with_gradients(*leaves)
    assert {row.operator for row in devices.fallback_report().rows} == set()
    for seed in (1, 2):
        torch.manual_seed(seed)
        changed = [torch.randn(shape) for shape in shapes]
        with torch.no_grad():
            for leaf, new in zip(leaves, changed, strict=True):
                leaf.copy_(new)
        graph.replay()
        torch.npu.synchronize()
        expected = _with_gradients(*(new.requires_grad_() for new in changed))
        for got, want in zip(captured, expected, strict=True):
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
