"""What the pass library finds in a model of the zoo, and which operators it leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks._architectures import ARCHITECTURES, Size
from bringup import compiler, passes
from bringup.compiler import backend, inference_graph
from bringup.kernels.patterns import register_patterns

__all__ = ["Subject", "Trial", "compile_model", "subject"]


@dataclass
class Subject:
    """A model in evaluation mode and what it is called with."""

    model: Any
    keywords: dict[str, Any]

    def run(self, function: Callable[..., Any]) -> Tensor:
        """The last hidden state that the model, or its compiled form, computes."""
        state: Tensor = function(**self.keywords).last_hidden_state
        return state


def subject(name: str, size: Size, attention: str = "sdpa") -> Subject:
    """A model of `ARCHITECTURES`, called without a mask; `attention` is "sdpa" or "eager"."""
    architecture = ARCHITECTURES[name]
    model = architecture.build(size)
    model.set_attn_implementation(attention)
    keywords = architecture.inputs(size)
    keywords.pop("attention_mask", None)
    return Subject(model, keywords)


@dataclass
class Trial:
    """A compiled model: what passes matched, its operators before and after, and its error."""

    compiled: Callable[..., Any]
    report: passes.PassReport
    before: Counter[str]
    after: Counter[str]
    error: float


@torch.no_grad()
def compile_model(item: Subject, **options: object) -> Trial:
    """Compile with the whole pass library, run once, and compare with the model as it is."""
    register_patterns()
    graphs: list[Counter[str]] = []
    rewrite, run_eagerly = backend.rewrite, inference_graph.run_eagerly

    def count(aten: Any) -> None:
        names = (str(n.target) for n in aten.graph.nodes if isinstance(n.target, _OVERLOAD))
        graphs.append(Counter(names))

    def rewrite_counted(aten: Any, *arguments: Any, **keywords: Any) -> Any:
        count(aten)
        return rewrite(aten, *arguments, **keywords)

    def run_counted(aten: Any, inputs: Any) -> Any:
        count(aten)
        return run_eagerly(aten, inputs)

    torch._dynamo.reset()
    expected = item.run(item.model)
    compiled = torch.compile(item.model, backend="bringup", options={"freeze": True, **options})
    with (
        patch.object(backend, "rewrite", rewrite_counted),
        patch.object(inference_graph, "run_eagerly", run_counted),
    ):
        got = item.run(compiled)
    report = compiler.last_report()
    assert report is not None
    before, after = graphs
    return Trial(compiled, report, before, after, (got - expected).abs().max().item())


_OVERLOAD = torch._ops.OpOverload
