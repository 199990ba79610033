"""Captured graphs of torch_npu's attention operators: their handlers, and updates of lengths."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.kernels.npu_reference import in_pages
from torch import Tensor

from bringup import devices, graphs
from bringup.errors import BringupError, ContractError, UpdateError
from bringup.kernels import npu as torch_npu

KEYWORDS: dict[str, Any] = {
    "num_heads": 4,
    "num_key_value_heads": 2,
    "input_layout": "BNSD",
    "scale": 0.2,
}
KEYWORDS_V2 = {
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "input_layout": "BNSD",
    "softmax_scale": 0.2,
}
V1 = torch_npu.npu_fused_infer_attention_score
V2 = torch_npu.npu_fused_infer_attention_score_v2
VERSIONS = [(V1, "actual_seq_lengths", KEYWORDS), (V2, "actual_seq_qlen", KEYWORDS_V2)]


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    devices.load_driver("sim")
    torch.manual_seed(5)
    return str(request.param)


def tensors(device: str, rows: int = 6, keys: int = 50) -> list[Tensor]:
    sizes = ((2, 4, rows, 16), (2, 2, keys, 16), (2, 2, keys, 16))
    return [torch.randn(size, device=device) for size in sizes]


def captured(device: str, call: Callable[[], Any]) -> tuple[graphs.CapturedGraph, Any]:
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph, auto_dispatch_capture=True):
        result = call()
    return graph, result


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.cpu(), wanted.cpu(), atol=0, rtol=0, equal_nan=True)


# --- registration: the anchor's rows H3 to H5 -----------------------------------------------------

ALL = [
    *("npu_fused_infer_attention_score" + end for end in ("", ".default", ".out")),
    *("npu_fused_infer_attention_score_v2" + end for end in ("", ".default", ".out")),
    *("npu_fusion_attention_v3" + end for end in ("", ".default", ".out")),
    *("npu_fusion_attention_grad_v3" + end for end in ("", ".default", ".out")),
    "_npu_paged_attention.default",
    "npu_multi_head_latent_attention.out",
]


@pytest.mark.parametrize("name", ALL)
def test_every_operator_has_its_handler(name: str) -> None:
    assert issubclass(graphs.graph_handlers[name], graphs.NpuGraphOpHandler)


@pytest.mark.parametrize("end", ["", ".default", ".out"])
@pytest.mark.parametrize(
    ("name", "specs"),
    [
        (ALL[0], [("arg", 5, "actual_seq_lengths"), ("arg", 6, "actual_seq_lengths_kv")]),
        (ALL[3], [("arg", 7, "actual_seq_qlen"), ("arg", 8, "actual_seq_kvlen")]),
        (ALL[6], [("arg", 14, "actual_seq_qlen"), ("arg", 15, "actual_seq_kvlen")]),
        (ALL[9], [("arg", 21, "actual_seq_qlen"), ("arg", 22, "actual_seq_kvlen")]),
        (ALL[13].partition(".")[0], [("arg", 5, "context_lens")]),
    ],
)
def test_specs_are_the_anchors_and_name_what_the_schema_has(
    name: str, end: str, specs: list[Any]
) -> None:
    handler = graphs.graph_handlers[name + end]
    assert handler.get_update_specs(name + end) == specs
    namespace = torch.ops.atb if "latent" in name else torch.ops.npu
    arguments = getattr(getattr(namespace, name), end[1:] or "default")._schema.arguments
    assert [arguments[index].name for _, index, _ in specs] == [key for *_, key in specs]


# --- fused attention: U1, U3 to U8 ----------------------------------------------------------------


@pytest.mark.parametrize(("operator", "key", "keywords"), VERSIONS)
def test_lengths_are_updated_in_the_form_that_allocates(
    device: str, operator: Any, key: str, keywords: dict[str, Any]
) -> None:
    q, k, v = tensors(device)
    flag = "softmax_lse_flag" if operator is V1 else "return_softmax_lse"
    keywords = {**keywords, flag: True}
    graph, results = captured(device, lambda: operator(q, k, v, **{key: [6, 4]}, **keywords))
    assert [node.op for node in graph.nodes] == [f"npu::{operator.__name__}.out"]
    for lengths in ([6, 4], [1, 0], [3]):
        graph.update(cpu_update_input=[{key: lengths}])
        graph.replay()
        for got, wanted in zip(
            results, operator(q, k, v, **{key: lengths}, **keywords), strict=True
        ):
            same(got, wanted)
    (record,) = graph.dispatch_records
    assert record.op_cache_entry.__name__ == f"{operator.__name__}.out"
    assert record.kwargs[key] == [3]
    with pytest.raises(UpdateError, match="seq_lens"):
        graph.update([{"seq_lens": [1, 1]}])


@pytest.mark.parametrize(("operator", "key", "keywords"), VERSIONS)
def test_lengths_are_updated_in_the_form_that_is_given_results(
    device: str, operator: Any, key: str, keywords: dict[str, Any]
) -> None:
    q, k, v = tensors(device)
    out, log_sum = torch.empty_like(q), torch.empty(1, device=device)
    workspace = operator.max_workspace(q, k, v, **keywords)

    def call(lengths: list[int], out: Tensor) -> Any:
        return operator.out(
            q, k, v, workspace=workspace, out=[out, log_sum], **{key: lengths}, **keywords
        )

    graph, results = captured(device, lambda: call([6, 6], out))
    assert results[0].data_ptr() == out.data_ptr()
    graph.update([{key: [2, 5]}])
    graph.replay()
    wanted = call([2, 5], torch.empty_like(q))[0]
    same(out, wanted)


@pytest.mark.parametrize(("operator", "key", "keywords"), VERSIONS)
def test_lengths_are_updated_by_hand(
    device: str, operator: Any, key: str, keywords: dict[str, Any]
) -> None:
    q, k, v = tensors(device)
    out, log_sum = torch.empty_like(q), torch.empty(1, device=device)
    graph = graphs.CapturedGraph()
    with torch.no_grad(), graphs.capture(graph):
        workspace = operator.max_workspace(q, k, v, **keywords)
        graphs.graph_task_group_begin()
        operator.out(q, k, v, workspace=workspace, out=[out, log_sum], **{key: [6, 6]}, **keywords)
        handle = graphs.graph_task_group_end()
    graphs.graph_task_update_begin(None, handle)
    operator.out(q, k, v, workspace=workspace, out=[out, log_sum], **{key: [3, 1]}, **keywords)
    graphs.graph_task_update_end()
    graph.replay()
    same(out, operator(q, k, v, **{key: [3, 1]}, **keywords)[0])


def test_every_keyword_is_updated_by_its_name(device: str) -> None:
    q, k, v = tensors(device)
    graph, (out, _) = captured(device, lambda: V1(q, k, v, **KEYWORDS))
    graph.update([{"scale": 0.9, "actual_seq_lengths_kv": [50, 9]}])
    graph.replay()
    other = {**KEYWORDS, "scale": 0.9}
    same(out, V1(q, k, v, actual_seq_lengths_kv=[50, 9], **other)[0])


def test_two_layers_share_one_dict_or_have_their_own(device: str) -> None:
    q, k, v = tensors(device)

    def two(first: list[int], second: list[int]) -> Tensor:
        x, _ = V1(q, k, v, actual_seq_lengths_kv=first, **KEYWORDS)
        y: Tensor = V2(x, k, v, actual_seq_kvlen=second, **KEYWORDS_V2)[0]
        return y + 1

    graph, y = captured(device, lambda: two([50, 50], [50, 50]))
    graph.update([{"actual_seq_lengths_kv": [4, 5]}, {"actual_seq_kvlen": [6, 7]}])
    graph.replay()
    with torch.no_grad():
        same(y, two([4, 5], [6, 7]))
    graph.update([{"actual_seq_lengths_kv": [9], "actual_seq_kvlen": [8]}])
    graph.replay()
    with torch.no_grad():
        same(y, two([9], [8]))
    with pytest.raises(UpdateError):
        graph.update([{"actual_seq_lengths_kv": [9]}, {"actual_seq_lengths_kv": [9]}])


# --- what an update must not do ------------------------------------------------------------------


def test_lengths_that_need_more_workspace_than_there_is_change_nothing(device: str) -> None:
    q, k, v = tensors(device, rows=6, keys=500)
    short = torch.empty(_bytes(q, k, v, 64), dtype=torch.uint8, device=device)
    out, log_sum = torch.empty_like(q), torch.empty(1, device=device)
    given = {"workspace": short, "out": [out, log_sum], **KEYWORDS}
    graph, _ = captured(device, lambda: V1.out(q, k, v, actual_seq_lengths_kv=[64, 64], **given))
    graph.replay()
    before = out.clone()
    with pytest.raises(UpdateError, match=r"workspace has \d+ bytes, and these lengths need \d+"):
        graph.update([{"actual_seq_lengths_kv": [64, 500]}])
    graph.replay()
    same(out, before)
    graph.update([{"actual_seq_lengths_kv": [64, 3]}])
    graph.replay()
    same(out, V1(q, k, v, actual_seq_lengths_kv=[64, 3], **KEYWORDS)[0])


def _bytes(q: Tensor, k: Tensor, v: Tensor, keys: int) -> int:
    """What the kernel says that it needs for so many keys."""
    with pytest.raises(BringupError) as error:
        V1.out(
            *(x.cpu() for x in (q, k, v)),
            workspace=torch.empty(0, dtype=torch.uint8),
            out=[torch.empty_like(q, device="cpu"), torch.empty(1)],
            actual_seq_lengths_kv=[keys, keys],
            **KEYWORDS,
        )
    return int(str(error.value).rpartition(" ")[2])


@pytest.mark.parametrize("lengths", [[51, 3], [-1, 3], []])
def test_lengths_that_do_not_fit_change_nothing(device: str, lengths: list[int]) -> None:
    q, k, v = tensors(device)
    graph, (out, _) = captured(
        device, lambda: V1(q, k, v, actual_seq_lengths_kv=[9, 9], **KEYWORDS)
    )
    with pytest.raises((ContractError, UpdateError), match="length"):
        graph.update([{"actual_seq_lengths_kv": lengths}])
    graph.replay()
    same(out, V1(q, k, v, actual_seq_lengths_kv=[9, 9], **KEYWORDS)[0])


# --- the others ----------------------------------------------------------------------------------


def test_lengths_of_pages_are_updated_with_a_tensor_or_a_list(device: str) -> None:
    """U12: inputs copied in place, lengths exchanged, twice."""
    q, k, v = tensors("cpu", rows=1)
    caches, table = in_pages([k, v], 16, "BSND")
    query, *caches = (x.to(device) for x in (q[:, :, 0], *caches))
    table, out = table.to(device), torch.empty(2, 4, 16, device=device)
    lengths = torch.tensor([50, 9], dtype=torch.int32, device=device)
    given = (2, 4, 0.3, table)
    graph, _ = captured(
        device, lambda: torch.ops.npu._npu_paged_attention(query, *caches, *given, lengths, out)
    )
    wanted = torch.empty_like(out)
    for other in (torch.tensor([3, 40], dtype=torch.int32), [7, 1]):
        query.copy_(torch.randn(query.shape))
        graph.update([{"context_lens": other}])
        graph.replay()
        to = torch.as_tensor(other, dtype=torch.int32).to(device)
        torch.ops.npu._npu_paged_attention(query, *caches, *given, to, wanted)
        same(out, wanted)


def test_lengths_of_latent_attention_are_updated(device: str) -> None:
    q, k, rope = (torch.randn(2, n, s, 32) for n, s in ((4, 1), (1, 50), (4, 1)))
    (keys, key_rope), table = in_pages([k, torch.randn(2, 1, 50, 32)], 16, "BSND")
    given = [x.to(device) for x in (q[:, :, 0], rope[:, :, 0], keys, key_rope, table)]
    operator = torch_npu.atb.npu_multi_head_latent_attention
    graph, out = captured(device, lambda: operator(*given, [50, 9], 4, 0.2, 1))
    assert [node.op for node in graph.nodes] == ["atb::npu_multi_head_latent_attention.out"]
    graph.update([{"context_lens": torch.tensor([2, 33])}])
    graph.replay()
    same(out, operator(*given, [2, 33], 4, 0.2, 1))


def test_lengths_of_flash_attention_and_of_its_gradients_are_updated(device: str) -> None:
    q = torch.randn(40, 4, 16, device=device)
    k, v = (torch.randn(60, 2, 16, device=device) for _ in range(2))
    dy = torch.randn(40, 4, 16, device=device)
    forward = torch_npu.npu_fusion_attention_v3
    backward = torch_npu.npu_fusion_attention_grad_v3

    def both(rows: list[int], keys: list[int]) -> tuple[Tensor, ...]:
        ends = {
            "actual_seq_qlen": list(itertools.accumulate(rows)),
            "actual_seq_kvlen": list(itertools.accumulate(keys)),
        }
        result, most, total, *_ = forward(q, k, v, 4, "TND", scale=0.3, **ends)
        statistics = {"softmax_max": most, "softmax_sum": total, "attention_in": result}
        grads = backward(q, k, v, dy, 4, "TND", scale_value=0.3, **statistics, **ends)
        return (result, *grads[:3])

    graph, results = captured(device, lambda: both([20, 20], [30, 30]))
    for rows, keys in (([10, 30], [50, 10]), ([5, 5, 30], [20, 20, 20])):
        update = {
            "actual_seq_qlen": list(itertools.accumulate(rows)),
            "actual_seq_kvlen": list(itertools.accumulate(keys)),
        }
        graph.update([update])
        graph.replay()
        for got, wanted in zip(results, both(rows, keys), strict=True):
            same(got, wanted)


def test_training_with_flash_attention_is_captured(device: str) -> None:
    """Where autograd records, the form that allocates stays."""
    q, k, v = (x.requires_grad_() for x in tensors(device))

    def step() -> tuple[Tensor, ...]:
        result = torch_npu.npu_fusion_attention_v3(q * 2, k, v, 4, "BNSD", scale=0.2)[0]
        return torch.autograd.grad(result.sum(), (q, k, v))

    wanted = step()
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        grads = step()
    graph.replay()
    for got, want in zip(grads, wanted, strict=True):
        same(got, want)


def test_torch_npus_own_spelling() -> None:
    devices.load_driver("sim")
    q, k, v = tensors("npu")
    graph = torch.npu.NPUGraph()
    with torch.no_grad(), torch.npu.graph(graph, auto_dispatch_capture=True):
        out, _ = torch.ops.npu.npu_fused_infer_attention_score(
            q, k, v, actual_seq_lengths=[6, 6], **KEYWORDS
        )
    graph.update(cpu_update_input=[{"actual_seq_lengths": [1, 2]}])
    graph.replay()
    same(out, V1(q, k, v, actual_seq_lengths=[1, 2], **KEYWORDS)[0])


def test_grad_mode_alone_does_not_keep_the_form_that_allocates(device: str) -> None:
    q, k, v = tensors(device)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        V1(q, k, v, **KEYWORDS)
    assert [node.op for node in graph.nodes] == ["npu::npu_fused_infer_attention_score.out"]
