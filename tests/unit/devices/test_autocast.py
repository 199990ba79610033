"""Autocast on a device: torch's own policy lists, its cache, its warnings, its decorators."""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

DTYPES = [torch.float16, torch.bfloat16]
N = 4


def u(*size: int) -> Tensor:
    """Numbers in (0.1, 0.9), for which every function of the lists is defined."""
    return torch.rand(size, generator=torch.Generator().manual_seed(sum(size))) * 0.8 + 0.1


def ones(*size: int) -> Tensor:
    return torch.ones(size, dtype=torch.long)


def policies() -> dict[str, str]:
    """`name.overload` of each operator in the lists of the installed ATen/autocast_mode.h."""
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text().replace("\\\n", "\n")
    found: dict[str, str] = {}
    for name in ("LOWER_PRECISION_FP", "FP32", "FP32_SET_OPT_DTYPE", "PROMOTE"):
        body = re.search(rf"#define AT_FORALL_{name}\(_\)(.*?)\n\s*\n", text, re.DOTALL)
        assert body is not None, name
        for operator, overload in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body.group(1)):
            found[f"{operator}.{overload}" if overload else operator] = name
    redispatched = text.split("#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(_)")[1]
    found.update(dict.fromkeys(re.findall(r'"(norm\.\w+)"', redispatched), "FP32_APPEND_DTYPE"))
    return found


