"""torch_npu's attention in compiled functions with captures: other lengths are no other capture."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from tests.unit.kernels.npu_reference import attend, hidden, in_pages
from torch import Tensor

from bringup import compiler, devices, graphs
from bringup.errors import BringupError, ContractError, UpdateError
from bringup.kernels import npu as torch_npu

LENGTHS = [[50, 9], [3, 40], [7, 2], [44, 45]]
OPERATORS: list[tuple[str, str, dict[str, Any]]] = [
    ("npu_fused_infer_attention_score", "actual_seq_lengths_kv", {"num_heads": 4, "scale": 0.2}),
    (
        "npu_fused_infer_attention_score_v2",
        "actual_seq_kvlen",
        {"num_query_heads": 4, "softmax_scale": 0.2},
    ),
]


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    devices.load_driver("sim")
    torch.manual_seed(7)
    return str(request.param)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def compiled(function: Callable[..., Any], dynamic: bool = True) -> Callable[..., Any]:
    compile_: Any = torch.compile
    options = {"capture": True}
    return cast(
        "Callable[..., Any]",
        compile_(function, backend="bringup", options=options, dynamic=dynamic, fullgraph=True),
    )


def the_only_capture() -> compiler.CaptureReport:
    report = compiler.captures()[-1]
    assert (report.captures, report.dropped, report.uncaptured) == (1, 0, 0)
    return report


def by_definition(q: Tensor, k: Tensor, v: Tensor, scale: float, lengths: list[int]) -> Tensor:
    q, k, v = (x.cpu() for x in (q, k, v))
    results = [
        attend(q[b], k[b, :, :n], v[b, :, :n], scale, hidden(q.shape[2], n, 0, 0, 0))[0]
        for b, n in enumerate(lengths)
    ]
    return torch.stack(results)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got.cpu().double(), wanted.cpu(), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize(("name", "key", "keywords"), OPERATORS)
def test_four_lengths_of_fused_attention_are_one_capture(
    device: str, name: str, key: str, keywords: dict[str, Any]
) -> None:
    operator = getattr(torch.ops.npu, name)
    keywords = {**keywords, "num_key_value_heads": 2, "input_layout": "BNSD"}
    q, k, v = (torch.randn(2, n, s, 16, device=device) for n, s in ((4, 6), (2, 50), (2, 50)))

    def function(q: Tensor, lengths: list[int]) -> Tensor:
        return cast("Tensor", operator(q * 2, k, v, **{key: lengths}, **keywords)[0]) + 0

    run = compiled(function)
    for lengths in LENGTHS:
        close(run(q, lengths), by_definition(q * 2, k, v, 0.2, lengths))
    plan = the_only_capture().plan
    assert plan is not None
    (call,) = plan.calls
    assert call.op == f"npu::{name}"
    source = call.updates[key]
    assert isinstance(source, tuple)
    assert [type(one) for one in source] == [graphs.Input, graphs.Input]


def test_two_layers_of_one_compiled_function_get_their_own_lengths(device: str) -> None:
    q, k, v = (torch.randn(1, 2, s, 16, device=device) for s in (3, 30, 30))
    fused = torch.ops.npu.npu_fused_infer_attention_score
    keywords = {"num_heads": 2, "input_layout": "BNSD"}

    def function(q: Tensor, first: int, second: int) -> Tensor:
        x = fused(q, k, v, actual_seq_lengths_kv=[first], **keywords)[0]
        x = fused(x, k, v, actual_seq_lengths_kv=[9], **keywords)[0]
        return cast("Tensor", fused(x, k, v, actual_seq_lengths_kv=[second], **keywords)[0])

    run = compiled(function)
    for first, second in ((5, 7), (8, 3), (4, 30), (30, 2)):
        x = q
        for length in (first, 9, second):
            x = by_definition(x, k, v, 1.0, [length]).float()
        close(run(q, first, second), x.double())
    plan = the_only_capture().plan
    assert plan is not None
    assert [dict(call.updates)["actual_seq_lengths_kv"] for call in plan.calls][1] == (
        graphs.Constant(9),
    )


def test_sequences_one_behind_the_other_in_a_compiled_function(device: str) -> None:
    q = torch.randn(20, 2, 16, device=device)
    k, v = (torch.randn(30, 2, 16, device=device) for _ in range(2))

    def function(q: Tensor, rows: list[int], keys: list[int]) -> Tensor:
        return cast(
            "Tensor",
            torch_npu.npu_fusion_attention_v3(
                q, k, v, 2, "TND", scale=0.3, actual_seq_qlen=rows, actual_seq_kvlen=keys
            )[0],
        )

    run = compiled(function)
    for rows, keys in (([12, 8], [10, 20]), ([7, 13], [25, 5]), ([2, 18], [15, 14])):
        ends, key_ends = (list(itertools.accumulate(x)) for x in (rows, keys))
        got = run(q, ends, key_ends)
        begin = key_begin = 0
        for end, key_end in zip(ends, key_ends, strict=True):
            part = (x.transpose(0, 1)[None] for x in (k[key_begin:key_end], v[key_begin:key_end]))
            queries = q[begin:end].transpose(0, 1)[None]
            wanted = by_definition(queries, *part, 0.3, [key_end - key_begin])[0]
            close(got[begin:end], wanted.transpose(0, 1))
            begin, key_begin = end, key_end
    assert the_only_capture().plan is not None


def test_lengths_that_do_not_fit_raise_and_the_capture_stays(device: str) -> None:
    q, k, v = (torch.randn(1, 2, s, 16, device=device) for s in (3, 30, 30))

    def function(q: Tensor, length: int) -> Tensor:
        return cast(
            "Tensor",
            torch.ops.npu.npu_fused_infer_attention_score(
                q, k, v, actual_seq_lengths_kv=[length], num_heads=2, input_layout="BNSD"
            )[0],
        )

    run = compiled(function)
    close(run(q, 5), by_definition(q, k, v, 1.0, [5]))
    for length in (31, -1):
        with pytest.raises(BringupError, match="a length must lie between 0 and the rows"):
            run(q, length)
    close(run(q, 30), by_definition(q, k, v, 1.0, [30]))
    assert the_only_capture().plan is not None


# --- paged attention, whose lengths are a tensor of the host --------------------------------------


class Paged:
    """Queries, a cache in pages and their table on a device."""

    def __init__(self, device: str, dtype: torch.dtype = torch.float32) -> None:
        self.q, self.k, self.v = (
            torch.randn(2, n, s, d, dtype=dtype)
            for n, s, d in ((4, 1, 32), (2, 50, 32), (2, 50, 16))
        )
        caches, table = in_pages([self.k, self.v], 16, "BSND")
        self.given = [x.to(device) for x in (self.q[:, :, 0], *caches, table)]
        self.out = torch.empty(2, 4, 16, dtype=dtype, device=device)
        self.context_lens = torch.tensor([1, 1], dtype=torch.int32)

    def run(self, query: Tensor, keys: Tensor, values: Tensor, table: Tensor) -> None:
        torch.ops.npu._npu_paged_attention(
            query=query,
            key_cache=keys,
            value_cache=values,
            num_kv_heads=2,
            num_heads=4,
            scale_value=0.3,
            block_table=table,
            context_lens=self.context_lens,
            out=self.out,
        )

    def wanted(self, lengths: list[int]) -> Tensor:
        return by_definition(self.q, self.k, self.v, 0.3, lengths)[:, :, 0]


def test_lengths_of_paged_attention_are_on_the_host(device: str) -> None:
    paged = Paged(device)
    for lengths in [[50, 9], [0, 1]]:
        paged.context_lens = torch.tensor(lengths, dtype=torch.int64)
        paged.run(*paged.given)
        paged.context_lens.fill_(1)  # the values of the call count
        close(paged.out, paged.wanted(lengths))


def test_compiled_paged_attention_with_other_lengths_is_one_capture(device: str) -> None:
    """The anchor's test_compile_aclgraph_update: attributes of the model, other ones each call."""
    paged = Paged(device)
    run = compiled(paged.run, dynamic=False)
    for lengths in LENGTHS:
        others = Paged(device)
        paged.context_lens = torch.tensor(lengths, dtype=torch.int32)
        paged.out = torch.zeros_like(paged.out)
        run(*others.given)
        close(paged.out, others.wanted(lengths))
    plan = the_only_capture().plan
    if device == "cpu":  # there they are a tensor as any other
        assert plan is None
    else:
        assert plan is not None
        assert [type(one) for one in plan.calls[0].updates.values()] == [graphs.Input]


