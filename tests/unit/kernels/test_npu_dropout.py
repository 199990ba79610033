"""Dropout of torch_npu's attention: against its definition with the mask that it drew, its
gradients, and what graphs and compiled functions draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from tests.unit.kernels.npu_reference import UPPER, from_heads, hidden, to_heads
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import BringupError
from bringup.kernels import npu as torch_npu

forward = torch_npu.npu_fusion_attention_v3
HEADS, GROUPS, DEPTH, KEPT, SCALE = 4, 2, 16, 0.7, 0.3


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    devices.load_driver("sim")
    torch._dynamo.reset()
    torch.manual_seed(2)
    return str(request.param)


def tensors(device: str, rows: int, keys: int, batch: int = 2) -> list[Tensor]:
    sizes = ((batch, HEADS, rows, DEPTH), *[(batch, GROUPS, keys, DEPTH)] * 2)
    return [torch.randn(size, device=device) for size in sizes]


def weights_of(q: Tensor, k: Tensor, mode: int) -> Tensor:
    """Softmax of one sequence in float64, [N, S, K]."""
    scores = q.double() @ k.double().repeat_interleave(HEADS // GROUPS, 0).mT * SCALE
    hide = hidden(q.shape[1], k.shape[1], mode, 0, 0)
    blind = hide.all(-1, keepdim=True)
    return scores.masked_fill(hide & ~blind, -torch.inf).softmax(-1).masked_fill(blind, 0.0)


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "TND"])
@pytest.mark.parametrize(("rows", "keys", "mode"), [(1, 7, 0), (30, 150, 0), (9, 21, 3)])
def test_dropout_and_its_gradients_are_those_of_its_mask(
    layout: str, rows: int, keys: int, mode: int, device: str
) -> None:
    q, k, v = (x.cpu() for x in tensors("cpu", rows, keys, 1 if layout == "TND" else 2))
    keywords: dict[str, Any] = {
        "scale": SCALE,
        "keep_prob": KEPT,
        "sparse_mode": mode,
        "atten_mask": UPPER.to(device) if mode else None,
    }
    parts = [(b, 0, rows, 0, keys) for b in range(2)]
    if layout == "TND":
        cut, key_cut = rows // 3, keys // 2
        keywords["actual_seq_qlen"] = [cut, rows]
        keywords["actual_seq_kvlen"] = [key_cut, keys]
        parts = [(0, 0, cut, 0, key_cut), (0, cut, rows, key_cut, keys)]
    given = [from_heads(x, layout).to(device) for x in (q, k, v)]
    state = torch.get_rng_state(), torch.npu.get_rng_state()

    def call(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        torch.set_rng_state(state[0])
        torch.npu.set_rng_state(state[1])
        return cast("tuple[Tensor, ...]", forward(query, key, value, HEADS, layout, **keywords))

    eye = torch.zeros(v.shape[0], GROUPS, keys, keys)
    for b, _, _, first, last in parts:
        eye[b, :, first:last, : last - first] = torch.eye(last - first)
    seen = to_heads(call(*given[:2], from_heads(eye, layout).to(device))[0].cpu(), layout, HEADS)

    leaves = [x.clone().requires_grad_() for x in given]
    result, most, total, _, seed, _ = call(*leaves)
    assert seed.item() != 0
    dy = torch.randn(result.shape)
    result.backward(dy.to(device))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    plain = forward(*given, HEADS, layout, **{**keywords, "keep_prob": 1.0})
    for statistic, wanted in zip((most, total), plain[1:3], strict=True):
        assert torch.equal(statistic, wanted)  # dropout is behind the softmax
    kept_weights = all_weights = 0
    for b, begin, end, first, last in parts:
        weights = weights_of(wide[0][b, :, begin:end], wide[1][b, :, first:last], mode)
        kept = seen[b, :, begin:end, : last - first] != 0
        kept_weights += int(kept.sum())
        all_weights += int((weights > 0).sum())
        values = wide[2][b, :, first:last].repeat_interleave(HEADS // GROUPS, 0)
        wanted = (weights * kept / KEPT) @ values
        got = to_heads(result.detach().cpu(), layout, HEADS)[b, :, begin:end]
        torch.testing.assert_close(got.double(), wanted, atol=5e-6, rtol=5e-6)
        wanted.backward(to_heads(dy, layout, HEADS)[b, :, begin:end].double())
    for leaf, other in zip(leaves, wide, strict=True):
        assert leaf.grad is not None
        assert other.grad is not None
        heads = HEADS if leaf is leaves[0] else GROUPS
        got = to_heads(leaf.grad.cpu(), layout, heads)
        torch.testing.assert_close(got.double(), other.grad, atol=2e-5, rtol=2e-5)
    if all_weights > 1000:
        assert abs(kept_weights / all_weights - KEPT) < 0.03


def test_weights_are_dropped_one_by_one(device: str) -> None:
    """Not a row, a key, a head or a sequence at once, and others in each call."""
    q, k, _ = tensors(device, 40, 60)
    eye = torch.eye(60, device=device).expand(2, GROUPS, 60, 60).contiguous()
    masks = [
        (forward(q, k, eye, HEADS, "BNSD", keep_prob=0.5)[0] != 0).cpu().double() for _ in range(2)
    ]
    assert abs((masks[0] == masks[1]).double().mean() - 0.5) < 0.02
    for axis in range(4):
        others = [i for i in range(4) if i != axis]
        part = masks[0].mean(others)
        deviation = 0.5 / (masks[0].numel() / len(part)) ** 0.5
        assert (part - 0.5).abs().max() < 5 * deviation
        near = masks[0].narrow(axis, 1, masks[0].shape[axis] - 1)
        far = masks[0].narrow(axis, 0, masks[0].shape[axis] - 1)
        assert abs((near == far).double().mean() - 0.5) < 0.02


@pytest.mark.parametrize("kind", ["graph", "training", "compiled", "compiled and captured"])
def test_what_replays_draws_as_eager_calls_do(device: str, kind: str) -> None:
    given = tensors(device, 5, 9)
    if kind == "training":
        for one in given:
            one.requires_grad_()

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first, second = (forward(q * n, k, v, HEADS, "BNSD", keep_prob=KEPT)[0] for n in (1, 2))
        if kind != "training":
            return first - second
        gradients = torch.autograd.grad((first - second).sum(), (q, k, v))
        return torch.cat([one.flatten() for one in gradients])

    graph = graphs.CapturedGraph()
    run: Callable[[], Tensor]
    if kind in ("graph", "training"):
        with torch.set_grad_enabled(kind == "training"), graphs.capture(graph):
            result = step(*given)

        def run() -> Tensor:
            graph.replay()
            return result.clone()
    else:
        options = {"capture": True} if kind.endswith("captured") else {}
        compile_: Any = torch.compile
        compiled = compile_(step, backend="bringup", options=options, fullgraph=True)

        def run() -> Tensor:
            with torch.no_grad():
                return cast("Tensor", compiled(*given)).clone()

        run()
    torch.manual_seed(5)
    ours = [run().cpu() for _ in range(3)]
    torch.manual_seed(5)
    for one, other in zip(ours, [step(*given).detach().cpu() for _ in range(3)], strict=True):
        assert torch.equal(one, other)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(ours, 2))
    assert ours[0].abs().max() > 0.01  # the two calls dropped other weights


def test_a_seed_is_needed(device: str) -> None:
    q, k, v = tensors(device, 5, 9)
    results = torch_npu.npu_fusion_attention_v3.infer_output(q, k, v, HEADS, "BNSD")
    results[4].zero_()
    call = torch_npu.npu_fusion_attention_v3.out

    def give() -> None:
        call(q, k, v, HEADS, "BNSD", keep_prob=KEPT, out=list(results))
        torch.npu.synchronize()

    with pytest.raises((BringupError, RuntimeError), match="dropout needs a seed: keep_prob was 1"):
        give()
    results[4].fill_(12)
    give()
    first = results[0].clone()
    give()
    assert torch.equal(results[0], first)
    with pytest.raises((BringupError, RuntimeError), match="dropout needs the forward's seed"):
        torch_npu.npu_fusion_attention_grad_v3(
            q,
            k,
            v,
            first,
            HEADS,
            "BNSD",
            keep_prob=KEPT,
            softmax_max=results[1],
            softmax_sum=results[2],
            attention_in=first,
        )[0].cpu()