POLICIES = policies()
CONV = (1, 1), (0, 0), (1, 1), False, (0, 0), 1
LOSS = (u(N, N), u(N, N).flip(0))
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "_convolution.deprecated": (u(2, 2, 5, 5), u(2, 2, 3, 3), u(2), *CONV, False, True, True),
    "_convolution": (u(2, 2, 5, 5), u(2, 2, 3, 3), u(2), *CONV, False, True, True, True),
    "convolution": (u(2, 2, 5, 5), u(2, 2, 3, 3), u(2), *CONV),
    "conv1d": (u(2, 2, 5), u(2, 2, 3), u(2)),
    "conv2d": (u(2, 2, 5, 5), u(2, 2, 3, 3), u(2)),
    "conv3d": (u(2, 2, 5, 5, 5), u(2, 2, 3, 3, 3), u(2)),
    "conv_tbc": (u(5, 2, 3), u(3, 3, 4), u(4)),
    "conv_transpose1d": (u(2, 2, 5), u(2, 2, 3)),
    "conv_transpose2d.input": (u(2, 2, 5, 5), u(2, 2, 3, 3)),
    "conv_transpose3d.input": (u(2, 2, 3, 3, 3), u(2, 2, 2, 2, 2)),
    "prelu": (u(N, N) - 0.5, u(1)),
    "addmm": (u(N, N), u(N, N), u(N, N)),
    "addmv": (u(N), u(N, N), u(N)),
    "addr": (u(N, N), u(N), u(N)),
    "matmul": (u(2, N, N), u(N, N)),
    "einsum": ("bi,ij->bj", [u(N, N), u(N, N)]),
    "mm": (u(N, N), u(N, N)),
    "mv": (u(N, N), u(N)),
    "linalg_vecdot": (u(N, N), u(N, N)),
    "linear": (u(N, N), u(N, N), u(N)),
    "addbmm": (u(N, N), u(2, N, N), u(2, N, N)),
    "baddbmm": (u(2, N, N), u(2, N, N), u(2, N, N)),
    "bmm": (u(2, N, N), u(2, N, N)),
    "chain_matmul": ([u(N, N), u(N, N), u(N, N)],),
    "linalg_multi_dot": ([u(N, N), u(N, N), u(N, N)],),
    "rnn_tanh_cell": (u(N, N), u(N, N), u(N, N), u(N, N), u(N), u(N)),
    "rnn_relu_cell": (u(N, N), u(N, N), u(N, N), u(N, N), u(N), u(N)),
    "scaled_dot_product_attention": (u(2, 2, N, N), u(2, 2, N, N), u(2, 2, N, N)),
    "pow.Tensor_Scalar": (u(N), 1.7),
    "pow.Tensor_Tensor": (u(N), u(N)),
    "pow.Scalar": (1.7, u(N)),
    "layer_norm": (u(N, N), [N], u(N), u(N)),
    "native_layer_norm": (u(N, N), [N], u(N), u(N), 1e-5),
    "rms_norm": (u(N, N), [N], u(N)),
    "group_norm": (u(N, N, 3), 2, u(N), u(N)),
    "frobenius_norm.dim": (u(N, N), [0, 1]),
    "nuclear_norm": (u(N, N),),
    "nuclear_norm.dim": (u(N, N), [0, 1]),
    "cosine_similarity": LOSS,
    "poisson_nll_loss": (*LOSS, True, False, 1e-8, 1),
    "cosine_embedding_loss": (*LOSS, ones(N)),
    "nll_loss": (u(N, N), ones(N)),
    "nll_loss2d": (u(N, N, N, N), ones(N, N, N)),
    "hinge_embedding_loss": (u(N, N), ones(N, N)),
    "kl_div": LOSS,
    "l1_loss": LOSS,
    "smooth_l1_loss": LOSS,
    "huber_loss": LOSS,
    "mse_loss": LOSS,
    "margin_ranking_loss": (*LOSS, ones(N, N)),
    "multilabel_margin_loss": (u(N, N), ones(N, N)),
    "soft_margin_loss": (u(N, N), ones(N, N)),
    "triplet_margin_loss": (*LOSS, u(N, N) * 0.3),
    "multi_margin_loss": (u(N, N), ones(N)),
    "binary_cross_entropy_with_logits": LOSS,
    "dist": LOSS,
    "pdist": (u(N, N),),
    "cdist": LOSS,
    "renorm": (u(N, N), 2, 0, 1.0),
    "logsumexp": (u(N, N), [1]),
    "upsample_nearest1d": (u(2, 2, N), [7]),
    "_upsample_nearest_exact1d": (u(2, 2, N), [7]),
    "upsample_nearest2d": (u(2, 2, N, N), [7, 7]),
    "_upsample_nearest_exact2d": (u(2, 2, N, N), [7, 7]),
    "upsample_nearest3d": (u(2, 2, N, N, N), [7, 7, 7]),
    "_upsample_nearest_exact3d": (u(2, 2, N, N, N), [7, 7, 7]),
    "upsample_linear1d": (u(2, 2, N), [7], False),
    "upsample_bilinear2d": (u(2, 2, N, N), [7, 7], False),
    "_upsample_bilinear2d_aa": (u(2, 2, N, N), [7, 7], False),
    "upsample_trilinear3d": (u(2, 2, N, N, N), [7, 7, 7], False),
    "upsample_bicubic2d": (u(2, 2, N, N), [7, 7], False),
    "_upsample_bicubic2d_aa": (u(2, 2, N, N), [7, 7], False),
    "prod": (u(N, N),),
    "prod.dim_int": (u(N, N), 1),
    "softmax.int": (u(N, N), 1),
    "log_softmax.int": (u(N, N), 1),
    "cumprod": (u(N, N), 1),
    "cumsum": (u(N, N), 1),
    "linalg_vector_norm": (u(N, N),),
    "linalg_matrix_norm": (u(N, N), 1),
    "linalg_matrix_norm.str_ord": (u(N, N), "fro"),
    "sum": (u(N, N),),
    "sum.dim_IntList": (u(N, N), [1]),
    "norm.Scalar": (u(N, N), 2),
    "norm.ScalarOpt_dim": (u(N, N), 2, [1], False),
    "addcdiv": (u(N), u(N), u(N)),
    "addcmul": (u(N), u(N), u(N)),
    "atan2": (u(N), u(N)),
    "bilinear": (u(1, 2), u(1, 2), u(1, 2, 2), u(1)),
    "cross": (u(2, 3), u(2, 3)),
    "dot": (u(N), u(N)),
    "vdot": (u(N), u(N)),
    "grid_sampler": (u(2, 3, 5, 6), u(2, 7, 4, 2), 0, 0, False),
    "index_put": (u(N), [ones(1)], u(1)),
    "tensordot": (u(2, 2, 2), u(2, 2, 2), [0], [1]),
    "scatter_add": (u(2, 2), 0, ones(2, 2), u(2, 2)),
}
ARGUMENTS.update(
    dict.fromkeys(
        [
            "acos",
            "asin",
            "cosh",
            "erfinv",
            "exp",
            "expm1",
            "log",
            "log10",
            "log2",
            "log1p",
            "reciprocal",
            "rsqrt",
            "sinh",
            "softplus",
            "tan",
        ],
        (u(N, N),),
    ),
)
UNREACHABLE = {
    "_thnn_fused_lstm_cell": "has no CPU kernel to fall back on",
    "_thnn_fused_gru_cell": "has no CPU kernel to fall back on",
    "lstm_cell": "calls _thnn_fused_lstm_cell",
    "gru_cell": "calls _thnn_fused_gru_cell",
    "_scaled_dot_product_flash_attention": "has CUDA kernels only",
}