def test_captured_paged_attention_takes_lengths_of_the_host(device: str) -> None:
    paged = Paged(device)
    paged.context_lens = torch.tensor([4, 5], dtype=torch.int32)
    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        paged.run(*paged.given)
    for lengths in ([50, 9], torch.tensor([3, 40]), torch.tensor([0, 1], dtype=torch.int32)):
        graph.update(cpu_update_input=[{"context_lens": lengths}])
        graph.replay()
        close(paged.out, paged.wanted(torch.as_tensor(lengths).tolist()))
    before = paged.out.clone()
    if device == "cpu":
        return  # a tensor there, which only the kernel reads
    for wrong in ([65, 1], [-1, 1], [], [[1, 1]], "12"):
        with pytest.raises((ContractError, UpdateError)):
            graph.update([{"context_lens": wrong}])
        graph.replay()
        assert torch.equal(paged.out.cpu(), before.cpu())


def test_lengths_that_the_capture_computes_are_refused() -> None:
    devices.load_driver("sim")
    paged = Paged("npu")
    mine = torch.tensor([4, 5], dtype=torch.int32)

    def capture(compute: Callable[[], Tensor]) -> None:
        with graphs.capture(graphs.CapturedGraph()):
            paged.context_lens = compute()
            paged.run(*paged.given)

    for compute in (lambda: mine + 1, lambda: mine.add_(1)):
        with pytest.raises(BringupError, match="takes the values of a tensor of the host"):
            capture(compute)


