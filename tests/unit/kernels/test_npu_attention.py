"""torch_npu's attention operators against attention by its definition."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from tests.unit.kernels.npu_reference import UPPER, attend, from_heads, hidden, in_pages, to_heads
from torch import Tensor

from bringup import devices
from bringup.errors import ContractError, KernelError
from bringup.kernels import npu as torch_npu

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.bfloat16: 2e-2,
    torch.float16: 2e-3,
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    devices.load_driver("sim")
    torch.manual_seed(3)


def close(got: Tensor, wanted: Tensor, tolerance: float = 2e-6) -> None:
    assert got.shape == wanted.shape
    torch.testing.assert_close(got.double().cpu(), wanted.double(), atol=tolerance, rtol=tolerance)


def inputs(
    rows: int,
    keys: int,
    heads: int = 4,
    groups: int = 2,
    depth: int = 24,
    width: int = 24,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, N, S, D] and twice [B, G, K, D]."""
    return (
        torch.randn(batch, heads, rows, depth, dtype=dtype),
        torch.randn(batch, groups, keys, depth, dtype=dtype),
        torch.randn(batch, groups, keys, width, dtype=dtype),
    )


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    rows: list[int],
    keys: list[int],
    mode: int = 0,
    before: int = 0,
    after: int = 0,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """[B, N, S, E] and the logs of sums [B, N, S, 1]; rows behind a length are zeros and -inf."""
    result = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    log_sum = torch.full((*q.shape[:3], 1), -math.inf, dtype=torch.float64)
    for b, (n, m) in enumerate(zip(rows, keys, strict=True)):
        hide = hidden(n, m, mode, before, after).expand(q.shape[1], n, m)
        if mask is not None:
            hide = hide | mask[b, :, :n, :m].bool()
        found, most, total = attend(q[b, :, :n], k[b, :, :m], v[b, :, :m], scale, hide)
        result[b, :, :n] = found
        log_sum[b, :, :n, 0] = most + total.log()
    return result, log_sum


CASES = [
    ("BNSD", 5, 40, 0),
    ("BSND", 40, 40, 2),
    ("BSH", 33, 150, 3),
    ("BNSD", 70, 200, 4),
    ("BSH", 1, 300, 0),
    ("BSND", 2, 17, 3),
]