def cast(value: object, to: Callable[[Tensor], Tensor]) -> object:
    """The arguments with every floating-point tensor replaced."""
    if isinstance(value, Tensor):
        return to(value) if value.is_floating_point() else value
    return type(value)(cast(v, to) for v in value) if isinstance(value, list | tuple) else value


def on_npu(value: object) -> object:
    if isinstance(value, Tensor):
        return value.to("npu")
    return type(value)(on_npu(v) for v in value) if isinstance(value, list | tuple) else value


def tensors(value: object) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def operator(name: str) -> Callable[..., object]:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def given_dtypes(policy: str, low: torch.dtype) -> list[Callable[[Tensor], Tensor]]:
    """How to cast the arguments of an operator, one after the other."""
    if policy != "PROMOTE":
        return [lambda t: t.float(), lambda t: t.to(low)]
    wide_first = itertools.chain([torch.float32], itertools.repeat(low))
    wide_second = itertools.cycle([low, torch.float32])
    return [
        lambda t: t.to(next(wide_first)),
        lambda t: t.to(next(wide_second)),
        lambda t: t.to(low),
        lambda t: t.float(),
    ]


def expected_dtype(policy: str, low: torch.dtype, arguments: list[object]) -> torch.dtype:
    if policy == "LOWER_PRECISION_FP":
        return low
    if policy != "PROMOTE":
        return torch.float32
    seen: list[torch.dtype] = []
    cast(arguments, lambda t: seen.append(t.dtype) or t)
    return torch.float32 if torch.float32 in seen else low


@pytest.mark.parametrize("low", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(POLICIES.keys() - UNREACHABLE.keys()))
def test_operator_of_torchs_lists_computes_in_the_dtype_of_its_policy(
    name: str, low: torch.dtype
) -> None:
    policy = POLICIES[name]
    for give in given_dtypes(policy, low):
        arguments = cast(list(ARGUMENTS[name]), give)
        wanted = expected_dtype(policy, low, arguments)
        given = on_npu(arguments)
        with torch.autocast("npu", dtype=low):
            got = tensors(operator(name)(*given))
        widen = functools.partial(Tensor.to, dtype=wanted)
        by_hand = tensors(operator(name)(*cast(given, widen)))
        on_cpu = tensors(operator(name)(*cast(arguments, widen)))
        for result, control, host in zip(got, by_hand, on_cpu, strict=True):
            assert result.device.type == "npu"
            assert result.dtype == wanted
            assert torch.equal(result, control)
            torch.testing.assert_close(result.cpu(), host, rtol=2e-2, atol=2e-2)


def test_every_operator_of_torchs_lists_is_tried_or_has_its_reason() -> None:
    assert len(POLICIES) > 110
    assert set(POLICIES) == set(ARGUMENTS) | set(UNREACHABLE)


def test_the_device_has_an_autocast_kernel_where_cuda_has_one() -> None:
    names = torch._C._dispatch_get_all_op_names()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    cuda = {n for n in names if n.startswith("aten::") and has(n, "AutocastCUDA")}
    npu = {n for n in names if n.startswith("aten::") and has(n, "AutocastPrivateUse1")}
    assert len(npu) > 110
    assert {n for n in cuda ^ npu if "cudnn" not in n} == set()


