"""int8 keys and values of torch_npu's attention, by scales of every mode, and incremental
attention: against float64 attention over what the scales make of them.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sweeps.support import examples, sized
from tests.unit.kernels.npu_reference import attend, from_heads, hidden, in_pages, to_heads
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import ContractError, KernelError
from bringup.kernels import npu as torch_npu

HEADS, GROUPS, PAGE = 4, 2, 16
TOLERANCE = {
    torch.float16: 1e-2,
    torch.float32: 1e-5,
    torch.bfloat16: 1e-1,
    torch.float64: 1e-12,
}
DTYPES = list(TOLERANCE)[: sized(2, 4)]  # a kernel is built for each
VERSIONS = {
    "v1": ("fused_infer_attention_score", "num_heads", "scale", "actual_seq_lengths_kv"),
    "incre": ("incre_flash_attention", "num_heads", "scale_value", "actual_seq_lengths"),
    "v2": (
        *("fused_infer_attention_score_v2", "num_query_heads", "softmax_scale"),
        "actual_seq_kvlen",
    ),
}
NAMES = {
    "v1": ("key_antiquant_{}", "value_antiquant_{}", "{}_antiquant_mode"),
    "v2": ("dequant_{}_key", "dequant_{}_value", "{}_quant_mode"),
}


@pytest.fixture(autouse=True)
def _driver() -> None:
    devices.load_driver("sim")
    torch.manual_seed(11)


def quantised(batch: int, keys: int, width: int) -> Tensor:
    return torch.randint(-128, 128, (batch, GROUPS, keys, width), dtype=torch.int8)


def factors(mode: Any, batch: int, keys: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Scales and offsets as they are given, and as [B, G, K, D] of float64."""
    shape, wide = {
        "tensor": ((1,), (1, 1, 1, 1)),
        0: ((GROUPS, 1, width), (1, GROUPS, 1, width)),
        1: ((batch, keys), (batch, 1, keys, 1)),
        2: ((GROUPS,), (1, GROUPS, 1, 1)),
        3: ((batch, GROUPS, keys), (batch, GROUPS, keys, 1)),
    }[mode]
    scale = (torch.rand(shape) * 0.02 + 0.002).to(dtype)
    offset = torch.randint(-20, 20, shape).to(dtype)
    return scale, offset, scale.double().view(wide), offset.double().view(wide)


def by_definition(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    results = [
        attend(q[b], k[b, :, :n], v[b, :, :n], 0.2, hidden(q.shape[2], n, 0, 0, 0))[0]
        for b, n in enumerate(lengths)
    ]
    return torch.stack(results)


def call(version: str, q: Tensor, k: Tensor, v: Tensor, layout: str, **keywords: Any) -> Tensor:
    name, heads, scale, lengths = VERSIONS[version]
    keywords[lengths] = keywords.pop("lengths")
    result = getattr(torch_npu, f"npu_{name}")(
        *(q, k, v),
        **{heads: HEADS, scale: 0.2},
        num_key_value_heads=GROUPS,
        input_layout=layout,
        **keywords,
    )
    return cast("Tensor", result if version == "incre" else result[0])


@settings(parent=examples(20, 400))
@given(
    version=st.sampled_from(["v1", "v2"][: sized(1, 2)]),
    layout=st.sampled_from(["BNSD", "BSH", "BSND"]),
    modes=st.sampled_from(["tensor", 0, 1, 2, 3]).flatmap(
        lambda mode: st.tuples(st.just(mode), st.sampled_from([mode, mode, 1]))
    ),
    dtype=st.sampled_from(DTYPES),
    of_scales=st.sampled_from(["float32", "query"]),
    has_offsets=st.booleans(),
    rows=st.sampled_from([0, 1, 2, 5, 30]),
    keys=st.sampled_from([1, 17, 130]),
    width=st.sampled_from([16, 24, 32]),
    device=st.sampled_from(["cpu", "npu"][: sized(1, 2)]),
    data=st.data(),
)
def test_scales_of_every_mode(
    version: str,
    layout: str,
    modes: tuple[Any, Any],
    dtype: torch.dtype,
    of_scales: str,
    has_offsets: bool,
    rows: int,
    keys: int,
    width: int,
    device: str,
    data: st.DataObject,
) -> None:
    batch = 2
    lengths = data.draw(st.lists(st.integers(0, keys), min_size=batch, max_size=batch))
    q = torch.randn(batch, HEADS, rows, 16, dtype=dtype)
    k, v = quantised(batch, keys, 16), quantised(batch, keys, width)
    key_names = [name.format for name in NAMES[version]]
    keywords: dict[str, Any] = {}
    wide = []
    for place, (x, mode) in enumerate(zip((k, v), modes, strict=True)):
        scale, offset, wide_scale, wide_offset = factors(
            mode, batch, keys, x.shape[3], torch.float32 if of_scales == "float32" else dtype
        )
        keywords[key_names[place]("scale")] = scale.to(device)
        if has_offsets:
            keywords[key_names[place]("offset")] = offset.to(device)
        keywords[key_names[2](("key", "value")[place])] = 0 if mode == "tensor" else mode
        wide.append((x.double() + wide_offset * has_offsets) * wide_scale)
    got = call(
        version,
        *(from_heads(x, layout).to(device) for x in (q, k, v)),
        layout,
        lengths=lengths,
        **keywords,
    )
    wanted = by_definition(q, *wide, lengths)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        to_heads(got.cpu(), layout, HEADS).double(), wanted, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "BSND"])
