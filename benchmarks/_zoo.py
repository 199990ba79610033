"""The models of the zoo: small configurations with random weights, built without any download."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from bringup import compiler, passes
from bringup.compiler import backend, inference_graph
from bringup.kernels.patterns import register_patterns

__all__ = ["MODELS", "Size", "Subject", "Trial", "compile_model", "subject"]

MODELS = ("bert", "gpt2", "llama", "qwen2", "qwen3", "vit")


@dataclass(frozen=True)
class Size:
    """How big a model is. Key heads are half of the heads where a model groups them."""

    layers: int = 2
    hidden: int = 64
    inner: int = 128
    heads: int = 4
    batch: int = 2
    length: int = 12


@dataclass
class Subject:
    """A model in evaluation mode and what it is called with."""

    model: Any
    inputs: tuple[Tensor, ...]
    keywords: dict[str, Any] = field(default_factory=dict)

    def run(self, function: Callable[..., Any]) -> Tensor:
        """The last hidden state that the model, or its compiled form, computes."""
        state: Tensor = function(*self.inputs, **self.keywords).last_hidden_state
        return state


def subject(name: str, size: Size, attention: str = "sdpa") -> Subject:
    """A model of `MODELS` with random weights; `attention` is "sdpa" or "eager"."""
    import transformers as hf

    torch.manual_seed(0)
    common = {
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_attention_heads": size.heads,
        "num_hidden_layers": size.layers,
    }
    if name == "vit":
        config = hf.ViTConfig(**common, image_size=32, patch_size=8)
        model = hf.ViTModel(config, add_pooling_layer=False)
        inputs, keywords = torch.randn(size.batch, 3, 32, 32), {}
    else:
        words = {"vocab_size": 100, "max_position_embeddings": 4 * size.length}
        model, keywords = _language_model(hf, name, size, common | words)
        inputs = torch.randint(0, 100, (size.batch, size.length))
    model.set_attn_implementation(attention)
    return Subject(model.eval(), (inputs,), keywords)


def _language_model(
    hf: Any, name: str, size: Size, common: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    no_cache = {"use_cache": False}
    grouped = {"num_key_value_heads": size.heads // 2}
    if name == "bert":
        return hf.BertModel(hf.BertConfig(**common), add_pooling_layer=False), {}
    if name == "gpt2":
        ends = {"bos_token_id": 0, "eos_token_id": 1}
        config = hf.GPT2Config(
            n_embd=size.hidden,
            n_inner=size.inner,
            n_layer=size.layers,
            n_head=size.heads,
            vocab_size=100,
            n_positions=4 * size.length,
            **ends,
        )
        return hf.GPT2Model(config), no_cache
    if name == "llama":
        return hf.LlamaModel(hf.LlamaConfig(**common, **grouped)), no_cache
    if name == "qwen2":
        return hf.Qwen2Model(hf.Qwen2Config(**common, **grouped)), no_cache
    if name == "qwen3":
        depth = {"head_dim": size.hidden // size.heads}
        return hf.Qwen3Model(hf.Qwen3Config(**common, **grouped, **depth)), no_cache
    raise ValueError(f"the zoo has no model {name!r}; it has {list(MODELS)}")


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
