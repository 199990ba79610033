"""torch_catlass's tests of quantised products, epilogues and attention, by their numbers: with its
shapes and tolerances, on the simulated NPU.

Each gives what it asserts: ours, the expected result, relative and absolute tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.kernels.scaled_support import element, scale, spread
from torch import Tensor
from torch.nn import functional

from bringup import devices, kernels

Case = tuple[Tensor, Tensor, float, float]


@pytest.fixture(scope="module", autouse=True)
def _npu() -> None:
    devices.load_driver("sim")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(1)


def _int8(most: int, *shape: int) -> Tensor:
    return torch.randint(-most, most, shape, dtype=torch.int8)


def _scaled(a: Tensor, b: Tensor, *scales: Tensor | None, **options: Any) -> Tensor:
    tensors = [x if x is None else x.to("npu") for x in (a, b, *scales)]
    groups = options.get("group_list")
    options |= {} if groups is None else {"group_list": groups.to("npu")}
    return kernels.scaled_matmul(*tensors, **options)  # type: ignore[arg-type]


def _grouped(sizes: list[int], most: int, k: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    ends = torch.tensor(sizes).cumsum(0)
    return _int8(most, sum(sizes), k), _int8(most, len(sizes), k, n), ends


def _by_group(a: Tensor, b: Tensor, sizes: list[int]) -> list[Tensor]:
    return [x.float() @ y.float() for x, y in zip(a.split(sizes), b, strict=True)]


def _07_10(dtype: torch.dtype) -> Case:
    sizes = [128] * 4
    a, b, ends = _grouped(sizes, 8, 64, 128)
    channel, token = torch.rand(4, 128) * 0.1, torch.rand(512) * 0.1
    ours = _scaled(a, b, token, channel, group_list=ends.to(dtype), out_dtype="float16")
    parts = [part * channel[i] for i, part in enumerate(_by_group(a, b, sizes))]
    return ours, torch.cat(parts) * token[:, None], 0.1, 0.1


def _11() -> Case:
    a, b = _int8(8, 256, 128), _int8(8, 256, 128)
    channel, token = (torch.rand(4, 128).bfloat16() * 0.1 for _ in range(2))
    ours = _scaled(
        a.t(), b, token, channel, group_list=torch.tensor([64, 128, 192, 256]), slices="depth",
        out_dtype="bfloat16",
    )  # fmt: skip
    products = [x.t().float() @ y.float() for x, y in zip(a.split(64), b.split(64), strict=True)]
    return ours, torch.stack(products) * channel[:, None] * token[:, :, None], 0.1, 0.1


def _12_42_44_52(scales: torch.dtype, result: str, transposed: bool) -> Case:
    m, n, k = 256, 512, 1024
    a, b = _int8(5, m, k), _int8(5, n, k).t() if transposed else _int8(5, k, n)
    channel, token = torch.rand(n).to(scales), torch.rand(m).to(scales)
    expected = token.float()[:, None] * (a.float() @ b.float()) * channel.float()
    return _scaled(a, b, token, channel, out_dtype=result), expected, 0.1, 0.1


def _29() -> Case:
    a, b = (torch.randn(256, 256).to(torch.float8_e4m3fn) for _ in range(2))
    return _scaled(a, b, out_dtype="float16"), a.float() @ b.float(), 0.1, 0.1


def _30() -> Case:
    a, b = torch.randn(256, 256).half(), _int8(8, 256, 256)
    return _scaled(a, b), a.float() @ b.float(), 0.1, 0.1


def _int4(values: Tensor) -> Tensor:
    """Two of the last dimension in a byte, the first in its lower half."""
    return values[..., ::2] & 15 | values[..., 1::2] << 4


def _32() -> Case:
    a, b = _int8(8, 256, 256), _int8(8, 256, 256)
    whole = kernels.dequantize(_int4(b).to("npu"), packed="int4", out_dtype=torch.int8)
    ours = _scaled(a, whole, torch.tensor([1.5]), out_dtype="float16")
    return ours, 1.5 * (a.float() @ b.float()), 0.1, 0.1


def _38() -> Case:
    a, b = _int8(8, 128, 512), _int8(8, 512, 256)
    left, right = (
        kernels.dequantize(_int4(x).to("npu"), packed="int4", out_dtype=torch.int8) for x in (a, b)
    )
    channel, token = torch.randn(256) * 0.01, torch.randn(128) * 0.01
    ours = _scaled(left, right, token, channel, out_dtype="bfloat16")
    return ours, (a.float() @ b.float()) * channel * token[:, None], 0.1, 0.1


def _47_48_70(per: str) -> Case:
    sizes = [64, 64]
    a, b, ends = _grouped(sizes, 16, 512, 256)
    given = {"tensor": torch.tensor([0.5]), "channel": torch.rand(256), "group": torch.rand(2, 256)}
    token = torch.rand(128) if per == "token" else None
    channel = given["channel"] if per == "token" else given[per]
    ours = _scaled(a, b, token, channel, group_list=ends, out_dtype="float32")
    rows = channel if per == "group" else channel.expand(2, -1)
    expected = torch.cat(
        [part * row for part, row in zip(_by_group(a, b, sizes), rows, strict=True)]
    )
    return ours, expected if token is None else expected * token[:, None], 0.1, 0.1


def _51() -> Case:
    m, n, k = 128, 128, 128
    a, b, of_a, of_b = _int8(127, m, k), _int8(127, k, n), torch.rand(m, 1), torch.rand(1, 1)
    ours = _scaled(
        a, b, of_a * 0.01, of_b * 0.01, block_a=(1, 128), block_b=(128, 128), out_dtype="float16"
    )
    return ours, (a.float() * of_a * 0.01) @ (b.float() * of_b * 0.01), 0.1, 0.1


def _mx(dtype: torch.dtype, layout: str, *batch: int) -> Case:
    m, n, k = 256, 512, 1024
    a = element((*batch, m, k), dtype, "column" if layout[0] == "t" else "row")
    b = element((*batch, k, n), dtype, "column" if layout[1] == "t" else "row")
    of_a, of_b = (scale((*batch, *s), torch.float8_e8m0fnu) for s in ((m, k // 32), (k // 32, n)))
    ours = _scaled(a, b, of_a, of_b)
    wide = of_a.float().repeat_interleave(32, -1), of_b.float().repeat_interleave(32, -2)
    return ours, (a.float() * wide[0]) @ (b.float() * wide[1]), 1e-2, 1e-2


def _55(layout: str) -> Case:
    sizes, n, k = [96, 160], 256, 512
    a = element((256, k), torch.float8_e4m3fn)
    b = element((2, k, n), torch.float8_e4m3fn, "column" if layout == "nt" else "row")
    of_a, of_b = (scale(s, torch.float8_e8m0fnu) for s in ((256, k // 32), (2, k // 32, n)))
    ours = _scaled(a, b, of_a, of_b, group_list=torch.tensor(sizes).cumsum(0))
    left = a.float() * of_a.float().repeat_interleave(32, 1)
    right = b.float() * of_b.float().repeat_interleave(32, 1)
    return ours, torch.cat(_by_group(left, right, sizes)), 1e-2, 1e-2


def _54(layout: str, m: int = 256, n: int = 512, k: int = 1024) -> Case:
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    codes_a, codes_b = (torch.randint(0, 16, s, dtype=torch.uint8) for s in ((m, k), (k, n)))
    groups = -(-k // 32)
    of_a, of_b = (scale(s, torch.float8_e8m0fnu) for s in ((m, groups), (groups, n)))
    packed = _int4(codes_b.t()).t() if layout == "nt" else _int4(codes_b)
    left, right = (
        x.contiguous().view(torch.float4_e2m1fn_x2) for x in (_int4(codes_a), packed.t())
    )
    right = right.t() if layout == "nt" else packed.view(torch.float4_e2m1fn_x2)
    ours = _scaled(left, right, of_a, of_b, out_dtype="float32")
    of_left = spread(of_a, m, k, (1, 32), "rows")
    of_right = spread(of_b, k, n, (32, 1), "columns")
    expected = (table[codes_a.long()] * of_left) @ (table[codes_b.long()] * of_right)
    return ours, expected, 1e-1, 1e-1


def _57(of_a: str, of_b: str, has_bias: bool) -> Case:
    m = n = k = 64
    a, b = _int8(127, m, k), _int8(127, k, n)
    sizes = {"per_tensor": 1, "per_token": m, "per_channel": n}
    left = None if of_a == "default" else torch.rand(sizes[of_a]) * 0.01
    right, bias = torch.rand(sizes[of_b]) * 0.01, torch.rand(n) if has_bias else None
    ours = _scaled(a, b, left, right, bias, out_dtype="float16")
    expected = (a.float() @ b.float()) * right
    expected = expected if left is None else expected * left[:, None]
    return ours, expected if bias is None else expected + bias, 0.1, 0.1


def _64(epilogue: str, function: Callable[[Tensor], Tensor], shape: tuple[int, ...] = ()) -> Case:
    a, b = torch.rand(256, 1024) * 10 - 5, torch.rand(1024, 512) * 10 - 5
    extra = [torch.rand(shape) * 10 - 5] if shape else []
    ours = kernels.fused_matmul(epilogue)(*(x.to("npu") for x in (a, b, *extra)))
    return ours, function(a @ b) + (extra[0] if extra else 0), 1e-3, 1e-3


def _84() -> Case:
    x = torch.randn(300, 200).half()
    on_npu = x.to("npu")
    return kernels.basic_matmul(on_npu, on_npu.t()), x.float() @ x.float().t(), 1e-2, 1e-2


# --- attention


def _attended(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """[rows, heads, size] against [keys, key heads, size], in float32."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (
        q.float(),
        k.float().repeat_interleave(groups, 1),
        v.float().repeat_interleave(groups, 1),
    )
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        later = torch.ones(scores.shape[1:]).triu(1 + scores.shape[2] - scores.shape[1])
        scores = scores.masked_fill(later.bool(), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def _paged(heads_first: bool) -> Case:
    """23, 40 and 49: rows against pages [blocks, rows, heads, size]; 70: chunks, heads in front."""
    from bringup.kernels import npu

    batch, rows, keys, heads, size = 2, 64, 128, 8, 128
    q = torch.randn(batch * rows, heads, size).half()
    k, v = (torch.randn(batch, keys, 1, size).half() for _ in range(2))
    table = torch.arange(batch, dtype=torch.int32)[:, None]
    pages = (x.transpose(1, 2) if heads_first else x.flatten(2) for x in (k, v))
    mask = torch.ones(2048, 2048).triu(1).bool()
    ours, _ = npu.npu_fused_infer_attention_score(
        q.to("npu"), *(x.contiguous().to("npu") for x in pages), num_heads=heads,
        num_key_value_heads=1, input_layout="TND", scale=size**-0.5, sparse_mode=3,
        atten_mask=mask.to("npu"), block_table=table.to("npu"), block_size=keys,
        actual_seq_lengths=[rows, 2 * rows], actual_seq_lengths_kv=[keys, keys],
    )  # fmt: skip
    expected = [_attended(q[i * rows :][:rows], k[i], v[i], True) for i in range(batch)]
    return ours, torch.cat(expected), 1e-2, 1e-2


def _19() -> Case:
    from bringup.kernels import npu

    heads, size, rope, block = 16, 512, 64, 128
    q, q_rope = torch.randn(1, heads, size).half(), torch.randn(1, heads, rope).half()
    cache, of_rope = (torch.randn(16, block, 1, last).half() for last in (size, rope))
    table = torch.zeros(1, 1, dtype=torch.int32)
    ours = npu.atb.npu_multi_head_latent_attention(
        *(x.to("npu") for x in (q, q_rope, cache, of_rope, table)), [block], heads,
        (size + rope) ** -0.5, 1,
    )  # fmt: skip
    key = torch.cat([cache[0], of_rope[0]], -1)
    return ours, _attended(torch.cat([q, q_rope], -1), key, cache[0], False), 1e-2, 1e-2


_PER = ("tensor", "channel", "group", "token")
ROWS: dict[str, Callable[[], Case]] = {
    "07 per-token dequantisation of groups": lambda: _07_10(torch.int32),
    "10 per-token dequantisation, slice m": lambda: _07_10(torch.int64),
    "11 per-token dequantisation, slice k": _11,
    "12 float16 scales": lambda: _12_42_44_52(torch.float16, "float16", False),
    "42, 44 transposed int8": lambda: _12_42_44_52(torch.float32, "bfloat16", True),
    "52 split k": lambda: _12_42_44_52(torch.bfloat16, "bfloat16", False),
    "19 latent attention": _19,
    "23, 40, 49 paged attention": lambda: _paged(False),
    "70 chunked prefill": lambda: _paged(True),
    "29 e4m3": _29,
    "30 w8a16": _30,
    "32 w4a8": _32,
    "38 w4a4": _38,
    "51 per group and block": _51,
    "54 e2m1 of odd sizes": lambda: _54("nt", 1025, 3, 66),
    "58 a batch of e4m3": lambda: _mx(torch.float8_e4m3fn, "nt", 2),
    "84 x times its transpose": _84,
    **{f"47, 48, 70 per {per}": lambda p=per: _47_48_70(p) for per in _PER},
    **{
        f"53 e4m3 {lies}": lambda lies=lies: _mx(torch.float8_e4m3fn, lies)
        for lies in ("nn", "nt", "tn", "tt")
    },
    **{f"54 e2m1 {lies}": lambda lies=lies: _54(lies) for lies in ("nn", "nt")},
    **{f"55 e4m3 in groups, {lies}": lambda lies=lies: _55(lies) for lies in ("nn", "nt")},
    "55 e5m2": lambda: _mx(torch.float8_e5m2, "nt"),
    **{
        f"57 {a}, {b}, {bias}": lambda a=a, b=b, bias=bias: _57(a, b, bias)
        for a, b, bias in (
            ("per_token", "per_tensor", False), ("per_token", "per_channel", False),
            ("per_tensor", "per_channel", False), ("default", "per_channel", False),
            ("per_token", "per_tensor", True), ("per_token", "per_channel", True),
            ("default", "per_tensor", True), ("default", "per_channel", True),
        )
    },
    "64 add": lambda: _64("acc + extra", lambda x: x, (256, 512)),
    "64 bias": lambda: _64("acc + extra", lambda x: x, (512,)),
    "64 leaky_relu": lambda: _64("leaky_relu(acc, 0.1)", lambda x: functional.leaky_relu(x, 0.1)),
    "64 sigmoid": lambda: _64("sigmoid(acc)", torch.sigmoid),
    "64 silu": lambda: _64("silu(acc)", functional.silu),
    "64 tanh": lambda: _64("tanh(acc)", torch.tanh),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_torch_catlass_row(row: str) -> None:
    ours, expected, rtol, atol = ROWS[row]()
    assert ours.shape == expected.shape
    assert ours.device.type == "npu"
    close = torch.isclose(ours.cpu().float(), expected.float(), rtol=rtol, atol=atol)
    assert bool(close.all()), (ours.cpu().float() - expected).abs().max()