@pytest.mark.parametrize(
    ("version", "mode"), [("v1", "tensor"), ("v1", 0), ("v1", 1), ("incre", "tensor"), ("incre", 0)]
)
def test_scales_of_keys_and_values_in_one_tensor(version: str, layout: str, mode: Any) -> None:
    q = torch.randn(2, HEADS, 1, 16, dtype=torch.float16)
    k, v = quantised(2, 40, 16), quantised(2, 40, 16)
    parts = [factors(mode, 2, 40, 16, torch.float16) for _ in range(2)]
    scale, offset = (torch.stack([part[i] for part in parts]) for i in range(2))
    if mode == 0:
        shape = {"BNSD": (2, GROUPS, 1, 16), "BSND": (2, GROUPS, 16), "BSH": (2, GROUPS * 16)}
        scale, offset = (x.reshape(shape[layout]) for x in (scale, offset))
    keywords: dict[str, Any] = {"antiquant_scale": scale, "antiquant_offset": offset}
    if version == "v1":
        keywords["antiquant_mode"] = 0 if mode == "tensor" else mode
    given = (from_heads(x, layout) for x in (q, k, v))
    got = call(version, *given, layout, lengths=[40, 3], **keywords)
    wide = [(x.double() + part[3]) * part[2] for x, part in zip((k, v), parts, strict=True)]
    wanted = by_definition(q, *wide, [40, 3])
    torch.testing.assert_close(to_heads(got, layout, HEADS).double(), wanted, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("rows", [1, 20])
def test_scales_of_pages(mode: int, rows: int) -> None:
    q = torch.randn(2, HEADS, rows, 16)
    k, v = quantised(2, 48, 16).float(), quantised(2, 48, 16).float()
    parts = [factors(mode - mode // 4 * 3 + (mode == 5), 2, 48, 16, torch.float32) for _ in "kv"]
    wide = [(x.double() + part[3]) * part[2] for x, part in zip((k, v), parts, strict=True)]
    (keys, values), table = in_pages([k, v], PAGE)
    keywords: dict[str, Any] = {}
    for name, part in zip(("key", "value"), parts, strict=True):
        for word, x in zip(("scale", "offset"), part[:2], strict=True):
            if mode == 4:  # [pages, rows of a page]
                x = _scattered(x.view(2, 3, 1, PAGE), table, len(keys))[:, 0]
            elif mode == 5:  # [pages, heads, rows of a page]
                pages = x.view(2, GROUPS, 3, PAGE).transpose(1, 2)
                x = _scattered(pages, table, len(keys))
            keywords[f"{name}_antiquant_{word}"] = x.contiguous()
        keywords[f"{name}_antiquant_mode"] = mode
    caches = (x.nan_to_num(0).to(torch.int8) for x in (keys, values))
    got = call(
        "v1", q, *caches, "BNSD", lengths=[48, 19], block_table=table, block_size=PAGE, **keywords
    )
    torch.testing.assert_close(
        got.double(), by_definition(q, *wide, [48, 19]), atol=1e-5, rtol=1e-5
    )


def _scattered(x: Tensor, table: Tensor, pages: int) -> Tensor:
    """What is given of each page of each sequence, in the order of the pages."""
    found = torch.full((pages, *x.shape[2:]), torch.nan)
    found[table.flatten().long()] = x.flatten(0, 1)
    return found


SCALE = {"key_antiquant_scale": torch.ones(1), "value_antiquant_scale": torch.ones(1)}
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({}, "keys and values that are int8 need their scales"),
    ({"key_antiquant_scale": torch.ones(1)}, "scales of keys and of values go together"),
    ({**SCALE, "key_antiquant_scale": torch.ones(3)}, "have the shape of their mode"),
    ({**SCALE, "key_antiquant_scale": torch.ones(1).double()}, "float32 or of the query's dtype"),
    ({**SCALE, "key_antiquant_scale": torch.ones(2, 19)[:, ::2], "key_antiquant_mode": 1}, "cont"),
    ({**SCALE, "key_antiquant_mode": 1}, "have the shape of their mode"),
    ({**SCALE, "value_antiquant_mode": 4}, "the mode of scales must be 0 to 3, or with pages to 5"),
    ({**SCALE, "value_antiquant_mode": -1}, "the mode of scales must be 0 to 3"),
    ({**SCALE, "key_antiquant_offset": torch.ones(2)}, "have the shape and dtype of their scales"),
    ({"antiquant_scale": torch.ones(3)}, "have the shape of their mode"),
    (
        {**SCALE, "query_rope": torch.ones(2, 4, 3, 8), "key_rope": torch.ones(2, 2, 10, 8)},
        "query_rope and key_rope do not go with int8 keys",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "why"), MISFITS)
def test_scales_that_do_not_fit_are_refused(keywords: dict[str, Any], why: str) -> None:
    q, k = torch.randn(2, HEADS, 3, 16), quantised(2, 10, 16)
    with pytest.raises((ContractError, KernelError), match=why):
        call("v1", q, k, k, "BNSD", lengths=[10, 10], **keywords)


def test_keys_of_another_dtype_are_refused() -> None:
    q, k = torch.randn(2, HEADS, 3, 16), torch.randn(2, GROUPS, 10, 16).half()
    with pytest.raises((ContractError, KernelError), match="have the query's dtype, or are int8"):
        call("v1", q, k, k, "BNSD", lengths=[10, 10])


@pytest.mark.parametrize(("version", "device"), [("v1", "npu"), ("v2", "cpu"), ("incre", "npu")])
def test_lengths_of_quantised_keys_are_updated(version: str, device: str) -> None:
    q, k, v = torch.randn(2, HEADS, 1, 16), quantised(2, 40, 16), quantised(2, 40, 16)
    scale = torch.tensor([0.01, 0.02])
    names = ("key_antiquant_scale", "value_antiquant_scale")
    if version == "v2":
        names = ("dequant_scale_key", "dequant_scale_value")
    keywords = {name: scale[i : i + 1].to(device) for i, name in enumerate(names)}
    if version == "incre":
        keywords = {"antiquant_scale": scale.to(device)}
    graph = graphs.CapturedGraph()
    on_device = [x.to(device) for x in (q, k, v)]
    with graphs.capture(graph):
        result = call(version, *on_device, "BNSD", lengths=[40, 3], **keywords)
    for lengths in ([1, 40], [0, 7]):
        graph.update([{VERSIONS[version][3]: lengths}])
        graph.replay()
        wanted = by_definition(q, k * 0.01, v * 0.02, lengths)
        torch.testing.assert_close(result.cpu().double(), wanted, atol=1e-5, rtol=1e-5)


# --- incremental attention, and masks of one row --------------------------------------------------


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "BSND"])
@pytest.mark.parametrize(
    ("dtype", "device"), [(one, "cpu") for one in DTYPES] + [(torch.float32, "npu")]
)
def test_incremental_attention(layout: str, dtype: torch.dtype, device: str) -> None:
    q, k, v = (torch.randn(3, n, s, 16, dtype=dtype) for n, s in ((HEADS, 1), *[(GROUPS, 60)] * 2))
    for lengths in ([60, 1, 33], [7]):
        got = call(
            "incre", *(from_heads(x, layout).to(device) for x in (q, k, v)), layout, lengths=lengths
        )
        wanted = by_definition(q, k, v, lengths if len(lengths) == 3 else lengths * 3)
        tolerance = TOLERANCE[dtype] / 5
        torch.testing.assert_close(
            to_heads(got.cpu(), layout, HEADS).double(), wanted, atol=tolerance, rtol=tolerance
        )


def test_incremental_attention_has_one_row_for_each_sequence() -> None:
    q, k = torch.randn(2, HEADS, 3, 16), torch.randn(2, GROUPS, 10, 16)
    with pytest.raises((ContractError, KernelError), match="query must have one row for each"):
        call("incre", q, k, k, "BNSD", lengths=[10, 10])


@pytest.mark.parametrize("version", ["v1", "incre"])
@pytest.mark.parametrize("shape", [(3, 60), (3, 1, 60), (3, 1, 1, 60), (1, 60), (16, 60)])
def test_a_mask_of_one_row_for_each_sequence(version: str, shape: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(3, n, s, 16) for n, s in ((HEADS, 1), *[(GROUPS, 60)] * 2))
    mask = torch.rand(shape) < 0.5
    got = call(version, q, k, v, "BNSD", lengths=[60, 9, 33], atten_mask=mask)
    for b, n in enumerate((60, 9, 33)):
        row = mask[b if shape[0] == 3 else 0].reshape(-1)[:n]
        wanted = attend(q[b], k[b, :, :n], v[b, :, :n], 0.2, row.expand(HEADS, 1, n))[0]
        torch.testing.assert_close(got[b].double(), wanted, atol=2e-6, rtol=2e-6)