@pytest.mark.parametrize(("layout", "rows", "keys", "mode"), CASES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_layouts_modes_and_dtypes(
    layout: str, rows: int, keys: int, mode: int, dtype: torch.dtype
) -> None:
    q, k, v = inputs(rows, keys, dtype=dtype)
    lengths, key_lengths = [rows, max(1, rows // 2)], [keys - 3, keys]
    got, log_sum = torch_npu.npu_fused_infer_attention_score(
        *(from_heads(x, layout) for x in (q, k, v)),
        atten_mask=UPPER if mode else None,
        actual_seq_lengths=lengths,
        actual_seq_lengths_kv=key_lengths,
        num_heads=4,
        num_key_value_heads=2,
        input_layout=layout,
        scale=0.3,
        sparse_mode=mode,
        pre_tokens=20,
        next_tokens=4,
        softmax_lse_flag=True,
    )
    if rows == 1:
        lengths = [1, 1]
    wanted = by_definition(q, k, v, 0.3, lengths, key_lengths, mode, 20, 4)
    tolerance = TOLERANCE[dtype]
    close(to_heads(got, layout, 4), wanted[0], tolerance)
    close(log_sum, wanted[1], max(tolerance, 1e-6))


@pytest.mark.parametrize("mode", [0, 3])
def test_sequences_one_behind_the_other(mode: int) -> None:
    lengths, key_lengths = [7, 0, 30, 5], [9, 4, 64, 8]
    q = torch.randn(sum(lengths) + 2, 4, 16)
    k, v = (torch.randn(sum(key_lengths), 2, 16) for _ in range(2))
    ends, key_ends = (list(itertools.accumulate(x)) for x in (lengths, key_lengths))
    got, log_sum = torch_npu.npu_fused_infer_attention_score_v2(
        q,
        k,
        v,
        actual_seq_qlen=ends,
        actual_seq_kvlen=key_ends,
        num_query_heads=4,
        num_key_value_heads=2,
        input_layout="TND",
        softmax_scale=0.25,
        sparse_mode=mode,
        atten_mask=UPPER if mode else None,
        return_softmax_lse=True,
    )
    wanted = torch.zeros(q.shape, dtype=torch.float64)
    sums = torch.full((*q.shape[:2], 1), -math.inf, dtype=torch.float64)
    for n, m, end, key_end in zip(lengths, key_lengths, ends, key_ends, strict=True):
        part = (
            to_heads(x, "TND", 0)[0]
            for x in (q[end - n : end], k[key_end - m : key_end], v[key_end - m : key_end])
        )
        found, most, total = attend(*part, 0.25, hidden(n, m, mode, 0, 0))
        wanted[end - n : end] = found.transpose(0, 1)
        sums[end - n : end, :, 0] = (most + total.log()).transpose(0, 1)
    close(got, wanted)
    close(log_sum, sums)


@pytest.mark.parametrize("form", ["BSH", "BNSD"])
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("rope", [False, True], ids=["", "rope"])
def test_keys_in_pages(form: str, rows: int, rope: bool) -> None:
    q, k, v = inputs(rows, 75, depth=32, width=32)
    more, key_more, _ = inputs(rows, 75, depth=8)
    (keys, values, key_rope), table = in_pages([k, v, key_more], 16, form)
    lengths = [75, 41]
    got, _ = torch_npu.npu_fused_infer_attention_score(
        q,
        keys,
        values,
        block_table=table,
        actual_seq_lengths_kv=lengths,
        query_rope=more if rope else None,
        key_rope=key_rope if rope else None,
        num_heads=4,
        num_key_value_heads=2,
        input_layout="BNSD",
        block_size=16,
        scale=0.2,
    )
    if rope:
        q, k = torch.cat([q, more], -1), torch.cat([k, key_more], -1)
    close(got, by_definition(q, k, v, 0.2, [rows] * 2, lengths)[0])


@pytest.mark.parametrize("shape", [(6, 50), (2, 6, 50), (1, 1, 6, 50), (2, 4, 6, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8], ids=str)
def test_a_mask_of_ones_own(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = inputs(6, 50)
    mask = (torch.rand(shape) < 0.5).to(dtype)
    mask[..., 3, :] = 1  # a row that sees nothing
    wanted = by_definition(
        q,
        k,
        v,
        0.2,
        [6, 6],
        [50, 44],
        mask=mask.expand(2, 4, 6, -1) if mask.dim() != 3 else mask[:, None].expand(2, 4, 6, -1),
    )
    for mode in (0, 1):
        got = torch_npu.npu_fused_infer_attention_score(
            q,
            k,
            v,
            atten_mask=mask,
            actual_seq_lengths_kv=[50, 44],
            num_heads=4,
            num_key_value_heads=2,
            input_layout="BNSD",
            scale=0.2,
            sparse_mode=mode,
            softmax_lse_flag=True,
        )
        close(got[0], wanted[0])
        close(got[1], wanted[1])


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("keys", [400])
def test_a_mask_that_hides_the_first_blocks(rows: int, keys: int) -> None:
    q, k, v = inputs(rows, keys)
    mask = torch.zeros(rows, keys, dtype=torch.bool)
    mask[:, :300] = True
    got, _ = torch_npu.npu_fused_infer_attention_score(
        q, k, v, atten_mask=mask, num_heads=4, num_key_value_heads=2, input_layout="BNSD"
    )
    whole = mask.expand(2, 4, rows, keys)
    close(got, by_definition(q, k, v, 1.0, [rows] * 2, [keys] * 2, mask=whole)[0])


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_one_row_over_pages(device: str) -> None:
    q, k, v = inputs(1, 90, depth=32, width=32, batch=3)
    caches, table = in_pages([k, v], 16, "BSND")
    lengths = torch.tensor([90, 1, 33], dtype=torch.int32)
    out = torch.empty(3, 4, 32, device=device)
    given = (q[:, :, 0], *caches)
    assert (
        torch.ops.npu._npu_paged_attention(
            *(x.to(device) for x in given), 2, 4, 0.3, table.to(device), lengths.to(device), out
        )
        is None
    )
    close(out[:, :, None], by_definition(q, k, v, 0.3, [1] * 3, lengths.tolist())[0])


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_compressed_keys_in_pages(device: str) -> None:
    q, k, _ = inputs(1, 90, groups=1, depth=64, batch=3)
    rope, key_rope, _ = inputs(1, 90, groups=1, depth=16, batch=3)
    caches, table = in_pages([k, key_rope], 16, "BSND")
    lengths = [90, 1, 33]
    given = (x.to(device) for x in (q[:, :, 0], rope[:, :, 0], *caches, table))
    got = torch_npu.atb.npu_multi_head_latent_attention(
        *given, lengths, 4, 0.1, 1, cache_mode="krope_ctkv"
    )
    wide = torch.cat([q, rope], -1), torch.cat([k, key_rope], -1)
    close(got[:, :, None], by_definition(*wide, k, 0.1, [1] * 3, lengths)[0])


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "BSND", "TND"])
@pytest.mark.parametrize("mode", [0, 2, 3, 4])
def test_gradients_are_those_of_autograd(layout: str, mode: int) -> None:
    rows, keys = 9, 21
    q, k, v = inputs(rows, keys, batch=1 if layout == "TND" else 2)
    ends = {"actual_seq_qlen": [4, 9], "actual_seq_kvlen": [11, 21]} if layout == "TND" else {}
    given = [from_heads(x, layout).requires_grad_() for x in (q, k, v)]
    result, most, total, *_ = torch_npu.npu_fusion_attention_v3(
        *given,
        4,
        layout,
        scale=0.3,
        sparse_mode=mode,
        pre_tockens=6,
        next_tockens=2,
        atten_mask=UPPER if mode else None,
        **ends,
    )
    assert most.shape == total.shape == ((9, 4, 8) if layout == "TND" else (2, 4, 9, 8))
    dy = torch.randn(result.shape)
    result.backward(dy)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    parts = [(0, 4, 0, 11), (4, 9, 11, 21)] if ends else [(0, rows, 0, keys)]
    for b, (begin, end, first, last) in itertools.product(range(q.shape[0]), parts):
        hide = hidden(end - begin, last - first, mode, 6, 2)
        part = (wide[0][b, :, begin:end], wide[1][b, :, first:last], wide[2][b, :, first:last])
        found = _differentiable(*part, hide)
        found.backward(to_heads(dy, layout, 4)[b, :, begin:end].double())
    for got, wanted in zip(given, wide, strict=True):
        assert got.grad is not None
        assert wanted.grad is not None
        close(to_heads(got.grad, layout, 4 if got is given[0] else 2), wanted.grad, 1e-5)


def _differentiable(q: Tensor, k: Tensor, v: Tensor, hide: Tensor) -> Tensor:
    group = q.shape[0] // k.shape[0]
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * 0.3
    blind = hide.all(-1, keepdim=True)
    weights = scores.masked_fill(hide & ~blind, -math.inf).softmax(-1).masked_fill(blind, 0.0)
    return weights @ v.repeat_interleave(group, 0)


def test_results_that_are_given_and_a_workspace_for_any_lengths() -> None:
    q, k, v = inputs(30, 200)
    keywords: dict[str, Any] = {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "BNSD",
        "scale": 0.2,
    }
    workspace = torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(
        q, k, v, **keywords
    )
    assert workspace.dtype is torch.uint8
    out, log_sum = torch.empty_like(q), torch.full((1,), 7.0)
    for keys in ([200, 200], [1, 40], [0, 200]):
        got = torch_npu.npu_fused_infer_attention_score.out(
            q, k, v, workspace=workspace, out=[out, log_sum], actual_seq_lengths_kv=keys, **keywords
        )
        assert got[0].data_ptr() == out.data_ptr()
        assert log_sum.tolist() == [0.0]
        close(out, by_definition(q, k, v, 0.2, [30, 30], keys)[0])
    with pytest.raises(KernelError, match=r"workspace has 64 bytes, and these lengths need \d+"):
        torch_npu.npu_fused_infer_attention_score.out(
            q, k, v, workspace=workspace[:64], out=[out, log_sum], **keywords
        )
    with pytest.raises(TypeError, match=r"out has 1 tensors, expected attention_out, softmax_lse"):
        torch_npu.npu_fused_infer_attention_score.out(q, k, v, out=[out], **keywords)


@pytest.mark.parametrize(
    ("batch", "rows", "keys", "heads"),
    [(1, 1, 4000, 1), (3, 300, 70, 8), (70, 2, 5, 2), (1, 2000, 4000, 2)],
)
def test_the_workspace_is_enough_for_every_length(
    batch: int, rows: int, keys: int, heads: int
) -> None:
    """The lengths of keys decide what is needed."""
    q, k, v = (x.to("meta") for x in inputs(rows, keys, heads, 1, batch=batch))
    workspace = torch_npu.npu_fused_infer_attention_score.max_workspace(
        q, k, v, num_heads=heads, num_key_value_heads=1, input_layout="BNSD"
    )
    for length in range(0, keys + 1, max(1, keys // 23)):
        assert workspace.numel() >= _needed(batch, rows, length, heads, 24, 24)


def _needed(batch: int, rows: int, keys: int, heads: int, depth: int, width: int) -> int:
    """csrc/attention/engine.h, workspace_size, in bytes of float32."""
    keys = -(-keys // 16) * 16
    size = keys * (depth + 32) + 24 * (32 + 128 + 2 * 32)
    parts = max(1, min(-(-8 // batch), rows * heads // 128))
    return 4 * size * min(batch * parts, max(8, min(64, (1 << 24) // size)))


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("layout", {"input_layout": "SBH"}, "input_layout must be BSH, BSND, BNSD or TND"),
    ("heads", {"num_key_value_heads": 3}, "the heads of query must be a multiple of those of key"),
    ("other heads", {"num_heads": 2, "num_key_value_heads": 2}, "query does not have the layout"),
    ("long", {"actual_seq_lengths_kv": [31, 3]}, "a length must lie between 0 and the rows"),
    ("negative", {"actual_seq_lengths": [-1, 3]}, "a length must lie between 0 and the rows"),
    ("few", {"actual_seq_lengths_kv": []}, "the lengths must be one number, or one for each"),
    ("mode", {"sparse_mode": 5}, "sparse_mode must be 0, 1, 2, 3 or 4"),
    ("no mask", {"sparse_mode": 3}, r"need atten_mask of \[2048, 2048\]"),
    ("mask 1", {"sparse_mode": 1}, "sparse_mode 1 needs atten_mask"),
    ("mask shape", {"atten_mask": torch.zeros(4, 30, dtype=torch.bool)}, r"atten_mask must be \[S"),
    ("mask dtype", {"atten_mask": torch.zeros(5, 30)}, "atten_mask must be bool, int8 or uint8"),
    (
        "lower",
        {"sparse_mode": 3, "atten_mask": UPPER.T.contiguous()},
        "has ones above the diagonal",
    ),
    ("shifted", {"pse_shift": torch.ones(2)}, "pse_shift is not supported: leave it"),
    (
        "scales",
        {"antiquant_scale": torch.ones(2)},
        "scales belong to keys and values that are int8",
    ),
    ("one scale", {"key_antiquant_scale": torch.ones(1)}, "scales of keys and of values go toge"),
    ("rope", {"query_rope": torch.zeros(2, 4, 5, 8)}, "query_rope and key_rope go together"),
    (
        "rope's batch",
        {"query_rope": torch.zeros(1, 4, 5, 8), "key_rope": torch.zeros(2, 2, 30, 8)},
        "differ from query and key",
    ),
    (
        "rope's keys",
        {"query_rope": torch.zeros(2, 4, 5, 8), "key_rope": torch.zeros(1, 2, 30, 8)},
        "differ from query and key",
    ),
    (
        "rope's size",
        {"query_rope": torch.zeros(2, 4, 5, 8), "key_rope": torch.zeros(2, 2, 30, 16)},
        "differ from query and key",
    ),
    ("table", {"block_table": torch.zeros(2, 2)}, "keys in pages need the lengths of keys"),
]


@pytest.mark.parametrize(("keywords", "why"), [x[1:] for x in WRONG], ids=[x[0] for x in WRONG])
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_what_does_not_fit_is_refused_by_name(
    keywords: dict[str, Any], why: str, device: str
) -> None:
    q, k, v = (x.to(device) for x in inputs(5, 30))
    given = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", **keywords}
    moved = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in given.items()}
    with pytest.raises((ContractError, KernelError, RuntimeError), match=why):
        torch_npu.npu_fused_infer_attention_score(q, k, v, **moved)[0].cpu()


def test_a_page_that_does_not_exist_is_refused() -> None:
    q, k, v = inputs(1, 40)
    (keys, values), table = in_pages([k, v], 16)
    lengths = [40, 40]
    keywords = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD"}
    for page in (-1, len(keys)):
        table[1, 1] = page
        with pytest.raises(KernelError, match="names a page that does not exist"):
            torch_npu.npu_fused_infer_attention_score(
                q, keys, values, block_table=table, actual_seq_lengths_kv=lengths, **keywords
            )
        torch_npu.npu_fused_infer_attention_score(  # not read: this one has fewer keys
            q, keys, values, block_table=table, actual_seq_lengths_kv=[40, 16], **keywords
        )


@pytest.mark.parametrize("kept", [0.0, -0.5, 1.5, math.nan])
def test_a_part_that_dropout_cannot_keep_is_refused(kept: float) -> None:
    q, k, v = inputs(5, 30)
    with pytest.raises((ContractError, KernelError), match="keep_prob must be more than 0 and at"):
        torch_npu.npu_fusion_attention_v3(q, k, v, 4, "BNSD", keep_prob=kept)


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("keys", [0, 3])
def test_nothing_and_no_keys(rows: int, keys: int) -> None:
    q, k, v = inputs(rows, keys)
    got, log_sum = torch_npu.npu_fused_infer_attention_score(
        q, k, v, num_heads=4, num_key_value_heads=2, input_layout="BNSD", softmax_lse_flag=True
    )
    wanted = by_definition(q, k, v, 1.0, [rows] * 2, [keys] * 2)
    close(got, wanted[0])
    close(log_sum, wanted[1])


def test_compiled_as_eager() -> None:
    q, k, v = inputs(5, 30)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result: Tensor = torch.ops.npu.npu_fused_infer_attention_score(
            q * 2, k, v, num_heads=4, num_key_value_heads=2, input_layout="BNSD"
        )[0]
        return result + 1

    for backend in ("bringup", "aot_eager"):
        got = torch.compile(function, backend=backend, fullgraph=True)(q, k, v)
        torch.testing.assert_close(got, function(q, k, v), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("ends", "key_ends", "why"),
    [
        ([4, 9], [21], "as many sequences"),
        ([4, 9], None, "needs the ends of the sequences"),
        ([4, 3], [11, 21], "none is less than the one before"),
        ([4, 10], [11, 21], "behind the last row"),
        ([], [], "there are no sequences"),
    ],
)
def test_ends_of_sequences_that_do_not_fit_are_refused(
    ends: list[int], key_ends: list[int] | None, why: str
) -> None:
    q, k, v = (torch.randn(n, 2, 16) for n in (9, 21, 21))
    with pytest.raises((ContractError, KernelError), match=why):
        torch_npu.npu_fusion_attention_v3(
            q, k, v, 2, "TND", actual_seq_qlen=ends, actual_seq_kvlen=key_ends
        )


def test_gradients_need_what_the_forward_kept() -> None:
    q, k, v = inputs(5, 30, groups=4)
    result, most, total, *_ = torch_npu.npu_fusion_attention_v3(q, k, v, 4, "BNSD")
    kept = {"softmax_max": most, "softmax_sum": total, "attention_in": result}
    grad = torch_npu.npu_fusion_attention_grad_v3
    with pytest.raises((ContractError, KernelError), match="of the forward are needed"):
        grad(q, k, v, result, 4, "BNSD", softmax_max=most)
    for name, wrong in (("softmax_max", most[:1]), ("softmax_sum", total.double())):
        with pytest.raises((ContractError, KernelError), match="not those of the forward"):
            grad(q, k, v, result, 4, "BNSD", **{**kept, name: wrong})
    with pytest.raises((ContractError, KernelError), match="dy and attention_in have the shape"):
        grad(q, k, v, result[:, :, :4], 4, "BNSD", **kept)


def test_gradients_that_nobody_wrote_raise_and_are_not_lost() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(5, 30))
    result, _ = torch_npu.npu_fused_infer_attention_score(
        q, k, v, num_heads=4, num_key_value_heads=2, input_layout="BNSD"
    )
    with pytest.raises(NotImplementedError, match="npu_fused_infer_attention_score has no backw"):
        result.sum().backward()
