"""Handlers that make the calls of torch_npu's attention handlers, with the import alone mapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch

from bringup import devices, graphs
from bringup.graphs import NpuGraphOpHandler, register_npu_graph_handler
from bringup.kernels import npu as torch_npu


@pytest.fixture(autouse=True)
def _handlers_of_the_test() -> Iterator[None]:
    registry = vars(graphs)["_NPU_GRAPH_OP_HANDLERS"]  # torch_npu's name of it
    saved = dict(registry)
    with torch.no_grad():
        yield
    registry.clear()
    registry.update(saved)


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("version", ["", "_v2"])
def test_an_attention_handler_of_the_anchors_kind_updates_lengths(
    device: str, version: str
) -> None:
    if device == "npu":
        devices.load_driver("sim")
    name = f"npu_fused_infer_attention_score{version}"
    operator = getattr(torch_npu, name)
    func_default, func_out = getattr(torch.ops.npu, name).default, operator.out
    key = "actual_seq_lengths_kv" if not version else "actual_seq_kvlen"
    place = 6 if not version else 8
    heads = {"num_heads" if not version else "num_query_heads": 2, "input_layout": "BNSD"}

    class Base(NpuGraphOpHandler):
        UPDATE_SPECS: ClassVar = {f"{name}.out": [("arg", place, key)]}

    @register_npu_graph_handler([f"{name}.default", name])
    class Default(Base):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            workspace = kwargs.get("workspace") or getattr(torch_npu, f"_{name}_get_max_workspace")(
                *args, **kwargs
            )
            results = getattr(torch_npu, f"_{name}_infer_output")(*args, **kwargs)
            kwargs["workspace"], kwargs["out"] = workspace, list(results)
            return func_out, args, kwargs

    seen = []

    @register_npu_graph_handler(f"{name}.out")
    class Out(Base):
        @classmethod
        def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> Any:
            seen.append(func is func_out)
            return func, args, kwargs

    assert isinstance(func_out, torch._ops.OpOverload)
    assert func_out is not func_default
    q, k, v = (torch.randn(1, 2, n, 16).to(device) for n in (1, 8, 8))

    def call(length: int) -> Any:
        return operator(q, k, v, **{key: [length]}, **heads)[0]

    graph = graphs.CapturedGraph()
    with graphs.capture(graph):
        y = call(3)
        results = getattr(torch_npu, f"_{name}_infer_output")(q, k, v, **heads)
        z = operator.out(q, k, v, out=list(results), **{key: [3]}, **heads)
    graph.update(cpu_update_input=[{key: [7]}])
    graph.replay()
    expected = call(7).cpu()
    assert torch.equal(y.cpu(), expected)
    assert torch.equal(results[0].cpu(), expected)
    assert z[0].data_ptr() == results[0].data_ptr()
    assert seen == [True]


def test_results_of_the_training_forms_are_inferred() -> None:
    q = torch.randn(1, 2, 4, 16)
    given = (q, q, q, 2, "BNSD")
    inferred = vars(torch_npu)["_npu_fusion_attention_v3_infer_output"](*given)
    for ours, theirs in zip(inferred, torch_npu.npu_fusion_attention_v3(*given), strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    grads = vars(torch_npu)["_npu_fusion_attention_grad_v3_infer_output"](q, q, q, q, 2, "BNSD")
    assert [g.shape for g in grads[:3]] == [q.shape] * 3