@pytest.mark.parametrize("low", DTYPES, ids=str)
def test_operators_that_promote_themselves_mix_dtypes(low: torch.dtype) -> None:
    wide, narrow = u(N).to("npu"), u(N).to("npu", low)
    with torch.autocast("npu", dtype=low):
        assert (wide + narrow).dtype == torch.float32
        assert torch.cat([wide, narrow]).dtype == torch.float32
        assert torch.stack([narrow, wide]).dtype == torch.float32
        assert (wide == narrow).dtype == torch.bool


def test_matmul_of_two_dtypes_raises_outside_and_works_inside() -> None:
    wide, narrow = u(N, N).to("npu"), u(N, N).to("npu", torch.bfloat16)
    with pytest.raises(RuntimeError, match="same dtype"):
        wide @ narrow
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (wide @ narrow).dtype == torch.bfloat16


def test_float64_is_left_alone_and_is_not_mixed_by_promoting_operators() -> None:
    wide = u(N, N).to("npu", torch.float64)
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (wide @ wide).dtype == torch.float64
        assert wide.exp().dtype == torch.float64
        assert wide.sum().dtype == torch.float64


def test_integers_are_left_alone() -> None:
    with torch.autocast("npu"):
        assert ones(N, N).to("npu").sum().dtype == torch.int64


@pytest.mark.parametrize("module", [torch.nn.functional.binary_cross_entropy, torch.nn.BCELoss()])
def test_binary_cross_entropy_is_refused_with_what_to_use_instead(
    module: Callable[..., Tensor],
) -> None:
    x, y = u(N, N).to("npu"), u(N, N).to("npu")
    with torch.autocast("npu"):
        with pytest.raises(RuntimeError, match=r"unsafe to autocast.*with_logits"):
            module(x, y)
        with torch.autocast("npu", enabled=False):
            assert module(x, y).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_unsupported_dtype_warns_and_casts_nothing(dtype: torch.dtype) -> None:
    x = u(N, N).to("npu")
    with pytest.warns(UserWarning, match="the target dtype is not supported"):
        context = torch.autocast("npu", dtype=dtype)
    with context:
        assert not torch.is_autocast_enabled("npu")
        assert (x @ x).dtype == torch.float32


def test_nested_contexts_switch_on_and_off_and_restore() -> None:
    x = u(N, N).to("npu")
    with torch.autocast("npu", dtype=torch.float16):
        assert (x @ x).dtype == torch.float16
        with torch.autocast("npu", enabled=False):
            assert (x @ x).dtype == torch.float32
            with torch.autocast("npu", dtype=torch.bfloat16):
                assert (x @ x).dtype == torch.bfloat16
            assert (x @ x).dtype == torch.float32
        assert torch.get_autocast_dtype("npu") == torch.float16
        assert (x @ x).dtype == torch.float16
    assert not torch.is_autocast_enabled("npu")
    assert (x @ x).dtype == torch.float32


def test_default_dtype_is_half_and_can_be_set() -> None:
    assert torch.get_autocast_dtype("npu") == torch.float16
    torch.set_autocast_dtype("npu", torch.bfloat16)
    try:
        with torch.autocast("npu"):
            assert (u(N, N).to("npu") @ u(N, N).to("npu")).dtype == torch.bfloat16
    finally:
        torch.set_autocast_dtype("npu", torch.float16)


def test_autocast_of_the_device_leaves_cpu_tensors_alone_and_the_other_way_round() -> None:
    host, device = u(N, N), u(N, N).to("npu")
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert (host @ host).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (device @ device).dtype == torch.float32


class Casts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the casts to a lower dtype."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and kwargs["dtype"] in DTYPES:
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("cache", "casts"), [(True, 1), (False, 3)])
def test_a_weight_is_cast_once_in_a_context_and_again_in_the_next(cache: bool, casts: int) -> None:
    weight = torch.nn.Parameter(u(N, N).to("npu"))
    x = u(N, N).to("npu", torch.bfloat16)
    for _ in range(2):
        with Casts() as counted, torch.autocast("npu", torch.bfloat16, cache_enabled=cache):
            for _ in range(3):
                torch.nn.functional.linear(x, weight)
        assert counted.count == casts
        with torch.no_grad():
            weight += 1  # a kept cast would be the weight of before
    with torch.autocast("npu", torch.bfloat16, cache_enabled=cache):
        got = torch.nn.functional.linear(x, weight)
    assert torch.equal(got, torch.nn.functional.linear(x, weight.to(torch.bfloat16)))