@pytest.mark.parametrize(
    ("lengths", "why"),
    [
        ([65, 1], "a length must lie between 0 and the rows that there are"),
        ([-1, 1], "a length must lie between 0 and the rows that there are"),
        ([[1, 1]], "context_lens must be int32 or int64, with one length for each sequence"),
        ([1.0, 1.0], "context_lens must be int32 or int64, with one length for each sequence"),
    ],
)
def test_lengths_on_the_host_that_do_not_fit_are_refused(lengths: Any, why: str) -> None:
    devices.load_driver("sim")
    paged = Paged("npu")
    paged.context_lens = torch.tensor(lengths)
    with pytest.raises(BringupError, match=why):
        paged.run(*paged.given)


@pytest.mark.parametrize("in_capture", [False, True])
def test_paged_attention_is_updated_by_hand(in_capture: bool) -> None:
    """As vLLM's backend for Ascend does it: a group, a workspace, and the call again."""
    devices.load_driver("sim")
    paged = Paged("npu")
    names = ("query", "key_cache", "value_cache", "block_table")
    given = {
        **dict(zip(names, paged.given, strict=True)),
        "num_kv_heads": 2,
        "num_heads": 4,
        "scale_value": 0.3,
        "out": paged.out,
    }
    lengths = torch.tensor([4, 5], dtype=torch.int32)
    workspace = torch.ops.npu._npu_paged_attention_get_workspace(context_lens=lengths, **given)
    if in_capture:
        given["workspace"] = workspace
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        torch.npu.graph_task_group_begin(torch.npu.current_stream())
        torch.ops.npu._npu_paged_attention(context_lens=lengths, **given)
        handle = torch.npu.graph_task_group_end(torch.npu.current_stream())
    update_stream = torch.npu.Stream()
    for other in LENGTHS:
        torch.npu.graph_task_update_begin(update_stream, handle)
        torch.ops.npu._npu_paged_attention(context_lens=torch.tensor(other), **given)
        torch.npu.graph_task_update_end(update_stream)
        graph.replay()
        close(paged.out, paged.wanted(other))


@pytest.mark.parametrize("part", ["a slice", "a view", "a copy", "hidden in an operator"])
def test_values_that_no_plan_writes_are_no_part_of_a_capture(part: str) -> None:
    """They would be those of the first call for ever."""
    devices.load_driver("sim")
    paged = Paged("npu")

    @torch.library.custom_op("compiled_test::paged", mutates_args=("out",))
    def hidden_call(
        q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor, out: Tensor
    ) -> None:
        torch.ops.npu._npu_paged_attention(q, k, v, 2, 4, 0.3, table, lengths, out)

    def function(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        out = torch.empty(2, 4, 16, device=q.device)
        if part.startswith("hidden"):
            torch.ops.compiled_test.paged(q, k, v, table, lengths, out)
            return out + 0
        given = {
            "a slice": lengths[:2],
            "a view": lengths.view(3, 1)[:2, 0],
            "a copy": lengths[:2] + 0,
        }
        torch.ops.npu._npu_paged_attention(q, k, v, 2, 4, 0.3, table, given[part], out)
        return out + 0

    def lengths_of(lengths: list[int]) -> Tensor:
        extra = [] if part.startswith("hidden") else [9]
        return torch.tensor([*lengths, *extra], dtype=torch.int32)

    compile_: Any = torch.compile
    strict = compiled(function)
    with pytest.raises(BringupError, match=r"(takes|reads) the values? of a tensor"):
        strict(*paged.given, lengths_of(LENGTHS[0]))
    torch._dynamo.reset()
    serving = compile_(function, backend="bringup", options={"mode": "serve"})
    for lengths in LENGTHS:
        close(serving(*paged.given, lengths_of(lengths)), paged.wanted(lengths))


def test_run_takes_no_input_whose_values_were_taken() -> None:
    devices.load_driver("sim")
    paged = Paged("npu")

    class Model(torch.nn.Module):
        def forward(self, query: Tensor, lengths: Tensor) -> Tensor:
            torch.ops.npu._npu_paged_attention(
                query, *paged.given[1:3], 2, 4, 0.3, paged.given[3], lengths, paged.out
            )
            return paged.out + 0

    model, graph = Model(), graphs.CapturedGraph()
    lengths = torch.tensor([4, 5])
    with graphs.capture(graph):
        result = model(paged.given[0], lengths)
    with pytest.raises(BringupError, match="a captured call took the values of an input"):
        graph.run(paged.given[0], torch.tensor([7, 8]))
    graph.update([{"context_lens": [7, 8]}])
    graph.replay()
    close(result, paged.wanted([7, 8]))