def test_gradients_come_in_the_dtype_of_the_weights_and_are_those_of_casts_by_hand() -> None:
    def step(by_hand: bool) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(8, 8).to("npu"), torch.nn.Linear(8, 8).to("npu")
        x = u(3, 8).to("npu")
        if by_hand:
            hidden = torch.nn.functional.linear(
                x.bfloat16(), first.weight.bfloat16(), first.bias.bfloat16()
            )
            y = torch.nn.functional.linear(
                hidden.relu(), second.weight.bfloat16(), second.bias.bfloat16()
            )
            y.float().log_softmax(-1).square().sum().backward()
        else:
            with torch.autocast("npu", torch.bfloat16):
                second(first(x).relu()).log_softmax(-1).square().sum().backward()
        return tuple(p.grad for p in (*first.parameters(), *second.parameters()))

    for got, wanted in zip(step(False), step(True), strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(got, wanted)


def test_custom_fwd_and_bwd_cast_inputs_and_run_backward_as_forward() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="npu", cast_inputs=torch.float32)
        def forward(ctx, a, b):
            assert not torch.is_autocast_enabled("npu")
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="npu")
        def backward(ctx, grad):
            assert not torch.is_autocast_enabled("npu")
            a, b = ctx.saved_tensors
            return grad @ b.T, a.T @ grad

    a = u(N, N).to("npu", torch.float16).requires_grad_()
    with torch.autocast("npu"):
        y = Product.apply(a, u(N, N).to("npu", torch.float16))
        assert y.dtype == torch.float32
        y.sum().backward()
    assert a.grad is not None
    assert a.grad.dtype == torch.float16


def test_grad_scaler_trains_under_autocast() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1).to("npu")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("npu")
    x = u(16, 8).to("npu")
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("npu"):
            loss = torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_dropout_keeps_the_lower_dtype_and_its_random_numbers() -> None:
    x = torch.ones(64, 64, device="npu")
    drawn = []
    for _ in range(2):
        torch.npu.manual_seed(4)
        with torch.autocast("npu", torch.bfloat16):
            drawn.append(torch.nn.functional.dropout(x @ x, 0.5))
    assert drawn[0].dtype == torch.bfloat16
    assert torch.equal(drawn[0], drawn[1])
    assert 0.4 < (drawn[0] == 0).float().mean().item() < 0.6


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputes_under_the_autocast_of_its_forward(reentrant: bool) -> None:
    seen: list[torch.dtype] = []

    def block(x: Tensor) -> Tensor:
        y = x @ x
        seen.append(y.dtype)
        return (y @ y).float()

    x = u(N, N).to("npu").requires_grad_()
    with torch.autocast("npu", torch.bfloat16):
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
    y.sum().backward()
    assert seen == [torch.bfloat16] * 2


@pytest.mark.parametrize("backend", ["aot_eager", "bringup"])
@pytest.mark.parametrize("low", DTYPES, ids=str)
def test_compiled_autocast_is_eager_autocast(backend: str, low: torch.dtype) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    net = net.to("npu")

    def run(x: Tensor) -> Tensor:
        with torch.autocast("npu", dtype=low):
            return net(x).softmax(-1) @ torch.ones(4, 4, device="npu")

    x = u(3, 8).to("npu")
    wanted = run(x)
    torch._dynamo.reset()
    compiled = torch.compile(run, backend=backend, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = compiled(x)
    assert got.dtype == wanted.dtype == low
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)


def test_compiled_training_step_under_autocast_has_eager_gradients() -> None:
    def gradients(backend: str | None) -> list[Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
        net = net.to("npu")
        step = net if backend is None else torch.compile(net, backend=backend)
        with torch.autocast("npu", torch.bfloat16):
            loss = step(u(3, 8).to("npu")).square().sum()
        loss.backward()
        return [p.grad for p in net.parameters()]

    eager = gradients(None)
    for backend in ("aot_eager", "bringup"):
        torch._dynamo.reset()
        for got, wanted in zip(gradients(backend), eager, strict=True):
            assert got.dtype == torch.float32
            torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
